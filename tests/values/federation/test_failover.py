# SPDX-License-Identifier: Apache-2.0

"""Three ways in which clients use the addresses of an answer, and which of them reach a Service when something fails.

The client is in no cluster, but in the region of south.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import pytest

from tests.kit.api_objects import endpoint
from tests.kit.in_memory import ClustersInMemory, ask
from tests.kit.three_clusters import NUMBERS, Change, endpoints, three_clusters, votes, web

FLAGS: dict[str, Any] = {
    "cluster-name": "east", "federation": ["fed.example"], "forwarder-service": "off", "upstream": "off",
    "subnet": ["198.51.100.0/24=topology.kubernetes.io/region=r2"],
}  # fmt: skip
BALANCERS = {f"192.0.2.{number}": name for name, number in NUMBERS.items()}
CLIENT = "198.51.100.1"
ASKS = 12

Answer = Callable[[], Sequence[str]]


def tries_all(answer: Answer, down: Collection[str], *, at_most: int | None = None) -> str:
    """Return the cluster whose load balancer accepts the first connection, or nothing."""
    clusters = [BALANCERS[address] for address in answer()[:at_most]]
    return next((cluster for cluster in clusters if cluster not in down), "")


def takes_the_first(answer: Answer, down: Collection[str]) -> str:
    return tries_all(answer, down, at_most=1)


def asks_again(answer: Answer, down: Collection[str]) -> str:
    """Like many connection pools: take the first address, and when it fails, the first one of the next answer."""
    return next(filter(None, (takes_the_first(answer, down) for _ in range(ASKS))), "")


class Row(NamedTuple):
    """What fails, and which clusters those who take the first address, try all, or ask again reach."""

    name: str
    down: str  # load balancers
    first: str
    every: str
    again: str
    changes: Sequence[Change] = ()


NOT_READY = endpoints("south", endpoint("10.3.0.5", nodeName="n1", ready=False))
AGAINST_SOUTH = votes("east west", "192.0.2.3")
ALL_ALIKE = web("east west south", keys="*")
HARD = web("east west south", keys="topology.kubernetes.io/region")

ROWS = [
    Row("nothing", "", "south", "south", "south"),
    Row("the pods of the nearest cluster", "", "east west", "east west", "east west", [NOT_READY]),
    Row("the nearest load balancer", "south", "", "east west", ""),
    Row("the nearest, and probers see it", "south", "east west", "east west", "east west", [AGAINST_SOUTH]),
    Row("the two nearest load balancers", "south east", "", "west", ""),
    Row("one of several that are alike", "south", "east west", "east west", "east west", [ALL_ALIKE]),
    Row("the only one that a hard constraint allows", "south", "", "", "", [HARD]),
    Row("all of them", "east west south", "", "", ""),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_failover(row: Row) -> None:
    """Spares help who tries all addresses; votes help everybody; asking again helps among those that are alike."""
    clusters = three_clusters(*row.changes)
    responder = ClustersInMemory(clusters.pop("east"), clusters, FLAGS).responder()

    def answer() -> Sequence[str]:
        reply = ask(responder, "web.shop.fed.example", "A", CLIENT)
        return [str(found) for rrset in reply.answer for found in rrset]

    down = row.down.split()
    assert tries_all(answer, down) in (row.every.split() or [""])
    assert asks_again(answer, down) in (row.again.split() or [""])
    assert {takes_the_first(answer, down) for _ in range(ASKS)} - {""} == set(row.first.split())
