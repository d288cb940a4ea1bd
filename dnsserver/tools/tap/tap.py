# SPDX-License-Identifier: Apache-2.0

"""The tap: while somebody listens, it stands between a responder and its callers, and tells of every reply.

Nothing is decided twice with different results: a listener hears of a reply at the moment when it is made, from the
snapshot and the place of the client that it was made from. The responder answers as it does without a tap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from msgspec import Struct

from dnsserver.answers.decision import Authority, Decision, UpstreamAnswer
from dnsserver.answers.resolution import resolve
from dnsserver.metrics.counters import Channel
from dnsserver.names import meaning_of
from dnsserver.responder.replies import PendingReply
from dnsserver.responder.responder import Inquiry, Responder
from locator.bounded_map import BoundedMap
from locator.model import Location
from locator.state.snapshot import Snapshot

MAX_PENDING = 1024  # replies that wait for the upstream, and of which listeners hear when it has answered
MAX_FACTS = 16_384  # questions by location whose facts are known for one snapshot: some megabytes


class Told(Struct, frozen=True, eq=False, gc=False):
    """A reply, and what its Decision was made from.

    ``time`` is in seconds since 1970. ``protocol`` is "udp" or "tcp". ``source`` sent the query: a packed address.
    If it waited for the upstream, ``known`` is what that said, by name, and ``snapshot`` the one when it was sent.
    """

    time: float
    protocol: str
    source: bytes
    inquiry: Inquiry
    reply: bytes
    snapshot: Snapshot
    known: Mapping[str, UpstreamAnswer]


class Facts(NamedTuple):
    """What listeners choose by: the Service (``namespace/name``, empty for none) and the outcome of a Decision."""

    service: str
    outcome: str


class Listener(Protocol):
    """Who wants to hear of replies: those about one ``service`` (``namespace/name``), or None for all."""

    @property
    def service(self) -> str | None:
        """See above. It may hear of others, too."""

    def hear(self, overheard: Overheard) -> None:
        """Hear of a reply. What is not taken from *overheard* now is lost: the next snapshot may differ."""


class Overheard:
    """A reply that is about to be sent. What a listener asks for is worked out once, when the first one asks."""

    __slots__ = (
        "_channel", "_facts", "_header_client", "_inquired", "_inquiry", "_query", "_source", "_tap", "known", "reply",
        "snapshot",
    )  # fmt: skip

    def __init__(self, tap: Tap, query: bytes, source: bytes, channel: Channel, header_client: bytes | None) -> None:
        self._tap = tap
        self._query, self._source, self._channel, self._header_client = query, source, channel, header_client
        self._inquired = False
        self._inquiry: Inquiry | None = None
        self._facts: Facts | None = None
        self.reply = b""
        self.known: Mapping[str, UpstreamAnswer] = {}
        self.snapshot: Snapshot | None = None  # when a reply that waited was finished

    @property
    def inquiry(self) -> Inquiry | None:
        """What the Decision is made from, None if nothing was decided: the query is malformed, say."""
        if not self._inquired:
            self._inquired = True
            self._inquiry = self._tap.inquire(self._query, self._source, self._header_client)
        return self._inquiry

    @property
    def facts(self) -> Facts:
        """The facts of the Decision; there must be an ``inquiry``."""
        if self._facts is None:
            assert self.inquiry is not None
            snapshot = self.snapshot or self.inquiry.snapshot
            self._facts = self._tap.facts_of(self.inquiry, snapshot, self.known)
        return self._facts

    @property
    def told(self) -> Told | None:
        """Everything about the reply as a value, None if nothing was decided."""
        inquiry = self.inquiry
        if inquiry is None:
            return None
        time, snapshot = self._tap.clock(), self.snapshot or inquiry.snapshot
        return Told(time, self._channel.proto, self._source, inquiry, self.reply, snapshot, self.known)


class Tap:
    """Tells listeners of the replies of a *responder*.

    *clock* returns the seconds since 1970. *failed* is told of an error in a listener, which costs no reply.
    """

    def __init__(
        self,
        responder: Responder,
        authority: Authority,
        *,
        clock: Callable[[], float],
        failed: Callable[[Exception], None],
    ) -> None:
        self.clock, self.failed = clock, failed
        self._responder, self._authority = responder, authority
        self._answer, self._finish = responder.answer, responder.finish
        self._listeners: tuple[Listener, ...] = ()
        self._pending: dict[PendingReply, Overheard] = {}
        self._facts: BoundedMap[tuple[tuple[bytes, ...], int, Location], Facts] = BoundedMap(MAX_FACTS)
        self._facts_from: Snapshot | None = None

    def listen(self, listener: Listener) -> None:
        """Tell *listener* of replies from now on."""
        self._set((*self._listeners, listener))

    def leave(self, listener: Listener) -> None:
        """Tell *listener* no longer."""
        self._set(tuple(other for other in self._listeners if other is not listener))

    def _set(self, listeners: tuple[Listener, ...]) -> None:
        before, self._listeners = self._listeners, listeners
        if listeners:
            services = {listener.service for listener in listeners}
            known = frozenset(service for service in services if service is not None)
            self._responder.tap(self._tapped, self._tapped_finish, None if None in services else known)
        elif before:
            self._responder.untap()
            self._pending.clear()
            self._facts.clear()
            self._facts_from = None

    def inquire(self, query: bytes, source: bytes, header_client: bytes | None) -> Inquiry | None:
        """Return what the Decision on a query is made from now, None if nothing is decided about it."""
        return self._responder.inquiry(query, source, header_client=header_client)

    def facts_of(self, inquiry: Inquiry, snapshot: Snapshot, known: Mapping[str, UpstreamAnswer]) -> Facts:
        """Return the facts of a Decision, and remember them: a busy server decides the same over and over.

        What is decided with what the upstream says is not remembered: *known* is that, by name.
        """
        if known:
            return _facts(self._decision(inquiry, snapshot, known))
        if snapshot is not self._facts_from:
            self._facts.clear()
            self._facts_from = snapshot
        key = (inquiry.labels, inquiry.qtype, inquiry.place.location)
        facts = self._facts.get(key)
        if facts is None:
            facts = self._facts[key] = _facts(self._decision(inquiry, snapshot, known))
        return facts

    def _decision(self, inquiry: Inquiry, snapshot: Snapshot, known: Mapping[str, UpstreamAnswer]) -> Decision:
        meaning, location = meaning_of(inquiry.labels, self._authority.zones), inquiry.place.location
        return resolve(meaning, inquiry.qtype, snapshot, location, self._authority, outside=known.get)

    def _tapped(
        self, query: bytes, source: bytes, channel: Channel, *, header_client: bytes | None = None
    ) -> bytes | PendingReply | None:
        """``Responder.answer``, told of."""
        reply = self._answer(query, source, channel, header_client=header_client)
        if reply is not None:
            try:
                overheard = Overheard(self, query, source, channel, header_client)
                if isinstance(reply, bytes):
                    self._tell(overheard, reply)
                elif overheard.inquiry is not None:
                    if len(self._pending) >= MAX_PENDING:
                        del self._pending[next(iter(self._pending))]
                    self._pending[reply] = overheard
            except Exception as error:  # boundary: nobody who listens may cost an answer
                self.failed(error)
        return reply

    def _tapped_finish(self, pending: PendingReply, said: UpstreamAnswer) -> bytes | PendingReply:
        """``Responder.finish``, told of."""
        reply = self._finish(pending, said)
        overheard = self._pending.pop(pending, None)
        if overheard is not None:
            try:
                if isinstance(reply, bytes):
                    overheard.known = {**pending.known, pending.target: said}
                    overheard.snapshot = self._responder.snapshot
                    self._tell(overheard, reply)
                else:
                    self._pending[reply] = overheard
            except Exception as error:  # boundary: as above
                self.failed(error)
        return reply

    def _tell(self, overheard: Overheard, reply: bytes) -> None:
        overheard.reply = reply
        for listener in self._listeners:
            listener.hear(overheard)


def _facts(decision: Decision) -> Facts:
    found = decision.federated
    service = found.key if found is not None else decision.service.service.key if decision.service is not None else ""
    return Facts(service, decision.outcome)
