# SPDX-License-Identifier: Apache-2.0

"""The tap: while somebody listens, a responder tells of every reply, at the moment when it is made.

Nothing is decided twice with different results: an event has the snapshot and the client that the reply was made from.
The responder answers as it does without a tap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from msgspec import Struct

from dnsserver.responder.replies import AnsweredQuery
from dnsserver.responder.responder import Responder


class TapEvent(Struct, frozen=True, eq=False, gc=False):
    """A reply that is about to be sent, and what it was made from; ``time`` is in seconds since 1970."""

    time: float
    answered: AnsweredQuery


class Listener(Protocol):
    """Who wants to know of replies: those about one ``service`` (``namespace/name``), or None for all."""

    @property
    def service(self) -> str | None:
        """The Service. The listener may be told of others, too."""

    def on_event(self, event: TapEvent) -> None:
        """Take note of a reply."""


class OutcomeListener(Protocol):
    """Who wants to know of replies with some ``outcomes``, as far as that costs no reply anything."""

    @property
    def outcomes(self) -> Collection[str]:
        """The outcomes."""

    def on_event(self, event: TapEvent) -> None:
        """Take note of a reply."""


class Tap:
    """Tells listeners of the replies of a *responder*.

    *clock* returns the seconds since 1970. *failed* is told of an error in a listener, which costs no reply.
    """

    def __init__(
        self, responder: Responder, *, clock: Callable[[], float], failed: Callable[[Exception], None]
    ) -> None:
        self.failed = failed
        self._clock = clock
        self._responder = responder
        self._listeners: tuple[Listener, ...] = ()
        self._outcome_listener: OutcomeListener | None = None

    def listen_for_outcomes(self, listener: OutcomeListener) -> None:
        """Tell *listener* of replies with its outcomes from now on, those that native code repeats left out."""
        self._outcome_listener = listener
        self._set(self._listeners)

    def listen(self, listener: Listener) -> None:
        """Tell *listener* of replies from now on."""
        self._set((*self._listeners, listener))

    def leave(self, listener: Listener) -> None:
        """Tell *listener* no longer."""
        self._set(tuple(other for other in self._listeners if other is not listener))

    def _set(self, listeners: tuple[Listener, ...]) -> None:
        self._listeners = listeners
        services = {listener.service for listener in listeners}
        known = frozenset(service for service in services if service is not None)
        heard = listeners or self._outcome_listener is not None
        self._responder.listen(self._tell if heard else None, None if None in services else known)

    def _tell(self, answered: AnsweredQuery) -> None:
        listeners: tuple[Listener | OutcomeListener, ...] = self._listeners
        by_outcome, answer = self._outcome_listener, answered.answer
        if by_outcome is not None and answer is not None and answer.outcome in by_outcome.outcomes:
            listeners = (*listeners, by_outcome)
        if not listeners:
            return
        event = TapEvent(self._clock(), answered)
        for listener in listeners:
            try:
                listener.on_event(event)
            except Exception as error:  # boundary: nobody who listens may cost an answer
                self.failed(error)
