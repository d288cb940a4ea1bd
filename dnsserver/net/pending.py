"""Finishes replies that wait for an upstream, in one way for UDP and TCP."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from dnsserver.message.records import Record
from dnsserver.metrics.counters import Counts
from dnsserver.responder.replies import PendingReply
from dnsserver.responder.responder import Responder

if TYPE_CHECKING:  # imports dnspython, which a server without an upstream does not need
    from dnsserver.net.upstream import Upstream


class ReplyRoute(Struct, frozen=True):
    """How a pending reply reaches its client.

    ``since`` is when the query came, by ``time.perf_counter``. ``send`` takes the finished reply;
    ``failed`` takes the error if finishing or sending fails.

    For TCP, ``scope`` is cancelled when the connection closes or the server ends. Then nothing is
    sent: the client sees the connection close. For UDP, ``scope`` is None: when the server ends,
    the reply is sent with the aliases alone, because the client would not notice the end.
    """

    since: float
    send: Callable[[bytes], None]
    failed: Callable[[Exception], None]
    scope: trio.CancelScope | None = None


class PendingReplies:
    """Finishes replies with the records that the *upstream* has for their targets.

    If *upstream* is None, a reply has the aliases alone and never waits. Tasks in *nursery* wait.
    """

    def __init__(self, responder: Responder, counts: Counts, upstream: Upstream | None, nursery: trio.Nursery) -> None:
        self._responder = responder
        self._counts = counts
        self._upstream = upstream
        self._nursery = nursery

    def finish_or_wait(self, pending: PendingReply, route: ReplyRoute) -> bytes | None:
        """Return the reply if it need not wait; else return None, and send it along *route* later."""
        if self._upstream is None:
            return self._responder.finish(pending, None)
        known = self._upstream.answer_at_once(pending.target, pending.qtype)
        if known is not None:
            return self._responder.finish(pending, known.records)
        self._nursery.start_soon(self._wait, self._upstream, pending, route)
        return None

    async def _wait(self, upstream: Upstream, pending: PendingReply, route: ReplyRoute) -> None:
        if route.scope is None:
            records = None
            try:
                records = await upstream.find(pending.target, pending.qtype)
            finally:
                self._send(pending, records, route)
            return
        with route.scope:
            records = await upstream.find(pending.target, pending.qtype)
        if not route.scope.cancel_called:
            self._send(pending, records, route)

    def _send(self, pending: PendingReply, records: Sequence[Record] | None, route: ReplyRoute) -> None:
        try:
            route.send(self._responder.finish(pending, records))
            self._counts.took(time.perf_counter() - route.since, 1)
        except Exception as error:  # ``failed`` belongs to the packet or the connection, which catches its own errors
            route.failed(error)
