# SPDX-License-Identifier: Apache-2.0

"""Which hints the EndpointSlices of a cluster should carry, for admission reviews and for the leader's writes alike.

A slice passes the webhook only when somebody writes it. If a node, a constraint or a policy changes, nobody does:
the leader's writes are for that. They carry the hints themselves, and require the version that they were computed from.
So they work while the API server does not reach the webhook; an empty write, left for the webhook to fill, would not.

While the API server does not call the webhook, Kubernetes' EndpointSlice controller takes the hints away again. So a
slice rests between two writes.

Before version 1.34, the API server drops hints for nodes, without a word. So the leader learns for each slice whether
they last, and does not write for their sake what would be dropped again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from locator.api.decoding import Resource
from locator.control.reconciler import KnownObjects, Later, ObjectChange, Rules
from locator.control.writes import Write, json_patch
from locator.hints.slices import HINT_RESOURCES, HintedSlice, hints_patch
from locator.hints.wanted import constraint_of, wanted_hints
from locator.hints.zones import Zones
from locator.index import Index
from locator.model import Hints, Node, Service, ServicePolicy, in_cluster
from locator.places.locations import Locations

REST_SECONDS = 5.0  # between two writes of one slice
NODE_TRIES = 3  # writes after which hints for nodes count as dropped, and not as undone by a replica that knew less


def _nodes(one: HintedSlice) -> Iterable[str]:
    endpoints = (item.endpoint for item in one.endpoints if item.endpoint is not None)
    return {node for endpoint in endpoints for node in (endpoint.node, endpoint.target_node) if node}


class HintRules(Rules):
    """Compares the hints of slices with what nodes, Services and ServicePolicies ask for."""

    resources: Mapping[type[Any], Resource] = HINT_RESOURCES
    writes: type[Any] = HintedSlice
    urgent: Collection[type[Any]] = ()

    def __init__(self) -> None:
        self.objects = KnownObjects(HINT_RESOURCES, keep=self._keep)
        self._policies: Index[str, ServicePolicy] = Index(namespace=lambda policy: (policy.namespace,))
        self._slices: Index[str, HintedSlice] = Index(
            service=lambda one: (one.service_key,) if one.service else (),
            node=_nodes,
            namespace=lambda one: (one.namespace,),
        )
        self._zones = Zones()
        self._locations = Locations()
        self._written: OrderedDict[str, float] = OrderedDict()  # when the slices were written that may rest
        self._lost_nodes: Counter[str] = Counter()  # by slice: writes that came back without hints for nodes
        # The Service whose hints were asked for last, and these: its slices are asked for one after the other.
        self._latest: tuple[str, dict[str, tuple[Hints | None, ...]]] | None = None

    def wanted(self, one: HintedSlice) -> tuple[Hints | None, ...] | None:
        """Return the hints that the endpoints of a slice should have; None if they are to stay as they are.

        They stay if the slice does not ask for hints, if its Service is not known, and until everything is listed.
        *one* may be newer than the known slice of that name; the Service's other slices are the known ones.
        """
        service: Service | None = self.objects.get(Service, one.service_key)
        if not self.objects.has_synced or not one.opted_in or service is None:
            return None
        if one is not self.objects.get(HintedSlice, one.key):
            return self._hints_of(service, one)[one.name]
        if self._latest is None or self._latest[0] != one.service_key:
            self._latest = one.service_key, self._hints_of(service)
        return self._latest[1][one.name]

    def changed(self, change: ObjectChange) -> Iterable[str]:
        """Return the slices that ask for hints and whose hints may have to change, and one that is gone."""
        self._latest = None
        kind, key, before, after = change.kind, change.key, change.before, change.after
        if kind is HintedSlice:
            self._slices.move(key, before, after)
            if after is None or any(endpoint.hints and endpoint.hints.nodes for endpoint in after.endpoints):
                del self._lost_nodes[key]  # a Counter does not mind if there is none
            if before is not None and after is not None and replace(before, version=after.version) == after:
                return ()
            return [key, *self._slices_of({one.service_key for one in (before, after) if one is not None})]
        if kind is ServicePolicy:
            self._policies.move(key, before, after)
            return self._asking(self._slices.keys("namespace", (before or after).namespace))
        if kind is Node:
            return self._node_changed(key, after)
        return self._slices_of((key,))

    def exists(self, key: str) -> bool:
        """Whether the slice exists and asks for hints."""
        one: HintedSlice | None = self.objects.get(HintedSlice, key)
        return one is not None and one.opted_in

    def write_for(self, key: str, now: float) -> Write | Later | None:
        """Return the write that a slice needs. None if its hints are right, or are to stay as they are."""
        actual: HintedSlice | None = self.objects.get(HintedSlice, key)
        patch = [] if actual is None else self._patch(actual)
        if actual is None or not patch:
            return None
        if key in self._written and now < self._written[key] + REST_SECONDS:
            return Later(self._written[key] + REST_SECONDS)
        return json_patch(HINT_RESOURCES[HintedSlice], key, actual.version, patch)

    def written(self, write: Write, found: HintedSlice | None, began: float) -> bool:
        """Let a slice rest that was written. Return False for one whose hints are not right.

        At admission, a replica that does not know the latest change has put the old hints back.
        """
        if found is not None and self._patch(found):
            if not self._patch(found, nodes=False):
                self._lost_nodes[write.key] += 1
            return False
        while self._written and next(iter(self._written.values())) + REST_SECONDS <= began:
            self._written.popitem(last=False)
        self._written[write.key] = began
        return True

    def _patch(self, one: HintedSlice, *, nodes: bool = True) -> list[dict[str, Any]]:
        """Return the patch that a slice needs; without *nodes*, or where they do not last, of its hints for zones."""
        wanted = self.wanted(one)
        if wanted is None:
            return []
        if not nodes or self._lost_nodes[one.key] >= NODE_TRIES:
            wanted = tuple(hints and replace(hints, nodes=()) for hints in wanted)
        return hints_patch(one, wanted)

    def _hints_of(self, service: Service, newer: HintedSlice | None = None) -> dict[str, tuple[Hints | None, ...]]:
        """Return the hints of all slices of a Service by their names; *newer* is a slice that is not known yet."""
        slices = {key: self.objects.get(HintedSlice, key) for key in self._slices.keys("service", service.key)}
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

    def _policies_in(self, namespace: str) -> Sequence[ServicePolicy]:
        return [self.objects.get(ServicePolicy, key) for key in sorted(self._policies.keys("namespace", namespace))]

    def _keep(self, found: Any) -> Any:
        """Return an object; of a node, what hints depend on, so that its heartbeats are no changes."""
        if isinstance(found, Node):
            return Node(found.name, in_cluster(found.labels, self._locations.cluster))
        return found

    def _node_changed(self, name: str, after: Node | None) -> Iterable[str]:
        self._locations.update_node(name, after)
        if self._zones.update_node(name, None if after is None else after.labels):
            return self._asking(self.objects.of_kind(HintedSlice))
        slices = (self.objects.get(HintedSlice, key) for key in self._slices.keys("node", name))
        return self._slices_of({one.service_key for one in slices})

    def _slices_of(self, services: Iterable[str]) -> Iterable[str]:
        return self._asking(key for service in services for key in self._slices.keys("service", service))

    def _asking(self, keys: Iterable[str]) -> Iterable[str]:
        """Return those slices that ask for hints, in order. Until everything is listed, each waits for its own sake."""
        return sorted(filter(self.exists, keys)) if self.objects.has_synced else ()
