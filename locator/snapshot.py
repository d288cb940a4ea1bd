"""One cluster at one moment, immutable: whatever is answered comes from one of these.

A Service stands here in its compiled form, with its endpoints' locations inside, so that it
holds *all* that its answers are made from. What is remembered of it hangs on it, and is gone
when the Service, its endpoints or their nodes change; unchanged Services live on in the next
snapshot with all that is remembered of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from locator.addresses import AddressBook
from locator.constraints import ANY, Constraint
from locator.holders import Holders
from locator.model import SUCCESSORS, EndpointSlice, Finding, Location, Service
from locator.selection import LocatedEndpoint


class CompiledService(Struct, frozen=True, eq=False):
    """A Service with its constraint and its ready endpoints, dual-stack ones joined.

    ``empty`` says that no endpoint is ready, which is more than that none is to be told of.
    ``terms`` are the label keys, in their present names, whose values at the client decide
    which endpoints it gets: empty where the client does not matter. ``slices`` and
    ``locations`` are what it was made from. ``memory`` may hold what is derived from this
    value alone.
    """

    service: Service
    constraint: Constraint | None
    endpoints: tuple[LocatedEndpoint, ...]
    slices: tuple[EndpointSlice, ...]
    locations: tuple[Location, ...]
    terms: tuple[str, ...] = ()
    empty: bool = False
    memory: dict[Any, Any] = field(default_factory=dict)

    @property
    def addresses(self) -> set[bytes]:
        """The addresses that a name of the Service has: its own, and those of its endpoints."""
        return {*self.service.cluster_ips, *(a for located in self.endpoints for a in located.endpoint.addresses)}


def terms_of(constraint: Constraint | None) -> tuple[str, ...]:
    """Return the label keys on whose values at the client the answer depends."""
    if constraint is None or not constraint.effective:
        return ()
    return tuple(SUCCESSORS.get(key, key) for key in constraint.keys if key != ANY)


class Snapshot(Struct, frozen=True, eq=False):
    """One cluster at one moment.

    ``services`` by ``namespace/name``, ``namespaces`` that exist: those that are served only.
    ``holders`` tells which of these Services have an address, ``pods`` which address a pod of a
    namespace has, if that is to be known. ``serial`` is the time of the last visible change in
    seconds since 1970; ``objects`` counts what is known by kind.
    """

    services: Mapping[str, CompiledService]
    namespaces: frozenset[str]
    addresses: AddressBook
    serial: int
    findings: tuple[Finding, ...] = ()
    objects: Mapping[str, int] = {}
    holders: Holders = field(default_factory=Holders)
    pods: frozenset[tuple[str, bytes]] = frozenset()
