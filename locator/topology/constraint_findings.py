"""The findings about what Services and ServicePolicies ask for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

from locator.finding_codes import ClusterCode
from locator.model import Finding, Service, ServicePolicy
from locator.topology.annotations import valid_health
from locator.topology.constraints import (
    ANNOTATION,
    ANNOTATIONS,
    FIELD,
    HEALTH,
    IGNORED,
    MAX_KEYS,
    MIN_ENDPOINTS,
    POLICY,
    TOPOLOGY_KEYS,
    Declaration,
    heard,
    min_endpoints,
)

# The sources that this project, or the user, writes into the object: their faults are findings about the Service.
SOURCE_FIELDS = {
    POLICY: "metadata.labels",
    ANNOTATION: f"metadata.annotations[{TOPOLOGY_KEYS}]",
    FIELD: "spec.topologyKeys",
}


def service_findings(service: Service, declarations: Sequence[Declaration]) -> Iterator[Finding]:
    """Yield the findings about the constraint and the annotations of *service*."""

    def finding(code: ClusterCode, field: str, message: str, expected: str) -> Finding:
        return code.finding("Service", service.namespace, service.name, field=field, message=message, expected=expected)

    declaration = heard(declarations)
    if declaration is not None and declaration.source in SOURCE_FIELDS:
        field = SOURCE_FIELDS[declaration.source]
        if declaration.error is not None:
            code = ClusterCode.InvalidTopologyKeys
            expected = f"at most {MAX_KEYS} distinct label keys, '*' only last, no externalTrafficPolicy: Local"
            if declaration.source == POLICY:
                code = ClusterCode.InvalidServicePolicy
                expected = f"valid policies, at most {MAX_KEYS} keys in all, no externalTrafficPolicy: Local"
            yield finding(code, field, f"invalid constraint: {declaration.error}", expected)
        elif declaration.without_effect is not None:
            expected = "clusterIP: None" if not service.headless else f"the annotation {TOPOLOGY_KEYS}"
            message = f"constraint without effect: {declaration.without_effect}"
            yield finding(ClusterCode.ConstraintWithoutEffect, field, message, expected)
    if min_endpoints(service) is None:
        message = f"{service.annotations[MIN_ENDPOINTS]!r} counts as 1"
        field = f"metadata.annotations[{MIN_ENDPOINTS}]"
        yield finding(ClusterCode.InvalidMinEndpoints, field, message, "a whole number from 1")
    health = service.annotations.get(HEALTH)
    if health is not None and not valid_health(health):
        message, field = f"{health!r} counts as none", f"metadata.annotations[{HEALTH}]"
        yield finding(ClusterCode.InvalidHealth, field, message, "tcp, tcp:PORT or http:PORT/PATH")
    for name in service.annotations:
        if name not in ANNOTATIONS:
            nearest = difflib.get_close_matches(name, ANNOTATIONS, 1, 0.0)[0]
            field = f"metadata.annotations[{name}]"
            yield finding(ClusterCode.UnknownAnnotation, field, "unknown annotation", nearest)


_INVALID = {ClusterCode.InvalidTopologyKeys.name, ClusterCode.InvalidServicePolicy.name}


def is_invalid_constraint(finding: Finding) -> bool:
    """Whether a finding says that the constraint of a Service is invalid."""
    return finding.kind == "Service" and finding.code in _INVALID


def policy_findings(policies: Iterable[ServicePolicy], services: Sequence[Service]) -> Iterator[Finding]:
    """Yield a finding for each policy of a namespace that selects none of the namespace's *services*."""
    for policy in policies:
        if policy.mode != IGNORED and not any(policy.selector.matches(service.labels) for service in services):
            yield ClusterCode.PolicySelectsNothing.finding(
                "ServicePolicy",
                policy.namespace,
                policy.name,
                field="spec.serviceSelector",
                message="policy without effect: it selects no Service",
            )
