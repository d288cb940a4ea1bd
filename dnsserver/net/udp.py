"""DNS over UDP: waits until datagrams have come, then answers all that wait.

With native code, a thread without the interpreter lock receives them, and repeats answers that it knows. Then only the
others come here, and each answer is made known to it.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import trio
from trio.lowlevel import checkpoint, wait_readable

from dnsserver.metrics.counters import Counts
from dnsserver.net.mmsg import BATCH, Datagrams, enlarge, is_wildcard, tell_destinations
from dnsserver.net.outside.pending import PendingReplies, ReplyRoute
from dnsserver.responder.responder import Responder
from locator.ip import plain_address

if TYPE_CHECKING:
    from dnsserver.net.native import Repeated
    from dnsserver.net.outside.upstream import Upstream  # imports dnspython, which not every server needs

log = logging.getLogger(__name__)

BATCHES_AT_ONCE = 16  # before other tasks run: some milliseconds
SOCKET_BUFFER = 4 << 20  # octets: a burst of some thousand queries is not lost


class Received(Protocol):
    """Datagrams that have come to one socket, and the way back for each: those of ``mmsg``, or of the native code."""

    @property
    def received_at(self) -> float:
        """When the first of the datagrams received last came, by ``time.perf_counter``."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while datagrams wait."""

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Return waiting datagrams, at most ``BATCH``, each with its source (a packed address). Raises OSError."""

    def send(self, replies: Sequence[bytes | None]) -> int:
        """Send a reply to each datagram received last, none where it is None; return how many were lost."""

    def path(self, slot: int) -> Any:
        """Return the way back of a datagram received last, for ``send_along``."""

    def send_along(self, path: Any, reply: bytes) -> int:
        """Send a reply later; return how many were lost."""

    def end(self) -> None:
        """Receive no more, except what has arrived."""


def prepare(sock: socket.socket, *, wildcard: bool) -> None:
    """Set the options of a UDP socket that is not bound yet.

    A *wildcard* socket also receives the address to which each datagram was sent.
    """
    sock.setblocking(False)
    enlarge(sock, socket.SO_RCVBUF, SOCKET_BUFFER)
    enlarge(sock, socket.SO_SNDBUF, SOCKET_BUFFER)
    if wildcard:
        tell_destinations(sock)


async def serve(
    sock: socket.socket,
    responder: Responder,
    counts: Counts,
    upstream: Upstream | None = None,
    *,
    repeated: Repeated | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer the queries that arrive at a bound socket, until cancelled. *repeated* is the responder's native code."""
    async with trio.open_nursery() as nursery:
        received: Received = Datagrams(sock) if repeated is None else _received_natively(sock, repeated, counts)
        pending = PendingReplies(responder, counts, upstream, nursery)
        listener = _Listener(received, responder, counts, pending, native=repeated is not None)
        task_status.started()
        try:
            while True:
                await wait_readable(received.fileno())
                if listener.answer_waiting():
                    await checkpoint()
        finally:
            received.end()
            listener.answer_waiting()  # answer the queries that arrived before the end


def _received_natively(sock: socket.socket, repeated: Repeated, counts: Counts) -> Received:
    from dnsserver.net import native

    def count_failures() -> None:
        lost, errors, dropped = received.take_failures()
        counts.failures.update({wall: n for wall, n in (("send", lost), ("receive", errors), ("queue", dropped)) if n})

    sock.setblocking(True)  # its thread waits
    six, wildcard = sock.family == socket.AF_INET6, is_wildcard(sock)
    received = native.Datagrams(sock.fileno(), repeated, six=six, wildcard=wildcard)
    counts.before_reading.append(count_failures)
    return received


class _Listener:
    """The loop of one socket: receive a batch, answer it, send the replies."""

    def __init__(
        self, datagrams: Received, responder: Responder, counts: Counts, pending: PendingReplies, *, native: bool
    ) -> None:
        """If *native*, what is answered here is made known to the native code."""
        self._datagrams = datagrams
        self._responder = responder
        self._counts = counts
        self._pending = pending
        self._native = native

    def answer_waiting(self) -> bool:
        """Answer the queries that wait in the socket's buffer; return whether there may be more."""
        return all(self._answer_batch() for _ in range(BATCHES_AT_ONCE))

    def _answer_batch(self) -> bool:
        """Receive a batch, answer it, send the replies; return whether there may be more."""
        try:
            queries = self._datagrams.receive()
        except OSError as error:  # e.g. an ICMP error about an earlier reply
            self._counts.failures["receive"] += 1
            log.debug("receive: %s", error)
            return True
        if not queries:
            return False
        began = self._datagrams.received_at
        waiting, replies, lasting = self._answer(queries, began)
        if lost := self._datagrams.send(replies):
            self._counts.failures["send"] += lost
        self._counts.took(time.perf_counter() - began, len(queries) - waiting)
        for query, source in lasting:
            self._learn(query, source)
        return len(queries) == BATCH

    def _answer(
        self, queries: list[tuple[bytes, bytes]], began: float
    ) -> tuple[int, list[bytes | None], list[tuple[bytes, bytes]]]:
        """Answer *queries*; return how many replies will be sent later, all replies, and the queries to learn from.

        A reply is None if none is sent now. There is nothing to learn from what ``Responder.passing`` counts.
        """
        four, six = self._counts.channels["udp", 1], self._counts.channels["udp", 2]
        responder = self._responder
        answer, native = responder.answer, self._native
        replies: list[bytes | None] = []
        lasting: list[tuple[bytes, bytes]] = []
        waiting = 0
        for query, source in queries:
            channel = four
            if len(source) == 16:
                source = plain_address(source)
                channel = four if len(source) == 4 else six
            passing = responder.passing
            try:
                reply = answer(query, source, channel)
                if native and responder.passing == passing:
                    lasting.append((query, source))
                if reply is not None and not isinstance(reply, bytes):
                    reply = self._pending.finish_or_wait(reply, self._route(len(replies), source, began))
                    waiting += reply is None
                replies.append(reply)
            except Exception as error:
                self._failed(source, error)
                replies.append(None)
        return waiting, replies, lasting

    def _learn(self, query: bytes, source: bytes) -> None:
        try:
            self._responder.learn(query, source)
        except Exception as error:
            self._failed(source, error)

    def _route(self, slot: int, source: bytes, began: float) -> ReplyRoute:
        """Return how a later reply reaches the sender of the datagram in a slot."""
        return ReplyRoute(began, partial(self._send_later, self._datagrams.path(slot)), partial(self._failed, source))

    def _send_later(self, path: Any, reply: bytes) -> None:
        self._counts.failures["send"] += self._datagrams.send_along(path, reply)

    def _failed(self, source: bytes, error: Exception) -> None:
        """Count and log an error in one query; only this query goes without a reply."""
        self._counts.failures["packet"] += 1
        log.error("a query from %s could not be answered", source.hex(), exc_info=error)
