"""What a reply says beside its records: how long it may be, its OPT record (RFC 6891), its error."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from dnsserver.message import wire
from dnsserver.message.wire import Edns

MAX_UDP_REPLY = 1232  # DNS Flag Day 2020: fits an IPv6 MTU
MIN_UDP_REPLY = 512  # RFC 1035, section 4.2.1
MAX_TCP_REPLY = 65535
MAX_ERROR_TEXT = 200  # octets; RFC 8914 wants it short, and it must fit beside the longest question

Error = tuple[int, str]  # an extended error: its code and its text (RFC 8914)


def udp_limit(edns: Edns | None) -> int:
    """Return how many octets a UDP reply may have."""
    return MIN_UDP_REPLY if edns is None else max(MIN_UDP_REPLY, min(edns.size, MAX_UDP_REPLY))


def opt_head(edns: Edns, *, nsid: bytes, dependent: bool, errors: Sequence[Error] = ()) -> bytes:
    """Return the OPT record of a reply without the client subnet's address, which is to follow.

    *nsid* is what names this server, empty if nothing is to (RFC 5001). *dependent* says that
    the answer depended on where the client is; then the subnet's scope is its source prefix
    (RFC 7871, section 7.2.1). *errors* may be several (RFC 8914, section 2).
    """
    length = 0 if edns.subnet is None else len(edns.subnet.address)
    return _head(edns, wire.NOERROR, length, nsid=nsid, dependent=dependent, errors=errors)


def opt_record(
    edns: Edns,
    *,
    nsid: bytes,
    dependent: bool,
    rcode: int = wire.NOERROR,
    errors: Sequence[Error] = (),
    address: bytes | None = None,
) -> bytes:
    """Return the whole OPT record of a reply.

    *address* stands in place of the client subnet's own, if given.
    """
    if address is None:
        address = b"" if edns.subnet is None else edns.subnet.address
    return _head(edns, rcode, len(address), nsid=nsid, dependent=dependent, errors=errors) + address


def _head(edns: Edns, rcode: int, more: int, *, nsid: bytes, dependent: bool, errors: Sequence[Error]) -> bytes:
    """Return an OPT record that *more* octets of a client subnet's address complete."""
    named = struct.pack("!HH", wire.NSID, len(nsid)) + nsid if edns.nsid and nsid else b""
    options = named + b"".join(map(_error, errors)) + _subnet_head(edns, more, dependent=dependent)
    flags = wire.DO if edns.do else 0
    return struct.pack("!BHHBBHH", 0, wire.OPT, MAX_UDP_REPLY, rcode >> 4, 0, flags, len(options) + more) + options


def _error(error: Error) -> bytes:
    text = error[1].encode()[:MAX_ERROR_TEXT].decode(errors="ignore").encode()
    return struct.pack("!HHH", wire.EXTENDED_ERROR, 2 + len(text), error[0]) + text


def _subnet_head(edns: Edns, length: int, *, dependent: bool) -> bytes:
    subnet = edns.subnet
    if subnet is None:
        return b""
    scope = subnet.source if dependent else 0
    return struct.pack("!HHHBB", wire.CLIENT_SUBNET, 4 + length, subnet.family, subnet.source, scope)


def error_reply(
    query: bytes,
    rcode: int,
    *,
    end: int | None,
    edns: Edns | None,
    nsid: bytes,
    errors: Sequence[Error] = (),
) -> bytes:
    """Return a reply without records: the question where it could be read, an OPT where one was.

    *query* holds at least a header.
    """
    flags = int.from_bytes(query[2:4])
    kept = flags & (wire.OPCODE | wire.RD | wire.CD)
    opt = opt_record(edns, nsid=nsid, dependent=False, rcode=rcode, errors=errors) if edns is not None else b""
    counts = struct.pack("!HHHHH", wire.QR | kept | (rcode & 15), 0 if end is None else 1, 0, 0, 1 if opt else 0)
    return query[:2] + counts + (b"" if end is None else query[wire.HEADER : end]) + opt
