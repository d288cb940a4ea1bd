# SPDX-License-Identifier: Apache-2.0

"""The findings about what Services and ServicePolicies ask for. ``key_findings`` has those about single keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from locator.findings import ClusterCode
from locator.ip import is_address, may_be_balancer, parse_address
from locator.model import Finding, Service, ServicePolicy, and_more, listed
from locator.printable import quoted
from locator.topology.annotations import health_check, probed_ports, trimmed
from locator.topology.constraints import (
    ANNOTATION,
    ANNOTATIONS,
    AUTO,
    FEDERATED,
    FIELD,
    HEALTH,
    HINTS,
    LOCAL_TRAFFIC,
    MAX_KEYS,
    MEANT,
    MIN_ENDPOINTS,
    NOT_HEADLESS,
    OF_SERVICE,
    POLICY,
    PREFIX,
    SOURCE_FIELDS,
    SWITCHED_OFF,
    TOPOLOGY_KEYS,
    TOPOLOGY_MODE,
    TRAFFIC_DISTRIBUTION,
    Declaration,
    heard,
    is_federated,
    keys_error,
    min_endpoints,
)
from locator.topology.hints import OPT_IN_LABELS, asks_for_hints

MAX_UNKNOWN = 8  # annotations and labels of one Service that findings name: it may have ten thousand
MAX_PORTS = 8  # named in a finding


def counts(service: Service) -> bool:
    """Whether a constraint on *service* can choose anything: endpoints in DNS, in hints, or between clusters."""
    return service.headless or asks_for_hints(service.labels) or is_federated(service)


def own_labels(service: Service) -> list[str]:
    """Return the keys of the labels that begin as those of topodns do."""
    return [key for key in service.labels if key.startswith(PREFIX)]


def decides(service: Service, declaration: Declaration | None) -> bool:
    """Whether *declaration*, the one that is heard, chooses endpoints of *service*."""
    if declaration is None or not declaration.valid:
        return False
    return declaration.effective or (not service.headless and declaration.source in MEANT and counts(service))


def policy_decides(service: Service, declaration: Declaration | None) -> bool:
    """Whether ServicePolicies choose endpoints of *service*: they made *declaration*, the one that is heard."""
    return declaration is not None and declaration.source == POLICY and decides(service, declaration)


def service_findings(service: Service, declarations: Sequence[Declaration]) -> Iterator[Finding]:
    """Yield the findings about the constraint and the annotations of *service*."""
    yield from _constraint_findings(service, declarations)
    if service.headless and service.publishes_unready:
        yield from _asked_of_peers(service, declarations)
    if TOPOLOGY_KEYS in service.annotations and not trimmed(service.annotations[TOPOLOGY_KEYS]):
        expected = "label keys, or no annotation"
        yield ClusterCode.EmptyTopologyKeys.about(service, SOURCE_FIELDS[ANNOTATION], "empty annotation", expected)
    if min_endpoints(service) is None:
        message = f"{quoted(service.annotations[MIN_ENDPOINTS])} counts as 1"
        field = f"metadata.annotations[{MIN_ENDPOINTS}]"
        yield ClusterCode.InvalidMinEndpoints.about(service, field, message, "a whole number from 1")
    if HEALTH in service.annotations:
        yield from _health_findings(service, service.annotations[HEALTH])
    yield from _unknown_names(service)
    yield from _unknown_values(service)


def _health_findings(service: Service, text: str) -> Iterator[Finding]:
    """Yield a finding if the annotation is not heard, and for each address that is not probed."""
    check, field = health_check(text), f"metadata.annotations[{HEALTH}]"
    if check is None:
        expected = "tcp, tcp:PORT or http:PORT/PATH"
        yield ClusterCode.InvalidHealth.about(service, field, f"{quoted(text)} counts as none", expected)
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


def _asked_of_peers(service: Service, declarations: Sequence[Declaration]) -> Iterator[Finding]:
    """Yield a finding for each field in which a Service of peers asks Kubernetes for near endpoints."""
    first = heard(declarations)
    if first is not None and first.source in OF_SERVICE:
        return  # which gives what was asked for
    asked = {one.source: one for one in declarations if one.unheard != SWITCHED_OFF}
    fields = {TRAFFIC_DISTRIBUTION: SOURCE_FIELDS[TRAFFIC_DISTRIBUTION]}
    if service.topology_mode in AUTO:
        fields[HINTS] = f"metadata.annotations[{TOPOLOGY_MODE}]"
    for source, field in fields.items():
        if source in asked:
            message = f"constraint without effect: {asked[source].without_effect}"
            yield ClusterCode.ConstraintWithoutEffect.about(service, field, message, f"the annotation {TOPOLOGY_KEYS}")


def _unknown_values(service: Service) -> Iterator[Finding]:
    """Yield a finding for each annotation and label that is a switch, and is neither on nor off."""
    switches = [("annotations", FEDERATED, service.annotations.get(FEDERATED))]
    switches += [("labels", label, service.labels.get(label)) for label in OPT_IN_LABELS]
    for where, name, value in switches:
        if value not in (None, "true", "false"):
            message = f"{quoted(value)} counts as false"
            yield ClusterCode.UnknownAnnotation.about(service, f"metadata.{where}[{name}]", message, "true or false")


def _unknown_names(service: Service) -> Iterator[Finding]:
    """Yield a finding for each annotation and label that begins as those of topodns do, and is none of them.

    The last one of MAX_UNKNOWN counts those that are left out.
    """
    unknown = [(name, "annotation") for name in service.annotations if name not in ANNOTATIONS]
    unknown += [(name, "label") for name in own_labels(service) if name not in OPT_IN_LABELS]
    for number, (name, kind) in enumerate(unknown[:MAX_UNKNOWN], 1):
        (nearest,) = difflib.get_close_matches(name, (*ANNOTATIONS, OPT_IN_LABELS[0]), 1, 0.0)
        meant = "label" if nearest in OPT_IN_LABELS else "annotation"
        expected = nearest if meant == kind else f"the {meant} {nearest}"
        more = and_more(len(unknown) - number + 1) if number == MAX_UNKNOWN else ""
        yield ClusterCode.UnknownAnnotation.about(
            service, f"metadata.{kind}s[{name}]", f"unknown {kind}{more}", expected
        )


def _constraint_findings(service: Service, declarations: Sequence[Declaration]) -> Iterator[Finding]:
    """Yield a finding if the constraint is invalid, or if it chooses nothing although somebody meant it to."""
    declaration = heard(declarations)
    if declaration is not None and declaration.source == POLICY:
        if not counts(service):  # a policy may mean other Services; its own findings say so if there are none
            declaration = next((later for later in declarations if later.source in (ANNOTATION, FIELD)), None)
        elif service.headless and declaration.without_effect is not None:
            message = f"constraint without effect: {declaration.without_effect}"
            expected = f"the annotation {TOPOLOGY_KEYS}"
            yield ClusterCode.ConstraintWithoutEffect.about(service, SOURCE_FIELDS[POLICY], message, expected)
            return
    if declaration is None or declaration.source not in MEANT:
        if MIN_ENDPOINTS in service.annotations and not counts(service):
            field, message = f"metadata.annotations[{MIN_ENDPOINTS}]", f"without effect: {NOT_HEADLESS}"
            yield ClusterCode.ConstraintWithoutEffect.about(service, field, message, "clusterIP: None")
        return
    field = SOURCE_FIELDS[declaration.source]
    error = declaration.error
    if error == LOCAL_TRAFFIC and is_federated(service) and not service.headless:
        error = keys_error(declaration.constraint.keys)  # for the federated name, it is no obstacle
    if error is not None:
        code = ClusterCode.InvalidTopologyKeys
        expected = f"at most {MAX_KEYS} distinct label keys, '*' only last, no externalTrafficPolicy: Local"
        if declaration.source == POLICY:
            code = ClusterCode.InvalidServicePolicy
            expected = f"valid policies, at most {MAX_KEYS} keys in all, no externalTrafficPolicy: Local"
        yield code.about(service, field, f"invalid constraint: {error}", expected)
    elif not counts(service):
        message = f"constraint without effect: {declaration.without_effect}"
        yield ClusterCode.ConstraintWithoutEffect.about(service, field, message, "clusterIP: None")


_INVALID = {ClusterCode.InvalidTopologyKeys.name, ClusterCode.InvalidServicePolicy.name}


def is_invalid_constraint(finding: Finding) -> bool:
    """Whether a finding says that the constraint of a Service is invalid."""
    return finding.kind == "Service" and finding.code in _INVALID


def policy_findings(policy: ServicePolicy, selected: Sequence[Service]) -> Iterator[Finding]:
    """Yield a finding if *policy* chooses nothing; *selected* are the Services that it selects."""
    if not selected:
        message = "policy without effect: it selects no Service"
        yield ClusterCode.PolicySelectsNothing.about(policy, "spec.serviceSelector", message)
    elif not any(map(counts, selected)):
        message = "policy without effect: it selects no headless Service"
        expected = "a Service with clusterIP: None"
        yield ClusterCode.ConstraintWithoutEffect.about(policy, "spec.serviceSelector", message, expected)
