# SPDX-License-Identifier: Apache-2.0

"""The size limit of a reply, its OPT record (RFC 6891), and replies that only report an error."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from dnsserver.message import wire
from dnsserver.message.wire import Edns

UDP_SIZE = 1232  # octets of a datagram, unless configured otherwise. DNS Flag Day 2020: fits an IPv6 MTU
MIN_UDP_REPLY = 512  # RFC 1035, section 4.2.1
MAX_TCP_REPLY = 65535
MAX_ERROR_TEXT = 200  # octets; RFC 8914 asks for short texts, and it must fit beside the longest question

Error = tuple[int, str]  # an extended error (RFC 8914): code and text


def udp_limit(edns: Edns | None, most: int) -> int:
    """Return the maximum size of a UDP reply in octets: at *most* so many, whatever the client takes.

    *edns* is the query's, None if it had no OPT record.
    """
    return MIN_UDP_REPLY if edns is None else max(MIN_UDP_REPLY, min(edns.size, most))


def opt_head(edns: Edns, *, nsid: bytes, dependent: bool, errors: Sequence[Error] = ()) -> bytes:
    """Return the OPT record of a reply up to the client subnet's address, which the caller appends.

    *nsid* is this server's name (RFC 5001), empty to send none. *dependent* says whether the answer depends on the
    client's location: the subnet's scope is then its source prefix length (RFC 7871, section 7.2.1), else 0. A reply
    may carry several *errors* (RFC 8914, section 2).
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
    """Return the whole OPT record of a reply. See ``opt_head``.

    *address* replaces the address of the query's client subnet if it is not None.
    """
    if address is None:
        address = b"" if edns.subnet is None else edns.subnet.address
    return _head(edns, rcode, len(address), nsid=nsid, dependent=dependent, errors=errors) + address


def _head(edns: Edns, rcode: int, more: int, *, nsid: bytes, dependent: bool, errors: Sequence[Error]) -> bytes:
    """Return an OPT record without the last *more* octets, the address of the client subnet."""
    nsid_option = struct.pack("!HH", wire.NSID, len(nsid)) + nsid if edns.nsid and nsid else b""
    options = nsid_option + b"".join(map(_error, errors)) + _subnet_head(edns, more, dependent=dependent)
    flags = wire.DO if edns.do else 0
    return struct.pack("!BHHBBHH", 0, wire.OPT, UDP_SIZE, rcode >> 4, 0, flags, len(options) + more) + options


def _error(error: Error) -> bytes:
    text = error[1].encode()[:MAX_ERROR_TEXT].decode(errors="ignore").encode()
    return struct.pack("!HHH", wire.EXTENDED_ERROR, 2 + len(text), error[0]) + text


def _subnet_head(edns: Edns, length: int, *, dependent: bool) -> bytes:
    subnet = edns.subnet
    if subnet is None:
        return b""
    scope = subnet.prefix_length if dependent else 0
    return struct.pack("!HHHBB", wire.CLIENT_SUBNET, 4 + length, subnet.family, subnet.prefix_length, scope)


def error_reply(
    query: bytes,
    rcode: int,
    *,
    end: int | None,
    edns: Edns | None,
    nsid: bytes,
    errors: Sequence[Error] = (),
) -> bytes:
    """Return a reply without records, except an OPT record if *edns* is not None.

    *query* holds at least a header. *end* is where its question ends, or None to leave out a question that cannot be
    read.
    """
    flags = int.from_bytes(query[2:4])
    copied = flags & (wire.OPCODE | wire.RD | wire.CD)
    opt = opt_record(edns, nsid=nsid, dependent=False, rcode=rcode, errors=errors) if edns is not None else b""
    counts = struct.pack("!HHHHH", wire.QR | copied | (rcode & 15), 0 if end is None else 1, 0, 0, 1 if opt else 0)
    return query[:2] + counts + (b"" if end is None else query[wire.HEADER : end]) + opt
