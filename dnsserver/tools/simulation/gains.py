# SPDX-License-Identifier: Apache-2.0

"""What Services without a constraint would gain by the one that most people want: the own zone, else all endpoints.

That constraint leaves nobody without an endpoint, but it may overload some. There it is also tried with a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dnsserver.tools.simulation.as_if import Annotations
from dnsserver.tools.simulation.cost import BeforeAndAfter, Price
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.service import SLACK, Simulated, simulate
from dnsserver.tools.simulation.world import Subject, World
from locator.model import ZONE
from locator.topology.annotations import LEAST_OVERLOAD, MAX_OVERLOAD, MOST_OVERLOAD, TOPOLOGY_KEYS
from locator.topology.selection import ANY_ENDPOINT

OWN_ZONE: Mapping[str, str] = {TOPOLOGY_KEYS: f"{ZONE},{ANY_ENDPOINT}"}
REPORTED = 100  # Services from one report to the next
# Why a Service would gain nothing.
NO_ENDPOINT, NOBODY_ASKS, SINGLE = "no ready endpoint", "nobody asks", "single endpoint"
NO_ZONES, ONE_ZONE, ELSEWHERE = "no zone labels", "one zone only", "no endpoint in a zone of its clients"
ONLY_OVERLOAD = "only by overload"


class Load(Struct, frozen=True):
    """What becomes of a Service with a bound: ``overloaded`` is a number of endpoints."""

    cross_zone: float
    max_overload: float
    overloaded: int


class Gain(Struct, frozen=True):
    """What a Service (``key``, ``namespace/name``) would gain by OWN_ZONE.

    ``cross_zone``, ``max_overload``, ``overloaded`` (a number of endpoints) and ``unmet_clients`` are those with
    OWN_ZONE alone, ``balanced`` those with a bound to the load, too: None if no endpoint would be overloaded, or no
    bound would help. ``load`` is what arrives, in units of one client. ``annotations`` are those to take: with the
    bound, if there is one; none if there is no gain, and then ``reason`` says why.
    """

    key: str
    clients: int
    endpoints: int
    load: float
    cross_zone: BeforeAndAfter
    max_overload: float
    overloaded: int
    unmet_clients: int
    annotations: Mapping[str, str]
    reason: str = ""
    balanced: Load | None = None

    @property
    def fall(self) -> float:
        """By how much the part of the load that crosses zones falls with the ``annotations``."""
        if not self.annotations:
            return 0.0
        return self.cross_zone.before - (self.cross_zone.after if self.balanced is None else self.balanced.cross_zone)

    @property
    def kept(self) -> float:
        """How much load the ``annotations`` keep in its zone, in units of one client."""
        return self.load * self.fall


def bounded(max_overload: float) -> Mapping[str, str]:
    """Return OWN_ZONE with a bound: *max_overload* even shares, or the nearest that an annotation may have."""
    return {**OWN_ZONE, MAX_OVERLOAD: f"{min(max(max_overload, LEAST_OVERLOAD), MOST_OVERLOAD):g}"}


def gain_of(simulated: Simulated, max_overload: float) -> Gain:
    """Return what a Service would gain, which was *simulated* with OWN_ZONE."""
    reason, load = _reason(simulated), _load(simulated, max_overload)
    return Gain(
        key=simulated.subject.key,
        clients=simulated.clients,
        endpoints=len(simulated.endpoints),
        load=simulated.load,
        cross_zone=BeforeAndAfter(simulated.crossing_before, simulated.crossing),
        max_overload=load.max_overload,
        overloaded=load.overloaded,
        unmet_clients=simulated.unmet,
        annotations={} if reason else OWN_ZONE,
        reason=reason,
    )


def wants_bound(gain: Gain, simulated: Simulated) -> bool:
    """Whether it is worth trying a bound for a Service that was *simulated* with OWN_ZONE."""
    return bool(gain.annotations and gain.overloaded) and simulated.may_be_balanced


def with_bound(gain: Gain, simulated: Simulated, max_overload: float) -> Gain:
    """Return what a Service would gain, which was *simulated* with ``bounded(max_overload)``, too."""
    balanced = _load(simulated, max_overload)
    if balanced.cross_zone >= gain.cross_zone.before - SLACK:
        return replace(gain, balanced=balanced, annotations={}, reason=ONLY_OVERLOAD)
    return replace(gain, balanced=balanced, annotations=bounded(max_overload))


def find_gains(
    subjects: Sequence[Subject],
    as_if: Callable[[Collection[str], Annotations], World],
    max_overload: float,
    report: Callable[[int], None],
) -> list[Gain]:
    """Return what each of some Services would gain, in their order.

    *as_if* returns the world in which some of them (``namespace/name``) have other annotations. An endpoint is
    overloaded with more than *max_overload* even shares. Calls *report* with how many are done from time to time.
    """
    world = as_if([subject.key for subject in subjects], OWN_ZONE)
    groupings = Groupings(world)  # the clients are the same in both
    gains, to_bound = list[Gain](), list[int]()
    for number, subject in enumerate(subjects):
        if not number % REPORTED:
            report(number)
        simulated = simulate(subject, world, groupings)
        gains.append(gain := gain_of(simulated, max_overload))
        if wants_bound(gain, simulated):
            to_bound.append(number)
    if to_bound:
        world = as_if([subjects[number].key for number in to_bound], bounded(max_overload))
    for number in to_bound:
        gains[number] = with_bound(gains[number], simulate(subjects[number], world, groupings), max_overload)
    return gains


def ranked(gains: Iterable[Gain], price: Price | None) -> list[Gain]:
    """Return who saves the most money first, or without *price*, who keeps most load; who would gain nothing last.

    Each Service has the same traffic in a month, so who saves most is the one with the greatest fall.
    """

    def rank(gain: Gain) -> tuple[bool, float, str]:
        most = gain.kept if price is None else price.of(gain.fall)
        return not gain.annotations, -round(most, 6), gain.key

    return sorted(gains, key=rank)


def _load(simulated: Simulated, max_overload: float) -> Load:
    return Load(simulated.crossing, simulated.max_overload, simulated.overloaded(max_overload))


def _reason(simulated: Simulated) -> str:
    """Return why a Service would gain nothing, "" if it would gain."""
    if simulated.crossing < simulated.crossing_before - SLACK:
        return ""
    zones = {located.location.labels.get(ZONE) for located in simulated.endpoints} - {None}
    if not simulated.endpoints:
        return NO_ENDPOINT
    if not simulated.clients:
        return NOBODY_ASKS
    if len(simulated.endpoints) == 1:
        return SINGLE
    if not zones or not any(simulated.origins):
        return NO_ZONES
    return ONE_ZONE if len(zones) == 1 else ELSEWHERE
