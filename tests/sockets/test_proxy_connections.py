# SPDX-License-Identifier: Apache-2.0

"""The PROXY protocol, version 2, at the head of a connection: it names the client of all queries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import dns.message
import pytest
import trio
import trio.testing

from tests.kit import api_objects
from tests.kit.dns_queries import ecs, framed, opt, option, query
from tests.kit.in_memory import CountedResponder, responder_of, snapshot_of
from tests.kit.proxy_headers import LOCAL, PROXY_SIGNATURE, UNIX_STREAM, UNSPEC, both_ends, proxied, proxy_header, tlv
from tests.kit.tcp_server import Here, Peer, here
from tests.kit.wire_cluster import CLUSTER, FLAGS, FORWARDER, FREE, IN_A, IN_B, MANY, NOWHERE, SERVED, WEB

IN_A_6 = "fd00:1::1"
ZONE_A, ZONE_B = {"10.244.1.1"}, {"10.244.2.1", "10.244.2.2"}
NOBODY: set[str] = set()  # what an unknown client gets of a Service that insists on nearness
PROXIED = {**FLAGS, "proxy-protocol": True}
TEXT = api_objects.listed(CLUSTER)
V4 = both_ends(IN_A)
BY_ECS = query(WEB, edns=opt(ecs(IN_B)))
WRONG = proxy_header(V4, family=0x41)  # unreadable as soon as it stands there
LOST = proxied(IN_A, tlv(4, b"abc")[:-1])  # a TLV that its end shows to be cut off


def answers(reply: bytes) -> set[str]:
    return {row.to_text() for rrset in dns.message.from_wire(reply).answer for row in rrset}


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


def is_error(reply: bytes) -> bool:
    """Whether a reply says that what was sent is no query."""
    return reply[3] & 15 in (1, 4) and reply[6:12] == bytes(6)


async def asked(peer: Peer, *wires: bytes) -> list[set[str]]:
    await peer.send(*wires)
    return [answers(await peer.read()) for _ in wires]


async def ended(peer: Peer) -> bool:
    """Whether the connection ends without another octet."""
    with suppress(trio.BrokenResourceError):
        return await peer.read() == b""
    return True


# A header where none may be: a message of 3,338 octets that cannot be read.
AS_MESSAGE = {name: header.ljust(2 + 0x0D0A, b"\0") for name, header in
              {"whole": proxied(IN_B), "LOCAL": proxy_header(command=LOCAL), "malformed": WRONG}.items()}  # fmt: skip


def test_a_header_may_end_anywhere() -> None:
    """The first segment may hold any part of the header and of what follows; it may come octet by octet."""

    @trusting()
    async def _(server: Here) -> None:
        whole = proxied(IN_A_6, tlv(4, b"ab")) + framed(query(WEB, number=1)) + framed(query(WEB, number=2))
        for step in (1, 7):
            async with connected(server) as peer:
                for at in range(0, len(whole), step):
                    await peer.stream.send_all(whole[at : at + step])
                    await trio.testing.wait_all_tasks_blocked()
                assert [answers(await peer.read()) for _ in range(2)] == [ZONE_A] * 2, step
        for cut in range(1, len(whole)):
            async with connected(server) as peer:
                await peer.stream.send_all(whole[:cut])
                await all_read()
                await peer.stream.send_all(whole[cut:])
                assert [answers(await peer.read()) for _ in range(2)] == [ZONE_A] * 2, cut
        assert server.counts.malformed_headers == {} and server.counts.unnamed_clients.numbers == {}


@pytest.mark.parametrize(
    ("header", "expected", "noted"),
    [(proxied(IN_A), ZONE_A, 0), (proxied(IN_B), ZONE_B, 0), (proxied(NOWHERE), NOBODY, 0),
     (proxy_header(command=LOCAL), NOBODY, 205), (proxy_header(V4, command=LOCAL), NOBODY, 205),
     (proxy_header(family=UNSPEC), NOBODY, 205), (proxy_header(bytes(216), family=UNIX_STREAM), NOBODY, 205)],
    ids=["in a", "in b", "nowhere", "LOCAL", "LOCAL with addresses", "UNSPEC", "UNIX"],
)  # fmt: skip
def test_every_query_of_a_connection_has_the_client_of_its_head(header: bytes, expected: set[str], noted: int) -> None:
    """The header names the client of all queries, or nobody, whatever their options say.

    Other connections have their own. A query whose client is nobody is counted for its forwarder.
    """

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer, connected(server) as other:
            assert await asked(other, BY_ECS) == [ZONE_B]
            wires = [query(WEB, number=number) for number in range(200)]
            await peer.stream.send_all(header + b"".join(map(framed, wires)))
            assert [answers(await peer.read()) for _ in wires] == [expected] * 200
            assert await asked(peer, query(WEB), BY_ECS) == [expected] * 2
            assert await asked(other, query(WEB, edns=opt(ecs(IN_A))), BY_ECS) == [ZONE_A, ZONE_B]
            await trio.sleep(20)
            assert await asked(peer, BY_ECS, query(WEB)) == [expected] * 2
            assert await asked(peer, query(FREE)) == [{"10.244.1.9", "10.244.2.9"}]
        assert server.counts.unnamed_clients.numbers == ({FORWARDER: noted} if noted else {})
        assert server.counts.malformed_headers == {}


def test_a_forwarder_may_do_without_a_header() -> None:
    """Without a header, ECS names the client, query by query."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as plain:
            wires = [query(WEB, edns=opt(ecs(each))) for each in (IN_A, IN_B, NOWHERE)]
            for _ in range(2):
                assert await asked(plain, *wires, query(WEB)) == [ZONE_A, ZONE_B, NOBODY, NOBODY]
        assert server.counts.unnamed_clients.numbers == {FORWARDER: 2}


def test_a_header_in_the_middle_of_a_connection_is_none() -> None:
    """Behind the first header and between queries, it is a message that cannot be read; the client stays the same."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            await peer.stream.send_all(proxied(IN_A))
            for _ in range(2):
                await peer.stream.send_all(AS_MESSAGE["whole"])
                assert (await peer.read())[:4] == b"\r\n\x80\1"
                assert await asked(peer, query(WEB)) == [ZONE_A]
            await peer.stream.send_all(proxied(IN_B) + framed(query(WEB)))
            await trio.sleep(4)
            assert await peer.silent() and await ended(peer)
        assert server.counts.malformed_headers == {}


def test_a_header_in_a_message_is_none() -> None:
    """Over TCP a header comes before all messages; inside a message it is no query, and names nobody."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as plain, connected(server) as headed:
            await headed.stream.send_all(proxied(IN_B))
            for peer, own in ((plain, NOBODY), (headed, ZONE_B)):
                for header in (proxied(IN_A), proxy_header(command=LOCAL), WRONG):
                    await peer.send(header + query(WEB))
                    assert is_error(await peer.read())
                    assert await asked(peer, query(WEB)) == [own]
        assert server.counts.malformed_headers == {}


@pytest.mark.parametrize(
    ("source", "flags", "expected"),
    [(IN_B, PROXIED, [ZONE_B, ZONE_B]), (NOWHERE, PROXIED, [NOBODY, NOBODY]), (FORWARDER, FLAGS, [NOBODY, ZONE_B])],
    ids=["untrusted", "unknown", "without-the-flag"],
)
@pytest.mark.parametrize("message", AS_MESSAGE.values(), ids=AS_MESSAGE)
def test_whose_header_is_none(message: bytes, source: str, flags: dict[str, Any], expected: list[set[str]]) -> None:
    """The header of an untrusted source, or any without the flag, is read as DNS; the client is who it was."""

    @trusting(flags)
    async def _(server: Here) -> None:
        async with connected(server, source) as peer:
            await peer.stream.send_all(message)
            assert (await peer.read())[:4] == b"\r\n\x80\1"
            assert await asked(peer, query(WEB), BY_ECS) == expected
        assert server.counts.malformed_headers == {}


@pytest.mark.parametrize("header", [WRONG, LOST], ids=["unknown-family", "cut-tlv"])
def test_a_malformed_header_ends_its_connection(header: bytes) -> None:
    """At once, without a reply, and counted; other connections of the forwarder go on."""

    @trusting()
    async def _(server: Here) -> None:
        async with connected(server) as other:
            await other.stream.send_all(proxied(IN_A))
            began = trio.current_time()
            for number, more in enumerate((b"", framed(query(WEB)), framed(query(WEB)) * 100), 1):
                async with connected(server) as peer:
                    await peer.stream.send_all(header + more)
                    assert await ended(peer)
                assert server.counts.malformed_headers == {"tcp": number}
            assert trio.current_time() - began < 1 and server.counts.connections == 1
            assert await asked(other, query(WEB)) == [ZONE_A]
        assert server.counts.failures == {}


@pytest.mark.parametrize("size", [1, 12, 15, 16, 27])
def test_a_header_must_be_whole_within_five_seconds(size: int) -> None:
    """As a message must; a header that is cut off is not counted as malformed, and waits without work."""

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
            for peer, end in ((unused, 30), (used, 55)):
                assert await ended(peer)
                assert trio.current_time() - began == pytest.approx(end, abs=0.5)


@pytest.mark.parametrize("pieces", [1, 5])
def test_the_longest_header(pieces: int) -> None:
    """65,535 octets of addresses and TLVs, more than one read; no part of them is taken for a message."""

    @trusting()
    async def _(server: Here) -> None:
        header = proxied(IN_B, tlv(0xEE, bytes(30_000)) + tlv(0xEE, bytes(65_535 - 12 - 30_006)), stream=True)
        assert len(header) == 16 + 65_535
        whole = header + framed(query(WEB)) * 3
        async with connected(server) as peer:
            size = -(-len(whole) // pieces)
            for at in range(0, len(whole), size):
                await peer.stream.send_all(whole[at : at + size])
                await all_read()
            assert [answers(await peer.read()) for _ in range(3)] == [ZONE_B] * 3
            assert await asked(peer, query(WEB)) == [ZONE_B]


def test_a_message_may_begin_as_a_header_does() -> None:
    """A message of 3,338 octets begins with the signature's first two, and is read whole."""

    @trusting()
    async def _(server: Here) -> None:
        wire = query(WEB, number=0x0D0B, edns=opt(ecs(IN_B), option(12)))
        wire = query(WEB, number=0x0D0B, edns=opt(ecs(IN_B), option(12, bytes(0x0D0A - len(wire)))))
        for cut in (1, 2, 3):
            async with connected(server) as peer:
                await peer.stream.send_all(framed(wire)[:cut])
                await all_read()
                await peer.stream.send_all(framed(wire)[cut:] + framed(BY_ECS))
                assert [answers(await peer.read()) for _ in range(2)] == [ZONE_B] * 2


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
    """A query that waits for an upstream does not hold up later ones; large replies are whole."""

    @trusting({**PROXIED, "upstream": "127.0.0.1"})
    async def _(server: Here) -> None:
        async with connected(server) as peer:
            await peer.stream.send_all(proxied(IN_B))
            await peer.send(query(f"outside.{SERVED}", number=1), query(WEB, number=2))
            assert answers(await peer.read()) == ZONE_B
            assert await peer.silent()
            server.upstream.tell("www.example.com")
            assert "192.0.2.1" in answers(await peer.read())
            assert [len(each) for each in await asked(peer, *[query(MANY)] * 50)] == [250] * 50


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
        async with connected(server) as in_a, connected(server) as in_b:
            await in_a.stream.send_all(proxied(IN_A))
            await in_b.stream.send_all(proxied(IN_B))
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
