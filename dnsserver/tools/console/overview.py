# SPDX-License-Identifier: Apache-2.0

"""The first page: what is wrong now, who asked from where and what they got, and what is known of the clusters.

What clients would get if each pod asked once says which Services to look at, and who gets what where nobody asks.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct
from starlette.requests import Request

from dnsserver.answers.decision import Authority
from dnsserver.names import SERVICES
from dnsserver.tools.console.findings import Cause, causes_of
from dnsserver.tools.console.gains import gains, money_shown, unconstrained
from dnsserver.tools.console.live import zone_curves
from dnsserver.tools.console.now import (
    DUMP,
    asked_troubles,
    broken_clusters,
    finding_troubles,
    live_unmet,
    peace_text,
    source_troubles,
)
from dnsserver.tools.console.page import ALWAYS, FOLLOWS_ALL, SELDOM, Page, PageContext
from dnsserver.tools.console.recent import by_zone
from dnsserver.tools.console.service_troubles import (
    MAX_TROUBLES,
    lost_troubles,
    service_troubles,
    worse_if_new,
    worst_trouble_first,
)
from dnsserver.tools.console.simulations import NOT_WATCHED, asking_pods
from dnsserver.tools.console.troubles import WORDS, Now, Trouble, in_short
from dnsserver.tools.simulation import MAX_OVERLOAD
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.selecting import constrained_subjects, unconstrained_subjects
from dnsserver.tools.simulation.service import Simulated, exceeds, simulate
from dnsserver.tools.simulation.text import worst_first
from dnsserver.tools.simulation.unmet import LostZone, lost_in
from dnsserver.tools.simulation.world import Subject, world_of
from locator.model import SEVERITIES, EndpointSlice
from locator.state.snapshot import CompiledService, Snapshot, lacking
from locator.topology.constraints import in_effect
from locator.topology.selection import UNMET

MAX_SIMULATED = 500  # Services: a fifth of a second
MAX_UNREADY = 100  # Services without a constraint and without a ready endpoint
UNSEEN = 50  # times as long as a simulation takes, until the next one although nobody looks
MAX_WORST = 10
MAX_ZONES = 100  # rows of the matrix
MAX_SOURCES = 10  # ranges of clients, or forwarders
MAX_CAUSES = 30


class Expected(Struct, frozen=True):
    """What the pods of a cluster would get if each asked once for each of the constrained Services.

    ``services`` are all of these, ``simulated`` those that were simulated: if they are many, those in which something
    may be wrong come first. ``zones`` has numbers of answers by zone and relation, or UNMET for those that would be
    empty, ``worst`` the Services that a person should look at, ``troubles`` what is wrong with them. ``note`` says what
    is missing, in a word and in a text; None if nothing is.
    """

    services: int
    simulated: int
    zones: Mapping[str, Counter[str]]
    worst: Sequence[Simulated]
    troubles: Sequence[Trouble]
    note: tuple[str, str] | None


async def overview_page(context: PageContext, request: Request) -> Page:
    """Return the first page, even if nothing has been read."""
    money, status = money_shown(request)
    ages, health = context.ages(), context.health()
    objects = {
        name: publisher.snapshot.object_counts
        for name, publisher in context.inspected.clusters.items()
        if publisher.snapshot is not None
    }
    snapshot, without, gained = context.inspected.snapshot(), None, None
    if snapshot is not None:
        without = await unconstrained(context, snapshot)
        if without.all and without.services:
            gained = await gains(context, snapshot)
    expected = await _expected_if_read(context, ALWAYS if context.recent is None else SELDOM)
    severities, causes = await _causes(context)
    now = _now(context, expected, causes)
    return Page(
        "overview.html",
        now.verdict,
        {
            "now": now,
            "words": WORDS,
            "broken": broken_clusters(health, ages),
            "asked": None if context.recent is None else context.recent.asked(),
            "curves": zone_curves(context),
            "speaker": context.speaker,
            "expected": expected,
            "ages": ages,
            "objects": objects,
            "checks": health,
            "ready": all(check.ok for check in health.values()),
            "severities": [(severity, severities[severity]) for severity in SEVERITIES if severities[severity]],
            "causes": causes,
            **money,
            "without": without,
            "gains": gained,
            "max_zones": MAX_ZONES,
            "max_sources": MAX_SOURCES,
            "max_causes": MAX_CAUSES,
        },
        FOLLOWS_ALL,
        status,
    )


async def look_at_troubles(context: PageContext) -> tuple[object, ...]:
    """Look at what is wrong although nobody else does, so that it is known since when; return what tells it apart."""

    async def look() -> Now:
        expected = await _expected_if_read(context, UNSEEN)
        _, causes = await _causes(context)
        return _now(context, expected, causes)

    return (await context.turns.take("troubles", look)).identities


def _now(context: PageContext, expected: Expected | None, causes: Sequence[Cause]) -> Now:
    """Return what is wrong now."""
    at, health = time.time(), context.health()
    asked = None if context.recent is None else context.recent.asked()
    troubles = [
        *live_unmet(() if expected is None else expected.troubles, asked),
        *source_troubles(health, context.ages(), at),
        *(() if asked is None else asked_troubles(asked)),
        *finding_troubles(causes),
    ]
    dated = context.sightings.dated(troubles, at, settled=expected is not None)
    shown, more = in_short(sorted(map(worse_if_new, dated), key=worst_trouble_first))
    of_dump = context.recent is None and DUMP in health
    simulated = expected is not None and expected.note is None
    peace = peace_text(0 if expected is None else expected.services, simulated=simulated)
    return Now(shown, more, at, None if of_dump else context.sightings.began, peace)


async def _causes(context: PageContext) -> tuple[Counter[str], Sequence[Cause]]:
    """Return how many findings there are of each severity, and their causes."""
    findings = context.changes.findings

    async def compute() -> tuple[Counter[str], Sequence[Cause]]:
        return await context.turns.in_thread(
            lambda: (Counter(finding.severity for finding in findings), causes_of(findings))
        )

    return await context.once("causes", (findings,), compute)


async def _expected_if_read(context: PageContext, share: int) -> Expected | None:
    """Return what pods would get, None before the clusters have been read; it takes a part in *share* of the time."""
    if (snapshot := context.inspected.snapshot()) is None:
        return None
    made_of, compute = (snapshot.services, snapshot.addresses), partial(_expected, context, snapshot)
    return await context.seldom("expected", made_of, compute, share=share)


async def _expected(context: PageContext, snapshot: Snapshot) -> Expected:
    """Simulate the constrained Services of the own cluster."""
    authority, in_thread = context.inspected.authority, context.turns.in_thread
    constrained = await in_thread(partial(constrained_subjects, snapshot, authority))
    subjects = [one for one in constrained if one.zone.about == SERVICES]
    pods, watched = await asking_pods(context, snapshot)
    if missing := lacking(snapshot, EndpointSlice):
        return Expected(len(subjects), len(subjects), {}, (), (), ("no endpoints", f"Not known: {missing}"))
    if len(subjects) > MAX_SIMULATED:
        subjects.sort(key=lambda subject: not _may_be_wrong(snapshot.services[subject.key], snapshot))
    world = world_of(snapshot, pods, authority, context.inspected.cluster)
    groupings, odd, answers = Groupings(world), list[Simulated](), Counter[tuple[str, str]]()
    troubles, lost = list[Trouble](), defaultdict[str, list[LostZone]](list)

    def simulate_one(subject: Subject) -> None:
        one = simulate(subject, world, groupings)
        for key, load in one.relations.items():
            answers[key] += round(load)
        for zone, clients in one.origins.items():
            if nothing := round(clients.unmet):
                answers[zone or "", UNMET] += nothing
        if one.unmet or exceeds(one, MAX_OVERLOAD) or one.starved or one.spilled_clients:
            odd.append(one)
        if len(troubles) < MAX_TROUBLES:
            troubles.extend(service_troubles(one, snapshot))
        for zone, service in lost_in(one, snapshot):
            if service.clients:
                lost[zone].append(service)

    for subject in subjects[:MAX_SIMULATED]:
        await in_thread(partial(simulate_one, subject))
    for subject in await in_thread(partial(_all_unready, snapshot, authority)):
        troubles += service_troubles(await in_thread(partial(simulate, subject, world, groupings)), snapshot)
    note = None if watched else ("no Pods", NOT_WATCHED)
    simulated = min(len(subjects), MAX_SIMULATED)
    troubles = [*sorted(troubles, key=worst_trouble_first), *lost_troubles(lost)]
    return Expected(len(subjects), simulated, by_zone(answers), worst_first(odd)[:MAX_WORST], troubles, note)


def _all_unready(snapshot: Snapshot, authority: Authority) -> list[Subject]:
    """Return the first Services without a constraint that have endpoints, none of which is ready."""
    if not snapshot.unready:
        return []

    def lost(compiled: CompiledService) -> bool:
        return compiled.empty and compiled.cache_key in snapshot.unready

    without = unconstrained_subjects(snapshot, authority)
    return [subject for subject in without if lost(snapshot.services[subject.key])][:MAX_UNREADY]


def _may_be_wrong(compiled: CompiledService, snapshot: Snapshot) -> bool:
    """Whether clients of a Service may get nothing, or a zone may have lost its endpoints."""
    unready = compiled.cache_key in snapshot.unready
    return unready or compiled.empty or not in_effect(compiled.declaration).soft


def percent_of(part: int, whole: int) -> int:
    """Return a part in percent: 0 and 100 only where that is exact."""
    if not 0 < part < whole:
        return 100 if part else 0
    return min(99, max(1, round(100 * part / whole)))
