# SPDX-License-Identifier: Apache-2.0

"""The TCP server in this process and in virtual time: what waits for what, for how long, and in which turn."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import pairwise
from typing import Any

import dns.message
import pytest
import trio
import trio.testing

from dnsserver.metrics.counters import Counts
from dnsserver.net import tcp
from dnsserver.net.bounds import MAX_HELD, TURN_SECONDS, HeldOctets
from dnsserver.net.connections import READ_SIZE, WRITE_SIZE, Connection
from tests.kit.clusters import MANY, OUT, OUT_2, WEB
from tests.kit.dns_queries import framed, query
from tests.kit.in_memory import CountedResponder, responder_of
from tests.kit.tcp_server import Here, Peer, here, listening


def test_answers_leave_as_they_are_ready() -> None:
    """RFC 7766, 6.2.1.1: a query that waits does not hold up later ones."""

    @here()
    async def _(server: Here) -> None:
        async with server.connected() as client:
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


def test_three_hundred_connections_that_wait() -> None:
    """Each is answered as soon as its answer is there, in any order."""

    @here(limit=1200)
    async def _(server: Here) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.connected()) for _ in range(300)]
            for number, client in enumerate(clients):
                await client.send(query((OUT, OUT_2, WEB)[number % 3], number=number))
            for told, rest in ((None, 2), ("example.net", 1), ("example.org", 0)):
                if told:
                    server.upstream.tell(told)
                for number, client in enumerate(clients):
                    if number % 3 == rest:
                        assert await client.numbers(1) == [number]
                assert len(server.upstream.waiting) == 100 * rest
            assert server.counts.connections == 300


def test_at_its_limit_a_connection_is_not_read_further() -> None:
    """--max-queries-in-flight: later queries wait until one is answered; other connections do not."""

    @here(in_flight=3)
    async def _(server: Here) -> None:
        async with server.connected() as client, server.connected() as other:
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


@pytest.mark.parametrize("again", [False, True], ids=["once", "asked again after 20 s"])
def test_idle_time_begins_when_the_last_answer_has_left(again: bool) -> None:
    """RFC 7766, 6.2.3: a connection with a query in flight is not idle."""

    @here(idle=30)
    async def _(server: Here) -> None:
        async with server.connected() as client:
            await client.send(query(OUT, number=1))
            await trio.sleep(100)
            server.upstream.tell("example.org")
            assert await client.numbers(1) == [1]
            began = trio.current_time()
            if again:
                await trio.sleep(20)
                await client.send(query(WEB, number=2))
                assert await client.numbers(1) == [2]
            assert await client.read() == b""
            assert trio.current_time() - began == pytest.approx(50 if again else 30, abs=0.5)


def test_a_connection_that_asks_nothing_ends_after_the_idle_time() -> None:
    """--tcp-idle-timeout counts from the beginning."""

    @here(idle=30)
    async def _(server: Here) -> None:
        async with server.connected() as client:
            began = trio.current_time()
            assert await client.read() == b""
            assert trio.current_time() - began == pytest.approx(30, abs=0.5)


def test_each_connection_has_an_idle_time_of_its_own() -> None:
    """It begins with the last use of that connection."""

    @here(idle=30)
    async def _(server: Here) -> None:
        ended: dict[str, float] = {}

        async def ask(name: str, *at: float) -> None:
            async with server.connected() as client:
                for time_ in at:
                    await trio.sleep(time_ - trio.current_time() + began)
                    await client.send(query(WEB, number=1))
                    assert await client.numbers(1) == [1]
                assert await client.read() == b""
                ended[name] = trio.current_time() - began

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "never used")
            nursery.start_soon(ask, "early", 1)
            nursery.start_soon(ask, "late", 20)
            nursery.start_soon(ask, "often", 0, 25, 50)
            await trio.sleep(15)
            nursery.start_soon(ask, "newcomer")
        assert ended == pytest.approx({"never used": 30, "early": 31, "newcomer": 45, "late": 50, "often": 80}, abs=0.5)


@pytest.mark.parametrize(("idle", "message"), [(30, False), (30, True), (1, True)])
def test_nothing_wakes_up_for_connections_in_use(idle: float, message: bool) -> None:
    """All connections share one timer, which moves only if a new deadline is earlier."""

    class Steps(trio.abc.Instrument):
        number = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.number += task.name.endswith("expire")

    @here(idle=idle)
    async def _(server: Here) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.connected()) for _ in range(20)]
            steps = Steps()
            trio.lowlevel.add_instrument(steps)
            for number in range(30):
                for client in clients:
                    wire = framed(query(WEB, number=number))
                    await client.stream.send_all(wire[:20] if message else wire)
                    if message:
                        await trio.testing.wait_all_tasks_blocked()
                        await client.stream.send_all(wire[20:])
                    assert await client.numbers(1) == [number]
                await trio.sleep(0.7)
            trio.lowlevel.remove_instrument(steps)
            assert server.counts.connections == 20 and steps.number <= 20 / min(idle, 5) * 2 + 4


@pytest.mark.parametrize("waiting", [False, True], ids=["alone", "behind one that waits"])
@pytest.mark.parametrize(
    "octets", [b"\0", framed(query(WEB))[:2], framed(query(WEB))[:-1]], ids=["1", "2", "all but 1"]
)
def test_a_started_message_must_be_whole_within_five_seconds(octets: bytes, waiting: bool) -> None:
    """Even with a longer idle timeout; waiting queries are answered, and others not held up."""

    @here(idle=30)
    async def _(server: Here) -> None:
        async with server.connected() as stalled, server.connected() as other:
            if waiting:
                await stalled.send(query(OUT, number=1))
            await stalled.stream.send_all(octets)
            await trio.sleep(4.5)
            assert await stalled.silent()
            await other.send(query(WEB, number=2))
            assert await other.numbers(1) == [2]
            await trio.sleep(1)
            if waiting:
                assert await stalled.silent()
                server.upstream.tell("example.org")
                assert await stalled.numbers(1) == [1]
            assert await stalled.read() == b""
            await other.send(query(WEB, number=3))
            assert await other.numbers(1) == [3]


def test_the_time_of_a_message_begins_when_it_is_read() -> None:
    """At the limit of queries in flight, later messages are not late."""

    @here(in_flight=1)
    async def _(server: Here) -> None:
        async with server.connected() as client:
            second = framed(query(WEB, number=2))
            await client.stream.send_all(framed(query(OUT, number=1)) + second[:9])
            await trio.sleep(20)
            server.upstream.tell("example.org")
            assert await client.numbers(1) == [1]
            await trio.sleep(4)
            await client.stream.send_all(second[9:])
            assert await client.numbers(1) == [2]


def test_a_message_that_trickles_is_cut_off_too() -> None:
    """The time is that of the whole message, not of each octet; each message has its own."""

    @here(idle=30)
    async def _(server: Here) -> None:
        async with server.connected() as client:
            wire = framed(query(WEB, number=1))
            for number in (1, 2):  # slow, but in time, twice
                await client.stream.send_all(wire[:20])
                await trio.sleep(4)
                await client.stream.send_all(wire[20:])
                assert await client.numbers(1) == [1], number
            began = trio.current_time()
            with suppress(trio.BrokenResourceError):
                for octet in wire:
                    await client.stream.send_all(bytes((octet,)))
                    await trio.sleep(0.4)
            assert 5 <= trio.current_time() - began < 6.5


@pytest.mark.parametrize("more", [b"", framed(query(WEB, number=3))[:9]], ids=["between messages", "in a message"])
def test_what_waits_is_answered_when_the_server_ends(more: bytes) -> None:
    """SIGTERM: queries in flight, and messages that have begun, are answered; idle connections end at once."""

    @here()
    async def _(server: Here) -> None:
        async with server.connected() as client, server.connected() as idle:
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


def test_a_client_that_is_gone_waits_for_nothing() -> None:
    """A reset ends the connection's upstream look-ups, and the connection."""

    @here()
    async def _(server: Here) -> None:
        async with server.connected() as other:
            client = await trio.open_tcp_stream("127.0.0.1", server.port)
            await client.send_all(framed(query(OUT)) * 50)
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert len(server.upstream.waiting) == 50
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.socket.close()
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert server.upstream.waiting == [] and server.counts.connections == 1
            await other.send(query(WEB, number=1))
            assert await other.numbers(1) == [1]


@pytest.mark.parametrize("more", ["at the limit", "half closed"])
def test_a_client_that_is_gone_is_noticed_while_it_is_not_read(more: str) -> None:
    """The same while the server does not read the connection."""

    @here(in_flight=2)
    async def _(server: Here) -> None:
        client = await trio.open_tcp_stream("127.0.0.1", server.port)
        await client.send_all(framed(query(OUT)) * (5 if more == "at the limit" else 1))
        if more == "half closed":
            await client.send_eof()
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.upstream.waiting
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.close()
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.upstream.waiting == [] and server.counts.connections == 0


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


def test_a_client_that_reads_nothing_is_let_go() -> None:
    """Its connection is closed after five seconds in which it takes nothing."""

    @here()
    async def _(server: Here) -> None:
        async with server.connected() as deaf, server.connected() as other:
            flood = framed(query(MANY, "SRV")) * 1000
            began = trio.current_time()
            with suppress(trio.BrokenResourceError):
                while True:
                    await deaf.stream.send_all(flood)
            assert 5 <= trio.current_time() - began < 6
            await other.send(query(WEB, number=1))
            assert await other.numbers(1) == [1]
            assert server.counts.connections == 1


def test_little_is_answered_ahead_of_a_client_that_reads_slowly() -> None:
    """Unsent replies are limited in octets, not in number; later queries stay unread."""

    @here(leaping=False)
    async def _(server: Here) -> None:
        async with server.paired() as client, trio.open_nursery() as nursery:
            asked = [query(MANY, "SRV", number=number) for number in range(200)]
            padding = [query(WEB, number=number)[:-1] for number in range(10_000)]
            nursery.start_soon(partial(client.send, *asked, *padding))
            order = answered_in(server)
            await trio.testing.wait_all_tasks_blocked(0.1)
            (connection,) = server.tcp.connections
            assert 0 < sum(map(len, connection.unsent)) < 2 * WRITE_SIZE + 2
            assert 0 < len(connection.received) <= 2 * READ_SIZE + 1
            assert sum(server.counts.durations.numbers) < len(order)  # those whose replies have left
            assert await client.numbers(10_200) == [*range(200), *range(10_000)]
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert sum(server.counts.durations.numbers) == 10_200


def test_a_reply_waits_behind_those_that_are_unsent() -> None:
    """Even if the client has just made room."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = Connection(ours, bytes((127, 0, 0, 1)), Counts().channels["tcp", 1])
        connection.send(b"a" * 1_000_000)
        received = theirs.recv(1 << 20)
        connection.send(b"b" * 10)
        while len(received) < 1_000_010:
            connection.send_unsent()
            received += theirs.recv(1 << 20)
        assert received == b"a" * 1_000_000 + b"b" * 10


@pytest.mark.parametrize("octets", [20_000, 1000], ids=["slowly", "hardly"])
def test_a_client_that_reads_slowly_is_waited_for(octets: int) -> None:
    """As long as it takes 64 KiB in five seconds; a slower one is closed."""

    @here()
    async def _(server: Here) -> None:
        async with server.paired() as client:
            await client.send(*(query(MANY, "SRV", number=number) for number in range(30)))
            began = trio.current_time()
            while server.counts.connections and sum(server.counts.durations.numbers) < 30:
                left = octets
                while left and (data := await client.stream.receive_some(left)):
                    left -= len(data)
                await trio.sleep(1)
            took = trio.current_time() - began
            if octets * 5 > WRITE_SIZE:
                assert sum(server.counts.durations.numbers) == 30 and took > 15
            else:
                assert sum(server.counts.durations.numbers) < 30 and took == pytest.approx(5, abs=1)


def test_each_reply_that_waited_has_its_time() -> None:
    """A client that takes one reply after the other is waited for, however many are ready."""

    @here()
    async def _(server: Here) -> None:
        async with server.paired() as client:
            await client.send(*(query(OUT, number=number) for number in range(100)))
            assert await client.silent()
            server.upstream.tell("example.org")
            numbers = set()
            while len(numbers) < 100:
                await trio.sleep(0.2)
                numbers.update(await client.numbers(2))


def test_a_reply_that_joins_others_gives_them_no_more_time() -> None:
    """A client that reads nothing is closed, though more replies become ready."""

    @here(in_flight=128)
    async def _(server: Here) -> None:
        async with server.paired() as deaf:
            await deaf.send(*(query(OUT if number % 2 else OUT_2, number=number) for number in range(8)))
            await deaf.send(*(query(MANY, "SRV", number=number) for number in range(30)))
            began = trio.current_time()
            await trio.sleep(3)
            server.upstream.tell("example.org")
            await trio.sleep(1.5)
            server.upstream.tell("example.net")
            assert server.counts.connections == 1
            while server.counts.connections:
                await trio.sleep(0.1)
            assert trio.current_time() - began == pytest.approx(5, abs=0.3)


def test_replies_are_never_mixed() -> None:
    """Replies that become ready while a long one is written follow it whole."""

    @here(leaping=False)
    async def _(server: Here) -> None:
        async with server.connected() as client:
            await client.send(*(query(OUT, number=number) for number in range(100)))
            await client.send(*(query(MANY, "SRV", number=number) for number in range(100, 500)))
            await trio.testing.wait_all_tasks_blocked(0.02)  # the server is in the middle of writing
            server.upstream.tell("example.org")
            replies = {int.from_bytes(reply[:2]): reply[2:] for reply in [await client.read() for _ in range(500)]}
            assert set(replies) == set(range(500))
            assert len({reply for number, reply in replies.items() if number < 100}) == 1
            long = [dns.message.from_wire(bytes(2) + reply) for number, reply in replies.items() if number >= 100]
            assert {sum(map(len, reply.answer)) for reply in long} == {250}


def answered_in(server: Here, *, seconds: float = 0) -> list[int]:
    """Return a list to which the id of each query is added as it is answered; an answer takes so many *seconds*."""
    order: list[int] = []
    answer = server.responder.answer

    def noted(wire: bytes, *more: Any, **named: Any) -> Any:
        order.append(int.from_bytes(wire[:2]))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        return answer(wire, *more, **named)

    server.responder.answer = noted  # type: ignore[method-assign]
    return order


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
