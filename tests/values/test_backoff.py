# SPDX-License-Identifier: Apache-2.0

"""Delays between tries have a floor, a cap and jitter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.backoff import CAP, FLOOR, Backoff

CHANCES = st.floats(0, 1, exclude_max=True)


@given(failures=st.integers(0, 10_000), chance=CHANCES)
def test_a_delay_is_between_floor_and_cap(failures: int, chance: float) -> None:
    """This holds for any number of failures."""
    assert FLOOR <= Backoff(failures).failed().delay(chance) <= CAP


@given(chance=CHANCES)
def test_nothing_failed_nothing_waited_for(chance: float) -> None:
    """A watch that ended normally is continued at once."""
    assert Backoff().delay(chance) == 0


def test_jitter_is_as_wide_as_the_delay() -> None:
    """Clients that failed together spread over a time that grows with the delay; the longest delays reach the cap."""
    backoff = Backoff(10)
    assert backoff.delay(0) == CAP / 2
    assert backoff.delay(0.999999) == pytest.approx(CAP, abs=0.01)
