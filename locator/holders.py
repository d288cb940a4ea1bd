"""The way back from an address: which Services have it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from locator.model import Network


class Holders:
    """The Services that have an address, by that address: as their own, or as a ready endpoint's.

    Services are named by their keys (``namespace/name``). Immutable: a change makes another one.
    """

    def __init__(self) -> None:
        self._by_address: dict[bytes, tuple[str, ...]] = {}
        # By octets in an address, in order: for who asks for a part of a reverse name.
        self._sorted: dict[int, list[bytes]] = {4: [], 16: []}

    def of(self, address: bytes) -> tuple[str, ...]:
        """Return the keys of the Services that have *address*, in order."""
        return self._by_address.get(address, ())

    def any_within(self, network: Network) -> bool:
        """Whether some Service has an address in *network*."""
        size = len(network.address)
        row = self._sorted[size]
        at = bisect_left(row, network.address)
        shift = 8 * size - network.length
        return at < len(row) and int.from_bytes(row[at]) >> shift == int.from_bytes(network.address) >> shift

    def changed(
        self, *, left: Iterable[tuple[str, Iterable[bytes]]], joined: Iterable[tuple[str, Iterable[bytes]]]
    ) -> Holders:
        """Return the holders after some Services *left* addresses and some *joined*; itself if none did."""
        changes: dict[bytes, set[str]] = {}  # by address, so that one shared by many is put in order once
        for key, addresses in left:
            for address in addresses:
                changes.setdefault(address, set(self.of(address))).discard(key)
        for key, addresses in joined:
            for address in addresses:
                changes.setdefault(address, set(self.of(address))).add(key)
        if not changes:
            return self
        gone = {address for address, keys in changes.items() if not keys}
        added = [address for address, keys in changes.items() if keys and address not in self._by_address]
        after = Holders()
        after._by_address = {**self._by_address, **{each: tuple(sorted(keys)) for each, keys in changes.items()}}
        for address in gone:
            del after._by_address[address]
        for size, row in self._sorted.items():
            # Nearly in order already, which is soon done: nothing else runs while a list is sorted.
            kept = [address for address in row if address not in gone] if gone else list(row)
            after._sorted[size] = sorted(kept + [address for address in added if len(address) == size])
        return after
