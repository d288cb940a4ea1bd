# SPDX-License-Identifier: Apache-2.0

"""Which topology keys tell nodes of one zone apart, so that hints for zones cannot say them."""

from __future__ import annotations

from collections.abc import Sequence

from locator.index import Relation
from locator.model import SUCCESSORS, Node
from locator.state.objects import Objects


class SplitZones:
    """The zones of a cluster that topology keys split, for the keys of the Services that hints should serve."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._by_key: dict[str, tuple[str, ...]] = {}  # of the keys that a Service has
        self._keys: Relation[str, str] = Relation()  # of each Service

    def ask(self, service: str, keys: tuple[str, ...]) -> None:
        """Record the keys that the hints of a Service should say; none if it asks for no hints."""
        before = self._keys.values_of(service)
        self._keys.set(service, keys)
        for key in before:
            if not self._keys.keys_of(key):
                self._by_key.pop(key, None)

    def of_key(self, key: str) -> Sequence[str]:
        """Return the zones whose nodes do not all have one value of a key that a Service has, in order."""
        if key not in self._by_key:
            self._by_key[key] = self._split_by(key)
        return self._by_key[key]

    def renew(self) -> set[str]:
        """Look again, after nodes have changed; return the Services for which that makes a difference."""
        asked = set(self._keys.values())
        before, self._by_key = self._by_key, {key: self._split_by(key) for key in asked}
        changed = (key for key in asked if self._by_key[key] != before.get(key))
        return {service for key in changed for service in self._keys.keys_of(key)}

    def _split_by(self, key: str) -> tuple[str, ...]:
        nodes, key = self._objects.of(Node), SUCCESSORS.get(key, key)
        return tuple(
            zone
            for zone in sorted(self._objects.zones() - {""})
            if len({nodes[name].labels.get(key) for name in self._objects.nodes_in(zone)}) > 1
        )
