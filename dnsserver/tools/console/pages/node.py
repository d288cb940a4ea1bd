# SPDX-License-Identifier: Apache-2.0

"""What is on a node: endpoints of Services, and clients."""

from __future__ import annotations

from starlette.requests import Request

from dnsserver.tools.api.contents import SERVICE_BATCH, ClusterContents, batches
from dnsserver.tools.console.page import PAGE, Page, PageContext, PageMissing, part_of, read
from locator.ip import host_network
from locator.model import CLUSTER, Node
from locator.places.book import Place
from locator.state.snapshot import book_of

ROWS = 50  # endpoints, and as many clients

Position = tuple[str, bool, int]  # the key of a Service, whether it is among its ready endpoints, and which of them


async def node_page(context: PageContext, request: Request) -> Page:
    """Return a node of a cluster with a part of what is on it."""
    inspected, cluster, name = context.inspected, request.path_params["cluster"], request.path_params["name"]
    given = read(request, PAGE)
    inspected.current()
    publisher = inspected.clusters.get(cluster)
    if publisher is None or publisher.snapshot is None:
        raise PageMissing(f"no cluster {cluster}; there are {', '.join(inspected.clusters)}")
    nodes = await publisher.objects(Node)
    contents = ClusterContents(cluster, publisher.snapshot, list(nodes.values()))
    services, snapshot, node = contents.services, contents.snapshot, nodes.get(name)
    positions, clients = await endpoints_on(contents, name), await clients_on(contents, name)
    if node is None and not positions and not clients:
        raise PageMissing(f"no node {name} in cluster {cluster}, and nothing is on one of this name")
    there, asking = part_of(positions, given["page"], ROWS), part_of(clients, given["page"], ROWS)
    endpoints = []
    for key, ready, number in there.rows:
        compiled = services[key]
        located = compiled.endpoints if ready else snapshot.unready[compiled.cache_key]
        endpoints.append((compiled.service, located[number].endpoint, ready))
    book = snapshot.addresses
    shown = {
        "cluster": cluster,
        "is_own": cluster == inspected.cluster,  # its Services have pages, and explain knows its nodes
        "name": name,
        "node": node,
        "labels": {} if node is None else {**node.labels, CLUSTER: cluster},
        "endpoints": there.of(endpoints),
        "clients": asking.of([(address, place, book.holder(host_network(address))) for address, place in asking.rows]),
    }
    return Page("node.html", f"Node {name}", shown)


async def endpoints_on(cluster: ClusterContents, name: str) -> list[Position]:
    """Return where the endpoints on a node are, in the order of their Services."""
    found: list[Position] = []
    async for services in batches(cluster.services.items(), SERVICE_BATCH):
        for key, compiled in services:
            found += [(key, True, number) for number, at in enumerate(compiled.locations) if at.node == name]
            unready = cluster.snapshot.unready.get(compiled.cache_key, ())
            found += [(key, False, number) for number, one in enumerate(unready) if one.location.node == name]
    return sorted(found)


async def clients_on(cluster: ClusterContents, name: str) -> list[tuple[bytes, Place]]:
    """Return the addresses on a node in their order, those of IPv4 first, with how topodns locates each."""
    found: list[tuple[bytes, Place]] = []
    async for batch in batches(book_of(cluster.snapshot).places.items()):
        found += [(address, place) for address, place in batch if place.location.node == name]
    return sorted(found, key=lambda row: (len(row[0]), row[0]))
