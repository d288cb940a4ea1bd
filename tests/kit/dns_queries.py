# SPDX-License-Identifier: Apache-2.0

"""DNS queries as octets, valid and malformed ones."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence

RD, CD, AD, QR, TC = 0x0100, 0x0010, 0x0020, 0x8000, 0x0200
TYPES = {
    "A": 1,
    "NS": 2,
    "CNAME": 5,
    "SOA": 6,
    "PTR": 12,
    "MX": 15,
    "TXT": 16,
    "AAAA": 28,
    "SRV": 33,
    "SPF": 99,
    "ANY": 255,
    "AXFR": 252,
}


def encoded(name: str | Sequence[bytes]) -> bytes:
    """Return a name as octets, from its text or its labels."""
    labels = [label.encode() for label in name.split(".") if label] if isinstance(name, str) else name
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


def query(
    name: str | Sequence[bytes],
    qtype: str | int = "A",
    *,
    number: int = 0x1234,
    flags: int = RD,
    edns: bytes = b"",
    qclass: int = 1,
    counts: tuple[int, int, int, int] | None = None,
) -> bytes:
    """Return a query; *edns* is an OPT record, or any other octets after the question."""
    rtype = TYPES[qtype] if isinstance(qtype, str) else qtype
    counts = counts or (1, 0, 0, 1 if edns else 0)
    return struct.pack("!6H", number, flags, *counts) + encoded(name) + struct.pack("!HH", rtype, qclass) + edns


def opt(
    *options: bytes, size: int = 1232, version: int = 0, flags: int = 0, rcode: int = 0, name: bytes = b"\0"
) -> bytes:
    """Return an OPT record."""
    data = b"".join(options)
    return name + struct.pack("!HHBBHH", 41, size, rcode, version, flags, len(data)) + data


def option(code: int, data: bytes = b"") -> bytes:
    return struct.pack("!HH", code, len(data)) + data


def ecs(text: str, *, scope: int = 0) -> bytes:
    """Return a client subnet option for an address or a prefix; ``0`` is family 0 with /0."""
    if text == "0":
        return option(8, bytes((0, 0, 0, scope)))
    network = ipaddress.ip_network(text, strict=False)
    address = network.network_address.packed[: (network.prefixlen + 7) // 8]
    return option(8, struct.pack("!HBB", 1 if network.version == 4 else 2, network.prefixlen, scope) + address)


CLIENT_OPTION = 65001


def framed(message: bytes) -> bytes:
    """Return a message with its length before it, as TCP carries it (RFC 1035, 4.2.2)."""
    return len(message).to_bytes(2) + message
