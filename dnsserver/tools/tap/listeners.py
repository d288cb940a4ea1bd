# SPDX-License-Identifier: Apache-2.0

"""Those who listen at the tap: a stream of what somebody wants to know, and a sample of everything."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from dnsserver.tools.tap.tap import TapEvent
from locator.ip import Network, is_within
from locator.topology.selection import UNCONSTRAINED, UNMET, UNREADY

MAX_WAITING = 256  # replies for one reader; a slower one loses what comes beyond


def is_outcome(wanted: str | None, outcome: str) -> bool:
    """Whether the outcome of an answer is what somebody wants to know of, None for any.

    Where no endpoint of the Service is ready, an explanation calls the answer unconstrained; but who wants to know who
    got nothing wants to know of that, too.
    """
    return wanted in (None, outcome) or (outcome == UNREADY and wanted in (UNMET, UNCONSTRAINED))


class Wanted(Struct, frozen=True):
    """What somebody wants to know of: a Service (``namespace/name``), a client or network, an outcome; None: any."""

    service: str | None = None
    client: Network | None = None
    outcome: str | None = None

    def matches(self, event: TapEvent) -> bool:
        """Whether a reply is wanted."""
        answer, client = event.answered.answer, event.answered.client
        network = client.network if client is not None else None
        if self.client is not None and (network is None or not is_within(network, self.client)):
            return False
        service, outcome = (answer.service, answer.outcome) if answer is not None else ("", UNCONSTRAINED)
        return self.service in (None, service) and is_outcome(self.outcome, outcome)


class DecisionStream:
    """The replies that one reader wants, until it takes them.

    *wake* is called when there is something to take. A reader that is slower than the server loses replies, and
    ``take`` says how many.
    """

    def __init__(self, wanted: Wanted, wake: Callable[[], None]) -> None:
        self._wanted = wanted
        self._wake = wake
        self._waiting: list[TapEvent] = []
        self._lost = 0

    @property
    def service(self) -> str | None:
        """The Service that is wanted, None for all."""
        return self._wanted.service

    def on_event(self, event: TapEvent) -> None:
        """Keep a reply for the reader, if it wants it and there is room."""
        if not self._wanted.matches(event):
            return
        if len(self._waiting) >= MAX_WAITING:
            self._lost += 1
        else:
            self._waiting.append(event)
            self._wake()

    def take(self) -> tuple[list[TapEvent], int]:
        """Return the replies since the last call, and how many were lost."""
        taken, self._waiting = self._waiting, []
        lost, self._lost = self._lost, 0
        return taken, lost


class Sample:
    """At most *size* of all replies between two calls of ``take``, each with the same probability.

    *chance* returns numbers from 0 to below 1.
    """

    service = None

    def __init__(self, size: int, chance: Callable[[], float]) -> None:
        self._size, self._chance = size, chance
        self._seen = 0
        self._drawn: list[TapEvent] = []

    def on_event(self, event: TapEvent) -> None:
        """Draw by algorithm R (Vitter, 1985)."""
        self._seen += 1
        if self._seen <= self._size:
            self._drawn.append(event)
        elif (slot := int(self._chance() * self._seen)) < self._size:
            self._drawn[slot] = event

    def take(self) -> list[TapEvent]:
        """Return what was drawn since the last call, in the order of time."""
        drawn, self._drawn, self._seen = self._drawn, [], 0
        return sorted(drawn, key=lambda event: event.time)
