"""One cluster at one moment, immutable: the source of every answer.

A compiled Service holds all that its answers depend on, the locations of its endpoints included. It
stays the same object from one snapshot to the next until the Service, its endpoints or their nodes
change, so a reader may cache by its identity. A snapshot itself holds no reader's data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct, field

from locator.model import Finding, Service
from locator.places.address_book import AddressBook
from locator.places.address_map import AddressMap
from locator.state.service_addresses import ServiceAddresses
from locator.topology.constraints import Declaration, heard
from locator.topology.selection import LocatedEndpoint

T = TypeVar("T")


class CompiledService(Struct, frozen=True, eq=False, gc=False):
    """A Service with its ready endpoints, where a dual-stack endpoint is one.

    ``declarations`` are the constraints that its sources declare, in their order of precedence.
    ``service`` has no labels: the policies and selectors that match them are already applied. ``empty`` is true if no
    endpoint is ready; a store without endpoint records leaves ``endpoints`` empty in any case.
    """

    service: Service
    declarations: tuple[Declaration, ...]
    endpoints: tuple[LocatedEndpoint, ...]
    empty: bool = False

    @property
    def declaration(self) -> Declaration | None:
        """The declaration that counts, None if no source declares a constraint."""
        return heard(self.declarations)

    @property
    def addresses(self) -> set[bytes]:
        """The cluster IPs of the Service and the addresses of its endpoints."""
        return {
            *self.service.cluster_ips,
            *(address for located in self.endpoints for address in located.endpoint.addresses),
        }


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
    service_addresses: ServiceAddresses = field(default_factory=ServiceAddresses)
    pod_namespaces: AddressMap[tuple[str, ...]] = field(default_factory=AddressMap)
    unready: Mapping[str, tuple[LocatedEndpoint, ...]] = {}


Changes = Mapping[str, CompiledService | None]  # by key; None for a Service that is deleted or no longer served


def service_addresses_after(before: Snapshot, changes: Changes) -> ServiceAddresses:
    """Return the Services by address after *changes*."""
    left, joined = [], []
    for key, after in changes.items():
        service = before.services.get(key)
        had = service.addresses if service is not None else set[bytes]()
        has = after.addresses if after is not None else set[bytes]()
        left.append((key, had - has))
        joined.append((key, has - had))
    return before.service_addresses.with_changes(left=left, joined=joined)


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


def locations_in(snapshot: Snapshot) -> set[int]:
    """Return the ids of the locations of all addresses and endpoints."""
    ids = {id(place.location) for _, place in snapshot.addresses.places.items()}
    ids.update(id(located.location) for service in snapshot.services.values() for located in service.endpoints)
    return ids.union(id(located.location) for endpoints in snapshot.unready.values() for located in endpoints)
