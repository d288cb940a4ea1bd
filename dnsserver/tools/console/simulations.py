# SPDX-License-Identifier: Apache-2.0

"""Where the load of a Service flows: simulated as things are, and beside it with another constraint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from dnsserver.text import counted
from dnsserver.tools.api.contents import batches
from dnsserver.tools.api.inspected import Inspected
from dnsserver.tools.console.page import PageContext
from dnsserver.tools.simulation.as_if import Annotations, Changes, service_as_if, snapshot_as_if
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.selecting import check_annotations, service_zones
from dnsserver.tools.simulation.service import Simulated, simulate
from dnsserver.tools.simulation.world import AskingPods, Subject, World, world_of
from locator.model import EndpointSlice, Pod
from locator.state.snapshot import CompiledService, Snapshot, lacking
from locator.topology.annotations import MAX_OVERLOAD, MIN_ENDPOINTS, TOPOLOGY_KEYS, asking, max_overload
from locator.topology.balance_checks import unheard
from locator.topology.service_checks import CarriedKeys, service_key_findings

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
    """Return the running pods of the own cluster that have an address."""
    inspected = context.inspected

    async def compute() -> Pods:
        clients, pods = AskingPods(), await inspected.own.listed(Pod)
        async for batch in batches(pods):
            for pod in batch:
                if pod.asks:
                    clients.add(inspected.cluster, pod, snapshot.addresses)
        return clients, bool(pods)

    return await context.once("pods", (snapshot.addresses,), compute)


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


def annotations_of(form: Mapping[str, str]) -> Annotations | None:
    """Return the annotations of a form, None if it is empty; NONE takes one away."""
    texts = {annotation: text.strip() for annotation, text in form.items()}
    return {annotation: None if text == NONE else text for annotation, text in texts.items() if text} or None


async def as_tried(context: PageContext, key: str, snapshot: Snapshot, tried: Annotations) -> Snapshot:
    """Return a snapshot in which a Service has other annotations.

    Raises BadSelection if they are not valid, or the Service is not headless.
    """
    inspected = context.inspected
    changes = Changes({key: tried}, honor_kubernetes=inspected.honor_kubernetes)

    def compiled_as_if() -> CompiledService:
        check_annotations(snapshot, changes)
        return service_as_if(snapshot.services[key], changes)

    plans = await inspected.own.plans_of(await context.turns.in_thread(compiled_as_if))
    return await context.turns.in_thread(lambda: snapshot_as_if(snapshot, changes, lambda _: plans))


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
    return " and ".join(parts)
