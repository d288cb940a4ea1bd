"""What a reply says beside its records: how long it may be, its OPT record (RFC 6891), its error."""

from __future__ import annotations

import struct

from dnsserver import wire
from dnsserver.wire import Edns

MAX_UDP_REPLY = 1232  # DNS Flag Day 2020: fits an IPv6 MTU
MIN_UDP_REPLY = 512  # RFC 1035, section 4.2.1
MAX_TCP_REPLY = 65535
MAX_ERROR_TEXT = 200  # octets; RFC 8914 wants it short, and it must fit beside the longest question


def udp_limit(edns: Edns | None) -> int:
    """Return how many octets a UDP reply may have."""
    return MIN_UDP_REPLY if edns is None else max(MIN_UDP_REPLY, min(edns.size, MAX_UDP_REPLY))


def opt_head(edns: Edns, *, nsid: bytes, dependent: bool) -> bytes:
    """Return the OPT record of a reply without the client subnet's address, which is to follow.

    *nsid* is what names this server, empty if nothing is to (RFC 5001). *dependent* says that
    the answer depended on where the client is; then the subnet's scope is its source prefix
    (RFC 7871, section 7.2.1).
    """
    length = 0 if edns.subnet is None else len(edns.subnet.address)
    return _opt(edns, wire.NOERROR, _nsid(edns, nsid) + _subnet_head(edns, length, dependent=dependent), length)


def opt_record(
    edns: Edns,
    *,
    nsid: bytes,
    dependent: bool,
    rcode: int = wire.NOERROR,
    error: tuple[int, str] | None = None,
    address: bytes | None = None,
) -> bytes:
    """Return the whole OPT record of a reply, with an extended error where there is one (RFC 8914).

    *address* stands in place of the client subnet's own, if given.
    """
    if address is None:
        address = b"" if edns.subnet is None else edns.subnet.address
    options = _nsid(edns, nsid) + _subnet_head(edns, len(address), dependent=dependent) + address
    if error is not None:
        text = error[1].encode()[:MAX_ERROR_TEXT].decode(errors="ignore").encode()
        options += struct.pack("!HHH", wire.EXTENDED_ERROR, 2 + len(text), error[0]) + text
    return _opt(edns, rcode, options)


def _opt(edns: Edns, rcode: int, options: bytes, more: int = 0) -> bytes:
    flags = wire.DO if edns.do else 0
    return struct.pack("!BHHBBHH", 0, wire.OPT, MAX_UDP_REPLY, rcode >> 4, 0, flags, len(options) + more) + options


def _nsid(edns: Edns, nsid: bytes) -> bytes:
    return struct.pack("!HH", wire.NSID, len(nsid)) + nsid if edns.nsid and nsid else b""


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
    error: tuple[int, str] | None = None,
) -> bytes:
    """Return a reply without records: the question where it could be read, an OPT where one was.

    *query* holds at least a header.
    """
    flags = int.from_bytes(query[2:4])
    kept = flags & (wire.OPCODE | wire.RD | wire.CD)
    opt = opt_record(edns, nsid=nsid, dependent=False, rcode=rcode, error=error) if edns is not None else b""
    counts = struct.pack("!HHHHH", wire.QR | kept | (rcode & 15), 0 if end is None else 1, 0, 0, 1 if opt else 0)
    return query[:2] + counts + (b"" if end is None else query[wire.HEADER : end]) + opt
