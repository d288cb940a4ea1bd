"""In which namespaces a pod has an address: what names that are made from addresses are verified by."""

from __future__ import annotations

from locator.model import Pod
from locator.places.address_map import AddressMap


class PodAddresses:
    """In which namespaces running pods have an address."""

    def __init__(self) -> None:
        self._at: dict[bytes, tuple[str, ...]] = {}  # once for each pod
        self._changed: set[bytes] = set()

    def take(self, before: Pod | None, after: Pod | None) -> bool:
        """Note that a pod is *after* now, None if it is gone; return whether it has other addresses."""
        left, joined = _addresses(before), _addresses(after)
        for address in left - joined:
            row = list(self._at.pop(address))
            row.remove(before.namespace)  # type: ignore[union-attr]
            if row:
                self._at[address] = tuple(row)
        for address in joined - left:
            self._at[address] = (*self._at.get(address, ()), after.namespace)  # type: ignore[union-attr]
        self._changed |= left ^ joined
        return left != joined

    def settled(self, before: AddressMap[tuple[str, ...]]) -> AddressMap[tuple[str, ...]]:
        """Return the namespaces by address as they are now, from those *before*."""
        after = {each: tuple(sorted(set(self._at.get(each, ())))) or None for each in self._changed}
        self._changed = set()
        return before.changed({each: found for each, found in after.items() if found != before.get(each)})


def _addresses(pod: Pod | None) -> frozenset[bytes]:
    return frozenset() if pod is None or pod.finished else frozenset(pod.addresses)
