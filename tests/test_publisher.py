"""When news is published: soon, not at each event, and never only when it is quiet at last."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from locator.api.deltas import Delta, DeltaBatch, Drop, Put, Replace
from locator.cluster.publisher import AT_ONCE, Publisher
from locator.finding_codes import ClusterCode
from locator.model import EndpointSlice, Finding, Namespace, Object
from locator.state.snapshot import Snapshot
from locator.state.store import Store
from tests import api_objects
from tests.in_memory import dump_of
from tests.waiting import PATIENCE

A, B = (dump_of([api_objects.node(name, {api_objects.ZONE: "a"}, addresses=["192.0.2.1"])]).objects[0] for name in "ab")
LATER = "2024-01-01T00:00:00.123456789Z"


class Reconciler:
    """An intake under way, with what it has published, and when."""

    def __init__(self) -> None:
        self.store = Store()
        self._send, receive = trio.open_memory_channel[DeltaBatch](1000)
        self.published: list[tuple[float, Snapshot]] = []
        self.findings: Sequence[Finding] = ()
        self.programmed: list[float] = []
        self.intake = Publisher(self.store, receive, published=self._publish, programmed=self.programmed.append)

    def _publish(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        self.published.append((trio.current_time(), snapshot))
        self.findings = findings

    def tell(self, kind: type[Object], *changes: Any, **more: Any) -> None:
        self._send.send_nowait(DeltaBatch(kind, changes, **more))

    def list_all(self, *objects: Object) -> None:
        for kind in self.store.kinds:
            self.tell(kind, Replace(kind, [each for each in objects if type(each) is kind]))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock would jump while a thread works, so what threads do is done at once."""

    async def run_sync(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


def under_way(test: Callable[[Reconciler], Awaitable[None]]) -> None:
    """Run a test beside an intake, on a clock that jumps to whatever is waited for."""

    async def run() -> None:
        desk = Reconciler()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.intake.run)
            await test(desk)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_nothing_is_published_before_every_kind_was_listed() -> None:
    """Not knowing is not knowing nothing: half a cluster would be a wrong answer."""

    async def test(desk: Reconciler) -> None:
        *most, last = desk.store.kinds
        for kind in most:
            desk.tell(kind, Replace(kind, []))
        await trio.sleep(10)
        assert desk.published == [] and desk.intake.missing == {last}
        desk.tell(last, Replace(last, []))
        await trio.sleep(1)
        assert len(desk.published) == 1 and not desk.intake.missing

    under_way(test)


TIMES = [
    # id, when visible news comes, when invisible news comes, when is published (ms)
    ("one", [0], [], [5]),
    ("two-that-belong-together", [0, 3], [], [8]),
    ("two-apart", [0, 50], [], [5, 55]),
    ("churn", list(range(0, 250, 4)), [], [100, 200, 253]),
    ("heartbeats-hold-nothing-up", [0], list(range(0, 300, 2)), [5]),
    ("nothing-visible", [], list(range(0, 300, 2)), []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("visible", "invisible", "expected"), [row[1:] for row in TIMES], ids=[row[0] for row in TIMES]
)
def test_what_is_visible_is_published_in_a_quiet_moment(
    visible: list[int], invisible: list[int], expected: list[int]
) -> None:
    """After 5 ms without more, after 100 ms at the latest, and whatever cannot be seen counts for nothing."""
    relabelled = cycle_of(A)

    async def test(desk: Reconciler) -> None:
        desk.list_all(A, B)
        await trio.sleep(1)
        desk.published.clear()
        begun = trio.current_time()
        for at, seen in sorted([(at, True) for at in visible] + [(at, False) for at in invisible]):
            await trio.sleep_until(begun + at / 1000)
            desk.tell(type(A), Put(next(relabelled) if seen else B))
        await trio.sleep(1)
        times = [round((at - begun) * 1000) for at, _ in desk.published]
        assert times == pytest.approx(expected, abs=4)

    under_way(test)


def cycle_of(node: Object) -> Iterator[Object]:
    """Yield a node with another label each time."""
    number = 0
    while True:
        number += 1
        yield dump_of([api_objects.node(node.key, {api_objects.ZONE: f"z{number}"})]).objects[0]


def test_a_kept_view_is_published_at_once() -> None:
    """A start need not wait for the API server; what it says afterwards takes the kept view's place, kind by kind."""

    async def test(desk: Reconciler) -> None:
        await desk.intake.begin_with([A, Namespace("old")])
        assert len(desk.published) == 1 and desk.published[0][1].namespaces == {"old"}
        assert desk.intake.missing == set(desk.store.kinds), "it is not the cluster's own word"
        desk.tell(Namespace, Replace(Namespace, [Namespace("new")]))
        await trio.sleep(1)
        assert desk.published[-1][1].namespaces == {"new"}
        desk.list_all(A)
        await trio.sleep(1)
        assert desk.published[-1][1].namespaces == set() and not desk.intake.missing

    under_way(test)


def test_findings_last_until_they_are_mended() -> None:
    """What cannot be read in one object is told with every view, as long as it is so."""
    wrong = ClusterCode.UnreadableObject.finding("Service", "shop", "web", field="spec.ports", message="no array")

    async def test(desk: Reconciler) -> None:
        desk.list_all()
        desk.tell(EndpointSlice, Drop(EndpointSlice, "shop/web"), findings={"shop/web": [wrong]})
        await trio.sleep(1)
        assert wrong in desk.findings, "in a quiet cluster, too"
        desk.tell(type(A), Put(A))
        await trio.sleep(1)
        assert wrong in desk.findings
        desk.tell(EndpointSlice, findings={"shop/web": ()})
        await trio.sleep(1)
        assert wrong not in desk.findings

    under_way(test)


def test_the_time_from_a_change_to_its_answer_is_told() -> None:
    """By the time that Kubernetes' controller notes; what was listed at the start changed long ago, and counts not."""

    async def test(desk: Reconciler) -> None:
        *most, last = desk.store.kinds
        for kind in most:
            desk.tell(kind, Replace(kind, []))
        desk.tell(EndpointSlice, triggered=[LATER])
        desk.tell(last, Replace(last, []))
        await trio.sleep(1)
        assert desk.programmed == []
        slices = dump_of([api_objects.endpoint_slice("web", 1, [api_objects.endpoint("10.0.0.1")])]).objects
        desk.tell(EndpointSlice, Put(slices[0]), triggered=[LATER, "yesterday"])
        await trio.sleep(1)
        assert desk.programmed == [pytest.approx(time.time() - 1704067200.123, abs=60)]
        desk.tell(EndpointSlice, Put(slices[0]), triggered=["2000-01-01T00:00:00Z"])
        desk.tell(type(A), Put(A))
        await trio.sleep(1)
        assert len(desk.programmed) == 1, "what nobody can see was not programmed"

    under_way(test)


def test_what_is_known_is_asked_for_between_two_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may be changing the store: who keeps the view waits for it, and gets all of it or nothing."""
    go_on = threading.Event()

    class Slow(Store):
        """A store that is in the middle of a change until the test lets it go on."""

        def apply(self, change: Delta) -> bool:
            go_on.wait(PATIENCE)
            return super().apply(change)

    async def run() -> None:
        send, receive = trio.open_memory_channel[DeltaBatch](1)
        intake = Publisher(Slow(), receive, published=lambda snapshot, findings: None, programmed=lambda seconds: None)
        many = [Namespace(f"n{number}") for number in range(AT_ONCE + 1)]
        found: list[Object] = []

        async def ask() -> None:
            found.extend(await intake.known())
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(intake.run)
            await send.send(DeltaBatch(Namespace, [Replace(Namespace, many)]))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert not found
            go_on.set()
        assert found == many

    monkeypatch.undo()  # with real threads
    trio.run(run)
