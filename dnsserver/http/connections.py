# SPDX-License-Identifier: Apache-2.0

"""Serves an ASGI application over HTTP/1.1, with TLS or without. Whatever a client sends harms its own connection only.

Connections are bounded in number, for each source and in all, and so are the octets that they hold. Whoever exceeds a
bound loses an old connection, so nobody keeps others out.
"""

from __future__ import annotations

import logging
import math
import socket
import ssl
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from weakref import WeakValueDictionary

import trio
from starlette.types import ASGIApp

from dnsserver.http.conversation import Conversation, Limits, Stream
from dnsserver.net.bounds import SourceShares, first_to_close
from locator.ip import parse_address

log = logging.getLogger("topodns")

BACKLOG = 1024  # whoever finds no room in it tries again after a second only
MAX_CONNECTIONS = 1000  # an idle one takes 50 kB with TLS; API servers, kubelets and Prometheus have some of each
MAX_HANDSHAKES = 64  # that have begun; each takes the processor for up to a millisecond
HANDSHAKE_SECONDS = 5.0
# For which a handshake waits while its source has its share of them; then it ends the oldest. API servers begin many at
# once, because HTTP/1.1 has one review at a time on a connection.
QUEUE_SECONDS = 1.0
LOG_SECONDS = 60.0  # between two logs of the same error: who finds a way to cause one may cause many

_is_idle: Callable[[Conversation], bool] = attrgetter("idle")


class _ConversationLimit:
    """At most *limit* conversations at a time, each source with its share of them, unless it *may_take_all*."""

    def __init__(self, limit: int, may_take_all: Callable[[bytes], bool]) -> None:
        self._limit = limit
        self._shares: SourceShares[Conversation] = SourceShares(limit, may_take_all)
        self.taken: dict[Conversation, None] = {}  # the oldest first

    def take(self, conversation: Conversation) -> None:
        """Give a place to a conversation. If there is none, close the oldest idle one: of its source, or of all.

        If none is idle, close the oldest.
        """
        if self.has_share(conversation.source):
            self._close(first_to_close(self._shares.of(conversation.source), _is_idle))
        elif len(self.taken) >= self._limit:
            self._close(first_to_close(self.taken, _is_idle))
        self.taken[conversation] = None
        self._shares.add(conversation.source, conversation)

    def has_share(self, source: bytes) -> bool:
        """Whether a source has its share: one more place would cost it another."""
        return self._shares.has_share(source)

    def leave(self, conversation: Conversation) -> bool:
        """Take the place of a conversation away; return whether it had one."""
        if conversation not in self.taken:
            return False
        del self.taken[conversation]
        self._shares.remove(conversation.source, conversation)
        return True

    def _close(self, conversation: Conversation) -> None:
        self.leave(conversation)
        conversation.close()


class _HttpConnections:
    """The open connections of a listener."""

    def __init__(self, app: ASGIApp, failures: Counter[str], limits: Limits, tls: ssl.SSLContext | None) -> None:
        self._app, self._failures, self._limits, self._tls = app, failures, limits, tls
        self._places = _ConversationLimit(MAX_CONNECTIONS, limits.may_take_all)
        self._handshakes = _ConversationLimit(MAX_HANDSHAKES, limits.may_take_all)
        self._queues: WeakValueDictionary[bytes, trio.lowlevel.ParkingLot] = WeakValueDictionary()  # by source
        self._ended = trio.Event()
        self._logged: dict[tuple[object, ...], float] = {}  # when each error was logged last, by its ``_identity``

    async def converse(self, stream: trio.SocketStream) -> None:
        """Answer the requests of a connection until it ends."""
        try:
            source = parse_address(stream.socket.getpeername()[0].partition("%")[0])
        except OSError:  # it has ended already
            stream.socket.close()
            return
        conversation = Conversation(self._app, stream, source, self._limits, self._failed)
        self._places.take(conversation)
        try:
            await conversation.run(None if self._tls is None else partial(self._secured, conversation, self._tls))
        except Exception as error:  # boundary: one connection
            self._failed(error)
        finally:
            self._places.leave(conversation)
            self._ended.set()

    async def end(self) -> None:
        """Close idle connections now, and the others when their requests have ended or the grace period is over."""
        for conversation in self._places.taken:
            conversation.ending = True
            if conversation.idle:
                conversation.close()
        with trio.move_on_after(self._limits.grace_seconds):
            while self._places.taken:
                self._ended = trio.Event()
                await self._ended.wait()

    async def _secured(
        self, conversation: Conversation, tls: ssl.SSLContext, stream: trio.SocketStream
    ) -> Stream | None:
        """Return *stream* with TLS, None if the handshake took too long. Raises BrokenResourceError."""
        queue = self._queues.setdefault(conversation.source, trio.lowlevel.ParkingLot())
        with trio.move_on_after(QUEUE_SECONDS):
            while self._handshakes.has_share(conversation.source):  # again, if another one was faster
                await queue.park()
        self._handshakes.take(conversation)
        secured = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            with trio.move_on_after(HANDSHAKE_SECONDS):
                await secured.do_handshake()
                return secured
            return None
        finally:
            if self._handshakes.leave(conversation):
                queue.unpark()

    def _failed(self, error: Exception) -> None:
        """Count an error of topodns that has ended a request, or a connection. Log it once a minute."""
        self._failures["http"] += 1
        now, identity = trio.current_time(), _identity(error)
        if now - self._logged.get(identity, -math.inf) >= LOG_SECONDS:
            self._logged[identity] = now
            log.error("an error in topodns has ended an HTTP request", exc_info=error)


def _identity(error: BaseException) -> tuple[object, ...]:
    """Return what two errors have in common that are the same: their type, and the line that raised them.

    The lines of a program bound how many there are.
    """
    frames = [*traceback.walk_tb(error.__traceback__)]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        frames += traceback.walk_tb(error.__traceback__)
    frame, line = frames[-1]
    return type(error), frame.f_code.co_filename, line


async def serve(
    sock: socket.socket,
    app: ASGIApp,
    failures: Counter[str],
    limits: Limits,
    *,
    tls: ssl.SSLContext | None = None,
    until: Callable[[], Awaitable[None]] = trio.sleep_forever,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve *app* at a bound socket until *until* returns or until cancelled; close the socket and all connections.

    *failures* counts the requests and connections that an error has ended, as ``http``.
    """
    connections = _HttpConnections(app, failures, limits, tls)
    sock.listen(BACKLOG)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    async with trio.open_nursery() as conversations:
        async with listener, trio.open_nursery() as accepting:
            accepting.start_soon(_accept, listener, connections, conversations)
            task_status.started()
            await until()
            accepting.cancel_scope.cancel()
        await connections.end()
        conversations.cancel_scope.cancel()


async def _accept(listener: trio.SocketListener, connections: _HttpConnections, conversations: trio.Nursery) -> None:
    await trio.serve_listeners(connections.converse, [listener], handler_nursery=conversations)
