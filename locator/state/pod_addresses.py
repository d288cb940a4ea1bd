"""In which namespaces a pod has an address: what names that are made from addresses are verified by."""

from __future__ import annotations

from locator.index import Index
from locator.model import Pod
from locator.places.address_map import AddressMap


class PodAddresses:
    """In which namespaces running pods have an address."""

    def __init__(self) -> None:
        self._keys: Index[str, Pod] = Index(address=_addresses)
        self._changed: set[bytes] = set()

    def take(self, key: str, before: Pod | None, after: Pod | None) -> bool:
        """Note that a pod is *after* now, None if it is gone; return whether it has other addresses."""
        left = _addresses(before) if before is not None else frozenset[bytes]()
        joined = _addresses(after) if after is not None else frozenset[bytes]()
        self._keys.move(key, before, after)
        self._changed |= left ^ joined
        return left != joined

    def namespaces_after(self, before: AddressMap[tuple[str, ...]]) -> AddressMap[tuple[str, ...]]:
        """Return the namespaces by address as they are now, from those *before*."""
        after = {address: self._namespaces(address) or None for address in self._changed}
        self._changed = set()
        return before.changed({address: found for address, found in after.items() if found != before.get(address)})

    def _namespaces(self, address: bytes) -> tuple[str, ...]:
        return tuple(sorted({key.partition("/")[0] for key in self._keys.keys("address", address)}))


def _addresses(pod: Pod) -> frozenset[bytes]:
    return frozenset() if pod.finished else frozenset(pod.addresses)
