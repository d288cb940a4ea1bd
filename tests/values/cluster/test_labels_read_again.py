# SPDX-License-Identifier: Apache-2.0

"""A running server reads labels of pods as soon as a Service asks for them: who tells whom, and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from locator.api.decoding import RESOURCES, with_pod_labels
from locator.api.deltas import Delta, DeltaBatch, Put, Replace
from locator.cluster.api_client import ApiServerReadiness, Readiness
from locator.cluster.informer import Informer
from locator.cluster.publisher import LABELS_SECONDS, Publisher, ReadBatch, ReadOnce
from locator.cluster.reflector import Reflector
from locator.endpoints import compact
from locator.ip import parse_address
from locator.model import ZONE, Endpoint, EndpointSlice, Pod, Service, labels_of
from locator.state.store import Store
from tests.kit.api_answers import INITIAL_END, Answer, bookmark, line, page
from tests.kit.api_objects import Item, pod, service
from tests.kit.waiting import until_in_trio

APP = frozenset(("app",))


def known(version: int = 1) -> Item:
    made = pod("a", ["10.0.0.1"], "n0", labels={"app": "web"})
    made["metadata"] |= {"resourceVersion": str(version), "uid": "1"}
    return made


class Server:
    """An API server with one pod, whose watches go on until the client ends them; ``asked`` has the paths and queries.

    Its Services have these *annotations*.
    """

    def __init__(self, annotations: Mapping[str, str] | None = None) -> None:
        self.host = "server"
        self.server_readiness = ApiServerReadiness(self._ready)
        self.on_history_lost: list[Callable[[float], None]] = []
        self.on_moved: list[Callable[[], None]] = []
        self.asked: list[tuple[str, Mapping[str, str]]] = []
        self._service = service("web", keys=f"{ZONE},*", annotations=annotations or {})

    async def _ready(self) -> Readiness:
        return Readiness.READY

    def open(self, path: str, query: Mapping[str, str], *, silence: float, accept: str) -> Answer:
        self.asked.append((path, query))
        if "watch" in query:
            return Answer([line("ADDED", known()), bookmark(2, INITIAL_END)], waits=True)
        items = {"/api/v1/pods": [known()], "/api/v1/services": [self._service]}
        return Answer(page=page(*items.get(path, ()), version=9))


def test_a_watch_is_ended_for_a_list_with_labels() -> None:
    """Contact is not lost by that, nothing counts as started again, and what was read stays until the list is there."""
    server = Server()

    async def main() -> None:
        send, receive = trio.open_memory_channel[DeltaBatch](4)
        reflector = Reflector(server, Pod, RESOURCES[Pod], send)  # type: ignore[arg-type]

        async def listed() -> Mapping[str, str]:
            (delta,) = (await receive.receive()).deltas
            assert isinstance(delta, Replace)
            return labels_of(delta.objects[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reflector.run)
            assert await listed() == {}
            await until_in_trio(lambda: reflector.listed and not reflector.problem)
            reflector.read_with(with_pod_labels(APP)[Pod])
            assert reflector.listed and reflector.lost_since is None
            with trio.fail_after(20):
                assert await listed() == {"app": "web"}
            await until_in_trio(lambda: not reflector.problem)
            assert (len(server.asked), reflector.restarts.total(), reflector.lost_since) == (2, 0, None)
            assert reflector.health().ok
            reflector.read_with(RESOURCES[Pod])
            assert await listed() == {}
            nursery.cancel_scope.cancel()

    trio.run(main)


BALANCED = {"topodns.io/max-overload": "1.5"}


@pytest.mark.parametrize(
    ("annotations", "labels", "lists"),
    [
        ({}, {}, 1),
        ({"topodns.io/clients": "shop/app=web"}, {}, 1),
        (BALANCED, {}, 1),
        ({**BALANCED, "topodns.io/clients": "shop"}, {}, 1),
        ({**BALANCED, "topodns.io/clients": "shop/app=web"}, {"app": "web"}, 2),
    ],
    ids=["plain", "without-overload", "everybody", "a-namespace", "by-label"],
)
def test_who_reads_once_lists_pods_again_only_for_labels(
    annotations: Mapping[str, str], labels: Mapping[str, str], lists: int
) -> None:
    """So a command sees the same as a server."""
    server = Server(annotations)

    async def read() -> ReadBatch:
        informer = Informer(server, (Service, Pod), Publisher(Store()))  # type: ignore[arg-type]
        return await informer.read_once(ReadOnce())

    found = trio.run(read)
    assert [path for path, _ in server.asked].count("/api/v1/pods") == lists
    (only,) = found.objects()[Pod]
    assert labels_of(only) == labels
    assert {delta.labels for delta in found.batch.deltas if isinstance(delta, Replace) and delta.kind is Pod} == {
        frozenset(labels)
    }


# The publisher


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what threads do at once: the virtual clock would jump while a thread works."""

    async def run_sync(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


def asking(name: str, clients: str) -> Sequence[Delta]:
    """Return a Service with an endpoint, whose clients are these."""
    said = {"topodns.io/topology-keys": f"{ZONE},*", "topodns.io/max-overload": "1.5", "topodns.io/clients": clients}
    rows = compact([Endpoint((parse_address("10.2.0.1"),), node="n0")])
    return Put(Service("shop", name, headless=True, annotations=said)), Put(EndpointSlice("shop", name, name, rows))


@pytest.mark.usefixtures("_at_once")
def test_labels_are_asked_for_at_once_but_not_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may change a Service makes the source list all pods once in LABELS_SECONDS, not more often."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    monkeypatch.setattr("time.time", clock.current_time)  # by which clients are forgotten
    wanted: list[tuple[float, set[str]]] = []

    async def main() -> None:
        publisher = Publisher(Store())
        publisher.read_pod_labels = lambda keys: wanted.append((trio.current_time(), {*keys}))

        async def tell(*deltas: Delta) -> None:
            publisher.batches.send_nowait(DeltaBatch(deltas))
            await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.run)
            await tell(*(Replace(kind, []) for kind in publisher.kinds), *asking("web", "shop"))
            assert wanted == []
            start = trio.current_time()
            await tell(*asking("web", "shop/app=web"))
            await tell(*asking("api", "shop/app=api"))
            assert [(round(at - start), keys) for at, keys in wanted] == [(0, {"app"})]
            await tell(*asking("api", "shop/tier=api"))
            await tell(*asking("web", "shop/tier,zone"))
            await trio.sleep(2 * LABELS_SECONDS)
            known = {"app", "tier", "zone"}  # whoever asked a moment ago may ask again
            assert [(round(at - start), keys) for at, keys in wanted[1:]] == [(LABELS_SECONDS, known)]
            await trio.sleep(10 * LABELS_SECONDS)
            assert len(wanted) == 2, "a source that lists is not asked again"
            await tell(*asking("web", "shop/rack"))
            assert wanted[2][1] == {"rack", "tier"}, "what nobody wants any more is left out"
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
