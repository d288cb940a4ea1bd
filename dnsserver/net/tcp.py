"""DNS over TCP (RFC 7766, RFC 9210): many queries on a connection, each answered as soon as it can be."""

from __future__ import annotations

import logging
import math
import socket
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from dnsserver.metrics import Counts
from dnsserver.responder import Responder, Waiting
from locator.addresses import parse_address

if TYPE_CHECKING:  # it brings dnspython, which servers without an upstream need not
    from dnsserver.net.upstream import Upstream

log = logging.getLogger(__name__)

MESSAGE_SECONDS = 5.0  # for a started message to be whole, and for a piece of the replies to be taken
BACKLOG = 1024
READ_SIZE = 65536
WRITE_SIZE = 65536  # taken within the time of a message: a slow reader is waited for, one that stopped is not
MAX_AT_ONCE = 64  # queries of a connection answered before others get a turn


class Connection:
    """One open connection, and how to end it.

    ``received`` is what has been read and not been answered yet; ``in_flight`` is how many
    queries wait for a name elsewhere, ``answered`` where to wait until it is one less. Who
    holds ``writing`` may send: replies must not be mixed.
    """

    def __init__(self, stream: trio.SocketStream, *, idle: float) -> None:
        self.stream = stream
        self.scope = trio.CancelScope()
        self.reading = trio.CancelScope()
        self.received = bytearray()
        self.in_flight = 0
        self.answered = trio.lowlevel.ParkingLot()
        self.writing = trio.Lock()
        self.used = trio.current_time()
        self.whole_by = math.inf
        self._idle = idle

    @property
    def busy(self) -> bool:
        """Whether something is under way: from the first octet of a query to the last of its reply."""
        return bool(self.received) or self.in_flight > 0 or self.writing.locked()

    def deadline(self) -> float:
        """Return until when to wait for more octets, by trio's clock."""
        if self.received:
            return self.whole_by
        return self.used + self._idle if self.in_flight == 0 else math.inf

    async def send(self, replies: bytes) -> None:
        """Send framed replies, whole, each piece within the time of a message."""
        if self.writing.locked():
            await self.writing.acquire()
        else:
            self.writing.acquire_nowait()  # ``acquire`` would give every other task a turn first
        try:
            for start in range(0, len(replies), WRITE_SIZE):
                with trio.fail_after(MESSAGE_SECONDS):
                    await self.stream.send_all(replies[start : start + WRITE_SIZE])
        finally:
            self.writing.release()


class Connections:
    """The open connections of a server, the one that was used longest ago first."""

    def __init__(self, counts: Counts, *, limit: int) -> None:
        self.draining = False
        self._counts = counts
        self._limit = limit
        self._open: OrderedDict[Connection, None] = OrderedDict()

    def add(self, connection: Connection) -> None:
        """Note a new connection; at the limit, the one that has been idle longest is closed.

        Where every connection is in the middle of a message, the one that was used longest ago.
        """
        while len(self._open) >= self._limit:
            idle = (each for each in self._open if not each.busy)
            oldest = next(idle, next(iter(self._open)))
            del self._open[oldest]
            oldest.scope.cancel()
        self._open[connection] = None
        self._counts.connections = len(self._open)

    def active(self, connection: Connection) -> None:
        """Note that a connection was just used; if it has nothing more to do and the server ends, so does it."""
        connection.used = trio.current_time()
        connection.reading.deadline = connection.deadline()
        if connection in self._open:
            self._open.move_to_end(connection)
        if self.draining and not connection.busy:
            connection.scope.cancel()

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._open.pop(connection, None)
        self._counts.connections = len(self._open)

    def drain(self) -> None:
        """End idle connections now, and others once their message is answered."""
        self.draining = True
        for connection in self._open:
            if not connection.busy:
                connection.scope.cancel()


def prepare(sock: socket.socket) -> None:
    """Set a stream socket up, before it is bound."""
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


async def serve(
    sock: socket.socket,
    responder: Responder,
    counts: Counts,
    connections: Connections,
    clients: trio.Nursery,
    *,
    idle: float,
    in_flight: int,
    upstream: Upstream | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept connections at a bound socket until cancelled; they live on in the nursery *clients*."""

    async def handle(stream: trio.SocketStream) -> None:
        connection = Connection(stream, idle=idle)
        connections.add(connection)
        try:
            await _Conversation(connection, connections, responder, counts, upstream, limit=in_flight).run()
        finally:
            connections.remove(connection)

    sock.listen(BACKLOG)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    task_status.started()
    await trio.serve_listeners(handle, [listener], handler_nursery=clients)


class _Conversation:
    """What happens on one connection: queries are read and answered in turn, but for those that wait.

    These are answered when they can be (RFC 7766, section 6.2.1.1); *limit* is how many of them
    there may be before the connection is not read any further.
    """

    def __init__(
        self,
        connection: Connection,
        connections: Connections,
        responder: Responder,
        counts: Counts,
        upstream: Upstream | None,
        *,
        limit: int,
    ) -> None:
        self._connection = connection
        self._connections = connections
        self._responder = responder
        self._counts = counts
        self._upstream = upstream
        self._limit = limit

    async def run(self) -> None:
        """Converse until the client has nothing more to say, stalls in a message or idles too long.

        What waits then is still answered, unless the client is gone. Never raises.
        """
        with self._connection.scope, self._wall():
            source = parse_address(self._connection.stream.socket.getpeername()[0].partition("%")[0])
            async with trio.open_nursery() as nursery:
                with self._wall():
                    await self._read(source, nursery)

    @contextmanager
    def _wall(self) -> Iterator[None]:
        """The wall around one connection: what goes wrong in it ends it, and nothing else."""
        try:
            yield
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError) as error:
            log.debug("connection: %s", error)
            self._connection.scope.cancel()
        except Exception:
            self._counts.failures["connection"] += 1
            log.exception("a connection was closed")
            self._connection.scope.cancel()

    async def _read(self, source: bytes, nursery: trio.Nursery) -> None:
        """Answer what arrives, until no more does."""
        connection = self._connection
        while True:
            connection.reading = trio.CancelScope(deadline=connection.deadline())
            data = b""
            with connection.reading:
                data = await connection.stream.receive_some(READ_SIZE)
            if not data:
                return
            fresh = not connection.received
            connection.received += data
            taken = await self._answer_received(source, nursery)
            if fresh or taken:  # the message that stands there now has just begun
                connection.whole_by = trio.current_time() + MESSAGE_SECONDS
            if taken:
                self._connections.active(connection)

    async def _answer_received(self, source: bytes, nursery: trio.Nursery) -> int:
        """Take all whole messages out of what was received; return how many."""
        connection, began, taken = self._connection, trio.current_time(), 0
        while True:
            while connection.in_flight >= self._limit:
                await connection.answered.park()
            replies, waiting, number = self._take(source)
            for each in waiting:
                connection.in_flight += 1
                nursery.start_soon(self._wait, each, began)
            if replies:
                await connection.send(replies)
            elif number:
                await trio.lowlevel.checkpoint()
            else:
                return taken
            self._counts.took(trio.current_time() - began, number - len(waiting))
            taken += number

    def _take(self, source: bytes) -> tuple[bytes, list[Waiting], int]:
        """Take some whole messages; return framed replies, the queries that must wait, and how many there were."""
        received = self._connection.received
        channel = self._counts.channels["tcp", 1 if len(source) == 4 else 2]
        room = self._limit - self._connection.in_flight
        replies, size, waiting, position, number = [], 0, list[Waiting](), 0, 0
        while number < MAX_AT_ONCE and size < WRITE_SIZE and len(waiting) < room and len(received) >= position + 2:
            end = position + 2 + int.from_bytes(received[position : position + 2])
            if len(received) < end:
                break
            reply = self._responder.answer(bytes(received[position + 2 : end]), source, channel)
            if isinstance(reply, Waiting):
                reply = self._finished(reply, waiting)
            if reply is not None:
                replies += [len(reply).to_bytes(2), reply]
                size += len(reply)
            position, number = end, number + 1
        del received[:position]
        return b"".join(replies), waiting, number

    def _finished(self, query: Waiting, waiting: list[Waiting]) -> bytes | None:
        """Return the reply if nothing need be waited for; else None, and the query waits with the others."""
        if self._upstream is None:
            return self._responder.finish(query, None)
        known = self._upstream.recall(query.target, query.qtype)
        if known is not None:
            return self._responder.finish(query, known.records)
        waiting.append(query)
        return None

    async def _wait(self, query: Waiting, began: float) -> None:
        """Ask the upstream, then reply."""
        connection = self._connection
        with self._wall():
            assert self._upstream is not None
            found = await self._upstream.find(query.target, query.qtype)
            reply = self._responder.finish(query, found)
            await connection.send(len(reply).to_bytes(2) + reply)
            self._counts.took(trio.current_time() - began, 1)
        connection.in_flight -= 1
        connection.answered.unpark_all()
        self._connections.active(connection)
