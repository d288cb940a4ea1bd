# SPDX-License-Identifier: Apache-2.0

"""The header of the PROXY protocol, version 2: how it is read (its specification, section 2.2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnsserver.message.proxy_protocol import ProxyHeader, read_header_untrusted
from dnsserver.message.query import Unreadable
from locator.ip import parse_address
from tests.kit.dns_queries import query
from tests.kit.proxy_headers import (
    LOCAL,
    PROXY,
    PROXY_SIGNATURE,
    TCP4,
    TCP6,
    UDP4,
    UDP6,
    UNIX_DGRAM,
    UNIX_STREAM,
    UNSPEC,
    both_ends,
    proxied,
    proxy_header,
    tlv,
)

FOUR, SIX = "127.0.1.1", "fd00:1::1"
PACKED, PACKED_6 = parse_address(FOUR), parse_address(SIX)
V4, V6, PATHS = both_ends(FOUR), both_ends(SIX), bytes(216)
# Each valid family: the shortest content of its headers, and the client in it.
FAMILIES = {
    **{UNSPEC: (b"", b""), UNIX_STREAM: (PATHS, b""), UNIX_DGRAM: (PATHS, b"")},
    **{TCP4: (V4, PACKED), UDP4: (V4, PACKED), TCP6: (V6, PACKED_6), UDP6: (V6, PACKED_6)},
}

WHOLE = {
    **{f"family {family:#04x}": (proxy_header(content, family=family), client)
       for family, (content, client) in FAMILIES.items()},
    "LOCAL of a family that is none": (proxy_header(command=LOCAL, family=0xFF), b""),
    "LOCAL, too short for its family": (proxy_header(b"\1\2\3", command=LOCAL, family=TCP6), b""),
    "LOCAL of 65535": (proxy_header(b"\xff" * 65535, command=LOCAL, family=TCP4), b""),
    "UNSPEC, what follows is none of ours to read": (proxy_header(b"\xff" * 12, family=UNSPEC), b""),
    "mapped": (proxied(f"::ffff:{FOUR}"), PACKED),
    "TLVs": (proxied(FOUR, tlv(4) + tlv(3, b"crc!") + tlv(0xEE, bytes(300))), PACKED),
    "TLVs of UNIX": (proxy_header(PATHS + tlv(4), family=UNIX_STREAM), b""),
    "longest TLV": (proxied(FOUR, tlv(0xEE, bytes(65535 - 12 - 3))), PACKED),
    "as many TLVs as there may be": (proxied(FOUR, tlv(4) * ((65535 - 12) // 3)), PACKED),
    "a header in a TLV": (proxied(FOUR, tlv(0xEE, proxied("127.0.1.2"))), PACKED),
}  # fmt: skip
# What is unreadable as soon as it stands there, and what only its end shows.
MALFORMED = {
    **{f"family {family:#04x}, one octet short": proxy_header(content[:-1], family=family)
       for family, (content, _) in FAMILIES.items() if content},
    "INET6 with INET addresses": proxy_header(V4, family=TCP6),
    "TLV of one octet": proxied(FOUR, b"\4"),
    "TLV of two octets": proxied(FOUR, b"\4\0"),
    "TLV, one octet short": proxied(FOUR, tlv(4, b"abc")[:-1]),
    "second TLV cut off": proxied(FOUR, tlv(4, b"abc") + b"\4"),
    "UNIX, TLV cut off": proxy_header(PATHS + b"\4", family=UNIX_STREAM),
}  # fmt: skip


def reads(data: bytes) -> ProxyHeader | type[Unreadable] | None:
    try:
        return read_header_untrusted(data)
    except Unreadable:
        return Unreadable


@pytest.mark.parametrize(("data", "client"), WHOLE.values(), ids=WHOLE)
def test_a_whole_header(data: bytes, client: bytes) -> None:
    """The result is the client's address (empty if none is named) and the header's size, whatever follows.

    It is None as long as octets are missing.
    """
    for more in (b"", b"\0", query("web.example"), data):
        assert read_header_untrusted(data + more) == ProxyHeader(client, len(data))
    for size in {*range(min(len(data), 400)), len(data) - 1}:
        assert read_header_untrusted(data[:size]) is None, size


@pytest.mark.parametrize("header", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_header(header: bytes) -> None:
    """Too short for its addresses, or a TLV is cut off."""
    for more in (b"", query("web.example"), bytes(70_000)):
        assert reads(header + more) is Unreadable


@pytest.mark.parametrize("at", range(12))
def test_every_octet_of_the_signature_counts(at: int) -> None:
    """With one different octet, it is no header, however little has arrived."""
    wrong = bytearray(proxied(FOUR))
    wrong[at] ^= 1
    assert [reads(bytes(wrong[:size])) for size in (at + 1, 12, 16, len(wrong)) if size > at] == [Unreadable] * 4


def test_every_version_and_command() -> None:
    """Two of 256 values are valid."""
    found = {number: reads(proxy_header(V4, command=number, family=TCP4)) for number in range(256)}
    valid = {0x20: ProxyHeader(b"", 28), 0x21: ProxyHeader(PACKED, 28)}
    assert found == dict.fromkeys(range(256), Unreadable) | valid


@pytest.mark.parametrize("command", [PROXY, LOCAL], ids=["proxy", "local"])
def test_every_family_and_protocol(command: int) -> None:
    """Seven of 256 values are valid; LOCAL names nobody, and its family does not matter."""
    for family in range(256):
        content, client = FAMILIES.get(family, (V4, b""))
        valid = command == LOCAL or family in FAMILIES
        expected = ProxyHeader(b"" if command == LOCAL else client, 16 + len(content)) if valid else Unreadable
        assert reads(proxy_header(content, command=command, family=family)) == expected, hex(family)


@given(
    data=st.one_of(
        st.binary(max_size=60),
        st.builds(lambda rest: PROXY_SIGNATURE + rest, st.binary(max_size=60)),
        st.builds(
            lambda command, family, size, rest: proxy_header(rest, command=command, family=family, size=size),
            st.sampled_from((LOCAL, PROXY, PROXY, PROXY)),
            st.sampled_from((*FAMILIES, 0x13)),
            st.integers(0, 60),
            st.binary(max_size=60),
        ),
    )
)
def test_any_octets_are_a_header_a_part_of_one_or_unreadable(data: bytes) -> None:
    """No other exception; the size is right; what is unreadable stays so."""
    found = reads(data)
    if isinstance(found, ProxyHeader):
        assert len(found.client) in (0, 4, 16) and 16 <= found.size <= len(data)
        assert reads(data[: found.size]) == reads(data + b"x") == found
    elif found is Unreadable:
        assert reads(data + b"x") is Unreadable
