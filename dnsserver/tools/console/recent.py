# SPDX-License-Identifier: Apache-2.0

"""What a server has counted in the last minutes, so that Overview can say what these were like.

Counters only grow. A look at them every few seconds gives their *sums*; a window keeps by how much these grew from one
look to the next, and forgets what is too long ago.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import trio
from msgspec import Struct

from dnsserver.metrics.counters import Counts
from dnsserver.metrics.relations import relation
from dnsserver.tools.api.contents import batches
from locator.topology.selection import SPILLED, UNMET

WINDOW_SECONDS = 300.0  # long enough for a matrix of more than chance, short enough that a change shows
MAX_SLOTS = 120  # whatever the pause between two looks is
# What a key counts, its first part. The others are: the client's zone and the relation of the answer's zones to it; the
# outcome; the reason and the range; the forwarder; the source.
ZONES, OUTCOMES, UNLOCATED, UNNAMED, IGNORED = "zones", "outcomes", "unlocated", "unnamed", "ignored"

Key = tuple[str, ...]
Sums = Mapping[Key, int]


class Window(Struct, frozen=True):
    """How much sums grew in the last *seconds*. The first look was when it ``began``; the last one found ``last``.

    ``slots`` say by how much they grew from the look before to the one at a time, in seconds on some clock.
    """

    seconds: float
    began: float
    last: Sums
    slots: tuple[tuple[float, Sums], ...] = ()

    def after(self, sums: Sums, now: float) -> Window:
        """Return the window after a look that found *sums* at *now*."""
        grown = {key: number - self.last.get(key, 0) for key, number in sums.items() if number > self.last.get(key, 0)}
        slots = tuple((until, before) for until, before in self.slots if until > now - self.seconds)
        return Window(self.seconds, self.began, sums, (*slots, *([(now, grown)] if grown else []))[-MAX_SLOTS:])

    def counted(self, now: float) -> Counter[Key]:
        """Return by how much each sum grew within the window that ends *now*."""
        counted = Counter[Key]()
        for until, grown in self.slots:
            if until > now - self.seconds:
                counted.update(grown)
        return counted

    def covered(self, now: float) -> float:
        """Return how many seconds the window has seen, at most its own."""
        return min(self.seconds, now - self.began)


class RecentAnswers(Struct, frozen=True):
    """What was asked in the last ``seconds``: answers with endpoints by zone and relation, and ``unmet`` ones.

    ``spilled`` are those for which there was no room nearer. ``unlocated`` are ranges of clients that nothing locates,
    ``unnamed`` forwarders that name nobody, ``untrusted`` sources that name clients and are not trusted: each with what
    is known of it, and how often it was seen, the most frequent first.
    """

    seconds: int
    zones: Mapping[str, Counter[str]]
    unmet: int
    spilled: int
    unlocated: Sequence[tuple[str, str, int]]
    unnamed: Sequence[tuple[str, str, int]]
    untrusted: Sequence[tuple[str, str, int]]

    @property
    def answers(self) -> int:
        """The number of answers with endpoints."""
        return sum(relations.total() for relations in self.zones.values())


class RecentCounts:
    """What *counts* were in the last minutes, as far as somebody has looked."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._window: Window | None = None

    def asked(self) -> RecentAnswers | None:
        """Return what was asked in the last minutes, None before the first look."""
        if self._window is None:
            return None
        now = trio.current_time()
        counted, suspects = self._window.counted(now), self._counts.ignored_clients.suspects()
        by_what: defaultdict[str, list[tuple[Key, int]]] = defaultdict(list)
        for (what, *key), times in counted.items():
            by_what[what].append((tuple(key), times))
        return RecentAnswers(
            seconds=round(self._window.covered(now)),
            zones=by_zone({(zone, relation): times for (zone, relation), times in by_what[ZONES]}),
            unmet=counted[OUTCOMES, UNMET],
            spilled=counted[OUTCOMES, SPILLED],
            unlocated=_most_first((where, reason, times) for (reason, where), times in by_what[UNLOCATED]),
            unnamed=_most_first((who, "", times) for (who,), times in by_what[UNNAMED]),
            untrusted=_most_first(
                (who, "names several clients" if who in suspects else "", times) for (who,), times in by_what[IGNORED]
            ),
        )

    async def look(self) -> Mapping[Key, int]:
        """Look at the counters, and return what was counted in the last minutes."""
        for add_counted in self._counts.before_reading:
            add_counted()
        sums, now = await sums_of(self._counts), trio.current_time()
        self._window = (self._window or Window(WINDOW_SECONDS, now, sums)).after(sums, now)
        return self._window.counted(now)


async def sums_of(counts: Counts) -> Sums:
    """Return what is shown of the counters."""
    sums = Counter[Key]()
    async for batch in batches(counts.replies()):
        for _, origin, tally, replies in batch:
            if tally.outcome:
                sums[OUTCOMES, tally.outcome] += replies
            if tally.zones and origin.located_by:  # probes have no client
                sums[ZONES, origin.zone, relation(origin.zone, tally.zones)] += replies
    sums.update({(UNLOCATED, *key): number for key, number in counts.unlocated_clients.numbers().items()})
    sums.update({(UNNAMED, forwarder): number for forwarder, number in counts.unnamed_clients.numbers.items()})
    sums.update({(IGNORED, source): number for source, number in counts.ignored_clients.numbers.items()})
    return sums


def by_zone(answers: Mapping[tuple[str, str], float]) -> dict[str, Counter[str]]:
    """Return numbers of answers by zone, those whose zone is not known last, and by their relation to it."""
    zones: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for zone, word in sorted(answers, key=lambda key: (not key[0], key)):
        zones[zone][word] += round(answers[zone, word])
    return dict(zones)


def _most_first(found: Iterable[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    return sorted(found, key=lambda row: (-row[2], row))
