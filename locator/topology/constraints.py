"""What a Service asks for: who may say it, who is heard first, and what is valid.

The precedence is the tuple ``READERS``; a new source is one more reader in it. The first that
speaks decides, even if what it says is invalid: no later source steps in.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from locator.finding_codes import ClusterCode
from locator.labels import valid_label_key
from locator.model import Finding, Service, ServicePolicy
from locator.topology.selection import ANY, Constraint, FirstMatch, Narrowing, Unconstrained

MAX_KEYS = 16  # KEP-536

PREFIX = "topodns.io/"
TOPOLOGY_KEYS = "topodns.io/topology-keys"
MIN_ENDPOINTS = "topodns.io/min-endpoints"
ANNOTATIONS = (TOPOLOGY_KEYS, MIN_ENDPOINTS)

REQUIRED, PREFERRED, IGNORED = "required", "preferred", "ignored"
MODES = (REQUIRED, PREFERRED, IGNORED)  # of a ServicePolicy

POLICY = "policy"
ANNOTATION = "annotation"
FIELD = "field"
ZONAL_NAME = "zonal-name"  # not said by the Service, but by who asks


class Declaration(Struct, frozen=True):
    """What one source declares for a Service, valid or not.

    ``error`` says what makes it invalid, None if nothing does; ``without_effect`` why DNS narrows
    nothing by it even so. ``policies`` are the names of the ServicePolicies that ask, in the order
    of their keys.
    """

    source: str
    constraint: Constraint
    error: str | None = None
    without_effect: str | None = None
    policies: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether it obeys the rules."""
        return self.error is None

    @property
    def effective(self) -> bool:
        """Whether it narrows what DNS answers."""
        return self.error is None and self.without_effect is None


def in_effect(declaration: Declaration | None) -> Constraint:
    """Return the constraint by which endpoints are chosen, given what the Service declares, if anything."""
    return declaration.constraint if declaration is not None and declaration.effective else Unconstrained()


def declaration_of(service: Service, policies: Sequence[ServicePolicy] = ()) -> Declaration | None:
    """Return what *service* asks for, or None where no source speaks. Never raises.

    *policies* are those of its namespace. Where peers find each other by a Service, only its
    own word narrows it, and so is heard first.
    """
    readers = (*OWN, *READERS) if service.publishes_unready else READERS
    return next((found for read in readers if (found := read(service, policies)) is not None), None)


Reader = Callable[[Service, Sequence[ServicePolicy]], Declaration | None]


def _policies(service: Service, policies: Sequence[ServicePolicy]) -> Declaration | None:
    """Every ServicePolicy that selects the Service: the required ones first, then by age and name."""
    speaking = [each for each in policies if each.mode != IGNORED and each.selector.matches(service.labels)]
    if not speaking:
        return None
    speaking.sort(key=lambda each: (each.mode != REQUIRED, each.created, each.name))
    keys = tuple(dict.fromkeys(each.topology_key for each in speaking))  # two may agree
    errors = (f"ServicePolicy {each.name}: {error[1]}" for each in speaking if (error := policy_error(each)))
    hindrance = _hindrance(service)
    if hindrance is None and service.publishes_unready:
        hindrance = "the Service publishes addresses that are not ready, so only its own word narrows it"
    required = tuple(dict.fromkeys(each.topology_key for each in speaking if each.mode == REQUIRED))
    return Declaration(
        POLICY,
        Narrowing(keys, required, at_least=_min_endpoints(service) or 1),
        # On a Service that DNS does not narrow anyway, this contradicts nothing: a policy speaks for many.
        error=next(errors, None) or (_error(keys, service) if service.headless else keys_error(keys)),
        without_effect=hindrance,
        policies=tuple(each.name for each in speaking),
    )


def _annotation(service: Service, _: Sequence[ServicePolicy]) -> Declaration | None:
    text = service.annotations.get(TOPOLOGY_KEYS, "").strip()
    return _listed(ANNOTATION, tuple(key.strip() for key in text.split(",")) if text else (), service)


def _field(service: Service, _: Sequence[ServicePolicy]) -> Declaration | None:
    return _listed(FIELD, service.topology_keys or (), service)


OWN: tuple[Reader, ...] = (
    _annotation,  # topodns.io/topology-keys
    _field,  # spec.topologyKeys, Kubernetes 1.17 to 1.21
)
READERS: tuple[Reader, ...] = (_policies, *OWN)

SPELLED = {
    POLICY: "metadata.labels",
    ANNOTATION: f"metadata.annotations[{TOPOLOGY_KEYS}]",
    FIELD: "spec.topologyKeys",
}


def _listed(source: str, keys: tuple[str, ...], service: Service) -> Declaration | None:
    """Keys in order, of which the first that finds endpoints decides; none of them is nothing asked."""
    if not keys:
        return None
    return Declaration(
        source,
        FirstMatch(keys, at_least=_min_endpoints(service) or 1),
        error=_error(keys, service),
        without_effect=_hindrance(service),
    )


def _hindrance(service: Service) -> str | None:
    return None if service.headless else "the Service is not headless"


def keys_error(keys: Sequence[str]) -> str | None:
    """Return what is wrong with a list of topology keys by KEP-536's rules, or None."""
    if len(keys) > MAX_KEYS:
        return f"{len(keys)} keys, at most {MAX_KEYS} allowed"
    for position, key in enumerate(keys):
        if key == ANY:
            if position != len(keys) - 1:
                return f"{ANY!r} stands at place {position + 1} of {len(keys)}, only the last is allowed"
        elif not valid_label_key(key):
            return f"{key!r} is no valid label key"
        if key in keys[:position]:
            return f"{key!r} stands twice"
    return None


def policy_error(policy: ServicePolicy) -> tuple[str, str, str] | None:
    """Return what makes a policy invalid, or None: the field, what was found there, what was expected."""
    if policy.mode not in MODES:
        return "spec.topology.mode", f"{policy.mode!r} is no mode", ", ".join(MODES)
    if not valid_label_key(policy.topology_key):
        return "spec.topology.key", f"{policy.topology_key!r} is no valid label key", "a label key"
    return None


def _error(keys: Sequence[str], service: Service) -> str | None:
    if service.external_traffic_policy == "Local":
        return "topology keys cannot be used together with externalTrafficPolicy: Local"
    return keys_error(keys)


def _min_endpoints(service: Service) -> int | None:
    text = service.annotations.get(MIN_ENDPOINTS, "1").strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return number or None


def findings(service: Service, declaration: Declaration | None) -> Iterator[Finding]:
    """Yield what is wrong in how *service* asks."""

    def finding(code: ClusterCode, field: str, message: str, expected: str) -> Finding:
        return code.finding("Service", service.namespace, service.name, field=field, message=message, expected=expected)

    if declaration is not None:
        field = SPELLED[declaration.source]
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
    for name in service.annotations:
        if name not in ANNOTATIONS:
            near = difflib.get_close_matches(name, ANNOTATIONS, 1, 0.0)[0]
            field = f"metadata.annotations[{name}]"
            yield finding(ClusterCode.UnknownAnnotation, field, "unknown annotation", near)


_INVALID = {ClusterCode.InvalidTopologyKeys.name, ClusterCode.InvalidServicePolicy.name}


def is_invalid_constraint(finding: Finding) -> bool:
    """Whether a finding says that what a Service asks for is invalid."""
    return finding.kind == "Service" and finding.code in _INVALID


def policy_findings(policies: Iterable[ServicePolicy], services: Sequence[Service]) -> Iterator[Finding]:
    """Yield which of the policies of a namespace speak for none of its *services*."""
    for policy in policies:
        if policy.mode != IGNORED and not any(policy.selector.matches(service.labels) for service in services):
            yield ClusterCode.PolicySelectsNothing.finding(
                "ServicePolicy",
                policy.namespace,
                policy.name,
                field="spec.serviceSelector",
                message="policy without effect: it selects no Service",
            )
