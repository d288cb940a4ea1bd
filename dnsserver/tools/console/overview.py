# SPDX-License-Identifier: Apache-2.0

"""The first page: who asked from where and what they got, what is known of the clusters, and what is wrong.

What clients would get if each pod asked once says which Services to look at, and who gets what where nobody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct
from starlette.requests import Request

from dnsserver.names import SERVICES
from dnsserver.tools.console.findings import causes_of
from dnsserver.tools.console.gains import gains, money_shown, unconstrained
from dnsserver.tools.console.page import FOLLOWS_ALL, Page, PageContext
from dnsserver.tools.console.recent import by_zone
from dnsserver.tools.console.simulations import NOT_WATCHED, asking_pods
from dnsserver.tools.simulation import MAX_OVERLOAD
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.selecting import constrained_subjects
from dnsserver.tools.simulation.service import Simulated, exceeds, simulate
from dnsserver.tools.simulation.text import worst_first
from dnsserver.tools.simulation.world import world_of
from locator.model import SEVERITIES, EndpointSlice
from locator.state.snapshot import Snapshot, lacking

MAX_SIMULATED = 500  # Services: a fifth of a second
MAX_WORST = 10
MAX_ZONES = 100  # rows of the matrix
MAX_SOURCES = 10  # ranges of clients, or forwarders
MAX_CAUSES = 30


class Expected(Struct, frozen=True):
    """What the pods of a cluster would get if each asked once for each of the constrained Services.

    ``services`` are all of these, ``simulated`` those that were simulated: the first in the alphabet if they are many.
    ``zones`` has numbers of answers by zone and relation, ``worst`` the Services that a person should look at.
    ``note`` says what is missing, in a word and in a text; None if nothing is.
    """

    services: int
    simulated: int
    zones: Mapping[str, Counter[str]]
    worst: Sequence[Simulated]
    note: tuple[str, str] | None


async def overview_page(context: PageContext, request: Request) -> Page:
    """Return the first page, even if nothing has been read."""
    money, status = money_shown(request)
    findings, ages, health = context.changes.findings, context.ages(), context.health()
    objects = {
        name: publisher.snapshot.object_counts
        for name, publisher in context.inspected.clusters.items()
        if publisher.snapshot is not None
    }
    asked = None if context.recent is None else context.recent.asked()
    expected, snapshot, without, gained = None, context.inspected.snapshot(), None, None
    if snapshot is not None:
        made_of = snapshot.services, snapshot.addresses
        expected = await context.simulated("expected", made_of, lambda: _expected(context, snapshot))
        without = await unconstrained(context, snapshot)
        if without.all and without.services:
            gained = await gains(context, snapshot)
    severities, causes = await context.turns.in_thread(
        lambda: (Counter(finding.severity for finding in findings), causes_of(findings))
    )
    return Page(
        "overview.html",
        "Overview",
        {
            "asked": asked,
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


async def _expected(context: PageContext, snapshot: Snapshot) -> Expected:
    """Simulate the constrained Services of the own cluster."""
    authority, in_thread = context.inspected.authority, context.turns.in_thread
    constrained = await in_thread(partial(constrained_subjects, snapshot, authority))
    subjects = [one for one in constrained if one.zone.about == SERVICES]
    pods, watched = await asking_pods(context, snapshot)
    if missing := lacking(snapshot, EndpointSlice):
        return Expected(len(subjects), len(subjects), {}, (), ("no endpoints", f"Not known: {missing}"))
    world = world_of(snapshot, pods, authority, context.inspected.cluster)
    groupings, simulated, answers = Groupings(world), list[Simulated](), Counter[tuple[str, str]]()
    for subject in subjects[:MAX_SIMULATED]:
        one = await in_thread(partial(simulate, subject, world, groupings))
        simulated.append(one)
        for key, load in one.relations.items():
            answers[key] += round(load)
    odd = [one for one in simulated if one.unmet or exceeds(one, MAX_OVERLOAD) or one.starved or one.spilled_clients]
    note = None if watched else ("no Pods", NOT_WATCHED)
    return Expected(len(subjects), len(simulated), by_zone(answers), worst_first(odd)[:MAX_WORST], note)


def trusting_flag(source: str) -> str:
    """Return the flag that trusts a source; "" for sources that are counted together."""
    if "." not in source and ":" not in source:
        return ""
    return f"--trusted-forwarder {source}/{128 if ':' in source else 32}"


def percent_of(part: int, whole: int) -> int:
    """Return a part in percent: 0 and 100 only where that is exact."""
    if not 0 < part < whole:
        return 100 if part else 0
    return min(99, max(1, round(100 * part / whole)))
