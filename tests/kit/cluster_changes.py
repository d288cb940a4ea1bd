# SPDX-License-Identifier: Apache-2.0

"""How the clusters of ``tests/kit/cluster_worlds.py`` change."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence

from tests.kit import clusters
from tests.kit.api_objects import Item
from tests.kit.cluster_worlds import (
    HOSTS,
    NOW,
    PORTS,
    Case,
    balance,
    cluster_ips,
    export,
    health,
    service_names,
    shop,
    slices_of,
)
from tests.kit.random_sources import chance
from tests.oracle.twin_map import of_kind


def changed(case: Case, seed: int) -> Case:
    """Return the world some time later: something changed in one cluster, or what a host name resolves to."""
    rng = random.Random(seed)
    world = case.world
    name = rng.choice(sorted(world.clusters))
    items = copy.deepcopy(list(world.clusters[name]))
    what = rng.choice(("anything", "anything", "export", "balancer", "kind", "votes", "hosts", "ready"))
    services = shop(items)
    found = rng.choice(services) if services else None
    if what == "hosts":
        return case._replace(world=world._replace(hosts=resolved(rng, world.hosts)))
    if what == "anything" or found is None:
        items = clusters.changed(items, rng.randrange(10**6))
        for owned in of_kind(items, "EndpointSlice"):
            owned["ports"] = PORTS
    elif what == "export":
        export(rng, items, found)
    elif what == "balancer":
        balance(rng, found, rng.randrange(4))
    elif what == "kind":
        change_kind(rng, found)
    elif what == "ready":
        for row in (row for owned in slices_of(items, found["metadata"]["name"]) for row in owned["endpoints"]):
            row["conditions"] = {"ready": chance(rng, 50)}
    else:
        items = [vote_again(rng, other) if other["kind"] == "ServiceHealth" else other for other in items]
    later = world._replace(clusters={**world.clusters, name: items})
    return case._replace(world=later, names=service_names(later))


def change_kind(rng: random.Random, found: Item) -> None:
    """Let a Service be headless, or no longer."""
    spec = found["spec"]
    addresses = ["None"] if spec["clusterIP"] != "None" else cluster_ips(rng, 0, int(found["metadata"]["name"][1:]))
    spec |= {"clusterIP": next(iter(addresses), ""), "clusterIPs": addresses}


def vote_again(rng: random.Random, voted: Item) -> Item:
    """Return the votes of one cluster on one Service, renewed now."""
    told = voted["status"]
    entries = [{**entry, "healthy": chance(rng, 50)} for entry in told["entries"]]
    return health(told["service"]["name"], told["cluster"], entries, NOW)


def resolved(rng: random.Random, hosts: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return what a resolver says later: one host name has the addresses of another."""
    names = sorted(HOSTS)
    return {**hosts, rng.choice(names): HOSTS[rng.choice(names)]}
