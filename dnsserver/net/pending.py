"""Replies that wait for a name elsewhere: one way to finish them, for UDP and TCP."""

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

if TYPE_CHECKING:  # it brings dnspython, which servers without an upstream need not
    from dnsserver.net.upstream import Upstream


class Asker(Struct, frozen=True):
    """Who waits for a reply: since when, by ``time.perf_counter``, and how the reply gets there.

    ``send`` takes the finished reply. ``failed`` takes the error instead, if finishing or sending
    fails. Whoever closes the asker's connection cancels ``scope``: then nothing is sent, nor is it
    when the server ends first, since the client sees that the connection is closed. None is for
    a client by UDP, which sees nothing: its reply leaves even then, without what was to be found.
    """

    since: float
    send: Callable[[bytes], None]
    failed: Callable[[Exception], None]
    scope: trio.CancelScope | None = None


class PendingReplies:
    """Finishes replies with what the *upstream* says of the names that they wait for.

    Without an upstream nothing is found, and nothing waits. What must wait does so in the *nursery*.
    """

    def __init__(self, responder: Responder, counts: Counts, upstream: Upstream | None, nursery: trio.Nursery) -> None:
        self._responder = responder
        self._counts = counts
        self._upstream = upstream
        self._nursery = nursery

    def finish(self, pending: PendingReply, asker: Asker) -> bytes | None:
        """Return the reply if it need not wait; else None, and the *asker* gets it later."""
        if self._upstream is None:
            return self._responder.finish(pending, None)
        known = self._upstream.recall(pending.target, pending.qtype)
        if known is not None:
            return self._responder.finish(pending, known.records)
        self._nursery.start_soon(self._wait, self._upstream, pending, asker)
        return None

    async def _wait(self, upstream: Upstream, pending: PendingReply, asker: Asker) -> None:
        if asker.scope is None:
            found = None
            try:
                found = await upstream.find(pending.target, pending.qtype)
            finally:
                self._send(pending, found, asker)
            return
        with asker.scope:
            found = await upstream.find(pending.target, pending.qtype)
        if not asker.scope.cancel_called:
            self._send(pending, found, asker)

    def _send(self, pending: PendingReply, found: Sequence[Record] | None, asker: Asker) -> None:
        try:
            asker.send(self._responder.finish(pending, found))
            self._counts.took(time.perf_counter() - asker.since, 1)
        except Exception as error:  # for the wall around the packet, or around the connection
            asker.failed(error)
