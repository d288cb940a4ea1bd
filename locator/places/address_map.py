"""Values by address that can be changed without harm to whoever reads the state before.

Two mappings, both immutable: ``AddressMap`` from single addresses, ``PrefixTable`` from blocks of
them. A changed one shares with the one before all that stayed, so that a change costs what it
touches, however many addresses there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Generic, TypeVar

from locator.ip import Network, network_end

T = TypeVar("T")

GROUP = {4: 2, 16: 8}  # octets of an address -> of what a group has in common: an IPv4 /16, an IPv6 /64

Row = Mapping[bytes, T]


class InOrder(Generic[T]):
    """Values by keys of one size, in order; immutable."""

    __slots__ = ("_keys", "_values")

    def __init__(self, values: dict[bytes, T] | None = None, keys: list[bytes] | None = None) -> None:
        self._values = values or {}
        self._keys = keys or []

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: bytes) -> T | None:
        """Return the value of *key*."""
        return self._values.get(key)

    def items(self) -> Iterable[tuple[bytes, T]]:
        """Return all keys with their values, in no order."""
        return self._values.items()

    def between(self, first: bytes, last: bytes) -> Iterator[tuple[bytes, T]]:
        """Yield the keys from *first* to *last* with their values, in order."""
        keys = self._keys
        for key in keys[bisect_left(keys, first) : bisect_right(keys, last)]:
            yield key, self._values[key]

    def changed(self, changes: Mapping[bytes, T | None]) -> InOrder[T]:
        """Return this with other values of some keys, None for no value any more."""
        values, gone, fresh = dict(self._values), set(), []
        for key, value in changes.items():
            if value is not None:
                if key not in values:
                    fresh.append(key)
                values[key] = value
            elif values.pop(key, None) is not None:
                gone.add(key)
        keys = [key for key in self._keys if key not in gone] if gone else self._keys
        return InOrder(values, sorted(keys + fresh) if fresh else keys)


Group = InOrder[Row[T]]  # by all octets but the last


class AddressMap(Generic[T]):
    """Values by packed address; those that differ only in the last octet stand together, in rows of groups."""

    def __init__(self) -> None:
        self._groups: dict[int, InOrder[Group[T]]] = {4: InOrder(), 16: InOrder()}  # by the size of an address
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def get(self, address: bytes) -> T | None:
        """Return what stands at *address*."""
        size = len(address)
        group = self._groups[size].get(address[: GROUP[size]])
        row = None if group is None else group.get(address[:-1])
        return None if row is None else row.get(address)

    def items(self) -> Iterator[tuple[bytes, T]]:
        """Yield every address with its value."""
        for groups in self._groups.values():
            for _, group in groups.items():
                for _, row in group.items():
                    yield from row.items()

    def within(self, network: Network) -> Iterator[tuple[bytes, T]]:
        """Yield the addresses in *network* with their values, in no order."""
        whole = 8 * len(network.address) - network.length >= 8
        last = network_end(network)
        for _, row in self.rows_within(network):
            if whole:
                yield from row.items()
            else:
                yield from ((a, value) for a, value in row.items() if network.address <= a <= last)

    def rows_within(self, network: Network) -> Iterator[tuple[bytes, Row[T]]]:
        """Yield, in order, the rows with addresses in *network*, by all octets but the last.

        What is the same object in this and in what it was changed from has not changed.
        """
        last = network_end(network)
        for _, group in self.groups_within(network):
            yield from group.between(network.address[:-1], last[:-1])

    def groups_within(self, network: Network) -> Iterator[tuple[bytes, Group[T]]]:
        """Yield, in order, the groups with rows in *network*, by what their addresses have in common.

        What is the same object in this and in what it was changed from has not changed.
        """
        size = len(network.address)
        return self._groups[size].between(network.address[: GROUP[size]], network_end(network)[: GROUP[size]])

    def changes_since(self, before: AddressMap[T]) -> Iterator[tuple[bytes, T | None]]:
        """Yield the addresses at which something else stands than in *before*, None where nothing stands any more.

        If one of the two was made from the other, the cost is that of the parts that changed.
        """
        for octets, groups in self._groups.items():
            for _, now, then in _unlike(groups, before._groups[octets]):
                for _, row, other in _unlike(now or InOrder[Row[T]](), then or InOrder[Row[T]]()):
                    row, other = row or {}, other or {}
                    yield from ((address, value) for address, value in row.items() if other.get(address) is not value)
                    yield from ((address, None) for address in other if address not in row)

    def any_within(self, network: Network) -> bool:
        """Whether some address in *network* has a value."""
        return next(self.within(network), None) is not None

    def changed(self, changes: Mapping[bytes, T | None]) -> AddressMap[T]:
        """Return this with other values at some addresses, None for no value any more; itself if *changes* is empty."""
        if not changes:
            return self
        rows: dict[bytes, dict[bytes, T]] = {}
        size = self._size
        for address, value in changes.items():
            head = address[:-1]
            row = rows.get(head)
            if row is None:
                group = self._groups[len(address)].get(address[: GROUP[len(address)]])
                row = rows[head] = dict((group and group.get(head)) or {})
                size -= len(row)
            if value is None:
                row.pop(address, None)
            else:
                row[address] = value
        touched: dict[int, dict[bytes, dict[bytes, Row[T] | None]]] = {4: {}, 16: {}}
        for head, row in rows.items():
            size += len(row)
            octets = len(head) + 1
            touched[octets].setdefault(head[: GROUP[octets]], {})[head] = row or None
        after: AddressMap[T] = AddressMap()
        after._size = size
        after._groups = {octets: _regrouped(groups, touched[octets]) for octets, groups in self._groups.items()}
        return after


def _unlike(now: InOrder[T], then: InOrder[T]) -> Iterator[tuple[bytes, T | None, T | None]]:
    """Yield each key with its two values, where these are not the same object."""
    if now is then:
        return
    for key, value in now.items():
        if (other := then.get(key)) is not value:
            yield key, value, other
    for key, value in then.items():
        if now.get(key) is None:
            yield key, None, value


def _regrouped(groups: InOrder[Group[T]], touched: Mapping[bytes, Mapping[bytes, Row[T] | None]]) -> InOrder[Group[T]]:
    """Return groups with other rows, None for a row that is none any more; an empty group is none, either."""
    if not touched:
        return groups
    changes = {key: (groups.get(key) or InOrder[Row[T]]()).changed(rows) for key, rows in touched.items()}
    return groups.changed({key: group if len(group) else None for key, group in changes.items()})


class PrefixTable(Generic[T]):
    """Values by address block, for the longest match: one look-up for each prefix length in use."""

    def __init__(self, entries: Mapping[Network, T] | None = None) -> None:
        self._tables: dict[int, list[tuple[int, dict[int, T]]]] = {4: [], 16: []}  # by how far to shift, least first
        if entries:
            self._tables = self.changed(entries)._tables

    def __bool__(self) -> bool:
        return any(self._tables.values())

    def around(self, address: bytes, length: int | None = None) -> list[T]:
        """Return what stands at the blocks around *address* (or around its first *length* bits), the longest first."""
        number = int.from_bytes(address)
        least = 0 if length is None else 8 * len(address) - length
        return [
            found
            for shift, table in self._tables[len(address)]
            if shift >= least and (found := table.get(number >> shift)) is not None
        ]

    def find(self, address: bytes, length: int | None = None) -> T | None:
        """Return the first of what ``around`` returns."""
        number = int.from_bytes(address)
        least = 0 if length is None else 8 * len(address) - length
        for shift, table in self._tables[len(address)]:
            if shift >= least and (found := table.get(number >> shift)) is not None:
                return found
        return None

    def around_each(self, addresses: Iterable[bytes]) -> Iterator[tuple[bytes, list[T]]]:
        """Yield each address with what ``around`` returns for it: sooner, where there are many."""
        rows: dict[bytes, list[T]] = {}  # those that differ in the last octet only lie in the same blocks, mostly
        fine = {size: bool(tables) and tables[0][0] < 8 for size, tables in self._tables.items()}
        for address in addresses:
            if fine[len(address)]:
                yield address, self.around(address)
                continue
            head = address[:-1]
            found = rows.get(head)
            if found is None:
                found = rows[head] = self.around(address)
            yield address, found

    def changed(self, changes: Mapping[Network, T | None]) -> PrefixTable[T]:
        """Return this with other values at some blocks, None for no value any more; itself if *changes* is empty."""
        if not changes:
            return self
        tables = {size: dict(rows) for size, rows in self._tables.items()}
        touched: dict[tuple[int, int], dict[int, T]] = {}
        for network, value in changes.items():
            size = len(network.address)
            shift = 8 * size - network.length
            table = touched.get((size, shift))
            if table is None:
                table = touched[size, shift] = tables[size][shift] = dict(tables[size].get(shift, ()))
            number = int.from_bytes(network.address) >> shift
            if value is None:
                table.pop(number, None)
            else:
                table[number] = value
        after: PrefixTable[T] = PrefixTable()
        after._tables = {
            size: sorted(((shift, table) for shift, table in rows.items() if table), key=itemgetter(0))
            for size, rows in tables.items()
        }
        return after
