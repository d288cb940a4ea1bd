# SPDX-License-Identifier: Apache-2.0

"""The PROXY protocol's header as octets, version 2 (its specification, section 2.2)."""

from __future__ import annotations

import ipaddress
import struct

PROXY_SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
LOCAL, PROXY = 0x20, 0x21
UNSPEC, TCP4, UDP4, TCP6, UDP6, UNIX_STREAM, UNIX_DGRAM = 0x00, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32


def proxy_header(content: bytes = b"", *, command: int = PROXY, family: int = UDP4, size: int | None = None) -> bytes:
    """Return a header with *content* after its fixed part; *size* is the length that it states, if it must be wrong."""
    size = len(content) if size is None else size
    return PROXY_SIGNATURE + bytes((command, family)) + size.to_bytes(2) + content


def both_ends(client: str) -> bytes:
    """Return the addresses of a header: the client's, ours, and both ports."""
    packed = ipaddress.ip_address(client).packed
    return packed + bytes(len(packed)) + struct.pack("!HH", 40000, 53)


def proxied(client: str, more: bytes = b"", *, stream: bool = False) -> bytes:
    """Return the header by which a forwarder names *client*, with *more* (TLVs) after the addresses."""
    families = (TCP6, UDP6) if ":" in client else (TCP4, UDP4)
    return proxy_header(both_ends(client) + more, family=families[not stream])


def tlv(kind: int, data: bytes = b"") -> bytes:
    return struct.pack("!BH", kind, len(data)) + data
