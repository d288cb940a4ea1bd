# SPDX-License-Identifier: Apache-2.0

"""Counts what is in each topology domain: nodes, endpoints and clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypedDict

from dnsserver.tools.pages.located import ClusterContents, located_in
from dnsserver.tools.pages.steps import STEP, Steps
from locator.model import CLUSTER, HOSTNAME, REGION, SUCCESSORS, ZONE, Location
from locator.state.snapshot import Snapshot
from locator.topology.selection import ANY_ENDPOINT


class DomainCounts(TypedDict):
    """A topology domain and what is in it. The value is null for what has no such label.

    ``endpoints`` and ``clients`` are those of ``Located``.
    """

    key: str
    value: str | None
    nodes: int
    endpoints: int
    clients: int


class Domains(TypedDict):
    """The domains of some topology keys."""

    domains: list[DomainCounts]


def keys_in_use(snapshot: Snapshot) -> Steps[tuple[str, ...]]:
    """Return region, zone, and the other keys of constraints, without the hostname: each node is a domain of that."""
    declared = set[str]()
    for number, service in enumerate(snapshot.services.values()):
        if not number % STEP:
            yield
        declaration = service.declaration
        if declaration is not None and declaration.valid:
            declared.update(SUCCESSORS.get(key, key) for key in declaration.constraint.keys)
    return (REGION, ZONE, *sorted(declared - {REGION, ZONE, HOSTNAME, ANY_ENDPOINT}))


def domains_of(clusters: Sequence[ClusterContents], keys: Sequence[str]) -> Steps[Domains]:
    """Return the domains of *keys*, each key's by their values, and last what has no value."""
    located = yield from located_in(clusters)
    domains: list[DomainCounts] = []
    for key in keys:
        counts = [(yield from _nodes_by_value(clusters, key))]
        for locations in (located.endpoints, located.clients):
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


def _by_value(locations: Mapping[Location, int], key: str) -> Steps[Counter[str | None]]:
    by_value = Counter[str | None]()
    for number, (location, times) in enumerate(locations.items()):
        if not number % STEP:
            yield
        by_value[location.value(key)] += times
    return by_value
