# SPDX-License-Identifier: Apache-2.0

"""What goes through a whole cluster for the API or a page lets the server answer meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from dnsserver.programs.from_settings import store_of
from dnsserver.tools.api.contents import (
    BATCH,
    ClusterContents,
    constrained_services,
    domains_of,
    keys_in_use,
    located_in,
)
from dnsserver.tools.console import completion
from dnsserver.tools.console.pages import map, node, search, services
from locator import model
from tests.kit import api_objects as k8s
from tests.kit.api_objects import ZONE
from tests.kit.in_memory import NOW, dump_of, settings_of, take_in

SIZE = 2500  # nodes, pods, and Services
KEYS = [f"shop/service-{number}" for number in range(SIZE)]


@pytest.fixture(scope="module")
def cluster() -> ClusterContents:
    store = store_of(settings_of())
    take_in(store, dump_of(k8s.listed([
        k8s.namespace("shop"),
        *(k8s.node(f"node-{number}", {ZONE: str(number % 3)}) for number in range(SIZE)),
        *(k8s.pod(f"pod-{n}", [f"10.1.{n // 250}.{n % 250}"], f"node-{n}") for n in range(SIZE)),
        *(k8s.service(f"service-{number}", keys=ZONE) for number in range(SIZE)),
    ])).objects)  # fmt: skip
    return ClusterContents("local", store.publish(NOW), list(store.objects(model.Node).values()))


async def sites(cluster: ClusterContents) -> Any:
    return await map.sites_of([cluster], await located_in([cluster]), (ZONE,))


async def zone_one(cluster: ClusterContents) -> int:
    return len(await map.sites_within(await sites(cluster), ((ZONE, "1"),)))


async def clients_by_zone(cluster: ClusterContents) -> list[int]:
    return [row["clients"] for row in (await domains_of([cluster], (ZONE,)))["domains"]]


async def first_services(cluster: ClusterContents) -> Any:
    found = await constrained_services(cluster.services, after="", limit=2)
    return [item["name"] for item in found["items"]], found["total"]


@pytest.mark.parametrize(
    ("walks", "compute", "expected"),
    [
        (1, lambda cluster: keys_in_use(cluster.services), (model.REGION, ZONE)),
        (3, clients_by_zone, [834, 833, 833]),
        (1, first_services, (["service-0", "service-1"], SIZE)),
        (2, lambda cluster: located_in([cluster]), None),
        (4, sites, None),
        (5, zone_one, 833),
        (1, lambda cluster: node.endpoints_on(cluster, "node-7"), []),
        (1, lambda cluster: node.clients_on(cluster, "node-7"), None),
        (1, lambda cluster: services.keys_of(cluster.services), (sorted(KEYS), [])),
        (1, lambda _: services.containing(KEYS, "service-2499"), ["shop/service-2499"]),
        (1, lambda _: completion.names_with("no such name", KEYS), []),
        (1, lambda _: completion.clients_with("no such pod", KEYS, [], []), []),
        (1, lambda cluster: search.domains_on(cluster.nodes, (ZONE,)), [f"{ZONE}={zone}" for zone in "012"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_others_get_turns(
    cluster: ClusterContents, walks: int, compute: Callable[[ClusterContents], Awaitable[Any]], expected: Any
) -> None:
    """Another task has a turn after each batch: no batch has more than some objects of each kind."""
    turns = 0

    async def main() -> Any:
        async def other() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            while not turns:
                await trio.lowlevel.checkpoint()
            found = await compute(cluster)
            nursery.cancel_scope.cancel()
        return found

    found = trio.run(main)
    assert turns > walks * (SIZE // BATCH)
    assert expected is None or found == expected
