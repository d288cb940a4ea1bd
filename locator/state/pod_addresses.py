# SPDX-License-Identifier: Apache-2.0

"""The namespaces of the pods that have an address: what ``--pods verified`` checks pod names against."""

from __future__ import annotations

from locator.index import Index
from locator.model import Pod
from locator.places.address_map import AddressMap


class PodAddresses:
    """The addresses of running pods, kept up to date pod by pod."""

    def __init__(self) -> None:
        self._keys: Index[str, Pod] = Index(address=_addresses)
        self._changed: set[bytes] = set()

    def update(self, key: str, before: Pod | None, after: Pod | None) -> bool:
        """Record a change of a pod (None: it does not exist); return whether its addresses changed."""
        old = _addresses(before) if before is not None else frozenset[bytes]()
        new = _addresses(after) if after is not None else frozenset[bytes]()
        self._keys.move(key, before, after)
        self._changed |= old ^ new
        return old != new

    def start_from(self, kept: AddressMap[tuple[str, ...]]) -> None:
        """Compute all addresses of a kept result once more."""
        self._changed.update(address for address, _ in kept.items())

    def namespaces_after(self, before: AddressMap[tuple[str, ...]]) -> AddressMap[tuple[str, ...]]:
        """Return the current namespaces by address, sorted each; *before* is the last result."""
        after = {address: self._namespaces(address) or None for address in self._changed}
        self._changed = set()
        return before.with_changes({address: names for address, names in after.items() if names != before.get(address)})

    def _namespaces(self, address: bytes) -> tuple[str, ...]:
        return tuple(sorted({key.partition("/")[0] for key in self._keys.keys("address", address)}))


def _addresses(pod: Pod) -> frozenset[bytes]:
    return frozenset() if pod.finished else frozenset(pod.addresses)
