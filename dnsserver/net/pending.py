# SPDX-License-Identifier: Apache-2.0

"""Finishes replies that wait for an upstream, in one way for UDP and TCP.

A reply may need several answers of the upstream, one after another: aliases lead in and out of the zones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.message import wire
from dnsserver.metrics.counters import Counts
from dnsserver.responder.replies import AnsweredQuery
from dnsserver.responder.responder import Responder

if TYPE_CHECKING:  # imports dnspython, which a server without an upstream does not need
    from dnsserver.net.upstream import Upstream


class ReplyRoute(Struct, frozen=True):
    """How a pending reply reaches its client.

    ``since`` is when the query came, by ``time.perf_counter``. ``send`` takes the finished reply;
    ``failed`` takes the error if finishing or sending fails.

    For TCP, ``scope`` is cancelled when the connection closes or the server ends. Then nothing is
    sent: the client sees the connection close. For UDP, ``scope`` is None: when the server ends,
    the reply is SERVFAIL, because the client would not notice the end.
    """

    since: float
    send: Callable[[bytes], None]
    failed: Callable[[Exception], None]
    scope: trio.CancelScope | None = None


# What a reply says that can no longer wait, because the server ends.
_ENDED = UpstreamAnswer(
    wire.SERVFAIL, extended_error=(wire.EDE_NO_REACHABLE_AUTHORITY, "the server ends, and no longer waits")
)


class PendingReplies:
    """Finishes replies with what the *upstream* says about their targets. Tasks in *nursery* wait.

    If *upstream* is None, no reply may be pending.
    """

    def __init__(self, responder: Responder, counts: Counts, upstream: Upstream | None, nursery: trio.Nursery) -> None:
        self._responder = responder
        self._counts = counts
        self._upstream = upstream
        self._nursery = nursery

    def finish_or_wait(self, pending: AnsweredQuery, route: ReplyRoute) -> bytes | None:
        """Return the reply if it need not wait; else return None, and send it along *route* later."""
        assert self._upstream is not None
        while pending.reply is None:
            said = self._upstream.answer_at_once(pending.target, pending.query.qtype, pending.namespace)
            if said is None:
                self._nursery.start_soon(self._wait, self._upstream, pending, route)
                return None
            pending = self._responder.finish(pending, said)
        return pending.reply

    async def _wait(self, upstream: Upstream, pending: AnsweredQuery, route: ReplyRoute) -> None:
        try:
            with route.scope or trio.CancelScope() as scope:
                reply = await self._resolved(upstream, pending)
            if not scope.cancel_called:
                self._send(reply, route)
        except trio.Cancelled:
            if route.scope is None:
                self._end(pending, route)
            raise
        except Exception as error:  # ``failed`` belongs to the packet or the connection, which catches its own errors
            route.failed(error)

    def _end(self, pending: AnsweredQuery, route: ReplyRoute) -> None:
        """Reply without having waited to the end."""
        try:
            while pending.reply is None:  # its name may have become an alias of another one meanwhile
                pending = self._responder.finish(pending, _ENDED)
            self._send(pending.reply, route)
        except Exception as error:  # boundary: one packet or connection
            route.failed(error)

    async def _resolved(self, upstream: Upstream, pending: AnsweredQuery) -> bytes:
        """Return the reply once the upstream has said enough."""
        find = upstream.for_one_query()
        while pending.reply is None:
            said = await find(pending.target, pending.query.qtype, pending.namespace)
            pending = self._responder.finish(pending, said)
        return pending.reply

    def _send(self, reply: bytes, route: ReplyRoute) -> None:
        route.send(reply)
        self._counts.took(time.perf_counter() - route.since, 1)
