"""The Services of an address: what PTR queries and reverse zones need."""

from __future__ import annotations

from collections.abc import Iterable

from locator.ip import Network
from locator.places.address_map import AddressMap

Addresses = Iterable[tuple[str, Iterable[bytes]]]  # Services by key, each with some addresses


class ServiceAddresses:
    """An immutable mapping from addresses to the Services that have them, as a cluster IP or by a ready endpoint.

    Services are given by their keys (``namespace/name``).
    """

    def __init__(self) -> None:
        self._keys: AddressMap[tuple[str, ...]] = AddressMap()

    def of(self, address: bytes) -> tuple[str, ...]:
        """Return the keys of the Services that have *address*, sorted."""
        return self._keys.get(address) or ()

    def addresses(self) -> set[bytes]:
        """Return every address that a Service has."""
        return {address for address, _ in self._keys.items()}

    def any_within(self, network: Network) -> bool:
        """Whether some Service has an address in *network*."""
        return self._keys.any_within(network)

    def with_changes(self, *, left: Addresses, joined: Addresses) -> ServiceAddresses:
        """Return a copy in which some Services *left* addresses and some *joined*; the mapping itself if none did."""
        leaving: dict[bytes, set[str]] = {}
        joining: dict[bytes, list[str]] = {}
        for key, addresses in left:
            for address in addresses:
                leaving.setdefault(address, set()).add(key)
        for key, addresses in joined:
            for address in addresses:
                keys = joining.get(address)
                if keys is None:
                    joining[address] = [key]
                else:
                    keys.append(key)
        if not leaving and not joining:
            return self
        changes: dict[bytes, tuple[str, ...] | None] = {}
        occupied = len(self._keys) > 0
        for address, keys in joining.items():
            known = [key for key in self.of(address) if key not in leaving.get(address, ())] if occupied else ()
            changes[address] = tuple(sorted({*known, *keys})) if known or len(keys) > 1 else (keys[0],)
        for address, leavers in leaving.items():
            if address not in joining:
                changes[address] = tuple(key for key in self.of(address) if key not in leavers) or None
        after = ServiceAddresses()
        after._keys = self._keys.with_changes(changes)
        return after
