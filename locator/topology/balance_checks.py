# SPDX-License-Identifier: Apache-2.0

"""Where ``topodns.io/max-overload`` and ``topodns.io/clients`` are heard, and the checks of what they say.

``balance.is_ordered`` says which constraints can be balanced.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from locator.findings import ClusterCode
from locator.labels import ClientSelector
from locator.model import INFO, WARNING, Finding, Node, Object, PodLocator, Service, ServiceImport, listed
from locator.printable import quoted
from locator.topology.annotations import (
    CLIENTS,
    MAX_CLIENTS,
    MAX_OVERLOAD,
    MAX_SELECTORS,
    TOPOLOGY_KEYS,
    asking,
    field_of,
    is_federated,
    max_overload,
)
from locator.topology.balance import Balance, is_ordered
from locator.topology.constraints import NOT_HEADLESS, OF_PEERS, Declaration
from locator.topology.hints import asks_for_hints
from locator.topology.selection import Constraint, LocatedEndpoint

Running = Sequence[tuple[str, Mapping[str, str]]]  # pods: the namespace and the labels of each

NAMED = 5  # endpoints that a message names

FEDERATED_NAME = f"{NOT_HEADLESS}, and its federated name is not balanced"
HINTED_ADDRESS = f"{NOT_HEADLESS}, and hints for kube-proxy cannot split a zone"
NO_CONSTRAINT = "the Service asks for no near endpoints"
INVALID_CONSTRAINT = "its constraint is invalid"
OTHER_HINTS = "hints decide, and they do not name the own zone of each endpoint alone"
NO_MAX_OVERLOAD = f"there is no valid {MAX_OVERLOAD}"
# What would make it heard.
_EXPECTED = {
    NO_CONSTRAINT: "topology keys, a ServicePolicy, or spec.trafficDistribution",
    INVALID_CONSTRAINT: "a valid constraint",
    OF_PEERS: f"the annotation {TOPOLOGY_KEYS}",
    OTHER_HINTS: f"the annotation {TOPOLOGY_KEYS}, or spec.trafficDistribution without the topology mode Auto",
}


def unheard(service: Service, declaration: Declaration | None, endpoints: Iterable[LocatedEndpoint]) -> str:
    """Return why ``topodns.io/max-overload`` on *service* is not heard, "" if it is.

    *declaration* decides about the Service: that of a zone's default, too, where no other one does. *endpoints* are the
    ready ones.
    """
    if not service.headless:
        if is_federated(service):
            return FEDERATED_NAME
        return HINTED_ADDRESS if asks_for_hints(service.labels) else NOT_HEADLESS
    if declaration is None:
        return NO_CONSTRAINT
    if declaration.without_effect is not None:
        return declaration.without_effect
    if declaration.error is not None:
        return INVALID_CONSTRAINT
    return "" if is_ordered(declaration.constraint, endpoints) else OTHER_HINTS


def invalid_values(service: Service) -> Iterator[Finding]:
    """Yield a finding for each of the two annotations that counts as none."""
    if MAX_OVERLOAD in service.annotations and max_overload(service) is None:
        message = f"{quoted(service.annotations[MAX_OVERLOAD])} counts as none"
        expected = "a decimal number from 1.1 to 10"
        yield ClusterCode.InvalidMaxOverload.about(service, field_of(MAX_OVERLOAD), message, expected)
    if CLIENTS in service.annotations and asking(service) is None:
        message = f"{quoted(service.annotations[CLIENTS])} counts as none"
        expected = f"NAMESPACE[/SELECTOR], at most {MAX_SELECTORS} by ';', in {MAX_CLIENTS:,} characters"
        yield ClusterCode.InvalidClients.about(service, field_of(CLIENTS), message, expected)


def without_effect(
    service: Service,
    declaration: Declaration | None,
    endpoints: Iterable[LocatedEndpoint],
    counted: type[Object],
) -> Iterator[Finding]:
    """Yield a finding for each of the two annotations that is valid and not heard. *counted* is the kind of clients.

    The other arguments are as in ``unheard``. Where ``max-overload`` is not heard, ``clients`` is not either: that is
    said once.
    """
    selectors = asking(service)
    if max_overload(service) is None:
        if selectors is not None:
            yield _without_effect(service, CLIENTS, NO_MAX_OVERLOAD, f"both annotations: {MAX_OVERLOAD} and {CLIENTS}")
    elif why := unheard(service, declaration, endpoints):
        yield _without_effect(service, MAX_OVERLOAD, why, _EXPECTED.get(why, "clusterIP: None"))
    elif selectors is not None and counted is Node:
        yield _without_effect(service, CLIENTS, "topodns counts each node as one client", "--client-source pods")
    elif counted is PodLocator and any(one.selector.keys for one in selectors or ()):
        why = "topodns counts PodLocators, which do not have the labels of pods"
        yield _without_effect(service, CLIENTS, why, "a namespace alone", what="label selector")


def import_without_effect(service_import: ServiceImport) -> Iterator[Finding]:
    """Yield a finding for each of the two annotations: a multi-cluster name is not balanced."""
    for annotation in (MAX_OVERLOAD, CLIENTS):
        if annotation in service_import.annotations:
            why, expected = "multi-cluster names are not balanced", "the annotation at a Service"
            yield _without_effect(service_import, annotation, why, expected)


def _without_effect(
    about: Service | ServiceImport, annotation: str, why: str, expected: str, *, what: str = ""
) -> Finding:
    message = f"{what or annotation.rpartition('/')[2]} without effect: {why}"
    return ClusterCode.BalanceWithoutEffect.about(about, field_of(annotation), message, expected)


def by_numbers(
    service: Service,
    balance: Balance,
    counted: type[Object],
    exceeded: Sequence[str],
    running: Callable[[], Running],
) -> Iterator[Finding]:
    """Yield what is wrong in the balance of *service*: nobody asks, or some endpoints expect too many all the same.

    *counted* is the kind of clients. *exceeded* are the names of those endpoints.
    """
    selectors = None if counted is Node else asking(service)
    if balance.clients:
        if exceeded:
            yield impossible(service, balance.constraint, exceeded)
    elif selectors is None:
        if balance.constraint.soft or not running():  # else nobody is near an endpoint, which other findings tell
            yield nobody_counted(service, None, ())
    else:
        unmatched = (one for one in selectors if not any(one.matches(*pod) for pod in running()))
        yield from (nobody_counted(service, one, running()) for one in islice(unmatched, 1))


def nobody_counted(service: Service, wanted: ClientSelector | None, running: Running) -> Finding:
    """Return the finding that no client of *service* is counted, so that nothing is balanced.

    *wanted* is a selector that matches none of the *running* pods, each a namespace and labels; None if everybody may
    ask who is no endpoint. The finding names the nearest namespace or label that would match, and no numbers.
    """
    if wanted is None:
        message, expected = "no running pod but the Service's own endpoints", f"pods that ask, or {CLIENTS}"
        return ClusterCode.BalanceWithoutClients.about(service, field_of(MAX_OVERLOAD), _nobody(message), expected)
    there = [labels for namespace, labels in running if namespace == wanted.namespace]
    if not there:
        message = f"{wanted.text}: no running pod in namespace {wanted.namespace}"
        near = difflib.get_close_matches(wanted.namespace, sorted({namespace for namespace, _ in running}), 1)
        expected = near[0] if near else "a namespace with running pods"
    else:
        message = f"{wanted.text}: no running pod in {wanted.namespace} matches"
        near = difflib.get_close_matches(wanted.text.partition("/")[2], wanted.selector.labels_among(there), 1, 0.0)
        expected = (
            f"{wanted.namespace}/{near[0]}"
            if near
            else f"pods with the label {' or '.join(sorted(wanted.selector.keys))}"
        )
    return ClusterCode.BalanceWithoutClients.about(service, field_of(CLIENTS), _nobody(message), expected)


def _nobody(why: str) -> str:
    return f"nobody is counted, so nothing is balanced: {why}"


def impossible(service: Service, constraint: Constraint, endpoints: Sequence[str]) -> Finding:
    """Return the finding that the *endpoints*, by their names, expect more clients than they should all the same.

    *constraint* decides about the Service. The text has no numbers: they would change with each pod.
    """
    soft = constraint.soft
    why = "no other has room for them" if soft else "the constraint is hard, so they get no others"
    message = f"more clients than {MAX_OVERLOAD} allows at {listed(sorted(endpoints), NAMED)}: {why}"
    expected = "more endpoints, or clients on more nodes" if soft else "more endpoints near them, or a soft constraint"
    severity = INFO if soft else WARNING
    return ClusterCode.BalanceImpossible.about(service, field_of(MAX_OVERLOAD), message, expected, severity=severity)
