# SPDX-License-Identifier: Apache-2.0

"""What a server has counted in the last minutes: a window that slides, as a value.

Counters only grow. A look at them now and then gives their *sums*; the window keeps by how much these grew from one
look to the next, and forgets what is too long ago.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from dnsserver.metrics.counters import Counts
from dnsserver.metrics.server_families import relation
from dnsserver.tools.pages.steps import STEP, Steps

# What a key counts, its first part. The others are: the client's zone and the relation of the answer's zones to it; the
# outcome; the reason and the range; the forwarder; the source.
ZONES, OUTCOMES, UNLOCATED, UNNAMED, IGNORED = "zones", "outcomes", "unlocated", "unnamed", "ignored"
MAX_SLOTS = 120  # whatever the pause between two looks is

Key = tuple[str, ...]
Sums = Mapping[Key, int]


class Slot(Struct, frozen=True):
    """By how much sums grew from the look before to the one at *until*, in seconds on some clock."""

    until: float
    grown: Sums


class Window(Struct, frozen=True):
    """How much sums grew in the last *seconds*. The first look was when it ``began``; the last one found ``last``."""

    seconds: float
    began: float
    last: Sums
    slots: tuple[Slot, ...] = ()

    def after(self, sums: Sums, now: float) -> Window:
        """Return the window after a look that found *sums* at *now*."""
        grown = {key: number - self.last.get(key, 0) for key, number in sums.items() if number > self.last.get(key, 0)}
        slots = (*self.slots, Slot(now, grown)) if grown else self.slots
        return Window(self.seconds, self.began, sums, self._recent(slots, now)[-MAX_SLOTS:])

    def counted(self, now: float) -> Counter[Key]:
        """Return by how much each sum grew within the window that ends *now*."""
        counted = Counter[Key]()
        for slot in self._recent(self.slots, now):
            counted.update(slot.grown)
        return counted

    def covered(self, now: float) -> float:
        """Return how many seconds the window has seen, at most its own."""
        return min(self.seconds, now - self.began)

    def _recent(self, slots: tuple[Slot, ...], now: float) -> tuple[Slot, ...]:
        return tuple(slot for slot in slots if slot.until > now - self.seconds)


def sums_of(counts: Counts) -> Steps[Sums]:
    """Return what is shown of the counters."""
    sums = Counter[Key]()
    for number, (_, origin, tally, replies) in enumerate(counts.replies()):
        if not number % STEP:
            yield
        if tally.outcome:
            sums[OUTCOMES, tally.outcome] += replies
        if tally.zones and origin.located_by:  # probes have no client
            sums[ZONES, origin.zone, relation(origin.zone, tally.zones)] += replies
    yield
    sums.update({(UNLOCATED, *key): number for key, number in counts.unlocated_clients.numbers().items()})
    sums.update({(UNNAMED, forwarder): number for forwarder, number in counts.unnamed_clients.numbers.items()})
    sums.update({(IGNORED, source): number for source, number in counts.ignored_clients.numbers.items()})
    return sums
