# SPDX-License-Identifier: Apache-2.0

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
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import trio
from trio.lowlevel import checkpoint, wait_readable

from dnsserver.metrics.counters import Counts
from dnsserver.net.bounds import TURN_SECONDS
from dnsserver.net.mmsg import BATCH, Datagrams, enlarge, is_wildcard, tell_destinations
from dnsserver.net.pending import PendingReplies, ReplyRoute
from dnsserver.responder.native_feed import AnswerTable
from dnsserver.responder.responder import Responder
from locator.ip import plain_address

if TYPE_CHECKING:
    from dnsserver.net.upstream import Upstream  # imports dnspython, which not every server needs

log = logging.getLogger(__name__)

LAST_TURNS = 20  # at the end, for the queries that have arrived
# Octets of the socket's buffers; the kernel doubles them. A burst of two thousand queries must fit. A flood fills the
# buffer, and each query waits for all in it: with four times as much, names took 35 ms, and as many were lost.
RECEIVE_BUFFER, SEND_BUFFER = 1 << 20, 4 << 20


class Received(Protocol):
    """Datagrams that have come to one socket, and the way back for each: those of ``mmsg``, or of the native code."""

    @property
    def received_at(self) -> float:
        """When the first of the datagrams received last came, by ``time.perf_counter``."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while datagrams wait."""

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Return waiting datagrams, at most ``BATCH``, each with its source (a packed address). Raises OSError."""

    def send(self, first: int, replies: Sequence[bytes | None]) -> int:
        """Send replies to datagrams received last, from number *first* on, none where it is None.

        Return how many were lost.
        """

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
    enlarge(sock, socket.SO_RCVBUF, RECEIVE_BUFFER)
    enlarge(sock, socket.SO_SNDBUF, SEND_BUFFER)
    if wildcard:
        tell_destinations(sock)


async def serve(
    sock: socket.socket,
    responder: Responder,
    counts: Counts,
    upstream: Upstream | None = None,
    *,
    native: AnswerTable | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer the queries that arrive at a bound socket, until cancelled. *native* is the responder's native code."""
    async with trio.open_nursery() as nursery:
        received: Received = Datagrams(sock) if native is None else _received_natively(sock, native, counts)
        pending = PendingReplies(responder, counts, upstream, nursery)
        listener = _Listener(received, responder, counts, pending, native=native is not None)
        task_status.started()
        try:
            while True:
                await wait_readable(received.fileno())
                while listener.answer_waiting():  # some may be received, but not answered
                    await checkpoint()
        finally:
            received.end()
            for _ in range(LAST_TURNS):
                if not listener.answer_waiting():
                    break


def _received_natively(sock: socket.socket, table: AnswerTable, counts: Counts) -> Received:
    from dnsserver.net import native

    def count_failures() -> None:
        lost, errors, dropped = received.take_failures()
        counts.failures.update({wall: n for wall, n in (("send", lost), ("receive", errors), ("queue", dropped)) if n})

    sock.setblocking(True)  # its thread waits
    six, wildcard = sock.family == socket.AF_INET6, is_wildcard(sock)
    received = native.Datagrams(sock.fileno(), table, six=six, wildcard=wildcard)
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
        self._queries: list[tuple[bytes, bytes]] = []  # received last
        self._answered = 0  # of these

    def answer_waiting(self) -> bool:
        """Answer queries that wait, for about ``TURN_SECONDS``; return whether there may be more."""
        end = time.perf_counter() + TURN_SECONDS
        while self._answer_some(end):
            if time.perf_counter() >= end:
                return True
        return False

    def _answer_some(self, end: float) -> bool:
        """Answer a batch of queries, or what is left of one, at most until *end*; return whether there may be more."""
        if self._answered == len(self._queries):
            try:
                self._queries, self._answered = self._datagrams.receive(), 0
            except OSError as error:  # e.g. an ICMP error about an earlier reply
                self._counts.failures["receive"] += 1
                log.debug("receive: %s", error)
                return True
            if not self._queries:
                return False
        began = self._datagrams.received_at
        waiting, replies, lasting = self._answer(began, end)
        if lost := self._datagrams.send(self._answered, replies):
            self._counts.failures["send"] += lost
        self._answered += len(replies)
        self._counts.took(time.perf_counter() - began, len(replies) - waiting)
        for query, source in lasting:
            self._learn(query, source)
        return self._answered < len(self._queries) or len(self._queries) == BATCH

    def _answer(self, began: float, end: float) -> tuple[int, list[bytes | None], list[tuple[bytes, bytes]]]:
        """Answer received queries, at least one, until *end*.

        Return how many replies will be sent later, all replies, and the queries to learn from. A reply is None if none
        is sent now. There is nothing to learn from what ``Responder.passing`` counts.
        """
        four, six = self._counts.channels["udp", 1], self._counts.channels["udp", 2]
        responder = self._responder
        answer, native, clock = responder.answer, self._native, time.perf_counter
        replies: list[bytes | None] = []
        lasting: list[tuple[bytes, bytes]] = []
        waiting = 0
        for query, source in islice(self._queries, self._answered, None):
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
                    route = self._route(self._answered + len(replies), source, began)
                    reply = self._pending.finish_or_wait(reply, route)
                    waiting += reply is None
                replies.append(reply)
            except Exception as error:
                self._failed(source, error)
                replies.append(None)
            if clock() >= end:
                break
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
