"""The loads: which queries, from where, by which transport, how many at a time."""

from __future__ import annotations

import random
from functools import cache
from typing import NamedTuple

from bench import dual_stack
from bench.cluster import DIRECT, FORWARDED, SERVICES, ZONES, ClientPod, endpoint_address, service_name
from bench.queries import Load, Query, Transport, query, question

PLAIN = Transport("UDP", 512)
EDNS = Transport("UDP, EDNS", 1232, edns=True)
PIPELINED = Transport("TCP, pipelined", 65535, tcp=True)
IN_TURN = Transport("TCP, in turn", 65535, tcp=True)  # a connection sends when it has been answered

FORWARDER = "127.0.0.1"
SOURCES = tuple(client.address for client in DIRECT)
SOCKETS = len(DIRECT)
QUERIES = 65_536  # as many as there are ids; each comes round again after some tenths of a second
WARM = 25_000  # replies: by then each name has been asked from each zone, but for one in a thousand
WINDOW = 1536  # some milliseconds of work, and it fits the server's buffer

# The same where servers are compared.
ALIKE_QUERIES = 1024  # of each socket
ALIKE_WARM = 1_000  # replies: ten for each name
# Sockets, and queries outstanding on each. Over UDP, they fit the buffer of a server that asks Linux for none in
# particular, as CoreDNS does (212,992 octets).
WIDTHS = {PLAIN: (SOCKETS, 32), EDNS: (SOCKETS, 32), PIPELINED: (16, 64), IN_TURN: (64, 1)}


class Asked(NamedTuple):
    """What varies where servers are compared."""

    endpoints: int
    qtype: str
    transport: Transport

    def __str__(self) -> str:
        return f"{self.endpoints} endpoints, {self.qtype}, {self.transport.title}"


ALIKE = tuple(
    Asked(size, qtype, transport)
    for size in dual_stack.SIZES
    for qtype in ("A", "AAAA", "SRV")
    for transport in WIDTHS
    if qtype == "A" or transport is not IN_TURN  # there, the way costs more than the answer
)


def direct() -> Load:
    """Return load (a): pods that ask for themselves, without EDNS."""
    pick = random.Random(1)

    def ask(number: int, client: ClientPod) -> Query:
        return _nearby(number, pick.randrange(SERVICES), client, PLAIN)

    queries = [[ask(number, client) for number in range(QUERIES // SOCKETS)] for client in DIRECT]
    return Load("(a) direct", PLAIN, SOURCES, queries, WINDOW, WARM)


def forwarded() -> Load:
    """Return load (b): a forwarder that names, in each query, one of the pods by its full address."""
    pick = random.Random(2)

    def ask(number: int) -> Query:
        return _nearby(number, pick.randrange(SERVICES), pick.choice(FORWARDED), EDNS, named=True)

    queries = [[ask(number) for number in range(QUERIES // SOCKETS)] for _ in range(SOCKETS)]
    return Load("(b) forwarded", EDNS, (FORWARDER,) * SOCKETS, queries, WINDOW, WARM)


def alike(asked: Asked) -> Load:
    """Return a load that every server should answer alike: pods that ask for themselves."""
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


def _nearby(number: int, service: int, client: ClientPod, transport: Transport, *, named: bool = False) -> Query:
    wire = query(number, question(service_name(service), "A"), transport, client=client.address if named else None)
    return Query(wire, *_addresses(service, client.zone))


@cache
def _addresses(service: int, zone: int) -> tuple[frozenset[str], frozenset[str]]:
    """Return a Service's addresses: what is nearest to a zone, and every one."""
    every = frozenset(endpoint_address(service, each) for each in range(ZONES))
    return frozenset({endpoint_address(service, zone)}), every


@cache
def _records(size: int, service: int, qtype: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return what the servers that are compared have of a Service: twice the data, as none is nearer, and the glue."""
    data = dual_stack.data(size, service, qtype)
    return data, data, dual_stack.glue(size, service) if qtype == "SRV" else frozenset()
