# SPDX-License-Identifier: Apache-2.0

"""What is simulated: clusters, a name in them, and who asks for it.

A client is a pod, one unit of load; or a zone, with as many units as a server has counted answers for its clients.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct

from dnsserver.answers.decision import Authority
from dnsserver.names import FEDERATION, MULTICLUSTER, Zone
from locator.model import CLUSTER, UNKNOWN_LOCATION, ZONE, Location, Pod
from locator.places.book import Book
from locator.state.snapshot import AnyService, FederatedService, Snapshot
from locator.topology.selection import LocatedEndpoint

PodKey = tuple[str, str, str]  # the cluster, the pod's namespace and its name


class Subject(NamedTuple):
    """A name to simulate: the DNS zone, and the ``namespace/name`` of the Service."""

    zone: Zone
    key: str

    @property
    def name(self) -> str:
        """The domain name, without a final dot."""
        namespace, _, service = self.key.partition("/")
        between = "" if self.federated else ".svc"
        return f"{service}.{namespace}{between}.{self.zone.name}"

    @property
    def federated(self) -> bool:
        """Whether it is a federated name: it means the same in all clusters."""
        return self.zone.about == FEDERATION

    def service(self, snapshot: Snapshot) -> AnyService | None:
        """Return what the name means in a snapshot, None if nothing has it."""
        if self.federated:
            return snapshot.federated.get(self.key)
        if self.zone.about == MULTICLUSTER:
            return snapshot.imported.get(self.key)
        return snapshot.services.get(self.key)


class ClientPlace(NamedTuple):
    """Where a client is, and the size of the addresses that it can reach: None for both families."""

    location: Location
    octets: int | None = None


class AskingPods:
    """The pods that ask, all of them or those of one cluster. Add all before asking anything.

    ``numbers`` has how many are at each place. With *endpoints_too*, the endpoints of a Service ask for its name,
    too; else they do not.
    """

    def __init__(self, *, endpoints_too: bool = False) -> None:
        self.numbers: Counter[ClientPlace] = Counter()
        # By cluster and namespace, then by name: the pods and strings that the reader has anyway. A cluster may have
        # 150,000 pods, and the console keeps this.
        self._pods: defaultdict[tuple[str, str], dict[str, Pod]] = defaultdict(dict)
        self._addresses: dict[str, Book] = {}
        self._endpoints_too = endpoints_too

    def __len__(self) -> int:
        return sum(map(len, self._pods.values()))

    def __iter__(self) -> Iterator[PodKey]:
        return ((*where, name) for where, pods in self._pods.items() for name in pods)

    def __contains__(self, pod: PodKey) -> bool:
        cluster, namespace, name = pod
        return name in self._pods.get((cluster, namespace), ())

    def add(self, cluster: str, pod: Pod, addresses: Book) -> None:
        """Add a pod with an address, where a server of its *cluster* would locate the first one.

        *addresses* is what is known there: pods of two clusters may have one address. A pod reaches the address
        families that it has.
        """
        self._pods[cluster, pod.namespace][pod.name] = pod
        self._addresses[cluster] = addresses
        self.numbers[self._place(cluster, pod)] += 1

    def left_out(self, service: AnyService, snapshot: Snapshot, clusters: Mapping[str, Snapshot]) -> frozenset[PodKey]:
        """Return those that are endpoints of a Service, ready or not, and so do not ask for its name.

        *service* is the Service in a *snapshot* of all clusters as they are, and *clusters* has that of each. A
        pod is the endpoint that names it; an endpoint that names no pod is each pod with its address.
        """
        if self._endpoints_too:
            return frozenset()
        found = set[PodKey]()
        for cluster, namespace, located in _endpoints(service, snapshot, clusters):
            if located.endpoint.pod is not None:
                found.add((cluster, namespace, located.endpoint.pod))
                continue
            for address in located.endpoint.addresses:
                found.update(self._by_address.get((cluster, address), ()))
        return frozenset(filter(self.__contains__, found))

    def at(self, pods: Collection[PodKey]) -> Counter[ClientPlace]:
        """Return how many of some of them are at each place."""
        return Counter(self._place(cluster, self._pods[cluster, namespace][name]) for cluster, namespace, name in pods)

    def _place(self, cluster: str, pod: Pod) -> ClientPlace:
        sizes = set(map(len, pod.addresses))
        octets = sizes.pop() if len(sizes) == 1 else None
        return ClientPlace(self._addresses[cluster].locate(pod.addresses[0]).location, octets)

    @cached_property
    def _by_address(self) -> Mapping[tuple[str, bytes], Sequence[PodKey]]:
        """Those that have each address of a cluster: only endpoints that somebody writes by hand name no pod."""
        found = defaultdict[tuple[str, bytes], list[PodKey]](list)
        for (cluster, namespace), pods in self._pods.items():
            for name, pod in pods.items():
                for address in pod.addresses:
                    found[cluster, address].append((cluster, namespace, name))
        return found


def _endpoints(
    service: AnyService, snapshot: Snapshot, clusters: Mapping[str, Snapshot]
) -> Iterator[tuple[str, str, LocatedEndpoint]]:
    """Yield the endpoints of a Service, ready or not, each with its cluster and its namespace."""
    if not isinstance(service, FederatedService):
        for located in (*service.endpoints, *snapshot.unready.get(service.cache_key, ())):
            yield located.location.cluster, service.service.namespace, located
        return
    for cluster, alone in clusters.items():
        if (exported := alone.exported.get(service.key)) is not None:
            for located in (*exported.compiled.endpoints, *alone.unready.get(service.key, ())):
                yield cluster, service.namespace, located


class CountedAnswers(Struct, frozen=True):
    """How many answers a server has counted, by the zone of the client, "" for an unknown one.

    ``of_services`` has them for each Service that was counted by itself (``serve --metrics-per-service``), by
    ``namespace/name``, None if none was.
    """

    zones: Mapping[str, int]
    of_services: Mapping[str, Mapping[str, int]] | None = None

    def of(self, service: str) -> Mapping[str, int]:
        """Return the numbers for one Service, those of all Services if none is counted by itself."""
        return self.zones if self.of_services is None else self.of_services.get(service, {})


class World(Struct, frozen=True):
    """What is simulated: the clusters as they would be, the clusters as they are, and who asks.

    ``clusters`` are those that exist, each by itself, by their names; ``cluster`` is the own one's name. ``own`` are
    the clients in the own cluster, ``everywhere`` those in all of them: only federated names are the same everywhere.
    ``counted`` says how much they ask, None for one unit a pod.
    """

    snapshot: Snapshot
    actual: Snapshot
    clusters: Mapping[str, Snapshot]
    authority: Authority
    cluster: str
    own: AskingPods
    everywhere: AskingPods
    counted: CountedAnswers | None = None

    def clients_of(self, subject: Subject) -> AskingPods:
        """Return who asks for a name."""
        return self.everywhere if subject.federated else self.own

    def somewhere_in(self, zone: str) -> ClientPlace:
        """Return the place of a client of which nothing is known but its zone, and with "" not even that."""
        return ClientPlace(Location(None, {ZONE: zone, CLUSTER: self.cluster}) if zone else UNKNOWN_LOCATION)


def world_of(snapshot: Snapshot, clients: AskingPods, authority: Authority, cluster: str) -> World:
    """Return one cluster, alone and as it is."""
    return World(snapshot, snapshot, {cluster: snapshot}, authority, cluster, clients, clients)
