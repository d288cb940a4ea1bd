# SPDX-License-Identifier: Apache-2.0

"""How the server accepts TCP connections: from which client, how many at once, and what may fail."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack, suppress
from itertools import pairwise

import pytest
import trio
import trio.testing

from dnsserver.net import tcp
from locator.ip import parse_address
from tests.kit.dns_queries import query
from tests.kit.small_cluster import OUT, WEB
from tests.kit.tcp_server import Here, Peer, here, listening


@pytest.mark.parametrize(
    ("host", "address", "family"),
    [
        ("192.0.2.1", "192.0.2.1", 1),
        ("::ffff:192.0.2.1", "192.0.2.1", 1),
        ("2001:db8::1", "2001:db8::1", 2),
        ("fe80::1%eth0", "fe80::1", 2),
    ],
)
def test_a_client_is_known_by_its_address(host: str, address: str, family: int) -> None:
    """In each form of the kernel; the connection counts for its address family."""

    @here()
    async def _(server: Here) -> None:
        async with listening(server, [host]) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await Peer(stream).send(query(WEB, number=1))
            assert await Peer(stream).numbers(1) == [1]
            (connection,) = server.tcp.connections
            assert connection.source == parse_address(address)
            assert [key for key, channel in server.counts.channels.items() if channel.counts] == [("tcp", family)]


def test_small_replies_leave_at_once() -> None:
    """TCP_NODELAY is set, and the kernel buffers little for a slow reader."""

    @here()
    async def _(server: Here) -> None:
        async with server.connected():
            await trio.testing.wait_all_tasks_blocked(0.02)
            (connection,) = server.tcp.connections
            assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == tcp.UNSENT_IN_KERNEL
            assert not connection.sock.getblocking()


def test_a_connection_that_cannot_be_accepted_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A client that left before is ignored; a lack of resources is counted and logged, and does not keep us busy."""
    errors = [ConnectionAbortedError(), OSError(errno.ENOBUFS, "no room"), OSError(errno.EPROTO, "strange")]

    @here()
    async def _(server: Here) -> None:
        began = trio.current_time()
        async with listening(server, errors) as port:
            for _ in errors:
                with suppress(trio.BrokenResourceError):
                    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                        assert await Peer(stream).read() == b""
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await Peer(stream).send(query(WEB, number=1))
                assert await Peer(stream).numbers(1) == [1]
        assert server.counts.failures == {"accept": 2}
        assert trio.current_time() - began >= 2 * tcp.ACCEPT_PAUSE

    assert "no room" in caplog.text and "strange" in caplog.text


def test_many_that_come_at_once_leave_other_tasks_their_turns() -> None:
    """A flood of connections is accepted in batches."""

    @here(limit=1200, leaping=False)
    async def _(server: Here) -> None:
        with ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            seen = [0]
            while seen[-1] < 300:
                await trio.lowlevel.checkpoint()
                seen.append(server.counts.connections)
            most = max(after - before for before, after in pairwise(seen))
            assert most <= 2 * tcp.ACCEPTED_AT_ONCE


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
