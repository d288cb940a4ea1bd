# SPDX-License-Identifier: Apache-2.0

"""What Services without a constraint would gain by the one that most people want, as ``topodns simulate`` shows it.

The first page has it where no Service has a constraint, and a page of its own in any cluster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request

from dnsserver.settings import values
from dnsserver.tools.api.operations import BadParameter, Parameter
from dnsserver.tools.console.page import Page, PageContext, field_errors, form_of, read
from dnsserver.tools.console.simulations import NOT_WATCHED, all_as_tried, asking_pods
from dnsserver.tools.simulation import MAX_OVERLOAD
from dnsserver.tools.simulation.as_if import Annotations, Changes
from dnsserver.tools.simulation.cost import BeforeAndAfter, Price
from dnsserver.tools.simulation.gains import OWN_ZONE, Gain, bounded, gain_of, ranked, wants_bound, with_bound
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.selecting import constrained_subjects, in_several_zones, unconstrained_subjects
from dnsserver.tools.simulation.service import simulate
from dnsserver.tools.simulation.world import Subject, world_of
from locator.model import EndpointSlice, Node
from locator.state.snapshot import Snapshot, lacking

MAX_SIMULATED = 500  # Services: half a second
MAX_RANKED = 50  # rows: each has a command, and a page stays small
NO_ZONES = "so topodns cannot say in which zone a client is: a dump must contain them"
PRICE, TRAFFIC = "price", "traffic"
AMOUNT, GIGABYTES = values.amount(PRICE), values.amount(TRAFFIC, "gigabytes")
PARAMETERS = (
    Parameter(PRICE, "Of a gigabyte between zones.", AMOUNT.read, AMOUNT.expected),
    Parameter(TRAFFIC, "Gigabytes in a month.", GIGABYTES.read, GIGABYTES.expected),
)


class Unconstrained(Struct, frozen=True):
    """How many ``services`` have no constraint, which of these are ``in_several_zones``; whether ``all`` have none."""

    services: int
    in_several_zones: Sequence[Subject]
    all: bool


class Gains(Struct, frozen=True):
    """What Services without a constraint would gain.

    There are so many ``services``, and the endpoints of ``candidates`` of them are in several zones. Of these,
    ``gains`` has those with the most endpoints. ``note`` says what is missing, in a word and in a text, None if
    nothing is.
    """

    services: int
    candidates: int
    gains: Sequence[Gain]
    note: tuple[str, str] | None = None

    def ranking(self, price: Price | None) -> list[Gain]:
        """Return those that would gain something, the most first."""
        return [gain for gain in ranked(self.gains, price) if gain.annotations]

    def reasons(self) -> Counter[str]:
        """Return how many would gain nothing, by why."""
        return Counter(gain.reason for gain in self.gains if gain.reason)

    def crossing(self) -> BeforeAndAfter:
        """Return which part of the load crosses zones now, and which would."""
        load = sum(gain.load for gain in self.gains) or 1.0
        before = sum(gain.cross_zone.before * gain.load for gain in self.gains) / load
        return BeforeAndAfter(before, before - sum(gain.kept for gain in self.gains) / load)


async def gains_page(context: PageContext, request: Request) -> Page:
    """Return the page of what all Services without a constraint would gain."""
    shown, status = money_shown(request)
    found = await gains(context, context.inspected.current())
    return Page("gains.html", "What would I gain", {**shown, "gains": found}, status=status)


def money_shown(request: Request) -> tuple[dict[str, Any], int]:
    """Return what a page shows of the two fields that say the price, and its status."""
    form, errors, price = form_of(request, PRICE, TRAFFIC), dict[str, str](), None
    try:
        price = price_of(read(request, *PARAMETERS))
    except BadParameter as error:
        errors = field_errors(error, form)
    return {"form": form, "errors": errors, "price": price}, 400 if errors else 200


def price_of(given: Mapping[str, Any]) -> Price | None:
    """Return the price that the values of PARAMETERS say, None if they do not. Raises BadParameter."""
    per_gb, traffic = given[PRICE], given[TRAFFIC]
    if per_gb is None or traffic is None:
        return None
    if not math.isfinite(per_gb * traffic):
        raise BadParameter(PRICE, f"{per_gb:g} times {traffic:g} is too large")
    return Price(per_gb, traffic)


async def unconstrained(context: PageContext, snapshot: Snapshot) -> Unconstrained:
    """Return which Services have no constraint."""

    def look() -> Unconstrained:
        authority = context.inspected.authority
        without, constrained = unconstrained_subjects(snapshot, authority), constrained_subjects(snapshot, authority)
        return Unconstrained(len(without), in_several_zones(without, snapshot), not constrained)

    compute = partial(context.turns.in_thread, look)
    return await context.throttled("unconstrained", compute)


async def gains(context: PageContext, snapshot: Snapshot) -> Gains:
    """Return what Services without a constraint would gain."""
    return await context.throttled("gains", partial(_gains, context, snapshot))


async def _gains(context: PageContext, snapshot: Snapshot) -> Gains:
    authority, in_thread = context.inspected.authority, context.turns.in_thread
    without = await unconstrained(context, snapshot)
    found = Gains(without.services, len(without.in_several_zones), ())
    pods, watched = await asking_pods(context, snapshot)
    if not watched:
        return replace(found, note=("no Pods", NOT_WATCHED))
    if missing := lacking(snapshot, EndpointSlice):
        return replace(found, note=("no endpoints", f"Not known: {missing}"))
    if missing := lacking(snapshot, Node):
        return replace(found, note=("no Nodes", f"{missing[0].upper()}{missing[1:]}, {NO_ZONES}"))
    first = without.in_several_zones[:MAX_SIMULATED]
    known = {subject.key: subject for subject in first if subject.key in snapshot.services}
    world = world_of(snapshot, pods, authority, context.inspected.cluster)
    groupings, by_key, to_bound = Groupings(world), dict[str, Gain](), list[Subject]()
    plain = replace(world, snapshot=await all_as_tried(context, snapshot, _changes(context, known, OWN_ZONE)))
    for key, subject in known.items():
        simulated = await in_thread(partial(simulate, subject, plain, groupings))
        by_key[key] = gain_of(simulated, MAX_OVERLOAD)
        if wants_bound(by_key[key], simulated):
            to_bound.append(subject)
    changes = _changes(context, [subject.key for subject in to_bound], bounded(MAX_OVERLOAD))
    balanced = replace(world, snapshot=await all_as_tried(context, snapshot, changes))
    for subject in to_bound:
        simulated = await in_thread(partial(simulate, subject, balanced, groupings))
        by_key[subject.key] = with_bound(by_key[subject.key], simulated, MAX_OVERLOAD)
    return replace(found, gains=list(by_key.values()))


def _changes(context: PageContext, keys: Iterable[str], annotations: Annotations) -> Changes:
    return Changes(dict.fromkeys(keys, annotations), honor_kubernetes=context.inspected.honor_kubernetes)
