# SPDX-License-Identifier: Apache-2.0

"""The endpoints of Services, as records, and in rows, which take a fifth of the memory.

A large cluster has as many endpoints as pods, and nearly all of them stay as they are while they are known. So a slice
keeps its endpoints in rows, and makes a record of one only when somebody reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

_SEPARATOR = "\n"  # between names in a column; no name of Kubernetes has it


class Port(Struct, frozen=True, gc=False):
    """A port of a Service or an endpoint. ``name`` is empty for an unnamed port; ``protocol`` is in lower case."""

    name: str
    number: int
    protocol: str = "tcp"


class Hints(Struct, frozen=True, gc=False):
    """The nodes and zones whose clients should use an endpoint (``hints.forNodes``, ``hints.forZones``), by name."""

    nodes: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()


class Endpoint(Struct, frozen=True, gc=False):
    """One endpoint of a Service: a pod or another host.

    ``hints`` is None if the slice has none for the endpoint. ``slice_labels`` are the labels that the EndpointSlice
    states for the endpoint: its zone, or the topology map of older API versions. They count only if the cluster has no
    Node called ``node``. ``cluster`` is the cluster that the endpoint is in, as its slice says (KEP-1645): empty if it
    is another one that the slice does not name, None if the slice says nothing of other clusters.
    ``pod`` and ``target_node`` are what ``targetRef`` names; ``pod_namespace`` is None if that is the slice's own.
    ``terminating``: its pod has been asked to end.
    """

    addresses: tuple[bytes, ...]
    ports: tuple[Port, ...] = ()
    hostname: str | None = None
    node: str | None = None
    slice_labels: dict[str, str] = {}
    ready: bool = True
    pod: str | None = None
    hints: Hints | None = None
    cluster: str | None = None
    terminating: bool = False
    target_node: str | None = None
    pod_namespace: str | None = None

    def pod_key(self, namespace: str) -> str | None:
        """Return the key of the pod behind an endpoint of a slice in *namespace*, None if there is no pod."""
        return None if self.pod is None else f"{self.pod_namespace or namespace}/{self.pod}"


class EndpointRows(Struct, frozen=True, eq=False, gc=False):
    """Endpoints with one address each, all of one family and with the same ports, in columns.

    It reads as a sequence of ``Endpoint``, and equals a tuple of the same ones.
    A column has a value for each endpoint. A column of nothing is empty, except for the first ones. No endpoint has a
    ``pod_namespace``.
    """

    addresses: bytes
    octets: int  # in each address
    ports: tuple[Port, ...]
    nodes: tuple[str | None, ...]
    slice_labels: tuple[dict[str, str], ...]
    ready: bytes  # 1, or 0 if it is not
    hostnames: str = ""  # joined; empty for None
    pods: str = ""  # likewise
    hints: tuple[Hints | None, ...] = ()
    cluster: str | None = None
    terminating: bytes = b""  # as ready; empty if none is
    target_nodes: str = ""  # likewise

    def __eq__(self, other: object) -> bool:
        if isinstance(other, EndpointRows):
            return astuple(self) == astuple(other)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, position: int) -> Endpoint:
        start = position * self.octets
        hostname, pod, target = (
            column and column.split(_SEPARATOR)[position] for column in (self.hostnames, self.pods, self.target_nodes)
        )
        return Endpoint(
            (self.addresses[start : start + self.octets],),
            self.ports,
            hostname or None,
            self.nodes[position],
            self.slice_labels[position],
            self.ready[position] == 1,
            pod or None,
            self.hints[position] if self.hints else None,
            self.cluster,
            bool(self.terminating) and self.terminating[position] == 1,
            target or None,
        )

    def __iter__(self) -> Iterator[Endpoint]:
        ports, cluster = self.ports, self.cluster
        for address, hostname, node, labels, ready, pod, hints, terminating, target in self.rows():
            yield Endpoint(
                *((address,), ports, hostname or None, node, labels, ready == 1, pod or None, hints, cluster),
                *(terminating == 1, target or None),
            )

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield what the columns have for each endpoint, its address first."""
        count = len(self.nodes)
        hostnames, pods, targets = (
            column.split(_SEPARATOR) if column else ("",) * count
            for column in (self.hostnames, self.pods, self.target_nodes)
        )
        return zip(
            self.each_address(), hostnames, self.nodes, self.slice_labels, self.ready, pods,
            self.hints or (None,) * count, self.terminating or bytes(count), targets, strict=True,
        )  # fmt: skip

    def pod_names(self) -> list[str | None]:
        """Return the pod of each endpoint."""
        names = self.pods.split(_SEPARATOR) if self.pods else [""] * len(self.nodes)
        return [name or None for name in names]

    def positions(self, address: bytes) -> list[int]:
        """Return the positions of the endpoints that have an address."""
        addresses, octets = self.addresses, self.octets
        found: list[int] = []
        start = addresses.find(address) if len(address) == octets else -1
        while start >= 0:
            if start % octets == 0:
                found.append(start // octets)
            start = addresses.find(address, start + 1)
        return found

    def each_address(self) -> list[bytes]:
        """Return the address of each endpoint."""
        addresses, octets = self.addresses, self.octets
        return [addresses[start : start + octets] for start in range(0, len(addresses), octets)]


Endpoints = tuple[Endpoint, ...] | EndpointRows


def in_rows(endpoints: Sequence[Endpoint]) -> Endpoints:
    """Return *endpoints* in rows, or as they are if they do not fit into rows."""
    sizes = {tuple(map(len, endpoint.addresses)) for endpoint in endpoints}
    if sizes not in ({(4,)}, {(16,)}) or any(endpoint.ports != endpoints[0].ports for endpoint in endpoints):
        return tuple(endpoints)
    if any(endpoint.cluster != endpoints[0].cluster or endpoint.pod_namespace for endpoint in endpoints):
        return tuple(endpoints)
    hostnames = _column(endpoint.hostname for endpoint in endpoints)
    pods = _column(endpoint.pod for endpoint in endpoints)
    targets = _column(endpoint.target_node for endpoint in endpoints)
    if hostnames is None or pods is None or targets is None:
        return tuple(endpoints)
    terminating = bytes(endpoint.terminating for endpoint in endpoints)
    hints = tuple(endpoint.hints for endpoint in endpoints)
    return EndpointRows(
        b"".join(endpoint.addresses[0] for endpoint in endpoints),
        len(endpoints[0].addresses[0]),
        endpoints[0].ports,
        tuple(endpoint.node for endpoint in endpoints),
        tuple(endpoint.slice_labels for endpoint in endpoints),
        bytes(endpoint.ready for endpoint in endpoints),
        pods if hostnames == pods else hostnames,
        pods,
        hints if any(hints) else (),
        endpoints[0].cluster,
        terminating if any(terminating) else b"",
        targets,
    )


def _column(names: Iterable[str | None]) -> str | None:
    """Return names joined, empty if there are none at all; None if one of them cannot be joined."""
    column = list(names)
    text = _SEPARATOR.join([name or "" for name in column])
    if column.count(None) == len(column):
        return ""
    return text if text.count(_SEPARATOR) == len(column) - 1 and "" not in column else None


def nodes_of(endpoints: Endpoints) -> Iterable[str | None]:
    """Return the node of each endpoint."""
    return endpoints.nodes if isinstance(endpoints, EndpointRows) else [endpoint.node for endpoint in endpoints]


def target_nodes_of(endpoints: Endpoints) -> list[str]:
    """Return the Nodes that endpoints name as what they are."""
    if isinstance(endpoints, EndpointRows):
        return endpoints.target_nodes.split(_SEPARATOR) if endpoints.target_nodes else []
    return [endpoint.target_node for endpoint in endpoints if endpoint.target_node is not None]


def any_terminating(endpoints: Endpoints) -> bool:
    """Whether an endpoint terminates."""
    if isinstance(endpoints, EndpointRows):
        return bool(endpoints.terminating)
    return any(endpoint.terminating for endpoint in endpoints)


def all_ready(endpoints: Endpoints) -> bool:
    """Whether each endpoint is ready."""
    if isinstance(endpoints, EndpointRows):
        return 0 not in endpoints.ready
    return all(endpoint.ready for endpoint in endpoints)


def any_hints(endpoints: Endpoints) -> bool:
    """Whether an endpoint has hints."""
    if isinstance(endpoints, EndpointRows):
        return bool(endpoints.hints)
    return any(endpoint.hints for endpoint in endpoints)


def clusters_of(endpoints: Endpoints) -> Iterable[str | None]:
    """Return the clusters that the endpoints are in, as ``Endpoint.cluster``, each once or more often."""
    return [endpoints.cluster] if isinstance(endpoints, EndpointRows) else [row.cluster for row in endpoints]


def addresses_on(endpoints: Endpoints, node: str) -> list[bytes]:
    """Return the addresses of the endpoints that name a node, as the one that they are on or are."""
    if isinstance(endpoints, EndpointRows) and not endpoints.target_nodes:
        each = zip(endpoints.each_address(), endpoints.nodes, strict=True)
        return [address for address, name in each if name == node]
    on = (endpoint for endpoint in endpoints if node in (endpoint.node, endpoint.target_node))
    return [address for endpoint in on for address in endpoint.addresses]


def endpoints_of_pod(endpoints: Endpoints, namespace: str, pod: str) -> list[Endpoint]:
    """Return the endpoints that a pod is behind, by its key; they are in a slice in *namespace*."""
    if isinstance(endpoints, EndpointRows):
        names = endpoints.pod_names()
        return [endpoints[at] for at, name in enumerate(names) if name is not None and f"{namespace}/{name}" == pod]
    return [endpoint for endpoint in endpoints if endpoint.pod_key(namespace) == pod]


def pod_keys(endpoints: Endpoints, namespace: str) -> list[str]:
    """Return the keys of the pods behind the endpoints of a slice in *namespace*."""
    if isinstance(endpoints, EndpointRows):
        return [f"{namespace}/{name}" for name in endpoints.pod_names() if name is not None]
    return [key for endpoint in endpoints if (key := endpoint.pod_key(namespace)) is not None]


def ready_addresses(endpoints: Endpoints) -> Iterable[bytes]:
    """Return all addresses of the endpoints that are ready."""
    if isinstance(endpoints, EndpointRows) and 0 not in endpoints.ready:
        return endpoints.each_address()
    return [address for endpoint in endpoints if endpoint.ready for address in endpoint.addresses]


def with_address(endpoints: Endpoints, address: bytes) -> list[Endpoint]:
    """Return the endpoints that have an address."""
    if isinstance(endpoints, EndpointRows):
        return [endpoints[position] for position in endpoints.positions(address)]
    return [endpoint for endpoint in endpoints if address in endpoint.addresses]


def nodes_with(endpoints: Endpoints, address: bytes) -> list[str | None]:
    """Return the nodes of the endpoints that have an address."""
    if isinstance(endpoints, EndpointRows):
        return [endpoints.nodes[position] for position in endpoints.positions(address)]
    return [endpoint.node for endpoint in endpoints if address in endpoint.addresses]


def all_addresses(endpoints: Endpoints) -> Iterable[bytes]:
    """Return all addresses of the endpoints."""
    if isinstance(endpoints, EndpointRows):
        return endpoints.each_address()
    return [address for endpoint in endpoints for address in endpoint.addresses]


def differing_addresses(before: Endpoints, after: Endpoints) -> Iterator[bytes]:
    """Yield the addresses whose endpoints are not the same *before* and *after*, however many there are of the same.

    Where several endpoints have the same addresses, which is rare, all but the last count as changed.
    """
    old, new = _by_addresses(before, after), _by_addresses(after, before)
    had, has = dict(old), dict(new)
    for rows, others in ((old, has), (new, had)):
        for addresses, row in rows:
            if others.get(addresses) != row:
                yield from addresses


def _by_addresses(endpoints: Endpoints, others: Endpoints) -> list[tuple[tuple[bytes, ...], object]]:
    """Return each endpoint by its addresses: as a row if *others* can be compared in rows, which is faster."""
    if (
        isinstance(endpoints, EndpointRows)
        and isinstance(others, EndpointRows)
        and (endpoints.ports, endpoints.cluster) == (others.ports, others.cluster)
    ):
        return [(row[:1], row) for row in endpoints.rows()]
    return [(endpoint.addresses, endpoint) for endpoint in endpoints]
