# SPDX-License-Identifier: Apache-2.0

"""``topodns_loop_delay_seconds``: how late the event loop runs what is due."""

from __future__ import annotations

from itertools import pairwise

import trio
import trio.testing

from dnsserver.http.loop_delay import measure
from dnsserver.metrics.counters import LOOP_DELAY_BOUNDS, Durations


def sampled(*events: float) -> Durations:
    """Measure for a minute, then after each of *events*, each the seconds for which something holds the loop."""
    delays, clock = Durations(LOOP_DELAY_BOUNDS), trio.testing.MockClock(autojump_threshold=0)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure, delays)
            await trio.sleep(60)
            for seconds in events:
                clock.jump(seconds)
                await trio.sleep(60)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=clock)
    return delays


def test_a_loop_that_rests_is_never_late() -> None:
    """Every sample counts, in the lowest bucket; there is about one a second."""
    delays = sampled()
    assert 40 <= delays.numbers[0] <= 120
    assert (sum(delays.numbers[1:]), delays.seconds) == (0, 0.0)


def test_what_holds_the_loop_delays_what_was_due() -> None:
    """All samples that were due meanwhile are late, the first of them by the most."""
    delays = sampled(20.0)
    late = sum(delays.numbers[1:])
    assert 13 <= late <= 40
    assert delays.numbers[-1] >= 12
    assert 100 < delays.seconds < 300


def test_checks_run_with_each_sample() -> None:
    """What has to be checked about once a second needs no wake-up of its own."""
    delays, clock = Durations(LOOP_DELAY_BOUNDS), trio.testing.MockClock(autojump_threshold=0)
    checked: list[float] = []

    async def run() -> None:
        with trio.move_on_after(60):
            await measure(delays, lambda: checked.append(trio.current_time()))

    trio.run(run, clock=clock)
    assert sum(delays.numbers) == len(checked) >= 40
    assert max(after - before for before, after in pairwise(checked)) < 1.6
