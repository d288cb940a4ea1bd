# SPDX-License-Identifier: Apache-2.0

"""Reads queries: the counts, the question, whole records, EDNS options. The caller reads id and flags.

Functions that read unchecked bytes end in ``_untrusted`` and raise only ``Unreadable``.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from locator.ip import Network, plain_network

HEADER = 12
MAX_NAME = 255  # octets, including the root's zero (RFC 1035, section 3.1)
# What a query may hold, far more than clients send: reading one must not cost many times what its answer costs.
MAX_RECORDS = 16  # beyond the question: OPT, and TSIG or SIG(0)
MAX_OPTIONS = 32  # of EDNS

A, NS, CNAME, SOA, PTR, HINFO, MX, TXT, AAAA, SRV, OPT = 1, 2, 5, 6, 12, 13, 15, 16, 28, 33, 41
IXFR, AXFR, ANY = 251, 252, 255
IN = 1

NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 2, 3, 4, 5, 16
RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED", 16: "BADVERS"}

QR, AA, TC, RD, CD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0010
OPCODE = 0x7800
DO = 0x8000  # in the OPT record's flags

NSID = 3  # RFC 5001
CLIENT_SUBNET = 8  # RFC 7871
EXTENDED_ERROR = 15  # RFC 8914
# The option by which our own tools say that they only look, and its content: a code for local use (RFC 6891, 9).
PROBE, PROBE_TEXT = 65107, b"topodns doctor"
EDE_OTHER, EDE_STALE, EDE_NOT_READY, EDE_NO_REACHABLE_AUTHORITY, EDE_NETWORK_ERROR = 0, 3, 14, 22, 23

_COUNTS = struct.Struct("!HHHH")  # records in each section of a message
TYPE_AND_CLASS = struct.Struct("!HH")  # which end a question
_FAMILIES = {1: 4, 2: 16}  # RFC 7871, section 6: address family number -> octets in an address


class ClientSubnet(Struct, frozen=True, gc=False):
    """An EDNS client subnet option (RFC 7871) as sent: family, SOURCE PREFIX-LENGTH in bits, address."""

    family: int
    prefix_length: int
    address: bytes

    @property
    def host(self) -> bool:
        """Whether the option names a single address."""
        return self.prefix_length > 0 and self.prefix_length == 8 * _FAMILIES[self.family]

    @property
    def content(self) -> bytes:
        """The option's content as in a query."""
        return struct.pack("!HBB", self.family, self.prefix_length, 0) + self.address

    @property
    def network(self) -> Network | None:
        """The client's address block, or None if the option names no client (/0)."""
        if self.prefix_length == 0:
            return None
        size = _FAMILIES[self.family]
        network = plain_network(Network(self.address.ljust(size, b"\0"), self.prefix_length))
        return network if network.length else None


class Edns(Struct, frozen=True, gc=False):
    """The content of an OPT record (RFC 6891): UDP size in octets, version, DO flag, and the client that it names.

    ``option`` is the content of the configured client option (--client-option): a packed address, empty if it is not
    an address or occurs twice, None if it is absent. ``nsid`` is whether the client asks for the server's name
    (RFC 5001). ``probe`` is whether a tool of ours asks, to which the answer is the same as to everybody.
    """

    size: int
    version: int
    do: bool
    subnet: ClientSubnet | None = None
    option: bytes | None = None
    nsid: bool = False
    probe: bool = False

    @property
    def names_client(self) -> bool:
        """Whether an option names a client."""
        return bool(self.option) or (self.subnet is not None and self.subnet.prefix_length > 0)


class Query(Struct, frozen=True, gc=False):
    """A query. ``end`` is the offset where its question ends; ``labels`` are in lower case."""

    end: int
    labels: tuple[bytes, ...]
    qtype: int
    qclass: int
    edns: Edns | None


class Unreadable(Exception):
    """A message is malformed. Holds what could be read of it.

    ``end`` is the offset where the question ends, None if the question is malformed. ``edns`` is the OPT record, None
    if there is none or it is malformed.
    """

    end: int | None = None
    edns: Edns | None = None


def read_untrusted(packet: bytes, *, client_option: int | None = None) -> Query:
    """Read a query with a whole header. Raises ``Unreadable``, which calls for FORMERR.

    The opcode may be any: the reply to each repeats the question, and has an OPT record if the query has one.

    QDCOUNT must be 1. The records of all sections must be whole, without octets behind them, and at most
    ``MAX_RECORDS``. At most one OPT record may occur, in the additional section (RFC 6891, section 6.1.1), and its
    options must be well-formed, and at most ``MAX_OPTIONS``. What exceeds these limits is not read.
    """
    end: int | None = None
    edns: Edns | None = None
    try:
        questions, answers, authority, additional = _COUNTS.unpack_from(packet, 4)
        records = answers + authority + additional
        labels, position = (
            question_untrusted(packet) if questions == 1 else ((), _skip_questions_untrusted(packet, questions))
        )
        end = position if questions == 1 else None
        if records > MAX_RECORDS:
            raise Unreadable("too many records")
        for number in range(records):
            start, at = position, _skip_name_untrusted(packet, position)
            position = at + 10 + int.from_bytes(packet[at + 8 : at + 10])
            if at + 10 > len(packet) or position > len(packet):
                raise Unreadable("a record is cut off")
            if int.from_bytes(packet[at : at + 2]) != OPT:
                continue
            if number < answers + authority or packet[start] != 0 or edns is not None:
                raise Unreadable("an OPT record stands where none may")
            edns = _edns_untrusted(packet[at:position])
            edns = _options_untrusted(edns, packet[at + 10 : position], client_option=client_option)
        if position != len(packet):
            raise Unreadable("trailing octets")
        if end is None:
            raise Unreadable("QDCOUNT is not 1")
    except Unreadable as error:
        error.end, error.edns = end, edns
        raise
    qtype, qclass = TYPE_AND_CLASS.unpack_from(packet, end - 4)
    return Query(end, labels, qtype, qclass, edns)


def question_untrusted(packet: bytes) -> tuple[tuple[bytes, ...], int]:
    """Return the labels of the question's name in lower case, and the offset where the question ends.

    Raises ``Unreadable``.
    """
    lower, labels, position = packet.lower(), [], HEADER  # a length that this changes is above 63 before and after
    try:
        while length := lower[position]:
            if length > 63:  # pointers included: there is no earlier name to point to
                raise Unreadable("the question's name cannot be read")
            position += 1 + length
            labels.append(lower[position - length : position])
    except IndexError:
        raise Unreadable("the question's name is cut off") from None
    if position + 1 - HEADER > MAX_NAME or position + 5 > len(packet):
        raise Unreadable("the question is too long or cut off")
    return tuple(labels), position + 5


def _skip_questions_untrusted(packet: bytes, questions: int) -> int:
    """Return where the records start behind *questions* questions. The reply is FORMERR, but needs the OPT record."""
    if questions > MAX_RECORDS:
        raise Unreadable("too many questions")
    position = HEADER
    for _ in range(questions):
        position = _skip_name_untrusted(packet, position) + 4
    return position


def _skip_name_untrusted(packet: bytes, position: int) -> int:
    """Return where a record's owner name ends. Pointers must point backwards (RFC 1035, section 4.1.4)."""
    start = position
    while position < len(packet):
        length = packet[position]
        if length == 0 and position - start < MAX_NAME:
            return position + 1
        if length >= 0xC0 and position + 1 < len(packet):
            if HEADER <= (length & 0x3F) << 8 | packet[position + 1] < start:
                return position + 2
            break
        if length > 63 or position - start >= MAX_NAME:
            break
        position += 1 + length
    raise Unreadable("a record's name cannot be read")


def _edns_untrusted(record: bytes) -> Edns:
    """Read the fields of a whole OPT record, from its type up to its options."""
    return Edns(size=int.from_bytes(record[2:4]), version=record[5], do=bool(int.from_bytes(record[6:8]) & DO))


def _options_untrusted(edns: Edns, options: bytes, *, client_option: int | None) -> Edns:
    """Return *edns* with the content of its options."""
    if edns.version != 0:  # options of later versions have an unknown format
        return edns
    subnet, named, nsid, probe, position = None, [], False, False, 0
    for _ in range(MAX_OPTIONS):
        if position == len(options):
            break
        code, length = (int.from_bytes(options[at : at + 2]) for at in (position, position + 2))
        content = options[position + 4 : position + 4 + length]
        if position + 4 > len(options) or len(content) != length:
            raise Unreadable("an EDNS option is cut off")
        if code == CLIENT_SUBNET:
            if subnet is not None:
                raise Unreadable("two client subnets")
            subnet = _subnet_untrusted(content)
        elif code == PROBE and content == PROBE_TEXT:
            probe = True
        elif code == client_option:
            named.append(content)
        elif code == NSID:  # a server ignores the content (RFC 5001, section 2.1)
            nsid = True
        position += 4 + length
    if position < len(options):
        raise Unreadable("too many EDNS options")
    # Two client options name no client: a pod behind the forwarder may have sent one of them.
    option = (named[0] if len(named) == 1 and len(named[0]) in (4, 16) else b"") if named else None
    return Edns(edns.size, edns.version, edns.do, subnet, option, nsid, probe)


def _subnet_untrusted(content: bytes) -> ClientSubnet:
    """Read a client subnet option (RFC 7871, sections 6 and 7.1.1)."""
    subnet = ClientSubnet(int.from_bytes(content[:2]), content[2] if len(content) > 2 else 0, content[4:])
    family, length, address = subnet.family, subnet.prefix_length, subnet.address
    size = _FAMILIES.get(family, 0)
    unused = -length % 8
    if (
        len(content) < 4
        or (size == 0 and family != 0)
        or length > 8 * size
        or content[3] != 0
        or len(address) != (length + 7) // 8
        or (unused and address[-1] & ((1 << unused) - 1))
    ):
        raise Unreadable("a malformed client subnet")
    return subnet
