# SPDX-License-Identifier: Apache-2.0

"""Decides whether a query is answered or refused. The coarsest fault is checked first, and decides."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dnsserver.message import wire
from dnsserver.message.wire import Edns, Query, Unreadable, question_untrusted, read_untrusted
from dnsserver.names import Meaning, Zone, meaning_of


class Question(Struct, frozen=True, gc=False):
    """A question that topodns answers: its octets and its labels in lower case, its type, the meaning of its name."""

    folded: bytes
    labels: tuple[bytes, ...]
    qtype: int
    meaning: Meaning


class AcceptedQuery(Struct, frozen=True, gc=False):
    """A query that topodns answers, and its question."""

    query: Query
    question: Question


class Refusal(Struct, frozen=True, gc=False):
    """The rcode for a query that is refused, and the parts of the query that were readable.

    ``end`` is where its question ends, None if that is unreadable. ``edns`` is its OPT record, None
    without one. ``qtype`` is its type, None with NOTIMP, FORMERR and BADVERS, which are counted without one.
    """

    rcode: int
    end: int | None
    edns: Edns | None
    qtype: int | None = None


def is_query(packet: bytes) -> bool:
    """Whether a packet has a whole header with QR=0. All other packets get no reply."""
    return len(packet) >= wire.HEADER and not packet[2] & 0x80


def judge_untrusted(packet: bytes, zones: Iterable[Zone], *, client_option: int | None) -> AcceptedQuery | Refusal:
    """Read a packet for which ``is_query`` holds; return the query, or why it is refused. Never raises.

    Refused are, checked in this order: an opcode other than QUERY, an unreadable query, an EDNS
    version above 0, a class other than IN, a name outside the *zones*, a zone transfer.
    """
    parsed = _read_untrusted(packet, client_option)
    if isinstance(parsed, Refusal):
        return parsed
    question = _accepted(packet, parsed.labels, parsed.end, zones)
    return (
        Refusal(wire.REFUSED, parsed.end, parsed.edns, parsed.qtype)
        if question is None
        else AcceptedQuery(parsed, question)
    )


def decided_untrusted(packet: bytes, *, client_option: int | None) -> Query | None:
    """Read a packet for which ``is_query`` holds; return None if it is refused before its name is looked at.

    Other than ``judge_untrusted``, this leaves it to ``resolve`` to refuse names outside the zones and zone transfers.
    """
    parsed = _read_untrusted(packet, client_option)
    return None if isinstance(parsed, Refusal) or parsed.qclass != wire.IN else parsed


def accept_untrusted(packet: bytes, end: int, zones: Iterable[Zone]) -> Question | None:
    """Return the question of a packet of which all but the question was recognised as right.

    Return None if the question is malformed, does not end at *end*, or is refused: ``judge_untrusted`` says which.
    """
    try:
        labels, position = question_untrusted(packet)
    except Unreadable:
        return None
    return _accepted(packet, labels, end, zones) if position == end else None


def _read_untrusted(packet: bytes, client_option: int | None) -> Query | Refusal:
    """Return a query that was read; how it is refused if its opcode, its form or its EDNS version is wrong."""
    opcode = int.from_bytes(packet[2:4]) & wire.OPCODE
    try:
        parsed = read_untrusted(packet, client_option=client_option)
    except Unreadable as error:
        return Refusal(wire.NOTIMP if opcode else wire.FORMERR, error.end, error.edns)
    if opcode:
        return Refusal(wire.NOTIMP, parsed.end, parsed.edns)
    if parsed.edns is not None and parsed.edns.version != 0:
        return Refusal(wire.BADVERS, parsed.end, parsed.edns)
    return parsed


def _accepted(packet: bytes, labels: tuple[bytes, ...], end: int, zones: Iterable[Zone]) -> Question | None:
    """Return a question that was read; None if its class, its name or its type is refused."""
    qtype, qclass = wire.TYPE_AND_CLASS.unpack_from(packet, end - wire.TYPE_AND_CLASS.size)
    if qclass != wire.IN or qtype in (wire.AXFR, wire.IXFR):
        return None
    meaning = meaning_of(labels, zones)
    return None if meaning is None else Question(packet[wire.HEADER : end].lower(), labels, qtype, meaning)
