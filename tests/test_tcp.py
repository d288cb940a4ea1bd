"""DNS over TCP (RFC 7766, RFC 9210): how clients write, how they leave, and who does harm."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import BinaryIO, NamedTuple

import dns.message
import pytest
import trio
import trio.testing

from dnsserver.metrics import Counts
from dnsserver.net import tcp
from dnsserver.net.upstream import Found
from dnsserver.records import Opaque, Record
from dnsserver.responder import Responder
from tests import clusters
from tests.clusters import MANY, WEB, WEB_AND_MANY, opt, query
from tests.support import PATIENCE, Server, needs_tool, responder_of, serving
from tests.test_upstream import CLUSTER, OUT, OUT_2

Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that the tests share; none of them may harm it."""
    with serving(tmp_path_factory.mktemp("tcp"), WEB_AND_MANY) as server:
        yield server
    assert not any("Traceback" in line for line in server.lines)


class Client:
    """A TCP connection that writes and reads framed messages."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.file: BinaryIO = sock.makefile("rb")

    def send(self, *messages: bytes) -> None:
        self.sock.sendall(b"".join(framed(each) for each in messages))

    def read(self) -> bytes:
        """Return the next message; empty at the end of the stream."""
        size = self.file.read(2)
        return self.file.read(int.from_bytes(size)) if size else b""

    def ask(self, number: int) -> None:
        """Ask, and see that the reply is the right one."""
        self.send(query(WEB, number=number))
        assert_answered(self.read(), number)


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(2) + message


def assert_answered(reply: bytes, number: int) -> None:
    message = dns.message.from_wire(reply)
    assert message.id == number and {row.to_text() for row in message.answer[0]} == {"10.0.0.1", "10.0.0.2"}


@contextmanager
def connected(server: Server) -> Iterator[Client]:
    with socket.create_connection((server.host, server.port), PATIENCE) as sock:
        client = Client(sock)
        with client.file:
            yield client


# How clients write


def test_many_queries_travel_on_one_connection(server: Server) -> None:
    """RFC 7766, 6.2.1.1: a client need not wait for one reply before it asks for the next."""
    with connected(server) as client:
        client.send(*(query(WEB, number=number) for number in range(1000)))
        replies = [client.read() for _ in range(1000)]
    assert {int.from_bytes(reply[:2]) for reply in replies} == set(range(1000))
    for reply in replies:
        assert_answered(reply, int.from_bytes(reply[:2]))


def test_thousands_of_queries_at_once(server: Server) -> None:
    """A client that writes without reading for a while gets every reply."""
    with connected(server) as client:
        writer = threading.Thread(target=client.send, args=[query(WEB, number=number) for number in range(8000)])
        writer.start()
        replies = {int.from_bytes(client.read()[:2]) for _ in range(8000)}
        writer.join()
    assert replies == set(range(8000))


def test_kdig_asks_again_on_the_same_connection(server: Server) -> None:
    """kdig +keepopen as a process: each reply is the one that it waits for."""
    kdig = needs_tool("kdig")
    asked = [kdig, f"@{server.host}", "-p", str(server.port), "+tcp", "+keepopen", "+time=10", "+retry=0"]
    found = subprocess.run(
        [*asked, WEB, "A", "-q", MANY, "-t", "SRV", "-q", WEB, "-t", "AAAA", "-q", "example.com", "-t", "A"],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert found.returncode == 0 and "WARNING" not in found.stderr, found.stderr
    assert re.findall(r"status: (\w+)", found.stdout) == ["NOERROR", "NOERROR", "NOERROR", "REFUSED"]
    assert re.findall(r"ANSWER: (\d+)", found.stdout) == ["2", "250", "0", "0"]
    assert len(set(re.findall(r"TCP\), in|From (.*\(TCP\))", found.stdout))) == 1


def test_octets_may_come_one_by_one(server: Server) -> None:
    """RFC 7766, 8: a message need not come in one piece, nor its length."""
    with connected(server) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in (1, 2):
            for octet in framed(query(WEB, number=number)):
                client.sock.send(bytes((octet,)))
            assert_answered(client.read(), number)


@pytest.mark.parametrize("cut", [1, 2, 3, 20, -1])
def test_a_message_may_end_in_a_later_piece(server: Server, cut: int) -> None:
    """A whole message is answered before the rest of the next one has come."""
    with connected(server) as client:
        second = framed(query(WEB, number=2))
        client.sock.sendall(framed(query(WEB, number=1)) + second[:cut])
        assert_answered(client.read(), 1)
        client.sock.sendall(second[cut:])
        assert_answered(client.read(), 2)


@pytest.mark.parametrize("number", [1, 3, 200])
def test_who_has_asked_all_may_stop_writing(server: Server, number: int) -> None:
    """RFC 7766, 6.2.4 and TCP's half-close: the replies still come, then the end."""
    with connected(server) as client:
        client.send(*(query(MANY, "SRV", number=each) for each in range(number)))
        client.sock.shutdown(socket.SHUT_WR)
        assert {int.from_bytes(client.read()[:2]) for _ in range(number)} == set(range(number))
        assert client.read() == b""


def test_half_a_message_and_the_end_is_the_end(server: Server) -> None:
    """What was whole is answered; what was not ends with the connection."""
    with connected(server) as client:
        client.sock.sendall(framed(query(WEB, number=1)) + framed(query(WEB, number=2))[:-1])
        client.sock.shutdown(socket.SHUT_WR)
        assert_answered(client.read(), 1)
        assert client.read() == b""


@pytest.mark.parametrize(
    ("message", "silent"),
    [
        (b"", True),
        (b"\0\x09" + query(WEB)[2:11], True),
        (b"\0\x09\x80\0" + query(WEB)[4:], True),
        (query(WEB, number=9)[:-1], False),
        (query(WEB, number=9) + b"\0", False),
        (b"\0\x09" + b"\x01" * 60000, False),
        (b"\0\x09\0\0" + b"\xff" * 65531, False),
    ],
    ids=["length 0", "too short", "a response", "cut", "trailing", "garbage of 60,002", "garbage of 65,535"],
)
def test_garbage_is_formerr_or_silence_and_the_connection_lives(server: Server, message: bytes, silent: bool) -> None:
    """Judged as over UDP; the next query on the connection is answered."""
    with connected(server) as client:
        client.send(message)
        if not silent:
            reply = client.read()
            assert reply[:2] == b"\0\x09" and reply[3] & 15 == 1
        client.ask(10)


def test_large_replies_are_whole(server: Server) -> None:
    """RFC 7766, 3: what UDP cuts off with TC, TCP carries."""
    for qtype in ("A", "SRV"):
        wire = query(MANY, qtype, edns=opt(size=4096))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect((server.host, server.port))
            sock.send(wire)
            cut = sock.recv(65535)
        assert len(cut) <= 1232 and int.from_bytes(cut[2:4]) & clusters.TC
        with connected(server) as client:
            client.send(wire)
            whole = dns.message.from_wire(client.read())
        assert not whole.flags & clusters.TC
        assert sum(map(len, whole.answer)) == 250
        assert sum(map(len, whole.additional)) == (250 if qtype == "SRV" else 0)


# How they stay and leave


def test_an_idle_connection_ends_after_its_time(serve: Serve) -> None:
    """--tcp-idle-timeout, in real time: not before, whether anything was asked or not."""
    server = serve(WEB_AND_MANY, "--tcp-idle-timeout", "1")
    began = time.monotonic()
    with connected(server) as silent, connected(server) as used:
        used.ask(1)
        assert silent.read() == used.read() == b""
        assert time.monotonic() - began >= 1


def test_at_the_limit_the_oldest_idle_connection_is_closed(serve: Serve) -> None:
    """Whoever asked last stays, a new one gets in."""
    server = serve(WEB_AND_MANY, "--max-connections", "3")
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(connected(server)) for _ in range(3))
        for number, client in enumerate((first, second, third, first)):
            client.ask(number)
        fourth = stack.enter_context(connected(server))
        fourth.ask(10)
        assert second.read() == b""
        for number, client in enumerate((first, third, fourth), 20):
            client.ask(number)


def test_a_client_that_does_not_read_harms_nobody(server: Server) -> None:
    """Its replies fill its own connection's buffers; others are answered meanwhile, by TCP and UDP."""
    with connected(server) as deaf, connected(server) as other:
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sock.setblocking(False)
        flood = framed(query(MANY, "SRV")) * 100
        sent = 0
        try:
            while sent < 4 << 20:
                sent += deaf.sock.send(flood)
        except BlockingIOError:
            pass  # the server has stopped reading
        for number in range(20):
            other.ask(number)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect((server.host, server.port))
            sock.send(query(WEB, number=77))
            assert_answered(sock.recv(2048), 77)


@pytest.mark.parametrize("before", [b"", b"\0", framed(query(WEB))[:9], framed(query(MANY, "SRV")) * 500])
def test_a_reset_in_the_middle_harms_nobody(server: Server, before: bytes) -> None:
    """A connection that ends by RST, whatever stood in it, ends alone."""
    with connected(server) as other:
        for number in range(20):
            with socket.create_connection((server.host, server.port), PATIENCE) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.sendall(before)
            other.ask(number)


def test_three_hundred_connections_with_one_query_each(server: Server) -> None:
    """CoreDNS opens one connection for each query in flight."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(300)]
        for number, client in enumerate(clients):
            client.send(query(WEB, number=number))
        for number, client in reversed(list(enumerate(clients))):
            assert_answered(client.read(), number)


def test_connections_finish_what_they_have_begun_when_the_server_ends(serve: Serve) -> None:
    """SIGTERM drains: a message that has begun is answered, an idle connection ends at once."""
    server = serve(WEB_AND_MANY)
    with connected(server) as idle, connected(server) as busy:
        idle.ask(1)
        busy.ask(2)
        wire = framed(query(WEB, number=3))
        busy.sock.sendall(framed(query(WEB, number=4)) + wire[:9])
        assert_answered(busy.read(), 4)  # so the server has read the beginning, too
        server.process.terminate()
        assert idle.read() == b""
        busy.sock.sendall(wire[9:])
        assert_answered(busy.read(), 3)
        assert busy.read() == b""
        assert server.wait() == 0


def test_replies_that_are_on_their_way_arrive_whole_when_the_server_ends(serve: Serve) -> None:
    """A reply is begun with its first octet: who reads slowly gets it to the end, and every one behind it."""
    server = serve(WEB_AND_MANY)
    with connected(server) as client:
        client.sock.sendall(b"".join(framed(query(MANY, "SRV", number=number)) for number in range(400)))
        first = client.read()
        server.process.terminate()
        server.wait_for("ending")
        replies = [first, *(client.read() for _ in range(399))]
        assert [int.from_bytes(reply[:2]) for reply in replies] == list(range(400))
        assert {(len(reply), reply[6:8]) for reply in replies} == {(len(first), (250).to_bytes(2))}
        assert server.wait() == 0


# One server in this process, in virtual time


class Held:
    """An upstream that answers a name when it is told to, and knows at once what it is told beforehand."""

    def __init__(self) -> None:
        self.asked = 0
        self.waiting: list[str] = []
        self._told: dict[str, trio.Event] = {}

    def tell(self, target: str) -> None:
        """Answer this name from now on."""
        self._event(target).set()

    def recall(self, target: str, _: int) -> Found | None:
        return Found(self._records(target)) if self._event(target).is_set() else None

    async def find(self, target: str, _: int) -> tuple[Record, ...]:
        self.asked += 1
        self.waiting.append(target)
        try:
            await self._event(target).wait()
        finally:
            self.waiting.remove(target)
        return self._records(target)

    def _event(self, target: str) -> trio.Event:
        return self._told.setdefault(target, trio.Event())

    def _records(self, target: str) -> tuple[Record, ...]:
        return (Record(target, 1, 60, Opaque(b"\xc0\0\2\1")),)


class Here(NamedTuple):
    """A server by TCP alone, and what it is made of."""

    port: int
    upstream: Held
    counts: Counts
    connections: tcp.Connections
    responder: Responder

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Peer]:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            yield Peer(stream)


class Peer:
    """A client in this process."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = b""

    async def send(self, *messages: bytes) -> None:
        await self.stream.send_all(b"".join(map(framed, messages)))

    async def read(self) -> bytes:
        """Return the next message; empty at the end of the stream."""
        while len(self._received) < 2 or len(self._received) < 2 + int.from_bytes(self._received[:2]):
            data = await self.stream.receive_some()
            if not data:
                assert not self._received, "half a message"
                return b""
            self._received += data
        end = 2 + int.from_bytes(self._received[:2])
        message, self._received = self._received[2:end], self._received[end:]
        return message

    async def numbers(self, count: int) -> list[int]:
        """Return the ids of the next replies."""
        return [int.from_bytes((await self.read())[:2]) for _ in range(count)]

    async def silent(self) -> bool:
        """Whether nothing comes, not even the end, when all that can be done has been done."""
        await trio.testing.wait_all_tasks_blocked(0.02)
        with trio.move_on_after(0) as scope:
            await self.read()
        return scope.cancelled_caught


def here(
    *, idle: float = 30, in_flight: int = 128, limit: int = 100, leaping: bool = True
) -> Callable[[Callable[[Here], Awaitable[None]]], None]:
    """Run a test beside a server of its own, in virtual time; *leaping* where no timer of the kernel's matters."""

    def run(test: Callable[[Here], Awaitable[None]]) -> None:
        async def main() -> None:
            counts, upstream = Counts(), Held()
            responder = responder_of(CLUSTER, {"upstream": "127.0.0.1"}, counts=counts)
            connections = tcp.Connections(counts, limit=limit)
            sock = socket.socket()
            tcp.prepare(sock)
            sock.bind(("127.0.0.1", 0))
            async with trio.open_nursery() as clients:
                serve = partial(tcp.serve, idle=idle, in_flight=in_flight, upstream=upstream)
                await clients.start(serve, sock, responder, counts, connections, clients)
                with trio.fail_after(10_000):
                    await test(Here(sock.getsockname()[1], upstream, counts, connections, responder))
                clients.cancel_scope.cancel()
            assert not upstream.waiting
            sock.close()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05) if leaping else None)

    return run


def test_answers_leave_as_they_are_ready() -> None:
    """RFC 7766, 6.2.1.1: a query that waits holds none of the later ones up."""

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
            assert await client.silent() and sum(server.counts.durations) == 5


def test_what_is_known_need_not_wait() -> None:
    """An answer that the upstream gave before leaves in its turn."""

    @here(in_flight=1)
    async def _(server: Here) -> None:
        server.upstream.tell("example.org")
        async with server.connected() as client:
            await client.send(*(query(OUT if number % 2 else WEB, number=number) for number in range(200)))
            assert await client.numbers(200) == list(range(200))
            assert server.upstream.asked == 0


def test_three_hundred_connections_that_wait() -> None:
    """Each is answered when it can be, whichever asked first."""

    @here(limit=400)
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
    """--max-queries-in-flight: what comes behind waits until one is answered; other connections do not."""

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


@pytest.mark.parametrize("more", [b"", framed(query(WEB))[:-1]], ids=["whole messages", "half a message at the end"])
def test_what_waits_is_answered_after_a_half_close(more: bytes) -> None:
    """Whoever has asked all may stop writing: every reply comes, then the end."""

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


@pytest.mark.parametrize("again", [False, True], ids=["once", "asked again after 20 s"])
def test_idle_time_begins_when_the_last_answer_has_left(again: bool) -> None:
    """RFC 7766, 6.2.3: with a query in flight a connection is not idle, however long that takes."""

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
    """--tcp-idle-timeout, from the beginning on."""

    @here(idle=30)
    async def _(server: Here) -> None:
        async with server.connected() as client:
            began = trio.current_time()
            assert await client.read() == b""
            assert trio.current_time() - began == pytest.approx(30, abs=0.5)


@pytest.mark.parametrize("waiting", [False, True], ids=["alone", "behind one that waits"])
@pytest.mark.parametrize(
    "octets", [b"\0", framed(query(WEB))[:2], framed(query(WEB))[:-1]], ids=["1", "2", "all but 1"]
)
def test_a_started_message_must_be_whole_within_five_seconds(octets: bytes, waiting: bool) -> None:
    """Though the idle timeout is longer; what waits is still answered. A slow client holds nobody."""

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


def test_a_message_that_trickles_is_cut_off_too() -> None:
    """The time is that of the message, not of its octets; each message has its own."""

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
    """SIGTERM: what is in flight and what has begun is answered, then the connection ends; an idle one at once."""

    @here()
    async def _(server: Here) -> None:
        async with server.connected() as client, server.connected() as idle:
            await client.send(query(OUT, number=1), query(OUT_2, number=2))
            await client.stream.send_all(more)
            assert await client.silent()
            began = trio.current_time()
            server.connections.drain()
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


def test_a_client_that_is_gone_waits_for_nothing() -> None:
    """A reset ends what was looked up for the connection, and leaves no connection behind."""

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


def test_at_the_limit_in_all_a_connection_that_waits_is_not_idle() -> None:
    """--max-connections: the longest idle one goes, though another asked before."""

    @here(limit=3)
    async def _(server: Here) -> None:
        async with server.connected() as waits, server.connected() as first, server.connected() as second:
            await waits.send(query(OUT, number=1))
            assert await waits.silent()
            for client in (first, second):
                await client.send(query(WEB, number=2))
                assert await client.numbers(1) == [2]
            async with server.connected() as newcomer:
                await newcomer.send(query(WEB, number=3))
                assert await newcomer.numbers(1) == [3]
                assert await first.read() == b""
                server.upstream.tell("example.org")
                assert await waits.numbers(1) == [1]


def test_where_no_connection_is_idle_the_one_used_longest_ago_goes() -> None:
    """A newcomer always gets in: whoever fills the server with queries that wait cannot lock others out."""

    @here(limit=2)
    async def _(server: Here) -> None:
        async with server.connected() as first, server.connected() as second:
            for client in (first, second):
                await client.send(query(OUT, number=1))
                assert await client.silent()
            async with server.connected() as newcomer:
                await newcomer.send(query(WEB, number=3))
                assert await newcomer.numbers(1) == [3]
                assert await first.read() == b""
                assert server.upstream.waiting == ["example.org"]


def test_a_client_that_reads_nothing_is_let_go() -> None:
    """When none of its replies is taken for five seconds; nobody else notices."""

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


def test_little_is_answered_ahead_of_a_client_that_reads_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies wait in memory by octets, not by number: four thousand connections with large ones must fit."""
    sizes: list[int] = []
    send = tcp.Connection.send

    async def noted(connection: tcp.Connection, replies: bytes) -> None:
        sizes.append(len(replies))
        await send(connection, replies)

    monkeypatch.setattr(tcp.Connection, "send", noted)

    @here()
    async def _(server: Here) -> None:
        async with server.connected() as client:
            await client.send(*(query(MANY, "SRV", number=number) for number in range(100)))
            assert await client.numbers(100) == list(range(100))

    assert sum(sizes) > 10 * tcp.WRITE_SIZE and max(sizes) < 2 * tcp.WRITE_SIZE + 2


def test_replies_are_never_mixed() -> None:
    """Many that become ready while a long one is being written: each leaves whole."""

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
            long = {(len(reply), reply[4:6]) for number, reply in replies.items() if number >= 100}
            assert long == {(len(replies[100]), (250).to_bytes(2))}


@pytest.mark.parametrize("when", ["answer", "finish"])
def test_a_fault_of_our_own_ends_one_connection(when: str, caplog: pytest.LogCaptureFixture) -> None:
    """The wall around one connection: counted, logged, and the others live."""

    @here()
    async def _(server: Here) -> None:
        async with server.connected() as client, server.connected() as other:
            await client.send(query(OUT))
            assert await client.silent()

            def broken(*_: object) -> bytes:
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
