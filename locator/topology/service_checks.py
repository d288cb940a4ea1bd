# SPDX-License-Identifier: Apache-2.0

"""The checks of what Services and ServicePolicies ask for.

Those of ``advice`` come and go with endpoints, so they are computed when somebody asks, not at each change. Most of
them are of severity info.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from locator.findings import ClusterCode
from locator.ip import is_address, may_be_balancer, parse_address
from locator.labels import nearest_label_key
from locator.model import (
    CLUSTER,
    ERROR,
    SUCCESSORS,
    WARNING,
    Finding,
    Location,
    Service,
    ServicePolicy,
    listed,
)
from locator.printable import cut, quoted
from locator.topology.annotations import (
    FEDERATED,
    HEALTH,
    HEALTH_CHECKS,
    MIN_ENDPOINTS,
    TOPOLOGY_KEYS,
    TOPOLOGY_MODE,
    field_of,
    has_mode_auto,
    health_check,
    is_federated,
    min_endpoints,
    probed_ports,
    trimmed,
)
from locator.topology.balance_checks import invalid_values
from locator.topology.constraints import (
    DISTRIBUTIONS,
    HINTS,
    LOCAL_TRAFFIC,
    NOT_HEADLESS,
    POLICY,
    REQUIRED,
    SOURCE,
    SWITCHED_OFF,
    TRAFFIC_DISTRIBUTION,
    Declaration,
    deciding,
    keys_error,
    keys_of,
    title_of,
)
from locator.topology.hints import FOR_KUBE_PROXY, OPT_IN_LABELS, asks_for_hints, hint_advice
from locator.topology.selection import ANY_ENDPOINT, Constraint, LocatedEndpoint, Narrowing
from locator.topology.unknown_names import unknown_names

MAX_PORTS = 8  # named in a finding
_nearest = lru_cache(maxsize=1024)(nearest_label_key)  # difflib takes a millisecond

_INVALID = {row.code.name for row in SOURCE.values()}
_TOLD_BY_EVENT = {*_INVALID, ClusterCode.InvalidMaxOverload.name, ClusterCode.InvalidClients.name}


def may_choose(service: Service) -> bool:
    """Whether a constraint on *service* can choose anything: endpoints in DNS, in hints, or between clusters."""
    return service.headless or asks_for_hints(service.labels) or is_federated(service)


def chooses(service: Service, declaration: Declaration | None) -> bool:
    """Whether *declaration*, the one that decides, chooses endpoints of *service*."""
    if declaration is None or not declaration.valid:
        return False
    if declaration.effective:
        return True
    return not service.headless and not SOURCE[declaration.source].of_kubernetes and may_choose(service)


def policy_chooses(service: Service, declaration: Declaration | None) -> bool:
    """Whether ServicePolicies choose endpoints of *service*: they made *declaration*, the one that decides."""
    return declaration is not None and declaration.source == POLICY and chooses(service, declaration)


def is_invalid_constraint(finding: Finding) -> bool:
    """Whether a finding says that the constraint of a Service is invalid."""
    return finding.kind == "Service" and finding.code in _INVALID


def is_told_by_event(finding: Finding) -> bool:
    """Whether an Event on a Service tells its owner of a finding: what it asks for, or how balanced, is invalid."""
    return finding.kind == "Service" and finding.code in _TOLD_BY_EVENT


# --- What a Service says ----------------------------------------------------------------------------------------------


def service_findings(service: Service, declarations: Sequence[Declaration]) -> Iterator[Finding]:
    """Yield the findings about the constraint and the annotations of *service*."""
    yield from _constraint_findings(service, declarations)
    if service.headless and service.publishes_unready:
        yield from _asked_of_peers(service, declarations)
    if TOPOLOGY_KEYS in service.annotations and not trimmed(service.annotations[TOPOLOGY_KEYS]):
        expected = "label keys, or no annotation"
        yield ClusterCode.EmptyTopologyKeys.about(service, field_of(TOPOLOGY_KEYS), "empty annotation", expected)
    if min_endpoints(service) is None:
        message = f"{quoted(service.annotations[MIN_ENDPOINTS])} counts as 1"
        expected = "a whole number from 1"
        yield ClusterCode.InvalidMinEndpoints.about(service, field_of(MIN_ENDPOINTS), message, expected)
    yield from invalid_values(service)
    if HEALTH in service.annotations:
        yield from _health_findings(service, service.annotations[HEALTH])
    if service.traffic_distribution and service.traffic_distribution not in DISTRIBUTIONS:
        yield _unknown_distribution(service)
    for name in unknown_names(service.annotations, service.labels):
        yield ClusterCode.UnknownAnnotation.about(service, *name)
    yield from _unknown_values(service)


def _constraint_findings(service: Service, declarations: Sequence[Declaration]) -> Iterator[Finding]:
    """Yield a finding if the constraint is invalid, or if it chooses nothing although somebody meant it to."""
    declaration, choosing = deciding(declarations), may_choose(service)
    if declaration is not None and SOURCE[declaration.source].in_another_object and not choosing:
        # A policy may mean other Services; its own findings say so if there are none.
        declaration = next((one for one in declarations if SOURCE[one.source].own), None)
    if declaration is None or SOURCE[declaration.source].of_kubernetes:
        if MIN_ENDPOINTS in service.annotations and not choosing:
            yield _without_effect(service, field_of(MIN_ENDPOINTS), NOT_HEADLESS, "clusterIP: None", what="")
        return
    source = SOURCE[declaration.source]
    if service.headless and declaration.without_effect is not None:
        yield _without_effect(service, source.field, declaration.without_effect, f"the annotation {TOPOLOGY_KEYS}")
        return
    error = declaration.error
    if error == LOCAL_TRAFFIC and is_federated(service) and not service.headless:
        error = keys_error(declaration.constraint.keys)  # for the federated name, it is no obstacle
    if error is not None:
        yield source.code.about(service, source.field, f"invalid constraint: {error}", source.expected)
    elif not choosing:
        if service.alias is not None:
            yield _without_effect(service, source.field, declaration.without_effect, "clusterIP: None")
        else:
            why = f"{declaration.without_effect}, so kube-proxy chooses"
            yield _without_effect(service, source.field, why, f"clusterIP: None, or for kube-proxy {FOR_KUBE_PROXY}")


def _without_effect(
    about: Service | ServicePolicy, field: str, why: str | None, expected: str, *, what: str = "constraint "
) -> Finding:
    return ClusterCode.ConstraintWithoutEffect.about(about, field, f"{what}without effect: {why}", expected)


def _asked_of_peers(service: Service, declarations: Sequence[Declaration]) -> Iterator[Finding]:
    """Yield a finding for each field in which a Service of peers asks Kubernetes for near endpoints."""
    first = deciding(declarations)
    if first is not None and SOURCE[first.source].own:
        return  # which gives what was asked for
    asked = {one.source: one for one in declarations if one.ignored != SWITCHED_OFF}
    fields = {TRAFFIC_DISTRIBUTION: SOURCE[TRAFFIC_DISTRIBUTION].field}
    if has_mode_auto(service):
        fields[HINTS] = field_of(TOPOLOGY_MODE)
    for source, field in fields.items():
        if source in asked:
            yield _without_effect(service, field, asked[source].without_effect, f"the annotation {TOPOLOGY_KEYS}")


def _health_findings(service: Service, text: str) -> Iterator[Finding]:
    """Yield a finding if the annotation counts as none, and for each address that is not probed."""
    check, field = health_check(text), field_of(HEALTH)
    if check is None:
        yield ClusterCode.InvalidHealth.about(service, field, f"{quoted(text)} counts as none", HEALTH_CHECKS)
        return
    if check.port_of(service) is None:
        ports = listed(list(map(str, probed_ports(service))), MAX_PORTS)
        why = "the Service has no TCP port" if not ports else f"{check.port} is none of the Service's own TCP ports"
        expected = f"PORT to be one of {ports}" if ports else "a TCP port in spec.ports"
        yield ClusterCode.InvalidHealth.about(service, field, f"{quoted(text)} counts as none: {why}", expected)
    for position, address in enumerate(service.ingress):
        if is_address(address) and not may_be_balancer(parse_address(address)):
            field, message = f"status.loadBalancer.ingress[{position}]", f"{address} is not probed"
            yield ClusterCode.InvalidHealth.about(service, field, message, "an address of a load balancer")


def _unknown_distribution(service: Service) -> Finding:
    """Return the finding that Kubernetes does not know the value of ``spec.trafficDistribution``."""
    known, text = {name.lower(): name for name in DISTRIBUTIONS}, service.traffic_distribution
    (nearest,) = difflib.get_close_matches(cut(text).lower(), known, 1, 0.0)
    message, field = f"{quoted(text)} counts as none: Kubernetes does not know it", SOURCE[TRAFFIC_DISTRIBUTION].field
    return ClusterCode.UnknownTrafficDistribution.about(service, field, message, known[nearest])


def _unknown_values(service: Service) -> Iterator[Finding]:
    """Yield a finding for each annotation and label that is a switch, and is neither on nor off."""
    switches = [("annotations", FEDERATED, service.annotations.get(FEDERATED))]
    switches += [("labels", label, service.labels.get(label)) for label in OPT_IN_LABELS]
    for where, name, value in switches:
        if value not in (None, "true", "false"):
            message = f"{quoted(value)} counts as false"
            yield ClusterCode.UnknownAnnotation.about(service, f"metadata.{where}[{name}]", message, "true or false")


# --- ServicePolicies --------------------------------------------------------------------------------------------------


def policy_findings(policy: ServicePolicy, selected: Sequence[Service]) -> Iterator[Finding]:
    """Yield a finding if *policy* chooses nothing; *selected* are the Services that it selects."""
    field = "spec.serviceSelector"
    if not selected:
        message = "policy without effect: it selects no Service"
        yield ClusterCode.PolicySelectsNothing.about(policy, field, message)
    elif not any(map(may_choose, selected)):
        why, expected = "it selects no headless Service", "a Service with clusterIP: None"
        yield _without_effect(policy, field, why, expected, what="policy ")


# --- Topology keys that no node carries: misspelled ones, mostly ------------------------------------------------------


class CarriedKeys:
    """The label *keys* that nodes carry. If they are empty, no node is known, and any key may be carried.

    The labels of ``--subnet`` are not among them. They say where clients are, and a key needs endpoints that carry it,
    too.
    """

    def __init__(self, keys: frozenset[str] = frozenset()) -> None:
        self.keys = keys

    def nearest(self, key: str | None) -> str | None:
        """Return the key that nodes carry and that is most like a topology key.

        None if they may carry that itself, or if the *key* is None.
        """
        if key is None or not self.keys or key in (ANY_ENDPOINT, CLUSTER) or SUCCESSORS.get(key, key) in self.keys:
            return None
        return _nearest(key, self.keys)

    def missing(self, keys: Iterable[str], locations: Iterable[Location] = ()) -> Iterator[tuple[str, str]]:
        """Yield those of some topology keys that neither a node nor one of *locations* carries, with the nearest."""
        for key in keys:
            nearest = self.nearest(key)
            if nearest is not None and all(location.value(key) is None for location in locations):
                yield key, nearest


def service_key_findings(
    service: Service, declaration: Declaration, locations: Sequence[Location], carried: CarriedKeys
) -> Iterator[Finding]:
    """Yield a finding for each key of *declaration*, which decides about *service*, that no node carries.

    *locations* are those of its endpoints. Other objects, such as ServicePolicies, have findings of their own.
    """
    if SOURCE[declaration.source].in_another_object:
        return
    severity = WARNING if declaration.constraint.soft else ERROR
    for key, nearest in carried.missing(declaration.constraint.keys, locations):
        field = SOURCE[declaration.source].field
        yield ClusterCode.KeyOnNoNode.about(service, field, _on_no_node(key), nearest, severity=severity)


def policy_key_findings(
    policy: ServicePolicy, locations: Iterable[Location], carried: CarriedKeys
) -> Iterator[Finding]:
    """Yield a finding if no node carries the key of a valid policy; *locations* are those of its endpoints."""
    severity = ERROR if policy.mode == REQUIRED else WARNING
    for key, nearest in carried.missing(keys_of([policy]), locations):
        yield ClusterCode.KeyOnNoNode.about(policy, "spec.topology.key", _on_no_node(key), nearest, severity=severity)


def default_key_findings(defaults: Mapping[str, Sequence[str]], carried: CarriedKeys) -> Iterator[Finding]:
    """Yield a finding for each default key of a DNS zone that no node carries; *defaults* has the keys by zone."""
    for zone, keys in defaults.items():
        field, severity = "--default-topology-keys", WARNING if keys[-1:] == (ANY_ENDPOINT,) else ERROR
        for key, nearest in carried.missing(keys):
            message = f"{zone}: {_on_no_node(key)}"
            yield ClusterCode.KeyOnNoNode.finding(field=field, message=message, expected=nearest, severity=severity)


def _on_no_node(key: str) -> str:
    return f"no node has the label {key}"


# --- What a Service gets for what it says, given its endpoints --------------------------------------------------------


def advice(
    service: Service,
    declarations: Sequence[Declaration],
    endpoints: Sequence[LocatedEndpoint],
    carried: CarriedKeys,
) -> Iterator[Finding]:
    """Yield what is worth knowing about the constraint of *service*, which has these ready *endpoints*.

    *carried* are the keys that nodes carry; other keys have findings of their own.
    """
    yield from hint_advice(service, declarations, endpoints)
    declaration = deciding(declarations)
    if declaration is None or not may_choose(service):
        return
    yield from overridden_findings(service, declarations)
    if not chooses(service, declaration):
        return
    field, expected = SOURCE[declaration.source].field, "endpoints on nodes with this label"
    demanded = _demanded_of_all(declaration.constraint, endpoints)
    keys = [key for key in demanded if carried.keys and carried.nearest(key) is None]
    for key in keys:
        message = f"no ready endpoint has the label {key}: nobody gets any"
        yield ClusterCode.KeyOnNoEndpoint.about(service, field, message, expected)
    if not keys and not is_federated(service):  # else there are endpoints in other clusters, too
        yield from _nothing_to_choose(service, declaration, endpoints)


def overridden_findings(service: Service, declarations: Sequence[Declaration]) -> Iterator[Finding]:
    """Yield a finding for each source that somebody wrote although another one decides."""
    first = deciding(declarations)
    for later in declarations:
        source = SOURCE[later.source]
        if first is None or later is first or source.of_kubernetes or later.ignored is not None:
            continue
        invalid = "" if later.error is None else f" (it is invalid, too: {later.error})"
        message = f"overridden: {title_of(first)} comes first{invalid}"
        yield ClusterCode.SourceNotHeard.about(service, source.field, message, "one source")


def _demanded_of_all(constraint: Constraint, endpoints: Sequence[LocatedEndpoint]) -> list[str]:
    """Return the keys for which no client gets any of *endpoints*; none if a client somewhere does."""
    if constraint.soft or not endpoints:
        return []
    demanded = constraint.required if isinstance(constraint, Narrowing) else constraint.keys
    absent = [key for key in demanded if all(located.location.value(key) is None for located in endpoints)]
    return absent if isinstance(constraint, Narrowing) or len(absent) == len(demanded) else []


def _nothing_to_choose(
    service: Service, declaration: Declaration, endpoints: Sequence[LocatedEndpoint]
) -> Iterator[Finding]:
    key, field = next(iter(declaration.constraint.keys), ANY_ENDPOINT), SOURCE[declaration.source].field
    if key in (ANY_ENDPOINT, CLUSTER) or not endpoints:  # a plain name has the endpoints of one cluster anyway
        return
    if len(endpoints) == 1:
        message = "nothing to choose: only one endpoint is ready"
        yield ClusterCode.SingleEndpoint.about(service, field, message, "several endpoints")
        return
    value = endpoints[0].location.value(key)
    if value is not None and all(located.location.value(key) == value for located in endpoints):
        message = f"nothing to choose: all {len(endpoints)} ready endpoints have {key}={value}"
        yield ClusterCode.EndpointsInOneDomain.about(service, field, message, "endpoints in several domains")
