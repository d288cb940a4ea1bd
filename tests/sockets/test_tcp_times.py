# SPDX-License-Identifier: Apache-2.0

"""The times of TCP connections, in virtual time: how long one may be idle, unfinished, or read slowly."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack, suppress
from functools import partial

import pytest
import trio
import trio.testing

from dnsserver.metrics.counters import Counts
from dnsserver.net.connections import READ_SIZE, WRITE_SIZE, Connection
from tests.kit.dns_queries import framed, query
from tests.kit.small_cluster import MANY, OUT, OUT_2, WEB
from tests.kit.tcp_server import Here, Peer, answered_in, here


@pytest.mark.parametrize("again", [False, True], ids=["once", "asked again after 20 s"])
def test_idle_time_begins_when_the_last_answer_has_left(again: bool) -> None:
    """RFC 7766, 6.2.3: a connection with a query in flight is not idle."""

    @here(idle=30)
    async def _(server: Here, client: Peer) -> None:
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
    async def _(server: Here, stalled: Peer, other: Peer) -> None:
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
    async def _(server: Here, client: Peer) -> None:
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
    async def _(server: Here, client: Peer) -> None:
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


def test_a_client_that_reads_nothing_is_let_go() -> None:
    """Its connection is closed after five seconds in which it takes nothing."""

    @here()
    async def _(server: Here, deaf: Peer, other: Peer) -> None:
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
