# SPDX-License-Identifier: Apache-2.0

"""What a constraint costs: the first answer about a Service, and a remembered one, by where the constraint comes from.

A responder in this process is asked, without sockets. The cluster is one of 5,000 nodes, and a client on each asks for
the same Services, as the agents of a DaemonSet do.
"""

from __future__ import annotations

import gc
import random
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.cluster import ZONES, pod_cidr
from bench.queries import Transport, query, question
from dnsserver.answers.decision import Authority
from dnsserver.metrics.counters import Channel, Counts
from dnsserver.names import parse_zone
from dnsserver.responder.responder import Responder
from locator.endpoints import compact
from locator.ip import Network, parse_address
from locator.labels import IN, Requirement, Selector
from locator.model import (
    HOSTNAME,
    ZONE,
    Endpoint,
    EndpointSlice,
    Hints,
    Node,
    Object,
    Port,
    Service,
    ServicePolicy,
    by_kind,
)
from locator.state.store import Store, StoreOptions

NODES = 5_000
SERVICES = 20  # with each constraint
ENDPOINTS = 250  # of each Service, each on another node
KEYS = tuple(f"example.com/key-{number:02}" for number in range(14))  # the first differs by node, the last by half
SIXTEEN = (HOSTNAME, *KEYS, "*")
TEN = (HOSTNAME, *KEYS[:8], ZONE)
FORWARDER = parse_address("127.0.0.1")
ROUNDS = 7
SIZE = f"{NODES:,} nodes, with a client on each, and {SERVICES} Services with {ENDPOINTS} endpoints for each row"
ANY_SIZE = Transport("TCP", 65535, edns=True, tcp=True)


class Chosen(NamedTuple):
    """The cost of one constraint, in CPU seconds.

    ``first`` has the first answer about each Service, by type, and ``remembered`` the average remembered answer of type
    A in each round. ``computed`` answers in the rounds were not remembered after all.
    """

    constraint: str
    first: dict[str, Sequence[float]]
    remembered: Sequence[float]
    computed: int


def measure() -> list[Chosen]:
    """Ask for each Service from a node that shares no label with others, then from all nodes in turn."""
    counts, store = Counts(), Store(StoreOptions(forwarders=[Network(FORWARDER, 32)]))
    for kind, objects in by_kind(_objects()).items():
        store.replace(kind, objects)
    responder = Responder(Authority((parse_zone("cluster.local"),), 5), counts, draw=random.Random(1).getrandbits)
    responder.publish(store.publish(1))
    asking = _Asking(responder, counts.channels["tcp", 1])
    gc.collect()
    gc.freeze()
    gc.disable()  # as the server does; collection pauses are not measured here
    first = {
        row: {qtype: [asking.first(name, qtype) for name in _names(row, qtype)] for qtype in ("A", "SRV")}
        for row in CONSTRAINTS
    }
    queries = {row: asking.from_all_nodes(_names(row, "A")) for row in CONSTRAINTS}
    for row in CONSTRAINTS:
        asking.each(queries[row])
    remembered: dict[str, list[float]] = {row: [] for row in CONSTRAINTS}
    computed = dict.fromkeys(CONSTRAINTS, 0)
    for _ in range(ROUNDS):
        for row in CONSTRAINTS:
            before = counts.computed
            remembered[row].append(asking.each(queries[row]))
            computed[row] += counts.computed - before
    return [Chosen(row, first[row], remembered[row], computed[row]) for row in CONSTRAINTS]


class _Asking:
    """Passes queries to a responder as a trusted forwarder."""

    def __init__(self, responder: Responder, channel: Channel) -> None:
        self._responder = responder
        self._channel = channel

    def first(self, name: str, qtype: str) -> float:
        """Return the CPU seconds for one query from the last node, which shares no label with an endpoint's."""
        asked = query(1, question(name, qtype), ANY_SIZE, client=_client(NODES - 1))
        return self.each([asked])

    def from_all_nodes(self, names: Sequence[str]) -> list[bytes]:
        """Return a query from each node in random order, for one of the names at random."""
        pick, nodes = random.Random(2), list(range(NODES))
        pick.shuffle(nodes)
        return [query(node, question(pick.choice(names), "A"), ANY_SIZE, client=_client(node)) for node in nodes]

    def each(self, queries: Sequence[bytes]) -> float:
        """Return the CPU seconds that a query takes on average."""
        answer, channel = self._responder.answer, self._channel
        began = time.thread_time()
        for asked in queries:
            answer(asked, FORWARDER, channel)
        return (time.thread_time() - began) / len(queries)


def _names(row: str, qtype: str) -> list[str]:
    """Return the names of a row's Services; of SRV, those of their port."""
    prefix = "_http._tcp." if qtype == "SRV" else ""
    return [f"{prefix}{_service(row, number)}.bench.svc.cluster.local." for number in range(SERVICES)]


def _service(row: str, number: int) -> str:
    return f"s{list(CONSTRAINTS).index(row)}-{number:02}"


def _client(node: int) -> Network:
    return Network(socket.inet_aton(f"{pod_cidr(node)}.2"), 32)


def _objects() -> list[Object]:
    objects: list[Object] = [_node(number) for number in range(NODES)]
    pick, ports = random.Random(3), (Port("http", 8080),)
    for index, (row, constraint) in enumerate(CONSTRAINTS.items()):
        objects += constraint.policies
        for number in range(SERVICES):
            name = _service(row, number)
            objects.append(Service("bench", name, headless=True, ports=ports, **constraint.fields))
            endpoints = tuple(
                Endpoint(
                    (bytes((10, 128 + index, number, position)),),
                    ports,
                    hostname=f"{name}-{position}",
                    node=_name(node),
                    pod=f"{name}-{position}",
                    hints=constraint.hints_of(node),
                )
                for position, node in enumerate(pick.sample(range(NODES - 1), ENDPOINTS))
            )
            objects.append(EndpointSlice("bench", f"{name}-1", name, compact(endpoints)))
    return objects


def _name(node: int) -> str:
    return f"node-{node:04}"


def _zone(node: int) -> str:
    return f"zone-{node % ZONES}"


def _node(number: int) -> Node:
    """Return a node; the last has no label in common with another."""
    apart = "apart" if number == NODES - 1 else ""
    labels = {key: f"{apart}{number >> place}" for place, key in enumerate(KEYS)}
    labels |= {HOSTNAME: _name(number), ZONE: apart or _zone(number)}
    return Node(_name(number), labels, (), (Network(socket.inet_aton(f"{pod_cidr(number)}.0"), 24),))


class Constraint(NamedTuple):
    """What a row's Services ask for: their fields, the policies that select them, and which hints they have."""

    fields: dict[str, Any] = {}
    policies: Sequence[ServicePolicy] = ()
    hinted: Sequence[str] = ()

    def hints_of(self, node: int) -> Hints | None:
        """Return the hints of an endpoint on a node."""
        if not self.hinted:
            return None
        return Hints((_name(node),) if "nodes" in self.hinted else (), (_zone(node),))


def _keys(*keys: str) -> Constraint:
    return Constraint({"annotations": {"topodns.io/topology-keys": ",".join(keys)}})


_SELECTED = Selector((Requirement("policies", IN, frozenset({"ten"})),))
CONSTRAINTS = {
    "none": Constraint(),
    "zone, *": _keys(ZONE, "*"),
    "16 keys": _keys(*SIXTEEN),
    "10 ServicePolicies": Constraint(
        {"labels": {"policies": "ten"}},
        [ServicePolicy("bench", f"policy-{number}", "", _SELECTED, key, "Preferred") for number, key in enumerate(TEN)],
    ),
    "hints for zones": Constraint(hinted=["zones"]),
    "hints for nodes and zones": Constraint(hinted=["nodes", "zones"]),
    "trafficDistribution: PreferSameNode": Constraint({"traffic_distribution": "PreferSameNode"}),
}
