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
from dnsserver.tools.simulation.as_if import Annotations, Changes, snapshot_as_if
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.selecting import check_annotations, service_zones
from dnsserver.tools.simulation.service import Simulated, simulate
from dnsserver.tools.simulation.world import AskingPods, Subject, World, world_of
from locator.model import EndpointSlice, Pod
from locator.state.snapshot import Snapshot, lacking
from locator.topology.annotations import MIN_ENDPOINTS, TOPOLOGY_KEYS
from locator.topology.service_checks import CarriedKeys, service_key_findings

NO_KEYS = "-"  # in a form: the annotation with the keys is taken away
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
    """Return the pods of the own cluster that have an address and have not finished."""
    inspected = context.inspected

    async def compute() -> Pods:
        clients, pods = AskingPods(), await inspected.own.listed(Pod)
        async for batch in batches(pods):
            for pod in batch:
                if pod.addresses and not pod.finished:
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
        yield Try(title, simulated, (*notes, *_key_notes(world, key)))


def _key_notes(world: World, key: str) -> Iterator[tuple[str, str]]:
    """Yield which keys of the constraint no node carries, with the nearest that one does."""
    compiled = world.snapshot.services[key]
    declaration = compiled.declaration
    if declaration is not None and declaration.valid:
        carried = CarriedKeys(frozenset(key for place in world.own.numbers for key in place.location.labels))
        for finding in service_key_findings(compiled.service, declaration, compiled.locations, carried):
            yield "key", f"{finding.message}; the nearest that nodes have is {finding.expected}"


def annotations_of(keys: str, least: str) -> Annotations | None:
    """Return the annotations of a form, None if it is empty; NO_KEYS takes the keys away."""
    tried: dict[str, str | None] = {}
    if keys.strip():
        tried[TOPOLOGY_KEYS] = None if keys.strip() == NO_KEYS else keys.strip()
    if least.strip():
        tried[MIN_ENDPOINTS] = least.strip()
    return tried or None


def check_tried(key: str, snapshot: Snapshot, tried: Annotations, *, honor_kubernetes: bool) -> None:
    """Raise BadSelection if annotations to try are not valid, or the Service is not headless."""
    check_annotations(snapshot, Changes({key: tried}, honor_kubernetes=honor_kubernetes))


def as_tried(key: str, snapshot: Snapshot, tried: Annotations, *, honor_kubernetes: bool) -> Snapshot:
    """Return a snapshot in which a Service has other annotations."""
    return snapshot_as_if(snapshot, Changes({key: tried}, honor_kubernetes=honor_kubernetes), lambda _: ((), ()))


def title_of(tried: Annotations) -> str:
    """Return how a page calls what is tried."""
    keys, least = tried.get(TOPOLOGY_KEYS, ""), tried.get(MIN_ENDPOINTS)
    parts = ["without the annotation"] if keys is None else [f"with {keys}"] if keys else []
    return " and ".join([*parts, *([f"at least {counted(int(least), 'endpoint')}"] if least else [])])
