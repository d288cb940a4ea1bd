# SPDX-License-Identifier: Apache-2.0

"""What is on a node: endpoints of Services, and clients."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dnsserver.tools.pages.located import ClusterContents
from dnsserver.tools.pages.paging import Part, part_of
from dnsserver.tools.pages.steps import STEP, Steps
from locator.ip import Network, address_text, network_text
from locator.model import CLUSTER, Node
from locator.places.book import Place
from locator.state.snapshot import CompiledService, Snapshot, book_of

ROWS = 50  # endpoints, and as many clients


class EndpointOnNode(Struct, frozen=True, gc=False):
    """An endpoint of a Service."""

    namespace: str
    service: str
    addresses: tuple[str, ...]
    pod: str
    ready: bool


class ClientOnNode(Struct, frozen=True, gc=False):
    """An address on a node, how topodns locates it, and the object that has it."""

    address: str
    located_by: str
    holder: str


class NodePage(Struct, frozen=True, gc=False):
    """A node and what is on it. ``known`` is false if only others name it, such as EndpointSlices."""

    cluster: str
    name: str
    known: bool
    labels: tuple[tuple[str, str], ...]
    addresses: tuple[str, ...]
    pod_cidrs: tuple[str, ...]
    endpoints: Part[EndpointOnNode]
    clients: Part[ClientOnNode]


_Position = tuple[str, bool, int]  # the key of a Service, whether it is among its ready endpoints, and which of them


def node_page(cluster: ClusterContents, name: str, *, number: int = 1) -> Steps[NodePage | None]:
    """Return a node of a cluster with part *number* of what is on it, None if nothing names it."""
    yield
    node = next((node for node in cluster.nodes if node.name == name), None)
    snapshot = cluster.snapshot
    services = snapshot.services or {key: found.compiled for key, found in snapshot.exported.items()}
    endpoints = yield from _endpoints(services, snapshot, name)
    clients = yield from _clients(snapshot, name)
    if node is None and not endpoints and not clients:
        return None
    there, asking = part_of(endpoints, number, ROWS), part_of(clients, number, ROWS)
    labels = {} if node is None else {**node.labels, CLUSTER: cluster.name}
    endpoint_rows = [_endpoint(services, snapshot, position) for position in there.rows]
    yield
    client_rows = [_client(snapshot, address, place) for address, place in asking.rows]
    yield
    return NodePage(
        cluster=cluster.name,
        name=name,
        known=node is not None,
        labels=tuple(sorted(labels.items())),
        addresses=_addresses(node),
        pod_cidrs=() if node is None else tuple(map(network_text, node.pod_cidrs)),
        endpoints=there.of(endpoint_rows),
        clients=asking.of(client_rows),
    )


def _addresses(node: Node | None) -> tuple[str, ...]:
    return () if node is None else tuple(map(address_text, node.addresses))


def _endpoints(services: Mapping[str, CompiledService], snapshot: Snapshot, name: str) -> Steps[list[_Position]]:
    """Return where the endpoints on a node are, in the order of their Services."""
    found: list[_Position] = []
    left = 0
    for key, compiled in services.items():
        left -= 1 + len(compiled.locations)
        if left < 0:
            left = STEP
            yield
        for number, location in enumerate(compiled.locations):
            if location.node == name:
                found.append((key, True, number))
        for number, located in enumerate(snapshot.unready.get(compiled.cache_key, ())):
            if located.location.node == name:
                found.append((key, False, number))
    yield
    found.sort()
    return found


def _endpoint(services: Mapping[str, CompiledService], snapshot: Snapshot, position: _Position) -> EndpointOnNode:
    key, ready, number = position
    compiled = services[key]
    located = compiled.endpoints[number] if ready else snapshot.unready[compiled.cache_key][number]
    service, endpoint = compiled.service, located.endpoint
    addresses = tuple(map(address_text, endpoint.addresses))
    return EndpointOnNode(service.namespace, service.name, addresses, endpoint.pod or "", ready)


def _clients(snapshot: Snapshot, name: str) -> Steps[list[tuple[bytes, Place]]]:
    found: list[tuple[bytes, Place]] = []
    for number, (address, place) in enumerate(book_of(snapshot).places.items()):
        if not number % STEP:
            yield
        if place.location.node == name:
            found.append((address, place))
    found.sort(key=lambda row: (len(row[0]), row[0]))
    return found


def _client(snapshot: Snapshot, address: bytes, place: Place) -> ClientOnNode:
    holder = snapshot.addresses.holder(Network(address, 8 * len(address)))
    return ClientOnNode(address_text(address), place.located_by, holder)
