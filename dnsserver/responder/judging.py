"""Whether a query is answered at all: the coarsest fault is found first, and decides."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dnsserver.message import wire
from dnsserver.message.wire import Edns, Query, Unreadable, read_untrusted
from dnsserver.names import Meaning, Zone, meaning_of


class Question(Struct, frozen=True):
    """A query that is to be answered, and what its name means."""

    query: Query
    meaning: Meaning


class Refusal(Struct, frozen=True):
    """Why a query is not answered: an rcode, and what could be read.

    ``end`` is where its question ends, None if that cannot be read; ``edns`` its OPT record, ``qtype`` its type, None
    where it has none that counts.
    """

    rcode: int
    end: int | None
    edns: Edns | None
    qtype: int | None = None


def is_query(packet: bytes) -> bool:
    """Whether a packet has a whole header that does not say it is a reply; all others get silence."""
    return len(packet) >= wire.HEADER and not packet[2] & 0x80


def judge_untrusted(packet: bytes, zones: Iterable[Zone], *, client_option: int | None) -> Question | Refusal:
    """Read a packet that ``is_query``, and say whether it is to be answered. Never raises.

    In this order: an opcode other than QUERY, what cannot be read, a version of EDNS above 0, a class
    other than IN, a name outside the *zones*, a zone transfer.
    """
    opcode = int.from_bytes(packet[2:4]) & wire.OPCODE
    try:
        read = read_untrusted(packet, client_option=client_option)
    except Unreadable as error:
        return Refusal(wire.NOTIMP if opcode else wire.FORMERR, error.end, error.edns)
    if opcode:
        return Refusal(wire.NOTIMP, read.end, read.edns)
    if read.edns is not None and read.edns.version != 0:
        return Refusal(wire.BADVERS, read.end, read.edns)
    meaning = meaning_of(read.labels, zones) if read.qclass == wire.IN else None
    if meaning is None or read.qtype in (wire.AXFR, wire.IXFR):
        return Refusal(wire.REFUSED, read.end, read.edns, read.qtype)
    return Question(read, meaning)
