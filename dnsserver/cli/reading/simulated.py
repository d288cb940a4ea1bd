# SPDX-License-Identifier: Apache-2.0

"""Reads what ``topodns simulate`` simulates: the clusters, as they are and as they would be, and who asks in them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dnsserver.cli.cluster import ReadClusters, read_clients
from dnsserver.cli.errors import Failed, WrongInput
from dnsserver.cli.remote import SERVERS, NoResponse, body_of, requested
from dnsserver.metrics.reading import answers_by_zone
from dnsserver.names import SERVICES
from dnsserver.programs.from_settings import authority_of
from dnsserver.settings.fields import Settings
from dnsserver.tools.simulation.as_if import Changes, imports_as_if, snapshot_as_if
from dnsserver.tools.simulation.clients import AskingPod, AskingPods, CountedAnswers
from dnsserver.tools.simulation.results import Simulation
from dnsserver.tools.simulation.selecting import (
    Asking,
    BadSelection,
    asking,
    check_annotations,
    check_domains,
    running_pods,
)
from dnsserver.tools.simulation.service import World
from locator.api.dump_text import COMMAND
from locator.findings import ClusterCode
from locator.model import OWN, ZONE, ClientPod, EndpointSlice, Finding, Pod
from locator.state.object_checks import nearness_findings
from locator.state.snapshot import LACKING, Snapshot
from locator.topology.constraints import in_effect
from locator.topology.service_checks import CarriedKeys, overridden_findings, service_key_findings

SCRAPE_SECONDS = 30.0
AS_SIMULATED = frozenset([ClusterCode.HintsIncomplete.name])  # of a Service as it is simulated, not as it was read


def read_world(
    settings: Settings, changes: Changes, wanted: Sequence[Asking], counted: CountedAnswers | None
) -> tuple[World, ReadClusters]:
    """Read the clusters, and return what to simulate. Raises CommandError."""
    reading = read_clients(settings, [one.selector for one in wanted])
    if EndpointSlice.__name__ in reading.own.lacks and reading.own.services:
        raise WrongInput(f"--snapshot: {LACKING[EndpointSlice.__name__]}, expected some; {COMMAND} prints all")
    actual = reading.publication.snapshot
    alone = reading.snapshots
    clusters = {name or settings.cluster_name: snapshot for name, snapshot in alone.items()}
    try:
        check_annotations(reading.own, changes)
        check_domains(changes.failed, reading.nodes, actual)
        pods, needed = _pods(reading, settings.cluster_name), wanted or counted is None
        # With counted answers, the pods only say where in a zone the load comes from: there may be none.
        clients = {
            name: _clients(name, those, clusters[name])
            for name, those in (asking(pods, wanted) if needed else running_pods(pods)).items()
        }
    except BadSelection as error:
        raise WrongInput(f"{error.argument}: {error}") from None
    own = everywhere = _all_of([clients.get(settings.cluster_name, ())], endpoints_too=bool(wanted))
    if len(clients) > 1:
        everywhere = _all_of(clients.values(), endpoints_too=bool(wanted))
    world = World(
        snapshot=_changed(reading, changes, alone),
        actual=actual,
        clusters=clusters,
        authority=authority_of(settings),
        cluster=settings.cluster_name,
        own=own,
        everywhere=everywhere,
        counted=counted,
    )
    return world, reading


def constraint_findings(
    simulation: Simulation, reading: ReadClusters, world: World, changes: Changes
) -> Iterator[Finding]:
    """Yield what is wrong in the constraints of the Services that were simulated, as they are or as they were tried."""
    as_they_are = {simulated.subject.key for simulated in simulation.services} - changes.annotations.keys()
    for finding in reading.publication.findings:
        key = f"{finding.namespace}/{finding.name}"
        is_simulated = finding.kind == "Service" and not finding.cluster and key in as_they_are
        if (is_simulated and finding.code not in AS_SIMULATED) or finding.code == ClusterCode.KindMissing.name:
            yield finding
    yield from _nearness_findings(simulation, reading, world)
    carried = CarriedKeys(frozenset(key for node in reading.nodes for key in node.labels))
    for key in changes.annotations:
        compiled = world.snapshot.services[key]
        if (declaration := compiled.declaration) is not None and declaration.valid:
            yield from service_key_findings(compiled.service, declaration, compiled.locations, carried)
            if not compiled.service.headless:  # about headless ones, that has been said
                yield from overridden_findings(compiled.service, compiled.declarations)


def _nearness_findings(simulation: Simulation, reading: ReadClusters, world: World) -> Iterator[Finding]:
    """Yield what is worth knowing about what the Services that were simulated ask for."""
    own, services = reading.publishers[OWN], world.snapshot.services
    plain = {one.subject.key: one for one in simulation.services if one.subject.zone.about == SERVICES}
    for key, simulated in plain.items():
        yield from map(own.with_file, nearness_findings(services[key], services, simulated.declaration))
    if any(ZONE in in_effect(simulated.declaration).client_keys for simulated in simulation.services):
        for finding in reading.publication.findings:
            if finding.code == ClusterCode.ZoneInTwoRegions.name and not finding.cluster:
                yield finding


def _pods(reading: ReadClusters, own: str) -> dict[str, Sequence[ClientPod]]:
    """Return the pods by the name of their cluster."""
    return {name if name != OWN else own: read.objects().get(Pod, ()) for name, read in reading.read.items()}


def _clients(cluster: str, pods: Sequence[ClientPod], snapshot: Snapshot) -> list[AskingPod]:
    """Return pods as clients: each is where a server of its own cluster would locate its first address.

    Pods of two clusters may have one address.
    """
    locate = snapshot.addresses.locate
    return [AskingPod(cluster, pod.key, pod.addresses, locate(pod.addresses[0]).location) for pod in pods]


def _all_of(parts: Iterable[Iterable[AskingPod]], *, endpoints_too: bool) -> AskingPods:
    clients = AskingPods(endpoints_too=endpoints_too)
    for part in parts:
        for client in part:
            clients.add(client)
    return clients


def _changed(reading: ReadClusters, changes: Changes, alone: Mapping[str, Snapshot]) -> Snapshot:
    """Return the snapshot of all clusters with the changes; *alone* has that of each without them."""
    if not changes.annotations and not changes.failed:
        return reading.publication.snapshot
    own, clusters = snapshot_as_if(alone[OWN], changes), reading.joined
    if clusters is None:
        return own
    clusters.update_own(own)
    for name, snapshot in alone.items():
        if name != OWN:
            clusters.update(name, snapshot_as_if(snapshot, changes, own=False))
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
