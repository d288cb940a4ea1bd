"""DNS over TCP (RFC 7766, RFC 9210): many queries on a connection, each answered as it is read."""

from __future__ import annotations

import logging
import socket
from collections import OrderedDict

import trio

from dnsserver.metrics import Channel, Counts
from dnsserver.responder import Responder
from locator.addresses import parse_address

log = logging.getLogger(__name__)

MESSAGE_SECONDS = 5.0  # for a started message to be whole, and for a piece of the replies to be taken
BACKLOG = 1024
READ_SIZE = 65536
WRITE_SIZE = 65536  # taken within the time of a message: a slow reader is waited for, one that stopped is not
MAX_AT_ONCE = 64  # queries of a connection answered before their replies are sent: at most 4 MiB of them


class Connection:
    """One open connection: what has been read of a message that is not whole yet, and how to end it.

    It is ``busy`` from the first octet of a query to the last of its reply.
    """

    def __init__(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        self.stream = stream
        self.scope = scope
        self.received = bytearray()
        self.busy = False


class Connections:
    """The open connections of a server, the one that has been idle longest first."""

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
        """Note that a connection was just used."""
        if connection in self._open:
            self._open.move_to_end(connection)

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
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept connections at a bound socket until cancelled; they live on in the nursery *clients*."""

    async def handle(stream: trio.SocketStream) -> None:
        connection = Connection(stream, trio.CancelScope())
        with connection.scope:
            connections.add(connection)
            try:
                await _converse(connection, responder, counts, connections, idle=idle)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError) as error:
                log.debug("connection: %s", error)
            except Exception:  # the wall around one connection
                counts.failures["connection"] += 1
                log.exception("a connection was closed")
            finally:
                connections.remove(connection)

    sock.listen(BACKLOG)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    task_status.started()
    await trio.serve_listeners(handle, [listener], handler_nursery=clients)


async def _converse(
    connection: Connection, responder: Responder, counts: Counts, connections: Connections, *, idle: float
) -> None:
    """Answer what arrives on one connection, until it ends, stalls in a message or idles too long."""
    stream, received = connection.stream, connection.received
    source = parse_address(stream.socket.getpeername()[0].partition("%")[0])
    channel = counts.channels["tcp", 1 if len(source) == 4 else 2]
    deadline = trio.current_time() + idle
    while True:
        with trio.move_on_at(deadline) as waiting:
            data = await stream.receive_some(READ_SIZE)
        if waiting.cancelled_caught or not data:
            return
        began, fresh = trio.current_time(), not received
        received += data
        connection.busy = True
        answered = 0
        while True:
            replies, number = _answer_whole(received, responder, source, channel)
            answered += number
            for start in range(0, len(replies), WRITE_SIZE):
                with trio.fail_after(MESSAGE_SECONDS):
                    await stream.send_all(replies[start : start + WRITE_SIZE])
            if number:
                counts.took(trio.current_time() - began, number)
            if number < MAX_AT_ONCE:
                break
        if answered:
            connections.active(connection)
        connection.busy = bool(received)
        if not received:
            if connections.draining:
                return
            deadline = trio.current_time() + idle
        elif fresh or answered:  # the message that stands there now has just begun
            deadline = trio.current_time() + MESSAGE_SECONDS


def _answer_whole(received: bytearray, responder: Responder, source: bytes, channel: Channel) -> tuple[bytes, int]:
    """Take whole messages out of *received*; return their replies, framed, and how many there were."""
    replies, position, number = [], 0, 0
    while number < MAX_AT_ONCE and len(received) >= position + 2:
        end = position + 2 + int.from_bytes(received[position : position + 2])
        if len(received) < end:
            break
        reply = responder.answer(bytes(received[position + 2 : end]), source, channel)
        if reply is not None:
            replies += [len(reply).to_bytes(2), reply]
        position, number = end, number + 1
    del received[:position]
    return b"".join(replies), number
