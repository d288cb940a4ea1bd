"""What is on a node: endpoints of Services, and clients."""

from __future__ import annotations

from msgspec import Struct

from dnsserver.inspection.located import ClusterContents
from dnsserver.inspection.pages.paging import Part, part_of
from dnsserver.inspection.steps import STEP, Steps
from locator.ip import Network, address_text, network_text
from locator.model import CLUSTER, Node
from locator.places.address_book import Place
from locator.state.snapshot import CompiledService, Snapshot, book_of
from locator.topology.selection import LocatedEndpoint

ROWS = 100  # endpoints, and as many clients


class EndpointOnNode(Struct, frozen=True):
    """An endpoint of a Service."""

    namespace: str
    service: str
    addresses: tuple[str, ...]
    pod: str
    ready: bool


class ClientOnNode(Struct, frozen=True):
    """An address on a node, how topodns locates it, and the object that has it."""

    address: str
    located_by: str
    holder: str


class NodePage(Struct, frozen=True):
    """A node and what is on it. ``known`` is false if only others name it, such as EndpointSlices."""

    cluster: str
    name: str
    known: bool
    labels: tuple[tuple[str, str], ...]
    addresses: tuple[str, ...]
    pod_cidrs: tuple[str, ...]
    endpoints: Part[EndpointOnNode]
    clients: Part[ClientOnNode]


def node_page(cluster: ClusterContents, name: str, *, number: int = 1) -> Steps[NodePage | None]:
    """Return a node of a cluster with part *number* of what is on it, None if nothing names it."""
    yield
    node = next((node for node in cluster.nodes if node.name == name), None)
    endpoints = yield from _endpoints(cluster.snapshot, name)
    clients = yield from _clients(cluster.snapshot, name)
    if node is None and not endpoints and not clients:
        return None
    part = part_of(clients, number, ROWS)
    rows = tuple(_client(cluster.snapshot, address, place) for address, place in part.rows)
    labels = {} if node is None else {**node.labels, CLUSTER: cluster.name}
    return NodePage(
        cluster=cluster.name,
        name=name,
        known=node is not None,
        labels=tuple(sorted(labels.items())),
        addresses=_addresses(node),
        pod_cidrs=() if node is None else tuple(map(network_text, node.pod_cidrs)),
        endpoints=part_of(endpoints, number, ROWS),
        clients=Part(rows, part.total, part.first, part.number, part.parts),
    )


def _addresses(node: Node | None) -> tuple[str, ...]:
    return () if node is None else tuple(map(address_text, node.addresses))


def _endpoints(snapshot: Snapshot, name: str) -> Steps[list[EndpointOnNode]]:
    services = snapshot.services or {key: found.compiled for key, found in snapshot.exported.items()}
    found: list[EndpointOnNode] = []
    left = 0
    for compiled in services.values():
        left -= 1 + len(compiled.locations)
        if left < 0:
            left = STEP
            yield
        unready = snapshot.unready.get(compiled.basis_key, ())
        if any(location.node == name for location in compiled.locations):
            found += [_endpoint(compiled, located) for located in compiled.endpoints if located.location.node == name]
        found += [_endpoint(compiled, located) for located in unready if located.location.node == name]
    found.sort(key=lambda row: (row.namespace, row.service, row.pod, row.addresses))
    return found


def _endpoint(compiled: CompiledService, located: LocatedEndpoint) -> EndpointOnNode:
    service, endpoint = compiled.service, located.endpoint
    addresses = tuple(map(address_text, endpoint.addresses))
    return EndpointOnNode(service.namespace, service.name, addresses, endpoint.pod or "", endpoint.ready)


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
