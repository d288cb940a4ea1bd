# SPDX-License-Identifier: Apache-2.0

"""What was answered in the last day: every answer is in it once, for as long as it says, in bounded memory."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dnsserver.metrics import counters
from dnsserver.metrics.counters import MAX_SERVICES, OTHER, Counts, Tally
from dnsserver.metrics.server import Summed
from dnsserver.tools.console.recent import REPLIES, RecentAnswers, RecentCounts
from dnsserver.tools.live.history import (
    ANSWERS,
    CROSSING,
    MAX_OCTETS,
    MAX_ROWS,
    MINUTE,
    SERVICE,
    SPILLED,
    TEN_MINUTES,
    UNMET,
    ZONE,
    Answered,
    History,
)
from tests.kit.unshrunk import unshrunk

PAUSES = st.floats(0.5, 400.0)
ADDED = st.tuples(PAUSES, st.sampled_from("abc"), st.sampled_from((ANSWERS, UNMET, SPILLED)), st.integers(0, 50))


@settings(unshrunk)
@given(st.lists(ADDED, max_size=60))
def test_every_answer_is_counted_once(steps: list[tuple[float, str, int, int]]) -> None:
    """In the columns of minutes and of ten minutes alike, as long as they are not too old."""
    past, now, sums = History(0.0), 0.0, Counter[tuple[str, int]]()
    minutes = Counter[tuple[int, str, int]]()
    for pause, name, measure, times in steps:
        now += pause
        past.turn(now)
        past.add([(past.cell(SERVICE, name, measure), 1)], times)
        sums[name, measure] += times
        minutes[int(now // MINUTE), name, measure] += times
    later = now + 2 * TEN_MINUTES  # what has just begun is over then
    past.turn(later)
    for (name, measure), times in sums.items():
        assert sum(past.day(SERVICE, name, measure)) * TEN_MINUTES == pytest.approx(times)
        first = int(later // MINUTE) - 60
        expected = sum(
            added for (minute, *what), added in minutes.items() if minute >= first and what == [name, measure]
        )
        assert sum(past.hour(SERVICE, name, measure)) * MINUTE == pytest.approx(expected)


def test_the_last_minutes() -> None:
    """The present minute is part of them; rows of other Services are younger."""
    past = History(100.0)
    past.turn(130.0)
    past.add([(past.cell(SERVICE, "shop/old", ANSWERS), 1)], 3)
    assert past.recent(SERVICE, 130.0) == (30.0, {"shop/old": Answered(3)})
    past.turn(310.0)
    past.add([(past.cell(SERVICE, "shop/new", UNMET), 1)], 2)
    assert past.recent(SERVICE, 310.0) == (210.0, {"shop/old": Answered(3), "shop/new": Answered(unmet=2)})
    past.turn(430.0)
    assert past.recent(SERVICE, 430.0) == (270.0, {"shop/new": Answered(unmet=2)})
    assert past.hour(SERVICE, "shop/new", UNMET) == [0, 0, 0, 2 / 60, 0]
    assert past.hour(SERVICE, "shop/none", UNMET) == [0] * 5


def test_memory_is_bounded() -> None:
    """A day with all Services and too many zones takes what the constant says, less than 8 MB."""
    past = History(0.0)
    for number in range(MAX_SERVICES):
        past.cell(SERVICE, f"shop/s-{number}", ANSWERS)
    for number in range(2 * MAX_ROWS[ZONE]):
        past.cell(ZONE, f"z-{number}", ANSWERS)
    for minute in range(25 * 60):
        past.turn(minute * MINUTE)
        past.add([(past.cell(ZONE, "z-200", ANSWERS), 1)], 1)
    assert past.octets == MAX_OCTETS < 8_000_000
    assert past.recent(ZONE, 25 * 60 * MINUTE)[1] == {OTHER: Answered(5)}


def test_rows_are_used_again() -> None:
    """Who comes after others that are forgotten has a row of its own, with nothing of theirs in it."""
    past = History(0.0)
    for minute in range(15):
        past.turn(minute * MINUTE)
        past.add([(past.cell(SERVICE, "shop/old", ANSWERS), 1), (past.cell(ZONE, "a", ANSWERS), 1)], 6)
    octets = past.octets
    past.forget(SERVICE, ["shop/old"])
    assert past.recent(SERVICE, 14 * MINUTE) == (240.0, {}) and not any(past.hour(SERVICE, "shop/old", ANSWERS))
    past.add([(past.cell(SERVICE, "shop/new", UNMET), 1)], 3)
    assert past.octets == octets
    past.turn(20 * MINUTE)
    assert past.hour(SERVICE, "shop/new", UNMET)[14] * MINUTE == 3
    assert past.day(SERVICE, "shop/new", UNMET) == [0, 3 / TEN_MINUTES]
    assert not any(past.hour(SERVICE, "shop/new", ANSWERS) + past.day(SERVICE, "shop/new", ANSWERS))
    assert sum(past.day(ZONE, "a", ANSWERS)) * TEN_MINUTES == pytest.approx(15 * 6)


def test_services_that_are_gone_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their places and rows are others' then. Who comes again has them again, and no counter ever goes back."""
    monkeypatch.setattr(counters, "MAX_SERVICES", 2)
    monkeypatch.setitem(MAX_ROWS, SERVICE, 2)
    counts = Counts(per_service=True)
    channel, origin = counts.channels["udp", 1], counts.origin("pod", "a")
    asked_about: list[tuple[str, str]] = []

    def ask(name: str, times: int) -> None:
        channel.counts[origin + counts.tally(replace(NEAR, service=("shop", name)))] += times

    async def main() -> None:
        recent, before = RecentCounts(counts), dict[str, int]()
        of_b = origin + counts.tally(replace(NEAR, service=("shop", "b")))
        for existing, asked in (("ab", "ab"), ("bc", "bc"), ("abc", "abc"), ("ac", "ac")):
            counts.free_places(lambda key, existing=existing: key.removeprefix("shop/") in existing)
            for name in asked:
                ask(name, 5)
            if existing == "ac":
                channel.counts[of_b] += 1  # native code counted it before, and tells of it now
            await recent.look()
            found = recent.asked()
            assert found is not None
            metrics = {key[1]: number for key, number in Summed(counts).services.items()}
            assert all(metrics[name] >= before[name] for name in metrics.keys() & before.keys())
            before = metrics
            asked_about.append(("".join(sorted(key[-1] for key in found.services)), "".join(sorted(metrics))))
            await trio.sleep(600)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert asked_about == [("ab", "ab"), ("bc", "bc"), ("bc", "bc"), ("ac", "ac")]
    assert Summed(counts).services["shop", "a", "nearest"] == 10 and Summed(counts).services["", "", "nearest"] == 5


def test_a_long_pause_forgets_all() -> None:
    past = History(0.0)
    past.add([(past.cell(ZONE, "a", ANSWERS), 1)], 1)
    past.turn(1e7)
    assert not any(past.day(ZONE, "a", ANSWERS)) and len(past.day(ZONE, "a", ANSWERS)) == 144


NEAR, FAR, LOST, PASSED, DOWN = (
    Tally("A", 0, "nearest", "zone", frozenset("a"), ("shop", "near")),
    Tally("A", 0, "all", "*", frozenset("abc"), ("shop", "far")),
    Tally("A", 0, "unmet", "", frozenset(), ("shop", "lost")),
    Tally("A", 0, "spilled", "*", frozenset("b"), ("shop", "near")),
    Tally("A", 3, "unready", "", frozenset(), ("shop", "down")),
)


def test_looks_at_counters() -> None:
    """Each look adds what grew: by Service, and by zone of the client. Of three zones, two thirds cross."""

    async def main() -> None:
        counts = Counts()
        recent, channel, origin = RecentCounts(counts), counts.channels["udp", 1], counts.origin("pod", "a")
        assert recent.asked() is None
        for _ in range(3):
            for tally, times in ((NEAR, 4), (FAR, 3), (LOST, 2), (PASSED, 1), (DOWN, 5)):
                channel.counts[origin + counts.tally(tally)] += times
            channel.counts[counts.tally(NEAR)] += 7  # of a probe
            await recent.look()
            await trio.sleep(5)
        found = recent.asked()
        assert isinstance(found, RecentAnswers) and recent.history is not None
        assert found.services == {
            "shop/near": Answered(15, 3, spilled=3),
            "shop/far": Answered(9, pytest.approx(6)),
            "shop/lost": Answered(unmet=6),
            "shop/down": Answered(unmet=15),
        }
        assert found.service_seconds == 15.0
        assert (found.unmet, found.spilled, found.zones["a"]["same"]) == (14, 2, 8)  # since the first look
        _, zones = recent.history.recent(ZONE, trio.current_time())
        assert zones == {"a": Answered(24, pytest.approx(9), 21, 3)}
        assert recent.history.hour(ZONE, "a", CROSSING) == []

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_look_at_many_quiet_counters_lets_others_run() -> None:
    """Although nothing grew: queries wait for no more than so many."""

    async def main() -> int:
        counts, turns = Counts(), 0
        recent, channel = RecentCounts(counts), counts.channels["udp", 1]
        for number in range(10 * REPLIES):
            channel.counts[counts.tally(Tally("A", 0, "nearest", f"key-{number}", frozenset("a"), None))] += 1

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        await recent.look()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            await recent.look()
            nursery.cancel_scope.cancel()
        return turns

    assert trio.run(main) >= 5
