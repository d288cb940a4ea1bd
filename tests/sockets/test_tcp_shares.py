# SPDX-License-Identifier: Apache-2.0

"""Who gets into the TCP server, how many of a source, how many octets are held, and whose turn it is."""

from __future__ import annotations

import errno
import socket
import time
from collections import Counter
from contextlib import AsyncExitStack, ExitStack, suppress
from itertools import pairwise

import pytest
import trio
import trio.testing

from dnsserver.net import tcp
from dnsserver.net.bounds import MAX_HELD, TURN_SECONDS, HeldOctets
from dnsserver.net.connections import Connection
from locator.ip import parse_address
from tests.kit.dns_queries import framed, query
from tests.kit.in_memory import CountedResponder, responder_of
from tests.kit.small_cluster import OUT, WEB
from tests.kit.tcp_server import Here, Peer, answered_in, here, listening


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
    """A flood of connections is accepted in batches; each may have a query in flight, and gets its reply."""

    @here(limit=1200, leaping=False)
    async def _(server: Here) -> None:
        with ExitStack() as stack:
            connected = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(300)]
            seen = [0]
            while seen[-1] < 300:
                await trio.lowlevel.checkpoint()
                seen.append(server.counts.connections)
            most = max(after - before for before, after in pairwise(seen))
            assert most <= 2 * tcp.ACCEPTED_AT_ONCE
            clients = [Peer(trio.SocketStream(trio.socket.from_stdlib_socket(sock))) for sock in connected]
            for number, client in enumerate(clients):
                await client.send(query(OUT, number=number))
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert len(server.upstream.waiting) == 300
            server.upstream.tell("example.org")
            for number, client in enumerate(clients):
                assert await client.numbers(1) == [number]


def test_at_the_limit_in_all_a_connection_that_waits_is_not_idle() -> None:
    """--max-connections: the connection that is idle for longest is closed, not one that waits."""

    @here(limit=3)
    async def _(server: Here) -> None:
        connected = [server.connected(source=f"127.0.0.{number}") for number in range(1, 5)]
        async with connected[0] as waits, connected[1] as first, connected[2] as second:
            await waits.send(query(OUT, number=1))
            assert await waits.silent()
            await trio.sleep(1)
            for client in (first, second):
                await client.send(query(WEB, number=2))
                assert await client.numbers(1) == [2]
            async with connected[3] as newcomer:
                await newcomer.send(query(WEB, number=3))
                assert await newcomer.numbers(1) == [3]
                assert await first.read() == b""
                server.upstream.tell("example.org")
                assert await waits.numbers(1) == [1]


@pytest.mark.parametrize("begun", [False, True], ids=["both wait", "in a message"])
def test_where_no_connection_is_idle_the_one_used_longest_ago_goes(begun: bool) -> None:
    """A new client always gets in: waiting queries cannot lock others out."""

    @here(limit=2)
    async def _(server: Here) -> None:
        async with server.connected("127.0.0.1") as first, server.connected("127.0.0.2") as second:
            for client in (first, second):
                wire = framed(query(OUT, number=1))
                await client.stream.send_all(wire[:9] if begun and client is first else wire)
                assert await client.silent()
                await trio.sleep(1)
            async with server.connected("127.0.0.3") as newcomer:
                await newcomer.send(query(WEB, number=3))
                assert await newcomer.numbers(1) == [3]
                assert await first.read() == b""
                assert server.upstream.waiting == ["example.org"]


SHARES = {"somebody": ("127.0.0.2", 10), "a trusted forwarder": ("127.0.0.3", 15), "a node": ("127.0.0.4", 15)}


def with_forwarder_and_node() -> CountedResponder:
    addresses = [{"type": "InternalIP", "address": "127.0.0.4"}]
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "a1"}, "status": {"addresses": addresses}}
    return responder_of([node], {"trusted-forwarder": "127.0.0.3"})


@pytest.mark.parametrize(("source", "most"), SHARES.values(), ids=SHARES)
def test_a_source_has_at_most_a_quarter_of_the_connections(source: str, most: int) -> None:
    """Its next connection closes one of its own, an idle one if there is one. Forwarders and nodes speak for many."""

    @here(limit=40, made=with_forwarder_and_node)
    async def _(server: Here) -> None:
        async with AsyncExitStack() as stack:
            other = await stack.enter_async_context(server.connected("127.0.0.1"))
            clients = []
            for number in range(15):
                clients.append(await stack.enter_async_context(server.connected(source)))
                if number == 0:
                    await clients[0].stream.send_all(b"\0")  # half a message: the only one that is not idle
                await trio.testing.wait_all_tasks_blocked(0.02)
            assert server.counts.connections == 1 + most
            for client in (*clients[15 - most + 1 :], other):
                await client.send(query(WEB, number=3))
                assert await client.numbers(1) == [3]


def test_connections_hold_a_bounded_number_of_octets() -> None:
    """DNS and HTTP have one sum; whoever holds most is closed first."""
    failures: Counter[str] = Counter()
    held, closed = HeldOctets(failures), []

    def note(name: str, share: float) -> None:
        held.note(name, int(share * MAX_HELD), lambda: closed.append(name))

    note("large", 0.5)
    note("small", 0.1)
    note("larger", 0.35)
    note("larger", 0)
    note("third", 0.39)
    assert closed == []
    note("small", 0.15)
    assert closed == ["large"] and failures == {"memory": 1}
    note("fourth", 0.45)
    assert closed == ["large"]
    note("small", 0.2)
    assert closed == ["large", "fourth"]


def test_a_busy_connection_leaves_others_their_turns() -> None:
    """A client that sends hundreds of queries does not delay another one's single query."""

    @here()
    async def _(server: Here) -> None:
        order = answered_in(server)
        async with server.connected() as busy, server.connected() as other:
            await trio.testing.wait_all_tasks_blocked(0.02)
            busy.send_at_once(framed(query(WEB, number=1)) * 500)  # at once: the server has no turn yet
            other.send_at_once(framed(query(WEB, number=2)))
            assert await other.numbers(1) == [2]
            assert order.index(2) <= 2 * tcp.MAX_AT_ONCE
            assert await busy.numbers(500) == [1] * 500


def test_costly_queries_leave_other_tasks_their_turns() -> None:
    """TCP takes some milliseconds at a time, whatever its queries cost; then others, as UDP, get their turn."""

    @here(leaping=False)
    async def _(server: Here) -> None:
        cost = TURN_SECONDS / 5
        order = answered_in(server, seconds=cost)
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.connected()) for _ in range(10)]
            await trio.testing.wait_all_tasks_blocked(0.02)
            for client in clients:
                client.send_at_once(framed(query(WEB, number=1)) * 20)
            seen = [0]
            while seen[-1] < 10 * 20:
                await trio.lowlevel.checkpoint()
                seen.append(len(order))
            most = max(after - before for before, after in pairwise(seen))
            assert most <= 2 * TURN_SECONDS / cost  # trio may give two turns to one


def test_many_connections_get_turns_at_a_time() -> None:
    """Also where it takes as long to find those that are ready, as it does if there are thousands."""

    @here(leaping=False)
    async def _(server: Here) -> None:
        find, found = server.tcp.connections.ready, []

        def slowly() -> list[tuple[Connection, int]]:
            time.sleep(TURN_SECONDS)
            found.append(ready := find())
            return ready

        server.tcp.connections.ready = slowly  # type: ignore[method-assign]
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.connected()) for _ in range(20)]
            await trio.testing.wait_all_tasks_blocked(0.02)
            for client in clients:
                client.send_at_once(framed(query(WEB)))
            for client in clients:
                await client.read()
            assert len(found) < 20


def test_sources_take_turns() -> None:
    """However many connections of one source have queries, those of another source do not wait for all of them."""

    @here(leaping=False)
    async def _(server: Here) -> None:
        order = answered_in(server, seconds=tcp.CONNECTION_SECONDS)
        async with AsyncExitStack() as stack:
            many = [await stack.enter_async_context(server.connected()) for _ in range(20)]
            one = await stack.enter_async_context(server.connected(source="127.0.0.2"))
            await trio.testing.wait_all_tasks_blocked(0.02)
            for client in (*many, one):
                client.send_at_once(framed(query(WEB, number=2 if client is one else 1)) * 5)
            assert await one.numbers(5) == [2] * 5
            assert order.count(1) <= 50  # of 100; each time, all turns together last for about five of them
