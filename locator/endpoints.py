# SPDX-License-Identifier: Apache-2.0

"""The endpoints of Services: a slice keeps its own by field, and makes a record of one when somebody reads it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, starmap
from operator import not_
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")

_SEPARATOR = "\n"  # between names in a column; no name of Kubernetes has it
_MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address in an IPv4-mapped one (RFC 4291, section 2.5.5.2)


class Port(Struct, frozen=True, gc=False):
    """A port of a Service or an endpoint. ``name`` is empty for an unnamed port; ``protocol`` is in lower case."""

    name: str
    number: int
    protocol: str = "tcp"


class Hints(Struct, frozen=True, gc=False):
    """The nodes and zones whose clients should use an endpoint (``forNodes`` and ``forZones``), by name."""

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


class SliceEndpoints(Struct, frozen=True, gc=False):
    """The endpoints of a slice, a sequence of ``Endpoint`` in a fifth of the memory. ``compact`` makes it.

    A large cluster has as many endpoints as pods, and nearly all of them stay as they are while they are known. So a
    record of one is made only when somebody reads it.
    Each field is a column: a tuple has a value for each endpoint, or one that all of them have, or none if all have
    nothing; ``nodes`` has one for each. Equal columns mean equal endpoints, and the other way round.
    """

    addresses: bytes = b""  # joined
    octets: int = 4  # in each address; 16 if both families are there, where an IPv4 address is a mapped one
    counts: tuple[int, ...] = ()  # of addresses; none if each endpoint has one
    ports: tuple[tuple[Port, ...], ...] = ()
    nodes: tuple[str | None, ...] = ()
    slice_labels: tuple[dict[str, str], ...] = ()
    unready: bytes = b""  # 1 if it is not ready; empty if all are
    hostnames: str = ""  # joined
    pods: str = ""  # joined
    hints: tuple[Hints | None, ...] = ()
    clusters: tuple[str | None, ...] = ()
    terminating: bytes = b""  # 1 if it terminates; empty if none does
    target_nodes: str = ""  # joined
    pod_namespaces: tuple[str | None, ...] = ()

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, position: int) -> Endpoint:
        def of(column: Sequence[Any], nothing: Any) -> Any:
            return column[position if len(column) > 1 else 0] if column else nothing

        def name(column: str) -> str | None:
            return (column and column.split(_SEPARATOR)[position]) or None

        return Endpoint(
            self._addresses(position, position + 1)[0],
            of(self.ports, ()),
            hostname=name(self.hostnames),
            node=self.nodes[position],
            slice_labels=of(self.slice_labels, {}),
            ready=not of(self.unready, 0),
            pod=name(self.pods),
            hints=of(self.hints, None),
            cluster=of(self.clusters, None),
            terminating=of(self.terminating, 0) == 1,
            target_node=name(self.target_nodes),
            pod_namespace=of(self.pod_namespaces, None),
        )

    def __iter__(self) -> Iterator[Endpoint]:
        return starmap(Endpoint, self._rows())

    def all_addresses(self) -> list[bytes]:
        """Return all addresses of the endpoints, in their order."""
        return self._unpacked(self.addresses)

    def addresses_of_each(self) -> list[tuple[bytes, ...]]:
        """Return the addresses of each endpoint."""
        return self._addresses(0, len(self.nodes))

    def ready_addresses(self) -> list[bytes]:
        """Return all addresses of the endpoints that are ready."""
        if not self.unready:
            return self.all_addresses()
        each = zip(self.addresses_of_each(), self.unready, strict=True)
        return [address for addresses, is_unready in each if not is_unready for address in addresses]

    def addresses_on(self, node: str) -> list[bytes]:
        """Return the addresses of the endpoints that name a node, as the one that they are on or are."""
        named = {position for position, name in enumerate(self.nodes) if name == node}
        if self.target_nodes:
            named.update(at for at, name in enumerate(self._names(self.target_nodes)) if name == node)
        return [address for position in sorted(named) for address in self._addresses(position, position + 1)[0]]

    def target_node_names(self) -> list[str]:
        """Return the Nodes that endpoints name as what they are."""
        return [*filter(None, self.target_nodes.split(_SEPARATOR))]

    def pod_keys(self, namespace: str) -> list[str | None]:
        """Return the key of the pod behind each endpoint of a slice in *namespace*, None if there is none."""
        if not self.pod_namespaces:
            return [name and f"{namespace}/{name}" for name in self.pod_names()]
        return [endpoint.pod_key(namespace) for endpoint in self]

    def pod_names(self) -> Sequence[str | None]:
        """Return the name of the pod behind each endpoint, None if there is none."""
        return self._names(self.pods)

    def of_pod(self, namespace: str, pod: str) -> list[Endpoint]:
        """Return the endpoints that a pod is behind, by its key; they are in a slice in *namespace*."""
        return self._at([position for position, key in enumerate(self.pod_keys(namespace)) if key == pod])

    def with_address(self, address: bytes) -> list[Endpoint]:
        """Return the endpoints that have an address."""
        return self._at([*self._positions(address)])

    def nodes_with(self, address: bytes) -> list[str | None]:
        """Return the nodes of the endpoints that have an address."""
        return [self.nodes[position] for position in self._positions(address)]

    def differing_addresses(self, after: SliceEndpoints) -> Iterator[bytes]:
        """Yield the addresses whose endpoints are not the same *after*, however many there are of the same.

        Where several endpoints have the same addresses, which is rare, all but the last count as changed.
        """
        old, new = ([*rows._rows()] for rows in (self, after))  # addresses first
        had, has = ({row[0]: row for row in rows} for rows in (old, new))
        for rows, others in ((old, has), (new, had)):
            for row in rows:
                if others.get(row[0]) != row:
                    yield from row[0]

    def _at(self, positions: Sequence[int]) -> list[Endpoint]:
        if len(positions) < 2:
            return [self[position] for position in positions]
        endpoints = [*self]  # one after the other would take long if there are thousands
        return [endpoints[position] for position in positions]

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the fields of each endpoint."""
        count = len(self.nodes)
        return zip(
            self.addresses_of_each(),
            _each(self.ports, count, ()),
            self._names(self.hostnames),
            self.nodes,
            _each(self.slice_labels, count, {}),
            map(not_, self.unready or bytes(count)),
            self.pod_names(),
            _each(self.hints, count, None),
            _each(self.clusters, count, None),
            map(bool, self.terminating or bytes(count)),
            self._names(self.target_nodes),
            _each(self.pod_namespaces, count, None),
            strict=True,
        )

    def _names(self, column: str) -> Sequence[str | None]:
        return [name or None for name in column.split(_SEPARATOR)] if column else (None,) * len(self.nodes)

    def _addresses(self, start: int, stop: int) -> list[tuple[bytes, ...]]:
        if not self.counts:
            return [*zip(self._unpacked(self.addresses[start * self.octets : stop * self.octets]))]
        counts, before = self.counts[start:stop], self.octets * sum(self.counts[:start])
        addresses = iter(self._unpacked(self.addresses[before : before + self.octets * sum(counts)]))
        return [tuple(islice(addresses, count)) for count in counts]

    def _unpacked(self, addresses: bytes) -> list[bytes]:
        octets = self.octets
        found = [addresses[start : start + octets] for start in range(0, len(addresses), octets)]
        return found if octets == 4 else [address.removeprefix(_MAPPED) for address in found]

    def _positions(self, address: bytes) -> Iterator[int]:
        """Yield the positions of the endpoints that have an address."""
        packed = address if len(address) == self.octets else _MAPPED + address
        start = self.addresses.find(packed) if len(packed) == self.octets else -1
        ends = [*accumulate(self.counts)]
        while start >= 0:
            number, rest = divmod(start, self.octets)
            if not rest:
                yield bisect_right(ends, number) if ends else number
            start = self.addresses.find(packed, (number + 1) * self.octets)


def compact(endpoints: Iterable[Endpoint]) -> SliceEndpoints:
    """Return *endpoints* as a slice keeps them. A line end in a name, which none of Kubernetes has, becomes a space."""
    rows = [*endpoints]
    counts = [len(row.addresses) for row in rows]
    addresses = [address for row in rows for address in row.addresses]
    octets = 4
    if any(len(address) != octets for address in addresses):
        octets, addresses = 16, [address if len(address) == 16 else _MAPPED + address for address in addresses]
    unready, terminating = (bytes([not row.ready for row in rows]), bytes([row.terminating for row in rows]))
    hostnames, pods = _joined(row.hostname for row in rows), _joined(row.pod for row in rows)
    return SliceEndpoints(
        b"".join(addresses),
        octets,
        tuple(counts) if counts.count(1) < len(counts) else (),
        _column((row.ports for row in rows), ()),
        tuple([row.node for row in rows]),
        _column((row.slice_labels for row in rows), {}),
        unready if any(unready) else b"",
        pods if hostnames == pods else hostnames,
        pods,
        _column((row.hints for row in rows), None),
        _column((row.cluster for row in rows), None),
        terminating if any(terminating) else b"",
        _joined(row.target_node for row in rows),
        _column((row.pod_namespace for row in rows), None),
    )


def _column(values: Iterable[T], nothing: T) -> tuple[T, ...]:
    column = tuple(values)
    if any(value != column[0] for value in column):
        return column
    return () if not column or column[0] == nothing else column[:1]


def _each(column: Sequence[T], count: int, nothing: T) -> Sequence[T]:
    """Return the values of a column for each of *count* endpoints."""
    return column if len(column) > 1 else (*(column or (nothing,)),) * count


def _joined(names: Iterable[str | None]) -> str:
    column = [(name or "").replace(_SEPARATOR, " ") for name in names]
    return _SEPARATOR.join(column) if any(column) else ""
