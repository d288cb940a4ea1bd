# SPDX-License-Identifier: Apache-2.0

"""DNS over TCP (RFC 7766, RFC 9210): many queries on a connection, each answered as soon as possible.

One task gives each ready connection a turn: read, answer, send, without waiting. The connection's
phase then says what it waits for. Only a query that waits for an upstream has a task of its own.
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

from dnsserver.message.query import Unreadable
from dnsserver.metrics.counters import Counts
from dnsserver.net.bounds import TURN_SECONDS, HeldOctets
from dnsserver.net.connections import CLOSED, HUNG_UP, WRITE_SIZE, Connection, Connections
from dnsserver.net.pending import PendingReplies, ReplyRoute
from dnsserver.responder.replies import AnsweredQuery
from dnsserver.responder.responder import Responder
from locator.ip import parse_address

if TYPE_CHECKING:  # imports dnspython, which a server without an upstream does not need
    from dnsserver.net.upstream import Upstream

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTED_AT_ONCE = 64  # connections before other tasks run
ACCEPT_PAUSE = 0.1  # seconds without accepting, when descriptors or memory run out
MAX_AT_ONCE = 64  # queries of a connection answered before other connections get a turn
CONNECTION_SECONDS = 0.001  # what a turn of a connection costs at most, but for one query
UNSENT_IN_KERNEL = 16384  # octets that the kernel buffers for a slow reader; as in trio's streams
# Octets of the kernel's buffers for a connection; it takes twice as much memory. By default it takes up to megabytes
# for a client that sends and does not read. There must be room to send two packets of the loopback interface, each of
# 64 KiB: clients acknowledge two at once, and one after 40 ms.
RECEIVE_BUFFER, SEND_BUFFER = 16384, 49152


def prepare(sock: socket.socket) -> None:
    """Set the options of a listening TCP socket that is not bound yet."""
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)


class TcpServer:
    """Answers queries by TCP: ``listen`` accepts connections, ``serve`` answers on them.

    At *limit* connections, a new one closes the one that has been idle longest. *held* bounds the octets that
    connections hold. A connection is closed after *idle* seconds without a query. Queries that wait for an upstream
    are answered out of order (RFC 7766, section 6.2.1.1); while *in_flight* wait, the connection is not read.
    """

    def __init__(
        self,
        responder: Responder,
        counts: Counts,
        upstream: Upstream | None = None,
        *,
        held: HeldOctets,
        limit: int,
        idle: float,
        in_flight: int,
    ) -> None:
        self.connections = Connections(
            counts, held, responder.may_take_all, limit=limit, idle=idle, in_flight=in_flight
        )
        self._responder = responder
        self._counts = counts
        self._upstream = upstream

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer on all connections until cancelled, or after ``drain`` until none is left."""
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
                except (BlockingIOError, ConnectionAbortedError):  # no more connections, or one that is closed already
                    pass
                except OSError as error:
                    self._counts.failures["accept"] += 1
                    log.warning("a connection could not be accepted: %s", error)
                    await trio.sleep(ACCEPT_PAUSE)

    def drain(self) -> None:
        """Close idle connections now, and others once their queries are answered."""
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
        while True:
            await wait_readable(self.connections.fileno())
            self._give_turns()

    def _give_turns(self) -> None:
        """Give turns to connections that are ready, for about ``TURN_SECONDS``."""
        ready = self.connections.ready()
        end = time.perf_counter() + TURN_SECONDS  # from now on: to find thousands takes as long
        while ready:
            for connection, events in ready:
                self._give_turn(connection, events)
                if time.perf_counter() >= end:
                    return
            ready = self.connections.ready()

    def _give_turn(self, connection: Connection, events: int) -> None:
        """Read, answer and send as far as possible without waiting. Never raises."""
        if connection.phase is CLOSED:  # by another one that needed its place
            return
        if events & HUNG_UP:
            self.connections.close(connection)
            return
        taken, sent = 0, False
        try:
            if connection.unsent:
                sent = connection.send_unsent()
            elif events & EPOLLIN:
                connection.receive()
                if not connection.header_done:
                    self._take_header(connection)
            if not connection.unsent:
                taken = self._answer(connection)
            if connection.answered and not connection.unsent:
                self._counts.took(time.perf_counter() - connection.arrived, connection.answered)
                connection.answered = 0
            self.connections.settle(connection, progressed=sent or taken > 0)
        except Exception as error:
            self._end(connection, error)

    def _end(self, connection: Connection, error: Exception) -> None:
        """Close one connection after an error in it; the server goes on."""
        if isinstance(error, OSError):
            log.debug("connection: %s", error)
        elif isinstance(error, Unreadable):
            self._counts.malformed_headers[connection.channel.proto] += 1
        else:
            self._counts.failures["connection"] += 1
            log.error("a connection was closed", exc_info=error)
        self.connections.close(connection)

    def _take_header(self, connection: Connection) -> None:
        """Take the PROXY header of a connection, if its source may send one. Raises Unreadable."""
        if not connection.received:
            return
        if self._responder.may_send_proxy_header(connection.source):
            connection.take_header()
        else:
            connection.header_done = True

    def _answer(self, connection: Connection) -> int:
        """Answer some of the complete messages and send the replies; return the number of messages."""
        if not connection.header_done:
            return 0
        received, source, channel = connection.received, connection.source, connection.channel
        client = connection.client
        waiting, in_flight = connection.waiting, self.connections.in_flight
        before = len(waiting)
        replies: list[bytes] = []
        size = position = number = 0
        latest = time.perf_counter() + CONNECTION_SECONDS
        while number < MAX_AT_ONCE and size < WRITE_SIZE and len(waiting) < in_flight:
            begin = position + 2
            end = begin + int.from_bytes(received[position:begin])
            if end > len(received):
                break
            answered = self._responder.answer(received[begin:end], source, channel, header_client=client)
            reply = answered.reply if answered is not None else None
            if answered is not None and reply is None:
                reply = self._finish_or_wait(connection, answered)
            if reply is not None:
                replies += (len(reply).to_bytes(2), reply)
                size += len(reply)
            position, number = end, number + 1
            if time.perf_counter() >= latest:
                break
        connection.received = received[position:]
        if replies:
            connection.send(b"".join(replies))
        connection.answered += number - (len(waiting) - before)
        return number

    def _finish_or_wait(self, connection: Connection, pending: AnsweredQuery) -> bytes | None:
        """Return the reply if it need not wait; else None, and send it later if the connection is still open."""
        scope = trio.CancelScope()
        send = partial(self._send_later, connection, scope)
        route = ReplyRoute(connection.arrived, send, partial(self._end, connection), scope)
        reply = self._pending.finish_or_wait(pending, route)
        if reply is None:
            connection.waiting.add(scope)
        return reply

    def _send_later(self, connection: Connection, scope: trio.CancelScope, reply: bytes) -> None:
        connection.send(len(reply).to_bytes(2) + reply)
        connection.waiting.remove(scope)
        self.connections.settle(connection, progressed=False)
