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
        self._by_address = dict(by_address or {})
        self._sorted: dict[int, list[bytes]] = {}

    def of(self, address: bytes) -> tuple[str, ...]:
        """Return the keys of the Services that have *address*, in order."""
        return self._by_address.get(address, ())

    def held(self) -> Iterable[bytes]:
        """Return every address that some Service has."""
        return self._by_address.keys()

    def any_within(self, network: Network) -> bool:
        """Whether some Service has an address in *network*."""
        size = len(network.address)
        if size not in self._sorted:  # only who asks for a part of a reverse name needs them in order
            self._sorted[size] = sorted(address for address in self.held() if len(address) == size)
        row = self._sorted[size]
        at = bisect_left(row, network.address)
        shift = 8 * size - network.length
        return at < len(row) and int.from_bytes(row[at]) >> shift == int.from_bytes(network.address) >> shift

    def changed(
        self, *, left: Iterable[tuple[str, Iterable[bytes]]], joined: Iterable[tuple[str, Iterable[bytes]]]
    ) -> Holders:
        """Return the holders after some Services *left* addresses and some *joined*; itself if none did."""
        after: dict[bytes, tuple[str, ...]] | None = None
        for key, addresses in left:
            for address in addresses:
                after = dict(self._by_address) if after is None else after
                if rest := tuple(each for each in after.get(address, ()) if each != key):
                    after[address] = rest
                else:
                    after.pop(address, None)
        for key, addresses in joined:
            for address in addresses:
                after = dict(self._by_address) if after is None else after
                after[address] = tuple(sorted({*after.get(address, ()), key}))
        return self if after is None else Holders(after)
