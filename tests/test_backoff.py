"""Delays between tries have a floor, a cap and jitter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.backoff import CAP, FLOOR, STEADY, Backoff

CHANCES = st.floats(0, 1, exclude_max=True)


@given(lives=st.lists(st.floats(0, 1e6), min_size=1), chance=CHANCES)
def test_a_delay_is_between_floor_and_cap(lives: list[float], chance: float) -> None:
    """This holds for any number of failures, however long the last try had worked."""
    backoff = Backoff()
    for lived in lives:
        backoff = backoff.failed(lived)
    assert FLOOR <= backoff.delay(chance) <= CAP


@given(chance=CHANCES)
def test_nothing_failed_nothing_waited_for(chance: float) -> None:
    """A watch that ended normally is continued at once."""
    assert Backoff().delay(chance) == 0


def test_delays_double_until_the_cap() -> None:
    """The shortest delays after failures in a row."""
    backoff, least = Backoff(), []
    for _ in range(8):
        backoff = backoff.failed()
        least.append(backoff.delay(0))
    assert least == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8, 15, 15, 15])


def test_jitter_is_as_wide_as_the_delay() -> None:
    """Clients that failed together spread over a time that grows with the delay; the longest delays reach the cap."""
    backoff = Backoff(10)
    assert backoff.delay(0) == CAP / 2
    assert backoff.delay(0.999999) == pytest.approx(CAP, abs=0.01)


@pytest.mark.parametrize(
    ("lived", "failures"),
    [pytest.param(STEADY - 0.1, 6, id="too short"), pytest.param(STEADY, 1, id="steady")],
)
def test_only_what_worked_for_long_is_forgiven(lived: float, failures: int) -> None:
    """A watch that ends after a second, again and again, does not reset the delay."""
    assert Backoff(5).failed(lived) == Backoff(failures)
