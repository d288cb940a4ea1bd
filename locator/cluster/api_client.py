# SPDX-License-Identifier: Apache-2.0

"""The client for a cluster's API server: sends requests with the right credentials, and returns raw bytes.

It uses the official client for configuration, credentials and connections only. All its calls block: run them in
threads. ``ApiServerReadiness`` is for trio, and notices when an API server is back: while somebody waits for that, it
asks for ``/readyz`` more often than for lists and watches.
"""

from __future__ import annotations

import http
import random
import threading
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

import msgspec
import trio
import urllib3

from locator.api.decoding import RESOURCES, Resources
from locator.api.deltas import Delta, DeltaBatch
from locator.api.list_watch import JSON, ListWatch
from locator.backoff import BETWEEN_RETURNS, POLL, POLL_TIMEOUT, REFUSING
from locator.cluster.credentials import Access, BadCluster, credentials_source, no_access
from locator.cluster.responses import (
    CONNECT_SECONDS,
    READ_ERRORS,
    Refused,
    Stream,
    Unreachable,
    read_refusal,
    resource_attributes,
    unreachable,
)
from locator.model import Finding, Object

READ_SILENCE = 60.0  # seconds, for a list: the API server gives up after that


class ApiClient:
    """The API server of one cluster. Threads may share it."""

    identity: str
    """A digest of the address and the certificate authority, which differs between clusters."""
    unusable: str
    """Why the configuration could not be read at first; empty if it could, or could since."""
    namespace: str
    """The pod's own namespace in a pod, otherwise the context's, otherwise "default"."""
    server_readiness: ApiServerReadiness
    """Tells when the API server is back. Only one trio run may use it; threads may share everything else."""
    on_history_lost: list[Callable[[float], None]]
    """What to call, in that trio run, when the API server may have gone back to an older state since a time."""
    on_moved: list[Callable[[], None]]
    """What to call, in that trio run, when it has another address or certificate authority: it may be another one."""

    def __init__(self, *, kubeconfig: str | None = None, context: str | None = None, required: bool = True) -> None:
        """Read the configuration, without any request to the API server.

        *kubeconfig* and *context* select a context. If both are None, topodns uses the service account in a pod, and
        elsewhere ``$KUBECONFIG`` or ``~/.kube/config``. Raises BadCluster if the configuration is *required*; else all
        requests are Unreachable until it can be read.
        """
        self._source = credentials_source(kubeconfig, context)
        self._lock = threading.Lock()
        self.unusable = ""
        try:
            access = self._source.access(run_plugin=False)
        except BadCluster as error:
            if required:
                raise
            access, self.unusable = no_access(kubeconfig or ""), str(error)
        self._access, self.identity = access, access.identity
        self.namespace = access.namespace
        self.on_history_lost, self.on_moved = [], []
        self.server_readiness = ApiServerReadiness(
            partial(trio.to_thread.run_sync, self.readiness, abandon_on_cancel=True)
        )

    @property
    def host(self) -> str:
        """The address of the API server, ``https://HOST:PORT``; the file that should name it if that is unusable."""
        return self._access.host

    async def reconfigure(self) -> None:
        """Read the configuration again, since it has changed, and use it from now on; whoever waits tries again.

        Raises BadCluster if it cannot be read, and goes on with the last one.
        """
        if await trio.to_thread.run_sync(self._reconfigure):
            for moved in self.on_moved:
                moved()
        self.server_readiness.announce()

    def _reconfigure(self) -> bool:
        """Do so; return whether the API server may be another one than before."""
        with self._lock:
            access = self._source.access(run_plugin=False)
            before, self.identity = self.identity, access.identity
            self._use(access)
            return access.identity != before

    def open(self, path: str, query: Mapping[str, str], *, silence: float, accept: str = JSON) -> Stream:
        """Send a GET and return its response as a stream. Raises Refused, Unreachable.

        *silence* is how many seconds may pass without a byte. *accept* is the value of the header ``Accept``.
        """
        return Stream(self._send("GET", path, query, None, {"Accept": accept}, silence), self.host, silence)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        media: str = JSON,
        timeout: float = 10.0,
    ) -> bytes:
        """Send a request and return the whole response. Raises Refused, Unreachable.

        *body* is bytes, or an object to encode as JSON. *timeout* is how many seconds may pass without a byte.
        """
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {} if data is None else {"Content-Type": media}
        return Stream(self._send(method, path, query or {}, data, headers, timeout), self.host, timeout).read()

    def readiness(self) -> Readiness:
        """Ask the API server whether it is ready. Never raises; does not renew credentials."""
        if self._access.client is None:
            return Readiness.AWAY
        try:
            response = self._send_once(self._access, "GET", "/readyz", {}, None, {}, POLL_TIMEOUT)
            Stream(response, self.host, POLL_TIMEOUT).read()
        except (BadCluster, Unreachable):
            return Readiness.AWAY
        status = response.status
        if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR or status == http.HTTPStatus.TOO_MANY_REQUESTS:
            return Readiness.AWAY
        return Readiness.READY if status == http.HTTPStatus.OK else Readiness.RESPONDS

    def _renew(self, expired: Access) -> Access:
        """Return newer credentials than *expired*. One thread reads them, and all others wait for it."""
        with self._lock:
            if self._access is expired:
                self._use(self._source.access(run_plugin=True))
            return self._access

    def _use(self, access: Access) -> None:
        expired, self._access, self.unusable = self._access, access, ""
        if expired.client is not None:
            expired.client.rest_client.close()  # idle connections only

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        data: bytes | None,
        headers: dict[str, str],
        silence: float,
    ) -> Any:
        try:
            access = self._access if self._access.usable else self._renew(self._access)
            response = self._send_once(access, method, path, query, data, headers, silence)
            if response.status == http.HTTPStatus.UNAUTHORIZED:
                access = self._renew(access)
                if method == "GET":  # a write may be out of date by now, so its caller decides again
                    response.close()
                    response = self._send_once(access, method, path, query, data, headers, silence)
        except BadCluster as error:
            raise Unreachable(f"{self.host}: no credentials: {error}") from None
        if response.status < http.HTTPStatus.MULTIPLE_CHOICES:
            return response
        raise read_refusal(response, resource_attributes(method, path, query))

    def _send_once(
        self,
        access: Access,
        method: str,
        path: str,
        query: Mapping[str, str],
        data: bytes | None,
        headers: dict[str, str],
        silence: float,
    ) -> Any:
        url = f"{access.host}{path}?{urllib.parse.urlencode(query)}" if query else f"{access.host}{path}"
        common = {"Accept": JSON, "Accept-Encoding": "gzip", "User-Agent": "topodns"}
        headers = {**common, **headers, **access.authorization()}
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
            raise unreachable(access.host, error, silence, begun=False) from None


class Readiness(IntEnum):
    """How well an API server answers: the greater the better."""

    AWAY = 0
    """No response, an error of the server, or one of a load balancer without servers."""
    RESPONDS = 1
    """It refuses the request: by default every client may ask, but an administrator may have changed that."""
    READY = 2


class ApiServerReadiness:
    """Tells all who wait when an API server is back. *ask* returns its readiness now."""

    def __init__(self, ask: Callable[[], Awaitable[Readiness]]) -> None:
        self.next = trio.Event()
        """Set when the API server is back the next time; then another event takes its place."""
        self.warned = ""
        """Why nothing responds, as last logged; empty after contact."""
        self._ask = ask
        self._known = Readiness.READY  # so that only what has been seen not to be ready can come back
        self._fell = False  # whether it was worse since the last return
        self._asking = False
        self._asked_at = self._returned_at = self._changed_at = float("-inf")

    @property
    def ready(self) -> bool:
        """Whether the API server was ready when it was last asked, or nobody had to ask."""
        return self._known is Readiness.READY

    def announce(self) -> None:
        """Have all who wait try again now: something is otherwise than when they failed."""
        self.next.set()
        self.next = trio.Event()

    async def wait(self, event: trio.Event) -> None:
        """Wait until *event*, which was ``next``, is set; until then ask for the readiness.

        While the API server is ready, or has refused for REFUSING seconds, its readiness is asked for once only: nobody
        expects its return then.
        """
        if not event.is_set():
            await self._look()
        while not event.is_set():
            with trio.move_on_after(POLL * (1 + random.random())):
                await event.wait()
            if self._may_return:
                await self._look()

    @property
    def _may_return(self) -> bool:
        if self._known is Readiness.RESPONDS:
            return trio.current_time() < self._changed_at + REFUSING
        return self._known is Readiness.AWAY

    async def _look(self) -> None:
        """Ask for the readiness, unless somebody else asks, or has just asked."""
        if self._asking or trio.current_time() < self._asked_at + POLL:
            await trio.lowlevel.checkpoint()
            return
        self._asking = True
        try:
            found = await self._ask()
        finally:
            self._asking, self._asked_at = False, trio.current_time()
        if found < self._known:
            self._known, self._fell, self._changed_at = found, True, self._asked_at
        elif found > self._known and not (self._fell and self._asked_at < self._returned_at + BETWEEN_RETURNS):
            self._known, self._fell, self._returned_at = found, False, self._asked_at
            self._changed_at = self._asked_at
            self.announce()


def list_once(
    client: ApiClient,
    kinds: Sequence[type[Object]],
    *,
    report: Callable[[str], None] = lambda text: None,
    silence: float = READ_SILENCE,
    resources: Resources = RESOURCES,
) -> DeltaBatch:
    """List each kind once; return all objects, and findings about those that cannot be read.

    Calls *report* with what it reads now, before each page. *silence* is how many seconds may pass without a byte.
    *resources* says how each kind is read.
    Raises Refused and Unreachable, whose texts name the kind, unless the API server does not respond at all.
    """
    deltas: list[Delta] = []
    findings: dict[str, Sequence[Finding]] = {}
    for kind in kinds:
        resource = resources[kind]
        listwatch = ListWatch(kind, resource, chance=lambda: 0.0, streaming=False)
        read = 0
        while not listwatch.listed:
            report(f"{client.host}: reading {resource.name} objects{f', {read / 1e6:.1f} MB so far' if read else ''}")
            request = listwatch.next_request()
            try:
                with client.open(request.path, request.query, silence=silence, accept=request.accept) as stream:
                    body = stream.read()
                    read += len(body)
                    batch = listwatch.page(body)
                if listwatch.over:
                    raise Unreachable(f"{client.host}: {listwatch.problem}", "cut")
            except Refused as error:
                batch = listwatch.refused(error.status, error.message, error.retry_after)
                if listwatch.pause and not listwatch.listed:
                    raise Refused(
                        error.status, error.reason, ": ".join(filter(None, (resource.name, listwatch.problem)))
                    ) from None
            except Unreachable as error:
                about = "" if error.reason == "unreachable" else f"{resource.name}: "  # no kind's fault
                raise Unreachable(f"{about}{error}", error.reason) from None
            deltas += batch.deltas
            findings |= batch.findings
    return DeltaBatch(deltas, findings)
