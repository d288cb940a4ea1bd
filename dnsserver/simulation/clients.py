"""Who asks: pods, each of them one unit of load, or as many units as a server has counted answers for their zone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from msgspec import Struct

from locator.ip import address_text, parse_address
from locator.model import CLUSTER, UNKNOWN, ZONE, Location
from locator.places.address_book import POD, POD_LOCATOR, Places
from locator.state.snapshot import Basis, FederatedService, Snapshot
from locator.topology.selection import LocatedEndpoint

PodKey = tuple[str, str]  # the cluster and the pod's ``namespace/name``; of ``AddressClients`` its name and its address
BY_POD = (POD, POD_LOCATOR)  # how an address is located that a pod has


class Client(Struct, frozen=True, gc=False):
    """A pod that asks: its cluster and key, its addresses, and where it is."""

    cluster: str
    key: str
    addresses: tuple[bytes, ...]
    location: Location

    @property
    def identity(self) -> PodKey:
        """Its key among the pods of all clusters."""
        return self.cluster, self.key


class Clients(Protocol):
    """Who asks."""

    @property
    def numbers(self) -> Mapping[Location, int]:
        """How many clients are at each location."""

    def __len__(self) -> int:
        """Return how many there are."""

    def left_out(self, basis: Basis, snapshot: Snapshot, clusters: Mapping[str, Snapshot]) -> set[PodKey]:
        """Return those that are endpoints of a Service, ready or not, and so do not ask for its name.

        *basis* is the Service in a *snapshot* of all clusters as they are, and *clusters* has that of each.
        """

    def at(self, identities: Collection[PodKey]) -> Mapping[Location, int]:
        """Return how many of those that ``left_out`` returned are at each location."""


class PodClients:
    """The pods that ask, all of them or those of one cluster. See ``Clients``.

    With *endpoints_too*, the endpoints of a Service ask for its name,
    too; else they do not.
    """

    def __init__(self, clients: Iterable[Client], *, endpoints_too: bool) -> None:
        self._locations: dict[PodKey, Location] = {}
        self._by_address: dict[tuple[str, bytes], list[PodKey]] = {}
        self._endpoints_too = endpoints_too
        for client in clients:
            self._locations[client.identity] = client.location
            for address in client.addresses:
                self._by_address.setdefault((client.cluster, address), []).append(client.identity)
        self.numbers: Counter[Location] = Counter(self._locations.values())

    def __len__(self) -> int:
        return len(self._locations)

    def left_out(self, basis: Basis, snapshot: Snapshot, clusters: Mapping[str, Snapshot]) -> set[PodKey]:
        """See ``Clients``. A pod is the endpoint that names it; one that names no pod is each pod with its address."""
        if self._endpoints_too:
            return set()
        return {
            identity
            for cluster, namespace, located in _endpoints(basis, snapshot, clusters)
            for identity in self._identities(cluster, namespace, located)
            if identity in self._locations
        }

    def at(self, identities: Collection[PodKey]) -> Counter[Location]:
        """See ``Clients``."""
        return Counter(map(self._locations.__getitem__, identities))

    def _identities(self, cluster: str, namespace: str, located: LocatedEndpoint) -> Iterable[PodKey]:
        if located.endpoint.pod is not None:
            return ((cluster, f"{namespace}/{located.endpoint.pod}"),)
        return [
            identity
            for address in located.endpoint.addresses
            for identity in self._by_address.get((cluster, address), ())
        ]


class AddressClients:
    """The pods that a server knows, by their addresses. See ``Clients``.

    *numbers* has how many are at each location, and *places* the place of each address.
    """

    def __init__(self, numbers: Mapping[Location, int], places: Places) -> None:
        self.numbers = numbers
        self._places = places

    def __len__(self) -> int:
        return sum(self.numbers.values())

    def left_out(self, basis: Basis, snapshot: Snapshot, clusters: Mapping[str, Snapshot]) -> set[PodKey]:
        """See ``Clients``."""
        found = set[PodKey]()
        for _, _, located in _endpoints(basis, snapshot, clusters):
            endpoint = located.endpoint
            place = self._places.get(endpoint.addresses[0]) if endpoint.addresses else None
            # On the network of a node, pods share an address: there only the endpoint says that it is a pod.
            if place is not None and (endpoint.pod is not None or place.located_by in BY_POD):
                found.add((endpoint.pod or "", address_text(endpoint.addresses[0])))
        return found

    def at(self, identities: Collection[PodKey]) -> Counter[Location]:
        """See ``Clients``."""
        places = (self._places.get(parse_address(text)) for _, text in identities)
        return Counter(place.location for place in places if place is not None)


def _endpoints(
    basis: Basis, snapshot: Snapshot, clusters: Mapping[str, Snapshot]
) -> Iterator[tuple[str, str, LocatedEndpoint]]:
    """Yield the endpoints of a Service, ready or not, each with its cluster and its namespace."""
    if isinstance(basis, FederatedService):
        for cluster, alone in clusters.items():
            exported = alone.exported.get(basis.key)
            for located in (*exported.compiled.endpoints, *alone.unready.get(basis.key, ())) if exported else ():
                yield cluster, basis.namespace, located
        return
    for located in (*basis.endpoints, *snapshot.unready.get(basis.basis_key, ())):
        yield located.location.cluster, basis.service.namespace, located


class Counted(Struct, frozen=True):
    """How many answers a server has counted, by the zone of the client, "" for an unknown one.

    ``of_services`` has them for each Service that was counted by itself (``serve --metrics-per-service``), by
    ``namespace/name``, None if none was.
    """

    zones: Mapping[str, int]
    of_services: Mapping[str, Mapping[str, int]] | None = None

    def of(self, service: str) -> Mapping[str, int]:
        """Return the numbers for one Service, those of all Services if none is counted by itself."""
        return self.zones if self.of_services is None else self.of_services.get(service, {})


def somewhere_in(zone: str, cluster: str) -> Location:
    """Return the location of a client of which nothing is known but its zone, and with "" not even that."""
    return Location(None, {ZONE: zone, CLUSTER: cluster}) if zone else UNKNOWN
