"""With which record a reply begins, so that clients which take the first one are spread evenly.

Replies of one answer begin with its records in rounds: each record once in a round, in an order
drawn anew for each round. So one client that asks alone meets every record equally often, and so does
each of several clients, however they take turns: no pattern of theirs meets a pattern of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cachetools import LRUCache

MAX_SIZES = 256  # numbers of records for which rounds are kept; at the most some megabytes
TURNS = 1024  # of rounds that are drawn beforehand
MIN_ROUNDS = 8


class Rotation:
    """The rounds in which replies begin with each of a number of records."""

    __slots__ = ("_chance", "_records", "_rounds", "_turns")

    def __init__(self, records: int, chance: Callable[[], float]) -> None:
        """*chance* returns numbers from 0 to below 1."""
        self._records = max(1, records)
        self._rounds = max(MIN_ROUNDS, TURNS // self._records)
        self._chance = chance
        turns: list[int] = []
        for _ in range(self._rounds):
            turns += _shuffled(self._records, chance)
        self._turns = tuple(turns)

    def begin(self) -> Iterator[int]:
        """Return the next turns, from the beginning of some round on: which record comes first, counted from 0."""
        return self._from(self._records * int(self._chance() * self._rounds))

    def go_on(self) -> Iterator[int]:
        """Return the turns after those that ``begin`` returned.

        They begin anywhere in a round, so that clients who take turns meet other parts of the rounds than before.
        """
        return self._from(int(self._chance() * len(self._turns)))

    def _from(self, position: int) -> Iterator[int]:
        turns = iter(self._turns)
        turns.__setstate__(position)  # type: ignore[attr-defined]
        return turns


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
