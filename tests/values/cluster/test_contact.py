# SPDX-License-Identifier: Apache-2.0

"""What a reflector reports of its contact with the API server, by answers that a real one cannot be made to give."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from locator.api.decoding import RESOURCES
from locator.api.deltas import DeltaBatch, Put, Replace
from locator.api.list_watch import CUT, DOUBT, EXPIRED, REFUSED, RESTART_REASONS, SILENT
from locator.backoff import STEADY
from locator.cluster import reflector
from locator.cluster.api_client import ApiServerReadiness, Readiness
from locator.cluster.reflector import Reflector
from locator.cluster.responses import Refused, Unreachable
from locator.model import Namespace, Service
from tests.kit.api_answers import INITIAL_END, Answer, bookmark, error, line, page, raw
from tests.kit.waiting import PATIENCE, until_in_trio

LISTED = [line("ADDED", raw("a", 1)), bookmark(2, INITIAL_END)]


class Answers:
    """A cluster that gives answers one after the other, then the last one for ever; it always has the first object."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers = list(answers)
        self.readiness = [Readiness.READY]
        self.server_readiness = ApiServerReadiness(self.ask)
        self.on_history_lost: list[Callable[[float], None]] = []
        self.on_moved: list[Callable[[], None]] = []
        self.takes = 0.0
        """The seconds that a check takes."""
        self.asked = list[tuple[Any, float]]()
        """The query of each request, and how long the reflector would have waited for it."""

    async def ask(self) -> Readiness:
        await trio.lowlevel.checkpoint()
        return self.readiness.pop(0) if len(self.readiness) > 1 else self.readiness[0]

    def open(self, path: str, query: Any, *, silence: float, accept: str) -> Answer:
        self.asked.append((query, silence))
        if "fieldSelector" in query:
            if silence < self.takes:
                raise Unreachable("silent", SILENT)
            return Answer(page=page(raw("a", 1), version=1_000))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Restored(Answers):
    """A cluster of Namespaces and Services whose watches end one after the other, and which then is an older one.

    Only the Namespaces show it: their object is older than before. The Services' one is the same, and another one is
    new to topodns, with a version that it has seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.restored = False
        self.lists: list[str] = []
        self.watches: dict[str, Answer] = {}

    def open(self, path: str, query: Any, *, silence: float, accept: str) -> Answer:
        resource = path.rpartition("/")[2]
        before = [raw("web", 10)] if resource == "services" else [raw("a", 90)]
        after = [raw("late", 50), raw("web", 10)] if resource == "services" else [raw("a", 60)]
        items = after if self.restored else before
        if "fieldSelector" in query:
            name = query["fieldSelector"].removeprefix("metadata.name=")
            return Answer(page=page(*(item for item in items if item["metadata"]["name"] == name), version=1_000))
        if "resourceVersion" in query:
            self.watches[resource] = Answer(waits=True)
            return self.watches[resource]
        self.lists.append(resource)
        end = bookmark(1_000 if self.restored else 100, INITIAL_END)
        self.watches[resource] = Answer([*(line("ADDED", item) for item in items), end], waits=True)
        return self.watches[resource]


@pytest.mark.parametrize("steady", [0.0, STEADY], ids=["watches lasted", "watches ended early"])
@pytest.mark.parametrize("order", [("services", "namespaces"), ("namespaces",)], ids=str)
def test_one_kind_that_shows_a_lost_history_speaks_for_all(
    monkeypatch: pytest.MonkeyPatch, steady: float, order: tuple[str, ...]
) -> None:
    """All kinds list again, each once, whether they have checked before it, or still watch."""
    monkeypatch.setattr("locator.api.list_watch.STEADY", steady)
    cluster, views = Restored(), dict[type[Any], list[str]]()

    async def follow(nursery: trio.Nursery, kind: type[Any]) -> Reflector:
        send, receive = trio.open_memory_channel[DeltaBatch](1)
        fake: Any = cluster
        one = Reflector(fake, kind, RESOURCES[kind], send)

        async def take_in() -> None:
            async for batch in receive:
                for delta in batch.deltas:
                    assert isinstance(delta, Replace)
                    views[kind] = sorted(item.name for item in delta.objects)

        nursery.start_soon(take_in)
        nursery.start_soon(one.run)
        await until_in_trio(lambda: one.listed)
        return one

    async def main() -> None:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                kinds = {"services": Service, "namespaces": Namespace}
                following = {name: await follow(nursery, kind) for name, kind in kinds.items()}
                cluster.restored = True
                for name in order:
                    before = cluster.watches[name]
                    before.end()
                    await until_in_trio(lambda name=name, before=before: cluster.watches[name] is not before)  # type: ignore[misc]
                await until_in_trio(lambda: views[Service] == ["late", "web"])
                await until_in_trio(lambda: not any(one.problem for one in following.values()))
                assert following["services"].restarts[EXPIRED] == 1
                nursery.cancel_scope.cancel()

    trio.run(main)
    assert sorted(cluster.lists) == ["namespaces", "namespaces", "services", "services"]
    assert not cluster.on_history_lost


def run(cluster: Answers, check: Callable[[Reflector, trio.MemoryReceiveChannel[DeltaBatch]], Awaitable[None]]) -> None:
    """Run a reflector on answers until *check* is done; a channel with room for one batch takes its deltas."""

    async def main() -> None:
        send, receive = trio.open_memory_channel[DeltaBatch](1)
        fake: Any = cluster
        one = Reflector(fake, Namespace, RESOURCES[Namespace], send)
        assert one.lost_since is None
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.run)
                await check(one, receive)
                nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all delays; other tests cover them."""
    monkeypatch.setattr("locator.backoff.FLOOR", 0.001)


def cut() -> Unreachable:
    return Unreachable("the answer broke off", CUT)


def test_what_is_listed_is_told_before_it_is_said_to_be() -> None:
    """``listed`` is true only after the receiver has the list's deltas."""

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        assert not one.listed
        assert one.problem
        assert (await receive.receive()).deltas == [Replace(Namespace, [Namespace("a", {"v": "1"})])]
        await until_in_trio(lambda: one.listed)
        assert (one.problem, one.lost_since) == ("", None)

    run(Answers(Answer(LISTED, waits=True)), check)


@pytest.mark.parametrize("lists", [False, True], ids=["watching", "while it lists"])
def test_another_api_server_is_listed_anew(lists: bool) -> None:
    """What is known stays until its list is there, and contact is not lost meanwhile."""
    first = Answer(LISTED[:1] if lists else LISTED, waits=True)
    answers = Answers(first, Answer([line("ADDED", raw("b", 1)), bookmark(2, INITIAL_END)], waits=True))

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        if lists:
            await until_in_trio(lambda: answers.asked)
        else:
            assert (await receive.receive()).deltas == [Replace(Namespace, [Namespace("a", {"v": "1"})])]
            await until_in_trio(lambda: one.listed)
        (moved,) = answers.on_moved
        moved()
        assert (await receive.receive()).deltas == [Replace(Namespace, [Namespace("b", {"v": "1"})])]
        await until_in_trio(lambda: one.lost_since is None)
        assert not one.restarts

    run(answers, check)
    assert not answers.on_moved


def test_contact_that_is_cut_at_once_is_none() -> None:
    """A connection that closes at once, as by a balancer without backends, is no contact."""
    answers = Answers(Answer(LISTED, then=cut()), Answer(then=cut()))

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await receive.receive()
        await until_in_trio(lambda: one.restarts[CUT] >= 1 and one.lost_since is not None)
        lost = one.lost_since
        for count in range(2, 6):
            await until_in_trio(lambda count=count: one.restarts[CUT] >= count and one.lost_since is not None)  # type: ignore[misc]
            assert one.lost_since == lost
        answers.answers = [Answer([line("ADDED", raw("b", 3))], waits=True)]
        assert (await receive.receive()).deltas == [Put(Namespace("b", {"v": "1"}))]
        await until_in_trio(lambda: one.lost_since is None)

    run(answers, check)


def test_contact_that_lasted_is_contact_though_nothing_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a watch without events, the time without contact begins when the watch breaks off."""
    monkeypatch.setattr(reflector, "BRIEF_SECONDS", 0.0)  # seconds: whatever there was lasted

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await receive.receive()
        await until_in_trio(lambda: one.lost_since)
        lost = one.lost_since or 0.0
        await until_in_trio(lambda: one.lost_since and one.lost_since > lost)

    run(Answers(Answer(LISTED, then=cut()), Answer(then=cut())), check)


def test_contact_that_only_says_what_is_gone_is_none() -> None:
    """A watch that is granted and then gets only a 410, as after a restart, is no contact."""
    answers = Answers(Answer(LISTED, then=cut()), cut())

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await receive.receive()
        await until_in_trio(lambda: one.restarts[CUT] >= 2 and one.lost_since is not None)
        lost = one.lost_since
        answers.answers = [Answer([error(410)]), cut()]
        await until_in_trio(lambda: one.restarts[EXPIRED])
        known = one.restarts[CUT]
        await until_in_trio(lambda: one.restarts[CUT] > known)
        assert one.lost_since == lost
        answers.answers = [Answer(LISTED, waits=True)]
        await receive.receive()
        await until_in_trio(lambda: one.lost_since is None)

    run(answers, check)


def test_a_list_that_comes_in_pages_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    """An API server that cannot stream lists is asked for pages; that is no problem to report."""
    refused = Refused(422, "Invalid", "sendInitialEvents is forbidden")
    pages = [Answer(page=page(version=7, more=more)) for more in ("1", "2", "3", "")]

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        assert (await receive.receive()).deltas == [Replace(Namespace, [])]
        await until_in_trio(lambda: one.listed)

    with caplog.at_level(logging.WARNING):
        run(Answers(refused, *pages, Answer(waits=True)), check)
    assert not caplog.records


def test_what_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A problem is logged when it begins and when it ends, not at each try."""
    caplog.set_level(logging.INFO, "topodns")
    refused = Refused(403, "Forbidden", "services is forbidden")
    answers = Answers(refused, refused, refused, Refused(503, "Unavailable", "later"), Answer(LISTED, waits=True))

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await receive.receive()
        await until_in_trio(lambda: one.listed)
        assert one.restarts == {REFUSED: 4}

    run(answers, check)
    assert [record.getMessage() for record in caplog.records] == [
        "Namespace: 403 Forbidden: services is forbidden",
        "Namespace: 503 Unavailable: later",
        "Namespace: in contact again",
    ]


@pytest.mark.parametrize(
    ("readiness", "waited"),
    [(Readiness.READY, [3.0, 6.0, 12.0, 3.0]), (Readiness.AWAY, [3.0, 3.0, 3.0, 3.0])],
    ids=["ready", "away"],
)
def test_a_check_waits_longer_for_an_api_server_that_is_ready_but_slow(
    readiness: Readiness, waited: list[float]
) -> None:
    """Otherwise an overloaded one would never be watched again. While it is away, a check only hangs."""
    answers = Answers(Answer(LISTED, then=cut()), Answer(then=cut()))
    answers.takes, answers.readiness = 10.0, [readiness]

    def checks() -> list[float]:
        return [silence for query, silence in answers.asked if "fieldSelector" in query]

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await receive.receive()
        await until_in_trio(lambda: len(checks()) >= len(waited))

    run(answers, check)
    assert checks()[: len(waited)] == waited


def test_a_check_is_no_contact(caplog: pytest.LogCaptureFixture) -> None:
    """A watch that is refused again and again is one problem, although the request before it succeeds each time."""

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await receive.receive()
        await until_in_trio(lambda: one.restarts[REFUSED] >= 3)

    run(Answers(Answer(LISTED, then=cut()), Refused(503, "Unavailable", "later")), check)
    assert [record.getMessage() for record in caplog.records] == [
        "Namespace: the answer broke off",
        "Namespace: 503 Unavailable: later",
    ]


@pytest.mark.parametrize(
    "fault",
    [Unreachable("Connection refused"), *(Refused(status, "", "", retry_after=60.0) for status in (503, 429, 403))],
    ids=["unreachable", "503", "429", "403"],
)
def test_no_pause_outlasts_the_outage(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the pause between two tries, a reflector tries again as soon as the API server is back."""
    monkeypatch.setattr("locator.backoff.FLOOR", 1_000.0)  # seconds
    monkeypatch.setattr("locator.backoff.CAP", 2_000.0)
    monkeypatch.setattr("locator.cluster.api_client.POLL", 0.001)
    answers = Answers(fault, Answer(LISTED, waits=True))
    answers.readiness = [Readiness.AWAY] * 3 + [Readiness.READY]

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await receive.receive()
        assert len(answers.readiness) == 1

    run(answers, check)


def test_an_api_server_that_is_back_during_a_try_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that fails after seconds may fail because of what was seconds ago."""
    monkeypatch.setattr("locator.backoff.FLOOR", 1_000.0)  # seconds
    monkeypatch.setattr("locator.backoff.CAP", 2_000.0)

    class Slow(Answers):
        def open(self, path: str, query: Any, *, silence: float, accept: str) -> Answer:
            if isinstance(self.answers[0], Exception):
                trio.from_thread.run(self.come_back)
            return super().open(path, query, silence=silence, accept=accept)

        async def come_back(self) -> None:
            monkeypatch.setattr("locator.cluster.api_client.POLL", 0.0)
            before, self.readiness = self.server_readiness.next, [Readiness.AWAY, Readiness.READY]
            await self.server_readiness.wait(before)

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await receive.receive()

    run(Slow(Unreachable("no connection within 3 s"), Answer(LISTED, waits=True)), check)


def test_a_mistake_of_ours_ends_one_try(caplog: pytest.LogCaptureFixture) -> None:
    """A bug is logged with its traceback, reported as a problem, and followed by a new list."""
    answers = Answers(ZeroDivisionError("oops"), Answer(LISTED, waits=True))

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await receive.receive()
        await until_in_trio(lambda: one.listed)
        assert one.restarts == {DOUBT: 1}
        assert set(one.restarts) <= set(RESTART_REASONS)

    run(answers, check)
    assert any(record.exc_info for record in caplog.records)
    assert any("internal error: ZeroDivisionError('oops')" in record.getMessage() for record in caplog.records)


def test_a_request_that_hangs_does_not_outlast_an_outage() -> None:
    """The first request after a failure is small; a watch may be silent for long."""
    answers = Answers(Answer(LISTED, then=cut()), Answer(waits=True))

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await receive.receive()
        await until_in_trio(lambda: len(answers.asked) == 3)

    run(answers, check)
    assert [silence for _, silence in answers.asked] == [reflector.SILENCE, reflector.CHECK_SILENCE, reflector.SILENCE]


def test_a_slow_receiver_slows_the_reading() -> None:
    """The reflector does not read ahead of its receiver: events wait at the API server, not in memory."""
    events = [[line("ADDED", raw(f"n{number}", number))] for number in range(3, 50)]
    answer = Answer(LISTED, *events, waits=True)

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await until_in_trio(lambda: receive.statistics().tasks_waiting_send)
        assert answer.given == 2, "one piece of news waits in the channel, and one before it"
        for _ in range(48):
            await receive.receive()
        await until_in_trio(lambda: answer.given == 48)

    run(Answers(answer), check)


def test_a_read_that_is_ended_before_it_begins_ends() -> None:
    """A reflector that is cancelled while it connects ends at once."""
    reached, answer = threading.Event(), Answer(waits=True)

    class Slow(Answers):
        def open(self, path: str, query: Any, *, silence: float, accept: str) -> Answer:
            assert reached.wait(PATIENCE)
            return super().open(path, query, silence=silence, accept=accept)

    async def check(one: Reflector, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        await trio.testing.wait_all_tasks_blocked()

    run(Slow(answer), check)
    reached.set()
    assert answer.ended.wait(PATIENCE)
