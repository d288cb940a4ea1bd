# SPDX-License-Identifier: Apache-2.0

"""An immutable mapping from address blocks. A changed copy shares the blocks of all prefix lengths that it leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Generic, TypeVar

from locator.ip import Network

T = TypeVar("T")


class PrefixTable(Generic[T]):
    """An immutable mapping from address blocks; a longest match takes one look-up for each prefix length in use."""

    def __init__(self, entries: Mapping[Network, T] | None = None) -> None:
        # By the octets of an address: dictionaries by the number of host bits, the fewest first.
        self._tables: dict[int, list[tuple[int, dict[int, T]]]] = {4: [], 16: []}
        if entries:
            self._tables = self.with_changes(entries)._tables

    def __bool__(self) -> bool:
        return any(self._tables.values())

    def has_size(self, octets: int) -> bool:
        """Whether there is a block whose addresses have this many octets."""
        return bool(self._tables[octets])

    def items(self) -> Iterator[tuple[Network, T]]:
        """Yield every block with its value."""
        for size, tables in self._tables.items():
            for shift, table in tables:
                for number, value in table.items():
                    yield Network((number << shift).to_bytes(size), 8 * size - shift), value

    def get(self, network: Network) -> T | None:
        """Return the value of exactly this block, None if it has none."""
        size = len(network.address)
        table = dict(self._tables[size]).get(8 * size - network.length, {})
        return table.get(int.from_bytes(network.address) >> (8 * size - network.length))

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

    def around_row(self, address: bytes) -> list[T] | None:
        """Return the values of all blocks around the addresses that share all octets but the last with *address*.

        None if a block is smaller than that.
        """
        tables = self._tables[len(address)]
        return None if tables and tables[0][0] < 8 else self.around(address)

    def around_each(self, addresses: Iterable[bytes]) -> Iterator[tuple[bytes, list[T]]]:
        """Yield each address with what ``around`` returns for it; faster for many addresses."""
        of_row: dict[bytes, list[T] | None] = {}
        for address in addresses:
            head = address[:-1]
            values = of_row[head] if head in of_row else of_row.setdefault(head, self.around_row(address))
            yield address, self.around(address) if values is None else values

    def within(self, network: Network) -> Iterator[tuple[Network, T]]:
        """Yield the blocks that are smaller parts of *network*, with their values, in no order."""
        size = len(network.address)
        bits = 8 * size - network.length
        whole = int.from_bytes(network.address) >> bits
        for shift, table in self._tables[size]:
            depth = bits - shift
            if depth <= 0:
                return
            if 1 << depth < len(table):
                numbers: Iterable[int] = filter(table.__contains__, range(whole << depth, whole + 1 << depth))
            else:
                numbers = (number for number in table if number >> depth == whole)
            for number in numbers:
                yield Network((number << shift).to_bytes(size), 8 * size - shift), table[number]

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
