# SPDX-License-Identifier: Apache-2.0

"""The size limit of a response, its OPT record (RFC 6891), and responses that only report an error."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from dnsserver.message import wire
from dnsserver.message.query import Edns

UDP_SIZE = 1232  # octets of a datagram, unless configured otherwise. DNS Flag Day 2020: fits an IPv6 MTU
MIN_UDP_REPLY = 512  # RFC 1035, section 4.2.1
MAX_TCP_REPLY = 65535
MAX_ERROR_TEXT = 200  # octets; RFC 8914 asks for short texts, and it must fit beside the longest question

Error = tuple[int, str]  # an extended error (RFC 8914): code and text

_OPT = struct.Struct("!BHHBBHH")  # root, type, UDP size, upper bits of the rcode, version, flags, length of the options
_SUBNET = struct.Struct("!HHHBB")  # code, length, family, source and scope prefix length


def udp_limit(edns: Edns | None, most: int) -> int:
    """Return the maximum size of a UDP response in octets: at *most* so many, whatever the client takes.

    *edns* is the query's, None if it had no OPT record.
    """
    if edns is None or edns.size < MIN_UDP_REPLY:
        return MIN_UDP_REPLY
    return edns.size if edns.size < most else most


def opt_record(
    edns: Edns | None, *, nsid: bytes, dependent: bool, rcode: int = wire.NOERROR, errors: Sequence[Error] = ()
) -> bytes:
    """Return the OPT record of a response; empty without *edns*, the query's.

    *nsid* is this server's name (RFC 5001), empty to send none. *dependent* says whether the answer depends on the
    client's location: the scope of a client subnet, which comes last, is then its source prefix length (RFC 7871,
    section 7.2.1), else 0. A response may carry several *errors* (RFC 8914, section 2).
    """
    if edns is None:
        return b""
    options, subnet = b"", edns.subnet
    if edns.nsid and nsid:
        options = struct.pack("!HH", wire.NSID, len(nsid)) + nsid
    if errors:
        options += b"".join(map(_error, errors))
    if subnet is not None:
        bits = subnet.prefix_length
        size = 4 + len(subnet.address)
        options += _SUBNET.pack(wire.CLIENT_SUBNET, size, subnet.family, bits, bits if dependent else 0)
        options += subnet.address
    flags = wire.DO if edns.do else 0
    return _OPT.pack(0, wire.OPT, UDP_SIZE, rcode >> 4, 0, flags, len(options)) + options


def _error(error: Error) -> bytes:
    text = error[1].encode()[:MAX_ERROR_TEXT].decode(errors="ignore").encode()
    return struct.pack("!HHH", wire.EXTENDED_ERROR, 2 + len(text), error[0]) + text
