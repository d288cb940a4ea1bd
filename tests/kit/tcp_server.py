# SPDX-License-Identifier: Apache-2.0

"""A TCP server in this process, in virtual time, and clients of it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from inspect import signature
from typing import Any, NamedTuple

import trio
import trio.testing

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.message.records import Opaque, Record
from dnsserver.metrics.counters import Counts
from dnsserver.net import tcp
from dnsserver.net.bounds import HeldOctets
from dnsserver.net.connections import Connection
from tests.kit.dns_queries import framed
from tests.kit.in_memory import CountedResponder, responder_of
from tests.kit.outside import said
from tests.kit.small_cluster import WITH_ALIASES


class Held:
    """An upstream that answers a name only after the test calls ``tell``."""

    def __init__(self) -> None:
        self.asked = 0
        self.waiting: list[str] = []
        self._told: dict[str, trio.Event] = {}

    def tell(self, target: str) -> None:
        """Answer for this name from now on."""
        self._event(target).set()

    def answer_at_once(self, target: str, _: int, __: str) -> UpstreamAnswer | None:
        return self._records(target) if self._event(target).is_set() else None

    def for_one_query(self) -> Callable[[str, int, str], Awaitable[UpstreamAnswer]]:
        return self._find

    async def _find(self, target: str, _: int, __: str) -> UpstreamAnswer:
        self.asked += 1
        self.waiting.append(target)
        try:
            await self._event(target).wait()
        finally:
            self.waiting.remove(target)
        return self._records(target)

    def _event(self, target: str) -> trio.Event:
        return self._told.setdefault(target, trio.Event())

    def _records(self, target: str) -> UpstreamAnswer:
        return said([Record(target, 1, 60, Opaque(b"\xc0\0\2\1"))])


class Here(NamedTuple):
    """A TCP server and its parts."""

    port: int
    upstream: Held
    counts: Counts
    tcp: tcp.TcpServer
    responder: CountedResponder

    @asynccontextmanager
    async def connected(self, source: str = "127.0.0.1") -> AsyncIterator[Peer]:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port, local_address=source)
        async with stream:
            yield Peer(stream)

    @asynccontextmanager
    async def paired(self) -> AsyncIterator[Peer]:
        """A connection over a socket pair: it has a small buffer, and none of TCP's timers in the kernel."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.tcp.connections.open(Connection(ours, bytes((127, 0, 0, 1)), self.counts.channels["tcp", 1]))
        async with trio.SocketStream(trio.socket.from_stdlib_socket(theirs)) as stream:
            yield Peer(stream)


class Peer:
    """A client in this process."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = b""

    async def send(self, *messages: bytes) -> None:
        await self.stream.send_all(b"".join(map(framed, messages)))

    def send_at_once(self, octets: bytes) -> None:
        """Send without giving any other task a turn."""
        with self._socket() as sock:
            sock.send(octets, socket.MSG_DONTWAIT)

    @contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        """Return the socket of the stream, for calls that do not wait."""
        with socket.socket(fileno=os.dup(self.stream.socket.fileno())) as sock:
            yield sock

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
        """Whether nothing has arrived, not even the end, once all tasks wait."""
        await trio.testing.wait_all_tasks_blocked(0.02)
        try:
            with self._socket() as sock:
                sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return not self._received
        return False


def chasing() -> CountedResponder:
    """Return a responder with two Services and two ExternalName Services for names outside the zones."""
    return responder_of(WITH_ALIASES, {"upstream": "127.0.0.1"})


def here(
    *,
    idle: float = 30,
    in_flight: int = 128,
    limit: int = 100,
    leaping: bool = True,
    made: Callable[[], CountedResponder] = chasing,
) -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Run a test with its own server, in virtual time; the clock leaps ahead, unless timers of the kernel matter.

    Each further parameter of the test is a client that is connected.
    """

    def run(test: Callable[..., Awaitable[None]]) -> None:
        async def main() -> None:
            responder, upstream = made(), Held()
            counts = responder.counts
            octets = HeldOctets(counts.failures)
            server = tcp.TcpServer(
                responder, counts, upstream, held=octets, limit=limit, idle=idle, in_flight=in_flight
            )
            sock = socket.socket()
            tcp.prepare(sock)
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
            async with trio.open_nursery() as nursery:
                await nursery.start(server.serve)
                await nursery.start(server.listen, sock)
                with trio.fail_after(10_000):
                    this = Here(port, upstream, counts, server, responder)
                    async with AsyncExitStack() as stack:
                        clients = len(signature(test).parameters) - 1
                        await test(this, *[await stack.enter_async_context(this.connected()) for _ in range(clients)])
                nursery.cancel_scope.cancel()
            assert not upstream.waiting and counts.connections == 0

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05) if leaping else None)

    return run


class Listener(socket.socket):
    """A listening socket whose first calls of ``accept`` give the errors or addresses in ``says``."""

    says: list[OSError | str]

    def accept(self) -> tuple[socket.socket, Any]:
        sock, address = super().accept()
        if self.says:
            said = self.says.pop(0)
            if isinstance(said, OSError):
                sock.close()
                raise said
            return sock, (said, *address[1:])
        return sock, address


@asynccontextmanager
async def listening(server: Here, says: Sequence[OSError | str], family: int = socket.AF_INET) -> AsyncIterator[int]:
    """Listen at one more socket, whose first ``accept`` calls give *says*; yield its port."""
    sock = Listener(family)
    sock.says = list(says)
    tcp.prepare(sock)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.bind(("", 0))
    port = sock.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(server.tcp.listen, sock)
        yield port
        nursery.cancel_scope.cancel()
    assert sock.fileno() == -1


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
