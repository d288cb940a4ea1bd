# SPDX-License-Identifier: Apache-2.0

"""The loads: which queries, from which addresses, over which transport, how many at a time."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache

from bench.cluster import DIRECT, FORWARDED, SERVICES, ZONES, SendingPod, endpoint_address, service_name
from bench.queries import Load, PreparedQuery, Transport
from tests.kit.dns_queries import ecs, opt, query

PLAIN = Transport("UDP", 512)
EDNS = Transport("UDP", 1232, edns=True)
PIPELINED = Transport("TCP, pipelined", 65535, tcp=True)
IN_TURN = Transport("TCP, in turn", 65535, tcp=True)  # a connection sends a query after the reply to the last one
FORWARDER = "127.0.0.1"
SOURCES = tuple(client.address for client in DIRECT)
# Sockets, and queries outstanding on each at full load. Over UDP, they fit Linux's default receive buffer (212,992
# octets), which CoreDNS uses.
WIDTHS = {PLAIN: (8, 24), EDNS: (8, 24), PIPELINED: (16, 64), IN_TURN: (64, 1)}
QUERIES = 3_000  # of each socket: the names at random
ALIKE_QUERIES = 1_024


def direct() -> Load:
    """Return a load of pods that ask directly, without EDNS."""
    pick, (sockets, window) = random.Random(5), WIDTHS[PLAIN]
    clients = [DIRECT[number % len(DIRECT)] for number in range(sockets)]
    queries = [[_nearby(number, pick, client) for number in range(QUERIES)] for client in clients]
    return Load("direct", PLAIN, [client.address for client in clients], queries, window)


def forwarded() -> Load:
    """Return a load of a forwarder that names, in each query, one of all pods, in random order."""
    pick, (sockets, window) = random.Random(2), WIDTHS[EDNS]
    every = random.Random(2).sample(FORWARDED, len(FORWARDED))
    queries = [
        [_nearby(number, pick, client, opt(ecs(client.address))) for number, client in enumerate(every[first::sockets])]
        for first in range(sockets)
    ]
    return Load("forwarded", EDNS, (FORWARDER,) * sockets, queries, window)


def alike(endpoints: int, transport: Transport, names: Iterable[tuple[str, frozenset[str]]]) -> Load:
    """Return a load of names that have the same records for everybody."""
    pick, (sockets, window), known = random.Random(3), WIDTHS[transport], list(names)

    def ask(number: int) -> PreparedQuery:
        name, data = pick.choice(known)
        return PreparedQuery(query(name, number=number, edns=opt() if transport.edns else b""), data, data)

    queries = [[ask(number) for number in range(ALIKE_QUERIES)] for _ in range(sockets)]
    sources = [SOURCES[number % len(SOURCES)] for number in range(sockets)]
    return Load(f"{endpoints} endpoints, {transport.title}", transport, sources, queries, window)


def _nearby(number: int, pick: random.Random, client: SendingPod, edns: bytes = b"") -> PreparedQuery:
    """Return a client's query for one of the Services."""
    service = pick.randrange(SERVICES)
    return PreparedQuery(query(service_name(service), number=number, edns=edns), *_addresses(service, client.zone))


@cache
def _addresses(service: int, zone: int) -> tuple[frozenset[str], frozenset[str]]:
    """Return a Service's address in a zone, and all of them."""
    every = frozenset(endpoint_address(service, number) for number in range(ZONES))
    return frozenset({endpoint_address(service, zone)}), every
