# SPDX-License-Identifier: Apache-2.0

"""Zone by zone: who asks from where, and where what they get is. Counted by a server, or simulated if nobody asks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from dnsserver.answers.decision import Authority
from dnsserver.metrics.server import RELATIONS
from dnsserver.names import SERVICES
from dnsserver.tools.pages.flows import NOT_WATCHED, Pods
from dnsserver.tools.pages.steps import Steps
from dnsserver.tools.simulation import MAX_OVERLOAD
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.selecting import constrained_subjects
from dnsserver.tools.simulation.service import Simulated, exceeds, simulate
from dnsserver.tools.simulation.text import worst_first
from dnsserver.tools.simulation.world import world_of
from locator.model import EndpointSlice
from locator.state.snapshot import Snapshot, lacking

MAX_SIMULATED = 500  # Services: a fifth of a second
MAX_WORST = 10


class Cell(Struct, frozen=True):
    """How many answers to clients of one zone have one relation to it, and which part of all of theirs that is."""

    relation: str
    answers: int
    percent: int


class ZoneRow(Struct, frozen=True):
    """The answers to the clients of one zone, "" for clients whose zone is not known."""

    zone: str
    answers: int
    cells: tuple[Cell, ...]


class Worst(Struct, frozen=True):
    """A Service that a person should look at, and what becomes of its load."""

    namespace: str
    name: str
    max_overload: float
    overloaded: bool
    idle: int
    unmet: int
    crossing: float
    crossing_before: float


class Expected(Struct, frozen=True):
    """What the pods of a cluster would get if each asked once for each of the constrained Services.

    ``services`` are all of these, ``simulated`` those that were simulated: the first in the alphabet if they are many.
    ``note`` says what is missing, in a word and in a text; None if nothing is.
    """

    services: int
    simulated: int
    zones: tuple[ZoneRow, ...]
    worst: tuple[Worst, ...]
    note: tuple[str, str] | None


def zone_rows(answers: Mapping[tuple[str, str], float]) -> tuple[ZoneRow, ...]:
    """Return the rows by zone, those whose zone is not known last. *answers* are numbers by zone and relation."""
    by_zone: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (zone, relation), number in answers.items():
        by_zone[zone][relation] += round(number)
    return tuple(_row(zone, by_zone[zone]) for zone in sorted(by_zone, key=lambda zone: (not zone, zone)))


def _row(zone: str, relations: Counter[str]) -> ZoneRow:
    answers = relations.total()
    cells = (Cell(name, relations[name], _percent(relations[name], answers)) for name in RELATIONS)
    return ZoneRow(zone, answers, tuple(cells))


def _percent(part: int, whole: int) -> int:
    """Return a part in percent: 0 and 100 only where that is exact."""
    if not 0 < part < whole:
        return 100 if part else 0
    return min(99, max(1, round(100 * part / whole)))


def expected_in(snapshot: Snapshot, pods: Pods, authority: Authority, cluster: str) -> Steps[Expected]:
    """Simulate the constrained Services of the own *cluster*."""
    subjects = [one for one in constrained_subjects(snapshot, authority) if one.zone.about == SERVICES]
    if missing := lacking(snapshot, EndpointSlice):
        return Expected(len(subjects), len(subjects), (), (), ("no endpoints", f"Not known: {missing}"))
    world = world_of(snapshot, pods.clients, authority, cluster)
    groupings, simulated, answers = Groupings(world), list[Simulated](), Counter[tuple[str, str]]()
    for subject in subjects[:MAX_SIMULATED]:
        yield
        one = simulate(subject, world, groupings)
        simulated.append(one)
        for key, load in one.relations.items():
            answers[key] += round(load)
    note = None if pods.watched else ("no Pods", NOT_WATCHED)
    return Expected(len(subjects), len(simulated), zone_rows(answers), _worst(simulated), note)


def _worst(simulated: Sequence[Simulated]) -> tuple[Worst, ...]:
    odd = [one for one in simulated if one.unmet or exceeds(one, MAX_OVERLOAD) or one.starved]
    return tuple(map(_as_row, worst_first(odd)[:MAX_WORST]))


def _as_row(one: Simulated) -> Worst:
    namespace, _, name = one.subject.key.partition("/")
    return Worst(
        namespace,
        name,
        max_overload=one.max_overload,
        overloaded=exceeds(one, MAX_OVERLOAD),
        idle=one.starved,
        unmet=one.unmet,
        crossing=one.crossing,
        crossing_before=one.crossing_before,
    )
