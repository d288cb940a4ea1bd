# SPDX-License-Identifier: Apache-2.0

"""What is simulated, by what the user has named: Services, constraints to try, clients, failed domains.

A selection that matches nothing is an error that says what would match.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from dnsserver.answers.decision import Authority
from dnsserver.names import FEDERATION, MULTICLUSTER, SERVICES, Zone
from dnsserver.spelling import listed, nearest_key, nearest_label, suggestion
from dnsserver.tools.simulation.as_if import Changes, service_as_if
from dnsserver.tools.simulation.world import Subject
from locator.api.dump_text import COMMAND
from locator.labels import ClientSelector
from locator.model import ZONE, Node, Pod, Service, labels_of
from locator.state.snapshot import CompiledService, Snapshot, lacking
from locator.topology.annotations import (
    CLIENTS,
    LEAST_OVERLOAD,
    MAX_OVERLOAD,
    MIN_ENDPOINTS,
    MOST_OVERLOAD,
    PREFIX,
    TOPOLOGY_KEYS,
    asking,
    max_overload,
    min_endpoints,
)
from locator.topology.constraints import ANNOTATION, has_unmatched
from locator.topology.hints import FOR_KUBE_PROXY

FEW = 12  # names that a message lists

# How annotations to try are read, beside the topology keys, and what is valid.
_VALUES: Mapping[str, tuple[Callable[[Service], object], str]] = {
    MIN_ENDPOINTS: (min_endpoints, "a whole number from 1 to 999999999"),
    CLIENTS: (asking, "NAMESPACE[/SELECTOR], several by ';'"),
    MAX_OVERLOAD: (max_overload, f"a decimal number from {LEAST_OVERLOAD:g} to {MOST_OVERLOAD:g}"),
}


class BadSelection(Exception):
    """A selection matches nothing, or what it matches cannot be simulated.

    ``argument`` is the flag, "" if it is none that was given; ``annotation`` the annotation to try that is invalid, ""
    if none is.
    """

    def __init__(self, argument: str, text: str, annotation: str = "") -> None:
        super().__init__(text)
        self.argument = argument
        self.annotation = annotation


def subjects(snapshot: Snapshot, authority: Authority, named: Sequence[str], changes: Changes) -> list[Subject]:
    """Return the names to simulate: those of the Services *named* (``namespace/name``), else of all constrained ones.

    Services whose constraints are tried are among the latter. If nothing is asked for, and no headless Service has a
    constraint, it is none. Raises BadSelection.
    """
    if named:
        if idle := [key for key in changes.annotations if key not in named]:
            expected = f"expected it among --service: {', '.join(named[:FEW])}"
            raise BadSelection("--with", f"{idle[0]} is not simulated, {expected}")
        known: dict[str, list[Subject]] = {key: [] for key in named}
        for subject in _all_subjects(snapshot, authority):
            known.get(subject.key, []).append(subject)
        if unknown := next((key for key in known if not known[key]), None):
            raise BadSelection("--service", _why_not(unknown, snapshot))
        return [*chain.from_iterable(known.values())]
    found = constrained_subjects(snapshot, authority, changes.annotations)
    headless = sum(service.service.headless for service in snapshot.services.values())
    if not found and not headless:
        raise BadSelection("", f"{lacking(snapshot, Service) or 'no headless Service'}, expected one")
    if not found and changes.failed:
        none = f"none of {headless} headless Services has a constraint"
        raise BadSelection("--fail", f"{none}, expected one; --service NS/NAME simulates a Service without one")
    return found


def unconstrained_subjects(snapshot: Snapshot, authority: Authority) -> list[Subject]:
    """Return the names, by the first zone, of all headless Services that have no constraint, in order."""
    first = service_zones(authority)[:1]
    return [
        subject
        for subject in _all_subjects(snapshot, authority)
        if subject.zone in first and not _constrained(subject, snapshot, authority)
    ]


def unready_subjects(snapshot: Snapshot, authority: Authority) -> Iterator[Subject]:
    """Yield those ``unconstrained_subjects`` that have endpoints, none of which is ready.

    Nothing is known of one without any endpoint: it may be meant to have none.
    """
    for subject in unconstrained_subjects(snapshot, authority) if snapshot.unready else ():
        compiled = snapshot.services[subject.key]
        if compiled.empty and compiled.cache_key in snapshot.unready:
            yield subject


def in_several_zones(found: Iterable[Subject], snapshot: Snapshot) -> list[Subject]:
    """Return those Services whose endpoints are in several zones, so that a constraint may gain something.

    The one with the most endpoints comes first.
    """
    locations = {subject: snapshot.services[subject.key].locations for subject in found}
    zones = {subject: {one.labels.get(ZONE) for one in there} - {None} for subject, there in locations.items()}
    several = [subject for subject in locations if len(zones[subject]) > 1]
    return sorted(several, key=lambda subject: (-len(locations[subject]), subject.key))


def constrained_subjects(snapshot: Snapshot, authority: Authority, tried: Collection[str] = ()) -> list[Subject]:
    """Return the names of all constrained Services, and of those whose constraints are *tried*, in order."""
    return [
        subject
        for subject in _all_subjects(snapshot, authority)
        if subject.key in tried or _constrained(subject, snapshot, authority)
    ]


def _all_subjects(snapshot: Snapshot, authority: Authority) -> Iterator[Subject]:
    """Yield the names of all Services whose endpoints DNS hands out, in order."""
    plain = service_zones(authority)
    for key in sorted(snapshot.services):
        service = snapshot.services[key]
        if service.service.headless:
            zones = plain if service.declaration is None else plain[:1]
            yield from (Subject(zone, key) for zone in zones)
    for about, known in ((FEDERATION, snapshot.federated), (MULTICLUSTER, snapshot.imported)):
        for zone in authority.zones:
            if zone.about == about:
                yield from (Subject(zone, key) for key in sorted(known))


def service_zones(authority: Authority) -> list[Zone]:
    """Return the zone whose names are simulated, and after it those that have other constraints by default."""
    zones = [zone for zone in authority.zones if zone.about == SERVICES and not zone.reverse]
    return [zone for number, zone in enumerate(zones) if not number or zone.name in authority.default_keys]


def _constrained(subject: Subject, snapshot: Snapshot, authority: Authority) -> bool:
    service = subject.service(snapshot)
    if not isinstance(service, CompiledService):
        return service is not None  # a federated name has a constraint in any case
    return authority.declaration(subject.zone, service) is not None or has_unmatched(service.declarations)


def _why_not(key: str, snapshot: Snapshot) -> str:
    """Return why a Service cannot be simulated."""
    known = snapshot.services.get(key)
    if known is not None:
        if known.service.alias is not None:
            return f"{key} is an alias (ExternalName), so DNS chooses no endpoints, expected a headless Service"
        why = f"{key} has a cluster IP, so DNS chooses no endpoints: kube-proxy does"
        return f"{why}, expected a headless Service, or for kube-proxy {FOR_KUBE_PROXY}"
    if why := lacking(snapshot, Service):
        return f"no Service {key}: {why}"
    namespace, _, name = key.partition("/")
    headless = [key for key, service in snapshot.services.items() if service.service.headless]
    near = nearest_key(namespace, name, headless)
    hint = f", did you mean {near}?" if near is not None else listed(headless)
    return f"no Service {key}{hint}"


def check_annotations(snapshot: Snapshot, changes: Changes) -> None:
    """Raise the first of the ``annotation_errors``, if there are any."""
    for error in annotation_errors(snapshot, changes):
        raise error


def annotation_errors(snapshot: Snapshot, changes: Changes) -> Iterator[BadSelection]:
    """Yield which annotations to try are invalid, or that their Service is unknown or not headless."""
    for key, wanted in changes.annotations.items():
        compiled = snapshot.services.get(key)
        if compiled is None or not (compiled.service.headless or key in snapshot.exported):
            yield BadSelection("--with", _why_not(key, snapshot))
            continue
        tried = service_as_if(compiled, replace(changes, failed=()))
        for declaration in tried.declarations:
            if TOPOLOGY_KEYS in wanted and declaration.source == ANNOTATION and declaration.error is not None:
                error = f"{key}={wanted[TOPOLOGY_KEYS]}: {declaration.error}, expected a constraint that is valid"
                yield BadSelection("--with", error, TOPOLOGY_KEYS)
        for annotation, (read, expected) in _VALUES.items():
            if (text := wanted.get(annotation)) is not None and read(tried.service) is None:
                error = f"{key}:{annotation.removeprefix(PREFIX)}={text}: {text!r} found, expected {expected}"
                yield BadSelection("--with", error, annotation)


def check_domains(failed: Collection[tuple[str, str]], nodes: Sequence[Node], snapshot: Snapshot) -> None:
    """Raise BadSelection if no node, and no endpoint, is in a domain that is to fail."""
    if failed and not nodes and (why := lacking(snapshot, Node)):
        raise BadSelection("--fail", f"{why}, expected some")
    labels = [node.labels for node in nodes]
    labels += [location.labels for service in snapshot.services.values() for location in set(service.locations)]
    for key, value in failed:
        values = {one[key] for one in labels if key in one}
        if not values:
            known = {other for one in labels for other in one}
            raise BadSelection("--fail", f"no node has the label {key}{nearest_label(key, known)}")
        if value not in values:
            raise BadSelection("--fail", f"no node has {key}={value}{suggestion(value, values)}")


def selected_clients(pods: Mapping[str, Sequence[Pod]], selectors: Sequence[ClientSelector]) -> dict[str, list[Pod]]:
    """Return the pods that ask, by cluster: the running ones, or those of them that some *selectors* match.

    Raises BadSelection.
    """
    by_cluster = running_pods(pods)
    running = [*chain.from_iterable(by_cluster.values())]
    if not running:
        total = sum(map(len, pods.values()))
        found = f"none of {total} pods runs and has an address" if total else "no pods (a dump must contain them)"
        advice = "--clients-from takes who asks from a running server"
        advice = advice if total else f"{COMMAND} prints all, and {advice}"
        raise BadSelection("--clients" if selectors else "", f"{found}, expected some that ask; {advice}")
    for selector in selectors:
        if not any(selector.matches(pod.namespace, labels_of(pod)) for pod in running):
            raise BadSelection("--clients", _nobody(selector, running))
    if not selectors:
        return by_cluster
    return {
        cluster: [pod for pod in those if any(one.matches(pod.namespace, labels_of(pod)) for one in selectors)]
        for cluster, those in by_cluster.items()
    }


def running_pods(pods: Mapping[str, Sequence[Pod]]) -> dict[str, list[Pod]]:
    """Return those of the pods of each cluster that run and have an address."""
    return {cluster: [pod for pod in those if pod.asks] for cluster, those in pods.items()}


def _nobody(wanted: ClientSelector, running: Sequence[Pod]) -> str:
    """Return why a selection matches no pod, and what would."""
    there = [pod for pod in running if pod.namespace == wanted.namespace]
    if not there:
        namespaces = {pod.namespace for pod in running}
        near = suggestion(wanted.namespace, namespaces)
        return f"{wanted.text}: no running pod in namespace {wanted.namespace}{near}"
    keys = dict.fromkeys(requirement.key for requirement in wanted.selector.requirements)
    labels = wanted.selector.labels_among(map(labels_of, there))
    some = f"; they have {', '.join(labels[:FEW])}" if labels else f"; none has {' or '.join(keys)}"
    return f"{wanted.text}: none of {len(there)} running pods in {wanted.namespace} matches{some}"
