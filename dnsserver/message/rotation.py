"""Rotation: chooses the record that a reply begins with, so that clients that use the first record spread evenly.

Replies begin with the records of an answer in rounds. A round has each record once, in a new random order. So a single
client gets every record first equally often. So does each of several clients, in whatever pattern they take turns,
because the order has no pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cachetools import LRUCache

MAX_SIZES = 256  # different record counts for which rounds are remembered: a few megabytes at most
TURNS = 1024  # in one stretch of rounds, which is drawn at once
MIN_ROUNDS = 8  # in one stretch
STRETCHES = 8  # to choose the next one from at random, so that no client gets the same stretch forever


class Rotation:
    """The turns of all answers with the same number of records: which record comes first, by index."""

    __slots__ = ("_chance", "_records", "_rounds", "_stretches")

    def __init__(self, records: int, chance: Callable[[], float]) -> None:
        """*chance* returns random numbers from 0 to below 1."""
        self._records = max(1, records)
        self._rounds = max(MIN_ROUNDS, TURNS // self._records)
        self._chance = chance
        self._stretches = [self._draw()]

    def first_turns(self) -> Iterator[int]:
        """Return the turns of a new answer. They start with a random round."""
        return self._from_random_round(self._stretches[0])

    def more_turns(self) -> Iterator[int]:
        """Return further turns for an answer whose turns have run out."""
        index = int(self._chance() * STRETCHES)
        if index >= len(self._stretches):
            self._stretches.append(self._draw())
            index = -1
        return self._from_random_round(self._stretches[index])

    def _from_random_round(self, stretch: tuple[int, ...]) -> Iterator[int]:
        turns = iter(stretch)
        turns.__setstate__(self._records * int(self._chance() * self._rounds))  # type: ignore[attr-defined]
        return turns

    def _draw(self) -> tuple[int, ...]:
        turns: list[int] = []
        for _ in range(self._rounds):
            turns += _shuffled(self._records, self._chance)
        return tuple(turns)


class Rotations:
    """A ``Rotation`` for each record count that answers have."""

    def __init__(self, chance: Callable[[], float]) -> None:
        """*chance* returns random numbers from 0 to below 1."""
        self._chance = chance
        self._known: LRUCache[int, Rotation] = LRUCache(MAX_SIZES)

    def of(self, records: int) -> Rotation:
        """Return the rotation of answers with *records* records."""
        rotation = self._known.get(records)
        if rotation is None:
            rotation = self._known[records] = Rotation(records, self._chance)
        return rotation

    def window(self, records: int) -> int:
        """Return a random record index to start at, for answers with more records than a message can hold."""
        return int(self._chance() * records)


def _shuffled(number: int, chance: Callable[[], float]) -> list[int]:
    """Return the numbers below *number* in random order (Fisher and Yates)."""
    order = list(range(number))
    for last in range(number - 1, 0, -1):
        other = int(chance() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order
