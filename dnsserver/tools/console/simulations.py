# SPDX-License-Identifier: Apache-2.0

"""Where the load of a Service flows: simulated as things are, and beside it with another constraint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from dnsserver.text import counted, grouped, percent
from dnsserver.tools.api.contents import batches
from dnsserver.tools.api.inspected import Inspected
from dnsserver.tools.console.page import PageContext
from dnsserver.tools.simulation import MAX_OVERLOAD as MOST_SHARES
from dnsserver.tools.simulation.as_if import Annotations, Changes, annotated, service_as_if, snapshot_as_if
from dnsserver.tools.simulation.cost import Price
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.selecting import annotation_errors, check_annotations, service_zones
from dnsserver.tools.simulation.service import Simulated, simulate
from dnsserver.tools.simulation.world import AskingPods, Subject, World, world_of
from locator.model import HOSTNAME, REGION, ZONE, EndpointSlice, Pod
from locator.state.balancing import Balances, Plans
from locator.state.snapshot import Snapshot, lacking
from locator.topology.annotations import CLIENTS, MAX_OVERLOAD, MIN_ENDPOINTS, TOPOLOGY_KEYS, asking, max_overload
from locator.topology.balance_checks import unheard
from locator.topology.service_checks import CarriedKeys, service_key_findings

# Constraints that a click tries: what they are called, and the fields of the form.
PROPOSALS: Sequence[tuple[str, Mapping[str, str]]] = (
    ("own zone, else all", {"keys": f"{ZONE},*"}),
    ("own node, own zone, else all", {"keys": f"{HOSTNAME},{ZONE},*"}),
    ("own region, else all", {"keys": f"{REGION},*"}),
    ("own zone, with max-overload 1.5", {"keys": f"{ZONE},*", "overload": "1.5"}),
    ("nothing", {"keys": "-"}),
)
PODS = 200  # at a time: they take as long as 1,000 of most things
SYMBOLS = {"warn": "○", "bad": "✕", "spilled": "↷"}
NONE = "-"  # in a form: the annotation is taken away
NOT_WATCHED = (
    "topodns knows no Pods here, so it cannot say how much each zone asks: a dump must contain them, and "
    "--client-source must name pods"
)


class Try(NamedTuple):
    """A simulation of a Service as it is ("now"), or with what the title says; ``notes`` are each a word and a text."""

    title: str
    simulated: Simulated
    notes: Sequence[tuple[str, str]]


Pods = tuple[AskingPods, bool]  # those that may ask, and whether topodns knows any pod


async def asking_pods(context: PageContext, snapshot: Snapshot) -> Pods:
    """Return the running pods of the own cluster that have an address; the next page finds them remembered."""
    return await context.cached("pods", (snapshot.addresses,), partial(read_asking_pods, context.inspected, snapshot))


async def read_asking_pods(inspected: Inspected, snapshot: Snapshot) -> Pods:
    """Return the same, for once: who keeps them keeps pods that may be gone."""
    clients, pods = AskingPods(), await inspected.own.listed(Pod)
    async for batch in batches(pods, PODS):
        for pod in batch:
            if pod.asks:
                clients.add(inspected.cluster, pod, snapshot.addresses)
    return clients, bool(pods)


def tries(inspected: Inspected, key: str, snapshots: Mapping[str, Snapshot], pods: Pods) -> Iterator[Try]:
    """Yield where the load of a headless Service (``namespace/name``) flows by *snapshots*, which have titles.

    The first one is as things are.
    """
    now = next(iter(snapshots.values()))
    zones = service_zones(inspected.authority)
    if not zones or not now.services[key].service.headless or lacking(now, EndpointSlice):
        return
    asking, watched = pods
    as_is, notes = (
        world_of(now, asking, inspected.authority, inspected.cluster),
        () if watched else (("no Pods", NOT_WATCHED),),
    )
    groupings = Groupings(as_is)
    for title, snapshot in snapshots.items():
        world = replace(as_is, snapshot=snapshot)
        simulated = simulate(Subject(zones[0], key), world, groupings)
        yield Try(title, simulated, (*notes, *_key_notes(world, key), *_balance_notes(snapshot, key)))


def _key_notes(world: World, key: str) -> Iterator[tuple[str, str]]:
    """Yield which keys of the constraint no node carries, with the nearest that one does."""
    compiled = world.snapshot.services[key]
    declaration = compiled.declaration
    if declaration is not None and declaration.valid:
        carried = CarriedKeys(frozenset(key for place in world.own.numbers for key in place.location.labels))
        for finding in service_key_findings(compiled.service, declaration, compiled.locations, carried):
            yield "key", f"{finding.message}; the nearest that nodes have is {finding.expected}"


def _balance_notes(snapshot: Snapshot, key: str) -> Iterator[tuple[str, str]]:
    """Yield why ``topodns.io/max-overload`` bounds nothing, if it does not."""
    compiled = snapshot.services[key]
    if max_overload(compiled.service) is None or snapshot.balances.get(key) or not compiled.locations:
        return
    if why := unheard(compiled.service, compiled.declaration, compiled.endpoints):
        yield "max-overload", f"It bounds nothing: {why}"
    elif asking(compiled.service) is not None:
        yield "max-overload", "It bounds nothing yet: topodns reads the labels of pods by which it knows the clients"


def differences_of(shown: Sequence[Try], price: Price | None) -> list[tuple[str, str, str, str]]:
    """Return in words how the last one of some simulations differs from the first; nothing of one alone."""
    return list(_differences(shown[0].simulated, shown[-1].simulated, price)) if len(shown) > 1 else []


def _differences(now: Simulated, tried: Simulated, price: Price | None) -> Iterator[tuple[str, str, str, str]]:
    """Yield in words how what is tried differs from what is: each a tone, a symbol, a word and a text.

    The first is about what crosses zones, and its money with a *price*; the others only where they are not nothing.
    """
    points = 100 * (tried.crossing - now.crossing)
    text = f"{percent(now.crossing)} → {percent(tried.crossing)} of the load crosses zones"
    if price is not None:
        saved = price.of(now.crossing - tried.crossing)
        text += f"; {abs(saved):,.2f} {'less' if saved >= 0 else 'more'} a month at your price"
    tone, symbol = ("good", "↓") if points < 0 else ("bad", "↑") if points > 0 else ("quiet", "–")
    yield tone, symbol, f"{points:+.1f} points".replace("-", "\N{MINUS SIGN}"), text
    greatest = f"the greatest load is {now.max_overload:.2f} → {tried.max_overload:.2f} × an even share"
    before, after = now.overloaded(MOST_SHARES), tried.overloaded(MOST_SHARES)
    if before or after:
        word = grouped(after, "overloaded endpoint") if after else "no overload"
        yield ("bad" if after > before else "good"), "▲" if after else "✓", word, f"{before:,} now; {greatest}"
    for was, number, noun, what in (
        (now.starved, tried.starved, "idle endpoint", "warn"),
        (now.unmet, tried.unmet, "unmet client", "bad"),
        (now.spilled_clients, tried.spilled_clients, "spilled client", "spilled"),
    ):
        if was or number:
            symbol = SYMBOLS[what] if number else "✓"
            yield (what if number else "good"), symbol, grouped(number, noun), f"{was:,} now"


def annotations_of(form: Mapping[str, str]) -> Annotations | None:
    """Return the annotations of a form, None if it is empty; NONE takes one away."""
    texts = {annotation: text.strip() for annotation, text in form.items()}
    return {annotation: None if text == NONE else text for annotation, text in texts.items() if text} or None


async def as_tried(context: PageContext, key: str, snapshot: Snapshot, tried: Annotations) -> Snapshot:
    """Return a snapshot in which a Service has other annotations.

    Raises BadSelection if they are not valid, or the Service is not headless.
    """
    changes = Changes({key: tried}, honor_kubernetes=context.inspected.honor_kubernetes)
    await context.turns.in_thread(lambda: check_annotations(snapshot, changes))
    return await all_as_tried(context, snapshot, changes)


async def wrong_annotations(context: PageContext, key: str, tried: Annotations) -> Mapping[str, str]:
    """Return what is wrong with each annotation that a Service would have, of those that can be valid on it."""
    snapshot = context.inspected.current()
    changes = Changes({key: tried}, honor_kubernetes=context.inspected.honor_kubernetes)
    errors = await context.turns.in_thread(lambda: list(annotation_errors(snapshot, changes)))
    return {error.annotation: str(error) for error in errors if error.annotation}


async def all_as_tried(context: PageContext, snapshot: Snapshot, changes: Changes) -> Snapshot:
    """Return a snapshot in which some Services have other annotations, which are valid, with their plans."""
    plans: dict[str, tuple[Plans, Balances]] = {}
    for key, tried in changes.annotations.items():
        compiled = snapshot.services[key]
        if max_overload(annotated(compiled.service, tried)) is not None:
            changed = await context.turns.in_thread(partial(service_as_if, compiled, changes))
            plans[key] = await context.inspected.own.plans_of(changed)
    return await context.turns.in_thread(
        lambda: snapshot_as_if(snapshot, changes, lambda compiled: plans.get(compiled.service.key, ((), ())))
    )


def title_of(tried: Annotations) -> str:
    """Return how a page calls what is tried."""
    parts = []
    if (keys := tried.get(TOPOLOGY_KEYS, "")) is None:
        parts.append("without the annotation")
    elif keys:
        parts.append(f"with {keys}")
    if MIN_ENDPOINTS in tried:
        parts.append(f"at least {counted(int(tried[MIN_ENDPOINTS] or 1), 'endpoint')}")
    if MAX_OVERLOAD in tried:
        bound = tried[MAX_OVERLOAD]
        parts.append("no max-overload" if bound is None else f"max-overload {bound}")
    if CLIENTS in tried:
        clients = tried[CLIENTS]
        parts.append("no clients named" if clients is None else f"clients {clients}")
    return " and ".join(parts)
