"""Rotation: chooses the record that a reply begins with, so that clients that use the first record spread evenly.

Replies begin with the records of an answer in rounds. A round has each record once, in a new random order. So a single
client gets every record first equally often. So does each of several clients, in whatever pattern they take turns,
because the order has no pattern.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

from cachetools import LRUCache

MAX_SIZES = 256  # different record counts for which rounds are remembered: a few megabytes at most
TURNS = 1024  # in one stretch of rounds, at least one round
MAX_NUMBERS = 256  # record counts up to this have turns that fit into one octet each


class Rotation:
    """The turns of all answers with the same number of records: which record comes first, by index.

    A stretch of rounds is drawn once. For each further stretch, only the records get new random
    numbers, which costs less than drawing every round again.
    """

    __slots__ = ("_chance", "_drawn", "_left", "_records", "_rounds", "_shared")

    def __init__(self, records: int, chance: Callable[[], float]) -> None:
        """*chance* returns random numbers from 0 to below 1."""
        self._records = max(1, records)
        self._rounds = max(1, TURNS // self._records)
        self._chance = chance
        self._drawn = bytes(self._draw()) if self._records <= MAX_NUMBERS else b""
        self._shared: Sequence[int] = ()  # the stretch that new answers start in
        self._left = 0  # the rounds of it in which no answer has started yet

    def first_turns(self) -> Iterator[int]:
        """Return the turns of a new answer.

        New answers share a stretch, each starting with another round, because most are asked for
        only a few times before a change replaces them.
        """
        if not self._left:
            self._shared, self._left = self._stretch(), self._rounds
        self._left -= 1
        turns = iter(self._shared)
        turns.__setstate__(self._records * self._left)  # type: ignore[attr-defined]
        return turns

    def more_turns(self) -> Iterator[int]:
        """Return further turns for an answer whose turns have run out."""
        return iter(self._stretch())

    def _stretch(self) -> Sequence[int]:
        if not self._drawn:
            return array("I", self._draw())
        numbers = bytes(_shuffled(self._records, self._chance))
        return self._drawn.translate(numbers.ljust(MAX_NUMBERS, b"\0"))

    def _draw(self) -> list[int]:
        return [turn for _ in range(self._rounds) for turn in _shuffled(self._records, self._chance)]


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
