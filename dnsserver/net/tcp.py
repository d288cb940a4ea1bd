"""DNS over TCP (RFC 7766, RFC 9210): many queries on a connection, each answered as soon as it can be.

One task gives every connection that is ready its turn: read, answer, send, without waiting. What
a turn leaves is a matter of the connection's phase. Only a query that waits for a name elsewhere
has a task of its own.
"""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress
from functools import partial
from select import EPOLLIN
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import wait_readable

from dnsserver.message.wire import Unreadable
from dnsserver.metrics.counters import Counts
from dnsserver.net.connections import GONE, WRITE_SIZE, Connection, Connections
from dnsserver.net.pending import Asker, PendingReplies
from dnsserver.responder.replies import PendingReply
from dnsserver.responder.responder import Responder
from locator.ip import parse_address

if TYPE_CHECKING:  # it brings dnspython, which servers without an upstream need not
    from dnsserver.net.upstream import Upstream

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTED_AT_ONCE = 64  # before other tasks get a turn
ACCEPT_PAUSE = 0.1  # seconds, when the machine has no room for a connection: one that ends makes some
MAX_AT_ONCE = 64  # queries of a connection answered before other connections get a turn
TURNS_AT_ONCE = 16  # connections asked for at a time
WORK_AT_ONCE = 1024  # queries and turns before other tasks get one: some milliseconds
UNSENT_IN_KERNEL = 16384  # octets of replies that wait there for a slow reader; trio's streams have the same


def prepare(sock: socket.socket) -> None:
    """Set a stream socket up, before it is bound."""
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


class Server:
    """Answers queries by TCP: ``listen`` accepts connections, ``serve`` converses on them.

    At *limit* connections in all, a new one closes the one that has been idle longest; *idle* is
    for how many seconds one may be. Queries that wait for a name elsewhere are answered when they
    can be (RFC 7766, section 6.2.1.1); with *in_flight* of them, a connection is not read further.
    """

    def __init__(
        self,
        responder: Responder,
        counts: Counts,
        upstream: Upstream | None = None,
        *,
        limit: int,
        idle: float,
        in_flight: int,
    ) -> None:
        self.connections = Connections(counts, limit=limit, idle=idle, in_flight=in_flight)
        self._responder = responder
        self._counts = counts
        self._upstream = upstream

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer on all connections until cancelled, or until they have ended after ``drain``."""
        try:
            async with trio.open_nursery() as nursery:
                self._pending = PendingReplies(self._responder, self._counts, self._upstream, nursery)
                nursery.start_soon(self.connections.expire)
                nursery.start_soon(self._converse)
                task_status.started()
                await self.connections.ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.connections.close_all()

    async def listen(
        self, sock: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept connections at a bound socket until cancelled, then close it."""
        with sock:
            sock.listen(BACKLOG)
            task_status.started()
            while True:
                await wait_readable(sock)
                try:
                    for _ in range(ACCEPTED_AT_ONCE):
                        self._accept(sock)
                except (BlockingIOError, ConnectionAbortedError):  # no more, or one that went again
                    pass
                except OSError as error:
                    self._counts.failures["accept"] += 1
                    log.warning("a connection could not be accepted: %s", error)
                    await trio.sleep(ACCEPT_PAUSE)

    def drain(self) -> None:
        """End idle connections now, and others once what they have begun is answered."""
        self.connections.drain()

    def _accept(self, listener: socket.socket) -> None:
        sock, (host, *_) = listener.accept()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL)
            source = parse_address(host.partition("%")[0])
            channel = self._counts.channels["tcp", 1 if len(source) == 4 else 2]
            self.connections.open(Connection(sock, source, channel))
        except BaseException:
            sock.close()
            raise

    async def _converse(self) -> None:
        connections = self.connections
        while True:
            await wait_readable(connections.fileno())
            left = WORK_AT_ONCE
            while left > 0 and (ready := connections.ready(TURNS_AT_ONCE)):
                for connection, events in ready:
                    left -= 1 + self._give_turn(connection, events)

    def _give_turn(self, connection: Connection, events: int) -> int:
        """Do for a connection what can be done at once; return how many queries were taken. Never raises."""
        if events & GONE:
            self.connections.close(connection)
            return 0
        taken, sent = 0, False
        try:
            if connection.unsent:
                sent = connection.send_unsent()
            elif events & EPOLLIN:
                connection.receive()
                if not connection.headed:
                    self._take_header(connection)
            if not connection.unsent:
                taken = self._answer(connection)
            if connection.answered and not connection.unsent:
                self._counts.took(time.perf_counter() - connection.arrived, connection.answered)
                connection.answered = 0
            self.connections.settle(connection, got_on=sent or taken > 0)
        except Exception as error:
            self._end(connection, error)
        return taken

    def _end(self, connection: Connection, error: Exception) -> None:
        """The wall around one connection: what goes wrong in it ends it, and nothing else."""
        if isinstance(error, OSError):
            log.debug("connection: %s", error)
        elif isinstance(error, Unreadable):
            self._counts.malformed_headers[connection.channel.proto] += 1
        else:
            self._counts.failures["connection"] += 1
            log.error("a connection was closed", exc_info=error)
        self.connections.close(connection)

    def _take_header(self, connection: Connection) -> None:
        """Find out who asks on a connection, if it is a forwarder's that may say so at its head. Raises Unreadable."""
        if not connection.received:
            return
        if self._responder.proxied(connection.source):
            connection.take_header()
        else:
            connection.headed = True

    def _answer(self, connection: Connection) -> int:
        """Take some whole messages and send the replies; return how many messages there were."""
        if not connection.headed:
            return 0
        received, source, channel = connection.received, connection.source, connection.channel
        client = connection.client
        waiting, in_flight = connection.waiting, self.connections.in_flight
        before = len(waiting)
        replies: list[bytes] = []
        size = position = number = 0
        while number < MAX_AT_ONCE and size < WRITE_SIZE and len(waiting) < in_flight:
            begin = position + 2
            end = begin + int.from_bytes(received[position:begin])
            if end > len(received):
                break
            reply = self._responder.answer(received[begin:end], source, channel, client=client)
            if reply is not None and not isinstance(reply, bytes):
                reply = self._finish_or_wait(connection, reply)
            if reply is not None:
                replies += (len(reply).to_bytes(2), reply)
                size += len(reply)
            position, number = end, number + 1
        connection.received = received[position:]
        if replies:
            connection.send(b"".join(replies))
        connection.answered += number - (len(waiting) - before)
        return number

    def _finish_or_wait(self, connection: Connection, pending: PendingReply) -> bytes | None:
        """Return the reply if it need not wait; else None, and it leaves later, if the connection is open then."""
        scope = trio.CancelScope()
        send = partial(self._send_later, connection, scope)
        asker = Asker(connection.arrived, send, partial(self._end, connection), scope)
        reply = self._pending.finish(pending, asker)
        if reply is None:
            connection.waiting.add(scope)
        return reply

    def _send_later(self, connection: Connection, scope: trio.CancelScope, reply: bytes) -> None:
        connection.send(len(reply).to_bytes(2) + reply)
        connection.waiting.remove(scope)
        self.connections.settle(connection, got_on=False)
