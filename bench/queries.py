# SPDX-License-Identifier: Apache-2.0

"""What a load is, the records that must answer its queries, and the check of a reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import dns.edns
import dns.flags
import dns.message
import dns.rcode


class Transport(NamedTuple):
    """How queries travel: ``limit`` is the largest reply in octets, ``edns`` whether the query states it by EDNS."""

    title: str
    limit: int
    edns: bool = False
    tcp: bool = False


class PreparedQuery(NamedTuple):
    """A query as it is sent, and the data of the records that answer it.

    ``nearest`` is the data nearest to the client, ``every`` all data of the name.
    """

    wire: bytes
    nearest: frozenset[str] = frozenset()
    every: frozenset[str] = frozenset()


class Load(NamedTuple):
    """Queries for each of some sockets, and the address that each socket sends from.

    At full load, each socket has ``window`` queries outstanding. ``rcode`` is what replies must say.
    """

    title: str
    transport: Transport
    sources: Sequence[str]
    queries: Sequence[Sequence[PreparedQuery]]
    window: int
    rcode: dns.rcode.Rcode = dns.rcode.NOERROR


def complaint(load: Load, query: PreparedQuery, reply: bytes, *, nearest: bool) -> str | None:
    """Return what is wrong with a reply, or None.

    *nearest* is whether the reply must hold the nearest records only, with a scope as long as the source prefix
    (RFC 7871, section 7.2.1).
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
    if message.flags & dns.flags.TC:
        return "a TC bit, though all records fit"
    expected = query.nearest if nearest else query.every
    found = {record.to_text() for rrset in message.answer for record in rrset}
    if found != expected:
        return f"{sorted(found)} instead of {sorted(expected)}"
    echoed = [(address, length, length) for address, length, _ in _subnets(asked)] if nearest else _subnets(message)
    if _subnets(message) != echoed:
        return f"client subnets {_subnets(message)} instead of {echoed}"
    return None


def _subnets(message: dns.message.Message) -> list[tuple[str, int, int]]:
    """Return the client subnets in a message: address, source prefix length, scope prefix length."""
    return [(ecs.address, ecs.srclen, ecs.scopelen) for ecs in message.options if ecs.otype == dns.edns.ECS]
