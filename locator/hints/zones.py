# SPDX-License-Identifier: Apache-2.0

"""The topology zones of the cluster's nodes, and which labels all nodes of a zone share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from locator.model import ZONE, Location


class Zones:
    """The location of each zone: the labels that all of its nodes share, the zone's own among them.

    Hints cannot tell the nodes of a zone apart. So this is all that a constraint may look at.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, str]] = {}  # by name: the canonical labels of the nodes in a zone
        self._members: dict[str, set[str]] = {}  # zone -> names of its nodes
        self._counts: dict[str, Counter[tuple[str, str]]] = {}  # zone -> label and value -> nodes that have it
        self._locations: dict[str, Location] = {}

    @property
    def locations(self) -> Mapping[str, Location]:
        """The location of every zone that has a node, by the zone's name."""
        return MappingProxyType(self._locations)

    def update_node(self, name: str, labels: dict[str, str] | None) -> bool:
        """Record a node's canonical *labels*, None if it is deleted; return whether the location of a zone changed."""
        before = self._nodes.pop(name, None)
        if before == labels:
            if before is not None:
                self._nodes[name] = before
            return False
        changed = False
        zones = []
        if before is not None:
            zones.append(self._leave(name, before))
        if labels is not None and labels.get(ZONE):
            self._nodes[name] = labels
            zones.append(self._join(name, labels))
        for zone in dict.fromkeys(zones):
            changed |= self._locate(zone)
        return changed

    def _join(self, name: str, labels: dict[str, str]) -> str:
        zone = labels[ZONE]
        self._members.setdefault(zone, set()).add(name)
        self._counts.setdefault(zone, Counter()).update(labels.items())
        return zone

    def _leave(self, name: str, labels: dict[str, str]) -> str:
        zone = labels[ZONE]
        self._members[zone].discard(name)
        counts = self._counts[zone]
        for item in labels.items():
            counts[item] -= 1
            if not counts[item]:
                del counts[item]
        return zone

    def _locate(self, zone: str) -> bool:
        """Renew the location of a zone; return whether it changed."""
        before, members = self._locations.get(zone), self._members[zone]
        if not members:
            del self._members[zone], self._counts[zone], self._locations[zone]
            return True
        counts = self._counts[zone]
        some = self._nodes[next(iter(members))]
        shared = {key: value for key, value in some.items() if counts[key, value] == len(members)}
        if before is not None and before.labels == shared:
            return False
        self._locations[zone] = Location(None, shared)
        return True
