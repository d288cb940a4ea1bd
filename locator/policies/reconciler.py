# SPDX-License-Identifier: Apache-2.0

"""Compares the status that ServicePolicies should have with what they have, and returns the writes that are due.

The reconciler computes every write from the present state and never from an event: events may be late, duplicated or
lost. Each patch requires the version that the controller saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from locator.api.deltas import Delta, Drop, Put, Replace, precedes
from locator.control.workqueue import WorkQueue
from locator.index import Index
from locator.model import Namespaced, Node, Service
from locator.places.locations import LabelKeys
from locator.policies.conditions import conditions_of
from locator.policies.objects import POLICY_RESOURCES, ActualPolicy, policy_path, status_patch, wanted_status
from locator.topology.key_findings import CarriedKeys

# Compared before other tasks get a turn. One takes 10 ms if its namespace has 10,000 Services.
MAX_KEYS = 10


class StatusWrite(Struct, frozen=True):
    """The merge patch of the status of a ServicePolicy. It applies to one version only."""

    namespace: str
    name: str
    patch: dict[str, Any]
    verb: str = "patch"

    @property
    def key(self) -> str:
        """The key of the policy."""
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """The API path of the policy itself."""
        return policy_path(self.namespace, self.name)


class PolicyReconciler:
    """Holds ServicePolicies, Services and the label keys of Nodes, and a queue of the policies to compare.

    *wall* returns the time (RFC 3339).
    """

    def __init__(self, wall: Callable[[], str]) -> None:
        self.queue = WorkQueue()
        self._wall = wall
        self._unlisted: set[type[Any]] = set(POLICY_RESOURCES)
        self._objects: dict[type[Any], dict[str, Any]] = {kind: {} for kind in POLICY_RESOURCES}
        self._in_namespace: dict[type[Any], Index[str, Namespaced]] = {
            kind: Index(namespace=lambda item: (item.namespace,)) for kind in (ActualPolicy, Service)
        }
        self._changed: set[str] = set()  # namespaces whose policies, which constrain Services together, have changed
        self._keys = LabelKeys()
        self._carried = CarriedKeys()

    @property
    def unlisted(self) -> frozenset[type[Any]]:
        """The kinds that have not been listed yet. Until it is empty, no write is due."""
        return frozenset(self._unlisted)

    @property
    def object_counts(self) -> dict[str, int]:
        """The number of objects of each kind."""
        return {POLICY_RESOURCES[kind].name: len(objects) for kind, objects in self._objects.items()}

    def apply(self, delta: Delta) -> None:
        """Apply a delta from a list, a watch or the response to a write."""
        match delta:
            case Replace(kind=kind, objects=objects):
                gone = dict.fromkeys(self._objects[kind])
                for listed in objects:
                    gone.pop(listed.key, None)
                    self._update(kind, listed.key, listed)
                for key in gone:
                    self._update(kind, key, None)
                self._unlisted.discard(kind)
            case Put(object=ActualPolicy() as policy):
                known = self._objects[ActualPolicy].get(policy.key)
                if known is None or not precedes(policy.version, known.version):
                    self._update(ActualPolicy, policy.key, policy)
            case Put(object=changed):
                self._update(type(changed), changed.key, changed)
            case Drop(kind=kind, key=key):
                self._update(kind, key, None)

    def next_write(self, now: float) -> StatusWrite | None:
        """Return the next write. None if no key is due, or if the next MAX_KEYS keys need no write.

        The caller must call ``queue.done`` or ``queue.retry`` for the write's key.
        """
        if self._unlisted:
            return None
        self._follow_keys()
        self._enqueue_together()
        return self.queue.first(now, MAX_KEYS, self.write_for)

    def write_for(self, key: str) -> StatusWrite | None:
        """Return the write that the status of a policy needs now, None if it is as it should be."""
        actual: ActualPolicy | None = self._objects[ActualPolicy].get(key)
        if actual is None:
            return None
        policies = [other.policy for other in self._in(ActualPolicy, actual.namespace) if other.policy is not None]
        services = self._in(Service, actual.namespace) if actual.policy is not None else ()
        selected = [service for service in services if _selects(actual, service)]
        conditions = conditions_of(actual.policy, actual.findings, selected, policies, self._carried)
        wanted = wanted_status(actual, len(selected), conditions, self._wall())
        if wanted.items() <= actual.status.items():
            return None
        return StatusWrite(actual.namespace, actual.name, status_patch(actual, wanted))

    def _update(self, kind: type[Any], key: str, after: Any) -> None:
        """Record an object, None if it is gone, and enqueue the policies whose status may change with it."""
        objects = self._objects[kind]
        before = objects.get(key)
        if before == after:
            return
        if kind is Node and before is not None and after is not None and before.labels == after.labels:
            return  # its addresses
        if after is None:
            del objects[key]
        else:
            objects[key] = after
        if kind is Node:
            self._keys.move(*(None if node is None else node.labels for node in (before, after)))
            return
        self._in_namespace[kind].move(key, before, after)
        if kind is Service:
            self._enqueue_selecting(before, after)
        else:
            self._policy_changed(key, before, after)

    def _policy_changed(self, key: str, before: ActualPolicy | None, after: ActualPolicy | None) -> None:
        if after is None:
            self.queue.discard(key)  # a follower, which takes no key out, must forget it, too
        else:
            self.queue.add(key, urgent=True)
        known = [version for version in (before, after) if version is not None]
        if len(known) == 1 or known[0].policy != known[1].policy:
            self._changed.add(known[0].namespace)

    def _enqueue_together(self) -> None:
        """Enqueue the policies of the namespaces in which one has changed."""
        for namespace in self._changed:
            for actual in self._in(ActualPolicy, namespace):
                self.queue.add(actual.key)
        self._changed.clear()

    def _enqueue_selecting(self, *versions: Service | None) -> None:
        """Enqueue the policies that select a Service, before or after it changed."""
        known = [version for version in versions if version is not None]
        for actual in self._in(ActualPolicy, known[0].namespace):
            if any(_selects(actual, version) for version in known):
                self.queue.add(actual.key)

    def _follow_keys(self) -> None:
        """Enqueue the policies about whose key the nodes say something else than before."""
        if self._keys.carried is self._carried.keys:
            return
        before, self._carried = self._carried, CarriedKeys(self._keys.carried)
        for actual in self._objects[ActualPolicy].values():
            policy = actual.policy
            if policy is not None and before.nearest(policy.topology_key) != self._carried.nearest(policy.topology_key):
                self.queue.add(actual.key)

    def _in(self, kind: type[Any], namespace: str) -> Iterable[Any]:
        objects = self._objects[kind]
        return [objects[key] for key in self._in_namespace[kind].keys("namespace", namespace)]


def _selects(actual: ActualPolicy, service: Service) -> bool:
    return actual.policy is not None and actual.policy.selector.matches(service.labels)
