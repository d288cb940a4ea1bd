# SPDX-License-Identifier: Apache-2.0

"""What an answer costs that is not remembered: the first about a name to a place, and that there is no such name."""

from __future__ import annotations

import gc
import random
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import dns.rcode

from bench.cluster import ZONES, pod_cidr
from bench.loads import PLAIN, SOURCES, WIDTHS
from bench.queries import Load, PreparedQuery
from bench.sending import Pace, Runs, Sender, in_turns
from bench.servers import needed, on_load_core, start_coredns, start_topodns
from bench.standin.numbering import NAMESPACES, service_name
from bench.standin.process import running_standin
from bench.tables import table, verdict
from dnsserver.answers.decision import Authority
from dnsserver.metrics.counters import Counts
from dnsserver.names import parse_zone
from dnsserver.programs.server import COLLECTED_AFTER
from dnsserver.responder.responder import Responder
from locator.endpoints import compact
from locator.ip import Network, parse_address
from locator.model import ZONE, Endpoint, EndpointSlice, Node, Object, Port, Service, by_kind
from locator.state.store import Store, StoreOptions
from tests.kit import go_programs
from tests.kit.dns_queries import ecs, opt, query

NODES = 300
SERVICES = 500  # of each size, each asked for once from each zone
MICROSECONDS = {3: 60.0, 60: 250.0}  # at most, by the endpoints of a Service
FORWARDER = parse_address("127.0.0.1")
ROUNDS = 5
ABSENT = "a name that does not exist"
ABSENT_QUERIES = 20_000  # of each socket, all different


class First(NamedTuple):
    """The CPU seconds of a first answer, without the network: for each round, the average over all Services."""

    endpoints: int
    seconds: Sequence[float]


def measure(folder: Path, pace: Pace) -> tuple[list[First], Runs]:
    """Ask a responder in this process, then topodns and CoreDNS for absent names. Raises CannotStart and BadReply."""
    first = [First(endpoints, [_first(endpoints, number) for number in range(ROUNDS)]) for endpoints in MICROSECONDS]
    with needed():
        coredns = go_programs.coredns()
    with on_load_core(), ExitStack() as stack:
        fed = [stack.enter_context(running_standin(folder, form)) for form in ("json", "protobuf")]
        options, flags = (
            [f"endpoint {fed[1].url}"],
            ["--kubeconfig", str(fed[0].kubeconfig), "--forwarder-service", "off"],
        )
        servers = (
            stack.enter_context(start_coredns(coredns, folder, options, name=service_name(0))),
            stack.enter_context(start_topodns(flags, folder)),
        )
        sender = Sender(absent(), folder)
        return first, in_turns([(server, sender) for server in servers], pace)


def report(first: Sequence[First], runs: Runs) -> str:
    """Return the table: medians over the rounds."""
    lines = []
    for row in first:
        cost = median(row.seconds) * 1e6
        target = verdict(cost, MICROSECONDS[row.endpoints], "≤ {:.0f} µs")
        lines.append((f"{row.endpoints} endpoints", "topodns, without the network", f"{cost:.1f} µs", target))
    theirs = median(run.cost for run in runs["CoreDNS", ABSENT])
    for (server, load), its_runs in runs.items():
        cost = median(run.cost for run in its_runs)
        target = verdict(cost, theirs if server == "topodns" else None, "≤ {:.1f} µs")
        lines.append((load, server, f"{cost:.1f} µs", target))
    return table(("first answer", "server", "CPU", "target"), lines)


def absent() -> Load:
    """Return a load of names that do not exist, as search lists make them."""
    pick = random.Random(11)

    def ask(number: int) -> PreparedQuery:
        host, where = pick.randrange(10**6), f"ns-{pick.randrange(NAMESPACES):03}"
        name = f"host-{host:06}.example.com.{where}.svc.cluster.local."
        return PreparedQuery(query(name, number=number))

    queries = [[ask(number) for number in range(ABSENT_QUERIES)] for _ in SOURCES]
    return Load(ABSENT, PLAIN, SOURCES, queries, WIDTHS[PLAIN][1], rcode=dns.rcode.NXDOMAIN)


def _first(endpoints: int, number: int) -> float:
    """Return the average CPU seconds of the first answers about Services with so many *endpoints*."""
    counts, store = Counts(), Store(StoreOptions(forwarders=[Network(FORWARDER, 32)]))
    for kind, objects in by_kind(_objects(endpoints)).items():
        store.replace(kind, objects)
    zone = Authority((parse_zone("cluster.local"),), 5)
    responder = Responder(zone, counts, draw=random.Random(number).getrandbits)
    responder.publish(store.publish(1))
    asked = list(_queries())
    random.Random(number).shuffle(asked)
    channel = counts.channels["udp", 1]
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTED_AFTER)  # as the server does
    try:
        began = time.thread_time()
        for wire in asked:
            responder.answer(wire, FORWARDER, channel)
        return (time.thread_time() - began) / len(asked)
    finally:
        gc.set_threshold(*before)


def _queries() -> Iterator[bytes]:
    for service in range(SERVICES):
        for zone in range(ZONES):
            yield query(f"service-{service:03}.bench.svc.cluster.local", edns=opt(ecs(f"{pod_cidr(zone)}.2")))


def _objects(endpoints: int) -> Iterator[Object]:
    ports, pick = (Port("http", 8080),), random.Random(13)
    for node in range(NODES):
        block = Network(socket.inet_aton(f"{pod_cidr(node)}.0"), 24)
        yield Node(f"node-{node}", {ZONE: f"zone-{node % ZONES}"}, (), (block,))
    for service in range(SERVICES):
        name = f"service-{service:03}"
        yield Service("bench", name, headless=True, ports=ports, annotations={"topodns.io/topology-keys": f"{ZONE},*"})
        nodes = pick.sample(range(NODES), endpoints)
        addresses = [bytes((10, 200 + service // 250, service % 250, at)) for at in range(endpoints)]
        rows = [Endpoint((at,), ports, node=f"node-{node}") for at, node in zip(addresses, nodes, strict=True)]
        yield EndpointSlice("bench", f"{name}-1", name, compact(rows))
