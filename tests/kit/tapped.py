# SPDX-License-Identifier: Apache-2.0

"""A responder in memory at whose tap tests listen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnsserver.programs.from_settings import authority_of
from dnsserver.responder.responder import Responder
from dnsserver.tools.tap.lines import line_of
from dnsserver.tools.tap.tap import Overheard, Tap, Told
from tests.kit.in_memory import NOW, Flags, settings_of


class Everything:
    """A listener that keeps what it hears; ``lines`` are the lines about it."""

    def __init__(self, flags: Flags | None = None, *, service: str | None = None) -> None:
        self.service = service
        self.told: list[Told] = []
        self._authority = authority_of(settings_of(flags))

    def hear(self, overheard: Overheard) -> None:
        if (told := overheard.told) is not None:
            self.told.append(told)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [dict(line_of(told, self._authority)) for told in self.told]


def no_error(error: Exception) -> None:
    raise error


def tap_of(responder: Responder, flags: Flags | None = None, *, failed: Callable[[Exception], None] = no_error) -> Tap:
    """Return the tap of a responder with *flags*; its clock stands still."""
    return Tap(responder, authority_of(settings_of(flags)), clock=lambda: NOW + 0.5, failed=failed)
