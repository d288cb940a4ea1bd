# SPDX-License-Identifier: Apache-2.0

"""The map: topology domains within each other, by whatever keys are in use, and the nodes in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from starlette.requests import Request

from dnsserver.tools.api.contents import ClusterContents, Located, batches, keys_in_use, located_in
from dnsserver.tools.api.operations import MAX_PARAMETER, BadParameter, Parameter
from dnsserver.tools.console.page import PAGE, WITHIN, Page, PageContext, part_of, read
from dnsserver.tools.console.pages.areas import (
    FEW,
    DomainTotals,
    Site,
    Within,
    any_trouble,
    areas_of,
    site_troubles,
    troubles_of,
)
from locator.model import CLUSTER, HOSTNAME, SUCCESSORS
from locator.state.snapshot import Snapshot

MAX_DOMAINS = 30  # of one key, beside those of others
DOMAINS = 100  # of one key alone
NODES = 50
MAX_WITHIN = 16  # domains that one is within: constraints have as many keys
KEY = Parameter("key", "The only topology key.", str, "a label key")


async def map_page(context: PageContext, request: Request) -> Page:
    """Return what is in some domains, divided by all other keys in use, or by the only one that is asked for.

    The part that is asked for is that of the domains of this key, else that of the nodes.
    """
    given, texts = read(request, KEY, PAGE), request.query_params.getlist(WITHIN)
    sites, keys = await _all_sites(context)
    within = read_within([text[:MAX_PARAMETER] for text in texts[:MAX_WITHIN]], keys)
    key, number = given["key"], given["page"]
    if key is not None and key not in keys:
        raise BadParameter(KEY.name, f"{key!r} is no topology key in use, expected one of {', '.join(keys)}")
    inside = await sites_within(sites, within)
    shown_keys = [one for one in keys if one not in dict(within) and one != HOSTNAME and key in (None, one)]
    size = DOMAINS if key else MAX_DOMAINS
    nodes = part_of(inside, 1 if key else number, NODES)
    whole, areas = DomainTotals(inside), await areas_of(inside, shown_keys, within)
    shown = {
        "keys": keys,
        "within": within,
        "pairs": [(WITHIN, f"{name}={value}") for name, value in within],
        "key": key,
        "whole": whole,
        "troubles": troubles_of(whole, "", whole),
        "domains": [(one, part_of(await domains_in(inside, one), number if key else 1, size)) for one in shown_keys],
        "nodes": nodes.of([(site, site_troubles(site)) for site in nodes.rows]),
        "map": areas,
        "well": not any_trouble(areas.areas),
        "tables": bool(key) or number > 1,  # they are what was asked for
    }
    return Page("map.html", "Map", shown)


async def console_keys(context: PageContext, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the topology keys in use."""
    return await context.cached("keys", (snapshot.services,), lambda: keys_in_use(snapshot.services))


async def _all_sites(context: PageContext) -> tuple[Sequence[Site], tuple[str, ...]]:
    """Return all sites, and the keys by which they are divided."""
    inspected = context.inspected
    current = inspected.current()
    keys = await console_keys(context, current)
    if len(inspected.clusters) > 1 and CLUSTER not in keys:
        keys = (CLUSTER, *keys)
    clusters = await inspected.contents()
    snapshots = [cluster.snapshot for cluster in clusters]

    async def compute() -> Sequence[Site]:
        made_of = [part for one in snapshots for part in (one.services, one.exported, one.addresses, one.unready)]
        located = await context.cached("located", made_of, lambda: located_in(clusters))
        return await sites_of(clusters, located, keys)

    return await context.cached("sites", (current.services, *snapshots), compute), keys


async def sites_of(clusters: Sequence[ClusterContents], located: Located, keys: Sequence[str]) -> Sequence[Site]:
    """Return all sites, by cluster and name; *keys* are those in use."""
    counts: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
    known = dict[tuple[str, str], Mapping[str, str]]()
    for cluster in clusters:
        async for nodes in batches(cluster.nodes, FEW):
            for node in nodes:
                labels = {**node.labels, CLUSTER: cluster.name}
                known[cluster.name, node.name] = labels
                counts[cluster.name, node.name, _values(labels, keys)] = [0, 0, 0]
    for column, locations in enumerate((located.endpoints, located.clients, located.unready)):
        async for batch in batches(locations.items()):
            for location, times in batch:
                where = location.cluster, location.node or ""
                values = _values(known.get(where, location.labels), keys)
                counts.setdefault((*where, values), [0, 0, 0])[column] += times
    order: list[tuple[str, bool, str, tuple[str, ...]]] = []
    async for found in batches(counts, FEW):
        order += [(cluster_name, not name, name, values) for cluster_name, name, values in found]
        order.sort()  # batches in order are soon merged
    sites: list[Site] = []
    async for rows in batches(order, FEW):
        for cluster_name, _, name, values in rows:
            endpoints, clients, unready = counts[cluster_name, name, values]
            is_known, by_key = (cluster_name, name) in known, dict(zip(keys, values, strict=True))
            sites.append(Site(cluster_name, name, by_key, endpoints, clients, is_known, unready))
    return sites


def _values(labels: Mapping[str, str], keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(labels.get(key, "") for key in keys)


async def sites_within(sites: Sequence[Site], within: Within) -> list[Site]:
    """Return the sites *within* some domains."""
    inside: list[Site] = []
    async for batch in batches(sites):
        inside += [site for site in batch if all(site.values.get(name) == value for name, value in within)]
    return inside


async def domains_in(sites: Iterable[Site], key: str) -> list[tuple[str, DomainTotals]]:
    """Return the domains of a key by their values, last what has no value, which is empty."""
    domains: defaultdict[str, DomainTotals] = defaultdict(DomainTotals)
    async for batch in batches(sites):
        for site in batch:
            domains[site.values[key]].add(site)
    return sorted(domains.items(), key=lambda domain: (not domain[0], domain[0]))


def read_within(texts: Iterable[str], keys: Sequence[str]) -> Within:
    """Parse ``KEY=VALUE`` of some *keys*. Raises BadParameter."""
    within = dict[str, str]()
    for text in texts:
        key, equals, value = text.partition("=")
        key = SUCCESSORS.get(key, key)
        if not equals or key not in keys:
            found = f"{text!r} found, expected KEY=VALUE with a key in use: {', '.join(keys)}"
            raise BadParameter(WITHIN, found)
        within[key] = value
    return tuple(within.items())
