"""DNS over UDP: waits until the socket is readable, then receives and answers until it is empty."""

from __future__ import annotations

import logging
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import checkpoint, wait_readable

from dnsserver.metrics.counters import Counts
from dnsserver.net.mmsg import BATCH, Datagrams, Path, enlarge, tell_destinations
from dnsserver.net.pending import PendingReplies, ReplyRoute
from dnsserver.responder.responder import Responder

if TYPE_CHECKING:  # imports dnspython, which a server without an upstream does not need
    from dnsserver.net.upstream import Upstream

log = logging.getLogger(__name__)

BATCHES_AT_ONCE = 16  # before other tasks run: some milliseconds
SOCKET_BUFFER = 4 << 20  # octets: a burst of some thousand queries is not lost
MAPPED = b"\0\0\0\0\0\0\0\0\0\0\xff\xff"  # the prefix of IPv4-mapped IPv6 addresses


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
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer the queries that arrive at a bound socket, until cancelled."""
    async with trio.open_nursery() as nursery:
        listener = _Listener(Datagrams(sock), responder, counts, PendingReplies(responder, counts, upstream, nursery))
        task_status.started()
        try:
            while True:
                await wait_readable(sock)
                if listener.answer_waiting():
                    await checkpoint()
        finally:
            listener.answer_waiting()  # answer the queries that arrived before the end


class _Listener:
    """The loop of one socket: receive a batch, answer it, send the replies."""

    def __init__(self, datagrams: Datagrams, responder: Responder, counts: Counts, pending: PendingReplies) -> None:
        self._datagrams = datagrams
        self._responder = responder
        self._counts = counts
        self._pending = pending

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
        began = time.perf_counter()
        waiting, replies = self._answer(queries, began)
        if lost := self._datagrams.send(replies):
            self._counts.failures["send"] += lost
        self._counts.took(time.perf_counter() - began, len(queries) - waiting)
        return len(queries) == BATCH

    def _answer(self, queries: list[tuple[bytes, bytes]], began: float) -> tuple[int, list[bytes | None]]:
        """Return how many replies will be sent later, and for each query its reply, None if none is sent now."""
        four, six = self._counts.channels["udp", 1], self._counts.channels["udp", 2]
        answer = self._responder.answer
        replies: list[bytes | None] = []
        waiting = 0
        for query, source in queries:
            channel = four
            if len(source) == 16:
                if source.startswith(MAPPED):
                    source = source[12:]
                else:
                    channel = six
            try:
                reply = answer(query, source, channel)
                if reply is not None and not isinstance(reply, bytes):
                    reply = self._pending.finish_or_wait(reply, self._route(len(replies), source, began))
                    waiting += reply is None
                replies.append(reply)
            except Exception as error:
                self._failed(source, error)
                replies.append(None)
        return waiting, replies

    def _route(self, slot: int, source: bytes, began: float) -> ReplyRoute:
        """Return how a later reply reaches the sender of the datagram in a slot."""
        return ReplyRoute(began, partial(self._send_later, self._datagrams.path(slot)), partial(self._failed, source))

    def _send_later(self, path: Path, reply: bytes) -> None:
        self._counts.failures["send"] += self._datagrams.send_along(path, reply)

    def _failed(self, source: bytes, error: Exception) -> None:
        """Count and log an error in one query; only this query goes without a reply."""
        self._counts.failures["packet"] += 1
        log.error("a query from %s could not be answered", source.hex(), exc_info=error)
