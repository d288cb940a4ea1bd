# SPDX-License-Identifier: Apache-2.0

"""What topodns remembers of a list, to ask for it before the next watch."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.api.witness import KEPT, UNREAD, Witnesses
from tests.kit.api_answers import line, raw


def listed(witnesses: Witnesses, version: int) -> None:
    witnesses.list_object(f"n{version}", str(version), line("ADDED", raw(f"n{version}", version, uid=f"u{version}")))


def checked(witnesses: Witnesses) -> list[int]:
    """Return the versions of the objects to ask for, in turn."""
    witnesses.end_list()
    return [int(check.witness.version or 0) for check in witnesses.checks()]


@settings(max_examples=30)
@given(st.integers(1, 3 * UNREAD), st.randoms(use_true_random=False))
def test_those_that_changed_last_are_kept(count: int, rng: random.Random) -> None:
    """And the one that has not changed for longest, however long the list is, and in whatever order it comes."""
    versions = [1 + 7 * number for number in range(count)]
    witnesses = Witnesses()
    for version in rng.sample(versions, count):
        listed(witnesses, version)
    latest = versions[::-1]
    assert checked(witnesses) == (latest if count <= KEPT else [*latest[: KEPT - 1], versions[0]])


@pytest.mark.parametrize("many", [3, UNREAD])
def test_what_is_deleted_while_it_is_listed_is_forgotten(many: int) -> None:
    """Whether its few neighbours have been chosen by then, or not."""
    witnesses = Witnesses()
    for version in range(1, many + 1):
        listed(witnesses, version)
    witnesses.forget(f"n{many}")
    assert checked(witnesses)[0] == many - 1
