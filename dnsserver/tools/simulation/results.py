# SPDX-License-Identifier: Apache-2.0

"""What a simulation consists of, as types that JSON has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from msgspec import Struct

from dnsserver.tools.simulation.service import DomainOutcome, Simulated
from locator.ip import address_text
from locator.model import Finding
from locator.topology.selection import LocatedEndpoint


class ConstraintSimulated(TypedDict):
    """The constraint that counts: its source and its keys as they are written."""

    source: str
    keys: list[str]


class DomainSimulated(TypedDict):
    """The clients in a topology domain, and the addresses that they get, the first of each endpoint."""

    domain: dict[str, str]
    clients: int
    endpoints: list[str]
    outcome: str


class EndpointSimulated(TypedDict):
    """A ready endpoint, by its first address, and its share of the load."""

    address: str
    pod: str | None
    node: str | None
    domain: dict[str, str]
    share: float
    even_share: float


class BeforeAndAfter(TypedDict):
    """A figure without any constraint, and with the constraints that were simulated."""

    before: float
    after: float


class Proposed(TypedDict):
    """Annotations under which no endpoint is overloaded, and what becomes of the Service with them."""

    annotations: dict[str, str | None]
    max_overload: float
    idle: int
    unmet_clients: int
    cross_zone: float


class ServiceSimulated(TypedDict):
    """What becomes of one name. ``zone`` is the DNS zone: federated and multi-cluster names have rows of their own."""

    namespace: str
    name: str
    zone: str
    constraint: ConstraintSimulated | None
    domains: list[DomainSimulated]
    endpoints: list[EndpointSimulated]
    max_overload: float
    idle: list[str]
    cross_zone: BeforeAndAfter
    unmet_clients: int
    unknown_clients: int
    proposal: Proposed | None


class Totals(TypedDict):
    """All Services together. ``cost`` is per month, None without a price."""

    clients: int
    cross_zone: BeforeAndAfter
    cost: BeforeAndAfter | None


class Price(Struct, frozen=True):
    """What a gigabyte between zones costs, and how many of them each Service's clients get in a month."""

    per_gb: float
    traffic: float


class Simulation(Struct, frozen=True):
    """What became of all names: ``clients`` are the distinct ones."""

    services: Sequence[Simulated]
    clients: int
    findings: Sequence[Finding]
    price: Price | None = None

    def totals(self) -> Totals:
        """Return what all Services have together: cross-zone traffic weighted by the load that arrives."""
        services = self.services
        after = _weighted((service.crossing, service.load) for service in services)
        before = _weighted((service.crossing_before, service.load_before) for service in services)
        cost: BeforeAndAfter | None = None
        if self.price is not None:
            whole = self.price.per_gb * self.price.traffic
            cost = {
                "before": whole * sum(service.crossing_before for service in services),
                "after": whole * sum(service.crossing for service in services),
            }
        return {"clients": self.clients, "cross_zone": {"before": before, "after": after}, "cost": cost}


def _weighted(pairs: Iterable[tuple[float, float]]) -> float:
    total = weight = 0.0
    for value, load in pairs:
        total += value * load
        weight += load
    return total / weight if weight else 0.0


def service_simulated(simulated: Simulated, proposal: Proposed | None = None) -> ServiceSimulated:
    """Return what became of a name, as JSON has it."""
    namespace, _, name = simulated.subject.key.partition("/")
    declaration = simulated.declaration
    return {
        "namespace": namespace,
        "name": name,
        "zone": simulated.subject.zone.name,
        "constraint": None
        if declaration is None
        else {"source": declaration.source, "keys": list(declaration.constraint.keys)},
        "domains": list(map(_domain, simulated.domains())),
        "endpoints": [
            _endpoint(simulated, located, share)
            for located, share in zip(simulated.endpoints, simulated.shares, strict=True)
        ],
        "max_overload": simulated.max_overload,
        "idle": list(map(first_address, simulated.idle)),
        "cross_zone": {"before": simulated.crossing_before, "after": simulated.crossing},
        "unmet_clients": simulated.unmet,
        "unknown_clients": simulated.unknown,
        "proposal": proposal,
    }


def _domain(row: DomainOutcome) -> DomainSimulated:
    return {
        "domain": dict(row.domain),
        "clients": row.clients,
        "endpoints": list(map(first_address, row.choice.endpoints)),
        "outcome": row.choice.outcome,
    }


def _endpoint(simulated: Simulated, located: LocatedEndpoint, share: float) -> EndpointSimulated:
    endpoint, location = located.endpoint, located.location
    values = {key: location.value(key) for key in simulated.keys}
    return {
        "address": first_address(located),
        "pod": endpoint.pod,
        "node": location.node,
        "domain": {key: value for key, value in values.items() if value is not None},
        "share": share,
        "even_share": simulated.even_share,
    }


def first_address(located: LocatedEndpoint) -> str:
    """Return the first address of an endpoint as text."""
    return address_text(located.endpoint.addresses[0]) if located.endpoint.addresses else ""
