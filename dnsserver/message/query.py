# SPDX-License-Identifier: Apache-2.0

"""Reads queries. What Python knows of a query's octets is read here, once, into a ``Query``.

Functions that read unchecked bytes end in ``_untrusted`` and raise only ``Unreadable``.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from msgspec import Struct

from dnsserver.message import wire
from locator.ip import Network, plain_network

MAX_NAME_OCTETS = 255  # octets, including the root's zero (RFC 1035, section 3.1)
# What a query may hold, far more than clients send: reading one must not cost many times what its answer costs.
MAX_RECORDS = 16  # beyond the question: OPT, and TSIG or SIG(0)
MAX_OPTIONS = 32  # of EDNS
# OPT records that are remembered as they were read, and octets of each: some megabytes. Over TCP one may have 64 KiB.
# One with something new in each query, such as a cookie, is remembered in vain.
MAX_OPT_RECORDS, MAX_OPT_SIZE = 8192, 256

_FLAGS_AND_COUNTS = struct.Struct("!HHHHH")  # of a header, behind the id
_TYPE_AND_CLASS = struct.Struct("!HH")  # which end a question
_RECORD = struct.Struct("!HHBBHH")  # type, class, TTL and length of data; of OPT: its size, version and flags
_CODE_AND_LENGTH = struct.Struct("!HH")  # which begin an EDNS option
_FAMILIES = {1: 4, 2: 16}  # RFC 7871, section 6: address family number -> octets in an address


class Unreadable(Exception):
    """Octets are malformed. ``edns`` is what could be read of a query's OPT record, None if there is none."""

    edns: Edns | None = None


class ClientSubnet(Struct, frozen=True, gc=False):
    """An EDNS client subnet option (RFC 7871) as sent: family, SOURCE PREFIX-LENGTH in bits, address.

    ``is_host`` is whether it names a single address.
    """

    family: int
    prefix_length: int
    address: bytes
    is_host: bool

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
    def named_client(self) -> bytes:
        """The address that an option names, or the start of one; empty if none names a client."""
        subnet = self.subnet
        return self.option or (subnet.address if subnet is not None and subnet.prefix_length else b"")


class Query(Struct, frozen=True, gc=False):
    """A query, as it was read.

    ``octets`` is the message, without a PROXY header. ``question`` is its question with the case folded, empty if that
    cannot be read. ``edns`` is its OPT record, None without one. ``header_client`` is the packed address in the PROXY
    header before it: empty if the header has none, None without a header.

    ``rcode`` is the one of the response if the query cannot be answered: NOTIMP, FORMERR or BADVERS.
    """

    octets: bytes
    flags: int
    question: bytes
    edns: Edns | None
    header_client: bytes | None
    rcode: int

    @property
    def end(self) -> int:
        """Where the question ends in the message; there must be one."""
        return wire.HEADER + len(self.question)

    @property
    def qtype(self) -> int:
        """The type in the question; there must be one."""
        return self.type_and_class[0]

    @property
    def type_and_class(self) -> tuple[int, int]:
        """The type and the class in the question; there must be one."""
        qtype, qclass = _TYPE_AND_CLASS.unpack_from(self.octets, self.end - _TYPE_AND_CLASS.size)
        return qtype, qclass

    @property
    def labels(self) -> tuple[bytes, ...]:
        """The labels of the queried name in lower case."""
        question, labels, position = self.question, [], 0
        while length := question[position]:
            position += 1 + length
            labels.append(question[position - length : position])
        return tuple(labels)


def read_query(octets: bytes, *, client_option: int | None = None, header_client: bytes | None = None) -> Query | None:
    """Read a query; return None for what is none and gets no reply: without a whole header, or with QR. Never raises.

    An opcode other than QUERY calls for NOTIMP, else what cannot be read for FORMERR, and an EDNS version above 0 for
    BADVERS. The response to each repeats a readable question, and has an OPT record if the query has one.

    QDCOUNT must be 1. The records of all sections must be whole, without octets behind them, and at most
    ``MAX_RECORDS``. At most one OPT record may occur, in the additional section (RFC 6891, section 6.1.1), and its
    options must be well-formed, and at most ``MAX_OPTIONS``. What exceeds these limits is not read.
    """
    if len(octets) < wire.HEADER:
        return None
    flags, questions, answers, authority, additional = _FLAGS_AND_COUNTS.unpack_from(octets, 2)
    if flags & wire.QR:
        return None
    question, edns, rcode = b"", None, wire.NOERROR
    try:
        if questions == 1:
            end = _question_end_untrusted(octets)
            question = octets[wire.HEADER : end].lower()  # a length that this changes is above 63 before and after
        else:
            rcode, end = wire.FORMERR, _skip_questions_untrusted(octets, questions)
        if answers or authority or additional:
            edns = _edns_untrusted(octets, end, answers + authority, additional, client_option)
        elif end != len(octets):
            raise Unreadable("trailing octets")
    except Unreadable as error:
        rcode, edns = wire.FORMERR, error.edns
    if flags & wire.OPCODE:
        rcode = wire.NOTIMP
    elif edns is not None and edns.version and not rcode:
        rcode = wire.BADVERS
    return Query(octets, flags, question, edns, header_client, rcode)


def _question_end_untrusted(octets: bytes) -> int:
    """Return where the only question ends."""
    position = wire.HEADER
    try:
        while length := octets[position]:
            if length > 63:  # pointers included: there is no earlier name to point to
                raise Unreadable("the question's name cannot be read")
            position += 1 + length
    except IndexError:
        raise Unreadable("the question's name is cut off") from None
    if position + 1 - wire.HEADER > MAX_NAME_OCTETS or position + 5 > len(octets):
        raise Unreadable("the question is too long or cut off")
    return position + 5


def _skip_questions_untrusted(octets: bytes, questions: int) -> int:
    """Return where the records start: the response is FORMERR, but needs the OPT record."""
    if questions > MAX_RECORDS:
        raise Unreadable("too many questions")
    position = wire.HEADER
    for _ in range(questions):
        position = _skip_name_untrusted(octets, position) + 4
    return position


def _edns_untrusted(
    octets: bytes, position: int, before: int, additional: int, client_option: int | None
) -> Edns | None:
    """Read all records, from *position* on; return what the OPT record says, None if there is none.

    *before* records stand in the sections before the additional one.
    """
    edns: Edns | None = None
    try:
        if before + additional > MAX_RECORDS:
            raise Unreadable("too many records")
        for number in range(before + additional):
            start = position
            at = position + 1 if octets.startswith(b"\0", position) else _skip_name_untrusted(octets, position)
            data = at + _RECORD.size
            if data > len(octets):
                raise Unreadable("a record is cut off")
            rtype, *_, length = _RECORD.unpack_from(octets, at)
            position = data + length
            if position > len(octets):
                raise Unreadable("a record's data are cut off")
            if rtype != wire.OPT:
                continue
            if number < before or octets[start] != 0 or edns is not None:
                raise Unreadable("an OPT record stands where none may")
            read = _remembered_opt_untrusted if position - at <= MAX_OPT_SIZE else _opt_untrusted
            edns = read(octets[at:position], client_option)
        if position != len(octets):
            raise Unreadable("trailing octets")
    except Unreadable as error:
        error.edns = edns or error.edns
        raise
    return edns


def _opt_untrusted(record: bytes, client_option: int | None) -> Edns:
    """Read an OPT record behind its owner's name."""
    _, size, _, version, flags, length = _RECORD.unpack_from(record)
    edns = Edns(size, version, bool(flags & wire.DO))
    if version or not length:  # options of later versions have an unknown format
        return edns
    try:
        return _with_options_untrusted(edns, record[_RECORD.size :], client_option)
    except Unreadable as error:
        error.edns = edns
        raise


_remembered_opt_untrusted = lru_cache(MAX_OPT_RECORDS)(_opt_untrusted)  # clients and forwarders send few different ones


def _skip_name_untrusted(octets: bytes, position: int) -> int:
    """Return where a record's owner name ends. Pointers must point backwards (RFC 1035, section 4.1.4)."""
    start = position
    while position < len(octets):
        length = octets[position]
        if length == 0 and position - start < MAX_NAME_OCTETS:
            return position + 1
        if length >= 0xC0 and position + 1 < len(octets):
            if wire.HEADER <= (length & 0x3F) << 8 | octets[position + 1] < start:
                return position + 2
            break
        if length > 63 or position - start >= MAX_NAME_OCTETS:
            break
        position += 1 + length
    raise Unreadable("a record's name cannot be read")


def _with_options_untrusted(edns: Edns, options: bytes, client_option: int | None) -> Edns:
    """Return *edns* with what its options say."""
    subnet, named, nsid, probe, position = None, [], False, False, 0
    for _ in range(MAX_OPTIONS):
        if position + 4 > len(options):
            break
        code, length = _CODE_AND_LENGTH.unpack_from(options, position)
        position += 4 + length
        content = options[position - length : position]
        if code == wire.CLIENT_SUBNET:
            if subnet is not None:
                raise Unreadable("two client subnets")
            subnet = _subnet_untrusted(content)
        elif code == wire.PROBE and content == wire.PROBE_TEXT:
            probe = True
        elif code == client_option:
            named.append(content)
        elif code == wire.NSID:  # a server ignores the content (RFC 5001, section 2.1)
            nsid = True
    if position != len(options):
        raise Unreadable("an EDNS option is cut off, or there are too many")
    # Two client options name no client: a pod behind the forwarder may have sent one of them.
    option = (named[0] if len(named) == 1 and len(named[0]) in (4, 16) else b"") if named else None
    return Edns(edns.size, edns.version, edns.do, subnet, option, nsid, probe)


def _subnet_untrusted(content: bytes) -> ClientSubnet:
    """Read a client subnet option (RFC 7871, sections 6 and 7.1.1)."""
    if len(content) < 4:
        raise Unreadable("a client subnet is cut off")
    family, length, scope, address = int.from_bytes(content[:2]), content[2], content[3], content[4:]
    size = _FAMILIES.get(family, 0)
    unused = -length % 8
    if (
        (size == 0 and family != 0)
        or length > 8 * size
        or scope != 0
        or len(address) != (length + 7) // 8
        or (unused and address[-1] & ((1 << unused) - 1))
    ):
        raise Unreadable("a malformed client subnet")
    return ClientSubnet(family, length, address, 0 < length == 8 * size)
