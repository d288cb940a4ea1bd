# SPDX-License-Identifier: Apache-2.0

"""Who asks, by cell: how many clients are on the nodes that share a slot and some label values.

A ``CellTable`` has all nodes of a cluster by their values of some keys, and is shared by all Services that ask for
these keys. It is kept up to date node by node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

from locator.model import HOSTNAME, NODE_NAME, Location

SLOTS = 256
NAMES = (HOSTNAME, NODE_NAME)  # keys whose value is the name of a node, mostly
FEW = 64  # values of a key: cells of keys with more are looked up by the values of a Service's own endpoints

Values = tuple[str | None, ...]  # of the keys of a table; None for a label that a node lacks, or that does not matter


@lru_cache(maxsize=1 << 14)
def slot(text: str) -> int:
    """Return the octet by which a node, or a Service, comes sooner or later than others: BLAKE2b of its name."""
    return blake2b(text.encode(), digest_size=1).digest()[0]


class Column:
    """How many clients are on nodes with the same values, by the slots of these nodes."""

    __slots__ = ("_turns", "nodes", "total", "weights")

    def __init__(self) -> None:
        self.weights: dict[int, int] = {}
        self.total = 0
        self.nodes = 0
        self._turns: list[int] | None = None

    def add(self, slot: int, clients: int) -> None:
        """Add clients in a slot, or take some away."""
        self.weights[slot] = self.weights.get(slot, 0) + clients
        self.total += clients
        self._turns = None

    @property
    def turns(self) -> list[int]:
        """How many clients are in each slot, twice in turn."""
        if self._turns is None:
            once = [self.weights.get(slot, 0) for slot in range(SLOTS)]
            self._turns = once + once
        return self._turns


class CellTable:
    """All nodes of a cluster by their values of *keys* (``Location.client_value``), and the clients on each.

    Of the keys with more than FEW values, ``columns`` tells the values apart only for those who ask for some.
    ``elsewhere`` are the clients whose node is not known, by the values of the place where they are. ``version``
    differs whenever there are other columns, or other clients elsewhere. Unless the table is *complete*, nodes without
    clients are missing in it.
    """

    def __init__(
        self, keys: Sequence[str], nodes: Iterable[tuple[Hashable, Location, int]], *, complete: bool = True
    ) -> None:
        """*nodes* are as in ``put``."""
        self.keys = tuple(keys)
        self.version = 0
        self._complete = complete
        self._nodes = {key: (location, self._values(location), clients) for key, location, clients in nodes}
        self._arrange()

    def _arrange(self) -> None:
        """Make the columns of all nodes anew, by the keys that have many values now."""
        self.version += 1
        self.elsewhere = Counter[Values]()
        known = [{values[position] for _, values, _ in self._nodes.values()} for position in range(len(self.keys))]
        self._fine = tuple(position for position, values in enumerate(known) if len(values) > FEW)
        self._columns: dict[Values, Column] = {}  # by the values of the other keys
        self._fine_columns: dict[Values, Column] = {}  # by all values, if one of them is of a key with many
        self._by_value: dict[tuple[int, str], set[Values]] = {}  # of the latter, by such a value
        for location, values, clients in self._nodes.values():
            self._add(location, values, clients, 1)
        self._most_columns = 2 * max(FEW, len(self._columns))  # before another key may have many values

    def put(self, key: Hashable, location: Location | None, clients: int) -> bool:
        """Record that there are so many clients on a node, which is now at *location*; None: there is none any more.

        Return whether the node was known before, and has other values now.
        """
        before = self._nodes.get(key)
        if before is not None and before[0] is location:
            self._add(location, before[1], clients - before[2], 0)
            self._nodes[key] = (location, before[1], clients)
            return False
        if before is not None:
            del self._nodes[key]
            self._add(before[0], before[1], -before[2], -1)
        if location is None:
            return False
        values = self._values(location)
        self._nodes[key] = (location, values, clients)
        self._add(location, values, clients, 1)
        if len(self._columns) > self._most_columns:
            self._arrange()
        return before is not None and (before[0].slot, before[1]) != (location.slot, values)

    def cell_of(self, node: Hashable) -> tuple[int | None, Values]:
        """Return the slot of a node, None if it is not known, and its values."""
        found = self._nodes.get(node)
        return (None, (None,) * len(self.keys)) if found is None else (found[0].slot, found[1])

    def columns(self, known: Sequence[set[str | None]]) -> Iterator[tuple[Values, Column, int]]:
        """Yield what makes up the cells if only the values in *known* matter, of each key.

        These are values, with None for those that do not matter, a column, and whether its clients count there (1), or
        have been counted there although they are elsewhere (-1).
        """
        for values, column in self._columns.items():
            yield reduced(values, known), column, 1
        found = (self._by_value.get((at, value or ""), ()) for at in self._fine for value in known[at])
        for values in {values for some in found for values in some}:
            yield reduced(values, known), self._fine_columns[values], 1
            yield reduced(self._coarse(values), known), self._fine_columns[values], -1

    def _values(self, location: Location) -> Values:
        return tuple([location.client_value(key) for key in self.keys])

    def _coarse(self, values: Values) -> Values:
        return tuple([None if position in self._fine else value for position, value in enumerate(values)])

    def _add(self, location: Location, values: Values, clients: int, nodes: int) -> None:
        if location.slot is None:
            self.elsewhere[values] += clients
            self.version += bool(clients)
            return
        self.version += self._add_to(self._columns, self._coarse(values), location.slot, clients, nodes)
        if not any(values[position] is not None for position in self._fine):
            return
        if self._add_to(self._fine_columns, values, location.slot, clients, nodes):
            # A node that comes or goes moves its endpoints, and so the Services that ask for its own name.
            is_own_name = self._complete
            for position in self._fine:
                if (value := values[position]) is not None:
                    some = self._by_value.setdefault((position, value), set())
                    (some.add if nodes > 0 else some.discard)(values)
                    others = len(some) > (nodes > 0)
                    is_own_name &= self.keys[position] in NAMES and value == location.node and not others
                    if not some:
                        del self._by_value[position, value]
            self.version += not is_own_name

    def _add_to(self, columns: dict[Values, Column], values: Values, slot: int, clients: int, nodes: int) -> bool:
        """Add clients and nodes to a column; return whether it is new, or gone."""
        column = columns.get(values)
        is_new = column is None
        if column is None:
            column = columns[values] = Column()
        column.add(slot, clients)
        column.nodes += nodes
        is_gone = nodes < 0 and not column.nodes
        if is_gone:
            del columns[values]
        return is_new or is_gone


def reduced(values: Values, known: Sequence[set[str | None]]) -> Values:
    """Return *values*, with None for those that are not in *known*."""
    return tuple([value if value in some else None for value, some in zip(values, known, strict=True)])
