# SPDX-License-Identifier: Apache-2.0

"""Reads what replicas say of themselves: directly, or through the API server where no route leads to them."""

from __future__ import annotations

import re
from functools import partial

import trio

from dnsserver.cli.reading.requests import SILENCE, NotUnderstood, read
from dnsserver.cli.remote import NoResponse, requested
from dnsserver.metrics.families import METRICS_SECONDS
from dnsserver.metrics.reading import Samples, read_samples
from dnsserver.programs.from_settings import HTTP_PORT
from dnsserver.settings.values import ListenAddress
from dnsserver.tools.doctor.answers import inside
from dnsserver.tools.doctor.facts import Installed, Replica, V1Pod, status_of
from dnsserver.tools.doctor.steps import Unread
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused, Unreachable

MAX_PAGE = 16 << 20  # bytes: with metrics by Service, it may be a third of that
NEAR_SECONDS = 2.0  # for a connection to a replica itself, and between any two octets from there
_CHECK = re.compile(r"\[([+-])\](.+?) (.*)")


class Replicas:
    """The replicas of an installation."""

    def __init__(self, client: ApiClient, installed: Installed, kubectl: str) -> None:
        self._client, self._installed, self._kubectl = client, installed, kubectl
        http_setting = installed.settings.http
        self._port = http_setting.port if isinstance(http_setting, ListenAddress) else HTTP_PORT
        self._off = http_setting == "off"
        self._far: set[str] = set()  # replicas to which no route leads
        self._read_at = 0.0

    async def read(self, pods: list[V1Pod]) -> list[Replica]:
        """Return what the pods say now; their metrics come before those of ``again``."""
        found: dict[str, Replica] = {}

        async def one(pod: V1Pod) -> None:
            page = await self.page(pod, "/readyz?verbose")
            samples = await self._samples(pod)
            checks = page if isinstance(page, Unread) else {
                match[2]: (match[1] == "+", match[3]) for match in map(_CHECK.fullmatch, page.splitlines()) if match
            }  # fmt: skip
            found[pod.metadata.name] = Replica(pod, checks, samples, samples)

        async with trio.open_nursery() as nursery:
            for pod in pods:
                nursery.start_soon(one, pod)
        self._read_at = trio.current_time()
        return [found[name] for name in sorted(found)]

    async def again(self, replicas: list[Replica]) -> list[Replica]:
        """Return the replicas with their metrics of now, too, once they keep those of ``read`` no longer."""
        found: dict[str, Replica] = {}
        await trio.sleep_until(self._read_at + METRICS_SECONDS)

        async def one(old: Replica) -> None:
            found[old.name] = Replica(old.pod, old.checks, old.before, await self._samples(old.pod))

        async with trio.open_nursery() as nursery:
            for old in replicas:
                nursery.start_soon(one, old)
        return [found[old.name] for old in replicas]

    async def _samples(self, pod: V1Pod) -> Samples | Unread:
        page = await self.page(pod, "/metrics")
        return page if isinstance(page, Unread) else await read(partial(_samples_in, page))

    async def page(self, pod: V1Pod, path: str) -> str | Unread:
        """Return a page of a pod, such as ``/metrics``."""
        if self._off:
            return Unread("the replicas serve no HTTP (--http off)")
        if not pod.status.pod_ip:
            return Unread(f"{status_of(pod)}: it has no address yet")
        name = pod.metadata.name
        page = Unread("") if name in self._far else await read(partial(self._direct, pod.status.pod_ip, path))
        if isinstance(page, Unread):
            self._far.add(name)
            page = await read(partial(self._proxied, name, path))
        if isinstance(page, Unread):
            return Unread(
                f"not reached from here; through the API server: {page.why}", (inside(self._kubectl, self._installed),)
            )
        return page

    def _direct(self, address: str, path: str) -> str:
        """Return a page of a replica. Raises Unreachable."""
        host = f"[{address}]" if ":" in address else address
        try:
            with requested(f"http://{host}:{self._port}{path}", accept="text/plain", timeout=NEAR_SECONDS) as response:
                return response.read(MAX_PAGE).decode(errors="replace")
        except NoResponse as error:
            raise Unreachable(f"{address}: {error}") from None

    def _proxied(self, name: str, path: str) -> str:
        """Return a page of a replica through the API server. Raises Refused, Unreachable."""
        page, _, query = path.partition("?")
        proxy = f"/api/v1/namespaces/{self._installed.namespace}/pods/{name}:{self._port}/proxy{page}"
        try:
            found, size = list[bytes](), 0
            with self._client.open(proxy, dict.fromkeys(filter(None, (query,)), ""), silence=SILENCE) as stream:
                for lines in stream:
                    found += lines
                    size += sum(map(len, lines))
                    if size > MAX_PAGE:
                        break
        except Refused as error:
            if not error.page:
                raise
            return error.page
        return b"\n".join((*found, b"")).decode(errors="replace")


def _samples_in(page: str) -> Samples:
    """Return the samples of an exposition. Raises NotUnderstood."""
    samples = read_samples(page)
    if samples is None:
        raise NotUnderstood("/metrics: something else than metrics found")
    return samples
