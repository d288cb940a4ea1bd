# SPDX-License-Identifier: Apache-2.0

"""Queries, the records that must answer them, and the check of a reply."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype

from locator.ip import Network

HEADER = struct.Struct("!HHHHHH")
RD = 0x0100
IN, OPT = 1, 41
CLIENT_SUBNET = 8  # RFC 7871


class Transport(NamedTuple):
    """How queries travel: ``limit`` is the largest reply in octets, ``edns`` whether the query states it by EDNS."""

    title: str
    limit: int
    edns: bool = False
    tcp: bool = False


class Query(NamedTuple):
    """A query as it is sent, and the data of the records that answer it.

    ``nearest`` is the data nearest to the client, ``every`` all data of the name, ``additional`` that of the additional
    section. ``before`` is what the datagram holds before the message.
    """

    wire: bytes
    nearest: frozenset[str]
    every: frozenset[str]
    additional: frozenset[str] = frozenset()
    before: bytes = b""


class Load(NamedTuple):
    """Queries for each of some sockets, and the address that each socket sends from.

    ``window`` is how many queries are outstanding, over all sockets. After ``warm`` replies the server has answered
    nearly every question once. ``cut`` is whether replies are too large for the transport, and must be truncated,
    ``rcode`` what they must say.
    """

    title: str
    transport: Transport
    sources: Sequence[str]
    queries: Sequence[Sequence[Query]]
    window: int
    warm: int
    cut: bool = False
    rcode: dns.rcode.Rcode = dns.rcode.NOERROR


@cache
def question(name: str, qtype: str) -> bytes:
    """Return the question section for an absolute name."""
    labels = b"".join(struct.pack("!B", len(label)) + label.encode() for label in name.split("."))
    return labels + struct.pack("!HH", dns.rdatatype.from_text(qtype), IN)


def query(number: int, question: bytes, transport: Transport, *, client: Network | None = None) -> bytes:
    """Return the query with the id *number*; *client* is its EDNS client subnet, if any."""
    option = b"" if client is None else _client_subnet(client)
    opt = struct.pack("!BHHIH", 0, OPT, transport.limit, 0, len(option)) + option if transport.edns else b""
    return HEADER.pack(number, RD, 1, 0, 0, int(transport.edns)) + question + opt


def _client_subnet(client: Network) -> bytes:
    """Return the EDNS option with its code and length (RFC 7871, section 6)."""
    family, octets = 1 if len(client.address) == 4 else 2, (client.length + 7) // 8
    head = struct.pack("!HHHBB", CLIENT_SUBNET, 4 + octets, family, client.length, 0)
    return head + client.address[:octets]


def complaint(load: Load, query: Query, reply: bytes, *, nearest: bool, additional: bool) -> str | None:
    """Return what is wrong with a reply, or None.

    *nearest* is whether the reply must hold the nearest records only, with a scope as long as the source prefix
    (RFC 7871, section 7.2.1); *additional* whether it must hold the additional ones.
    """
    try:
        message = dns.message.from_wire(reply)
    except Exception as error:  # dnspython raises many types
        return f"unreadable: {error}"
    if message.id != int.from_bytes(query.wire[:2]) or not message.flags & dns.flags.QR:
        return "the reply to another query"
    if message.rcode() != load.rcode:
        return f"{dns.rcode.to_text(message.rcode())} instead of {dns.rcode.to_text(load.rcode)}"
    asked = dns.message.from_wire(query.wire)
    if message.question != asked.question:
        return f"{message.question} instead of {asked.question}"
    if len(reply) > load.transport.limit:
        return f"{len(reply)} octets instead of {load.transport.limit} at most"
    if bool(message.flags & dns.flags.TC) != load.cut:
        return "no TC bit, though the records do not fit" if load.cut else "a TC bit, though all records fit"
    expected = query.nearest if nearest else query.every
    found = _data(message.answer)
    if not (found < expected if load.cut else found == expected):
        return f"{sorted(found)} instead of {sorted(expected)}"
    echoed = [(address, length, length) for address, length, _ in _subnets(asked)] if nearest else _subnets(message)
    if _subnets(message) != echoed:
        return f"client subnets {_subnets(message)} instead of {echoed}"
    beside, expected = _data(message.additional), query.additional if additional and not load.cut else frozenset()
    if beside != expected:
        return f"{sorted(beside)} instead of {sorted(expected)} in the additional section"
    return None


def _subnets(message: dns.message.Message) -> list[tuple[str, int, int]]:
    """Return the client subnets in a message: address, source prefix length, scope prefix length."""
    return [(ecs.address, ecs.srclen, ecs.scopelen) for ecs in message.options if ecs.otype == CLIENT_SUBNET]


def _data(section: Sequence[dns.rrset.RRset]) -> frozenset[str]:
    """Return the data of records as text; of SRV records, port and target."""
    return frozenset(
        f"{record.port} {record.target}" if rrset.rdtype == dns.rdatatype.SRV else record.to_text()
        for rrset in section
        for record in rrset
    )
