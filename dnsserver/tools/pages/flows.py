# SPDX-License-Identifier: Apache-2.0

"""Where the load of a Service flows: simulated as things are, and beside it with another constraint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dnsserver.answers.decision import Authority
from dnsserver.tools.explain.explanation_text import counted
from dnsserver.tools.pages.steps import STEP, Steps
from dnsserver.tools.simulation import MAX_OVERLOAD
from dnsserver.tools.simulation.as_if import Annotations, Changes, snapshot_as_if
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.picture import inline_picture
from dnsserver.tools.simulation.proposals import proposal
from dnsserver.tools.simulation.results import Proposed
from dnsserver.tools.simulation.selecting import BadSelection, check_annotations, service_zones
from dnsserver.tools.simulation.service import Simulated, described, exceeds, first_address, simulate
from dnsserver.tools.simulation.text import (
    commands,
    constraint_text,
    domain_text,
    greatest_shares,
    largest_domains,
    named,
    outcome_of,
)
from dnsserver.tools.simulation.world import AskingPods, Subject, World, world_of
from locator.model import EndpointSlice, Pod
from locator.places.book import Book
from locator.state.snapshot import Snapshot, lacking
from locator.topology.annotations import MIN_ENDPOINTS, TOPOLOGY_KEYS, min_endpoints
from locator.topology.selection import LocatedEndpoint
from locator.topology.service_checks import CarriedKeys, service_key_findings

ROWS = 20
NO_KEYS = "-"  # in a form: the annotation with the keys is taken away
NOT_WATCHED = (
    "topodns knows no Pods here, so it cannot say how much each zone asks: a dump must contain them, and "
    "--client-source must name pods"
)


class FlowDomain(Struct, frozen=True):
    """The clients in a topology domain: how many they are, how they are answered, and what they get."""

    domain: str
    clients: int
    outcome: str
    gets: str


class ShareRow(Struct, frozen=True):
    """An endpoint, its part of the load, how many even shares that is, and a word if it is overloaded or idle."""

    address: str
    name: str
    share: float
    times: float
    word: str


class Proposal(Struct, frozen=True):
    """Annotations under which no endpoint is overloaded: what becomes of the Service, and the command to set them."""

    keys: str
    least: str
    outcome: str
    command: str


class Flows(Struct, frozen=True):
    """One simulation. ``picture`` is an SVG element; it is made by us, and its texts are escaped.

    ``crossing`` and ``crossing_before`` are parts of the load that cross zones, with the constraint and without any.
    ``notes`` are each a word and a text.
    """

    title: str
    constraint: str
    picture: str
    clients: int
    unmet: int
    unknown: int
    max_overload: float
    overloaded: bool
    idle: int
    crossing: float
    crossing_before: float
    domains: tuple[FlowDomain, ...]
    more_domains: int
    shares: tuple[ShareRow, ...]
    more_shares: int
    notes: tuple[tuple[str, str], ...]
    proposal: Proposal | None


class Pods(Struct, frozen=True):
    """The pods that may ask. ``watched`` is false where topodns does not know the pods."""

    clients: AskingPods
    watched: bool


def pods_in(pods: Sequence[Pod], addresses: Book, cluster: str) -> Steps[Pods]:
    """Return those of the *pods* of a cluster that have an address and have not finished, each for itself."""
    clients = AskingPods()
    for number, pod in enumerate(pods):
        if not number % STEP:
            yield
        if pod.addresses and not pod.finished:
            clients.add(cluster, pod, addresses)
    return Pods(clients, watched=bool(pods))


def flows_of(
    key: str,
    snapshot: Snapshot,
    pods: Pods,
    authority: Authority,
    cluster: str,
    *,
    tried: Annotations | None = None,
    proposes: bool = False,
    honor_kubernetes: bool = True,
) -> tuple[Flows, ...]:
    """Return where the load of a headless Service (``namespace/name``) flows; with *tried* annotations once more.

    *cluster* is the name of the own one. With *proposes*, each has a proposal if an endpoint is overloaded.
    The annotations must be valid (``check_tried``).
    """
    zones, compiled = service_zones(authority), snapshot.services.get(key)
    if not zones or compiled is None or not compiled.service.headless or lacking(snapshot, EndpointSlice):
        return ()
    subject = Subject(zones[0], key)
    world = world_of(snapshot, pods.clients, authority, cluster)
    groupings = Groupings(world)
    notes = () if pods.watched else (("no Pods", NOT_WATCHED),)
    flows = partial(
        _flows,
        groupings=groupings,
        subject=subject,
        notes=notes,
        proposes=proposes,
        honor_kubernetes=honor_kubernetes,
    )
    found = [flows("now", world)]
    if tried is not None:
        other = as_tried(key, snapshot, tried, honor_kubernetes=honor_kubernetes)
        found.append(flows(title_of(tried), replace(world, snapshot=other)))
    return tuple(found)


def check_tried(key: str, snapshot: Snapshot, tried: Annotations, *, honor_kubernetes: bool) -> None:
    """Raise BadSelection if annotations to try are not valid, or the Service is not headless."""
    check_annotations(snapshot, Changes({key: tried}, honor_kubernetes=honor_kubernetes))
    if min_endpoints(replace(snapshot.services[key].service, annotations=_present(tried))) is None:
        text = f"{tried[MIN_ENDPOINTS]!r} found, expected a whole number from 1 to 999999999"
        raise BadSelection(MIN_ENDPOINTS, text)


def _present(annotations: Annotations) -> dict[str, str]:
    return {key: text for key, text in annotations.items() if text is not None}


def annotations_of(keys: str, least: str) -> Annotations | None:
    """Return the annotations of a form, None if it is empty; NO_KEYS takes the keys away."""
    tried: dict[str, str | None] = {}
    if keys.strip():
        tried[TOPOLOGY_KEYS] = None if keys.strip() == NO_KEYS else keys.strip()
    if least.strip():
        tried[MIN_ENDPOINTS] = least.strip()
    return tried or None


def as_tried(key: str, snapshot: Snapshot, tried: Annotations, *, honor_kubernetes: bool) -> Snapshot:
    """Return a snapshot in which a Service has other annotations."""
    return snapshot_as_if(snapshot, Changes({key: tried}, honor_kubernetes=honor_kubernetes))


def title_of(tried: Annotations) -> str:
    """Return how a page calls what is tried."""
    keys, least = tried.get(TOPOLOGY_KEYS, ""), tried.get(MIN_ENDPOINTS)
    parts = ["without the annotation"] if keys is None else [f"with {keys}"] if keys else []
    return " and ".join([*parts, *([f"at least {counted(int(least), 'endpoint')}"] if least else [])])


def _flows(
    title: str,
    world: World,
    *,
    groupings: Groupings,
    subject: Subject,
    notes: Sequence[tuple[str, str]],
    proposes: bool,
    honor_kubernetes: bool,
) -> Flows:
    simulated = simulate(subject, world, groupings)
    rows, shares = largest_domains(simulated), greatest_shares(simulated)
    proposed = None
    if proposes:
        proposed = proposal(simulated, world, MAX_OVERLOAD, honor_kubernetes=honor_kubernetes)
    return Flows(
        title=title,
        constraint=constraint_text(simulated),
        picture=inline_picture(simulated, MAX_OVERLOAD),
        clients=simulated.clients,
        unmet=simulated.unmet,
        unknown=simulated.unknown,
        max_overload=simulated.max_overload,
        overloaded=exceeds(simulated, MAX_OVERLOAD),
        idle=simulated.starved,
        crossing=simulated.crossing,
        crossing_before=simulated.crossing_before,
        domains=tuple(
            FlowDomain(
                domain_text(row.domain),
                row.clients,
                row.choice.outcome,
                named(list(map(described, row.choice.endpoints))),
            )
            for row in rows[:ROWS]
        ),
        more_domains=max(0, len(rows) - ROWS),
        shares=tuple(_share(simulated, *pair) for pair in shares[:ROWS]),
        more_shares=max(0, len(shares) - ROWS),
        notes=(*notes, *_notes(world, subject)),
        proposal=None if proposed is None else _proposal(simulated, proposed),
    )


def _share(simulated: Simulated, share: float, located: LocatedEndpoint) -> ShareRow:
    times = share * len(simulated.endpoints)
    return ShareRow(first_address(located), described(located), share, times, simulated.rating(share, MAX_OVERLOAD))


def _notes(world: World, subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield which keys of the constraint no node carries, with the nearest that one does."""
    compiled = world.snapshot.services[subject.key]
    declaration = compiled.declaration
    if declaration is not None and declaration.valid:
        carried = CarriedKeys(frozenset(key for place in world.own.numbers for key in place.location.labels))
        for finding in service_key_findings(compiled.service, declaration, compiled.locations, carried):
            yield "key", f"{finding.message}; the nearest that nodes have is {finding.expected}"


def _proposal(simulated: Simulated, proposed: Proposed) -> Proposal:
    wanted = proposed.annotations
    keys, least = wanted.get(TOPOLOGY_KEYS, ""), wanted.get(MIN_ENDPOINTS) or ""
    return Proposal(NO_KEYS if keys is None else keys, least, outcome_of(proposed), commands(simulated, proposed))
