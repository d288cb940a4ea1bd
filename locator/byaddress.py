"""Values by address that can be changed without harm to whoever reads the state before.

Two mappings, both immutable: ``ByAddress`` from single addresses, ``PrefixTable`` from blocks of
them. A changed one shares with the one before all that stayed, so that a change costs what it
touches, however many addresses there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Generic, TypeVar

from locator.model import Network, network_end

T = TypeVar("T")


class ByAddress(Generic[T]):
    """Values by packed address; those that differ only in the last octet stand together."""

    def __init__(self) -> None:
        self._rows: dict[bytes, dict[bytes, T]] = {}  # by all octets but the last
        self._heads: dict[int, list[bytes]] = {3: [], 15: []}  # the keys of these, by their size, in order
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def get(self, address: bytes) -> T | None:
        """Return what stands at *address*."""
        row = self._rows.get(address[:-1])
        return None if row is None else row.get(address)

    def items(self) -> Iterator[tuple[bytes, T]]:
        """Yield every address with its value."""
        for row in self._rows.values():
            yield from row.items()

    def within(self, network: Network) -> Iterator[tuple[bytes, T]]:
        """Yield the addresses in *network* with their values, in no order."""
        size = len(network.address)
        shift = 8 * size - network.length
        if shift <= 8:  # part of a row, or all of it
            wanted = int.from_bytes(network.address) >> shift
            for address, value in self._rows.get(network.address[:-1], {}).items():
                if int.from_bytes(address) >> shift == wanted:
                    yield address, value
            return
        for _, row in self.rows_within(network):
            yield from row.items()

    def rows_within(self, network: Network) -> Iterator[tuple[bytes, Mapping[bytes, T]]]:
        """Yield in order what stands together, by all octets but the last, in a block of at least 256 addresses.

        What is the same object in this and in what it was changed from has not changed.
        """
        size = len(network.address)
        last = network_end(network)
        heads = self._heads[size - 1]
        for head in heads[bisect_left(heads, network.address[:-1]) : bisect_right(heads, last[:-1])]:
            yield head, self._rows[head]

    def any_within(self, network: Network) -> bool:
        """Whether some address in *network* has a value."""
        return next(self.within(network), None) is not None

    def changed(self, changes: Mapping[bytes, T | None]) -> ByAddress[T]:
        """Return this with other values at some addresses, None for no value any more; itself if *changes* is empty."""
        if not changes:
            return self
        after: ByAddress[T] = ByAddress()
        rows, size, touched = dict(self._rows), self._size, dict[bytes, dict[bytes, T]]()
        for address, value in changes.items():
            head = address[:-1]
            row = touched.get(head)
            if row is None:
                known = rows.get(head)
                row = touched[head] = rows[head] = {} if known is None else dict(known)
                size -= len(row)
            if value is None:
                row.pop(address, None)
            else:
                row[address] = value
        fresh, gone = [], set()
        for head, row in touched.items():
            size += len(row)
            if not row:
                del rows[head]
            if bool(row) != (head in self._rows):
                fresh.append(head) if row else gone.add(head)
        after._rows, after._size, after._heads = rows, size, dict(self._heads)
        for length in {len(head) for head in (*fresh, *gone)}:
            kept = [head for head in self._heads[length] if head not in gone]
            after._heads[length] = sorted(kept + [head for head in fresh if len(head) == length])
        return after


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
