# SPDX-License-Identifier: Apache-2.0

"""Looks at the counters every few seconds, so that Overview can say what the last minutes were like."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from dnsserver.metrics.counters import Counts
from dnsserver.tools.api.inspected import run
from dnsserver.tools.console.changes import PageChanges
from dnsserver.tools.pages.overview import RecentAnswers, asked_in
from dnsserver.tools.pages.window import Window, sums_of
from locator.model import Health

WINDOW_SECONDS = 300.0  # long enough for a matrix of more than chance, short enough that a change shows
PAUSE_SECONDS = 5.0  # between two looks; one takes less than a millisecond


class Sampler:
    """The window of what was counted; *counts* is None where nothing is. *health* tells of the clusters."""

    def __init__(self, counts: Counts | None, changes: PageChanges, health: Callable[[], Mapping[str, Health]]) -> None:
        self._counts, self._changes, self._health = counts, changes, health
        self._window: Window | None = None

    @property
    def asked(self) -> RecentAnswers | None:
        """What was asked in the last minutes, None where nobody can ask."""
        if self._counts is None or self._window is None:
            return None
        return asked_in(self._window, trio.current_time(), self._counts.ignored_clients.suspects())

    async def run(self) -> None:
        """Look at the counters every few seconds, until cancelled."""
        seen: object = None
        while True:
            if self._counts is not None:
                for add_counted in self._counts.before_reading:
                    add_counted()
                sums, now = await run(sums_of(self._counts)), trio.current_time()
                before = self._window or Window(WINDOW_SECONDS, now, sums)
                self._window = before.after(sums, now)
            state = (self._window and self._window.counted(trio.current_time()), self._health())
            if state != seen:
                self._changes.counted()
            seen = state
            await trio.sleep(PAUSE_SECONDS)
