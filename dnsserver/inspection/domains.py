"""Counts what is in each topology domain: nodes, endpoints and clients.

A large cluster has 150,000 clients, so this is done in steps, between which a server answers queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypedDict

from msgspec import Struct

from dnsserver.inspection.steps import STEP, Steps
from locator.model import CLUSTER, HOSTNAME, REGION, SUCCESSORS, ZONE, Location, Node
from locator.state.snapshot import Snapshot, book_of
from locator.topology.selection import ANY


class DomainCounts(TypedDict):
    """A topology domain and what is in it. The value is null for what has no such label.

    ``endpoints`` are the ready ones of all Services. ``clients`` are the addresses that topodns locates by an object,
    those of IPv4 or of IPv6, whichever are more: a dual-stack pod is one client.
    """

    key: str
    value: str | None
    nodes: int
    endpoints: int
    clients: int


class Domains(TypedDict):
    """The domains of some topology keys."""

    domains: list[DomainCounts]


class ClusterContents(Struct, frozen=True):
    """One cluster: its name, its snapshot and its Nodes."""

    name: str
    snapshot: Snapshot
    nodes: Sequence[Node]


def keys_in_use(snapshot: Snapshot) -> Steps[tuple[str, ...]]:
    """Return region, zone, and the other keys of constraints, without the hostname: each node is a domain of that."""
    declared = set[str]()
    for number, service in enumerate(snapshot.services.values()):
        if not number % STEP:
            yield
        declaration = service.declaration
        if declaration is not None and declaration.valid:
            declared.update(SUCCESSORS.get(key, key) for key in declaration.constraint.keys)
    return (REGION, ZONE, *sorted(declared - {REGION, ZONE, HOSTNAME, ANY}))


def domains_of(clusters: Sequence[ClusterContents], keys: Sequence[str]) -> Steps[Domains]:
    """Return the domains of *keys*, each key's by their values, and last what has no value."""
    endpoints, clients = Counter[Location](), Counter[Location]()
    for cluster in clusters:
        yield from _count_endpoints(endpoints, cluster.snapshot)
        yield from _count_clients(clients, cluster.snapshot)
    domains: list[DomainCounts] = []
    for key in keys:
        counts = [(yield from _nodes_by_value(clusters, key))]
        for locations in (endpoints, clients):
            counts.append((yield from _by_value(locations, key)))
        values = set[str | None]().union(*counts)
        in_order: list[str | None] = [*sorted(value for value in values if value is not None)]
        for number, value in enumerate([*in_order, None] if None in values else in_order):
            if not number % STEP:
                yield
            on, ready, asking = (by_value[value] for by_value in counts)
            domains.append({"key": key, "value": value, "nodes": on, "endpoints": ready, "clients": asking})
    return {"domains": domains}


def _nodes_by_value(clusters: Sequence[ClusterContents], key: str) -> Steps[Counter[str | None]]:
    by_value = Counter[str | None]()
    for cluster in clusters:
        for number, node in enumerate(cluster.nodes):
            if not number % STEP:
                yield
            by_value[cluster.name if key == CLUSTER else node.labels.get(key)] += 1
    return by_value


def _by_value(locations: Counter[Location], key: str) -> Steps[Counter[str | None]]:
    by_value = Counter[str | None]()
    for number, (location, times) in enumerate(locations.items()):
        if not number % STEP:
            yield
        by_value[location.value(key)] += times
    return by_value


def _count_endpoints(counts: Counter[Location], snapshot: Snapshot) -> Steps[None]:
    """Count the ready endpoints by location: of all Services, in another cluster of those that it exports."""
    services = snapshot.services or {key: found.compiled for key, found in snapshot.exported.items()}
    left = 0
    for service in services.values():
        left -= 1 + len(service.locations)
        if left < 0:
            left = STEP
            yield
        counts.update(service.locations)


def _count_clients(counts: Counter[Location], snapshot: Snapshot) -> Steps[None]:
    """Count the clients by location."""
    four, six = Counter[Location](), Counter[Location]()
    for number, (address, place) in enumerate(book_of(snapshot).places.items()):
        if not number % STEP:
            yield
        if place.location.known:
            (four if len(address) == 4 else six)[place.location] += 1
    yield
    counts.update(four | six)
