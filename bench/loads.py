# SPDX-License-Identifier: Apache-2.0

"""The loads: which queries, from which addresses, over which transport, how many at a time."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from bench import dual_stack
from bench.cluster import CLIENTS, DIRECT, FORWARDED, NODES, SERVICES, ZONES, ClientPod, endpoint_address, service_name
from bench.queries import Load, Query, Transport, query, question
from locator.ip import Network
from tests.kit import proxy_headers

PLAIN = Transport("UDP", 512)
EDNS = Transport("UDP, EDNS", 1232, edns=True)
PIPELINED = Transport("TCP, pipelined", 65535, tcp=True)
IN_TURN = Transport("TCP, in turn", 65535, tcp=True)  # a connection sends a query after the reply to the last one

FORWARDER = "127.0.0.1"
SOURCES = tuple(client.address for client in DIRECT)
SOCKETS = len(DIRECT)
QUERIES = CLIENTS  # over all sockets, so that each client can be named once; sent again after about a second
WARM = 25_000  # replies after which 99 % of the names have been asked from each zone
WINDOW = 1536  # some milliseconds of work; fits the server's receive buffer

# For the part 'comparing'.
ALIKE_QUERIES = 1024  # of each socket
ALIKE_WARM = 1_000  # replies: ten for each name
# Sockets, and queries outstanding on each. Over UDP, they fit Linux's default receive buffer (212,992 octets), which
# CoreDNS uses.
WIDTHS = {PLAIN: (SOCKETS, 32), EDNS: (SOCKETS, 32), PIPELINED: (16, 64), IN_TURN: (64, 1)}

Carrier = Callable[[int, int, ClientPod], Query]  # how a forwarder names a client: from id, Service and client


class Asked(NamedTuple):
    """A load of the part 'comparing': the endpoints of a Service, the type that is asked for, and the transport."""

    endpoints: int
    qtype: str
    transport: Transport

    def __str__(self) -> str:
        return f"{self.endpoints} endpoints, {self.qtype}, {self.transport.title}"


ALIKE = tuple(
    Asked(size, qtype, transport)
    for size in dual_stack.SIZES
    for qtype in ("A", "SRV")
    for transport in WIDTHS
    if qtype == "A" or transport is not IN_TURN  # there the transport costs more than the answer: one type is enough
)


def direct() -> Load:
    """Return load (a): pods that ask directly, without EDNS."""
    pick = random.Random(1)

    def ask(number: int, client: ClientPod) -> Query:
        return nearby(number, pick.randrange(SERVICES), client.zone, PLAIN)

    queries = [[ask(number, client) for number in range(QUERIES // SOCKETS)] for client in DIRECT]
    return Load("(a) direct", PLAIN, SOURCES, queries, WINDOW, WARM)


def forwarded(clients: Sequence[ClientPod] = FORWARDED) -> Load:
    """Return load (b): a forwarder that names, in each query, one of the *clients* by its full address."""
    of = "" if clients is FORWARDED else f", {len(clients):,} clients"
    return _forwarded(f"(b) forwarded{of}", clients, by_address)


def forwarded_by_block() -> Load:
    """Return load (c): a forwarder that names client subnets of /24, the default of unbound and dnsdist."""
    return _forwarded("(c) forwarded, /24", FORWARDED[:NODES], _by_block)


def proxied() -> Load:
    """Return load (e): a forwarder that puts the PROXY protocol's header in front of each datagram."""
    return _forwarded("(e) PROXY protocol", FORWARDED, _by_header)


def relayed(clients: Sequence[ClientPod], carry: Carrier, *, sockets: int) -> list[list[Query]]:
    """Return a forwarder's queries, split over some sockets: as many for each client, in random order."""
    pick = random.Random(2)
    every = [client for _ in range(QUERIES // len(clients)) for client in clients]
    pick.shuffle(every)
    return [
        [carry(number, pick.randrange(SERVICES), client) for number, client in enumerate(every[first::sockets])]
        for first in range(sockets)
    ]


def by_address(number: int, service: int, client: ClientPod) -> Query:
    """Return a query that names its client by the full address."""
    return nearby(number, service, client.zone, EDNS, named=Network(socket.inet_aton(client.address), 32))


def nearby(number: int, service: int, zone: int | None, transport: Transport, *, named: Network | None = None) -> Query:
    """Return a query for a Service from a zone; None for a client whose zone is unknown."""
    wire = query(number, question(service_name(service), "A"), transport, client=named)
    return Query(wire, *_addresses(service, zone))


def alike(asked: Asked) -> Load:
    """Return a load of the part 'comparing', which every server should answer alike: pods that ask directly."""
    pick = random.Random(3)
    size, qtype, transport = asked
    sockets, width = WIDTHS[transport]

    def ask(number: int) -> Query:
        service = pick.randrange(dual_stack.SERVICES)
        name = dual_stack.asked_name(size, service, qtype)
        return Query(query(number, question(name, qtype), transport), *_records(size, service, qtype))

    queries = [[ask(number) for number in range(ALIKE_QUERIES)] for _ in range(sockets)]
    whole = len(queries[0][0].wire) + dual_stack.size_of_records(size, qtype)
    sources = [SOURCES[number % len(SOURCES)] for number in range(sockets)]
    return Load(str(asked), transport, sources, queries, sockets * width, ALIKE_WARM, cut=whole > transport.limit)


def _forwarded(title: str, clients: Sequence[ClientPod], carry: Carrier) -> Load:
    queries = relayed(clients, carry, sockets=SOCKETS)
    return Load(title, EDNS, (FORWARDER,) * SOCKETS, queries, WINDOW, QUERIES)


def _by_block(number: int, service: int, client: ClientPod) -> Query:
    block = Network(socket.inet_aton(client.address)[:3] + b"\0", 24)
    return nearby(number, service, client.zone, EDNS, named=block)


def _by_header(number: int, service: int, client: ClientPod) -> Query:
    return nearby(number, service, client.zone, EDNS)._replace(before=proxy_headers.proxied(client.address))


@cache
def _addresses(service: int, zone: int | None) -> tuple[frozenset[str], frozenset[str]]:
    """Return a Service's addresses in a zone, or all of them without one; and all of them."""
    every = frozenset(endpoint_address(service, number) for number in range(ZONES))
    return every if zone is None else frozenset({endpoint_address(service, zone)}), every


@cache
def _records(size: int, service: int, qtype: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return ``nearest``, ``every`` and ``additional`` of a ``Query``: no endpoint is nearer than others."""
    data = dual_stack.data(size, service, qtype)
    return data, data, dual_stack.additional(size, service) if qtype == "SRV" else frozenset()
