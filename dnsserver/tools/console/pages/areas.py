# SPDX-License-Identifier: Apache-2.0

"""The areas of the map: domains within domains, what is in each, what is wrong there, and their nodes.

However large a cluster is, a page has few areas and few nodes: where there are more, they are summed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple

from msgspec import Struct

from dnsserver.text import grouped
from dnsserver.tools.api.contents import BATCH, batches
from dnsserver.tools.simulation import MAX_OVERLOAD
from locator.model import CLUSTER, REGION, ZONE

MAX_DEPTH = 3  # areas within areas: a phone has no room for more
MAX_AREAS = 40  # on a page, each some 600 octets
MAX_NODES = 80  # on a page, each some 250 octets
MAX_TROUBLED = 4  # nodes of an area, where not all are shown
WIDE = (CLUSTER, REGION, ZONE)  # domains in which clients expect endpoints; most racks and nodes have none
STEPS = 12  # of the sizes of areas; the stylesheet has a class for each
FEW = BATCH // 4  # sites at a time: each is some work

Within = tuple[tuple[str, str], ...]  # keys with values, "" for what has no such label


class Site(Struct, frozen=True, gc=False):
    """A node, or what is on no node but has these labels: then ``node`` is empty.

    ``values`` are those of the keys in use, "" where there is no such label. ``endpoints`` are ready, ``unready`` are
    not. ``known`` says whether there is such a Node: an EndpointSlice may name another one.
    """

    cluster: str
    node: str
    values: Mapping[str, str]
    endpoints: int
    clients: int
    known: bool
    unready: int = 0


class DomainTotals:
    """How many nodes, endpoints and clients there are in a domain.

    ``missing`` are the nodes that are named there but do not exist, ``unzoned`` those that are in no zone.
    """

    def __init__(self, sites: Iterable[Site] = ()) -> None:
        self.nodes = self.endpoints = self.unready = self.clients = self.missing = self.unzoned = 0
        for site in sites:
            self.add(site)

    def add(self, site: Site) -> None:
        """Count what is at a site, too."""
        self.nodes += site.known
        self.endpoints += site.endpoints
        self.unready += site.unready
        self.clients += site.clients
        self.missing += bool(site.node and not site.known)
        self.unzoned += bool(site.node and site.known and not site.values.get(ZONE))

    @property
    def weight(self) -> int:
        """How large the domain is on the map."""
        return self.nodes + self.endpoints + self.unready + self.clients


class AreaTrouble(NamedTuple):
    """Something that stands out on the map: by a colour, a symbol and words."""

    tone: str
    symbol: str
    text: str


class Area(Struct, frozen=True):
    """A domain on the map. ``within`` leads to it, and ends with its own key and value.

    It is divided into ``areas``; without any, it shows ``nodes``, and leaves out ``more``. ``size`` is from 1 to STEPS.
    """

    within: Within
    totals: DomainTotals
    troubles: Sequence[AreaTrouble]
    size: int
    areas: Sequence[Area]
    nodes: Sequence[Site]
    more: int


class Areas(NamedTuple):
    """The areas of a map, and how many more there are that have no place in it; without any, its nodes, likewise."""

    areas: Sequence[Area]
    more_areas: int
    nodes: Sequence[Site]
    more_nodes: int


def troubles_of(totals: DomainTotals, key: str, whole: DomainTotals) -> list[AreaTrouble]:
    """Return what is wrong in a domain of *key*, the worst first; *whole* is what it is compared to."""
    found: list[AreaTrouble] = []
    if totals.clients and not totals.endpoints and key in WIDE and whole.endpoints:
        found.append(AreaTrouble("bad", "✕", f"{grouped(totals.clients, 'client')}, no ready endpoint"))
    if totals.unready:
        found.append(_unready(totals.endpoints, f"{grouped(totals.unready, 'endpoint')} not ready"))
    if totals.missing:
        text = grouped(totals.missing, "node")
        found.append(AreaTrouble("warn", "!", f"{text} {'does' if totals.missing == 1 else 'do'} not exist"))
    if totals.unzoned:
        found.append(AreaTrouble("warn", "!", f"{grouped(totals.unzoned, 'node')} without a zone"))
    if key in WIDE and (load := _load(totals)) > MAX_OVERLOAD * _load(whole) > 0:
        found.append(AreaTrouble("warn", "▲", f"{load / _load(whole):.1f} × the clients per endpoint"))
    return found


def _unready(ready: int, text: str) -> AreaTrouble:
    """Return that some endpoints are not ready: it is worse where no others are."""
    return AreaTrouble("warn", "!", text) if ready else AreaTrouble("bad", "✕", text)


def _load(totals: DomainTotals) -> float:
    return totals.clients / totals.endpoints if totals.endpoints else 0.0


def site_troubles(site: Site) -> list[AreaTrouble]:
    """Return what is wrong with a node, the worst first."""
    found: list[AreaTrouble] = []
    if site.unready:
        found.append(_unready(site.endpoints, f"{site.unready:,} not ready"))
    if site.node and not site.known:
        found.append(AreaTrouble("warn", "!", "no such Node"))
    elif site.node and not site.values.get(ZONE):
        found.append(AreaTrouble("warn", "!", "no zone"))
    return found


def any_trouble(areas: Iterable[Area]) -> bool:
    """Whether anything is wrong in some areas, or in those within them."""
    return any(area.troubles or any_trouble(area.areas) for area in areas)


async def areas_of(sites: Sequence[Site], keys: Sequence[str], within: Within) -> Areas:
    """Return the areas of *sites*, which are *within* some domains, divided by the first of *keys*, the widest first.

    Each key divides what the one before it has left, as long as there is room for all areas.
    """
    keys = await _dividing(sites, keys)
    totals = defaultdict[tuple[str, ...], DomainTotals](DomainTotals)
    async for batch in batches(sites, FEW):
        for site in batch:
            values = tuple(site.values[key] for key in keys)
            for depth in range(len(keys) + 1):
                totals[values[:depth]].add(site)
    counts = [sum(len(path) == depth for path in totals) for depth in range(1, len(keys) + 1)]
    depth = next((deep for deep in range(len(keys), 1, -1) if sum(counts[:deep]) <= MAX_AREAS), min(1, len(keys)))
    shown = await _shown(sites, keys[:depth])
    if not depth:
        nodes = shown.get((), [])
        return Areas([], 0, nodes, len(sites) - len(nodes))
    tree = _Tree(keys[:depth], within, totals, shown)
    return Areas(tree.below(()), max(0, counts[0] - MAX_AREAS), [], 0)


async def _dividing(sites: Sequence[Site], keys: Sequence[str]) -> list[str]:
    """Return the first of *keys* for which any site has a value."""
    used = set[str]()
    async for batch in batches(sites, FEW):
        used.update(key for key in keys if key not in used and any(site.values[key] for site in batch))
    return [key for key in keys if key in used][:MAX_DEPTH]


async def _shown(sites: Sequence[Site], keys: Sequence[str]) -> Mapping[tuple[str, ...], list[Site]]:
    """Return the nodes that have a place on the map, by their values: all if they are few, else some in trouble."""
    found = defaultdict[tuple[str, ...], list[Site]](list)
    every = len(sites) <= MAX_NODES or not keys
    most, left = MAX_NODES if every else MAX_TROUBLED, MAX_NODES
    async for batch in batches(sites, FEW):
        for site in batch:
            there = found[tuple(site.values[key] for key in keys)]
            if left and len(there) < most and (every or site_troubles(site)):
                there.append(site)
                left -= 1
    return found


class _Tree:
    """Makes areas of totals by path: the values of some *keys*, the widest first."""

    def __init__(
        self,
        keys: Sequence[str],
        within: Within,
        totals: Mapping[tuple[str, ...], DomainTotals],
        shown: Mapping[tuple[str, ...], list[Site]],
    ) -> None:
        self._keys, self._within, self._totals, self._shown = keys, within, totals, shown
        self._children = defaultdict[tuple[str, ...], list[tuple[str, ...]]](list)
        for path in totals:
            if 0 < len(path) <= len(keys):
                self._children[path[:-1]].append(path)

    def below(self, path: tuple[str, ...]) -> list[Area]:
        """Return the areas that an area is divided into, by value, last what has none; if they are many, the worst."""
        children = self._children.get(path, [])
        while len(children) == 1 and not children[0][-1]:  # it is not divided by that key
            path = children[0]
            children = self._children.get(path, [])
        if not children:
            return []
        key = self._keys[len(path)]
        wrong = {child: troubles_of(self._totals[child], key, self._totals[()]) for child in children}
        if len(children) > MAX_AREAS:
            children = nsmallest(MAX_AREAS, children, key=lambda child: (-_severity(wrong[child]), child))
        children = sorted(children, key=lambda child: (not child[-1], child[-1]))
        most = max(self._totals[child].weight for child in children)
        return [self._area(child, wrong[child], most) for child in children]

    def _area(self, path: tuple[str, ...], troubles: Sequence[AreaTrouble], most: int) -> Area:
        totals, areas = self._totals[path], self.below(path)
        within = (*self._within, *zip(self._keys, path, strict=False))
        size = max(1, round(STEPS * totals.weight / most)) if most else 1
        nodes = [] if areas else self._shown.get((*path, *[""] * (len(self._keys) - len(path))), [])
        hidden = 0 if areas else totals.nodes + totals.missing - sum(bool(site.node) for site in nodes)
        return Area(within, totals, troubles, size, areas, nodes, hidden)


def _severity(troubles: Sequence[AreaTrouble]) -> int:
    return max((2 if trouble.tone == "bad" else 1 for trouble in troubles), default=0)
