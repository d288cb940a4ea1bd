# SPDX-License-Identifier: Apache-2.0

"""Replies as octets: parsed by RFC 1035 alone, compared with each other, and checked for soundness."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dns.message
import dns.name
import dns.rdatatype

from tests.kit import dns_queries
from tests.kit.random_queries import Asked

POINTER = 0xC0
# Type -> how many names its data begins with, and how many octets follow. Names in the data of other types must not be
# compressed (RFC 3597, section 4).
NAMES_IN_DATA = {2: (1, 0), 5: (1, 0), 6: (2, 20), 12: (1, 0)}
SRV = 33
CNAME = b"\0\5"
OPT = b"\0\0\x29"  # the root's name and the type (RFC 6891, 6.1.2)
ADDRESSES = (b"\0\1", b"\0\x1c")


class Parts(NamedTuple):
    """The parts of a reply as octets: the header; the question; the answers; the records of the other sections."""

    head: bytes
    question: bytes
    answers: tuple[bytes, ...]
    rest: tuple[bytes, ...]


def parts_of(reply: bytes) -> Parts:
    """Split a reply into its parts, by RFC 1035 alone."""
    questions, *counts = struct.unpack("!4H", reply[4:12])
    position = 12
    if questions:
        position = after_name(reply, position) + 4
    question, records = reply[12:position], []
    for _ in range(sum(counts)):
        at = after_name(reply, position)
        end = at + 10 + int.from_bytes(reply[at + 8 : at + 10])
        records.append(reply[position:end])
        position = end
    assert position == len(reply)
    return Parts(reply[:12], question, tuple(records[: counts[0]]), tuple(records[counts[0] :]))


def after_name(message: bytes, position: int) -> int:
    while message[position]:
        if message[position] >= POINTER:
            return position + 2
        position += 1 + message[position]
    return position + 1


def options_of(reply: bytes) -> list[bytes]:
    """Return each option of a reply's OPT record, with code and length."""
    found, data = [], b"".join(record[11:] for record in parts_of(reply).rest if record[:3] == OPT)
    while data:
        end = 4 + int.from_bytes(data[2:4])
        assert end <= len(data)
        found.append(data[:end])
        data = data[end:]
    return found


def is_rotation(left: Sequence[bytes], right: Sequence[bytes]) -> bool:
    """Whether *left* is the CNAMEs of *right*, then its other records, in their order from any of them on."""
    aliases = aliases_in(right)
    own, others = left[aliases:], right[aliases:]
    if len(left) != len(right) or left[:aliases] != right[:aliases]:
        return False
    return not own or any([*others[turn:], *others[:turn]] == [*own] for turn in range(len(others)))


def aliases_in(records: Sequence[bytes]) -> int:
    """Return how many of the records are CNAMEs."""
    return sum(record[after_name(record, 0) :][:2] == CNAME for record in records)


class TargetAddresses(NamedTuple):
    """The targets of a reply's records, and the addresses in its additional section, in the order of the reply."""

    targets: tuple[dns.name.Name, ...]
    addresses: tuple[tuple[dns.name.Name, str], ...]

    def left_out(self, addresses: Sequence[tuple[dns.name.Name, str]]) -> list[tuple[dns.name.Name, str]]:
        """Return those of *addresses* that the reply left out, in the order in which its records name their owners.

        If it left any out, the addresses that it has must be in this order, too.
        """
        place = {target: number for number, target in reversed(list(enumerate(self.targets)))}
        every, found = sorted(addresses, key=lambda address: place[address[0]]), set(self.addresses)
        left_out = [address for address in every if address not in found]
        assert len(self.addresses) + len(left_out) == len(every)
        assert not left_out or [*self.addresses] == [address for address in every if address in found]
        return left_out


def additional_of(reply: bytes) -> TargetAddresses:
    """Return the targets in a reply, and its additional records, as dnspython reads it."""
    message = parsed(reply, one_rr_per_rrset=True)
    return TargetAddresses(
        tuple(rrset[0].target for rrset in message.answer if rrset.rdtype in (dns.rdatatype.NS, dns.rdatatype.SRV)),
        tuple((rrset.name, rrset[0].to_text()) for rrset in message.additional),
    )


def assert_same(remembered: bytes | None, computed: bytes | None, whole: bytes | None) -> None:
    """Two replies are the same octet for octet, but for the rotation; *whole* is the reply without a size limit.

    If not all additional records fit, each reply holds those of its own first records. Truncated replies have the same
    records.
    """
    if remembered is None or computed is None or whole is None:
        assert remembered is computed is whole
        return
    left, right, full = parts_of(remembered), parts_of(computed), parts_of(whole)
    assert (left.head[:6], left.question) == (right.head[:6], right.question)
    if without_additional(full.rest) == [*full.rest]:
        assert left.rest == right.rest
    else:
        assert without_additional(left.rest) == without_additional(right.rest)
        for reply in (remembered, computed):
            if not int.from_bytes(reply[2:4]) & dns_queries.TC:
                additional_of(reply).left_out(additional_of(whole).addresses)
    if not int.from_bytes(left.head[2:4]) & dns_queries.TC:
        assert left.head[:10] == right.head[:10]
        assert is_rotation(left.answers, right.answers)
        return
    aliases = min(aliases_in(full.answers), len(left.answers))
    assert left.answers[:aliases] == right.answers[:aliases] == full.answers[:aliases]
    assert sorted(left.answers) == sorted(right.answers)
    assert not Counter(left.answers) - Counter(full.answers)


def without_additional(records: Sequence[bytes]) -> list[bytes]:
    """Return the records that are not addresses: SOA and OPT."""
    return [record for record in records if record[after_name(record, 0) :][:2] not in ADDRESSES]


def assert_sound(asked: Asked, reply: bytes | None, *, limit: int | None = None) -> None:
    """A reply is well-formed, belongs to its query, and fits; *limit* is the size that the query allows."""
    wire = asked.wire
    if len(wire) < 12 or wire[2] & 0x80:
        assert reply is None
        return
    assert reply is not None
    parts, sent, flags = parts_of(reply), int.from_bytes(wire[2:4]), int.from_bytes(reply[2:4])
    opts = [record for record in parts.rest if record[:3] == OPT]
    rcode = flags & 15 | (opts[0][5] << 4 if opts else 0)
    assert reply[:2] == wire[:2]
    assert parts.question == wire[12 : 12 + len(parts.question)]  # letters keep their case
    assert flags & 0x8000 and flags & 0x7910 == sent & 0x7910  # QR; opcode, RD and CD as in the query
    assert not flags & 0x00E0  # RA, Z, AD
    assert bool(flags & 0x0400) == (rcode in (0, 3))  # AA
    assert parts.question or rcode in (1, 4)
    assert len(opts) <= 1
    if asked.proto == "udp":
        assert len(reply) <= (limit or (1232 if opts else 512))
    else:
        assert not flags & dns_queries.TC
    assert_names(reply)
    if flags & 0x7800 == 0:
        assert parsed(reply).id == int.from_bytes(wire[:2])


def assert_names(reply: bytes) -> None:
    """Each pointer points back to the label of an earlier name (RFC 1035, 4.1.4); SRV targets have no pointer."""
    starts: set[int] = set()

    def past_name(position: int, *, whole: bool = False) -> int:
        labels = []
        while length := reply[position]:
            if length >= POINTER:
                assert not whole and int.from_bytes(reply[position : position + 2]) & 0x3FFF in starts
                starts.update(labels)
                return position + 2
            assert length < 64
            labels.append(position)
            position += 1 + length
        starts.update(labels)
        return position + 1

    questions, *counts = struct.unpack("!4H", reply[4:12])
    position = past_name(12) + 4 if questions else 12
    for _ in range(sum(counts)):
        at = past_name(position)
        rtype, data = int.from_bytes(reply[at : at + 2]), at + 10
        position = data + int.from_bytes(reply[at + 8 : at + 10])
        if rtype == SRV:
            assert past_name(data + 6, whole=True) == position  # RFC 2782: the target is not compressed
        elif rtype in NAMES_IN_DATA:
            names, more = NAMES_IN_DATA[rtype]
            for _ in range(names):
                data = past_name(data)
            assert data + more == position
    assert position == len(reply)


def parsed(reply: bytes | None, *, one_rr_per_rrset: bool = False) -> dns.message.Message:
    """Return a reply as dnspython reads it.

    Replaces a client subnet of family 0, as ``dig +subnet=0`` sends it, because dnspython cannot read that.
    """
    assert reply is not None
    parts = parts_of(reply)
    rest = (_readable(record) if record[:3] == OPT else record for record in parts.rest)
    octets = b"".join((parts.head, parts.question, *parts.answers, *rest))
    return dns.message.from_wire(octets, one_rr_per_rrset=one_rr_per_rrset)


def _readable(record: bytes) -> bytes:
    """Return an OPT record with an unknown option in place of a client subnet of family 0."""
    unreadable, position = dns_queries.ecs("0"), 11
    while position < len(record):
        end = position + 4 + int.from_bytes(record[position + 2 : position + 4])
        if record[position:end] == unreadable:
            return record[:position] + dns_queries.option(65534, bytes(4)) + record[end:]
        position = end
    return record


def addresses_of_targets(
    reply: dns.message.Message, ask: Callable[[dns.name.Name, str], dns.message.Message]
) -> dict[dns.name.Name, set[str]]:
    """Return the addresses of each target of an SRV reply: its additional records, else what the target's name answers.

    Additional records are left out where they do not fit.
    """
    found: dict[dns.name.Name, set[str]] = {data.target: set() for rrset in reply.answer for data in rrset}
    for rrset in reply.additional:
        found[rrset.name] |= {data.address for data in rrset}
    for target in [target for target, additional in found.items() if not additional]:
        answers = [rrset for qtype in ("A", "AAAA") for rrset in ask(target, qtype).answer]
        found[target] = {data.address for rrset in answers for data in rrset}
    return found


def data(rrsets: list[Any]) -> list[str]:
    """Return the type and the data of each record, sorted."""
    return sorted(f"{dns.rdatatype.to_text(rrset.rdtype)} {rdata}" for rrset in rrsets for rdata in rrset)
