"""The two loads: queries prepared as bytes, each with what it must be answered."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype

from bench.cluster import DIRECT, FORWARDED, SERVICES, ClientPod, endpoint_address, service_name

RD = 0x0100
A, IN, OPT = 1, 1, 41
CLIENT_SUBNET = 8  # RFC 7871
FORWARDER = "127.0.0.1"
QUERIES = 65_536  # as many as there are ids; each comes round again after some tenths of a second
SOCKETS = len(DIRECT)


class Query(NamedTuple):
    """A query as it is sent, and whose answer it wants."""

    wire: bytes
    service: int
    client: ClientPod


class Load(NamedTuple):
    """Queries for each of some sockets, and the address that each socket sends from."""

    letter: str
    title: str
    sources: tuple[str, ...]
    queries: tuple[Sequence[Query], ...]


def direct() -> Load:
    """Return load (a): pods that ask for themselves, without EDNS."""
    pick = random.Random(1)
    questions = _questions()
    queries = []
    for client in DIRECT:
        services = [pick.randrange(SERVICES) for _ in range(QUERIES // SOCKETS)]
        queries.append([Query(_plain(n, questions[s]), s, client) for n, s in enumerate(services)])
    return Load("a", "direct", tuple(client.address for client in DIRECT), tuple(queries))


def forwarded() -> Load:
    """Return load (b): a forwarder that names, in each query, one of the pods by its full address."""
    pick = random.Random(2)
    questions = _questions()
    queries = []
    for _ in range(SOCKETS):
        asked = [(pick.randrange(SERVICES), pick.choice(FORWARDED)) for _ in range(QUERIES // SOCKETS)]
        queries.append([Query(_with_subnet(n, questions[s], c.address), s, c) for n, (s, c) in enumerate(asked)])
    return Load("b", "forwarded", (FORWARDER,) * SOCKETS, tuple(queries))


def complaint(query: Query, reply: bytes, *, nearest: bool) -> str | None:
    """Return what is wrong with a reply, or None; *nearest* is whether the client's zone alone must be in it."""
    try:
        message = dns.message.from_wire(reply)
    except Exception as error:  # whatever dnspython thinks of it
        return f"unreadable: {error}"
    if message.id != int.from_bytes(query.wire[:2]) or not message.flags & dns.flags.QR:
        return "the reply to another query"
    if message.rcode() != dns.rcode.NOERROR:
        return f"{dns.rcode.to_text(message.rcode())} instead of NOERROR"
    if str(message.question[0].name) != service_name(query.service):
        return f"{message.question[0].name} instead of {service_name(query.service)}"
    zones = (query.client.zone,) if nearest else range(3)
    expected = {endpoint_address(query.service, zone) for zone in zones}
    found = {record.address for rrset in message.answer if rrset.rdtype == dns.rdatatype.A for record in rrset}
    return None if found == expected else f"{sorted(found)} instead of {sorted(expected)}"


def _questions() -> list[bytes]:
    names = [service_name(service).split(".") for service in range(SERVICES)]
    return [
        b"".join(struct.pack("!B", len(label)) + label.encode() for label in labels) + struct.pack("!HH", A, IN)
        for labels in names
    ]


def _plain(number: int, question: bytes) -> bytes:
    return struct.pack("!HHHHHH", number, RD, 1, 0, 0, 0) + question


def _with_subnet(number: int, question: bytes, address: str) -> bytes:
    option = struct.pack("!HHHBB", CLIENT_SUBNET, 8, 1, 32, 0) + socket.inet_aton(address)
    opt = struct.pack("!BHHIH", 0, OPT, 1232, 0, len(option)) + option
    return struct.pack("!HHHHHH", number, RD, 1, 0, 0, 1) + question + opt
