# SPDX-License-Identifier: Apache-2.0

"""Who asks: pods, each of them one unit of load, or as many units as a server has counted answers for their zone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from locator.model import CLUSTER, UNKNOWN_LOCATION, ZONE, Location
from locator.state.snapshot import AnyService, FederatedService, Snapshot
from locator.topology.selection import LocatedEndpoint

PodKey = tuple[str, str]  # the cluster, and the pod's ``namespace/name``


class ClientPlace(NamedTuple):
    """Where a client is, and the size of the addresses that it can reach: None for both families."""

    location: Location
    octets: int | None = None


class AskingPod(Struct, frozen=True, gc=False):
    """A pod that asks: its cluster and key, its addresses, and where it is."""

    cluster: str
    key: str
    addresses: tuple[bytes, ...]
    location: Location

    @property
    def identity(self) -> PodKey:
        """Its key among the pods of all clusters."""
        return self.cluster, self.key

    @property
    def place(self) -> ClientPlace:
        """Where it is, and what it can reach: a pod reaches the address families that it has."""
        sizes = set(map(len, self.addresses))
        return ClientPlace(self.location, sizes.pop() if len(sizes) == 1 else None)


class AskingPods:
    """The pods that ask, all of them or those of one cluster.

    ``numbers`` has how many are at each place. With *endpoints_too*, the endpoints of a Service ask for its name,
    too; else they do not.
    """

    def __init__(self, *, endpoints_too: bool = False) -> None:
        self.numbers: Counter[ClientPlace] = Counter()
        self._places: dict[PodKey, ClientPlace] = {}
        self._by_address: dict[tuple[str, bytes], list[PodKey]] = {}
        self._endpoints_too = endpoints_too

    def __len__(self) -> int:
        return len(self._places)

    def add(self, client: AskingPod) -> None:
        """Add one more."""
        self._places[client.identity] = place = client.place
        self.numbers[place] += 1
        for address in client.addresses:
            self._by_address.setdefault((client.cluster, address), []).append(client.identity)

    def left_out(self, service: AnyService, snapshot: Snapshot, clusters: Mapping[str, Snapshot]) -> set[PodKey]:
        """Return those that are endpoints of a Service, ready or not, and so do not ask for its name.

        *service* is the Service in a *snapshot* of all clusters as they are, and *clusters* has that of each. A
        pod is the endpoint that names it; an endpoint that names no pod is each pod with its address.
        """
        if self._endpoints_too:
            return set()
        return {
            identity
            for cluster, namespace, located in _endpoints(service, snapshot, clusters)
            for identity in self._identities(cluster, namespace, located)
            if identity in self._places
        }

    def at(self, identities: Collection[PodKey]) -> Counter[ClientPlace]:
        """Return how many of some clients are at each place."""
        return Counter(map(self._places.__getitem__, identities))

    def _identities(self, cluster: str, namespace: str, located: LocatedEndpoint) -> Iterable[PodKey]:
        if located.endpoint.pod is not None:
            return ((cluster, f"{namespace}/{located.endpoint.pod}"),)
        return [
            identity
            for address in located.endpoint.addresses
            for identity in self._by_address.get((cluster, address), ())
        ]


def _endpoints(
    service: AnyService, snapshot: Snapshot, clusters: Mapping[str, Snapshot]
) -> Iterator[tuple[str, str, LocatedEndpoint]]:
    """Yield the endpoints of a Service, ready or not, each with its cluster and its namespace."""
    if isinstance(service, FederatedService):
        for cluster, alone in clusters.items():
            exported = alone.exported.get(service.key)
            for located in (*exported.compiled.endpoints, *alone.unready.get(service.key, ())) if exported else ():
                yield cluster, service.namespace, located
        return
    for located in (*service.endpoints, *snapshot.unready.get(service.cache_key, ())):
        yield located.location.cluster, service.service.namespace, located


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


def somewhere_in(zone: str, cluster: str) -> ClientPlace:
    """Return the place of a client of which nothing is known but its zone, and with "" not even that."""
    return ClientPlace(Location(None, {ZONE: zone, CLUSTER: cluster}) if zone else UNKNOWN_LOCATION)
