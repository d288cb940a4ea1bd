# SPDX-License-Identifier: Apache-2.0

"""The work queue: which key comes next, and how fast."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.backoff import CAP
from locator.control.work_queue import RateLimiter, WorkQueue


def taken(queue: WorkQueue, now: float = 0.0) -> list[str]:
    keys = []
    while (key := queue.get(now)) is not None:
        keys.append(key)
    return keys


def test_urgent_ones_come_first_each_once_in_order() -> None:
    queue = WorkQueue()
    for key, urgent in (("a", False), ("b", False), ("c", True), ("b", True), ("c", False), ("a", False)):
        queue.add(key, urgent=urgent)
    assert len(queue) == 3
    assert taken(queue) == ["c", "b", "a"]


def test_a_failure_is_waited_out_longer_each_time() -> None:
    """A success resets the delay; a change does not shorten it."""
    queue = WorkQueue()
    queue.add("a")
    now, pauses = 0.0, []
    for _ in range(9):
        assert queue.get(now) == "a"
        queue.retry("a", now, 0.5)
        due = queue.due()
        assert due is not None and queue.get(due - 0.01) is None
        pauses.append(due - now)
        now = due
    assert pauses == sorted(pauses) and pauses[0] == pytest.approx(1.2) and pauses[-1] <= CAP
    queue.add("a")
    assert (queue.due(), queue.get(now)) == (None, "a")
    queue.done("a")
    assert taken(queue, now + 2 * CAP) == []
    queue.add("a")
    assert queue.get(now) == "a"
    queue.retry("a", now, 0.5)
    assert queue.due() == pytest.approx(now + 1.2)


def test_what_is_not_urgent_after_a_failure_comes_behind_all_else() -> None:
    """A key that fails again and again does not hold up others."""
    queue = WorkQueue()
    queue.add("refused", urgent=True)
    assert queue.get(0.0) == "refused"
    queue.retry("refused", 0.0, 0.5, urgent=False)
    for key in "abc":
        queue.add(key)
    assert taken(queue, 10.0) == ["a", "b", "c", "refused"]


def test_what_changed_while_it_failed_comes_at_once() -> None:
    queue = WorkQueue()
    queue.add("a")
    assert queue.get(0.0) == "a"
    queue.add("a")
    queue.retry("a", 0.0, 0.5)
    assert (queue.due(), taken(queue)) == (None, ["a"])


def test_what_is_put_off_comes_at_its_time() -> None:
    """Behind all others, and without a backoff; not sooner, but for whoever asks whether it has changed."""
    queue = WorkQueue()
    queue.add("a")
    assert queue.get(0.0) == "a"
    queue.defer("a", 7.0)
    assert (len(queue), queue.due(), taken(queue, 6.9), taken(queue, 7.0)) == (1, 7.0, [], ["a"])
    queue.defer("a", 9.0)
    queue.add("a")
    assert (queue.due(), taken(queue, 7.0)) == (None, ["a"])
    queue.add("a")
    queue.defer("a", 9.0)
    assert (queue.due(), taken(queue, 7.0)) == (None, ["a"])


@pytest.mark.parametrize("urgent", [False, True])
def test_each_namespace_gets_its_turn(urgent: bool) -> None:
    """However many keys one has that came before; those of one namespace are in order."""
    queue = WorkQueue()
    for key in ("evil/1", "evil/2", "evil/3", "evil/4", "good/1", "good/2", "other/1"):
        queue.add(key, urgent=urgent)
    queue.discard("evil/3")
    assert taken(queue, 0.0) == ["evil/1", "good/1", "other/1", "evil/2", "good/2", "evil/4"]
    assert len(queue) == 0 and not queue.ready


STEPS = st.sampled_from(["add", "urgent", "take", "take", "done", "retry", "defer", "discard", "wait"])


@settings(max_examples=300)
@given(steps=st.lists(st.tuples(STEPS, st.sampled_from("abc")), max_size=40))
def test_nothing_is_lost(steps: list[tuple[str, str]]) -> None:
    """A key is in work at most once, and each that was added, failed or put off is given out in the end.

    But not one that was forgotten since, wherever it waited.
    """
    queue, now = WorkQueue(), 0.0
    working: set[str] = set()
    owed: set[str] = set()
    for step, key in steps:
        if step in ("add", "urgent"):
            queue.add(key, urgent=step == "urgent")
            owed.add(key)
        elif step == "take":
            if (found := queue.get(now)) is not None:
                assert found not in working and found in owed
                working.add(found)
                owed.discard(found)
        elif step == "wait":
            now += 1.0
        elif step == "discard":
            queue.discard(key)
            owed.discard(key)
        elif key in working:
            working.discard(key)
            if step == "done":
                queue.done(key)
            elif step == "retry":
                queue.retry(key, now, 0.0)
                owed.add(key)
            else:
                queue.defer(key, now + 2.0)
                owed.add(key)
        assert len(queue) == len(owed)
    for key in working:
        queue.done(key)
    assert set(taken(queue, now + CAP)) == owed


@given(
    rate=st.sampled_from([0.5, 1.0, 5.0, 50.0]),
    burst=st.sampled_from([None, 1.0, 10.0]),
    pauses=st.lists(st.floats(0.0, 3.0), max_size=60),
)
def test_the_pace_holds(rate: float, burst: float | None, pauses: list[float]) -> None:
    """In any stretch of time there are at most as many writes as its length allows, and a burst."""
    pace, now, sent = RateLimiter(rate, burst=burst), 0.0, []
    for pause in pauses:
        now += pause
        if (wait := pace.wait(now)) > 0:
            assert wait <= 1.0 / rate + 1e-9
            now += wait + 1e-9
        assert pace.wait(now) == 0.0
        pace.spend(now)
        sent.append(now)
    most = max(1.0, rate if burst is None else burst)
    for first, start in enumerate(sent):
        for last in range(first, len(sent)):
            assert last - first + 1 <= most + (sent[last] - start) * rate + 1e-6
