# SPDX-License-Identifier: Apache-2.0

"""The PROXY protocol, version 2, before a datagram and at the head of a connection, of which it names the client."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import dns.message
import pytest
import trio
import trio.testing

from dnsserver.net.udp import QUERY_SIZE
from tests.kit import api_objects
from tests.kit.dns_queries import ecs, framed, opt, option, query
from tests.kit.in_memory import CountedResponder, responder_of, snapshot_of
from tests.kit.proxy_headers import LOCAL, PROXY_SIGNATURE, UNIX_STREAM, UNSPEC, both_ends, proxied, proxy_header, tlv
from tests.kit.random_queries import Asked, replied
from tests.kit.tcp_server import Here, Peer, here
from tests.kit.this_machine import has_ipv6, lacking
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE
from tests.kit.wire_cluster import CLUSTER, FLAGS, FORWARDER, FREE, IN_A, IN_B, NOWHERE, WEB

IN_A_6 = "fd00:1::1"
ZONE_A, ZONE_B = {"10.244.1.1"}, {"10.244.2.1", "10.244.2.2"}
NOBODY: set[str] = set()  # what an unknown client gets of a Service that insists on nearness
PROXIED = {**FLAGS, "proxy-protocol": True}
TEXT = api_objects.listed(CLUSTER)
V4 = both_ends(IN_A)
BY_ECS = query(WEB, edns=opt(ecs(IN_B)))
WRONG = proxy_header(V4, family=0x41)  # unreadable as soon as it stands there
LOST = proxied(IN_A, tlv(4, b"abc")[:-1])  # a TLV that its end shows to be cut off


def answers(reply: bytes | None) -> set[str]:
    assert reply is not None
    return {row.to_text() for rrset in dns.message.from_wire(reply).answer for row in rrset}


def is_error(reply: bytes | None) -> bool:
    """Whether a reply says that what was sent is no query."""
    return reply is not None and reply[3] & 15 in (1, 4) and reply[6:12] == bytes(6)


# Over the sockets of a real server

SILENCE, NOT_DNS, DROPPED = "silence", "no header, and no query", "a malformed header"


def padded(size: int) -> bytes:
    """Return a query of this size."""
    return query(WEB, edns=opt(option(12, bytes(size - len(query(WEB)) - 11 - 4))))


# What is sent, from where, and what comes back: addresses, an error since it is neither, or nothing. Who the client is
# in other cases, test_clients.py says.
DATAGRAMS: list[tuple[bytes, str, set[str] | str]] = [
    (proxied(IN_A) + query(WEB), FORWARDER, ZONE_A),
    (proxied(IN_A, stream=True) + query(WEB), FORWARDER, ZONE_A),
    (proxied(IN_A, tlv(4) + tlv(3, b"crc!") + tlv(0xEE, bytes(300))) + query(WEB), FORWARDER, ZONE_A),
    (query(WEB), FORWARDER, NOBODY),
    (proxied(IN_A_6) + padded(1232), FORWARDER, ZONE_A),  # as long as a query may be
    (proxied(IN_A) + padded(QUERY_SIZE - 28), FORWARDER, ZONE_A),  # as long as what is received
    (proxied(IN_A) + proxied(IN_B) + query(WEB), FORWARDER, NOT_DNS),
    (proxied(IN_A), FORWARDER, SILENCE),
    (proxied(IN_A) + query(WEB, flags=0x8000), FORWARDER, SILENCE),
    (proxied(IN_A) + query(WEB)[:11], FORWARDER, SILENCE),
    (PROXY_SIGNATURE[:11], FORWARDER, SILENCE),
    (proxied(IN_A) + query(WEB), IN_B, NOT_DNS),  # whom nobody trusts
    (WRONG + query(WEB), IN_B, NOT_DNS),
    (PROXY_SIGNATURE, IN_B, NOT_DNS),
    (WRONG + query(WEB), FORWARDER, DROPPED),
    (LOST + query(WEB), FORWARDER, DROPPED),
    (PROXY_SIGNATURE, FORWARDER, DROPPED),
    (proxied(IN_A)[:-1], FORWARDER, DROPPED),
    (proxy_header(V4, size=500) + query(WEB), FORWARDER, DROPPED),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that reads headers, by both families if there are two, shared by tests."""
    listen = ["[::]:0"] if has_ipv6() else ["127.0.0.1:0"]
    flags = {**PROXIED, "listen": listen, "trusted-forwarder": ["::1/128", "127.0.0.1/32"], "http": "127.0.0.1:0"}
    with serving(tmp_path_factory.mktemp("proxied"), TEXT, flags=flags) as server:
        server.host = "127.0.0.1"
        yield server
    assert not any("Traceback" in line for line in server.lines)


def test_datagrams(server: Server) -> None:
    """Each gets the same again, and the next query after one that was dropped is answered; drops are counted."""
    before = server.metrics()
    for wire, source, expected in DATAGRAMS * 2:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((source, 0))
            sock.settimeout(PATIENCE)
            sock.connect((server.host, server.port))
            sock.send(wire)
            if expected not in (SILENCE, DROPPED):
                reply = sock.recv(4096)
                assert is_error(reply) if expected == NOT_DNS else answers(reply) == expected
            sock.send(query(FREE, number=77))
            assert sock.recv(4096)[:2] == (77).to_bytes(2)
    after, expectations = server.metrics(), [row[-1] for row in DATAGRAMS] * 2
    dropped = expectations.count(DROPPED)
    for key, number in (
        (("topodns_silent_total",), expectations.count(SILENCE) + dropped),
        (("topodns_malformed_proxy_headers_total", "udp"), dropped),
        (("topodns_malformed_proxy_headers_total", "tcp"), 0),
    ):
        assert after.get(key, 0) - before.get(key, 0) == number


@pytest.mark.parametrize("source", ["::1", "127.0.0.1"], ids=["ipv6", "ipv4-mapped"])
def test_a_forwarder_by_ipv6(server: Server, source: str) -> None:
    """On a dual-stack listener, forwarders and clients may be of either family, by UDP and TCP."""
    if not has_ipv6():
        lacking("there is no IPv6 here")
    family, wire = socket.AF_INET6 if ":" in source else socket.AF_INET, query(WEB, edns=opt())
    for client, expected in ((IN_A_6, ZONE_A), (IN_B, ZONE_B), (f"::ffff:{IN_B}", ZONE_B), (NOWHERE, NOBODY)):
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect((source, server.port))
            sock.send(proxied(client) + wire)
            assert answers(sock.recv(4096)) == expected
        assert answers(exchanged(server, proxied(client), framed(wire), to=source)) == expected


def exchanged(server: Server, *pieces: bytes, to: str = "127.0.0.1", source: str = "") -> bytes:
    """Send pieces over a connection; return the first reply, empty if there is none."""
    with socket.create_connection((to, server.port), PATIENCE, (source, 0) if source else None) as sock:
        for piece in pieces:
            sock.sendall(piece)
        with sock.makefile("rb") as file:
            return file.read(int.from_bytes(file.read(2)))


def test_headers_over_real_connections(server: Server) -> None:
    """A real process reads headers in pieces, and counts a malformed one."""
    key = ("topodns_malformed_proxy_headers_total", "tcp")
    before, whole = server.metrics().get(key, 0), proxied(IN_B) + framed(query(WEB))
    assert answers(exchanged(server, *[bytes((octet,)) for octet in whole], source=FORWARDER)) == ZONE_B
    assert exchanged(server, WRONG, source=FORWARDER) == b""
    assert server.metrics()[key] - before == 1


@pytest.mark.parametrize("source", [FORWARDER, IN_B, NOWHERE])
def test_before_the_first_snapshot_everybody_gets_servfail(source: str) -> None:
    """Nobody is known to be untrusted yet: SERVFAIL goes to the query after the header."""
    responder, wire = CountedResponder(PROXIED), query(WEB, number=7, edns=opt())
    for header in (proxied(IN_A), proxy_header(command=LOCAL), b""):
        reply = replied(responder, Asked(wire, source, "udp", header))
        assert (reply[:2], reply[3] & 15, reply[12 : len(wire) - 11]) == (b"\0\7", 2, wire[12:-11])
    assert replied(responder, Asked(query(WEB), source, "udp", WRONG)) is None
    assert responder.counts.malformed_headers == {"udp": 1}
    assert is_error(replied(CountedResponder(FLAGS), Asked(query(WEB), source, "udp", proxied(IN_A))))


# At the head of a connection, in virtual time


def trusting(flags: dict[str, Any] | None = None) -> Callable[[Callable[[Here], Awaitable[None]]], None]:
    """Run a test with a server that reads headers."""
    return here(made=lambda: responder_of(TEXT, PROXIED if flags is None else flags))


@asynccontextmanager
async def connected(server: Here, source: str = FORWARDER, sent: bytes = b"") -> AsyncIterator[Peer]:
    """Connect and send some octets, which the server then has read and handled."""
    async with server.connected(source) as peer:
        await peer.stream.send_all(sent)
        await trio.testing.wait_all_tasks_blocked(0.01)
        yield peer


async def asked(peer: Peer, *wires: bytes) -> list[set[str]]:
    await peer.send(*wires)
    return [answers(await peer.read()) for _ in wires]


async def ended(peer: Peer) -> bool:
    """Whether the connection ends without another octet."""
    with suppress(trio.BrokenResourceError):
        return await peer.read() == b""
    return True


# A header where none may be: a message of 3,338 octets that cannot be read.
AS_MESSAGE = [header.ljust(2 + 0x0D0A, b"\0") for header in (proxied(IN_B), proxy_header(command=LOCAL), WRONG)]


def test_a_header_may_end_anywhere() -> None:
    """The first segment may hold any part of the header and of what follows; it may come octet by octet."""

    @trusting()
    async def _(server: Here) -> None:
        whole = proxied(IN_A_6, tlv(4, b"ab")) + framed(query(WEB, number=1)) + framed(query(WEB, number=2))
        async with connected(server) as peer:
            for octet in whole:
                await peer.stream.send_all(bytes((octet,)))
                await trio.testing.wait_all_tasks_blocked()
            assert [answers(await peer.read()) for _ in range(2)] == [ZONE_A] * 2
        for cut in range(1, len(whole)):
            async with connected(server, sent=whole[:cut]) as peer:
                await peer.stream.send_all(whole[cut:])
                assert [answers(await peer.read()) for _ in range(2)] == [ZONE_A] * 2, cut
        assert server.counts.malformed_headers == {} and server.counts.unnamed_clients.numbers == {}


@pytest.mark.parametrize(
    ("header", "expected", "noted"),
    [(proxied(IN_A), ZONE_A, 0), (proxied(NOWHERE), NOBODY, 0), (proxy_header(V4, command=LOCAL), NOBODY, 205),
     (proxy_header(family=UNSPEC), NOBODY, 205), (proxy_header(bytes(216), family=UNIX_STREAM), NOBODY, 205)],
    ids=["in a", "nowhere", "LOCAL with addresses", "UNSPEC", "UNIX"],
)  # fmt: skip
def test_every_query_of_a_connection_has_the_client_of_its_head(header: bytes, expected: set[str], noted: int) -> None:
    """The header names the client of all queries, or nobody, whatever their options say.

    Other connections have their own. A query whose client is nobody is counted for its forwarder.
    """

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer, connected(server) as other:
            assert await asked(other, BY_ECS) == [ZONE_B]
            await peer.stream.send_all(header + framed(query(WEB)) * 200)
            assert [answers(await peer.read()) for _ in range(200)] == [expected] * 200
            assert await asked(peer, query(WEB), BY_ECS) == [expected] * 2
            assert await asked(other, query(WEB, edns=opt(ecs(IN_A))), BY_ECS) == [ZONE_A, ZONE_B]
            await trio.sleep(20)
            assert await asked(peer, BY_ECS, query(WEB)) == [expected] * 2
            assert await asked(peer, query(FREE)) == [{"10.244.1.9", "10.244.2.9"}]
        assert server.counts.unnamed_clients.numbers == ({FORWARDER: noted} if noted else {})
        assert server.counts.malformed_headers == {}


def test_a_header_counts_at_the_head_alone() -> None:
    """Behind the first header, between queries and in a message, it is no query; the client stays the same."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as plain, connected(server, sent=proxied(IN_A)) as headed:
            for peer, own in ((plain, NOBODY), (headed, ZONE_A)):
                for header in (proxied(IN_B), proxy_header(command=LOCAL), WRONG):
                    await peer.send(header + query(WEB))
                    assert is_error(await peer.read())
                    assert await asked(peer, query(WEB)) == [own]
            await headed.stream.send_all(AS_MESSAGE[0])
            assert (await headed.read())[:4] == b"\r\n\x80\1"
            await headed.stream.send_all(proxied(IN_B) + framed(query(WEB)))
            await trio.sleep(4)
            assert await headed.silent() and await ended(headed)
        assert server.counts.malformed_headers == {}


@pytest.mark.parametrize(
    ("source", "flags", "expected"),
    [(IN_B, PROXIED, [ZONE_B, ZONE_B]), (NOWHERE, PROXIED, [NOBODY, NOBODY]), (FORWARDER, FLAGS, [NOBODY, ZONE_B])],
    ids=["untrusted", "unknown", "without-the-flag"],
)
def test_whose_header_is_none(source: str, flags: dict[str, Any], expected: list[set[str]]) -> None:
    """The header of an untrusted source, or any without the flag, is read as DNS; the client is who it was."""

    @trusting(flags)
    async def _(server: Here) -> None:
        for message in AS_MESSAGE:
            async with connected(server, source, message) as peer:
                assert (await peer.read())[:4] == b"\r\n\x80\1"
                assert await asked(peer, query(WEB), BY_ECS) == expected
        assert server.counts.malformed_headers == {}


@pytest.mark.parametrize("header", [WRONG, LOST], ids=["unknown-family", "cut-tlv"])
def test_a_malformed_header_ends_its_connection(header: bytes) -> None:
    """At once, without a reply, and counted; other connections of the forwarder go on."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server, sent=proxied(IN_A)) as other:
            began = trio.current_time()
            for number, more in enumerate((b"", framed(query(WEB)) * 100), 1):
                async with connected(server, sent=header + more) as peer:
                    assert await ended(peer)
                assert server.counts.malformed_headers == {"tcp": number}
            assert trio.current_time() - began < 1 and server.counts.connections == 1
            assert await asked(other, query(WEB)) == [ZONE_A]
        assert server.counts.failures == {}


@pytest.mark.parametrize("size", [1, 15, 26])
def test_a_header_must_be_whole_within_five_seconds(size: int) -> None:
    """As a message must, however it comes; one that is cut off is not counted as malformed, and waits without work."""

    class Turns(trio.abc.Instrument):
        number = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.number += task.name.endswith("_converse")

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server, sent=proxied(IN_A)[:size]) as stalled, connected(server) as other:
            turns = Turns()
            trio.lowlevel.add_instrument(turns)
            await trio.sleep(4.5)
            assert await stalled.silent() and turns.number == 0
            trio.lowlevel.remove_instrument(turns)
            await stalled.stream.send_all(proxied(IN_A)[size : size + 1])
            assert await asked(other, BY_ECS) == [ZONE_B]
            began = trio.current_time()
            assert await ended(stalled)
            assert trio.current_time() - began == pytest.approx(0.5, abs=0.2)
        assert server.counts.malformed_headers == {}


def test_a_header_alone_is_no_message_that_has_begun() -> None:
    """A connection that is opened ahead of queries is idle after its header, for 30 s."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server, sent=proxied(IN_A)) as used, connected(server, sent=proxied(IN_A)) as unused:
            began = trio.current_time()
            await trio.sleep(25)
            assert await asked(used, query(WEB)) == [ZONE_A]
            assert await ended(unused)
            assert trio.current_time() - began == pytest.approx(30, abs=0.5)


def test_the_longest_header() -> None:
    """65,535 octets of addresses and TLVs, more than one read; no part of them is taken for a message."""

    @trusting()
    async def _(server: Here) -> None:
        header = proxied(IN_B, tlv(0xEE, bytes(30_000)) + tlv(0xEE, bytes(65_535 - 12 - 30_006)), stream=True)
        assert len(header) == 16 + 65_535
        whole = header + framed(query(WEB)) * 3
        async with connected(server) as peer:
            for at in range(0, len(whole), 15_000):
                await peer.stream.send_all(whole[at : at + 15_000])
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert [answers(await peer.read()) for _ in range(3)] == [ZONE_B] * 3


def test_a_message_may_begin_as_a_header_does() -> None:
    """A message of 3,338 octets begins with the signature's first two, and is read whole."""

    @trusting()
    async def _(server: Here) -> None:
        wire = query(WEB, number=0x0D0B, edns=opt(ecs(IN_B), option(12)))
        wire = query(WEB, number=0x0D0B, edns=opt(ecs(IN_B), option(12, bytes(0x0D0A - len(wire)))))
        for cut in (1, 2, 3):
            async with connected(server, sent=framed(wire)[:cut]) as peer:
                await peer.stream.send_all(framed(wire)[cut:] + framed(BY_ECS))
                assert [answers(await peer.read()) for _ in range(2)] == [ZONE_B] * 2


def test_the_place_and_the_trust_of_a_connections_client_follow_the_cluster() -> None:
    """The header's address counts for the whole connection; its place follows the cluster.

    If its source is no longer a forwarder, the source's own address counts.
    """
    node_a = next(item for item in CLUSTER if item["metadata"]["name"] == "node-a")
    others = [item for item in CLUSTER if item is not node_a]
    moved = [*others, api_objects.node("node-a", {api_objects.ZONE: "b"}, addresses=[IN_A])]
    untrusted = {**PROXIED, "forwarder-service": "off"}

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server, sent=proxied(IN_A)) as in_a, connected(server, sent=proxied(IN_B)) as in_b:
            for cluster, flags, first, second in (
                (CLUSTER, PROXIED, ZONE_A, ZONE_B),
                (moved, PROXIED, ZONE_A | ZONE_B, ZONE_A | ZONE_B),
                (others, PROXIED, NOBODY, ZONE_B),
                (CLUSTER, untrusted, ZONE_A, ZONE_A),  # the forwarder itself is in zone a
                (CLUSTER, PROXIED, ZONE_A, ZONE_B),
            ):
                server.responder.publish(snapshot_of(api_objects.listed(cluster), flags))
                assert await asked(in_a, query(WEB), query(WEB)) == [first] * 2
                assert await asked(in_b, query(WEB), query(WEB)) == [second] * 2


@pytest.mark.parametrize(("source", "then"), [(FORWARDER, ZONE_A), (IN_B, ZONE_B), (NOWHERE, NOBODY)])
def test_a_connection_from_before_the_first_snapshot(source: str, then: set[str]) -> None:
    """Any header is accepted and SERVFAIL returned; after the first snapshot, only forwarders' count."""

    @here(made=lambda: CountedResponder(PROXIED))
    async def _(server: Here) -> None:
        async with connected(server, source, proxied(IN_A) + framed(query(WEB, number=5))) as peer:
            reply = await peer.read()
            assert (reply[:2], reply[3] & 15) == (b"\0\5", 2)
            server.responder.publish(snapshot_of(TEXT, PROXIED))
            assert await asked(peer, query(WEB), query(WEB)) == [then] * 2


@pytest.mark.parametrize("begun", [0, 5, 20, 28], ids=["nothing", "signature", "header", "whole header"])
def test_a_server_that_ends_waits_for_a_header_that_has_begun(begun: int) -> None:
    """As for a message; a connection with nothing begun ends at once."""

    @trusting()
    async def _(server: Here) -> None:
        whole = proxied(IN_A) + framed(query(WEB))
        async with connected(server, sent=whole[:begun]) as peer:
            server.tcp.drain()
            if 0 < begun < 28:
                await peer.stream.send_all(whole[begun:])
                assert answers(await peer.read()) == ZONE_A
            assert await ended(peer)
            assert server.tcp.connections.ended.is_set()
