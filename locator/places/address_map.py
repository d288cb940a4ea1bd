# SPDX-License-Identifier: Apache-2.0

"""Immutable mappings by address: ``AddressMap`` from single addresses, ``PrefixTable`` from blocks.

A changed copy shares all unchanged parts with its original. So readers of the original see no
change, and the cost of a change depends on the parts it touches, not on the number of addresses.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Generic, TypeVar
from weakref import ReferenceType, ref

from msgspec import Struct

from locator.ip import Network, network_end

T = TypeVar("T")

GROUP = {4: 2, 16: 8}  # octets of an address -> octets that a group shares: an IPv4 /16, an IPv6 /64

MAX_CHANGES = 4096  # that a changed copy remembers: more would take memory, and are soon compared

_LAST = tuple(bytes((octet,)) for octet in range(256))  # by its number: the last octet of an address


class Row(Struct, Generic[T], frozen=True, eq=False, gc=False):
    """The values of addresses that share all octets but the last; ``values`` are in the order of the last ``octets``.

    It takes a third of a dictionary's memory, and there is one for each node, or more.
    """

    head: bytes
    octets: bytes
    values: tuple[T, ...]

    def __len__(self) -> int:
        return len(self.octets)

    def get(self, octet: int) -> T | None:
        """Return the value of the address that ends in *octet*, None if it has none."""
        position = self.octets.find(octet)
        return None if position < 0 else self.values[position]

    def items(self) -> Iterator[tuple[bytes, T]]:
        """Yield the addresses with their values, in no order."""
        head = self.head
        for octet, value in zip(self.octets, self.values, strict=True):
            yield head + _LAST[octet], value


class InOrder(Generic[T]):
    """An immutable mapping that is sorted by its keys, which all have the same size."""

    __slots__ = ("_keys", "_values")

    def __init__(self, values: dict[bytes, T] | None = None, keys: list[bytes] | None = None) -> None:
        self._values = values or {}
        self._keys = keys or []

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: bytes) -> T | None:
        """Return the value of *key*, None if it has none."""
        return self._values.get(key)

    def items(self) -> Iterable[tuple[bytes, T]]:
        """Return all keys with their values, in no order."""
        return self._values.items()

    def between(self, first: bytes, last: bytes) -> Iterator[tuple[bytes, T]]:
        """Yield the keys from *first* to *last* with their values, in order."""
        keys = self._keys
        for key in keys[bisect_left(keys, first) : bisect_right(keys, last)]:
            yield key, self._values[key]

    def with_changes(self, changes: Mapping[bytes, T | None]) -> InOrder[T]:
        """Return a copy with new values of some keys; None removes a key."""
        values, removed, added = dict(self._values), set(), []
        for key, value in changes.items():
            if value is not None:
                if key not in values:
                    added.append(key)
                values[key] = value
            elif values.pop(key, None) is not None:
                removed.add(key)
        keys = [key for key in self._keys if key not in removed] if removed else self._keys
        return InOrder(values, sorted(keys + added) if added else keys)


Group = InOrder[Row[T]]  # rows by the octets that each row shares


class AddressMap(Generic[T]):
    """An immutable mapping from packed addresses; a row has the addresses that share all octets but the last."""

    _since: tuple[ReferenceType[AddressMap[T]], Sequence[bytes]] | None = None  # what it is a copy of, and what changed

    def __init__(self) -> None:
        self._groups: dict[int, InOrder[Group[T]]] = {4: InOrder(), 16: InOrder()}  # by the octets of an address
        self._size = 0

    def __getstate__(self) -> dict[str, object]:
        """Return what a copy in another process needs."""
        return {"_groups": self._groups, "_size": self._size}

    def __len__(self) -> int:
        return self._size

    def get(self, address: bytes) -> T | None:
        """Return the value of *address*, None if it has none."""
        size = len(address)  # no calls from here on: all changes come here
        group = self._groups[size]._values.get(address[: GROUP[size]])
        row = None if group is None else group._values.get(address[:-1])
        if row is not None and (position := row.octets.find(address[-1])) >= 0:
            return row.values[position]
        return None

    def items(self) -> Iterator[tuple[bytes, T]]:
        """Yield every address with its value."""
        for groups in self._groups.values():
            for _, group in groups.items():
                for _, row in group.items():
                    yield from row.items()

    def within(self, network: Network) -> Iterator[tuple[bytes, T]]:
        """Yield the addresses in *network* with their values, in no order."""
        whole_rows = 8 * len(network.address) - network.length >= 8
        last = network_end(network)
        for _, row in self.rows_within(network):
            if whole_rows:
                yield from row.items()
            else:
                yield from (item for item in row.items() if network.address <= item[0] <= last)

    def rows_within(self, network: Network) -> Iterator[tuple[bytes, Row[T]]]:
        """Yield, in order, the rows with addresses in *network*, each with the octets that it shares.

        A row that is the same object in a changed copy is unchanged.
        """
        last = network_end(network)
        for _, group in self.groups_within(network):
            yield from group.between(network.address[:-1], last[:-1])

    def groups_within(self, network: Network) -> Iterator[tuple[bytes, Group[T]]]:
        """Yield, in order, the groups with rows in *network*, each with the octets that it shares.

        A group that is the same object in a changed copy is unchanged.
        """
        size = len(network.address)
        return self._groups[size].between(network.address[: GROUP[size]], network_end(network)[: GROUP[size]])

    def changes_since(self, before: AddressMap[T]) -> Iterator[tuple[bytes, T | None]]:
        """Yield the addresses whose values are not the same objects as in *before*; None for an address now without.

        Between a map and its changed copy, only what changed is compared, unless that is much. Otherwise only the parts
        that are not the same object are.
        """
        if self._since is not None and self._since[0]() is before:
            for address in self._since[1]:
                if (value := self.get(address)) is not before.get(address):
                    yield address, value
            return
        for octets, groups in self._groups.items():
            for _, now, then in _differences(groups, before._groups[octets]):
                for head, row, old_row in _differences(now or InOrder[Row[T]](), then or InOrder[Row[T]]()):
                    if row is not None and old_row is None:
                        yield from row.items()
                        continue
                    row, old_row = row or Row(head, b"", ()), old_row or Row(head, b"", ())
                    for octet, value in zip(row.octets, row.values, strict=True):
                        if old_row.get(octet) is not value:
                            yield head + _LAST[octet], value
                    yield from ((head + _LAST[octet], None) for octet in old_row.octets if octet not in row.octets)

    def any_within(self, network: Network) -> bool:
        """Whether some address in *network* has a value."""
        return next(self.within(network), None) is not None

    def with_changes(self, changes: Mapping[bytes, T | None]) -> AddressMap[T]:
        """Return a copy with new values of some addresses; None removes one. Without *changes*: the map itself."""
        if not changes:
            return self
        # The touched ones, as they are to be, and which addresses they had: none has a change of its own twice.
        rows: dict[bytes, tuple[bytearray, list[T], bytes]] = {}
        size = self._size
        for address, value in changes.items():
            head = address[:-1]
            row = rows.get(head)
            if row is None:
                group = self._groups[len(address)].get(address[: GROUP[len(address)]])
                known = None if group is None else group.get(head)
                row = rows[head] = _parts_of(known)
                size -= len(row[1])
            octets, values, had = row
            octet = address[-1]
            if octet in had:
                _set(octets, values, octet, value)
            elif value is not None:
                octets.append(octet)
                values.append(value)
        touched: dict[int, dict[bytes, dict[bytes, Row[T] | None]]] = {4: {}, 16: {}}
        for head, (octets, values, _) in rows.items():
            size += len(values)
            width = len(head) + 1
            after_row = Row(head, bytes(octets), tuple(values)) if values else None
            touched[width].setdefault(head[: GROUP[width]], {})[head] = after_row
        after: AddressMap[T] = AddressMap()
        after._size = size
        if len(changes) <= MAX_CHANGES:
            after._since = ref(self), tuple(changes)
        after._groups = {width: _regrouped(groups, touched[width]) for width, groups in self._groups.items()}
        return after


def _parts_of(row: Row[T] | None) -> tuple[bytearray, list[T], bytes]:
    """Return copies of a row's octets and values, and its octets; nothing of None."""
    return (bytearray(), [], b"") if row is None else (bytearray(row.octets), [*row.values], row.octets)


def _set(octets: bytearray, values: list[T], octet: int, value: T | None) -> None:
    """Give the address of a row that ends in *octet*, which it has, a new value, or remove it."""
    position = octets.find(octet)
    if value is None:
        del octets[position], values[position]
    else:
        values[position] = value


def _differences(now: InOrder[T], then: InOrder[T]) -> Iterator[tuple[bytes, T | None, T | None]]:
    """Yield each key whose values are not the same object, with its value *now* and its value *then*."""
    if now is then:
        return
    for key, value in now.items():
        if (old := then.get(key)) is not value:
            yield key, value, old
    for key, value in then.items():
        if now.get(key) is None:
            yield key, None, value


def _regrouped(groups: InOrder[Group[T]], touched: Mapping[bytes, Mapping[bytes, Row[T] | None]]) -> InOrder[Group[T]]:
    """Return the groups with the touched rows replaced; None removes a row, and a group without rows is removed."""
    if not touched:
        return groups
    changes = {key: (groups.get(key) or InOrder[Row[T]]()).with_changes(rows) for key, rows in touched.items()}
    return groups.with_changes({key: group if len(group) else None for key, group in changes.items()})


class PrefixTable(Generic[T]):
    """An immutable mapping from address blocks; a longest match takes one look-up for each prefix length in use."""

    def __init__(self, entries: Mapping[Network, T] | None = None) -> None:
        self._tables: dict[int, list[tuple[int, dict[int, T]]]] = {
            4: [],
            16: [],
        }  # by the number of host bits, fewest first
        if entries:
            self._tables = self.with_changes(entries)._tables

    def __bool__(self) -> bool:
        return any(self._tables.values())

    def values(self) -> Iterator[T]:
        """Yield the value of every block."""
        for tables in self._tables.values():
            for _, table in tables:
                yield from table.values()

    def get(self, network: Network) -> T | None:
        """Return the value of exactly this block, None if it has none."""
        shift = 8 * len(network.address) - network.length
        table = dict(self._tables[len(network.address)]).get(shift)
        return None if table is None else table.get(int.from_bytes(network.address) >> shift)

    def around(self, address: bytes, length: int | None = None) -> list[T]:
        """Return the values of all blocks around *address* (or its first *length* bits), the longest prefix first."""
        number = int.from_bytes(address)
        least_shift = 0 if length is None else 8 * len(address) - length
        return [
            value
            for shift, table in self._tables[len(address)]
            if shift >= least_shift and (value := table.get(number >> shift)) is not None
        ]

    def find(self, address: bytes, length: int | None = None) -> T | None:
        """Return the first value that ``around`` returns, None if there is none."""
        number = int.from_bytes(address)
        least_shift = 0 if length is None else 8 * len(address) - length
        for shift, table in self._tables[len(address)]:
            if shift >= least_shift and (value := table.get(number >> shift)) is not None:
                return value
        return None

    def around_each(self, addresses: Iterable[bytes]) -> Iterator[tuple[bytes, list[T]]]:
        """Yield each address with what ``around`` returns for it; faster for many addresses."""
        # Addresses that share all octets but the last are in the same blocks, unless a block is smaller than a row.
        values_of_row: dict[bytes, list[T]] = {}
        splits_rows = {size: bool(tables) and tables[0][0] < 8 for size, tables in self._tables.items()}
        for address in addresses:
            head = address[:-1]
            values = values_of_row.get(head)
            if values is None:
                values = self.around(address)
                if not splits_rows[len(address)]:
                    values_of_row[head] = values
            yield address, values

    def changes_since(self, before: PrefixTable[T]) -> Iterator[Network]:
        """Yield the blocks whose values are not the same objects as in *before*, among them those now without."""
        for size, tables in self._tables.items():
            now, then = dict(tables), dict(before._tables[size])
            for shift in now.keys() | then.keys():
                table, old = now.get(shift, {}), then.get(shift, {})
                if table is not old:
                    changed = (
                        number for number in table.keys() | old.keys() if table.get(number) is not old.get(number)
                    )
                    yield from (Network((number << shift).to_bytes(size), 8 * size - shift) for number in changed)

    def with_changes(self, changes: Mapping[Network, T | None]) -> PrefixTable[T]:
        """Return a copy with new values of some blocks; None removes one. Without *changes*: the table itself."""
        if not changes:
            return self
        tables = {size: dict(by_shift) for size, by_shift in self._tables.items()}
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
            size: sorted(((shift, table) for shift, table in by_shift.items() if table), key=itemgetter(0))
            for size, by_shift in tables.items()
        }
        return after
