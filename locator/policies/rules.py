# SPDX-License-Identifier: Apache-2.0

"""Which status the ServicePolicies of a cluster should have: whether each is accepted, and whether effective.

Nothing depends on the status. So a cluster without the CRD, and an account without these rights, have none, and all
else goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from locator.api.decoding import Resource
from locator.control.reconciler import KnownObjects, ObjectChange, Rules
from locator.control.writes import Write, merge_patch
from locator.index import Index
from locator.model import Namespaced, Node, Service
from locator.places.locations import LabelKeys
from locator.policies.conditions import conditions_of
from locator.policies.status import POLICY_RESOURCES, ActualPolicy, wanted_status
from locator.topology.service_checks import CarriedKeys


class PolicyRules(Rules):
    """Compares the status of ServicePolicies with what follows from them, Services and the label keys of Nodes.

    *timestamp* returns the time (RFC 3339).
    """

    resources: Mapping[type[Any], Resource] = POLICY_RESOURCES
    writes: type[Any] = ActualPolicy
    urgent: Collection[type[Any]] = (ActualPolicy,)

    def __init__(self, timestamp: Callable[[], str]) -> None:
        self.objects = KnownObjects(POLICY_RESOURCES, keep=_keep)
        self._timestamp = timestamp
        self._in_namespace: dict[type[Any], Index[str, Namespaced]] = {
            kind: Index(namespace=lambda item: (item.namespace,)) for kind in (ActualPolicy, Service)
        }
        self._keys = LabelKeys()
        self._carried = CarriedKeys()

    def changed(self, change: ObjectChange) -> Iterable[str]:
        """Return the policies whose status may change. Until everything is listed, each waits for its own sake."""
        kind, key = change.kind, change.key
        if kind is Node:
            self._keys.move(change.before, change.after)
            return self._follow_keys() if self.objects.has_synced else ()
        self._in_namespace[kind].move(key, change.before, change.after)
        known = [version for version in (change.before, change.after) if version is not None]
        if not self.objects.has_synced:
            return (key,) if kind is ActualPolicy else ()
        others: Iterable[ActualPolicy] = self._in(ActualPolicy, known[0].namespace)
        if kind is Service:
            return [actual.key for actual in others if any(_selects(actual, version) for version in known)]
        if len(known) == 2 and known[0].policy == known[1].policy:
            return (key,)
        return [key, *(actual.key for actual in others)]  # policies constrain Services together

    def exists(self, key: str) -> bool:
        """Whether there is such a policy."""
        return self.objects.get(ActualPolicy, key) is not None

    def write_for(self, key: str, now: float) -> Write | None:
        """Return the write that the status of a policy needs, None if it is as it should be."""
        actual: ActualPolicy | None = self.objects.get(ActualPolicy, key)
        if actual is None:
            return None
        policies = [other.policy for other in self._in(ActualPolicy, actual.namespace) if other.policy is not None]
        services = self._in(Service, actual.namespace) if actual.policy is not None else ()
        selected = [service for service in services if _selects(actual, service)]
        conditions = conditions_of(actual.policy, actual.findings, selected, policies, self._carried_keys())
        wanted = wanted_status(actual, len(selected), conditions, self._timestamp())
        if wanted.items() <= actual.status.items():
            return None
        resource = POLICY_RESOURCES[ActualPolicy]
        return merge_patch(resource, key, actual.version, {"status": wanted}, subresource="/status")

    def _follow_keys(self) -> Iterable[str]:
        """Return the policies about whose key the nodes say something else than before."""
        before, after = self._carried, self._carried_keys()
        if before is after:
            return ()
        policies: Iterable[ActualPolicy] = self.objects.of_kind(ActualPolicy).values()
        keys = [(actual.key, actual.policy.topology_key) for actual in policies if actual.policy is not None]
        return [name for name, key in keys if before.nearest(key) != after.nearest(key)]

    def _carried_keys(self) -> CarriedKeys:
        if self._keys.carried is not self._carried.keys:
            self._carried = CarriedKeys(self._keys.carried)
        return self._carried

    def _in(self, kind: type[Any], namespace: str) -> Iterable[Any]:
        return [self.objects.get(kind, key) for key in self._in_namespace[kind].keys("namespace", namespace)]


def _keep(found: Any) -> Any:
    """Return an object; of a Node, its labels."""
    return found.labels if isinstance(found, Node) else found


def _selects(actual: ActualPolicy, service: Service) -> bool:
    return actual.policy is not None and actual.policy.selector.matches(service.labels)
