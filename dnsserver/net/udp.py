# SPDX-License-Identifier: Apache-2.0

"""DNS over UDP: waits until datagrams have come, then answers all that wait.

With native code, a thread without the interpreter lock receives them, and repeats answers that it knows. Then only the
others come here, and each answer that is lasting is made known to it, if it can be repeated.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import trio
from trio.lowlevel import checkpoint, wait_readable

from dnsserver.metrics.counters import Counts
from dnsserver.net.bounds import TURN_SECONDS
from dnsserver.net.pending import PendingReplies, ReplyRoute
from dnsserver.responder.native_feed import AnswerTable
from dnsserver.responder.replies import AnsweredQuery
from dnsserver.responder.responder import Responder
from locator.ip import plain_address

if TYPE_CHECKING:
    from dnsserver.net import native
    from dnsserver.net.upstream import Upstream  # imports dnspython, which not every server needs

log = logging.getLogger(__name__)

BATCH = 64  # datagrams received before they are answered
QUERY_SIZE = 1536  # octets: a query of 1232, the size in our OPT records, and a PROXY header; more is cut off
CONTROL_SIZE = 64  # octets, enough for the address that a datagram was sent to
LAST_TURNS = 20  # at the end, for the queries that have arrived
LAST_BATCHES = 512  # at the end, of queries that get no answer any more
# Octets of the socket's buffers; the kernel doubles them. A burst of two thousand queries must fit. A flood fills the
# buffer, and each query waits for all in it: with four times as much, names took 35 ms, and as many were lost.
RECEIVE_BUFFER, SEND_BUFFER = 1 << 20, 4 << 20
FORCED = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}  # <asm-generic/socket.h>: SO_SNDBUFFORCE, SO_RCVBUFFORCE
IP_PKTINFO = 8  # <linux/in.h>; Python's socket module lacks it before 3.14


def prepare(sock: socket.socket, *, wildcard: bool) -> None:
    """Set the options of a UDP socket that is not bound yet.

    A *wildcard* socket also receives the address to which each datagram was sent.
    """
    sock.setblocking(False)
    for option, octets in ((socket.SO_RCVBUF, RECEIVE_BUFFER), (socket.SO_SNDBUF, SEND_BUFFER)):
        try:
            sock.setsockopt(socket.SOL_SOCKET, FORCED[option], octets)
        except PermissionError:  # net.core.rmem_max and wmem_max are the limit
            sock.setsockopt(socket.SOL_SOCKET, option, octets)
    if wildcard and sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    elif wildcard:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)


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
        received = Datagrams(sock) if native is None else _received_natively(sock, native, counts)
        pending = PendingReplies(responder, counts, upstream, nursery)
        loop = _SocketLoop(received, responder, counts, pending)
        task_status.started()
        try:
            while True:
                await wait_readable(received.fileno())
                while loop.answer_waiting():  # some may be received, but not answered
                    await checkpoint()
        finally:
            received.end()
            loop.end()


def _received_natively(sock: socket.socket, table: AnswerTable, counts: Counts) -> native.Datagrams:
    from dnsserver.net import native

    def count_failures() -> None:
        places = zip(("send", "receive", "queue", "packet"), received.take_failures(), strict=True)
        counts.failures.update({where: number for where, number in places if number})

    sock.setblocking(True)  # its thread waits
    six, wildcard = sock.family == socket.AF_INET6, _is_wildcard(sock)
    received = native.Datagrams(sock.fileno(), table, six=six, wildcard=wildcard)
    counts.before_reading.append(count_failures)
    return received


def _is_wildcard(sock: socket.socket) -> bool:
    """Whether a bound socket receives what is sent to any address of the machine."""
    return sock.getsockname()[0] in ("0.0.0.0", "::")


class Datagrams:
    """Datagrams that have come to a socket, and the way back for each. The native code has the same for its own.

    ``received_at`` is when the first of those received last came, by ``time.perf_counter``.

    On a wildcard socket, the control data of a received datagram hold the address that it was sent to. Passed back with
    the reply, they make the reply leave from that address.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._control = CONTROL_SIZE if _is_wildcard(sock) else 0
        # The interface's index in the control data. Unless it is set to 0, the reply would leave through the interface
        # of the query, whatever the routing table says.
        self._index = slice(16, 20) if sock.family == socket.AF_INET6 else slice(0, 4)
        self._paths: list[tuple[Any, Any]] = []
        self.received_at = 0.0

    def fileno(self) -> int:
        """Return a descriptor that is readable while datagrams wait."""
        return self._sock.fileno()

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Return waiting datagrams, at most ``BATCH``, each with its packed source. Raises OSError."""
        found: list[tuple[bytes, bytes]] = []
        self._paths = []
        family, receive, control = self._sock.family, self._sock.recvmsg, self._control
        try:
            for _ in range(BATCH):
                octets, ancillary, _, address = receive(QUERY_SIZE, control)
                self._paths.append((ancillary, address))
                found.append((octets, socket.inet_pton(family, address[0].partition("%")[0])))
        except OSError as error:
            if not found and not isinstance(error, (BlockingIOError, InterruptedError)):
                raise
        self.received_at = time.perf_counter()
        return found

    def send(self, first: int, replies: Sequence[bytes | None]) -> int:
        """Send replies to datagrams received last, from number *first* on, none where it is None.

        Return how many were lost: the kernel refuses a reply to port 0, without a route, or if its buffer is full.
        """
        lost = 0
        for slot, reply in enumerate(replies, first):
            if reply is not None:
                lost += self.send_along(self._paths[slot], reply)
        return lost

    def path(self, slot: int) -> tuple[Any, Any]:
        """Return the way back of a datagram received last, for ``send_along``: its control data and address."""
        return self._paths[slot]

    def send_along(self, path: tuple[Any, Any], reply: bytes) -> int:
        """Send a reply, perhaps later; return how many were lost."""
        control, address = path
        at = self._index
        try:
            if control:
                control = [
                    (level, kind, data[: at.start] + bytes(4) + data[at.stop :]) for level, kind, data in control
                ]
                self._sock.sendmsg((reply,), control, 0, address)
            else:
                self._sock.sendto(reply, address)
        except OSError:
            return 1
        return 0

    def end(self) -> None:
        """Receive no more, except what has arrived."""


class _SocketLoop:
    """The loop of one socket: receive a batch, answer it, send the replies."""

    def __init__(
        self, datagrams: Datagrams | native.Datagrams, responder: Responder, counts: Counts, pending: PendingReplies
    ) -> None:
        self._datagrams = datagrams
        self._responder = responder
        self._counts = counts
        self._pending = pending
        self._queries: list[tuple[bytes, bytes]] = []  # received last
        self._answered = 0  # of these

    def answer_waiting(self) -> bool:
        """Answer queries that wait, for about ``TURN_SECONDS``; return whether there may be more."""
        end = time.perf_counter() + TURN_SECONDS
        while self._answer_some(end):
            if time.perf_counter() >= end:
                return True
        return False

    def end(self) -> None:
        """Answer queries that have arrived, for a while, and count all that are left."""
        for _ in range(LAST_TURNS):
            if not self.answer_waiting():
                return
        self._counts.failures["queue"] += len(self._queries) - self._answered
        with suppress(OSError):
            for _ in range(LAST_BATCHES):
                left = len(self._datagrams.receive())
                if not left:
                    break
                self._counts.failures["queue"] += left

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
        waiting, replies, answers = self._answer(began, end)
        if lost := self._datagrams.send(self._answered, replies):
            self._counts.failures["send"] += lost
        self._answered += len(replies)
        self._counts.took(time.perf_counter() - began, len(replies) - waiting)
        for answered in answers:
            self._feed(answered)
        return self._answered < len(self._queries) or len(self._queries) == BATCH

    def _answer(self, began: float, end: float) -> tuple[int, list[bytes | None], list[AnsweredQuery]]:
        """Answer received queries, at least one, until *end*.

        Return how many replies will be sent later, all replies, and what they were made from. A reply is None if none
        is sent now.
        """
        four, six = self._counts.channels["udp", 1], self._counts.channels["udp", 2]
        answer, clock = self._responder.answer, time.perf_counter
        replies: list[bytes | None] = []
        answers: list[AnsweredQuery] = []
        waiting = 0
        for octets, source in islice(self._queries, self._answered, None):
            channel = four
            if len(source) == 16:
                source = plain_address(source)
                channel = four if len(source) == 4 else six
            reply = None
            try:
                answered = answer(octets, source, channel)
                if answered is not None:
                    reply = answered.reply
                    answers.append(answered)
                    if reply is None:
                        route = self._route(self._answered + len(replies), source, began)
                        reply = self._pending.finish_or_wait(answered, route)
                        waiting += reply is None
            except Exception as error:
                self._failed(source, error)
            replies.append(reply)
            if clock() >= end:
                break
        return waiting, replies, answers

    def _feed(self, answered: AnsweredQuery) -> None:
        try:
            self._responder.feed(answered)
        except Exception as error:
            self._failed(answered.source, error)

    def _route(self, slot: int, source: bytes, began: float) -> ReplyRoute:
        """Return how a later reply reaches the sender of the datagram in a slot."""
        return ReplyRoute(began, partial(self._send_later, self._datagrams.path(slot)), partial(self._failed, source))

    def _send_later(self, path: Any, reply: bytes) -> None:
        self._counts.failures["send"] += self._datagrams.send_along(path, reply)

    def _failed(self, source: bytes, error: Exception) -> None:
        """Count and log an error in one query; only this query goes without a reply."""
        self._counts.failures["packet"] += 1
        log.error("a query from %s could not be answered", source.hex(), exc_info=error)
