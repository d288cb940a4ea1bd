# SPDX-License-Identifier: Apache-2.0

"""The PROXY protocol, version 2: how a header is read, before a datagram and on a connection."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import dns.message
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.message.proxy_protocol import ProxyHeader, read_header_untrusted
from dnsserver.message.query import Unreadable
from dnsserver.metrics.counters import Counts
from dnsserver.net.connections import Connection
from dnsserver.net.udp import QUERY_SIZE
from locator.ip import parse_address
from tests.kit import api_objects, dns_queries
from tests.kit.dns_queries import ecs, framed, opt, query
from tests.kit.in_memory import CountedResponder, responder_of, snapshot_of
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
from tests.kit.random_queries import Asked, replied
from tests.kit.tcp_server import Here, Peer, here
from tests.kit.this_machine import has_ipv6, lacking
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE
from tests.kit.wire_rows import CLUSTER, FLAGS, FORWARDER, FREE, IN_A, IN_B, MANY, NOWHERE, SERVED, WEB

IN_A_6 = "fd00:1::1"
ZONE_A, ZONE_B = {"10.244.1.1"}, {"10.244.2.1", "10.244.2.2"}
NOBODY: set[str] = set()  # what an unknown client gets of a Service that insists on nearness
PROXIED = {**FLAGS, "proxy-protocol": True}
TEXT = api_objects.listed(CLUSTER)

# Reading

V4, V6 = both_ends(IN_A), both_ends(IN_A_6)
CLIENT_4, CLIENT_6 = parse_address(IN_A), parse_address(IN_A_6)
PATHS = bytes(216)
TLVS = tlv(4) + tlv(3, b"crc!") + tlv(0xEE, bytes(300))

FAMILIES = {
    "unspec": (UNSPEC, b"", b""),
    "inet-stream": (TCP4, V4, CLIENT_4),
    "inet-dgram": (UDP4, V4, CLIENT_4),
    "inet6-stream": (TCP6, V6, CLIENT_6),
    "inet6-dgram": (UDP6, V6, CLIENT_6),
    "unix-stream": (UNIX_STREAM, PATHS, b""),
    "unix-dgram": (UNIX_DGRAM, PATHS, b""),
}
WHOLE = [
    *[(f"proxy-{name}", proxy_header(block, family=family), client)
      for name, (family, block, client) in FAMILIES.items()],
    *[(f"proxy-{name}-and-tlvs", proxy_header(block + TLVS, family=family), client)
      for name, (family, block, client) in FAMILIES.items()],
    *[(f"local-{name}", proxy_header(block, command=LOCAL, family=family), b"")
      for name, (family, block, _) in FAMILIES.items()],
    ("local-of-nothing", proxy_header(command=LOCAL, family=UNSPEC), b""),
    ("local-of-a-family-that-is-none", proxy_header(command=LOCAL, family=0xFF), b""),
    ("local-too-short-for-its-family", proxy_header(b"\1\2\3", command=LOCAL, family=TCP6), b""),
    ("local-of-garbage", proxy_header(b"\xff" * 99, command=LOCAL, family=TCP4), b""),
    ("local-of-65535", proxy_header(b"\xff" * 65535, command=LOCAL, family=UNSPEC), b""),
    ("unspec, what follows is none of ours to read", proxy_header(b"\xff" * 12, family=UNSPEC), b""),
    ("mapped", proxied(f"::ffff:{IN_A}"), CLIENT_4),
    ("mapped-stream", proxied(f"::ffff:{IN_A}", stream=True), CLIENT_4),
    ("any-address", proxied("0.0.0.0"), bytes(4)),
    ("any-address-6", proxied("::"), bytes(16)),
    ("empty-tlvs", proxied(IN_A, tlv(4) * 100), CLIENT_4),
    ("longest-tlv", proxied(IN_A, tlv(0xEE, bytes(65535 - 12 - 3))), CLIENT_4),
    ("as-many-tlvs-as-there-may-be", proxied(IN_A, tlv(4) * ((65535 - 12) // 3)), CLIENT_4),
    ("a-header-in-a-tlv", proxied(IN_A, tlv(0xEE, proxied(IN_B))), CLIENT_4),
]  # fmt: skip
# What is unreadable as soon as it stands there, and what only its end shows.
MALFORMED = [
    *[(f"{name}-one-octet-short", proxy_header(block[:-1], family=family))
      for name, (family, block, _) in FAMILIES.items() if block],
    *[(f"{name}-of-nothing", proxy_header(family=family)) for name, (family, block, _) in FAMILIES.items() if block],
    ("inet6-with-inet-addresses", proxy_header(V4, family=TCP6)),
    ("tlv-of-one-octet", proxied(IN_A, b"\4")),
    ("tlv-of-two-octets", proxied(IN_A, b"\4\0")),
    ("tlv-one-octet-short", proxied(IN_A, tlv(4, b"abc")[:-1])),
    ("second-tlv-cut-off", proxied(IN_A, tlv(4, b"abc") + b"\4")),
    ("tlv-of-65535", proxied(IN_A, b"\4\xff\xff" + bytes(200))),
    ("unix-tlv-cut-off", proxy_header(PATHS + b"\4", family=UNIX_STREAM)),
    ("version-1", proxy_header(V4, command=0x11)),
    ("version-3", proxy_header(V4, command=0x31)),
    ("unknown-command", proxy_header(V4, command=0x22)),
    ("unknown-family", proxy_header(V4, family=0x41)),
    ("unknown-protocol", proxy_header(V4, family=0x13)),
    ("inet-of-no-protocol", proxy_header(V4, family=0x10)),
]  # fmt: skip

each_whole = pytest.mark.parametrize(("data", "client"), [row[1:] for row in WHOLE], ids=[row[0] for row in WHOLE])
each_malformed = pytest.mark.parametrize("header", [row[1] for row in MALFORMED], ids=[row[0] for row in MALFORMED])


@each_whole
def test_a_whole_header(data: bytes, client: bytes) -> None:
    """The result is the client's address (empty if none is named) and the header's size, whatever follows."""
    expected = ProxyHeader(client, len(data))
    for more in (b"", b"\0", query(WEB), data, b"\xff" * 70_000):
        assert read_header_untrusted(data + more) == expected


@each_whole
def test_a_header_that_is_not_whole(data: bytes, client: bytes) -> None:
    """The result is None as long as octets are missing."""
    for size in {*range(min(len(data), 400)), len(data) - 1}:
        assert read_header_untrusted(data[:size]) is None, size


@each_malformed
def test_a_malformed_header(header: bytes) -> None:
    """Malformed: other version, command, family or protocol; too short for its addresses; a TLV cut off."""
    for more in (b"", query(WEB), bytes(70_000)):
        with pytest.raises(Unreadable):
            read_header_untrusted(header + more)


def reads(data: bytes) -> ProxyHeader | type[Unreadable] | None:
    try:
        return read_header_untrusted(data)
    except Unreadable:
        return Unreadable


@pytest.mark.parametrize("at", range(12))
def test_every_octet_of_the_signature_counts(at: int) -> None:
    """With one different octet, it is no header, however little has arrived."""
    for bit in range(8):
        wrong = bytearray(proxied(IN_A))
        wrong[at] ^= 1 << bit
        for size in (at + 1, 12, 16, len(wrong)):
            assert reads(bytes(wrong[: max(size, at + 1)])) is Unreadable


def test_every_version_and_command() -> None:
    """Two of 256 values are valid."""
    found = {number: reads(proxy_header(V4, command=number, family=TCP4)) for number in range(256)}
    assert found == dict.fromkeys(range(256), Unreadable) | {
        0x20: ProxyHeader(b"", 28),
        0x21: ProxyHeader(CLIENT_4, 28),
    }


@pytest.mark.parametrize("command", [PROXY, LOCAL], ids=["proxy", "local"])
def test_every_family_and_protocol(command: int) -> None:
    """Seven of 256 values are valid; LOCAL names nobody, and its family does not matter."""
    named = {UNSPEC: b"", TCP4: CLIENT_4, UDP4: CLIENT_4, UNIX_STREAM: b"", UNIX_DGRAM: b""}
    named |= {TCP6: (CLIENT_4 + bytes(12)), UDP6: (CLIENT_4 + bytes(12))}
    content = CLIENT_4 + bytes(212)
    for family in range(256):
        expected = ProxyHeader(named[family], 16 + 216) if family in named else Unreadable
        if command == LOCAL:
            expected = ProxyHeader(b"", 16 + 216)
        # Zeros are TLVs of no octets; 204 and 180 behind the addresses are whole numbers of them.
        assert reads(proxy_header(content, command=command, family=family)) == expected, hex(family)


steady = settings(max_examples=400)
addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
tlvs = st.lists(st.builds(tlv, st.integers(0, 255), st.binary(max_size=30)), max_size=4).map(b"".join)


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Return a valid header, and the client that it names."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return proxy_header(draw(st.binary(max_size=50)), command=LOCAL, family=draw(st.integers(0, 255))), b""
    if kind == 1:
        return proxy_header(draw(st.binary(min_size=216, max_size=216)) + draw(tlvs), family=UNIX_DGRAM), b""
    client = draw(addresses)
    named = parse_address(str(client))
    return proxied(str(client), draw(tlvs), stream=draw(st.booleans())), named


@steady
@given(header=headers(), more=st.binary(max_size=40))
def test_a_valid_header_is_read_whatever_stands_behind_it(header: tuple[bytes, bytes], more: bytes) -> None:
    """Any addresses and TLVs are read, and only once the last octet has arrived."""
    data, client = header
    assert read_header_untrusted(data + more) == ProxyHeader(client, len(data))
    assert [size for size in range(len(data)) if read_header_untrusted(data[:size]) is not None] == []


@steady
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


# Before a datagram


def answers(reply: bytes | None) -> set[str]:
    assert reply is not None
    return {row.to_text() for rrset in dns.message.from_wire(reply).answer for row in rrset}


SILENCE, NOT_DNS = "silence", "no header, and no query"
BY_ECS = query(WEB, edns=opt(ecs(IN_B)))
PADDED = query(WEB, edns=opt(dns_queries.option(12, bytes(1232 - len(query(WEB)) - 11 - 4))))
WIDEST = query(WEB, edns=opt(dns_queries.option(12, bytes(QUERY_SIZE - 28 - len(query(WEB)) - 11 - 4))))

# What is sent, from where, and what comes back: addresses, silence, or an error since it is neither.
DATAGRAMS: list[tuple[str, bytes, str, set[str] | str]] = [
    ("in-zone-a", proxied(IN_A) + query(WEB), FORWARDER, ZONE_A),
    ("in-zone-b", proxied(IN_B) + query(WEB), FORWARDER, ZONE_B),
    ("by-ipv6", proxied(IN_A_6) + query(WEB), FORWARDER, ZONE_A),
    ("by-ipv6-mapped", proxied(f"::ffff:{IN_B}") + query(WEB), FORWARDER, ZONE_B),
    ("client-by-tcp", proxied(IN_A, stream=True) + query(WEB), FORWARDER, ZONE_A),
    ("pod-cidr", proxied("10.244.2.77") + query(WEB), FORWARDER, ZONE_B),
    ("tlvs", proxied(IN_A, TLVS) + query(WEB), FORWARDER, ZONE_A),
    ("an-unknown-client-behind-it", proxied(NOWHERE) + query(WEB), FORWARDER, NOBODY),
    ("before-ecs", proxied(IN_A) + BY_ECS, FORWARDER, ZONE_A),
    ("local", proxy_header(command=LOCAL) + query(WEB), FORWARDER, NOBODY),
    ("local-with-addresses", proxy_header(V4, command=LOCAL) + query(WEB), FORWARDER, NOBODY),
    ("unspec", proxy_header(family=UNSPEC) + query(WEB), FORWARDER, NOBODY),
    ("unix", proxy_header(PATHS, family=UNIX_DGRAM) + query(WEB), FORWARDER, NOBODY),
    ("without-a-header", query(WEB), FORWARDER, NOBODY),
    ("without-a-header-by-ecs", BY_ECS, FORWARDER, ZONE_B),
    ("as-long-as-a-query-may-be", proxied(IN_A_6) + PADDED, FORWARDER, ZONE_A),
    ("as-long-as-is-received", proxied(IN_A) + WIDEST, FORWARDER, ZONE_A),
    ("two-headers", proxied(IN_A) + proxied(IN_B) + query(WEB), FORWARDER, NOT_DNS),
    ("nothing-behind-it", proxied(IN_A), FORWARDER, SILENCE),
    ("a-response-behind-it", proxied(IN_A) + query(WEB, flags=0x8000), FORWARDER, SILENCE),
    ("eleven-octets-behind-it", proxied(IN_A) + query(WEB)[:11], FORWARDER, SILENCE),
    ("a-part-of-the-signature", PROXY_SIGNATURE[:11], FORWARDER, SILENCE),
    ("an-untrusted-sources", proxied(IN_A) + query(WEB), IN_B, NOT_DNS),
    ("an-unknown-sources", proxied(IN_A) + query(WEB), NOWHERE, NOT_DNS),
    ("an-untrusted-sources-local", proxy_header(command=LOCAL) + query(WEB), IN_B, NOT_DNS),
    ("an-untrusted-sources-malformed", proxy_header(V4, family=0x41) + query(WEB), IN_B, NOT_DNS),
    ("an-untrusted-sources-signature", PROXY_SIGNATURE, IN_B, NOT_DNS),
    ("an-untrusted-source-without", query(WEB), IN_B, ZONE_B),
]  # fmt: skip
BROKEN = [(f"malformed-{name}", header + query(WEB), FORWARDER, SILENCE) for name, header in MALFORMED]
BROKEN += [
    ("malformed-signature-alone", PROXY_SIGNATURE, FORWARDER, SILENCE),
    ("malformed-not-whole", proxied(IN_A)[:-1], FORWARDER, SILENCE),
    ("malformed-longer-than-the-datagram", proxy_header(V4, size=500) + query(WEB), FORWARDER, SILENCE),
]
each_datagram = pytest.mark.parametrize(
    ("name", "wire", "source", "expected"), [*DATAGRAMS, *BROKEN], ids=[row[0] for row in (*DATAGRAMS, *BROKEN)]
)


def assert_reply(reply: bytes | None, expected: set[str] | str) -> None:
    if expected == SILENCE:
        assert reply is None
    elif expected == NOT_DNS:
        assert reply is not None and reply[3] & 15 in (1, 4) and reply[6:12] == bytes(6)
    else:
        assert answers(reply) == expected


@each_datagram
def test_datagrams(name: str, wire: bytes, source: str, expected: set[str] | str) -> None:
    """Uncached, cached and computed replies are alike; dropped queries and malformed headers are counted."""
    responder = responder_of(TEXT, PROXIED)
    counts = responder.counts
    for number in range(1, 4):
        assert_reply(replied(responder, Asked(wire, source, "udp")), expected)
        assert counts.silent == (number if expected == SILENCE else 0)
        assert counts.malformed_headers == ({"udp": number} if name.startswith("malformed") else {})
    for client, found in ((IN_B, ZONE_B), (IN_A, ZONE_A)):  # nothing of it stays
        assert answers(replied(responder, Asked(query(WEB), client, "udp"))) == found
    assert_reply(replied(responder, Asked(wire, source, "udp"), compute=True), expected)


@each_datagram
def test_datagrams_by_sockets(server: Server, name: str, wire: bytes, source: str, expected: set[str] | str) -> None:
    """A real server does the same, and answers the next query after one that it dropped."""
    before = server.metrics()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((source, 0))
        sock.settimeout(PATIENCE)
        sock.connect((server.host, server.port))
        sock.send(wire)
        reply = sock.recv(4096) if expected != SILENCE else None
        assert_reply(reply, expected)
        sock.send(query(FREE, number=77))
        assert sock.recv(4096)[:2] == (77).to_bytes(2)
    after = server.metrics()

    def moved(*key: str) -> float:
        return after.get(key, 0) - before.get(key, 0)

    assert moved("topodns_silent_total") == (expected == SILENCE)
    assert moved("topodns_malformed_proxy_headers_total", "udp") == name.startswith("malformed")
    assert moved("topodns_malformed_proxy_headers_total", "tcp") == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that reads headers, shared by tests."""
    flags = {**PROXIED, "http": "127.0.0.1:0"}
    with serving(tmp_path_factory.mktemp("proxied"), TEXT, flags=flags) as server:
        yield server
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.parametrize("source", [FORWARDER, IN_B, NOWHERE])
def test_without_the_flag_a_header_is_none(source: str) -> None:
    """Without the flag, the octets are read as DNS, and the address in them names nobody."""
    responder = responder_of(TEXT, FLAGS)
    for wire in (proxied(IN_A) + query(WEB), proxy_header(V4, family=0x41), PROXY_SIGNATURE):
        for compute in (False, True):
            reply = replied(responder, Asked(wire, source, "udp"), compute=compute)
            assert_reply(reply, NOT_DNS)
    assert not responder.may_send_proxy_header(parse_address(source))
    assert responder.counts.malformed_headers == {} and responder.counts.silent == 0


@pytest.mark.parametrize("source", [FORWARDER, IN_B, NOWHERE])
def test_before_the_first_snapshot_everybody_gets_servfail(source: str) -> None:
    """Nobody is known to be untrusted yet: SERVFAIL goes to the query after the header."""
    responder = CountedResponder(PROXIED)
    for header in (proxied(IN_A), proxy_header(command=LOCAL), b""):
        for compute in (False, True):
            wire = query(WEB, number=7, edns=opt())
            reply = replied(responder, Asked(wire, source, "udp", header), compute=compute)
            assert reply is not None
            assert (reply[:2], reply[3] & 15, reply[12 : len(wire) - 11]) == (b"\0\7", 2, wire[12:-11])
    assert replied(responder, Asked(query(WEB), source, "udp", proxy_header(V4, family=0x41))) is None
    assert responder.counts.malformed_headers == {"udp": 1}
    without = replied(CountedResponder(FLAGS), Asked(query(WEB), source, "udp", proxied(IN_A)))
    assert_reply(without, NOT_DNS)


def test_trust_follows_the_cluster() -> None:
    """A source that is no longer a forwarder may not send a header any more."""
    responder = responder_of(TEXT, PROXIED)
    wire = proxied(IN_A) + query(WEB)
    assert answers(replied(responder, Asked(wire, FORWARDER, "udp"))) == ZONE_A
    responder.publish(snapshot_of(TEXT, {**PROXIED, "forwarder-service": "off"}))
    assert_reply(replied(responder, Asked(wire, FORWARDER, "udp")), NOT_DNS)


# By IPv6


@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
@pytest.mark.parametrize("source", ["::1", "127.0.0.1"], ids=["ipv6", "ipv4-mapped"])
def test_a_forwarder_by_ipv6(dual: Server, source: str, tcp: bool) -> None:
    """On a dual-stack listener, forwarders and clients may be of either family."""
    for client, expected in ((IN_A_6, ZONE_A), (IN_B, ZONE_B), (f"::ffff:{IN_B}", ZONE_B), (NOWHERE, NOBODY)):
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect((source, dual.port))
            wire = query(WEB, edns=opt())
            sock.sendall(proxied(client) + (framed(wire) if tcp else wire))
            if tcp:
                with sock.makefile("rb") as file:
                    reply = file.read(int.from_bytes(file.read(2)))
            else:
                reply = sock.recv(4096)
        assert answers(reply) == expected


@pytest.fixture(scope="module")
def dual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server at [::] that also accepts IPv4 and trusts loopback."""
    if not has_ipv6():
        lacking("there is no IPv6 here")
    flags = {**PROXIED, "listen": ["[::]:0"], "trusted-forwarder": ["::1/128", "127.0.0.1/32"]}
    with serving(tmp_path_factory.mktemp("dual"), TEXT, flags=flags) as server:
        yield server


# At the head of a connection

CLIENTS = [(IN_A, ZONE_A), (IN_B, ZONE_B), (NOWHERE, NOBODY)]


def trusting(flags: dict[str, Any] | None = None) -> Callable[[Callable[[Here], Awaitable[None]]], None]:
    """Run a test with a server that reads headers, in virtual time."""
    return here(made=lambda: responder_of(TEXT, PROXIED if flags is None else flags))


@asynccontextmanager
async def connected(server: Here, source: str = FORWARDER) -> AsyncIterator[Peer]:
    async with await trio.open_tcp_stream("127.0.0.1", server.port, local_address=source) as stream:
        yield Peer(stream)


async def all_read() -> None:
    """Wait until the server has read and handled all that was sent."""
    await trio.testing.wait_all_tasks_blocked(0.01)


async def asked(peer: Peer, *wires: bytes) -> list[set[str]]:
    await peer.send(*wires)
    return [answers(await peer.read()) for _ in wires]


async def ended(peer: Peer) -> bool:
    """Whether the connection ends without another octet."""
    with suppress(trio.BrokenResourceError):
        return await peer.read() == b""
    return True


def test_a_header_may_end_anywhere() -> None:
    """The first segment may hold any part of the header and of what follows."""

    @trusting()
    async def _(server: Here) -> None:
        whole = proxied(IN_A, tlv(4, b"ab")) + framed(query(WEB, number=1)) + framed(query(WEB, number=2))
        for cut in range(1, len(whole)):
            async with connected(server) as peer:
                await peer.stream.send_all(whole[:cut])
                await all_read()
                await peer.stream.send_all(whole[cut:])
                assert [answers(await peer.read()) for _ in range(2)] == [ZONE_A] * 2, cut
        assert server.counts.malformed_headers == {} and server.counts.unnamed_clients.numbers == {}


@pytest.mark.parametrize("step", [1, 7])
def test_a_header_may_come_octet_by_octet(step: int) -> None:
    """The header may arrive in any pieces, as a message may."""

    @trusting()
    async def _(server: Here) -> None:
        whole = proxied(IN_A_6, tlv(4)) + framed(query(WEB))
        async with connected(server) as peer:
            for at in range(0, len(whole), step):
                await peer.stream.send_all(whole[at : at + step])
                await trio.testing.wait_all_tasks_blocked()
            assert answers(await peer.read()) == ZONE_A


@pytest.mark.parametrize(("client", "expected"), CLIENTS)
def test_every_query_of_a_connection_has_the_client_of_its_head(client: str, expected: set[str]) -> None:
    """The header names the client of all queries, whatever their options say."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer, connected(server) as other:
            assert await asked(other, query(WEB, edns=opt(ecs(IN_B)))) == [ZONE_B]
            wires = [query(WEB, number=number) for number in range(200)]
            await peer.stream.send_all(proxied(client) + b"".join(map(framed, wires)))
            assert [answers(await peer.read()) for _ in wires] == [expected] * 200
            assert await asked(peer, query(WEB), BY_ECS) == [expected] * 2
            assert await asked(other, query(WEB, edns=opt(ecs(IN_B)))) == [ZONE_B]
            await trio.sleep(20)
            assert await asked(peer, BY_ECS, query(WEB)) == [expected] * 2
        assert server.counts.unnamed_clients.numbers == {}


def test_a_header_in_the_middle_of_a_connection_is_none() -> None:
    """It is a message of 3,338 octets that cannot be read; the client stays the same."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            await peer.stream.send_all(proxied(IN_A))
            assert await asked(peer, query(WEB)) == [ZONE_A]
            await peer.stream.send_all(proxied(IN_B).ljust(2 + 0x0D0A, b"\0"))
            assert (await peer.read())[:4] == b"\r\n\x80\1"
            assert await asked(peer, query(WEB)) == [ZONE_A]
            await peer.stream.send_all(proxied(IN_B) + framed(query(WEB)))
            await trio.sleep(4)
            assert await peer.silent()
            assert await ended(peer)
        assert server.counts.malformed_headers == {}


def test_a_header_in_a_message_is_none() -> None:
    """Over TCP a header comes before all messages; inside a message it is no query, and names nobody."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as plain, connected(server) as headed:
            await headed.stream.send_all(proxied(IN_B))
            for peer, own in ((plain, NOBODY), (headed, ZONE_B)):
                for header in (proxied(IN_A), proxy_header(command=LOCAL), proxy_header(V4, family=0x41)):
                    await peer.send(header + query(WEB))
                    assert_reply(await peer.read(), NOT_DNS)
                    assert await asked(peer, query(WEB)) == [own]
        assert server.counts.malformed_headers == {}


def test_two_headers_at_the_head_are_one() -> None:
    """The second one is read as DNS."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            await peer.stream.send_all(proxied(IN_A) + proxied(IN_B).ljust(2 + 0x0D0A, b"\0"))
            assert (await peer.read())[:4] == b"\r\n\x80\1"
            assert await asked(peer, query(WEB)) == [ZONE_A]


@pytest.mark.parametrize("source", [IN_B, NOWHERE])
@pytest.mark.parametrize(
    "header",
    [proxied(IN_A), proxy_header(command=LOCAL), proxy_header(V4, family=0x41)],
    ids=["whole", "local", "malformed"],
)
def test_an_untrusted_sources_header_is_none(source: str, header: bytes) -> None:
    """An untrusted source's header is read as DNS; the source address counts."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server, source) as peer:
            await peer.stream.send_all(header.ljust(2 + 0x0D0A, b"\0"))
            assert (await peer.read())[:4] == b"\r\n\x80\1"
            assert await asked(peer, query(WEB), BY_ECS) == [ZONE_B if source == IN_B else NOBODY] * 2
        assert server.counts.malformed_headers == {} and server.counts.unnamed_clients.numbers == {}


def test_without_the_flag_a_header_at_the_head_is_none() -> None:
    """Without the flag, a forwarder's header is read as DNS, too."""

    @trusting(FLAGS)
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            await peer.stream.send_all(proxied(IN_A).ljust(2 + 0x0D0A, b"\0"))
            assert (await peer.read())[:4] == b"\r\n\x80\1"
            assert await asked(peer, query(WEB), BY_ECS) == [NOBODY, ZONE_B]


@each_malformed
def test_a_malformed_header_ends_its_connection(header: bytes) -> None:
    """At once, without a reply, and counted; other connections of the forwarder go on."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as other:
            await other.stream.send_all(proxied(IN_A))
            assert await asked(other, query(WEB)) == [ZONE_A]
            began = trio.current_time()
            for number, more in enumerate((b"", framed(query(WEB)), framed(query(WEB)) * 100), 1):
                async with connected(server) as peer:
                    await peer.stream.send_all(header + more)
                    assert await ended(peer)
                assert server.counts.malformed_headers == {"tcp": number}
            assert trio.current_time() - began < 1 and server.counts.connections == 1
            assert await asked(other, query(WEB)) == [ZONE_A]
        assert server.counts.failures == {}


@pytest.mark.parametrize("size", [1, 2, 11, 12, 13, 15, 16, 20, 27])
def test_a_header_must_be_whole_within_five_seconds(size: int) -> None:
    """As a message must; a header that is cut off is not counted as malformed."""

    class Turns(trio.abc.Instrument):
        number = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.number += task.name.endswith("_converse")

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as stalled, connected(server) as other:
            await stalled.stream.send_all(proxied(IN_A)[:size])
            await all_read()
            turns = Turns()
            trio.lowlevel.add_instrument(turns)
            await trio.sleep(4.5)
            assert await stalled.silent() and turns.number == 0
            trio.lowlevel.remove_instrument(turns)
            await other.stream.send_all(proxied(IN_B))
            assert await asked(other, query(WEB)) == [ZONE_B]
            began = trio.current_time()
            assert await ended(stalled)
            assert trio.current_time() - began == pytest.approx(0.5, abs=0.2)
            assert await asked(other, query(WEB)) == [ZONE_B]
        assert server.counts.malformed_headers == {}


def test_a_header_that_trickles_is_cut_off_too() -> None:
    """The time is that of the whole header, not of each octet."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            began = trio.current_time()
            with suppress(trio.BrokenResourceError):
                for octet in proxied(IN_A) + framed(query(WEB)):
                    await peer.stream.send_all(bytes((octet,)))
                    await trio.sleep(0.4)
            assert 5 <= trio.current_time() - began < 6.5


def test_a_header_alone_is_no_message_that_has_begun() -> None:
    """A connection that is opened ahead of queries is idle after its header."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as used, connected(server) as unused:
            began = trio.current_time()
            for peer in (used, unused):
                await peer.stream.send_all(proxied(IN_A))
            await trio.sleep(25)
            assert await asked(used, query(WEB)) == [ZONE_A]
            assert await ended(unused)
            assert trio.current_time() - began == pytest.approx(30, abs=0.5)
            assert await ended(used)
            assert trio.current_time() - began == pytest.approx(55, abs=0.5)


def test_a_part_of_a_header_is_no_message() -> None:
    """The header's first octets are not taken for a message's length of 3,338."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours, parse_address(FORWARDER), Counts().channels["tcp", 1])
        header = proxied(IN_A, tlv(0xEE, bytes(9000)))
        for piece in (header[:4], header[4:6000], header[6000:-1]):
            theirs.sendall(piece)
            connection.receive()
            connection.take_header()
            assert not connection.header_done and not connection.has_whole_message()
        theirs.sendall(header[-1:] + framed(b"x"))
        connection.receive()
        connection.take_header()
        assert (connection.header_done, connection.client, connection.received) == (True, CLIENT_4, framed(b"x"))
        assert connection.has_whole_message()


@pytest.mark.parametrize(("client", "expected"), CLIENTS)
@pytest.mark.parametrize("pieces", [1, 5])
def test_the_longest_header(client: str, expected: set[str], pieces: int) -> None:
    """65,535 octets of addresses and TLVs, more than one read."""

    @trusting()
    async def _(server: Here) -> None:
        header = proxied(client, tlv(0xEE, bytes(30_000)) + tlv(0xEE, bytes(65_535 - 12 - 30_006)), stream=True)
        assert len(header) == 16 + 65_535
        whole = header + framed(query(WEB)) * 3
        async with connected(server) as peer:
            size = -(-len(whole) // pieces)
            for at in range(0, len(whole), size):
                await peer.stream.send_all(whole[at : at + size])
                await all_read()
            assert [answers(await peer.read()) for _ in range(3)] == [expected] * 3
            assert await asked(peer, query(WEB)) == [expected]


@pytest.mark.parametrize(
    "header",
    [proxy_header(command=LOCAL, family=UNSPEC), proxy_header(V4, command=LOCAL, family=TCP4),
     proxy_header(family=UNSPEC), proxy_header(PATHS, family=UNIX_STREAM)],
    ids=["local", "local with addresses", "unspec", "unix"],
)  # fmt: skip
def test_a_connection_that_is_nobodys(header: bytes) -> None:
    """If the header names nobody, its queries have an unknown client, whatever their options say.

    Each is counted for its forwarder.
    """

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            await peer.stream.send_all(header)
            assert await asked(peer, query(WEB), BY_ECS, query(WEB)) == [NOBODY] * 3
            assert answers_of_free(await one(peer, query(FREE)))
        assert server.counts.unnamed_clients.numbers == {FORWARDER: 4}
        assert server.counts.malformed_headers == {}


async def one(peer: Peer, wire: bytes) -> bytes:
    await peer.send(wire)
    return await peer.read()


def answers_of_free(reply: bytes) -> bool:
    return answers(reply) == {"10.244.1.9", "10.244.2.9"}


def test_a_forwarder_may_do_without_a_header() -> None:
    """Without a header, ECS names the client, query by query."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as plain, connected(server) as headed:
            await headed.stream.send_all(proxied(IN_A))
            for _ in range(2):
                wires = [query(WEB, edns=opt(ecs(each))) for each in (IN_A, IN_B, NOWHERE)]
                assert await asked(plain, *wires, query(WEB)) == [ZONE_A, ZONE_B, NOBODY, NOBODY]
                assert await asked(headed, *wires, query(WEB)) == [ZONE_A] * 4
        assert server.counts.unnamed_clients.numbers == {FORWARDER: 2}


def test_a_message_may_begin_as_a_header_does() -> None:
    """A message of 3,338 octets begins with the signature's first two, and is read whole."""

    @trusting()
    async def _(server: Here) -> None:
        wire = query(WEB, number=0x0D0B, edns=opt(ecs(IN_B), dns_queries.option(12, b"")))
        wire = query(WEB, number=0x0D0B, edns=opt(ecs(IN_B), dns_queries.option(12, bytes(0x0D0A - len(wire)))))
        for cut in (1, 2, 3):
            async with connected(server) as peer:
                await peer.stream.send_all(framed(wire)[:cut])
                await all_read()
                await peer.stream.send_all(framed(wire)[cut:] + framed(query(FREE)))
                assert answers(await peer.read()) == ZONE_B
                assert answers_of_free(await peer.read())


@pytest.mark.parametrize(
    ("sent", "replies"),
    [(proxied(IN_A) + framed(query(WEB)) * 3, 3), (proxied(IN_A), 0), (proxied(IN_A)[:-1], 0), (PROXY_SIGNATURE[:2], 0),
     (proxied(IN_A) + framed(query(WEB)) + framed(query(WEB))[:9], 1)],
    ids=["queries", "header", "part of a header", "part of a signature", "part of a query"],
)  # fmt: skip
def test_who_has_sent_all_may_stop_writing(sent: bytes, replies: int) -> None:
    """After a half-close, queries are answered, then the connection ends."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            began = trio.current_time()
            await peer.stream.send_all(sent)
            await peer.stream.send_eof()
            assert [answers(await peer.read()) for _ in range(replies)] == [ZONE_A] * replies
            assert await ended(peer) and trio.current_time() - began < 1
        assert server.counts.connections == 0 and server.counts.malformed_headers == {}


def test_what_waits_is_answered_behind_a_header() -> None:
    """A query that waits for an upstream does not hold up later ones."""

    flags = {**PROXIED, "upstream": "127.0.0.1"}

    @trusting(flags)
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            await peer.stream.send_all(proxied(IN_B))
            await peer.send(query(f"outside.{SERVED}", number=1), query(WEB, number=2))
            assert answers(await peer.read()) == ZONE_B
            assert await peer.silent()
            server.upstream.tell("www.example.com")
            assert "192.0.2.1" in answers(await peer.read())
            assert await asked(peer, query(WEB)) == [ZONE_B]


def test_large_replies_behind_a_header_are_whole() -> None:
    """A header does not change the size of replies."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            await peer.stream.send_all(proxied(IN_A) + framed(query(MANY)) * 50)
            assert [len(answers(await peer.read())) for _ in range(50)] == [250] * 50


def test_the_place_of_a_connections_client_follows_the_cluster() -> None:
    """The header's address counts for the whole connection; its place follows the cluster."""
    moved = [
        api_objects.node("node-a", {api_objects.ZONE: "b"}, addresses=[IN_A])
        if item["metadata"]["name"] == "node-a"
        else item
        for item in CLUSTER
    ]
    gone = [item for item in CLUSTER if item["metadata"]["name"] != "node-a"]

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            await peer.stream.send_all(proxied(IN_A))
            for cluster, expected in ((CLUSTER, ZONE_A), (moved, ZONE_A | ZONE_B), (gone, NOBODY), (CLUSTER, ZONE_A)):
                server.responder.publish(snapshot_of(api_objects.listed(cluster), PROXIED))
                assert await asked(peer, query(WEB), query(WEB)) == [expected] * 2


def test_trust_in_a_connections_header_follows_the_cluster() -> None:
    """If a source is no longer a forwarder, its own address counts, on open connections, too."""

    @trusting()
    async def _(server: Here) -> None:
        untrusted = snapshot_of(TEXT, {**PROXIED, "forwarder-service": "off"})
        trusted = snapshot_of(TEXT, PROXIED)
        async with connected(server) as peer:
            await peer.stream.send_all(proxied(IN_B))
            for snapshot, expected in ((trusted, ZONE_B), (untrusted, ZONE_A), (trusted, ZONE_B)):
                server.responder.publish(snapshot)  # the forwarder itself is in zone a
                assert await asked(peer, query(WEB), query(WEB)) == [expected] * 2


@pytest.mark.parametrize(("source", "then"), [(FORWARDER, ZONE_A), (IN_B, ZONE_B), (NOWHERE, NOBODY)])
def test_a_connection_from_before_the_first_snapshot(source: str, then: set[str]) -> None:
    """Any header is accepted and SERVFAIL returned; after the first snapshot, only forwarders' count."""

    @here(made=lambda: CountedResponder(PROXIED))
    async def _(server: Here) -> None:
        async with connected(server, source) as peer:
            await peer.stream.send_all(proxied(IN_A) + framed(query(WEB, number=5)))
            reply = await peer.read()
            assert (reply[:2], reply[3] & 15) == (b"\0\5", 2)
            server.responder.publish(snapshot_of(TEXT, PROXIED))
            assert await asked(peer, query(WEB), query(WEB)) == [then] * 2


@pytest.mark.parametrize("begun", [0, 5, 20, 28], ids=["nothing", "signature", "header", "whole header"])
def test_a_server_that_ends_waits_for_a_header_that_has_begun(begun: int) -> None:
    """As for a message; a connection with nothing begun ends at once."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            whole = proxied(IN_A) + framed(query(WEB))
            await peer.stream.send_all(whole[:begun])
            await all_read()
            server.tcp.drain()
            if 0 < begun < 28:
                await peer.stream.send_all(whole[begun:])
                assert answers(await peer.read()) == ZONE_A
            assert await ended(peer)
            assert server.tcp.connections.ended.is_set()


def test_headers_over_real_connections(server: Server) -> None:
    """A real process reads headers in pieces, and counts a malformed one."""
    before = server.metrics()

    def exchanged(*pieces: bytes, replies: int = 1) -> list[bytes]:
        with socket.create_connection((server.host, server.port), PATIENCE, (FORWARDER, 0)) as sock:
            for piece in pieces:
                sock.sendall(piece)
            with sock.makefile("rb") as file:
                return [file.read(int.from_bytes(file.read(2))) for _ in range(replies)]

    wire = framed(query(WEB))
    assert answers(exchanged(proxied(IN_A) + wire)[0]) == ZONE_A
    assert [answers(each) for each in exchanged(proxied(IN_B), wire, wire, replies=2)] == [ZONE_B] * 2
    assert answers(exchanged(*(struct.pack("B", octet) for octet in proxied(IN_A_6) + wire))[0]) == ZONE_A
    assert exchanged(proxy_header(V4, family=0x41)) == [b""]
    after = server.metrics()
    key = ("topodns_malformed_proxy_headers_total", "tcp")
    assert after[key] - before.get(key, 0) == 1


def test_rows_have_names_of_their_own() -> None:
    """Each row has its own id."""
    for rows in (WHOLE, MALFORMED, [*DATAGRAMS, *BROKEN]):
        names: Sequence[str] = [row[0] for row in rows]
        assert len(set(names)) == len(names)
