# SPDX-License-Identifier: Apache-2.0

"""Simulates all names of a selection, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dnsserver.names import FEDERATION
from dnsserver.tools.simulation.clients import PodKey
from dnsserver.tools.simulation.codes import findings_of
from dnsserver.tools.simulation.results import Price, Simulation
from dnsserver.tools.simulation.service import Groupings, Simulated, Subject, World, simulate
from locator.model import Finding

REPORTED = 100  # names from one report to the next


def simulate_all(
    subjects: Sequence[Subject],
    world: World,
    groupings: Groupings,
    *,
    max_overload: float,
    price: Price | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Simulation:
    """Return what becomes of some names. Calls *report* with how many are done from time to time."""
    services: list[Simulated] = []
    findings: list[Finding] = []
    for number, subject in enumerate(subjects):
        if not number % REPORTED:
            report(number)
        simulated = simulate(subject, world, groupings)
        services.append(simulated)
        findings += findings_of(simulated, max_overload)
    return Simulation(services, _distinct_clients(services, world), findings, price)


def _distinct_clients(services: Sequence[Simulated], world: World) -> int:
    """Return how many clients ask for any of the names; of counted answers, how many there were."""
    if world.counted is not None:
        counted = world.counted
        if counted.of_services is None:
            return sum(counted.zones.values())
        return sum(sum(counted.of(key).values()) for key in {service.subject.key for service in services})
    of_own = [service for service in services if service.subject.zone.about != FEDERATION]
    federated = [service for service in services if service.subject.zone.about == FEDERATION]
    if not federated:
        return len(world.own) - len(_left_out_of_all(of_own))
    silent = {pod for pod in _left_out_of_all(federated) if pod[0] != world.cluster}
    silent |= {pod for pod in _left_out_of_all(services) if pod[0] == world.cluster}
    return len(world.everywhere) - len(silent)


def _left_out_of_all(services: Sequence[Simulated]) -> frozenset[PodKey]:
    if not services:
        return frozenset()
    left, *others = [service.left_out for service in services]
    return left.intersection(*others)
