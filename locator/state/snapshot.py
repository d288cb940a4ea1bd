# SPDX-License-Identifier: Apache-2.0

"""One cluster at one moment, immutable: the source of every answer.

A compiled Service holds all that its answers depend on, the locations of its endpoints included. It
stays the same object from one snapshot to the next until the Service, its endpoints or their nodes
change, so a reader may cache by its identity. A snapshot itself holds no reader's data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from msgspec import Struct, field

from locator.model import (
    CLUSTER,
    EndpointSlice,
    Finding,
    Location,
    Node,
    Object,
    Pod,
    Service,
    ServiceHealth,
    ServiceImport,
)
from locator.places.address_map import AddressMap, KeysByAddress, Move, with_moves
from locator.places.book import AddressBook, Book
from locator.state.joining import joined_endpoints, living_endpoints
from locator.topology.balance import Balance, Balanced
from locator.topology.constraints import Declaration, deciding, in_effect
from locator.topology.selection import Constraint, LocatedEndpoint, Value, themselves

# What a dump does not say, by the name of the kind that it lacks.
LACKING = {
    EndpointSlice.__name__: "the dump has neither EndpointSlices nor Endpoints",
    Node.__name__: "the dump has no Nodes",
    Service.__name__: "the dump has no Services",
    Pod.__name__: "the dump has no Pods",
}


class CompiledService(Struct, frozen=True, eq=False, gc=False):
    """A Service with its ready endpoints, where a dual-stack endpoint is one.

    ``declarations`` are the constraints that its sources declare, in their order of precedence.
    ``service`` has no labels: the policies and selectors that match them are already applied. ``empty`` is true if no
    endpoint is ready; a store without endpoint records leaves ``slices`` and ``endpoints`` empty in any case.
    ``slices`` has the endpoints as they came, ``locations`` one for each that is ready; without endpoint records, only
    exported Services have those. ``plans`` are what has become of those constraints whose endpoints have not room for
    all clients near them.
    """

    service: Service
    declarations: tuple[Declaration, ...]
    slices: tuple[EndpointSlice, ...] = ()
    locations: tuple[Location, ...] = ()
    empty: bool = False
    plans: tuple[Balanced, ...] = ()
    _located: dict[None, tuple[LocatedEndpoint, ...]] = {}  # one entry; a dictionary, since threads race to fill it

    @property
    def endpoints(self) -> tuple[LocatedEndpoint, ...]:
        """The ready endpoints, each with its location; always the same objects, for all threads.

        They are made when a reader first asks for them: most Services of a cluster are never asked for their endpoints.
        The store does not ask, so as not to make them all.
        """
        located = self._located.get(None)
        if located is None:
            joined = joined_endpoints(self.slices)
            located = self._located.setdefault(None, tuple(map(LocatedEndpoint, joined, self.locations)))
        return located

    @property
    def cache_key(self) -> str:
        """The key of the Service among all that answers are made from (``Snapshot.holds``)."""
        return self.service.key

    @property
    def declaration(self) -> Declaration | None:
        """The declaration that decides, None if no source declares a constraint."""
        return deciding(self.declarations)

    def constraint(self, declaration: Declaration | None) -> Constraint:
        """Return the constraint that chooses by *declaration*, the one that decides; with its plan if it has one."""
        declared = in_effect(declaration)
        return next((plan for plan in self.plans if plan.constraint == declared), declared)

    @property
    def addresses(self) -> set[bytes]:
        """The cluster IPs of the Service and the addresses of its endpoints."""
        return {*self.each_address()}

    def each_address(self) -> Iterator[bytes]:
        """Yield the ``addresses``, some of them perhaps more than once."""
        of_slices = (endpoints.ready_addresses() for endpoints in living_endpoints(self.slices))
        return chain(self.service.cluster_ips, chain.from_iterable(of_slices))


class ImportedService(CompiledService, frozen=True, eq=False, gc=False):
    """A multi-cluster Service, made from a ServiceImport and the slices that were imported with it (KEP-1645)."""

    @property
    def cache_key(self) -> str:
        """The key of the Service among all that answers are made from: not that of its namesake in the own cluster."""
        return f"{self.service.key} (imported)"


class ImportedObjects(Struct, frozen=True, eq=False, gc=False):
    """A ServiceImport and its slices, before its endpoints are located: they are in several clusters."""

    service_import: ServiceImport
    slices: tuple[EndpointSlice, ...]


class ExportedService(Struct, frozen=True, eq=False, gc=False):
    """A Service that its cluster exports, and the constraint that it declares for its federated name.

    ``constraint`` is None if it declares none; it may be invalid.
    """

    compiled: CompiledService
    constraint: Declaration | None


class Vote(Struct, frozen=True, gc=False):
    """What the prober of a cluster says about an address: healthy, unhealthy, too old or none."""

    cluster: str
    word: str = field(name="vote")  # of a program that reads an explanation


class Entry(LocatedEndpoint, frozen=True, eq=False, gc=False):
    """The cluster IPs of a federated Service in one cluster, or one address or host name of its load balancer there.

    ``ttls`` has the TTL of the addresses of a host name, by their size. ``down`` says that most clusters vote against
    it; ``votes`` are theirs.
    """

    balancer: str = ""
    ttls: dict[int, int] = {}
    down: bool = False
    votes: tuple[Vote, ...] = ()


class FederatedMember(Struct, frozen=True, eq=False, gc=False):
    """A federated Service in one *cluster*: what clients there get, and what those get that reach no pods there.

    ``ports_differ``: it has a cluster IP, and some of its pods do not listen at the numbers of its ports. An address
    alone would lead clients of a flat network to the wrong port, so only SRV records name its pods.
    """

    cluster: str
    exported: ExportedService
    virtual: Entry | None
    balancers: tuple[Entry, ...]
    ports_differ: bool = False

    @property
    def unresolved(self) -> list[str]:
        """The host names of its load balancers that have no addresses."""
        resolved = {entry.balancer for entry in self.balancers}
        return [name for name in self.exported.compiled.service.ingress if name not in resolved]

    @property
    def endpoints(self) -> tuple[LocatedEndpoint, ...]:
        """The ready endpoints."""
        return self.exported.compiled.endpoints

    def entries(self, viewer: str, *, flat: bool, with_ports: bool) -> tuple[LocatedEndpoint, ...]:
        """Return what a client in the cluster *viewer* gets; *flat*: it reaches the pods of this cluster.

        *with_ports*: the records that it asks for name ports, as SRV does.
        """
        if viewer == self.cluster:
            if self.exported.compiled.service.headless:
                return self.endpoints
            return () if self.virtual is None else (self.virtual,)
        return self.endpoints if flat and (with_ports or not self.ports_differ) else self.balancers

    def reachable(self, flat: frozenset[tuple[str, str]]) -> tuple[LocatedEndpoint, ...]:
        """Return what any client gets; *flat* is that of ``FederatedService``."""
        direct = self.exported.compiled.service.headless or any(self.cluster == one for one, _ in flat)
        virtual = () if self.virtual is None else (self.virtual,)
        return (*virtual, *(self.endpoints if direct else ()), *self.balancers)


class FederatedService(Struct, frozen=True, eq=False, gc=False):
    """The Services of one name in all clusters that export it; it has an entry for somebody.

    ``members`` are in the order of their clusters' names. ``flat`` has the pairs of clusters whose pods reach each
    other. ``default`` is the constraint where no member declares a valid one.
    """

    namespace: str
    name: str
    members: tuple[FederatedMember, ...]
    flat: frozenset[tuple[str, str]]
    default: Declaration

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def cache_key(self) -> str:
        """The key of the federated Service among all that answers are made from."""
        return f"{self.key} (federated)"

    @property
    def endpoints(self) -> list[LocatedEndpoint]:
        """All entries that any client gets."""
        return [located for member in self.members for located in member.reachable(self.flat)]

    @property
    def _viewers(self) -> set[str]:
        """The clusters whose clients may get something else than those elsewhere."""
        return {member.cluster for member in self.members} | {one for pair in self.flat for one in pair}

    def viewer(self, client: Location) -> str:
        """Return the cluster that a client is in, as far as that decides what it gets; empty for elsewhere."""
        return client.cluster if client.cluster in self._viewers else ""

    def entries(self, viewer: str, *, with_ports: bool) -> tuple[LocatedEndpoint, ...]:
        """Return the entries for clients in the cluster *viewer*, or with "" elsewhere, as ``FederatedMember``."""
        entries = (
            member.entries(viewer, flat=(viewer, member.cluster) in self.flat, with_ports=with_ports)
            for member in self.members
        )
        return tuple(chain.from_iterable(entries))

    def by_precedence(self, viewer: str) -> list[FederatedMember]:
        """Return the members in the order in which their constraints count: the one there first, then by age."""
        return sorted(
            self.members,
            key=lambda member: (
                member.cluster != viewer, member.exported.compiled.service.created, member.cluster
            ),
        )  # fmt: skip

    def declaration(self, viewer: str) -> Declaration:
        """Return the constraint for clients in the cluster *viewer*, or with "" elsewhere; it is valid.

        That of the Service there counts, else that of the oldest Service which has one.
        """
        declared = (member.exported.constraint for member in self.by_precedence(viewer))
        return next((found for found in declared if found is not None and found.valid), self.default)

    @property
    def client_keys(self) -> tuple[str, ...]:
        """What decides about the client (``Constraint.client_keys``), whichever constraint counts."""
        clusters = ("", *(member.cluster for member in self.members))
        declared = (self.declaration(cluster).constraint.client_keys for cluster in clusters)
        return tuple(dict.fromkeys((CLUSTER, *chain.from_iterable(declared))))

    def distinguishing_values(self) -> tuple[Mapping[Value, Value], ...]:
        """Return, for each of ``client_keys``, the client's values that can make a difference (``Constraint``)."""
        locations = [located.location for located in self.endpoints]
        return tuple(
            themselves(self._viewers if key == CLUSTER else [location.labels.get(key) for location in locations])
            for key in self.client_keys
        )


AnyService = CompiledService | FederatedService


class Snapshot(Struct, frozen=True, eq=False, gc=False):
    """One cluster at one moment, or several of them as the own one sees them.

    ``services`` (by ``namespace/name``) and ``namespaces`` (those that exist) hold only what topodns serves.
    ``service_addresses`` gives the Services of an address, ``pod_namespaces`` the namespaces of the running pods that
    have it (empty unless pod names are verified). ``serial`` is the time of the last change of an answer (seconds since
    1970); ``object_counts`` has the number of objects of each kind. ``unready`` has the endpoints that are not ready,
    by the ``cache_key`` of their Service; no answer depends on them. ``balances`` says what becomes of the clients of
    balanced Services, for each constraint; no answer depends on it, but on plans. ``lacks`` names the kinds about which
    the own cluster's dump says nothing: it has no object of them, though the cluster may.

    For other clusters, by ``namespace/name``: ``exported`` are the Services that the cluster exports, ``imports`` what
    its controller has imported. ``nodes`` has the location of each node; it is empty unless imports need it.
    ``healths`` has the votes of the cluster's prober, by the name of the ServiceHealth.
    From all clusters, likewise: ``federated`` and ``imported`` are what federated and multi-cluster names mean;
    ``federated_namespaces`` are those of ``federated``.
    """

    services: Mapping[str, CompiledService]
    namespaces: frozenset[str]
    addresses: Book
    serial: int
    findings: tuple[Finding, ...] = ()
    object_counts: Mapping[str, int] = {}
    service_addresses: KeysByAddress = field(default_factory=KeysByAddress)
    pod_namespaces: AddressMap[tuple[str, ...]] = field(default_factory=AddressMap)
    unready: Mapping[str, tuple[LocatedEndpoint, ...]] = {}
    balances: Mapping[str, tuple[Balance, ...]] = {}
    exported: Mapping[str, ExportedService] = {}
    imports: Mapping[str, ImportedObjects] = {}
    nodes: Mapping[str, Location] = {}
    healths: Mapping[str, ServiceHealth] = {}
    federated: Mapping[str, FederatedService] = {}
    federated_namespaces: frozenset[str] = frozenset()
    imported: Mapping[str, ImportedService] = {}
    lacks: frozenset[str] = frozenset()

    def has(self, key: str) -> bool:
        """Whether there is a Service ``namespace/name``, in this cluster or from others."""
        return key in self.services or key in self.federated or key in self.imported

    def holds(self, service: AnyService) -> bool:
        """Whether this very object is part of the snapshot."""
        if isinstance(service, FederatedService):
            return self.federated.get(service.key) is service
        known = self.imported if isinstance(service, ImportedService) else self.services
        return known.get(service.service.key) is service


ServiceChanges = Mapping[str, CompiledService | None]  # by key; None for a Service that is deleted or no longer served


def service_addresses_after(before: Snapshot, changes: ServiceChanges) -> KeysByAddress:
    """Return the Services by address after *changes*."""
    return with_moves(before.service_addresses, _moves(before.services, changes))


def _moves(before: Mapping[str, CompiledService], changes: ServiceChanges) -> Iterator[Move]:
    for key, after in changes.items():
        known = before.get(key)
        if known is None or after is None:
            had, has = (() if one is None else tuple(one.each_address()) for one in (known, after))
            yield key, had, has
        elif known.slices != after.slices or known.service.cluster_ips != after.service.cluster_ips:
            yield key, known.addresses - after.addresses, after.addresses - known.addresses


def answers_differ(before: Snapshot, after: Snapshot) -> bool:
    """Whether an answer may differ between two snapshots of one store."""
    return (
        before.services is not after.services
        or before.addresses is not after.addresses
        or before.pod_namespaces is not after.pod_namespaces
        or before.namespaces != after.namespaces
        or before.federated is not after.federated
        or before.imported is not after.imported
    )


def book_of(snapshot: Snapshot) -> AddressBook:
    """Return the address book in the snapshot of one cluster, as a store makes it."""
    assert isinstance(snapshot.addresses, AddressBook)
    return snapshot.addresses


def locations_in(snapshot: Snapshot) -> Iterator[Location]:
    """Yield the locations of all addresses, pod CIDRs and endpoints, each as often as it occurs."""
    for _, place in book_of(snapshot).places.items():
        yield place.location
    for _, place in book_of(snapshot).cidrs.items():
        yield place.location
    for service in snapshot.services.values():
        yield from service.locations
    for endpoints in snapshot.unready.values():
        for located in endpoints:
            yield located.location
    yield from snapshot.nodes.values()


def lacking(snapshot: Snapshot, kind: type[Object]) -> str:
    """Return what a dump does not say because it has no object of a kind; "" if it has, and of other kinds."""
    return LACKING.get(kind.__name__, "") if kind.__name__ in snapshot.lacks else ""
