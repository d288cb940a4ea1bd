# SPDX-License-Identifier: Apache-2.0

"""An immutable mapping from single addresses.

A changed copy shares all unchanged rows with its original. So readers of the original see no change, and what a change
costs depends on the rows, not on the addresses.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast
from weakref import ReferenceType, ref

from msgspec import Struct

from locator.ip import Network, network_end

T = TypeVar("T")

FEW = 256  # rows that come or go, and are looked for one by one: to go through 150,000 takes 20 ms
MAX_CHANGES = 4096  # that a changed copy remembers: more would take memory, and are soon compared

_LAST = tuple(bytes((octet,)) for octet in range(256))  # by its number: the last octet of an address


class AddressRow(Struct, Generic[T], frozen=True, eq=False, gc=False):
    """The values of addresses that share all octets but the last; ``values`` are in the order of the last ``octets``.

    It takes a third of a dictionary's memory, and there is one for each node, or more.
    """

    head: bytes
    octets: bytes
    values: tuple[T, ...]

    def get(self, octet: int) -> T | None:
        """Return the value of the address that ends in *octet*, None if it has none."""
        position = self.octets.find(octet)
        return None if position < 0 else self.values[position]

    def items(self) -> Iterator[tuple[bytes, T]]:
        """Yield the addresses with their values, in no order."""
        head = self.head
        for octet, value in zip(self.octets, self.values, strict=True):
            yield head + _LAST[octet], value


class AddressMap(Generic[T]):
    """An immutable mapping from packed addresses; a row has the addresses that share all octets but the last."""

    _since: tuple[ReferenceType[AddressMap[T]], Sequence[bytes]] | None = None  # what it is a copy of, and what changed

    def __init__(self) -> None:
        self._rows: dict[bytes, AddressRow[T]] = {}  # by the octets that its addresses share
        self._heads: list[bytes] = []  # the keys of that dictionary, sorted
        self._size = 0

    def __getstate__(self) -> dict[str, object]:
        """Return what a copy in another process needs."""
        return {"_rows": self._rows, "_heads": self._heads, "_size": self._size}

    def __len__(self) -> int:
        return self._size

    def get(self, address: bytes) -> T | None:
        """Return the value of *address*, None if it has none."""
        row = self._rows.get(address[:-1])
        if row is not None and (position := row.octets.find(address[-1])) >= 0:
            return row.values[position]
        return None

    def items(self) -> Iterator[tuple[bytes, T]]:
        """Yield every address with its value."""
        for row in self._rows.values():
            yield from row.items()

    def within(self, network: Network) -> Iterator[tuple[bytes, T]]:
        """Yield the addresses in *network* with their values, in no order."""
        first, last = network.address, network_end(network)
        for row in self.rows_within(network):
            if row.head == first[:-1] == last[:-1]:
                yield from (item for item in row.items() if first <= item[0] <= last)
            else:
                yield from row.items()

    def rows_within(self, network: Network) -> Iterator[AddressRow[T]]:
        """Yield, in order, the rows with addresses in *network*: an unchanged one is the same object in a changed copy.

        The only row of a network that is smaller than a row may have others, too.
        """
        heads, width = self._heads, len(network.address) - 1
        start, stop = bisect_left(heads, network.address[:-1]), bisect_right(heads, network_end(network)[:-1])
        return (self._rows[head] for head in heads[start:stop] if len(head) == width)

    def any_within(self, network: Network) -> bool:
        """Whether some address in *network* has a value."""
        return next(self.within(network), None) is not None

    def changes_since(self, before: AddressMap[T]) -> Iterator[tuple[bytes, T | None]]:
        """Yield the addresses whose values are not the same objects as in *before*; None for an address now without.

        Between a map and its changed copy, only what changed is compared, unless that is much. Otherwise only the rows
        that are not the same object are.
        """
        if self._since is not None and self._since[0]() is before:
            for address in self._since[1]:
                if (value := self.get(address)) is not before.get(address):
                    yield address, value
            return
        for head, row in self._rows.items():
            old = before._rows.get(head)
            if row is old:
                continue
            had = b"" if old is None else old.octets
            for octet, value in zip(row.octets, row.values, strict=True):
                if old is None or old.get(octet) is not value:
                    yield head + _LAST[octet], value
            yield from ((head + _LAST[octet], None) for octet in had if octet not in row.octets)
        for head, old in before._rows.items():
            if head not in self._rows:
                yield from ((address, None) for address, _ in old.items())

    def with_changes(self, changes: Mapping[bytes, T | None]) -> AddressMap[T]:
        """Return a copy with new values of some addresses; None removes one. Without *changes*: the map itself."""
        if not changes:
            return self
        by_head: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for address in changes:
            by_head[address[:-1]].append(address)
        rows, size, came, went = dict(self._rows), self._size, list[bytes](), list[bytes]()
        for head, addresses in by_head.items():
            before = rows.get(head)
            row = _changed_row(head, before, addresses, list(map(changes.__getitem__, addresses)))
            size += (0 if row is None else len(row.octets)) - (0 if before is None else len(before.octets))
            if row is not None:
                rows[head] = row
                if before is None:
                    came.append(head)
            elif before is not None:
                del rows[head]
                went.append(head)
        after: AddressMap[T] = AddressMap()
        after._rows, after._size = rows, size
        after._heads = _in_order(self._heads, came, went) if came or went else self._heads
        if len(changes) <= MAX_CHANGES:
            after._since = ref(self), tuple(changes)
        return after


def _in_order(heads: Sequence[bytes], came: Sequence[bytes], went: Sequence[bytes]) -> list[bytes]:
    """Return sorted *heads*, with those that came and without those that went."""
    if len(came) + len(went) > FEW:
        gone = set(went)
        return sorted([*(head for head in heads if head not in gone), *came])
    after = [*heads]
    for head in went:
        del after[bisect_left(after, head)]
    for head in came:
        insort(after, head)
    return after


def _changed_row(
    head: bytes, before: AddressRow[T] | None, addresses: Sequence[bytes], values: Sequence[T | None]
) -> AddressRow[T] | None:
    """Return a row with new *values* of some of its addresses; None removes one. None: the row has none any more."""
    octets = bytes([address[-1] for address in addresses])
    if before is None and None not in values:  # as most rows that are new
        return AddressRow(head, octets, cast("tuple[T, ...]", tuple(values)))
    after = {} if before is None else dict(zip(before.octets, before.values, strict=True))
    for octet, value in zip(octets, values, strict=True):
        if value is None:
            after.pop(octet, None)
        else:
            after[octet] = value
    return AddressRow(head, bytes(after), tuple(after.values())) if after else None


KeysByAddress = AddressMap[str | tuple[str, ...]]
"""The keys of the objects that have an address. One alone, as nearly always, stands there without a tuple around it."""
Move = tuple[str, Iterable[bytes], Iterable[bytes]]  # the key of an object, the addresses it left, those it joined


def keys_at(keys: KeysByAddress, address: bytes) -> tuple[str, ...]:
    """Return the keys of the objects that have an address, sorted."""
    return _all(keys.get(address))


def with_moves(keys: KeysByAddress, moves: Iterable[Move]) -> KeysByAddress:
    """Return a copy in which some objects left addresses, and then joined others; *keys* itself if none did.

    An object may be in *moves* once.
    """
    changes: dict[bytes, Any] = {}
    several: dict[bytes, set[str]] = {}  # also in changes: one address may have the keys of thousands of objects
    occupied = len(keys) > 0
    for key, left, joined in moves:
        for address in left:
            known = changes[address] if address in changes else keys.get(address)
            if known.__class__ is not set:
                known = changes[address] = several[address] = {*_all(known)}
            known.discard(key)
        for address in joined:
            if occupied and address not in changes:
                changes[address] = keys.get(address)
            known = changes.setdefault(address, key)
            if known is None:
                changes[address] = key
            elif known.__class__ is set:
                known.add(key)
            elif known is not key:
                changes[address] = several[address] = {*_all(known), key}
    for address, keys_there in several.items():
        ordered = tuple(sorted(keys_there))
        changes[address] = ordered if len(ordered) > 1 else ordered[0] if ordered else None
    return keys.with_changes(changes)


def _all(keys: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else keys or ()
