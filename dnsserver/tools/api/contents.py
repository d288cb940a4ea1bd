# SPDX-License-Identifier: Apache-2.0

"""What is in the clusters: topology domains with their nodes, endpoints and clients; Services that ask for something.

A large cluster has 150,000 clients. Whoever goes through them takes them in ``batches``, between which the server
answers queries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import trio
from msgspec import Struct

from dnsserver.tools.api.operations import ConstrainedService, ConstrainedServices, DomainCounts, Domains
from dnsserver.tools.explain.explain import constraint_explained
from locator.model import CLUSTER, HOSTNAME, REGION, SUCCESSORS, ZONE, Location, Node
from locator.state.snapshot import CompiledService, Snapshot, book_of
from locator.topology.selection import ANY_ENDPOINT

BATCH = 1000  # items: half a millisecond or so, for which queries wait
SERVICE_BATCH = BATCH // 40  # at a time with their endpoints: a Service has up to some hundreds

T = TypeVar("T")


async def batches(items: Iterable[T], size: int = BATCH) -> AsyncIterator[list[T]]:
    """Yield *items* in order, *size* at a time, and let other tasks run after each time. Take all of them."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch
        await trio.lowlevel.checkpoint()


class ClusterContents(Struct, frozen=True):
    """One cluster: its name, its snapshot and its Nodes."""

    name: str
    snapshot: Snapshot
    nodes: Sequence[Node]

    @property
    def services(self) -> Mapping[str, CompiledService]:
        """Its Services; of another cluster those that it exports."""
        return self.snapshot.services or {key: found.compiled for key, found in self.snapshot.exported.items()}


class Located(Struct, frozen=True):
    """How many endpoints of all Services, ready and ``unready``, and how many clients, are at each location.

    Clients are the addresses that topodns locates by an object, those of IPv4 or of IPv6, whichever are more: a
    dual-stack pod is one client.
    """

    endpoints: Mapping[Location, int]
    clients: Mapping[Location, int]
    unready: Mapping[Location, int]


async def located_in(clusters: Sequence[ClusterContents]) -> Located:
    """Return what is at each location of all clusters."""
    endpoints, clients, unready = Counter[Location](), Counter[Location](), Counter[Location]()
    for cluster in clusters:
        async for services in batches(cluster.services.values(), SERVICE_BATCH):
            for service in services:
                endpoints.update(service.locations)
                unready.update(one.location for one in cluster.snapshot.unready.get(service.cache_key, ()))
        four, six = Counter[Location](), Counter[Location]()
        async for places in batches(book_of(cluster.snapshot).places.items()):
            for address, place in places:
                if place.location.known:
                    (four if len(address) == 4 else six)[place.location] += 1
        clients.update(four | six)
    return Located(endpoints, clients, unready)


async def keys_in_use(services: Mapping[str, CompiledService]) -> tuple[str, ...]:
    """Return region, zone, and the other keys of constraints, without the hostname: each node is a domain of that."""
    declared = set[str]()
    async for batch in batches(services.values()):
        for declaration in [service.declaration for service in batch]:
            if declaration is not None and declaration.valid:
                declared.update(SUCCESSORS.get(key, key) for key in declaration.constraint.keys)
    return (REGION, ZONE, *sorted(declared - {REGION, ZONE, HOSTNAME, ANY_ENDPOINT}))


async def domains_of(clusters: Sequence[ClusterContents], keys: Sequence[str]) -> Domains:
    """Return the domains of *keys*, each key's by their values, and last what has no value."""
    located = await located_in(clusters)
    domains: list[DomainCounts] = []
    for key in keys:
        nodes = Counter[str | None]()
        async for values in batches(_values_of_nodes(clusters, key)):
            nodes.update(values)
        endpoints, clients = await _by_value(located.endpoints, key), await _by_value(located.clients, key)
        found = sorted({*nodes, *endpoints, *clients}, key=lambda value: (value is None, value or ""))
        async for batch in batches(found):
            for value in batch:
                on, ready, asking = nodes[value], endpoints[value], clients[value]
                domains.append({"key": key, "value": value, "nodes": on, "endpoints": ready, "clients": asking})
    return {"domains": domains}


def _values_of_nodes(clusters: Sequence[ClusterContents], key: str) -> Iterator[str | None]:
    for cluster in clusters:
        yield from (cluster.name if key == CLUSTER else node.labels.get(key) for node in cluster.nodes)


async def _by_value(locations: Mapping[Location, int], key: str) -> Counter[str | None]:
    by_value = Counter[str | None]()
    async for batch in batches(locations.items()):
        for location, times in batch:
            by_value[location.value(key)] += times
    return by_value


async def constrained_services(
    services: Mapping[str, CompiledService], *, after: str, limit: int
) -> ConstrainedServices:
    """Return at most *limit* constrained Services, those whose ``namespace/name`` comes *after* in the alphabet."""
    constrained = list[str]()
    async for batch in batches(services.items()):
        constrained += sorted(key for key, service in batch if service.declaration is not None)
    constrained.sort()  # batches in order, which takes little
    keys = constrained[bisect_right(constrained, after) :][: limit + 1]
    return {
        "items": [_item(services[key]) for key in keys[:limit]],
        "total": len(constrained),
        "continue": keys[limit - 1] if len(keys) > limit else None,
    }


def _item(compiled: CompiledService) -> ConstrainedService:
    assert compiled.declaration is not None
    service = compiled.service
    return {
        "namespace": service.namespace,
        "name": service.name,
        "constraint": constraint_explained(compiled.declaration),
    }
