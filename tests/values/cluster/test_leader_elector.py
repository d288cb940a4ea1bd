# SPDX-License-Identifier: Apache-2.0

"""A controller and its Lease, on an API server that answers as a test says."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio

from locator.api.decoding import RESOURCES
from locator.cluster.api_client import ApiServerReadiness, Readiness
from locator.cluster.leading import controller, writer
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector
from locator.cluster.responses import Refused
from locator.control.lease import LeaderElection
from locator.control.reconciler import Reconciler
from locator.control.writes import Write
from locator.model import Node, Pod, PodLocator
from locator.podlocators.rules import LocatorRules
from tests.kit import api_objects
from tests.kit.api_answers import INITIAL_END, Answer, bookmark, line
from tests.kit.api_objects import Item
from tests.kit.waiting import PATIENCE, until_in_trio

SHORT = {"duration": 1.5, "deadline": 1.0, "retry": 0.01}
LONG = {"duration": 60.0, "deadline": 30.0, "retry": 0.01}  # where a Lease that ran out would be another test


class FakeServer:
    """Holds one Lease, lists Pods and Nodes, and refuses what ``refuse`` lists."""

    def __init__(self, *pods: Item) -> None:
        listed = {Pod: [*pods], Node: [{"metadata": {"name": "n1"}}], PodLocator: []}
        self.lists = {RESOURCES[kind].path: items for kind, items in listed.items()}
        self.lease: Item | None = None
        self.asked: list[tuple[str, str]] = []
        self.server_readiness = ApiServerReadiness(self.is_ready)
        self.on_history_lost: list[Callable[[float], None]] = []
        self.on_moved: list[Callable[[], None]] = []
        self.refuse: Callable[[str, str], Refused | None] = lambda method, path: None
        self._lock = threading.Lock()
        self._version = 0

    async def is_ready(self) -> Readiness:
        return Readiness.READY

    def open(self, path: str, query: Any, *, silence: float, accept: str) -> Answer:
        lines = [line("ADDED", item) for item in self.lists[path]]
        return Answer([*lines, bookmark(1, INITIAL_END)], waits=True)

    def request(self, method: str, path: str, *, body: Any = None, **more: Any) -> bytes:
        with self._lock:
            self.asked.append((method, path))
            if (refusal := self.refuse(method, path)) is not None:
                raise refusal
            if method == "GET" and self.lease is None:
                raise Refused(404, "NotFound", "there is none")
            self._version += 1
            if body is not None:
                written = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}
                if "/leases" in path:
                    self.lease = written
                return msgspec.json.encode(written)
            return msgspec.json.encode(self.lease)


def pod(namespace: str, name: str) -> Item:
    made = api_objects.pod(name, ["10.0.0.1"], "n1", where=namespace)
    made["metadata"]["uid"] = f"{namespace}-{name}"
    return made


@asynccontextmanager
async def candidate(server: Any) -> AsyncIterator[LeaderElector]:
    """Take part in an election with short times."""
    elector = LeaderElector(server, LeaderElection("me", "ns", "lease", **SHORT), writes="PodLocators")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(elector.run)
        yield elector
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def controlling(server: Any, **times: float) -> AsyncIterator[None]:
    """Lead, and keep PodLocators right."""
    elector = LeaderElector(server, LeaderElection("me", "ns", "lease", **LONG | times), writes="PodLocators")
    one = Controller(server, elector, LocatorRules(), field_manager="tests")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(elector.lead, one.run)
        yield
        nursery.cancel_scope.cancel()


def test_each_renewal_wakes_whoever_waits_to_write() -> None:
    """Each renewal lets waiting writes go on, though the log shows changes only; until nobody wants to know."""
    woken = []

    def wake() -> None:
        woken.append(1)

    async def main() -> None:
        async with candidate(FakeServer()) as elector:
            elector.on_observed(wake)
            await until_in_trio(lambda: elector.is_leader() and len(woken) >= 5)
            elector.stop_telling(wake)
            before, others = len(woken), list[int]()
            elector.on_observed(lambda: others.append(1))
            await until_in_trio(lambda: len(others) >= 3)
            assert len(woken) == before

    trio.run(main)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_write_that_does_not_fit_is_made_anew(status: int) -> None:
    """After a refusal, the elector reads the Lease again before its next write."""
    server: Any = FakeServer()
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 1, "leaseTransitions": 2**31 - 1}
    server.lease = {"metadata": {"name": "lease", "resourceVersion": "1"}, "spec": spec}
    refusals = [Refused(status, "Invalid", "no")]
    server.refuse = lambda method, path: refusals.pop() if method == "PUT" and refusals else None

    async def main() -> None:
        async with candidate(server) as elector:
            await until_in_trio(elector.is_leader)

    trio.run(main)
    methods = [method for method, _ in server.asked]
    first = methods.index("PUT")
    assert "GET" in methods[first + 1 : methods.index("PUT", first + 1)]
    assert server.lease["spec"]["leaseTransitions"] == 2**31 - 1, "no more than the API's field holds"


def test_a_namespace_that_refuses_is_no_others_business(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a namespace refuses writes, as by a quota, the others get their PodLocators, without a storm."""
    monkeypatch.setattr(writer, "REFUSED_SECONDS", 0.01)
    monkeypatch.setattr("locator.backoff.FLOOR", 0.001)  # what was refused is due again at once
    server: Any = FakeServer(*(pod("full", f"web-{number}") for number in range(100)), pod("shop", "web"))

    def refuse(method: str, path: str) -> Refused | None:
        return Refused(403, "Forbidden", "exceeded quota") if "/namespaces/full/" in path else None

    server.refuse = refuse
    written = ("POST", "/apis/topodns.io/v1alpha1/namespaces/shop/podlocators")
    tried: list[str] = []

    class NotingReconciler(Reconciler):
        """Records the writes in their order; threads send them in another order."""

        def next_write(self, now: float) -> Write | None:
            write = super().next_write(now)
            if write is not None:
                tried.append(write.key)
            return write

    monkeypatch.setattr(controller, "Reconciler", NotingReconciler)

    async def main() -> None:
        async with controlling(server):
            await until_in_trio(lambda: written in server.asked)

    trio.run(main)
    before = tried[: tried.index("shop/web")]
    assert len(before) == len(set(before)), "each was tried once before any was tried again"


def test_the_lease_is_released_after_the_last_write() -> None:
    """A write that is under way at the end is waited for: another replica may write as soon as the Lease is free."""
    writing, may_end = threading.Event(), threading.Event()
    ended: list[str] = []

    class SlowServer(FakeServer):
        """Ends a write when told to, or once the Lease has been released."""

        def request(self, method: str, path: str, **more: Any) -> bytes:
            if "/podlocators" in path:
                writing.set()
                assert may_end.wait(PATIENCE)
                ended.append("write")
            elif writing.is_set():
                ended.append("release")
                may_end.set()
            return super().request(method, path, **more)

    server: Any = SlowServer(pod("shop", "web"))

    async def main() -> None:
        async with controlling(server, retry=20):  # no renewal meanwhile
            await until_in_trio(writing.is_set)
            threading.Timer(0.2, may_end.set).start()

    trio.run(main)
    assert ended == ["write", "release"]
