# SPDX-License-Identifier: Apache-2.0

"""ServicePolicies as the controller reads them, with their status, and the patches of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.json import Decoder

from locator.api import schema
from locator.api.conversion import to_service_policy
from locator.api.decoding import NODE_METADATA, RESOURCES, Resource
from locator.api.finding_collector import FindingCollector
from locator.model import Finding, Namespaced, Node, Service, ServicePolicy
from locator.policies.conditions import PolicyCondition


class ActualPolicy(Namespaced, frozen=True):
    """A ServicePolicy as it is in the API.

    ``policy`` is None if its selector is invalid, and ``findings`` say what is wrong in it. ``status`` is as written,
    empty if nobody has written it. ``version`` is its resourceVersion, so two versions with the same content differ.
    """

    version: str
    generation: int
    policy: ServicePolicy | None
    findings: tuple[Finding, ...] = ()
    status: dict[str, Any] = {}


def wanted_status(
    actual: ActualPolicy, services: int, conditions: Iterable[PolicyCondition], now: str
) -> dict[str, Any]:
    """Return the status that a policy should have: the number of *services* that it selects, and its *conditions*.

    ``lastTransitionTime`` stays as it is unless a condition begins or ceases to hold, which it then does *now* (RFC
    3339). Conditions of other types, which somebody else keeps, stay.
    """
    before = {condition["type"]: condition for condition in actual.status.get("conditions") or ()}
    after = {condition.type: _condition(condition, before.get(condition.type), actual, now) for condition in conditions}
    return {
        "observedGeneration": actual.generation,
        "services": services,
        "conditions": list({**before, **after}.values()),
    }


def _condition(
    condition: PolicyCondition, before: Mapping[str, Any] | None, actual: ActualPolicy, now: str
) -> dict[str, Any]:
    status = str(condition.holds)
    unchanged = before is not None and before["status"] == status
    return {
        "type": condition.type,
        "status": status,
        "observedGeneration": actual.generation,
        "lastTransitionTime": before["lastTransitionTime"] if before is not None and unchanged else now,
        "reason": condition.reason,
        "message": condition.message,
    }


class _GeneratedMeta(schema.Meta):
    generation: int | None = None


class _PolicyJson(schema.ServicePolicy):
    metadata: _GeneratedMeta
    status: dict[str, Any] | None = None


def _actual_policy(raw: _PolicyJson, collector: FindingCollector) -> ActualPolicy:
    policy = to_service_policy(raw, collector)
    return ActualPolicy(
        namespace=raw.metadata.namespace or "default",
        name=raw.metadata.name or "",
        version=raw.metadata.version or "",
        generation=raw.metadata.generation or 0,
        policy=policy,
        findings=tuple(collector),
        status=raw.status or {},
    )


POLICY_RESOURCES: Mapping[type[Any], Resource] = {
    Node: NODE_METADATA,
    Service: RESOURCES[Service],
    ActualPolicy: RESOURCES[ServicePolicy]._replace(decoder=Decoder(_PolicyJson), build=_actual_policy),
}
