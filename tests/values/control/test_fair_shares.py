# SPDX-License-Identifier: Apache-2.0

"""Fair shares: who gets the next place, and that nobody is left without one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.control.fair_shares import FairTurns, Shares, Turn

MOST, EACH = 20, 6


class World:
    """Turns, and what has begun and not ended, in order."""

    def __init__(self) -> None:
        self.turns = FairTurns(most=MOST, each=EACH)
        self.begun: list[Turn] = []

    def want(self, *namespaces: str) -> Turn:
        turn = Turn(lambda: self.begun.append(turn))
        for namespace in namespaces:
            self.turns.want(turn, namespace)
        return turn

    def end(self, turn: Turn) -> None:
        self.turns.end(turn)
        self.begun.remove(turn)

    @property
    def held(self) -> Counter[str | None]:
        return Counter(turn.holder for turn in self.begun)


def test_one_namespace_has_its_share() -> None:
    """No more than *each*, and no more than it leaves free."""
    world = World()
    wanted = [world.want("a") for _ in range(MOST)]
    assert world.begun == wanted[:EACH], "first come, first served"
    world.end(wanted[0])
    assert world.begun == wanted[1 : 1 + EACH]
    shares = Shares(most=MOST, each=MOST)
    while shares.has_room("a"):
        shares.take("a")
    assert shares.held == {"a": MOST // 2}


@pytest.mark.parametrize("others", [1, 2, 3, MOST - 1])
def test_whoever_comes_next_begins_at_once(others: int) -> None:
    """However many namespaces want all they can get."""
    world = World()
    for _ in range(MOST):
        for number in range(others):
            world.want(f"evil{number}")
    assert world.want("good") in world.begun and len(world.begun) <= MOST


def test_the_next_turn_is_that_of_whoever_has_the_fewest() -> None:
    """If there are as many namespaces as places: of two that wait, the one that has none."""
    world = World()
    for number in range(MOST):
        world.want(f"n{number}")
    waits, late = world.want("n0"), world.want("good")
    assert not {waits, late} & {*world.begun}
    world.end(world.begun[-1])
    assert late in world.begun and waits not in world.begun


def test_what_two_want_waits_in_both() -> None:
    """It holds one place, of the first that has room; and ends when neither wants it any more."""
    world = World()
    held = [world.want("a") for _ in range(EACH)]
    shared, behind = world.want("a"), world.want("a")
    assert shared not in world.begun
    world.turns.want(shared, "b")
    assert shared.holder == "b"
    world.turns.leave(shared, "b")
    assert shared.holder == "b", "a still wants it"
    world.turns.leave(shared, "a")
    assert shared.holder is None
    world.end(held[0])
    assert behind in world.begun


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 30)), max_size=200))
def test_places_are_never_lost(steps: list[tuple[int, int, int]]) -> None:
    """Whatever is wanted, joined, left and ended: the bounds hold, and in the end everybody gets a turn again."""
    world, wanted = World(), list[tuple[Turn, str]]()
    for kind, number, which in steps:
        namespace = f"n{number}"
        if kind <= 2 or not wanted:
            wanted.append((world.want(namespace), namespace))
        elif kind == 3:
            turn, _ = wanted[which % len(wanted)]
            world.turns.want(turn, namespace)
            wanted.append((turn, namespace))
        else:
            turn, namespace = wanted.pop(which % len(wanted))
            world.turns.leave(turn, namespace)
        held = Counter(turn.holder for turn, _ in {id(turn): (turn, name) for turn, name in wanted}.values())
        del held[None]
        assert held.total() <= MOST and all(number <= EACH for number in held.values())
        waiting = {name for turn, name in wanted if turn.holder is None}
        assert not waiting or min(held[name] for name in waiting) >= min(EACH, MOST - held.total())
    for turn, namespace in wanted:
        world.turns.leave(turn, namespace)
    assert sum(world.want("n0").holder == "n0" for _ in range(MOST)) == EACH
