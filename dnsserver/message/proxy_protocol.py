# SPDX-License-Identifier: Apache-2.0

"""Reads PROXY protocol headers, version 2: a forwarder names the client in front of each query or connection.

Source: HAProxy's specification of the PROXY protocol, section 2.2.
"""

from __future__ import annotations

from msgspec import Struct

from dnsserver.message.query import Unreadable
from locator.ip import plain_address

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FIXED = 16  # octets: signature, version and command, family and protocol, length of the rest

_LOCAL, _PROXY = 0x20, 0x21  # version 2 and a command
_UNSPEC = 0x00
# Family and protocol -> octets of an IP address (0 for other families), and octets of the whole address block.
# The client's protocol does not matter: forwarders may convert UDP to TCP and back.
_BLOCKS = {
    _UNSPEC: (0, 0),
    0x11: (4, 12),  # INET: TCP, UDP
    0x12: (4, 12),
    0x21: (16, 36),  # INET6
    0x22: (16, 36),
    0x31: (0, 216),  # UNIX
    0x32: (0, 216),
}
# The headers that forwarders usually send: how they start, their size, and the octets of the client's address, which
# follows. They have no TLVs.
PLAIN_HEADERS = tuple(
    (SIGNATURE + bytes((_PROXY, family, 0, block)), FIXED + block, octets)
    for family, (octets, block) in _BLOCKS.items()
    if octets
)
_TLV_HEAD = 3  # octets: a type and a length


class ProxyHeader(Struct, frozen=True):
    """A complete header: the packed client address, empty if it names no client, and the header's size in octets."""

    client: bytes
    size: int


def read_header_untrusted(data: bytes) -> ProxyHeader | None:
    """Read the header at the start of *data*, or return None if it is incomplete.

    Raises ``Unreadable``, also if the signature is missing. A header with the command LOCAL (the forwarder's own
    query) or a family other than IP names no client. TLVs must be whole, but are not
    used.
    """
    if not data.startswith(SIGNATURE[: len(data)]):
        raise Unreadable("no PROXY header")
    if len(data) < FIXED:
        return None
    command, family, size = data[12], data[13], FIXED + int.from_bytes(data[14:16])
    if command not in (_LOCAL, _PROXY):
        raise Unreadable("a PROXY header of another version or with an unknown command")
    if command == _PROXY and (family not in _BLOCKS or size < FIXED + _BLOCKS[family][1]):
        raise Unreadable("a PROXY header of an unknown family, or too short for its addresses")
    if len(data) < size:
        return None
    if command == _LOCAL or family == _UNSPEC:  # the specification requires to skip the rest unread
        return ProxyHeader(b"", size)
    length, block = _BLOCKS[family]
    _skip_tlvs_untrusted(data[FIXED + block : size])
    return ProxyHeader(plain_address(data[FIXED : FIXED + length]), size)


def _skip_tlvs_untrusted(data: bytes) -> None:
    """Check that the rest of a header is complete TLVs. Raises ``Unreadable``."""
    position = 0
    while position < len(data):
        position += _TLV_HEAD + int.from_bytes(data[position + 1 : position + _TLV_HEAD])
        if position > len(data):
            raise Unreadable("a TLV of a PROXY header is cut off")
