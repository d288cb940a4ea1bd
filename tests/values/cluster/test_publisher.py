# SPDX-License-Identifier: Apache-2.0

"""When the publisher publishes: soon after a change, not at each event, and even if changes never pause."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from locator.api.deltas import Delta, DeltaBatch, Drop, FileLine, Put, Replace, replacements
from locator.cluster.publisher import AT_ONCE, LOG_SECONDS, FindingLog, Publisher, on_new_findings
from locator.findings import ClusterCode
from locator.model import EndpointSlice, Finding, Namespace, Object, Pod
from locator.state.balancing import Balances, Plans
from locator.state.snapshot import CompiledService, Snapshot
from locator.state.store import Store
from tests.kit import api_objects
from tests.kit.crowded_zone import balanced, crowded
from tests.kit.in_memory import dump_of, snapshot_of
from tests.kit.waiting import PATIENCE

A, B = (dump_of([api_objects.node(name, {api_objects.ZONE: "a"}, addresses=["192.0.2.1"])]).objects[0] for name in "ab")
LATER = "2024-01-01T00:00:00.123456789Z"


class RunningPublisher:
    """A running publisher, and what it has published at which time."""

    def __init__(self) -> None:
        self.store = Store()
        self.published: list[tuple[float, Snapshot]] = []
        self.findings: Sequence[Finding] = ()
        self.programmed: list[float] = []
        self.publisher = Publisher(self.store, on_programmed=self.programmed.append)
        self.publisher.subscribe(self.publish)

    def publish(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        self.published.append((trio.current_time(), snapshot))
        self.findings = findings

    def tell(self, *changes: Delta, **more: Any) -> None:
        self.publisher.batches.send_nowait(DeltaBatch(changes, **more))

    def list_all(self, *objects: Object) -> None:
        for kind in self.store.kinds:
            self.tell(Replace(kind, [obj for obj in objects if type(obj) is kind]))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what threads do at once: the virtual clock would jump while a thread works."""

    async def run_sync(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


def under_way(test: Callable[[RunningPublisher], Awaitable[None]]) -> None:
    """Run a test with a publisher, on a virtual clock."""

    async def run() -> None:
        running = RunningPublisher()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.publisher.run)
            await test(running)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_nothing_is_published_before_every_kind_was_listed() -> None:
    """Half a cluster would give wrong answers."""

    async def test(running: RunningPublisher) -> None:
        *most, last = running.store.kinds
        for kind in most:
            running.tell(Replace(kind, []))
        await trio.sleep(10)
        assert running.published == [] and not running.publisher.has_synced()
        running.tell(Replace(last, []))
        await trio.sleep(1)
        assert len(running.published) == 1 and running.publisher.has_synced()

    under_way(test)


TIMES: dict[str, tuple[list[int], list[int], list[int]]] = {
    # when visible news comes, when invisible news comes, when is published (ms)
    "one": ([0], [], [5]),
    "two-that-belong-together": ([0, 3], [], [8]),
    "two-apart": ([0, 50], [], [5, 55]),
    "churn": (list(range(0, 250, 4)), [], [100, 200, 253]),
    "heartbeats-hold-nothing-up": ([0], list(range(0, 300, 2)), [5]),
    "nothing-visible": ([], list(range(0, 300, 2)), []),
}


@pytest.mark.parametrize(("visible", "invisible", "expected"), TIMES.values(), ids=TIMES)
def test_what_is_visible_is_published_in_a_quiet_moment(
    visible: list[int], invisible: list[int], expected: list[int]
) -> None:
    """After 5 ms without a change, after 100 ms at the latest; invisible changes do not count."""

    async def test(running: RunningPublisher) -> None:
        running.list_all(A, B)
        await trio.sleep(1)
        running.published.clear()
        begun = trio.current_time()
        for number, (at, seen) in enumerate(sorted([(at, True) for at in visible] + [(at, False) for at in invisible])):
            await trio.sleep_until(begun + at / 1000)
            running.tell(Put(replace(A, labels={api_objects.ZONE: f"z{number}"}) if seen else B))
        await trio.sleep(1)
        times = [round((at - begun) * 1000) for at, _ in running.published]
        assert times == pytest.approx(expected, abs=4)

    under_way(test)


def test_a_saved_view_is_published_at_once() -> None:
    """A start from a state file does not wait for the API server, whose lists replace it kind by kind."""

    async def test(running: RunningPublisher) -> None:
        running.tell(*replacements([A, Namespace("old")]), restored=True)
        await running.publisher.flush()
        assert len(running.published) == 1 and running.published[0][1].namespaces == {"old"}
        assert not running.publisher.has_synced(), "it is not the cluster's own word"
        running.tell(Replace(Namespace, [Namespace("new")]))
        await trio.sleep(1)
        assert running.published[-1][1].namespaces == {"new"}
        running.list_all(A)
        await trio.sleep(1)
        assert running.published[-1][1].namespaces == set() and running.publisher.has_synced()

    under_way(test)


def test_a_kept_snapshot_is_published_before_its_objects_are_known() -> None:
    """Nothing is published between it and what becomes of its objects: half a cluster would give wrong answers."""

    async def test(running: RunningPublisher) -> None:
        other = Store()
        for delta in replacements([A, Namespace("old")]):
            other.apply(delta)
        running.publisher.start_from(other.publish(0))
        assert [snapshot.namespaces for _, snapshot in running.published] == [{"old"}]
        assert not running.publisher.has_synced(), "it is not the cluster's own word"
        *most, last = running.store.kinds
        for kind in most:
            running.tell(Replace(kind, [Namespace("new")] if kind is Namespace else []))
        await trio.sleep(10)
        assert len(running.published) == 1
        running.tell(Replace(last, []))
        await trio.sleep(1)
        assert [snapshot.namespaces for _, snapshot in running.published] == [{"old"}, {"new"}]

    under_way(test)


def test_a_source_may_wait_for_its_publication() -> None:
    """A file is published as a whole, at once, and its source waits for that."""

    async def test(running: RunningPublisher) -> None:
        for name in ("one", "two"):
            began = trio.current_time()
            running.tell(*replacements([A, Namespace(name)]))
            await running.publisher.flush()
            assert running.published[-1][1].namespaces == {name}
            assert trio.current_time() == began, "no quiet moment is waited for"
        await trio.sleep(1)
        assert len(running.published) == 2 and running.publisher.has_synced()

    under_way(test)


def test_subscribers_are_told_one_after_the_other() -> None:
    """In the order of their subscription: a snapshot is marked stale before it is answered from."""

    async def test(running: RunningPublisher) -> None:
        told: list[str] = []
        for name in ("first", "second"):
            running.publisher.subscribe(lambda snapshot, findings, name=name: told.append(name))
        running.list_all(A)
        await trio.sleep(1)
        running.tell(Drop(type(A), A.key))
        await trio.sleep(1)
        assert told == ["first", "second"] * 2

    under_way(test)


def test_a_finding_is_told_of_once_as_long_as_it_is_there() -> None:
    """A finding is reported when it appears, and again if it comes back."""
    told: list[list[str]] = []
    subscriber = on_new_findings(lambda findings: told.append([finding.name for finding in findings]))
    store = Store()
    web, api = (
        ClusterCode.UnreadableObject.finding("Service", "shop", name, field="", message="bad")
        for name in ("web", "api")
    )
    for findings in ([web], [web], [web, api], [], [], [api, web]):
        subscriber(store.publish(0), findings)
    assert told == [["web"], ["api"], ["api", "web"]]


def test_few_findings_are_logged_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever changes a Service ten times a second fills no disk; how many are left out is said.

    Errors leave room for warnings, and warnings for errors.
    """
    orphan = ClusterCode.SliceWithoutService.finding("EndpointSlice", "shop", "web-1", message="bad")

    def named(number: int) -> list[Finding]:
        return [ClusterCode.UnreadableObject.finding("Service", "shop", f"s{n}", message="bad") for n in range(number)]

    async def main() -> None:
        logged = FindingLog()
        for findings, first, last in (
            (named(30), "Service shop/s0: bad [UnreadableObject]", "Service shop/s29: bad [UnreadableObject]"),
            (named(30), "Service shop/s0: bad [UnreadableObject]", "10 more findings; 'topodns check' lists all"),
            (named(3), "", ""),
            ([orphan], f"{orphan}", "3 more findings; 'topodns check' lists all"),
            (named(4), "", ""),
        ):
            logged.log(findings)
            assert [*caplog.messages, ""][0] == first and ["", *caplog.messages][-1] == last
            caplog.clear()
            await trio.sleep(1)
        await trio.sleep(LOG_SECONDS)
        logged.log(named(1))
        assert caplog.messages[1:] == ["4 more findings; 'topodns check' lists all"]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_findings_name_the_files_of_their_objects() -> None:
    """Findings name the files and lines of the last reading."""
    orphan = dump_of([api_objects.endpoint_slice("web", 1, [api_objects.endpoint("10.0.0.1")])]).objects

    async def test(running: RunningPublisher) -> None:
        for file in ("old.yaml", "new.yaml"):
            running.tell(*replacements(orphan), files={"EndpointSlice shop/web-1": FileLine(file, 7)})
            await running.publisher.flush()
            running.tell(Put(Namespace(file)))
            await trio.sleep(1)
            found = {(finding.file, finding.line) for finding in running.findings if finding.kind == "EndpointSlice"}
            assert len(running.published) % 2 == 0 and found == {(file, 7)}

    under_way(test)


def test_findings_last_until_they_are_fixed() -> None:
    """A finding on an unreadable object stays with every snapshot until it is fixed."""
    wrong = ClusterCode.UnreadableObject.finding("Service", "shop", "web", field="spec.ports", message="no array")

    async def test(running: RunningPublisher) -> None:
        running.list_all()
        running.tell(Drop(EndpointSlice, "shop/web"), findings={"Service shop/web": [wrong]})
        await trio.sleep(1)
        assert wrong in running.findings, "in a quiet cluster, too"
        running.tell(Put(A))
        await trio.sleep(1)
        assert wrong in running.findings
        running.tell(findings={"Service shop/web": ()})
        await trio.sleep(1)
        assert wrong not in running.findings

    under_way(test)


def test_the_time_from_a_change_to_its_answer_is_told() -> None:
    """From the time that Kubernetes' controller notes; a list at the start does not count."""

    async def test(running: RunningPublisher) -> None:
        *most, last = running.store.kinds
        for kind in most:
            running.tell(Replace(kind, []))
        running.tell(triggered=[LATER])
        running.tell(Replace(last, []))
        await trio.sleep(1)
        assert running.programmed == []
        slices = dump_of([api_objects.endpoint_slice("web", 1, [api_objects.endpoint("10.0.0.1")])]).objects
        running.tell(Put(slices[0]), triggered=[LATER, "yesterday"])
        await trio.sleep(1)
        assert running.programmed == [pytest.approx(time.time() - 1704067200.123, abs=60)]
        running.tell(Put(slices[0]), triggered=["2000-01-01T00:00:00Z"])
        running.tell(Put(A))
        await trio.sleep(1)
        assert len(running.programmed) == 1, "what nobody can see was not programmed"

    under_way(test)


def large_slice(which: int) -> Object:
    rows = [api_objects.endpoint(f"10.0.{which}.{number}") for number in range(AT_ONCE)]
    return dump_of([api_objects.endpoint_slice("web", 1, rows)]).objects[0]


@pytest.mark.parametrize(
    "many",
    [[Namespace(f"n{number}") for number in range(AT_ONCE + 1)], [large_slice(0)]],
    ids=["many-objects", "a-large-slice"],
)
def test_what_is_known_is_asked_for_between_two_changes(many: list[Object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread applies a large list; the state file's writer gets the state before or after it, never in between."""
    go_on = threading.Event()

    class Slow(Store):
        """A store that waits in the middle of a change until the test continues it."""

        def apply(self, change: Delta) -> bool:
            assert go_on.wait(PATIENCE), "applied while the event loop waits"
            return super().apply(change)

    async def run() -> None:
        publisher = Publisher(Slow(), on_programmed=lambda seconds: None)
        found: list[Object] = []

        async def ask() -> None:
            found.extend(await publisher.all_objects())
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.run)
            await publisher.batches.send(DeltaBatch([Replace(type(many[0]), [*many])]))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert not found
            go_on.set()
        assert found == many

    monkeypatch.undo()  # with real threads
    trio.run(run)


BALANCED, UNBALANCED = (crowded(balanced(f"{api_objects.ZONE},*", most, annotations={
    api_objects.CLIENTS: "shop/app=front"})) for most in ("1.2", "many"))  # fmt: skip


def test_changes_wait_for_plans_that_somebody_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread makes them, and the store is not changed meanwhile, not even a little."""
    go_on = threading.Event()

    class Slow(Store):
        """A store that waits in the middle of planning until the test continues it."""

        def plans_of(self, compiled: CompiledService) -> tuple[Plans, Balances]:
            assert go_on.wait(PATIENCE), "planned while the event loop waits"
            return super().plans_of(compiled)

    async def run() -> None:
        publisher = Publisher(Slow(), on_programmed=lambda seconds: None)
        (compiled,) = snapshot_of(BALANCED).services.values()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.run)
            nursery.start_soon(publisher.plans_of, compiled)
            await trio.testing.wait_all_tasks_blocked()
            await publisher.batches.send(DeltaBatch([Put(A)]))
            await trio.testing.wait_all_tasks_blocked()
            assert not publisher.store.all_objects()
            go_on.set()
            while not publisher.store.all_objects():
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    monkeypatch.undo()  # with real threads
    trio.run(run)


def test_labels_are_read_for_plans_that_somebody_tries() -> None:
    """Once they are known, there are plans as those of a Service that is balanced. Then nobody is counted any more."""

    async def test(running: RunningPublisher) -> None:
        publisher, read = running.publisher, list[frozenset[str]]()
        publisher.read_pod_labels = read.append
        dump = dump_of(UNBALANCED)
        running.list_all(*dump.objects)
        await trio.sleep(1)
        wanted = snapshot_of(BALANCED)
        (compiled,) = wanted.services.values()
        assert await publisher.plans_of(compiled) == ((), ()) and read == [frozenset({"app"})]
        pods = [one for one in dump.objects if isinstance(one, Pod)]
        running.tell(Replace(Pod, pods, labels=frozenset({"app"})))
        await trio.sleep(1)
        assert await publisher.plans_of(compiled) == (compiled.plans, wanted.balances["shop/web"])
        running.tell(Put(replace(pods[0], node="c1")))
        await trio.sleep(1)
        assert publisher.store.wanted_labels == frozenset()

    under_way(test)


class Ring:
    """Garbage that only a collection frees, as soon as nobody refers to it."""

    def __init__(self) -> None:
        self.ring = self


def test_garbage_is_collected_at_each_publication_but_not_all_objects_are_visited() -> None:
    """Between publications the collector may not run for long: Python counts new objects less those freed."""

    async def test(running: RunningPublisher) -> None:
        running.list_all(A)
        await trio.sleep(1)
        full = gc.get_stats()[2]["collections"]
        gc.disable()  # only this publication collects
        try:
            gone = weakref.ref(Ring())
            running.tell(Put(B))
            await trio.sleep(1)
            assert (len(running.published), gone()) == (2, None)
            assert not gc.isenabled()
        finally:
            gc.enable()
        assert gc.get_stats()[2]["collections"] == full

    under_way(test)


def test_a_large_batch_is_never_visited_by_collections() -> None:
    """What lists bring lives long, so it is frozen as soon as it is applied; the collector runs on."""
    many = [Namespace(f"n{number}", {"number": str(number)}) for number in range(1000)]

    async def test(running: RunningPublisher) -> None:
        running.tell(Replace(Namespace, many))  # one kind of several: nothing is published yet
        await trio.sleep(1)
        assert not running.published
        assert {id(visited) for visited in gc.get_objects()}.isdisjoint(map(id, many))
        assert gc.isenabled()

    under_way(test)


def test_a_cluster_that_has_gone_takes_no_memory() -> None:
    """Its objects are exempt from collection, and refer to each other."""
    publisher = Publisher(Store())
    publisher.publish_once(dump_of(crowded(pods=10)).batch())
    store = weakref.ref(publisher.store)
    gc.collect()
    gc.freeze()
    try:
        publisher.close()
        assert (store(), publisher.snapshot, publisher.store.objects(Pod)) == (None, None, {})
    finally:
        gc.unfreeze()


def test_a_large_slice_that_changes_freezes_nothing() -> None:
    """It changes often, and what was frozen each time would stay for ever once it is garbage."""
    rings = [Ring()]

    async def test(running: RunningPublisher) -> None:
        running.list_all()
        await trio.sleep(1)
        for which in (1, 2):
            running.tell(Put(large_slice(which)))
            await trio.sleep(1)
        assert len(running.published) == 3
        gone = weakref.ref(rings.pop())
        gc.collect()
        assert gone() is None and gc.isenabled()

    under_way(test)
