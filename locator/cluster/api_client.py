"""A live cluster's API: how it is reached, with whose credentials, and what comes back as raw bytes.

The only door to the official client, of which it takes configuration, credentials and connections. What is asked and
what the answers mean is decided elsewhere. Everything here blocks: it runs in threads.
"""

from __future__ import annotations

import http
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import urllib3

from locator.api.decoding import RESOURCES
from locator.api.deltas import Delta, DeltaBatch
from locator.api.listwatch import ListWatch
from locator.cluster.credentials import Access, BadCluster, credentials_source, identity_of
from locator.cluster.responses import (
    CONNECT_SECONDS,
    READ_ERRORS,
    Refused,
    Stream,
    Unreachable,
    asked,
    refused,
    unreachable,
)
from locator.model import Finding, Object

READ_SILENCE = 60.0  # seconds, of a list: the API server gives up itself then


class ApiClient:
    """The API server of one cluster. Threads may share it."""

    host: str
    """Its address, as ``https://host:port``."""
    identity: str
    """What tells this cluster from others: it is made from the address and the authority that vouches for it."""
    namespace: str
    """In a pod the pod's own, else the context's, else "default"."""

    def __init__(self, *, kubeconfig: str | None = None, context: str | None = None) -> None:
        """Find the cluster: by a kubeconfig, or in a pod by its service account.

        Where neither file nor context is given and this is no pod, ``$KUBECONFIG`` and then ``~/.kube/config`` hold.
        Asks nobody anything, except that credentials may be files. Raises BadCluster.
        """
        self._source = credentials_source(kubeconfig, context)
        self._lock = threading.Lock()
        access = self._source.access(run=False)
        self._access = access
        self.host, self.namespace = access.host, access.namespace
        self.identity = identity_of(access.host, access.authority)

    def open(self, path: str, query: Mapping[str, str], *, silence: float) -> Stream:
        """Begin to read; *silence* is how many seconds may pass without a byte. Raises Refused, Unreachable."""
        return Stream(self._send("GET", path, query, None, {}, silence), self.host, silence)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        media: str = "application/json",
        timeout: float = 10.0,
    ) -> bytes:
        """Return the whole answer; *body* is bytes, or what becomes JSON. Raises Refused, Unreachable.

        *timeout* is how many seconds may pass without a byte.
        """
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {} if data is None else {"Content-Type": media}
        return Stream(self._send(method, path, query or {}, data, headers, timeout), self.host, timeout).read()

    def renew(self) -> None:
        """Read the credentials again: file, kubeconfig or plugin. Happens by itself after a 401. Raises BadCluster."""
        self._renew(self._access)

    def _renew(self, seen: Access) -> Access:
        """Return credentials that are not *seen*: one thread fetches them, for all that wait."""
        with self._lock:
            if self._access is seen:
                self._access = self._source.access(run=True)
                seen.client.rest_client.close()  # idle connections only
            return self._access

    def _send(
        self, method: str, path: str, query: Mapping[str, str], data: bytes | None, more: dict[str, str], silence: float
    ) -> Any:
        try:
            access = self._access if self._access.complete else self._renew(self._access)
            response = self._send_once(access, method, path, query, data, more, silence)
            if response.status == http.HTTPStatus.UNAUTHORIZED:
                access = self._renew(access)
                if method == "GET":  # a write may be too late by now: whoever asked for it decides anew
                    response.close()
                    response = self._send_once(access, method, path, query, data, more, silence)
        except BadCluster as error:
            raise Unreachable(f"{self.host}: no credentials: {error}") from None
        if response.status < http.HTTPStatus.MULTIPLE_CHOICES:
            return response
        raise refused(response, asked(method, path, query))

    def _send_once(
        self,
        access: Access,
        method: str,
        path: str,
        query: Mapping[str, str],
        data: bytes | None,
        more: dict[str, str],
        silence: float,
    ) -> Any:
        url = f"{self.host}{path}?{urllib.parse.urlencode(query)}" if query else f"{self.host}{path}"
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "topodns", **more}
        headers |= access.authorization()
        try:
            return access.client.rest_client.pool_manager.request(
                method,
                url,
                body=data,
                headers=headers,
                preload_content=False,
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=min(CONNECT_SECONDS, silence), read=silence),
            )
        except READ_ERRORS as error:
            raise unreachable(self.host, error, silence, begun=False) from None


def read(cluster: ApiClient, kinds: Sequence[type[Object]]) -> DeltaBatch:
    """List each kind once: return all objects, and what is wrong in those that cannot be read as they should.

    Raises Refused and Unreachable, whose texts begin with the resource.
    """
    changes: list[Delta] = []
    findings: dict[str, Sequence[Finding]] = {}
    for kind in kinds:
        resource = RESOURCES[kind]
        listwatch = ListWatch(kind, resource, chance=lambda: 0.0, streaming=False)
        while not listwatch.listed:
            try:
                with cluster.open(*listwatch.next()[:2], silence=READ_SILENCE) as answer:
                    news = listwatch.page(answer.read())
                if listwatch.over:
                    raise Unreachable(f"{cluster.host}: {listwatch.problem}", "cut")
            except Refused as error:
                news = listwatch.refused(error.status, error.message, error.retry_after)
                if listwatch.pause and not listwatch.listed:
                    raise Refused(error.status, error.reason, f"{resource.name}: {listwatch.problem}") from None
            except Unreachable as error:
                raise Unreachable(f"{resource.name}: {error}", error.word) from None
            changes += news.changes
            findings |= news.findings
    return DeltaBatch(changes, findings)
