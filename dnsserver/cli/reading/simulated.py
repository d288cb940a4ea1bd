# SPDX-License-Identifier: Apache-2.0

"""Reads what ``topodns simulate`` simulates: the clusters, as they are and as they would be, and who asks in them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from msgspec.structs import replace

from dnsserver.cli.cluster import ReadClusters, read_clients
from dnsserver.cli.errors import Failed, WrongInput
from dnsserver.cli.remote import SERVERS, NoResponse, body_of, requested
from dnsserver.metrics.reading import answers_by_zone
from dnsserver.names import SERVICES
from dnsserver.programs.from_settings import authority_of
from dnsserver.settings.settings import Settings
from dnsserver.tools.simulation.as_if import Changes, annotated, imports_as_if, snapshot_as_if
from dnsserver.tools.simulation.codes import WITHOUT_NODES, findings_of
from dnsserver.tools.simulation.selecting import (
    check_annotations,
    check_domains,
    running_pods,
    selected_clients,
)
from dnsserver.tools.simulation.service import Simulated
from dnsserver.tools.simulation.world import AskingPods, CountedAnswers, World, world_of
from locator.api.dump_text import COMMAND
from locator.findings import ClusterCode
from locator.labels import ClientSelector
from locator.model import OWN, SEVERITIES, ZONE, EndpointSlice, Finding, Node, Pod, Service
from locator.state.object_checks import asking_by_pods, nearness_findings
from locator.state.snapshot import LACKING, Snapshot, lacking
from locator.topology.annotations import labels_asked_for
from locator.topology.constraints import in_effect
from locator.topology.service_checks import CarriedKeys, overridden_findings, service_key_findings

SCRAPE_SECONDS = 30.0
# Of a Service as it is simulated, not as it was read.
AS_SIMULATED = frozenset(
    code.name
    for code in (
        ClusterCode.HintsIncomplete,
        ClusterCode.BalanceWithoutEffect,
        ClusterCode.BalanceWithoutClients,
        ClusterCode.BalanceImpossible,
    )
)


def read_world(
    settings: Settings, changes: Changes, selectors: Sequence[ClientSelector], counted: CountedAnswers | None
) -> tuple[World, ReadClusters]:
    """Read the clusters, and return what to simulate. Raises CommandError, BadSelection."""
    reading = _read(settings, changes, selectors)
    if EndpointSlice.__name__ in reading.own.lacks and reading.own.services:
        raise WrongInput(f"--snapshot: {LACKING[EndpointSlice.__name__]}, expected some; {COMMAND} prints all")
    actual, own, alone = reading.publication.snapshot, settings.cluster_name, reading.snapshots
    clusters = {name or own: snapshot for name, snapshot in alone.items()}
    check_annotations(reading.own, changes)
    check_domains(changes.failed, reading.nodes, actual)
    pods = {name or own: read.objects().get(Pod, ()) for name, read in reading.read.items()}
    # With counted answers, the pods only say where in a zone the load comes from: there may be none.
    clients = selected_clients(pods, selectors) if selectors or counted is None else running_pods(pods)

    def those_in(names: Iterable[str]) -> AskingPods:
        found = AskingPods(endpoints_too=bool(selectors))
        for name in names:
            for pod in clients[name]:
                found.add(name, pod, clusters[name].addresses)
        return found

    in_own = those_in([own])
    everywhere = in_own if len(clients) == 1 else those_in(clients)
    world = replace(
        world_of(actual, in_own, authority_of(settings), own),
        snapshot=_changed(reading, changes, alone), clusters=clusters, everywhere=everywhere, counted=counted,
    )  # fmt: skip
    return world, reading


def _read(settings: Settings, changes: Changes, selectors: Sequence[ClientSelector]) -> ReadClusters:
    """Read the clusters, and all labels of Pods by which somebody may be told to ask.

    Only when Services have been read, it is known which of them say who asks although they are not balanced yet.
    """
    labels = {key for one in selectors for key in one.selector.keys}
    reading = read_clients(settings, labels)
    services = reading.objects.get(Service, ())
    tried = (annotated(service, changes.annotations.get(service.key, {})) for service in services)
    asked = labels_asked_for(tried, not_balanced_too=True)
    if asked <= labels | labels_asked_for(services):
        return reading
    return read_clients(settings, labels | asked)


def check_zones(world: World, reading: ReadClusters) -> None:
    """Raise WrongInput if the clusters do not say in which zone any client is, because Nodes are missing."""
    if reading.nodes or world.counted is not None or any(ZONE in place.location.labels for place in world.own.numbers):
        return
    found = lacking(world.snapshot, Node) or "no Nodes"
    raise WrongInput(
        f"--snapshot: {found}, so nothing says which client is in which zone, expected some; {COMMAND} prints all"
    )


def world_as_if(world: World, reading: ReadClusters, changes: Changes) -> World:
    """Return what is simulated if the clusters differ by *changes*."""
    return replace(world, snapshot=_changed(reading, changes, reading.snapshots))


def findings_in(
    services: Sequence[Simulated], reading: ReadClusters, world: World, changes: Changes, max_overload: float
) -> list[Finding]:
    """Return what is wrong in the constraints that were simulated, and what came of them: the most severe first."""
    findings = [*_constraint_findings(services, reading, world, changes)]
    missing = {finding.kind for finding in findings if finding.code == ClusterCode.KindMissing.name}
    following = WITHOUT_NODES if Node.__name__ in missing else ()
    for simulated in services:
        findings += [found for found in findings_of(simulated, max_overload) if found.code not in following]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _constraint_findings(
    services: Sequence[Simulated], reading: ReadClusters, world: World, changes: Changes
) -> Iterator[Finding]:
    """Yield what is wrong in the constraints of the Services that were simulated, as they are or as they were tried."""
    as_they_are = {simulated.subject.key for simulated in services} - changes.annotations.keys()
    for finding in reading.publication.findings:
        key = f"{finding.namespace}/{finding.name}"
        is_simulated = finding.kind == "Service" and not finding.cluster and key in as_they_are
        if (is_simulated and finding.code not in AS_SIMULATED) or finding.code == ClusterCode.KindMissing.name:
            yield finding
    yield from _nearness_findings(services, reading, world)
    carried = CarriedKeys(frozenset(key for node in reading.nodes for key in node.labels))
    for key in changes.annotations:
        compiled = world.snapshot.services[key]
        if (declaration := compiled.declaration) is not None and declaration.valid:
            yield from service_key_findings(compiled.service, declaration, compiled.locations, carried)
            if not compiled.service.headless:  # about headless ones, that has been said
                yield from overridden_findings(compiled.service, compiled.declarations)


def _nearness_findings(services: Sequence[Simulated], reading: ReadClusters, world: World) -> Iterator[Finding]:
    """Yield what is worth knowing about what the Services that were simulated ask for."""
    own, known = reading.publishers[OWN], world.snapshot.services
    plain = {one.subject.key: one for one in services if one.subject.zone.about == SERVICES}
    asking = cache(lambda: asking_by_pods(compiled for _, compiled in sorted(known.items())))
    for key, simulated in plain.items():
        yield from map(own.with_file, nearness_findings(known[key], simulated.declaration, asking))
        balances = world.snapshot.balances.get(key, ())
        yield from map(own.with_file, own.store.balance_findings(known[key], balances))
    if any(ZONE in in_effect(simulated.declaration).client_keys for simulated in services):
        for finding in reading.publication.findings:
            if finding.code == ClusterCode.ZoneInTwoRegions.name and not finding.cluster:
                yield finding


def _changed(reading: ReadClusters, changes: Changes, alone: Mapping[str, Snapshot]) -> Snapshot:
    """Return the snapshot of all clusters with the changes; *alone* has that of each without them."""
    if not changes.annotations and not changes.failed:
        return reading.publication.snapshot
    own, clusters = snapshot_as_if(alone[OWN], changes, reading.publishers[OWN].store.plans_of), reading.joined
    if clusters is None:
        return own
    clusters.update_own(own)
    elsewhere = replace(changes, annotations={})
    for name, snapshot in alone.items():
        if name != OWN:
            plans_of = reading.publishers[name].store.plans_of
            clusters.update(name, snapshot_as_if(snapshot, elsewhere, plans_of))
    return imports_as_if(clusters.publish(int(time.time())), changes)


def read_counted(url: str) -> CountedAnswers:
    """Return the answers that a running server at *url* has counted by zone. Raises CommandError."""
    flag = f"--clients-from {url}"
    try:
        with requested(f"{url}/metrics", accept="text/plain", timeout=SCRAPE_SECONDS) as response:
            page = body_of(response, flag)
    except NoResponse as error:
        raise Failed(f"{flag}: {error}, expected {SERVERS}") from None
    if response.status != 200:
        raise Failed(f"{flag}: HTTP status {response.status} found at /metrics, expected metrics of topodns")
    found = answers_by_zone(page.decode(errors="replace"))
    if found is None:
        raise Failed(f"{flag}: no topodns_answer_zones_total found at /metrics, expected metrics of topodns")
    zones, of_services = found
    if not any(zones.values()):
        raise WrongInput(
            f"{flag}: the server has counted no answers yet, expected some; it counts those with endpoints"
        )
    return CountedAnswers(zones, of_services)
