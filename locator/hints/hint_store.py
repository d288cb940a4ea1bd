# SPDX-License-Identifier: Apache-2.0

"""What the webhook knows of the cluster: nodes, Services, ServicePolicies and EndpointSlices.

It answers which hints a slice should have, and says after each change whose hints may have to change.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from locator.api.deltas import Delta, Drop, Put, Replace
from locator.hints.objects import WEBHOOK_RESOURCES, HintedSlice
from locator.hints.wanted import constraint_of, wanted_hints
from locator.hints.zones import Zones
from locator.index import Index
from locator.model import Hints, Node, Service, ServicePolicy, in_cluster
from locator.places.locations import Locations


def _services(one: HintedSlice) -> Iterable[str]:
    return (one.service_key,) if one.service else ()


def _nodes(one: HintedSlice) -> Iterable[str]:
    endpoints = (item.endpoint for item in one.endpoints if item.endpoint is not None)
    return {node for endpoint in endpoints for node in (endpoint.node, endpoint.target_node) if node}


class _Scope(NamedTuple):
    """The slices that an index has under some values."""

    by: str
    values: frozenset[str]


_NONE = _Scope("service", frozenset())
_ALL = _Scope("all", frozenset())


class HintStore:
    """The objects of the cluster that hints depend on. Deltas may come late, twice or not at all."""

    def __init__(self) -> None:
        self._unlisted: set[type[Any]] = set(WEBHOOK_RESOURCES)
        self._objects: dict[type[Any], dict[str, Any]] = {kind: {} for kind in WEBHOOK_RESOURCES}
        self._policies: Index[str, ServicePolicy] = Index(namespace=lambda policy: (policy.namespace,))
        self._slices: Index[str, HintedSlice] = Index(
            service=_services, node=_nodes, namespace=lambda one: (one.namespace,)
        )
        self._zones = Zones()
        self._locations = Locations()
        # The Service whose hints were asked for last, and these: its slices are asked for one after the other.
        self._latest: tuple[str, dict[str, tuple[Hints | None, ...]]] | None = None

    @property
    def unlisted(self) -> frozenset[type[Any]]:
        """The kinds that have not been listed yet. Until it is empty, no hints are known."""
        return frozenset(self._unlisted)

    @property
    def object_counts(self) -> dict[str, int]:
        """The number of objects of each kind."""
        return {WEBHOOK_RESOURCES[kind].name: len(objects) for kind, objects in self._objects.items()}

    def slice(self, key: str) -> HintedSlice | None:
        """Return a slice, None if there is none."""
        found: HintedSlice | None = self._objects[HintedSlice].get(key)
        return found

    @property
    def slice_keys(self) -> KeysView[str]:
        """The keys of all slices."""
        return self._objects[HintedSlice].keys()

    def opted_in(self) -> list[str]:
        """Return the keys of all slices that ask for hints."""
        return self._asking(self._objects[HintedSlice])

    def wanted(self, one: HintedSlice) -> tuple[Hints | None, ...] | None:
        """Return the hints that the endpoints of a slice should have; None if they are to stay as they are.

        They stay if the slice does not ask for hints, if its Service is not known, and while a kind is unlisted.
        *one* may be newer than the slice of that name in the store; the Service's other slices come from the store.
        """
        service = self._objects[Service].get(one.service_key)
        if self._unlisted or not one.opted_in or service is None:
            return None
        if one is not self.slice(one.key):
            return self._hints_of(service, one)[one.name]
        if self._latest is None or self._latest[0] != one.service_key:
            self._latest = one.service_key, self._hints_of(service)
        return self._latest[1][one.name]

    def _hints_of(self, service: Service, newer: HintedSlice | None = None) -> dict[str, tuple[Hints | None, ...]]:
        """Return the hints of all slices of a Service by their names; *newer* is a slice not yet in the store."""
        slices = {key: self._objects[HintedSlice][key] for key in self._slices.keys("service", service.key)}
        if newer is not None:
            slices[newer.key] = newer
        in_order = [slices[key] for key in sorted(slices)]
        hints = wanted_hints(
            in_order,
            constraint_of(service, self._policies_in(service.namespace)),
            self._zones.locations,
            lambda endpoint: self._locations.of_endpoint(service.namespace, endpoint),
        )
        return {one.name: row for one, row in zip(in_order, hints, strict=True)}

    def apply(self, delta: Delta) -> list[str]:
        """Apply a delta; return the keys of the slices that ask for hints and whose hints may have to change."""
        self._latest = None
        match delta:
            case Replace(kind=kind, objects=objects):
                gone = dict.fromkeys(self._objects[kind])
                scopes = set()
                for listed in objects:
                    gone.pop(listed.key, None)
                    scopes.add(self._update(kind, listed.key, listed))
                scopes.update(self._update(kind, key, None) for key in gone)
                self._unlisted.discard(kind)
                return self.opted_in() if scopes - {_NONE} else []
            case Put(object=changed):
                return self._inside(self._update(type(changed), changed.key, changed))
            case Drop(kind=kind, key=key):
                return self._inside(self._update(kind, key, None))

    def _update(self, kind: type[Any], key: str, after: Any) -> _Scope:
        """Record an object, None if it is gone; return what may change with it."""
        objects = self._objects[kind]
        before = objects.get(key)
        if isinstance(after, Node):
            after = replace(after, labels=in_cluster(after.labels, self._locations.cluster))
        if before == after:
            return _NONE
        if after is None:
            del objects[key]
        else:
            objects[key] = after
        if kind is HintedSlice:
            self._slices.move(key, before, after)
            if before is not None and after is not None and replace(before, version=after.version) == after:
                return _NONE
            return _Scope("service", frozenset(one.service_key for one in (before, after) if one is not None))
        if kind is Node:
            return self._node_changed(key, before, after)
        if kind is ServicePolicy:
            self._policies.move(key, before, after)
            return _Scope("namespace", frozenset(((before or after).namespace,)))
        return _Scope("service", frozenset((key,)))

    def _node_changed(self, name: str, before: Node | None, after: Node | None) -> _Scope:
        """Record a node's labels; its heartbeats, addresses and pod CIDRs change no hints."""
        if before is not None and after is not None and before.labels == after.labels:
            return _NONE
        self._locations.update_node(name, after)
        if self._zones.update_node(name, None if after is None else after.labels):
            return _ALL
        slices = (self._objects[HintedSlice][key] for key in self._slices.keys("node", name))
        return _Scope("service", frozenset(one.service_key for one in slices))

    def _inside(self, scope: _Scope) -> list[str]:
        """Return the keys of the slices in a scope that ask for hints."""
        if scope == _ALL:
            return self.opted_in()
        return self._asking(key for value in scope.values for key in self._slices.keys(scope.by, value))

    def _asking(self, keys: Iterable[str]) -> list[str]:
        slices = self._objects[HintedSlice]
        return sorted(key for key in keys if slices[key].opted_in)

    def _policies_in(self, namespace: str) -> Sequence[ServicePolicy]:
        return [self._objects[ServicePolicy][key] for key in sorted(self._policies.keys("namespace", namespace))]
