"""The way back from an address: which Services have it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from locator.model import Network


class Holders:
    """The Services that have an address, by that address: as their own, or as a ready endpoint's.

    Services are named by their keys (``namespace/name``). Immutable: a change makes another one.
    """

    def __init__(self, by_address: Mapping[bytes, tuple[str, ...]] | None = None) -> None:
        self._by_address = by_address or {}
        # In order, for who asks for a part of a reverse name. What was in order before is soon so again.
        self._sorted = {
            size: sorted(address for address in self._by_address if len(address) == size) for size in (4, 16)
        }

    def of(self, address: bytes) -> tuple[str, ...]:
        """Return the keys of the Services that have *address*, in order."""
        return self._by_address.get(address, ())

    def held(self) -> Iterable[bytes]:
        """Return every address that some Service has."""
        return self._by_address.keys()

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
        after = {**self._by_address, **{address: tuple(sorted(keys)) for address, keys in changes.items() if keys}}
        for address, keys in changes.items():
            if not keys:
                after.pop(address, None)
        return Holders(after)
