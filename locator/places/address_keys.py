# SPDX-License-Identifier: Apache-2.0

"""Which objects have an address, by their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from locator.ip import Network
from locator.places.address_map import AddressMap

Move = tuple[str, Iterable[bytes], Iterable[bytes]]  # the key of an object, the addresses it left, those it joined


class AddressKeys:
    """An immutable mapping from addresses to the keys of the objects of one kind that have them."""

    def __init__(self) -> None:
        # Most addresses have one key. The map holds that key itself, without a tuple around it.
        self._keys: AddressMap[str | tuple[str, ...]] = AddressMap()

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, address: bytes) -> tuple[str, ...]:
        """Return the keys of the objects that have *address*, sorted."""
        return _all(self._keys.get(address))

    def only(self, address: bytes) -> str | None:
        """Return the key of the object that has *address*, None if none has it, or more than one."""
        keys = self._keys.get(address)
        return keys if keys.__class__ is str else None

    def within(self, network: Network) -> Iterator[bytes]:
        """Yield the addresses in *network* that an object has, in no order."""
        return (address for address, _ in self._keys.within(network))

    def any_within(self, network: Network) -> bool:
        """Whether some object has an address in *network*."""
        return self._keys.any_within(network)

    def with_changes(self, moves: Iterable[Move]) -> AddressKeys:
        """Return a copy in which some objects left addresses, and then joined others; the mapping itself if none did.

        An object may be in *moves* once.
        """
        changes: dict[bytes, Any] = {}
        several: dict[bytes, set[str]] = {}  # also in changes: one address may have the keys of thousands of objects
        occupied = len(self._keys) > 0
        for key, left, joined in moves:
            for address in left:
                known = changes[address] if address in changes else self._keys.get(address)
                if known.__class__ is not set:
                    known = changes[address] = several[address] = {*_all(known)}
                known.discard(key)
            for address in joined:
                if occupied and address not in changes:
                    changes[address] = self._keys.get(address)
                known = changes.setdefault(address, key)
                if known is None:
                    changes[address] = key
                elif known.__class__ is set:
                    known.add(key)
                elif known is not key:
                    changes[address] = several[address] = {*_all(known), key}
        if not changes:
            return self
        changes.update((address, _shortest(keys)) for address, keys in several.items())
        after = AddressKeys()
        after._keys = self._keys.with_changes(changes)
        return after


def _all(keys: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else keys or ()


def _shortest(keys: Iterable[str]) -> str | tuple[str, ...] | None:
    ordered = tuple(sorted(keys))
    return ordered if len(ordered) > 1 else ordered[0] if ordered else None
