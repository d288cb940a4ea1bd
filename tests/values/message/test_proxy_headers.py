# SPDX-License-Identifier: Apache-2.0

"""The header of the PROXY protocol, version 2: how it is read (its specification, section 2.2)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
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
PACKED = parse_address(FOUR)
V4, V6, PATHS = both_ends(FOUR), both_ends(SIX), bytes(216)
TLVS = tlv(4) + tlv(3, b"crc!") + tlv(0xEE, bytes(300))

# Every valid family: its number, the shortest content of its headers, and the octets of the client's address in that.
FAMILIES = {
    "UNSPEC": (UNSPEC, b"", 0),
    "INET stream": (TCP4, V4, 4),
    "INET dgram": (UDP4, V4, 4),
    "INET6 stream": (TCP6, V6, 16),
    "INET6 dgram": (UDP6, V6, 16),
    "UNIX stream": (UNIX_STREAM, PATHS, 0),
    "UNIX dgram": (UNIX_DGRAM, PATHS, 0),
}
NAMED = {4: PACKED, 16: parse_address(SIX), 0: b""}  # by the octets of an address

WHOLE = {
    **{
        f"{name}{' and TLVs' * bool(more)}": (proxy_header(content + more, family=family), NAMED[octets])
        for name, (family, content, octets) in FAMILIES.items()
        for more in (b"", TLVS)
    },
    **{
        f"LOCAL {name}": (proxy_header(content, command=LOCAL, family=family), b"")
        for name, (family, content, _) in FAMILIES.items()
    },
    "LOCAL of a family that is none": (proxy_header(command=LOCAL, family=0xFF), b""),
    "LOCAL, too short for its family": (proxy_header(b"\1\2\3", command=LOCAL, family=TCP6), b""),
    "LOCAL of garbage": (proxy_header(b"\xff" * 99, command=LOCAL, family=TCP4), b""),
    "LOCAL of 65535": (proxy_header(b"\xff" * 65535, command=LOCAL, family=UNSPEC), b""),
    "UNSPEC, what follows is none of ours to read": (proxy_header(b"\xff" * 12, family=UNSPEC), b""),
    "mapped": (proxied(f"::ffff:{FOUR}"), PACKED),
    "mapped stream": (proxied(f"::ffff:{FOUR}", stream=True), PACKED),
    "any address": (proxied("0.0.0.0"), bytes(4)),
    "any IPv6 address": (proxied("::"), bytes(16)),
    "longest TLV": (proxied(FOUR, tlv(0xEE, bytes(65535 - 12 - 3))), PACKED),
    "as many TLVs as there may be": (proxied(FOUR, tlv(4) * ((65535 - 12) // 3)), PACKED),
    "a header in a TLV": (proxied(FOUR, tlv(0xEE, proxied("127.0.1.2"))), PACKED),
}

# What is unreadable as soon as it stands there, and what only its end shows.
MALFORMED = {
    **{f"{name}, one octet short": proxy_header(content[:-1], family=family)
       for name, (family, content, _) in FAMILIES.items() if content},
    **{f"{name} of nothing": proxy_header(family=family) for name, (family, content, _) in FAMILIES.items() if content},
    "INET6 with INET addresses": proxy_header(V4, family=TCP6),
    "TLV of one octet": proxied(FOUR, b"\4"),
    "TLV of two octets": proxied(FOUR, b"\4\0"),
    "TLV, one octet short": proxied(FOUR, tlv(4, b"abc")[:-1]),
    "second TLV cut off": proxied(FOUR, tlv(4, b"abc") + b"\4"),
    "TLV of 65535": proxied(FOUR, b"\4\xff\xff" + bytes(200)),
    "UNIX, TLV cut off": proxy_header(PATHS + b"\4", family=UNIX_STREAM),
    "version 1": proxy_header(V4, command=0x11),
    "version 3": proxy_header(V4, command=0x31),
    "unknown command": proxy_header(V4, command=0x22),
    "unknown family": proxy_header(V4, family=0x41),
    "unknown protocol": proxy_header(V4, family=0x13),
    "INET of no protocol": proxy_header(V4, family=0x10),
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
    for more in (b"", b"\0", query("web.example"), data, b"\xff" * 70_000):
        assert read_header_untrusted(data + more) == ProxyHeader(client, len(data))
    for size in {*range(min(len(data), 400)), len(data) - 1}:
        assert read_header_untrusted(data[:size]) is None, size


@pytest.mark.parametrize("header", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_header(header: bytes) -> None:
    """Malformed: other version, command, family or protocol; too short for its addresses; a TLV cut off."""
    for more in (b"", query("web.example"), bytes(70_000)):
        assert reads(header + more) is Unreadable


@pytest.mark.parametrize("at", range(12))
def test_every_octet_of_the_signature_counts(at: int) -> None:
    """With one different octet, it is no header, however little has arrived."""
    for bit in range(8):
        wrong = bytearray(proxied(FOUR))
        wrong[at] ^= 1 << bit
        for size in (at + 1, 12, 16, len(wrong)):
            assert reads(bytes(wrong[: max(size, at + 1)])) is Unreadable


def test_every_version_and_command() -> None:
    """Two of 256 values are valid."""
    found = {number: reads(proxy_header(both_ends(FOUR), command=number, family=TCP4)) for number in range(256)}
    valid = {0x20: ProxyHeader(b"", 28), 0x21: ProxyHeader(PACKED, 28)}
    assert found == dict.fromkeys(range(256), Unreadable) | valid


@pytest.mark.parametrize("command", [PROXY, LOCAL], ids=["proxy", "local"])
def test_every_family_and_protocol(command: int) -> None:
    """Seven of 256 values are valid; LOCAL names nobody, and its family does not matter."""
    named = {UNSPEC: b"", TCP4: PACKED, UDP4: PACKED, UNIX_STREAM: b"", UNIX_DGRAM: b""}
    named |= {TCP6: PACKED + bytes(12), UDP6: PACKED + bytes(12)}
    content = PACKED + bytes(212)  # zeros are TLVs of no octets, a whole number of them behind each kind of addresses
    for family in range(256):
        expected = ProxyHeader(named[family], 16 + 216) if family in named else Unreadable
        if command == LOCAL:
            expected = ProxyHeader(b"", 16 + 216)
        assert reads(proxy_header(content, command=command, family=family)) == expected, hex(family)


tlvs = st.lists(st.builds(tlv, st.integers(0, 255), st.binary(max_size=30)), max_size=4).map(b"".join)


@settings(max_examples=200)
@given(
    client=st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str),
    header_tlvs=tlvs,
    stream=st.booleans(),
    more=st.binary(max_size=40),
)
def test_a_valid_header_is_read_whatever_stands_behind_it(
    client: str, header_tlvs: bytes, stream: bool, more: bytes
) -> None:
    """Any addresses and TLVs are read, and only once the last octet has arrived."""
    data = proxied(client, header_tlvs, stream=stream)
    assert read_header_untrusted(data + more) == ProxyHeader(parse_address(client), len(data))
    assert [size for size in range(len(data)) if read_header_untrusted(data[:size]) is not None] == []


@settings(max_examples=400)
@given(
    data=st.one_of(
        st.binary(max_size=60),
        st.builds(lambda rest: PROXY_SIGNATURE + rest, st.binary(max_size=60)),
        st.builds(
            lambda command, family, size, rest: proxy_header(rest, command=command, family=family, size=size),
            st.sampled_from((LOCAL, PROXY, PROXY, PROXY)),
            st.sampled_from((UNSPEC, TCP4, UDP4, TCP6, UDP6, UNIX_DGRAM)),
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
