"""One cluster at one moment, immutable: the source of every answer.

A compiled Service holds all that its answers depend on, the locations of its endpoints included. It
stays the same object from one snapshot to the next until the Service, its endpoints or their nodes
change, so a reader may cache by its identity. A snapshot itself holds no reader's data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import force_setattr

from locator.endpoints import ready_addresses
from locator.model import EndpointSlice, Finding, Location, Service
from locator.places.address_book import AddressBook
from locator.places.address_keys import AddressKeys, Move
from locator.places.address_map import AddressMap
from locator.state.joining import joined_endpoints
from locator.topology.constraints import Declaration, heard
from locator.topology.selection import LocatedEndpoint

T = TypeVar("T")


class CompiledService(Struct, frozen=True, eq=False, gc=False):
    """A Service with its ready endpoints, where a dual-stack endpoint is one.

    ``declarations`` are the constraints that its sources declare, in their order of precedence.
    ``service`` has no labels: the policies and selectors that match them are already applied. ``empty`` is true if no
    endpoint is ready; a store without endpoint records leaves ``endpoints`` empty in any case.
    ``slices`` has the endpoints as they came, ``locations`` one for each of ``endpoints``.
    """

    service: Service
    declarations: tuple[Declaration, ...]
    slices: tuple[EndpointSlice, ...] = ()
    locations: tuple[Location, ...] = ()
    empty: bool = False
    _read: tuple[LocatedEndpoint, ...] | None = None

    @property
    def endpoints(self) -> tuple[LocatedEndpoint, ...]:
        """The ready endpoints, each with its location; always the same objects.

        They are made when a reader first asks for them: most Services of a cluster are never asked for their endpoints.
        The store does not ask, so as not to make them all.
        """
        if self._read is None:
            joined = joined_endpoints(self.slices)
            force_setattr(self, "_read", tuple(map(LocatedEndpoint, joined, self.locations)))
        return cast("tuple[LocatedEndpoint, ...]", self._read)

    @property
    def declaration(self) -> Declaration | None:
        """The declaration that counts, None if no source declares a constraint."""
        return heard(self.declarations)

    @property
    def addresses(self) -> set[bytes]:
        """The cluster IPs of the Service and the addresses of its endpoints."""
        return set(self.service.cluster_ips).union(*(ready_addresses(part.endpoints) for part in self.slices))


class Snapshot(Struct, frozen=True, eq=False, gc=False):
    """One cluster at one moment.

    ``services`` (by ``namespace/name``) and ``namespaces`` (those that exist) hold only what topodns serves.
    ``service_addresses`` gives the Services of an address, ``pod_namespaces`` the namespaces of the running
    pods that have it (empty unless pod names are verified). ``serial`` is the time of the last visible
    change (seconds since 1970); ``object_counts`` has the number of objects of each kind. ``unready`` has the endpoints
    that are not ready, by Service; no answer depends on them.
    """

    services: Mapping[str, CompiledService]
    namespaces: frozenset[str]
    addresses: AddressBook
    serial: int
    findings: tuple[Finding, ...] = ()
    object_counts: Mapping[str, int] = {}
    service_addresses: AddressKeys = field(default_factory=AddressKeys)
    pod_namespaces: AddressMap[tuple[str, ...]] = field(default_factory=AddressMap)
    unready: Mapping[str, tuple[LocatedEndpoint, ...]] = {}


Changes = Mapping[str, CompiledService | None]  # by key; None for a Service that is deleted or no longer served


def service_addresses_after(before: Snapshot, changes: Changes) -> AddressKeys:
    """Return the Services by address after *changes*."""
    return before.service_addresses.with_changes(_moves(before.services, changes))


def _moves(before: Mapping[str, CompiledService], changes: Changes) -> Iterator[Move]:
    for key, after in changes.items():
        has = after.addresses if after is not None else set[bytes]()
        if key not in before:
            yield key, (), has
        else:
            had = before[key].addresses
            yield key, had - has, has - had


def mapping_after(before: Mapping[str, T], changes: Mapping[str, T | None]) -> Mapping[str, T]:
    """Return a mapping after *changes*, of which None removes a key; *before* itself if there are none."""
    if not changes:
        return before
    after = dict(before)
    for key, value in changes.items():
        if value is None:
            del after[key]
        else:
            after[key] = value
    return after


def answers_differ(before: Snapshot, after: Snapshot) -> bool:
    """Whether an answer may differ between two snapshots of one store."""
    return (
        before.services is not after.services
        or before.addresses is not after.addresses
        or before.pod_namespaces is not after.pod_namespaces
        or before.namespaces != after.namespaces
    )


def locations_in(snapshot: Snapshot) -> Iterator[Location]:
    """Yield the locations of all addresses and endpoints, each as often as it occurs."""
    for _, place in snapshot.addresses.places.items():
        yield place.location
    for service in snapshot.services.values():
        yield from service.locations
    for endpoints in snapshot.unready.values():
        for located in endpoints:
            yield located.location
