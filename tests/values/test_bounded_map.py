# SPDX-License-Identifier: Apache-2.0

"""The bounded map: read far more often than written; when full, it drops a part of its entries, never all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.bounded_map import BoundedMap

LIMIT = 20


def weigh(value: int) -> int:
    return value


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12), st.booleans())))
def test_what_is_there_is_right_and_never_too_much(steps: list[tuple[int, int, bool]]) -> None:
    """A key returns the value that was put last, and the bound holds, by weight or by number."""
    counted, weighed = BoundedMap[int, int](LIMIT), BoundedMap[int, int](LIMIT, weigh)
    truth: dict[int, int] = {}
    for key, value, put in steps:
        if put:
            counted[key] = weighed[key] = truth[key] = value
            assert counted.get(key) == value
        for known in (counted, weighed):
            assert known.get(key) in (None, truth.get(key))
        assert len(counted) == len(list(counted.values())) <= LIMIT
        assert sum(weighed.values()) <= LIMIT


@pytest.mark.parametrize("weighed", [False, True], ids=["counted", "weighed"])
def test_a_flood_leaves_what_is_asked_for(weighed: bool) -> None:
    """Ten times as many new keys as there is room for do not displace a key that is read meanwhile."""
    known = BoundedMap[str, int](LIMIT, weigh if weighed else None)
    for hot in "abc":
        known[hot] = 1
    for number in range(10 * LIMIT):
        known[f"new-{number}"] = 1
        if number % 3 == 0:
            assert [known.get(hot) for hot in "abc"] == [1, 1, 1], number


def test_the_younger_generation_is_one_dictionary() -> None:
    """A reader may keep it: after any change it still shows what was put last."""
    known = BoundedMap[int, int](LIMIT)
    recent = known.recent
    for number in range(5 * LIMIT):
        known[number] = number
        assert recent[number] == number
    known.clear()
    assert not recent and not len(known)


def test_what_is_too_heavy_is_not_kept() -> None:
    """A value that would fill a generation is not stored: it would displace all others."""
    known = BoundedMap[str, int](LIMIT, weigh)
    known["light"] = 2
    known["heavy"] = LIMIT // 2 + 1
    assert (known.get("light"), known.get("heavy")) == (2, None)
    known["light"] = LIMIT // 2 + 1  # what stood there before is not right any more
    assert known.get("light") is None


def test_a_new_limit() -> None:
    """A new limit holds for new entries at once, and for old ones as they are replaced."""
    known = BoundedMap[int, int](LIMIT)
    known.resize(4 * LIMIT)
    for number in range(2 * LIMIT):
        known[number] = number
    assert len(known) == 2 * LIMIT
    known.resize(LIMIT)
    for number in range(4 * LIMIT):
        known[number] = number
    assert len(known) <= LIMIT
