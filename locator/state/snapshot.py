"""One cluster at one moment, immutable: whatever is answered comes from one of these.

A Service stands here in its compiled form, with its endpoints' locations inside, so that it
holds *all* that its answers are made from. A Service stays the same object from one snapshot to
the next until it, its endpoints or their nodes change: so a reader may remember by this object
what it made of it. Nothing here belongs to any reader.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from locator.model import Finding, Service
from locator.places.address_book import AddressBook
from locator.places.address_map import AddressMap
from locator.state.service_addresses import ServiceAddresses
from locator.topology.constraints import Declaration, in_effect
from locator.topology.selection import Constraint, LocatedEndpoint


class CompiledService(Struct, frozen=True, eq=False):
    """A Service with what it declares and its ready endpoints, dual-stack ones joined.

    ``service`` is without its labels: what they decide is decided. ``empty`` says that no endpoint
    is ready, which is more than that none is to be told of.
    """

    service: Service
    declaration: Declaration | None
    endpoints: tuple[LocatedEndpoint, ...]
    empty: bool = False

    @property
    def constraint(self) -> Constraint:
        """By what its endpoints are chosen."""
        return in_effect(self.declaration)

    @property
    def addresses(self) -> set[bytes]:
        """The addresses that a name of the Service has: its own, and those of its endpoints."""
        return {*self.service.cluster_ips, *(a for located in self.endpoints for a in located.endpoint.addresses)}


class Snapshot(Struct, frozen=True, eq=False):
    """One cluster at one moment.

    ``services`` by ``namespace/name``, ``namespaces`` that exist: those that are served only.
    ``holders`` tells which of these Services have an address, ``pods`` in which namespaces running
    pods have it, if that is to be known. ``serial`` is the time of the last visible change in
    seconds since 1970; ``objects`` counts what is known by kind.
    """

    services: Mapping[str, CompiledService]
    namespaces: frozenset[str]
    addresses: AddressBook
    serial: int
    findings: tuple[Finding, ...] = ()
    objects: Mapping[str, int] = {}
    holders: ServiceAddresses = field(default_factory=ServiceAddresses)
    pods: AddressMap[tuple[str, ...]] = field(default_factory=AddressMap)


Changes = Mapping[str, CompiledService | None]


def holders_after(before: Snapshot, changes: Changes) -> ServiceAddresses:
    """Return who has which address after some Services became others, None for one that is gone."""
    left, joined = [], []
    for key, after in changes.items():
        known = before.services.get(key)
        had = known.addresses if known is not None else set[bytes]()
        has = after.addresses if after is not None else set[bytes]()
        left.append((key, had - has))
        joined.append((key, has - had))
    return before.holders.changed(left=left, joined=joined)


def services_after(before: Mapping[str, CompiledService], changes: Changes) -> Mapping[str, CompiledService]:
    """Return the Services after some became others, None for one that is gone; *before* itself if none did."""
    if not changes:
        return before
    after = dict(before)
    for key, each in changes.items():
        if each is None:
            del after[key]
        else:
            after[key] = each
    return after


def answers_differ(before: Snapshot, after: Snapshot) -> bool:
    """Whether some answer may be another one; both are of one store."""
    return (
        before.services is not after.services
        or before.addresses is not after.addresses
        or before.pods is not after.pods
        or before.namespaces != after.namespaces
    )


def locations_in(snapshot: Snapshot) -> set[int]:
    """Return the ids of all locations at which something is."""
    ids = {id(place.location) for _, place in snapshot.addresses.places.items()}
    return ids.union(id(row.location) for each in snapshot.services.values() for row in each.endpoints)
