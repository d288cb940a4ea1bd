"""The way back from an address: which Services have it."""

from __future__ import annotations

from collections.abc import Iterable

from locator.ip import Network
from locator.places.address_map import AddressMap

Addresses = Iterable[tuple[str, Iterable[bytes]]]


class ServiceAddresses:
    """The Services that have an address, by that address: as their own, or as a ready endpoint's.

    Services are named by their keys (``namespace/name``). Immutable: a change makes another one.
    """

    def __init__(self) -> None:
        self._keys: AddressMap[tuple[str, ...]] = AddressMap()

    def of(self, address: bytes) -> tuple[str, ...]:
        """Return the keys of the Services that have *address*, in order."""
        return self._keys.get(address) or ()

    def addresses(self) -> set[bytes]:
        """Return every address that a Service has."""
        return {address for address, _ in self._keys.items()}

    def any_within(self, network: Network) -> bool:
        """Whether some Service has an address in *network*."""
        return self._keys.any_within(network)

    def changed(self, *, left: Addresses, joined: Addresses) -> ServiceAddresses:
        """Return the holders after some Services *left* addresses and some *joined*; itself if none did."""
        gone: dict[bytes, set[str]] = {}
        come: dict[bytes, list[str]] = {}
        for key, addresses in left:
            for address in addresses:
                gone.setdefault(address, set()).add(key)
        for key, addresses in joined:
            for address in addresses:
                row = come.get(address)
                if row is None:
                    come[address] = [key]
                else:
                    row.append(key)
        if not gone and not come:
            return self
        changes: dict[bytes, tuple[str, ...] | None] = {}
        held = len(self._keys) > 0
        for address, keys in come.items():
            known = [key for key in self.of(address) if key not in gone.get(address, ())] if held else ()
            changes[address] = tuple(sorted({*known, *keys})) if known or len(keys) > 1 else (keys[0],)
        for address, leaving in gone.items():
            if address not in come:
                changes[address] = tuple(key for key in self.of(address) if key not in leaving) or None
        after = ServiceAddresses()
        after._keys = self._keys.changed(changes)
        return after
