# SPDX-License-Identifier: Apache-2.0

"""All that was simulated, and its JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat

import msgspec
from msgspec import Struct

from dnsserver.tools.simulation.as_if import Annotations, annotating_command
from dnsserver.tools.simulation.comparing import Compared
from dnsserver.tools.simulation.cost import BeforeAndAfter, Price
from dnsserver.tools.simulation.gains import REPORTED, Gain
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.service import Simulated, domain_at, first_address, simulate
from dnsserver.tools.simulation.world import Subject, World
from locator.model import Finding
from locator.topology.constraints import Declaration


class Totals(Struct, frozen=True):
    """All Services together. ``cost`` is per month, None without a price."""

    clients: int
    cross_zone: BeforeAndAfter
    cost: BeforeAndAfter | None


class Simulation(Struct, frozen=True):
    """What became of all names: ``clients`` are the distinct ones.

    An endpoint is overloaded with more than ``max_overload`` even shares. ``tried`` are the annotations that differ
    from those in the cluster, by the Service's ``namespace/name``. ``compared`` has the choices for each of the
    ``services``, () if nobody wants to compare them. ``gains`` are those of the ``services`` if no Service has a
    constraint, in the order of their rank: then the ``services`` have what they would gain by.
    """

    services: Sequence[Simulated]
    clients: int
    max_overload: float
    findings: Sequence[Finding] = ()
    tried: Mapping[str, Annotations] = {}
    compared: Sequence[Sequence[Compared]] = ()
    price: Price | None = None
    gains: Sequence[Gain] | None = None

    def each(self) -> Iterator[tuple[Simulated, Sequence[Compared]]]:
        """Yield the services, each with its choices."""
        yield from zip(self.services, self.compared or repeat(()), strict=False)

    def totals(self) -> Totals:
        """Return what all Services have together: cross-zone traffic weighted by the load that arrives."""
        services, cost = self.services, None
        if self.price is not None:
            cost = BeforeAndAfter(
                self.price.of(sum(service.crossing_before for service in services)),
                self.price.of(sum(service.crossing for service in services)),
            )
        before = _weighted((service.crossing_before, service.load_before) for service in services)
        after = _weighted((service.crossing, service.load) for service in services)
        return Totals(self.clients, BeforeAndAfter(before, after), cost)


def _weighted(pairs: Iterable[tuple[float, float]]) -> float:
    total = weight = 0.0
    for value, load in pairs:
        total += value * load
        weight += load
    return total / weight if weight else 0.0


def simulate_all(subjects: Sequence[Subject], world: World, report: Callable[[int], None]) -> list[Simulated]:
    """Return what becomes of some names. Calls *report* with how many are done from time to time."""
    services, groupings = list[Simulated](), Groupings(world)
    for number, subject in enumerate(subjects):
        if not number % REPORTED:
            report(number)
        services.append(simulate(subject, world, groupings))
    return services


def distinct_clients(services: Sequence[Simulated], world: World) -> int:
    """Return how many clients ask for any of the names; of counted answers, how many there were."""
    if (counted := world.counted) is not None:
        if counted.of_services is None:
            return sum(counted.zones.values())
        return sum(sum(counted.of(key).values()) for key in {service.subject.key for service in services})
    federated_first = sorted(services, key=lambda service: not service.subject.federated)
    everybody = world.clients_of(federated_first[0].subject)
    silent = set(everybody)
    for service in federated_first:
        asking = world.clients_of(service.subject)
        silent = {pod for pod in silent if pod in service.left_out or pod not in asking}
    return len(everybody) - len(silent)


def service_json(simulated: Simulated, compared: Sequence[Compared]) -> dict[str, object]:
    """Return what became of a name, as JSON has it; federated and multi-cluster names have rows of their own.

    What was *compared* is there only if it was.
    """
    namespace, _, name = simulated.subject.key.partition("/")
    declaration, pairs = simulated.declaration, zip(simulated.endpoints, simulated.shares, strict=True)
    found: dict[str, object] = {
        "namespace": namespace,
        "name": name,
        "zone": simulated.subject.zone.name,
        "constraint": _constraint(declaration),
        "domains": [
            {
                "domain": row.domain,
                "clients": row.clients,
                "endpoints": list(map(first_address, row.choice.endpoints)),
                "outcome": row.choice.outcome,
            }
            for row in simulated.domains()
        ],
        "endpoints": [
            {
                "address": first_address(located),
                "pod": located.endpoint.pod,
                "node": located.location.node,
                "domain": domain_at(located.location, declaration),
                "share": share,
                "even_share": simulated.even_share,
            }
            for located, share in pairs
        ],
        "max_overload": simulated.max_overload,
        "idle": list(map(first_address, simulated.idle)),
        "cross_zone": BeforeAndAfter(simulated.crossing_before, simulated.crossing),
        "unmet_clients": simulated.unmet,
        "unknown_clients": simulated.unknown,
    }
    return {**found, "compare": list(map(_compared, compared))} if compared else found


def _constraint(declaration: Declaration | None) -> dict[str, object] | None:
    return None if declaration is None else {"source": declaration.source, "keys": declaration.constraint.keys}


def _compared(row: Compared) -> dict[str, object]:
    return {
        "name": row.name,
        "constraint": _constraint(row.declaration),
        "cross_zone": row.cross_zone,
        "max_overload": row.max_overload,
        "unmet_clients": row.unmet_clients,
        "overloaded": row.overloaded,
    }


def gain_json(gain: Gain, price: Price | None) -> dict[str, object]:
    """Return what a Service would gain, as JSON has it."""
    namespace, _, name = gain.key.partition("/")
    return {
        "namespace": namespace,
        "name": name,
        "clients": gain.clients,
        "endpoints": gain.endpoints,
        "cross_zone": gain.cross_zone,
        "max_overload": gain.max_overload,
        "overloaded": gain.overloaded,
        "unmet_clients": gain.unmet_clients,
        "balanced": gain.balanced,
        "kept": gain.kept,
        "saved": None if price is None else price.of(gain.fall),
        "annotations": gain.annotations,
        "command": annotating_command(gain.key, gain.annotations) if gain.annotations else None,
        "reason": gain.reason or None,
    }


def json_parts(simulation: Simulation, findings: Sequence[object]) -> Iterator[str]:
    """Yield the JSON, a Service a line: all of a large cluster at once would take gigabytes.

    *findings* are those of the simulation, as JSON has them.
    """

    def encoded(value: object) -> str:
        return msgspec.json.encode(value).decode()

    separator = '{"services": [\n'
    for simulated, compared in simulation.each():
        yield separator + encoded(service_json(simulated, compared))
        separator = ",\n"
    opening = '\n], "gains": ['
    for number, gain in enumerate(simulation.gains or ()):
        yield f"{',' if number else opening}\n{encoded(gain_json(gain, simulation.price))}"
    yield f'\n], "totals": {encoded(simulation.totals())},\n'
    yield f'"findings": {encoded(findings)}}}\n'
