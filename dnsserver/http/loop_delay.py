# SPDX-License-Identifier: Apache-2.0

"""Measures how late the event loop runs what is due. Whatever holds the interpreter delays every answer as much."""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

from dnsserver.metrics.counters import Durations

# Milliseconds between two samples. Random, so that work which recurs is met by chance: neither always nor never. Whole
# milliseconds, because epoll rounds up to them. One sample costs an idle process 0.3 ms of CPU, because its memory has
# left the processor's caches.
PAUSES = range(500, 1501)


async def measure(delays: Durations, *checks: Callable[[], None]) -> None:
    """Add to *delays*, about once a second, how late the event loop wakes this task up.

    All samples that were due while the loop did not run count, each with its own delay. Where a delay is below a
    millisecond, it may be epoll's rounding. Runs *checks* after each sample: one wake-up costs less than several.
    """
    now = due = trio.current_time()
    while True:
        pause = random.choice(PAUSES) / 1000
        due = (due if due + pause < now else now) + pause
        await trio.sleep_until(due)
        now = trio.current_time()
        delays.add(max(0.0, now - due), 1)
        for check in checks:
            check()
