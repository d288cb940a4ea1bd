# SPDX-License-Identifier: Apache-2.0

"""A reflector that runs in the background of a test, and the view that its deltas build."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio

from locator.api.decoding import RESOURCES, Resource
from locator.api.deltas import DeltaBatch, Put, Replace
from locator.cluster import api_client
from locator.cluster.api_client import ApiClient
from locator.cluster.reflector import Reflector
from locator.model import Finding
from tests.kit.live_server import RECOVERY
from tests.kit.waiting import until


class Following:
    """The view of one kind, built from its reflector's deltas."""

    def __init__(self, cluster: ApiClient, kind: type[Any], resource: Resource, silence: float) -> None:
        self.view: dict[str, Any] = {}
        self.findings: dict[str, list[Finding]] = {}
        self.replaced = 0
        """How many Replace deltas came."""
        self.triggered: list[str] = []
        self._cluster, self._made = cluster, kind
        self._send, self._receive = trio.open_memory_channel[DeltaBatch](4)
        self.reflector = Reflector(cluster, kind, resource, self._send, silence=silence)
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.reflector.run)
                async for news in self._receive:
                    self.take_in(news)

    def take_in(self, news: DeltaBatch) -> None:
        for change in news.deltas:
            if isinstance(change, Replace):
                self.view = {obj.key: obj for obj in change.objects}
                self.replaced += 1
            elif isinstance(change, Put):
                self.view[change.object.key] = change.object
            else:
                self.view.pop(change.key, None)
        for place, found in news.findings.items():
            self.findings.pop(place, None)
            if found:
                self.findings[place] = list(found)
        self.triggered += news.triggered

    def end(self) -> None:
        self._scope.cancel()

    def until_same(self, cluster: ApiClient | None = None) -> None:
        """Wait until the view equals a new list, by *cluster* or by the reflector's own client."""

        def same() -> bool:
            (listed,) = api_client.list_once(cluster or self._cluster, [self._made]).deltas
            assert isinstance(listed, Replace)
            return not self.reflector.problem and self.view == {obj.key: obj for obj in listed.objects}

        def what() -> str:
            return f"the view equals a new list: {self.reflector.problem or sorted(self.view)}"

        until(same, what, within=RECOVERY)


@contextmanager
def following(
    cluster: ApiClient, kind: type[Any], *, resource: Resource | None = None, silence: float = 150.0
) -> Iterator[Following]:
    """Run a reflector until the end of the block, which cancels it."""
    followed = Following(cluster, kind, resource or RESOURCES[kind], silence)
    token: list[trio.lowlevel.TrioToken] = []
    started = threading.Event()

    async def main() -> None:
        token.append(trio.lowlevel.current_trio_token())
        started.set()
        await followed.run()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    started.wait()
    try:
        yield followed
    finally:
        token[0].run_sync_soon(followed.end)
        thread.join(20)
    assert not thread.is_alive(), "a reflector that is cancelled ends"
