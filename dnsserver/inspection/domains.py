"""Counts what is in each topology domain: nodes, endpoints and clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from msgspec import Struct

from locator.model import HOSTNAME, REGION, SUCCESSORS, ZONE, Location
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
    """One cluster: its snapshot, and the labels of each of its nodes, that of the cluster among them."""

    snapshot: Snapshot
    nodes: Sequence[Mapping[str, str]]


def keys_in_use(snapshot: Snapshot) -> tuple[str, ...]:
    """Return region, zone, and the other keys of constraints, without the hostname: each node is a domain of that."""
    declared = {
        SUCCESSORS.get(key, key)
        for service in snapshot.services.values()
        if (declaration := service.declaration) is not None and declaration.valid
        for key in declaration.constraint.keys
    }
    return (REGION, ZONE, *sorted(declared - {REGION, ZONE, HOSTNAME, ANY}))


def domains_of(clusters: Iterable[ClusterContents], keys: Sequence[str]) -> Domains:
    """Return the domains of *keys*, each key's by their values, and last what has no value."""
    nodes, endpoints, clients = (Counter[tuple[str, str | None]]() for _ in range(3))
    for cluster in clusters:
        for labels in cluster.nodes:
            nodes.update((key, labels.get(key)) for key in keys)
        for location, number in _endpoints(cluster.snapshot).items():
            _count(endpoints, keys, location, number)
        for location, number in _clients(cluster.snapshot).items():
            _count(clients, keys, location, number)
    return {
        "domains": [
            {
                "key": key,
                "value": value,
                "nodes": nodes[key, value],
                "endpoints": endpoints[key, value],
                "clients": clients[key, value],
            }
            for key, value in sorted(
                nodes.keys() | endpoints.keys() | clients.keys(),
                key=lambda domain: (keys.index(domain[0]), domain[1] is None, domain[1] or ""),
            )
        ]
    }


def _count(counts: Counter[tuple[str, str | None]], keys: Sequence[str], location: Location, number: int) -> None:
    for key in keys:
        counts[key, location.value(key)] += number


def _endpoints(snapshot: Snapshot) -> Counter[Location]:
    """Return the number of ready endpoints by location: of all Services, in another cluster of those it exports."""
    counts = Counter[Location]()
    services = snapshot.services or {key: found.compiled for key, found in snapshot.exported.items()}
    for service in services.values():
        counts.update(service.locations)
    return counts


def _clients(snapshot: Snapshot) -> Counter[Location]:
    """Return the number of clients by location."""
    four, six = Counter[Location](), Counter[Location]()
    for address, place in book_of(snapshot).places.items():
        if place.location.known:
            (four if len(address) == 4 else six)[place.location] += 1
    return four | six
