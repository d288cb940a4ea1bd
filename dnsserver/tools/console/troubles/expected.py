# SPDX-License-Identifier: Apache-2.0

"""What clients would get if each pod asked once: which Services to look at, and who gets what where nobody asks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

from msgspec import Struct

from dnsserver.names import SERVICES
from dnsserver.tools.console.page import PageContext
from dnsserver.tools.console.recent import by_zone
from dnsserver.tools.console.simulations import NOT_WATCHED, read_asking_pods
from dnsserver.tools.console.troubles.services import (
    MAX_TROUBLES,
    lost_troubles,
    service_troubles,
    worst_trouble_first,
)
from dnsserver.tools.console.troubles.trouble import Trouble
from dnsserver.tools.simulation import MAX_OVERLOAD
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.selecting import constrained_subjects, unready_subjects
from dnsserver.tools.simulation.service import Simulated, exceeds, simulate
from dnsserver.tools.simulation.text import worst_first
from dnsserver.tools.simulation.unmet import LostZone, lost_in
from dnsserver.tools.simulation.world import Subject, world_of
from locator.model import EndpointSlice
from locator.state.snapshot import CompiledService, Snapshot, lacking
from locator.topology.constraints import in_effect
from locator.topology.selection import UNMET

MAX_SIMULATED = 500  # Services: a fifth of a second
MAX_UNREADY = 100  # Services without a constraint and without a ready endpoint
MAX_WORST = 10


class Expected(Struct, frozen=True):
    """What the pods of a cluster would get if each asked once for each of the constrained Services.

    ``services`` are all of these, ``simulated`` those that were simulated: if they are many, those in which something
    may be wrong come first. ``zones`` has numbers of answers by zone and relation, or UNMET for those that would be
    empty, ``worst`` the Services that a person should look at, ``troubles`` what is wrong with them, and ``unmet`` how
    many clients get nothing, by ``namespace/name``, where any do. ``note`` says what is missing, in a word and in a
    text; None if nothing is.
    """

    services: int
    simulated: int
    zones: Mapping[str, Counter[str]]
    worst: Sequence[Simulated]
    troubles: Sequence[Trouble]
    unmet: Mapping[str, int]
    note: tuple[str, str] | None


async def expected_if_read(context: PageContext, *, one_part_in: int | None = None) -> Expected | None:
    """Return what pods would get, None before the clusters have been read; it is ``throttled``."""
    if (snapshot := context.inspected.snapshot()) is None:
        return None
    return await context.throttled("expected", partial(_expected, context, snapshot), one_part_in=one_part_in)


async def _expected(context: PageContext, snapshot: Snapshot) -> Expected:
    """Simulate the constrained Services of the own cluster."""
    authority, in_thread = context.inspected.authority, context.turns.in_thread
    constrained = await in_thread(partial(constrained_subjects, snapshot, authority))
    subjects = [one for one in constrained if one.zone.about == SERVICES]
    pods, watched = await read_asking_pods(context.inspected, snapshot)
    if missing := lacking(snapshot, EndpointSlice):
        return Expected(len(subjects), len(subjects), {}, (), (), {}, ("no endpoints", f"Not known: {missing}"))
    if len(subjects) > MAX_SIMULATED:
        subjects.sort(key=lambda subject: not _may_be_wrong(snapshot.services[subject.key], snapshot))
    world = world_of(snapshot, pods, authority, context.inspected.cluster)
    groupings, odd, answers = Groupings(world), list[Simulated](), Counter[tuple[str, str]]()
    troubles, lost, unmet = list[Trouble](), defaultdict[str, list[LostZone]](list), Counter[str]()

    def simulate_one(subject: Subject) -> None:
        one = simulate(subject, world, groupings)
        for key, load in one.relations.items():
            answers[key] += round(load)
        for zone, clients in one.origins.items():
            if nothing := round(clients.unmet):
                answers[zone or "", UNMET] += nothing
        if one.unmet:
            unmet[subject.key] = max(unmet[subject.key], one.unmet)  # it may have several names
        if one.unmet or exceeds(one, MAX_OVERLOAD) or one.starved or one.spilled_clients:
            odd.append(one)
        if len(troubles) < MAX_TROUBLES:
            troubles.extend(service_troubles(one, snapshot))
        for zone, service in lost_in(one, snapshot):
            if service.clients:
                lost[zone].append(service)

    for subject in subjects[:MAX_SIMULATED]:
        await in_thread(partial(simulate_one, subject))
    unready = await in_thread(lambda: [*islice(unready_subjects(snapshot, authority), MAX_UNREADY)])
    for subject in unready:
        one = await in_thread(partial(simulate, subject, world, groupings))
        troubles += service_troubles(one, snapshot)
        unmet[subject.key] = one.unmet
    note = None if watched else ("no Pods", NOT_WATCHED)
    simulated = min(len(subjects), MAX_SIMULATED)
    troubles = [*sorted(troubles, key=worst_trouble_first), *lost_troubles(lost)]
    return Expected(len(subjects), simulated, by_zone(answers), worst_first(odd)[:MAX_WORST], troubles, +unmet, note)


def _may_be_wrong(compiled: CompiledService, snapshot: Snapshot) -> bool:
    """Whether clients of a Service may get nothing, or a zone may have lost its endpoints."""
    unready = compiled.cache_key in snapshot.unready
    return unready or compiled.empty or not in_effect(compiled.declaration).soft
