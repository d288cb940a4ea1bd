"""With which record a reply begins, so that clients which take the first one are spread evenly.

Replies of one answer begin with its records in rounds: each record once in a round, in an order
drawn anew for each round. So one client that asks alone meets every record equally often, and so does
each of several clients, however they take turns: no pattern of theirs meets a pattern of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cachetools import LRUCache

MAX_SIZES = 256  # numbers of records for which rounds are kept; at the most some megabytes
TURNS = 1024  # of rounds that are drawn at once
MIN_ROUNDS = 8
STRETCHES = 8  # of so many turns, of which one after another is drawn by lot: no client meets one stretch for ever


class Rotation:
    """The rounds in which replies begin with each of a number of records."""

    __slots__ = ("_chance", "_records", "_rounds", "_stretches")

    def __init__(self, records: int, chance: Callable[[], float]) -> None:
        """*chance* returns numbers from 0 to below 1."""
        self._records = max(1, records)
        self._rounds = max(MIN_ROUNDS, TURNS // self._records)
        self._chance = chance
        self._stretches = [self._drawn()]

    def begin(self) -> Iterator[int]:
        """Return the next turns, from the beginning of some round on: which record comes first, counted from 0."""
        return self._from(self._stretches[0])

    def go_on(self) -> Iterator[int]:
        """Return the turns after those that ``begin`` or this returned."""
        number = int(self._chance() * STRETCHES)
        if number >= len(self._stretches):
            self._stretches.append(self._drawn())
            number = -1
        return self._from(self._stretches[number])

    def _from(self, stretch: tuple[int, ...]) -> Iterator[int]:
        turns = iter(stretch)
        turns.__setstate__(self._records * int(self._chance() * self._rounds))  # type: ignore[attr-defined]
        return turns

    def _drawn(self) -> tuple[int, ...]:
        turns: list[int] = []
        for _ in range(self._rounds):
            turns += _shuffled(self._records, self._chance)
        return tuple(turns)


class Rotations:
    """A ``Rotation`` for each number of records that answers have."""

    def __init__(self, chance: Callable[[], float]) -> None:
        """*chance* returns numbers from 0 to below 1."""
        self._chance = chance
        self._known: LRUCache[int, Rotation] = LRUCache(MAX_SIZES)

    def of(self, records: int) -> Rotation:
        """Return the rotation of so many records."""
        found = self._known.get(records)
        if found is None:
            found = self._known[records] = Rotation(records, self._chance)
        return found

    def window(self, records: int) -> int:
        """Return a record to begin with where an answer has more records than any message holds."""
        return int(self._chance() * records)


def _shuffled(number: int, chance: Callable[[], float]) -> list[int]:
    """Return the numbers below *number* in random order (Fisher and Yates)."""
    order = list(range(number))
    for last in range(number - 1, 0, -1):
        other = int(chance() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order
