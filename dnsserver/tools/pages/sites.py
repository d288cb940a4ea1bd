# SPDX-License-Identifier: Apache-2.0

"""The map: which topology domains there are, by whatever keys are in use, and which nodes are in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from dnsserver.tools.pages.located import ClusterContents, Located
from dnsserver.tools.pages.paging import Part, part_of
from dnsserver.tools.pages.steps import STEP, Steps
from locator.model import CLUSTER, HOSTNAME, SUCCESSORS

MAX_DOMAINS = 30  # of one key, beside those of others
DOMAINS = 100  # of one key alone
NODES = 50
FEW = STEP // 4  # nodes in a step: each is some work

Within = tuple[tuple[str, str], ...]  # keys with values, "" for what has no such label


class Site(Struct, frozen=True, gc=False):
    """A node, or what is on no node but has these labels: then ``node`` is empty.

    ``values`` are those of the keys in use, "" where there is no such label. ``known`` says whether there is such a
    Node: an EndpointSlice may name another one.
    """

    cluster: str
    node: str
    values: Mapping[str, str]
    endpoints: int
    clients: int
    known: bool


class MapDomain(Struct, frozen=True, gc=False):
    """A topology domain and what is in it; ``value`` is empty for what has no such label."""

    value: str
    nodes: int
    endpoints: int
    clients: int


class KeyDomains(Struct, frozen=True, gc=False):
    """The domains of one key."""

    key: str
    rows: Part[MapDomain]


class Map(Struct, frozen=True, gc=False):
    """What is within some domains. ``others`` are the keys by which it can be divided further.

    ``key`` is the only one of them that is shown, None if all are.
    """

    keys: tuple[str, ...]
    within: Within
    key: str | None
    whole: MapDomain
    domains: tuple[KeyDomains, ...]
    nodes: Part[Site]


class _Sum:
    """What is in a domain so far."""

    __slots__ = ("clients", "endpoints", "nodes")

    def __init__(self) -> None:
        self.nodes = self.endpoints = self.clients = 0

    def add(self, site: Site) -> None:
        self.nodes += site.known
        self.endpoints += site.endpoints
        self.clients += site.clients

    def row(self, value: str) -> MapDomain:
        return MapDomain(value, self.nodes, self.endpoints, self.clients)


def sites_of(clusters: Sequence[ClusterContents], located: Located, keys: Sequence[str]) -> Steps[tuple[Site, ...]]:
    """Return all sites, by cluster and name; *keys* are those in use."""
    counts: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
    known = dict[tuple[str, str], Mapping[str, str]]()
    for cluster in clusters:
        for number, node in enumerate(cluster.nodes):
            if not number % FEW:
                yield
            labels = {**node.labels, CLUSTER: cluster.name}
            known[cluster.name, node.name] = labels
            counts[cluster.name, node.name, _values(labels, keys)] = [0, 0]
    for column, locations in enumerate((located.endpoints, located.clients)):
        for number, (location, times) in enumerate(locations.items()):
            if not number % STEP:
                yield
            where = location.cluster, location.node or ""
            values = _values(known.get(where, location.labels), keys)
            counts.setdefault((*where, values), [0, 0])[column] += times
    sites: list[Site] = []
    order: list[tuple[str, bool, str, int]] = []
    for number, ((cluster_name, name, values), (endpoints, clients)) in enumerate(counts.items()):
        if not number % FEW:
            yield
            order.sort()  # parts in order are soon merged
        is_known = (cluster_name, name) in known
        order.append((cluster_name, not name, name, number))
        sites.append(Site(cluster_name, name, dict(zip(keys, values, strict=True)), endpoints, clients, is_known))
    yield
    order.sort()
    yield
    return tuple(sites[number] for *_, number in order)


def _values(labels: Mapping[str, str], keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(labels.get(key, "") for key in keys)


def map_of(
    sites: Sequence[Site], keys: Sequence[str], within: Within, *, key: str | None = None, number: int = 1
) -> Steps[Map]:
    """Return what is *within* some domains, divided by all other *keys*, or by one *key*.

    Part *number* is that of the domains of that key, else that of the nodes.
    """
    inside: list[Site] = []
    for count, site in enumerate(sites):
        if not count % STEP:
            yield
        if all(site.values.get(name) == value for name, value in within):
            inside.append(site)
    whole = _Sum()
    for site in inside:
        whole.add(site)
    yield
    fixed = {name for name, _ in within}
    others = [other for other in keys if other not in fixed and other != HOSTNAME and key in (None, other)]
    domains = []
    for other in others:
        rows = yield from _domains(inside, other)
        domains.append(KeyDomains(other, part_of(rows, number if key else 1, DOMAINS if key else MAX_DOMAINS)))
    nodes = part_of(inside, 1 if key else number, NODES)
    return Map(tuple(keys), within, key, whole.row(""), tuple(domains), nodes)


def _domains(sites: Iterable[Site], key: str) -> Steps[list[MapDomain]]:
    """Return the domains of a key by their values, last what has no value."""
    sums: dict[str, _Sum] = {}
    for number, site in enumerate(sites):
        if not number % STEP:
            yield
        sums.setdefault(site.values[key], _Sum()).add(site)
    yield
    return [sums[value].row(value) for value in sorted(sums, key=lambda value: (not value, value))]


def read_within(texts: Iterable[str], keys: Sequence[str]) -> Within:
    """Parse ``KEY=VALUE`` of some *keys*. Raises ValueError with what was found and expected."""
    within = dict[str, str]()
    for text in texts:
        key, equals, value = text.partition("=")
        key = SUCCESSORS.get(key, key)
        if not equals or key not in keys:
            raise ValueError(f"{text!r} found, expected KEY=VALUE with a key in use: {', '.join(keys)}")
        within[key] = value
    return tuple(within.items())
