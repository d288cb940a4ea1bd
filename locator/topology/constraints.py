"""What a Service asks for: the sources of constraints, their precedence, and their validity.

``READERS`` holds the sources in order of precedence; a new source is one more reader in it. The first source that
declares a constraint decides, even if the constraint is invalid: topodns never falls back to a later source.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from locator.finding_codes import ClusterCode
from locator.labels import valid_label_key
from locator.model import Finding, Service, ServicePolicy
from locator.topology.annotations import trimmed, valid_health
from locator.topology.selection import ANY, Constraint, FirstMatch, Narrowing, Unconstrained

MAX_KEYS = 16  # KEP-536

PREFIX = "topodns.io/"
TOPOLOGY_KEYS = "topodns.io/topology-keys"
MIN_ENDPOINTS = "topodns.io/min-endpoints"
HEALTH = "topodns.io/health"
FEDERATED = "topodns.io/federated"
ANNOTATIONS = (TOPOLOGY_KEYS, MIN_ENDPOINTS, HEALTH, FEDERATED)

REQUIRED, PREFERRED, IGNORED = "required", "preferred", "ignored"
MODES = (REQUIRED, PREFERRED, IGNORED)  # of a ServicePolicy

POLICY = "policy"
ANNOTATION = "annotation"
FIELD = "field"
ZONAL_NAME = "zonal-name"  # the queried name declares it, not the Service


class Declaration(Struct, frozen=True):
    """The constraint that one source declares for a Service, valid or not.

    ``error`` says why it is invalid, None if it is valid. ``without_effect`` says why it cannot change a DNS answer,
    None if it can. ``policies`` are the names of the ServicePolicies that declare it, in the order of their keys.
    """

    source: str
    constraint: Constraint
    error: str | None = None
    without_effect: str | None = None
    policies: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether the constraint obeys the rules."""
        return self.error is None

    @property
    def effective(self) -> bool:
        """Whether the constraint changes DNS answers."""
        return self.error is None and self.without_effect is None


def in_effect(declaration: Declaration | None) -> Constraint:
    """Return the constraint that chooses endpoints: *declaration*'s, or none if that is absent or not effective."""
    return declaration.constraint if declaration is not None and declaration.effective else Unconstrained()


def declaration_of(service: Service, policies: Sequence[ServicePolicy] = ()) -> Declaration | None:
    """Return the constraint of *service*, or None if no source declares one. Never raises.

    *policies* are all ServicePolicies of its namespace. A Service with ``publishNotReadyAddresses`` is for peers that
    must find each other, so only its own annotation or field constrains it, and goes before policies.
    """
    readers = (*_SERVICE_READERS, *READERS) if service.publishes_unready else READERS
    declarations = (read(service, policies) for read in readers)
    return next((declaration for declaration in declarations if declaration is not None), None)


Reader = Callable[[Service, Sequence[ServicePolicy]], Declaration | None]


def _policies(service: Service, policies: Sequence[ServicePolicy]) -> Declaration | None:
    """Read every ServicePolicy that selects the Service: required ones first, then by age and name."""
    selecting = [policy for policy in policies if policy.mode != IGNORED and policy.selector.matches(service.labels)]
    if not selecting:
        return None
    selecting.sort(key=lambda policy: (policy.mode != REQUIRED, policy.created, policy.name))
    keys = tuple(dict.fromkeys(policy.topology_key for policy in selecting))  # two policies may name the same key
    errors = (f"ServicePolicy {policy.name}: {error[1]}" for policy in selecting if (error := policy_error(policy)))
    without_effect = _why_without_effect(service)
    if without_effect is None and service.publishes_unready:
        without_effect = "the Service publishes addresses that are not ready, so ServicePolicies do not apply"
    required = tuple(dict.fromkeys(policy.topology_key for policy in selecting if policy.mode == REQUIRED))
    return Declaration(
        POLICY,
        Narrowing(keys, required, at_least=_min_endpoints(service) or 1),
        # A policy covers many Services; externalTrafficPolicy contradicts it only on headless ones.
        error=next(errors, None) or (_service_keys_error(keys, service) if service.headless else keys_error(keys)),
        without_effect=without_effect,
        policies=tuple(policy.name for policy in selecting),
    )


def _annotation(service: Service, _: Sequence[ServicePolicy]) -> Declaration | None:
    text = trimmed(service.annotations.get(TOPOLOGY_KEYS, ""))
    return _topology_keys(ANNOTATION, tuple(map(trimmed, text.split(","))) if text else (), service)


def _field(service: Service, _: Sequence[ServicePolicy]) -> Declaration | None:
    return _topology_keys(FIELD, service.topology_keys or (), service)


_SERVICE_READERS: tuple[Reader, ...] = (
    _annotation,  # topodns.io/topology-keys
    _field,  # spec.topologyKeys, Kubernetes 1.17 to 1.21
)
READERS: tuple[Reader, ...] = (_policies, *_SERVICE_READERS)

SOURCE_FIELDS = {  # that findings name
    POLICY: "metadata.labels",
    ANNOTATION: f"metadata.annotations[{TOPOLOGY_KEYS}]",
    FIELD: "spec.topologyKeys",
}


def _topology_keys(source: str, keys: tuple[str, ...], service: Service) -> Declaration | None:
    """Return the declaration of a list of topology keys, None for an empty list."""
    if not keys:
        return None
    return Declaration(
        source,
        FirstMatch(keys, at_least=_min_endpoints(service) or 1),
        error=_service_keys_error(keys, service),
        without_effect=_why_without_effect(service),
    )


def _why_without_effect(service: Service) -> str | None:
    return None if service.headless else "the Service is not headless"


def keys_error(keys: Sequence[str]) -> str | None:
    """Return why a list of topology keys is invalid (KEP-536), or None."""
    if len(keys) > MAX_KEYS:
        return f"{len(keys)} keys, at most {MAX_KEYS} allowed"
    for position, key in enumerate(keys):
        if key == ANY:
            if position != len(keys) - 1:
                return f"{ANY!r} is key {position + 1} of {len(keys)}, but only the last key may be {ANY!r}"
        elif not valid_label_key(key):
            return f"{key!r} is no valid label key"
        if key in keys[:position]:
            return f"{key!r} is listed twice"
    return None


def policy_error(policy: ServicePolicy) -> tuple[str, str, str] | None:
    """Return why a policy is invalid, or None: the field, what was found there, and what was expected."""
    if policy.mode not in MODES:
        return "spec.topology.mode", f"{policy.mode!r} is no mode", ", ".join(MODES)
    if not valid_label_key(policy.topology_key):
        return "spec.topology.key", f"{policy.topology_key!r} is no valid label key", "a label key"
    return None


def _service_keys_error(keys: Sequence[str], service: Service) -> str | None:
    if service.external_traffic_policy == "Local":
        return "topology keys cannot be used together with externalTrafficPolicy: Local"
    return keys_error(keys)


def _min_endpoints(service: Service) -> int | None:
    text = trimmed(service.annotations.get(MIN_ENDPOINTS, "1"))
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return number or None


def findings(service: Service, declaration: Declaration | None) -> Iterator[Finding]:
    """Yield the findings about the constraint and the annotations of *service*."""

    def finding(code: ClusterCode, field: str, message: str, expected: str) -> Finding:
        return code.finding("Service", service.namespace, service.name, field=field, message=message, expected=expected)

    if declaration is not None:
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
    if _min_endpoints(service) is None:
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
