# SPDX-License-Identifier: Apache-2.0

"""Shares what is scarce among namespaces: places for those that wait, and turns for what is done a few at a time.

Whoever may write in one namespace can ask for any amount of work there. It must not cost the others their part.

The rule is that of buffers with dynamic thresholds (Choudhury and Hahne, 1998): one namespace may hold a fixed number
of places, and never more than it leaves free. So however many namespaces want all they can get, whoever comes next
finds a place, until there are about as many namespaces as places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class Shares:
    """*most* places in all, of which one namespace may hold *each*, and no more than it leaves free."""

    def __init__(self, *, most: int, each: int) -> None:
        self.held: Counter[str] = Counter()
        """The places that are held, by namespace; none that holds nothing."""
        self._most, self._each = most, each
        self._total = 0

    def has_room(self, namespace: str) -> bool:
        """Whether *namespace* may take one more place."""
        return self.held[namespace] < min(self._each, self._most - self._total)

    def take(self, namespace: str) -> None:
        """Take a place, for which there must be room."""
        self.held[namespace] += 1
        self._total += 1

    def give_back(self, namespace: str) -> None:
        """Give a place back."""
        self._total -= 1
        self.held[namespace] -= 1
        if not self.held[namespace]:
            del self.held[namespace]


class Turn:
    """Some work that waits for its turn: *begin* is called once it has come."""

    __slots__ = ("begin", "holder", "wanted_by")

    def __init__(self, begin: Callable[[], None]) -> None:
        self.begin = begin
        self.wanted_by: Counter[str] = Counter()
        """How many want it, by namespace."""
        self.holder: str | None = None
        """The namespace whose place it holds, None while it waits, and after its end."""


class FairTurns:
    """Turns for work that several may want: *most* at a time, with *each* and the rest of the rule as in ``Shares``.

    The next turn is that of the namespace that has the fewest now; within it, first come, first served. Work that
    several namespaces want waits in each of them, and holds a place of the first that has one: nobody waits behind what
    another namespace wants besides.
    """

    def __init__(self, *, most: int, each: int) -> None:
        self._shares = Shares(most=most, each=each)
        self._waiting: dict[str, dict[Turn, None]] = {}  # by namespace, in order; none without any

    def want(self, turn: Turn, namespace: str) -> None:
        """Want *turn* once more, on behalf of *namespace*, until ``leave``. It may begin at once."""
        turn.wanted_by[namespace] += 1
        if turn.holder is None:
            self._waiting.setdefault(namespace, {})[turn] = None
            self._begin_next()

    def leave(self, turn: Turn, namespace: str) -> None:
        """Want *turn* no longer. It ends once nobody does."""
        turn.wanted_by[namespace] -= 1
        if not turn.wanted_by[namespace]:
            del turn.wanted_by[namespace]
            self._forget(turn, namespace)
        if not turn.wanted_by:
            self.end(turn)

    def end(self, turn: Turn) -> None:
        """End *turn*: its place is for others, and it does not begin any more."""
        for namespace in turn.wanted_by:
            self._forget(turn, namespace)
        if turn.holder is not None:
            self._shares.give_back(turn.holder)
            turn.holder = None
            self._begin_next()

    def _begin_next(self) -> None:
        """Begin turns while there is room."""
        while self._waiting:
            namespace = min(self._waiting, key=self._shares.held.__getitem__)
            if not self._shares.has_room(namespace):
                return  # nor has one that holds more
            turn = next(iter(self._waiting[namespace]))
            for other in turn.wanted_by:
                self._forget(turn, other)
            self._shares.take(namespace)
            turn.holder = namespace
            turn.begin()

    def _forget(self, turn: Turn, namespace: str) -> None:
        waiting = self._waiting.get(namespace, {})
        if turn in waiting:
            del waiting[turn]
            if not waiting:
                del self._waiting[namespace]
