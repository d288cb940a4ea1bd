# SPDX-License-Identifier: Apache-2.0

"""A responder in memory at whose tap tests listen."""

from __future__ import annotations

from collections.abc import Callable

from dnsserver.programs.from_settings import authority_of
from dnsserver.responder.responder import Responder
from dnsserver.tools.api.live import Live
from dnsserver.tools.tap.lines import TailLine, line_of
from dnsserver.tools.tap.tap import Tap, TapEvent
from tests.kit.in_memory import NOW, CountedResponder, Flags, settings_of


class Everything:
    """A listener that keeps every event; ``lines`` are the lines about them."""

    def __init__(self, flags: Flags | None = None, *, service: str | None = None) -> None:
        self.service = service
        self.events: list[TapEvent] = []
        self._authority = authority_of(settings_of(flags))

    def on_event(self, event: TapEvent) -> None:
        self.events.append(event)

    @property
    def lines(self) -> list[TailLine]:
        return [line_of(event, self._authority) for event in self.events]


def no_error(error: Exception) -> None:
    raise error


def tap_of(responder: Responder, *, failed: Callable[[Exception], None] = no_error) -> Tap:
    """Return the tap of a responder; its clock stands still."""
    return Tap(responder, clock=lambda: NOW + 0.5, failed=failed)


def new_live() -> Live:
    """Return what a server notes that has answered nothing."""
    responder = CountedResponder(native=False)
    return Live(responder.counts, tap_of(responder), name="dns-1", since="2026-01-01T00:00:00Z")
