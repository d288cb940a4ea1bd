# SPDX-License-Identifier: Apache-2.0

"""Who gets nothing, and which zones have lost the endpoints of a Service: what ``check`` and the console warn of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from dnsserver.names import SERVICES
from dnsserver.text import grouped
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.selecting import constrained_subjects, unready_subjects
from dnsserver.tools.simulation.service import Simulated, simulate
from dnsserver.tools.simulation.text import domain_text
from dnsserver.tools.simulation.world import World
from locator.findings import ClusterCode
from locator.model import ERROR, ZONE, Finding, Service, listed
from locator.state.snapshot import CompiledService, Snapshot
from locator.topology.constraints import in_effect

NAMED = 3  # places that a message names
MAX_DETAILED = 100  # Services by whose own labels clients are told apart: that goes through all nodes for each


class Unmet(NamedTuple):
    """How many ``clients`` in a place get nothing: a zone, or the labels that the constraint compares.

    ``place`` is "" for clients without such a label. ``unready`` are the Service's endpoints there, none of them ready.
    """

    place: str
    clients: int
    unready: int

    def __str__(self) -> str:
        return f"{self.clients:,} {where(self.place)}"


class LostZone(NamedTuple):
    """A Service with *endpoints* in a zone, none of them ready; *clients* are there, *unmet* of which get nothing."""

    service: str
    endpoints: int
    clients: int
    unmet: int


def where(place: str) -> str:
    """Return a place as a sentence has it."""
    return f"in {place}" if place else "without a zone"


def by_zone(simulated: Simulated) -> bool:
    """Whether the constraint compares zones."""
    return ZONE in in_effect(simulated.declaration).client_keys


def none_ready(unready: int, there: str = "") -> str:
    """Return that no endpoint of a Service is ready, of those *there* or of all."""
    who = "its only endpoint" if unready == 1 else f"none of its {unready:,} endpoints"
    return f"{who}{there and ' '}{there} is {'not ' if unready == 1 else ''}ready"


def unmet_in(simulated: Simulated, snapshot: Snapshot, *, detailed: bool = True) -> list[Unmet]:
    """Return who gets nothing of a Service: where it has lost its endpoints first, then where most clients are.

    Places are zones, or with *detailed* what the constraint compares if that is no zone.
    """
    places, lost = Counter[str](), lost_zones(simulated, snapshot)
    if detailed and not by_zone(simulated) and simulated.endpoints:
        for row in simulated.domains():
            if not row.choice.endpoints:
                places[domain_text(row.domain) if row.domain else ""] += row.clients
    else:
        for zone, clients in simulated.origins.items():
            places[zone or ""] += round(clients.unmet)
    found = [Unmet(place, clients, lost.get(place, 0)) for place, clients in places.items() if clients]
    return sorted(found, key=lambda one: (not one.unready, -one.clients, one.place))


def lost_zones(simulated: Simulated, snapshot: Snapshot) -> Mapping[str, int]:
    """Return the zones in which a Service has endpoints, none of which is ready, with how many; none if zones are not
    what it asks for.
    """
    service = simulated.service
    if not isinstance(service, CompiledService) or not by_zone(simulated):
        return {}
    ready = {located.location.labels.get(ZONE) for located in simulated.endpoints}
    unready = Counter(located.location.labels.get(ZONE) for located in snapshot.unready.get(service.cache_key, ()))
    return {zone: number for zone, number in unready.items() if zone and zone not in ready}


def lost_in(simulated: Simulated, snapshot: Snapshot) -> Iterator[tuple[str, LostZone]]:
    """Yield each of the ``lost_zones`` with what that means for the clients there."""
    for zone, endpoints in lost_zones(simulated, snapshot).items():
        there = simulated.origins.get(zone)
        clients, unmet = (0, 0) if there is None else (round(there.clients), round(there.unmet))
        yield zone, LostZone(simulated.subject.key, endpoints, clients, unmet)


def unmet_message(simulated: Simulated, places: Iterable[Unmet] = ()) -> str:
    """Return how many clients get nothing, and where the most of them are."""
    named = listed(list(map(str, places)), NAMED)
    verb = "gets" if simulated.unmet == 1 else "get"
    return f"{simulated.unmet:,} of {grouped(simulated.clients, 'client')} {verb} no address{named and ': '}{named}"


def unmet_findings(world: World, known: Iterable[Finding]) -> Iterator[Finding]:
    """Yield what is wrong for the clients of the own cluster's Services, those that are constrained or all unready.

    Without clients, it is nothing. What an error among the *known* findings says of a Service is not said again.
    """
    if not world.own.numbers:
        return
    said = {(one.namespace, one.name) for one in known if one.kind == Service.__name__ and one.severity == ERROR}
    snapshot, groupings, detailed = world.snapshot, Groupings(world), 0
    authority = world.authority
    for subject in chain(constrained_subjects(snapshot, authority), unready_subjects(snapshot, authority)):
        if subject.zone.about != SERVICES:
            continue
        simulated, service = simulate(subject, world, groupings), snapshot.services[subject.key].service
        if simulated.unmet and (service.namespace, service.name) not in said:
            said.add((service.namespace, service.name))  # it may have a name in several DNS zones
            detailed += 1
            places = unmet_in(simulated, snapshot, detailed=detailed <= MAX_DETAILED)
            message, expected = unmet_message(simulated, places), "an endpoint for each"
            unready = snapshot.unready.get(subject.key)
            if unready and not simulated.endpoints and not by_zone(simulated):  # else its zones say so
                message += f"; {none_ready(len(unready))}"
            yield ClusterCode.UnmetClients.finding(
                "Service", service.namespace, service.name, message=message, expected=expected
            )
        for zone, lost in lost_in(simulated, snapshot):
            yield _zone_without_endpoints(service, zone, lost)


def _zone_without_endpoints(service: Service, zone: str, lost: LostZone) -> Finding:
    clients, unmet = lost.clients, lost.unmet
    if unmet:
        effect = f"{unmet:,} of {grouped(clients, 'client')} there {'gets' if unmet == 1 else 'get'} no address"
    elif clients:
        effect = f"{grouped(clients, 'client')} there {'gets' if clients == 1 else 'get'} those of other zones"
    else:
        effect = "no client is there"
    message = f"{none_ready(lost.endpoints, f'in zone {zone}')}: {effect}"
    return ClusterCode.ZoneWithoutEndpoints.finding(
        "Service", service.namespace, service.name, message=message, expected="one that is ready"
    )
