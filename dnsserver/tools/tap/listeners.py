# SPDX-License-Identifier: Apache-2.0

"""Those who listen at the tap: a stream of what somebody wants to hear, and a sample of everything."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from dnsserver.tools.tap.tap import Overheard, Told
from locator.ip import Network, is_within

MAX_WAITING = 256  # replies for one reader; a slower one loses what comes beyond


class Wanted(Struct, frozen=True):
    """What somebody wants to hear of: a Service (``namespace/name``), a client or network, an outcome; None: any."""

    service: str | None = None
    client: Network | None = None
    outcome: str | None = None

    def everything(self) -> bool:
        """Whether it leaves nothing out."""
        return self.service is None and self.client is None and self.outcome is None

    def matches(self, overheard: Overheard) -> bool:
        """Whether a reply that something was decided for is wanted."""
        inquiry = overheard.inquiry
        if inquiry is None:
            return False
        if self.client is not None and (inquiry.client is None or not is_within(inquiry.client, self.client)):
            return False
        if self.service is None and self.outcome is None:
            return True
        service, outcome = overheard.facts
        return self.service in (None, service) and self.outcome in (None, outcome)


class Stream:
    """The replies that one reader wants, until it takes them.

    *wake* is called when there is something to take. A reader that is slower than the server loses replies, and
    ``take`` says how many; one that wants everything may lose some that nothing was decided for among them.
    """

    def __init__(self, wanted: Wanted, wake: Callable[[], None]) -> None:
        self._wanted = wanted
        self._wake = wake
        self._waiting: list[Told] = []
        self._lost = 0

    @property
    def service(self) -> str | None:
        """See ``Listener``."""
        return self._wanted.service

    def hear(self, overheard: Overheard) -> None:
        """Keep a reply for the reader, if it wants it and there is room."""
        full = len(self._waiting) >= MAX_WAITING
        if not (full and self._wanted.everything()) and not self._wanted.matches(overheard):
            return
        if full:
            self._lost += 1
        elif (told := overheard.told) is not None:
            self._waiting.append(told)
            self._wake()

    def take(self) -> tuple[list[Told], int]:
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
        self._heard = 0
        self._drawn: list[Told | None] = []

    def hear(self, overheard: Overheard) -> None:
        """Draw by algorithm R (Vitter, 1985): only what is drawn is looked at."""
        self._heard += 1
        if self._heard <= self._size:
            self._drawn.append(overheard.told)
        elif (slot := int(self._chance() * self._heard)) < self._size:
            self._drawn[slot] = overheard.told

    def take(self) -> list[Told]:
        """Return what was drawn since the last call, in the order of time."""
        drawn, self._drawn, self._heard = self._drawn, [], 0
        return sorted((told for told in drawn if told is not None), key=lambda told: told.time)
