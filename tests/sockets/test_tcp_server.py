# SPDX-License-Identifier: Apache-2.0

"""The TCP server in this process, in virtual time: what waits for what, and what an end of either side ends."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from functools import partial

import dns.message
import pytest
import trio
import trio.testing

from dnsserver.net import tcp
from dnsserver.net.bounds import HeldOctets
from dnsserver.net.connections import READ_SIZE
from tests.kit.dns_queries import framed, query
from tests.kit.small_cluster import OUT, OUT_2, WEB
from tests.kit.tcp_server import Here, Peer, here, listening


def test_answers_leave_as_they_are_ready() -> None:
    """RFC 7766, 6.2.1.1: a query that waits does not hold up later ones."""

    @here()
    async def _(server: Here, client: Peer) -> None:
        await client.send(query(OUT, number=1), query(WEB, number=2), query(OUT_2, number=3), query(WEB, number=4))
        assert await client.numbers(2) == [2, 4]
        assert await client.silent()
        server.upstream.tell("example.net")
        assert await client.numbers(1) == [3]
        await client.send(query(WEB, number=5))
        assert await client.numbers(1) == [5]
        server.upstream.tell("example.org")
        reply = dns.message.from_wire(await client.read())
        assert reply.id == 1
        assert [rrset.to_text() for rrset in reply.answer] == [
            f"{OUT}. 5 IN CNAME example.org.", "example.org. 60 IN A 192.0.2.1",
        ]  # fmt: skip
        assert await client.silent() and sum(server.counts.durations.numbers) == 5


def test_what_is_known_need_not_wait() -> None:
    """An answer that the upstream's cache has is sent in its turn."""

    @here(in_flight=1)
    async def _(server: Here) -> None:
        server.upstream.tell("example.org")
        async with server.connected() as client:
            await client.send(*(query(OUT if number % 2 else WEB, number=number) for number in range(200)))
            assert await client.numbers(200) == list(range(200))
            assert server.upstream.asked == 0


def test_at_its_limit_a_connection_is_not_read_further() -> None:
    """--max-queries-in-flight: later queries wait until one is answered; other connections do not."""

    @here(in_flight=3)
    async def _(server: Here, client: Peer, other: Peer) -> None:
        await client.send(query(OUT_2, number=0), *(query(OUT, number=number) for number in range(1, 6)))
        await client.send(query(WEB, number=6))
        await other.send(query(WEB, number=7))
        assert await other.numbers(1) == [7]
        assert await client.silent()
        assert sorted(server.upstream.waiting) == ["example.net", "example.org", "example.org"]
        server.upstream.tell("example.net")
        assert await client.numbers(1) == [0]
        assert await client.silent()
        assert server.upstream.waiting == ["example.org"] * 3
        server.upstream.tell("example.org")
        assert sorted(await client.numbers(6)) == [1, 2, 3, 4, 5, 6]


def test_at_its_limit_a_connection_fills_no_memory() -> None:
    """Later queries stay in the kernel, and then with the client."""

    @here(in_flight=1)
    async def _(server: Here) -> None:
        async with server.paired() as client, trio.open_nursery() as nursery:
            asked = [query(WEB, number=number) for number in range(10_000)]
            nursery.start_soon(partial(client.send, query(OUT, number=0), *asked))
            await trio.testing.wait_all_tasks_blocked(0.02)
            (connection,) = server.tcp.connections
            assert len(connection.received) <= READ_SIZE
            server.upstream.tell("example.org")
            assert sorted(await client.numbers(10_001)) == [0, *range(10_000)]


@pytest.mark.parametrize("more", [b"", framed(query(WEB))[:-1]], ids=["whole messages", "half a message at the end"])
def test_what_waits_is_answered_after_a_half_close(more: bytes) -> None:
    """A client that has stopped writing gets every reply, then the end."""

    @here()
    async def _(server: Here) -> None:
        async with server.connected() as client:
            await client.send(query(OUT, number=1), query(WEB, number=2), query(OUT_2, number=3))
            await client.stream.send_all(more)
            await client.stream.send_eof()
            assert await client.numbers(1) == [2]
            assert await client.silent()
            server.upstream.tell("example.net")
            server.upstream.tell("example.org")
            assert sorted(await client.numbers(2)) == [1, 3]
            assert await client.read() == b""
        assert server.counts.connections == 0


def test_what_waits_at_the_limit_is_answered_after_a_half_close() -> None:
    """The same for queries that were received beyond the limit."""

    @here(in_flight=2)
    async def _(server: Here) -> None:
        async with server.connected() as client:
            await client.send(*(query(OUT, number=number) for number in range(10)), query(WEB, number=10))
            await client.stream.send_eof()
            assert await client.silent()
            server.upstream.tell("example.org")
            assert sorted(await client.numbers(11)) == list(range(11))
            assert await client.read() == b""
        assert server.counts.connections == 0


@pytest.mark.parametrize("more", [b"", framed(query(WEB, number=3))[:9]], ids=["between messages", "in a message"])
def test_what_waits_is_answered_when_the_server_ends(more: bytes) -> None:
    """SIGTERM: queries in flight, and messages that have begun, are answered; idle connections end at once."""

    @here()
    async def _(server: Here, client: Peer, idle: Peer) -> None:
        await client.send(query(OUT, number=1), query(OUT_2, number=2))
        await client.stream.send_all(more)
        assert await client.silent()
        began = trio.current_time()
        server.tcp.drain()
        assert await idle.read() == b"" and trio.current_time() == began
        server.upstream.tell("example.net")
        assert await client.numbers(1) == [2]
        assert await client.silent()
        if more:
            await client.stream.send_all(framed(query(WEB, number=3))[9:])
            assert await client.numbers(1) == [3]
            assert await client.silent()
        server.upstream.tell("example.org")
        began = trio.current_time()
        assert await client.numbers(1) == [1]
        assert await client.read() == b"" and trio.current_time() == began
        assert server.tcp.connections.ended.is_set()


def test_a_server_without_connections_ends_at_once() -> None:
    """It has nothing to drain."""

    @here()
    async def _(server: Here) -> None:
        async with server.connected() as client:
            await client.send(query(WEB, number=1))
            assert await client.numbers(1) == [1]
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert not server.tcp.connections.ended.is_set()
        server.tcp.drain()
        assert server.tcp.connections.ended.is_set()


@pytest.mark.parametrize("drained", [True, False], ids=["drained", "cancelled"])
def test_nothing_is_left_open_when_the_server_ends(drained: bool) -> None:
    """It ends once everything that has begun is answered, or at its deadline."""

    @here()
    async def _(server: Here) -> None:
        held = HeldOctets(server.counts.failures)
        ending = tcp.TcpServer(
            server.responder, server.counts, server.upstream, held=held, limit=9, idle=30, in_flight=9
        )
        client = None
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            await nursery.start(ending.serve)
            async with listening(server._replace(tcp=ending), []) as port:
                client = Peer(await trio.open_tcp_stream("127.0.0.1", port))
                await client.send(query(OUT, number=1))
                assert await client.silent()
            if drained:
                ending.drain()
                server.upstream.tell("example.org")
            else:
                nursery.cancel_scope.cancel()
        assert trio.current_time() == began
        async with client.stream:
            assert await client.numbers(1) == ([1] if drained else [0])
            if drained:
                assert await client.read() == b""


GONE = {"being read": (3, False), "at the limit": (5, False), "half closed": (1, True)}


@pytest.mark.parametrize(("queries", "half_closed"), GONE.values(), ids=GONE)
def test_a_client_that_is_gone_waits_for_nothing(queries: int, half_closed: bool) -> None:
    """A reset ends the connection's upstream look-ups, and the connection, whether or not the server reads it."""

    @here(in_flight=4)
    async def _(server: Here, other: Peer) -> None:
        client = await trio.open_tcp_stream("127.0.0.1", server.port)
        await client.send_all(framed(query(OUT)) * queries)
        if half_closed:
            await client.send_eof()
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert len(server.upstream.waiting) == min(queries, 4)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.close()
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.upstream.waiting == [] and server.counts.connections == 1
        await other.send(query(WEB, number=1))
        assert await other.numbers(1) == [1]


@pytest.mark.parametrize("when", ["answer", "finish"])
def test_a_fault_of_our_own_ends_one_connection(when: str, caplog: pytest.LogCaptureFixture) -> None:
    """A bug is counted and logged, and ends one connection alone."""

    @here()
    async def _(server: Here, client: Peer, other: Peer) -> None:
        await client.send(query(OUT))
        assert await client.silent()

        def broken(*_: object, **__: object) -> bytes:
            raise RuntimeError("a fault")

        kept = getattr(server.responder, when)
        setattr(server.responder, when, broken)
        await client.send(query(WEB))
        server.upstream.tell("example.org")
        if when == "finish":
            await client.read()
        with suppress(trio.BrokenResourceError):
            assert await client.read() == b""
        setattr(server.responder, when, kept)
        await other.send(query(WEB, number=1))
        assert await other.numbers(1) == [1]
        assert server.counts.failures == {"connection": 1} and server.counts.connections == 1

    assert "a fault" in caplog.text
