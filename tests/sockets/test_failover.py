# SPDX-License-Identifier: Apache-2.0

"""Three ways in which clients use the addresses of an answer, and which of them reach a Service when something fails.

Load balancers are listeners on loopback addresses. The client is in no cluster, but in the region of south.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import dns.message
import pytest

from tests.kit.api_objects import endpoint
from tests.kit.balancers import Balancer
from tests.kit.in_memory import ClustersInMemory, ask_in_memory
from tests.kit.three_clusters import NUMBERS, Change, endpoints, three_clusters, votes, web

FLAGS: dict[str, Any] = {
    "cluster-name": "east", "federation": ["fed.example"], "forwarder-service": "off", "upstream": "off",
    "subnet": ["198.51.100.0/24=topology.kubernetes.io/region=r2"],
}  # fmt: skip
HOSTS = {name: f"127.0.9.{number}" for name, number in NUMBERS.items()}
CLIENT = "198.51.100.1"
PATIENCE = 2.0  # seconds that a client waits for a connection
ASKS = 6

Answer = Callable[[], Sequence[str]]


def first_reached(addresses: Sequence[str], port: int) -> str:
    """Return the cluster whose load balancer accepts the first connection, or nothing."""
    for address in addresses:
        try:
            socket.create_connection((address, port), PATIENCE).close()
        except OSError:
            continue
        return next(name for name, host in HOSTS.items() if host == address)
    return ""


def takes_the_first(answer: Answer, port: int) -> str:
    return first_reached(answer()[:1], port)


def tries_all(answer: Answer, port: int) -> str:
    return first_reached(answer(), port)


def asks_again(answer: Answer, port: int) -> str:
    """Like many connection pools: take the first address, and when it fails, the first one of the next answer."""
    return next(filter(None, (takes_the_first(answer, port) for _ in range(ASKS))), "")


class Row(NamedTuple):
    """What fails, and which clusters those who take the first address, try all, or ask again reach."""

    name: str
    down: str  # load balancers
    first: str
    every: str
    again: str
    changes: Sequence[Change] = ()


NOT_READY = endpoints("south", endpoint("10.3.0.5", nodeName="n1", ready=False))
AGAINST_SOUTH = votes("east west", HOSTS["south"])
ALL_ALIKE = web("east west south", keys="*")
HARD = web("east west south", keys="topology.kubernetes.io/region")

ROWS = [
    Row("nothing", "", "south", "south", "south"),
    Row("the pods of the nearest cluster", "", "east west", "east west", "east west", [NOT_READY]),
    Row("the nearest load balancer", "south", "", "east west", ""),
    Row(
        "the nearest load balancer, and probers see it", "south", "east west", "east west", "east west", [AGAINST_SOUTH]
    ),
    Row("the two nearest load balancers", "south east", "", "west", ""),
    Row("one of several that are alike", "south", "east west", "east west", "east west", [ALL_ALIKE]),
    Row("the only one that a hard constraint allows", "south", "", "", "", [HARD]),
    Row("all of them", "east west south", "", "", ""),
]


@pytest.fixture(scope="module")
def balancers() -> Iterator[Mapping[str, Balancer]]:
    """Return a load balancer for each cluster, all at one port."""
    found: dict[str, Balancer] = {}
    for name, host in HOSTS.items():
        found[name] = Balancer(host, found["east"].port if found else 0)
    yield found
    for balancer in found.values():
        balancer.stop()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_failover(row: Row, balancers: Mapping[str, Balancer]) -> None:
    """Spares help who tries all addresses; votes help everybody; asking again helps among those that are alike."""
    clusters = three_clusters(*(web(name, balancers=[host]) for name, host in HOSTS.items()), *row.changes)
    responder = ClustersInMemory(clusters.pop("east"), clusters, FLAGS).responder()

    def answer() -> Sequence[str]:
        reply = ask_in_memory(responder, dns.message.make_query("web.shop.fed.example", "A"), CLIENT)
        assert reply is not None
        return [str(found) for rrset in reply.answer for found in rrset]

    down = [balancers[name] for name in row.down.split()]
    for balancer in down:
        balancer.stop()
    try:
        for reaches, expected in ((tries_all, row.every), (asks_again, row.again)):
            assert reaches(answer, balancers["east"].port) in (expected.split() or [""])
        firsts = {takes_the_first(answer, balancers["east"].port) for _ in range(ASKS)}
        assert firsts - {""} == set(row.first.split())
    finally:
        for balancer in down:
            balancer.start()
