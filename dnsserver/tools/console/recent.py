# SPDX-License-Identifier: Apache-2.0

"""What a server has counted in the last minutes, so that Overview can say what these were like; and in the last day.

Counters only grow. A look at them every few seconds gives their *sums*; a window keeps by how much these grew from one
look to the next, and forgets what is too long ago. Replies go into a ``History``, too, by zone and by Service.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import trio
from msgspec import Struct
from msgspec.structs import replace

from dnsserver.metrics.counters import ClientOrigin, Counts, Tally
from dnsserver.metrics.relations import ELSEWHERE, SOME, relation
from dnsserver.tools.api.contents import batches
from dnsserver.tools.live import history
from dnsserver.tools.live.history import Answered, History
from locator.topology.selection import EMPTY, SPILLED

WINDOW_SECONDS = 300.0  # long enough for a matrix of more than chance, short enough that a change shows
REPLIES = 500  # sums at a time: half a millisecond or so, for which queries wait
MAX_SLOTS = 120  # whatever the pause between two looks is
# What a key counts, its first part. The others are: the client's zone and the relation of the answer's zones to it; the
# outcome; the reason and the range; the forwarder; the source.
ZONES, OUTCOMES, UNLOCATED, UNNAMED, IGNORED = "zones", "outcomes", "unlocated", "unnamed", "ignored"
# Of the history, by outcome: whoever gets nothing is unmet, for whatever reason, as in a simulation.
OUTCOME_MEASURES = {**dict.fromkeys(EMPTY, history.UNMET), SPILLED: history.SPILLED}

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

    ``services`` are answers by ``namespace/name``, in the last ``service_seconds``, which are whole minutes and a part.
    """

    seconds: int
    zones: Mapping[str, Counter[str]]
    unmet: int
    spilled: int
    unlocated: Sequence[tuple[str, str, int]]
    unnamed: Sequence[tuple[str, str, int]]
    untrusted: Sequence[tuple[str, str, int]]
    services: Mapping[str, Answered] = {}
    service_seconds: float = 0.0

    @property
    def answers(self) -> int:
        """The number of answers with endpoints."""
        return sum(relations.total() for relations in self.zones.values())


class RecentCounts:
    """What *counts* were in the last minutes, and in the last day, as far as somebody has looked."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._window: Window | None = None
        self._replies: dict[tuple[str, int], dict[int, int]] = {}  # at the last look
        self._sums: dict[Key, _Sum] = {}  # of replies
        self._increments: dict[int, _Increments] = {}  # by the numbers of ``Channel.counts``
        self._services = counts.services  # those that have rows in the history
        self.history: History | None = None
        """By zone and by Service, None before the first look."""

    def asked(self) -> RecentAnswers | None:
        """Return what was asked in the last minutes, None before the first look."""
        if self._window is None or self.history is None:
            return None
        now = trio.current_time()
        counted, suspects = self._window.counted(now), self._counts.ignored_clients.suspects()
        by_what: defaultdict[str, list[tuple[Key, int]]] = defaultdict(list)
        for (what, *key), times in counted.items():
            by_what[what].append((tuple(key), times))
        service_seconds, services = self.history.recent(history.SERVICE, now)
        return RecentAnswers(
            seconds=round(self._window.covered(now)),
            zones=by_zone({(zone, relation): times for (zone, relation), times in by_what[ZONES]}),
            unmet=sum(counted[OUTCOMES, outcome] for outcome in EMPTY),
            spilled=counted[OUTCOMES, SPILLED],
            unlocated=_most_first((where, reason, times) for (reason, where), times in by_what[UNLOCATED]),
            unnamed=_most_first((who, "", times) for (who,), times in by_what[UNNAMED]),
            untrusted=_most_first(
                (who, "names several clients" if who in suspects else "", times) for (who,), times in by_what[IGNORED]
            ),
            services=services,
            service_seconds=service_seconds,
        )

    async def look(self) -> Mapping[Key, int]:
        """Look at the counters, and return what was counted in the last minutes."""
        self._counts.catch_up()
        now = trio.current_time()
        self.history = self.history or History(now)
        self.history.turn(now)
        add = self.history.add
        async for batch in batches(self._counts.grown(self._replies), REPLIES):
            for number, replies in batch:
                if not replies:
                    continue
                increments = self._increments.get(number) or self._new_increments(number, self.history)
                for one in increments.sums:
                    one.times += replies
                add(increments.cells, replies)
        known = {**{key: one.times for key, one in self._sums.items()}, **_sources(self._counts)}
        now = trio.current_time()
        self._window = (self._window or Window(WINDOW_SECONDS, now, known)).after(known, now)
        return self._window.counted(now)

    def _new_increments(self, number: int, past: History) -> _Increments:
        """Return what a reply with a number adds to, and remember it. Services that are gone leave their rows to it."""
        services, known = self._counts.services, self._increments
        if services is not self._services:
            self._services, names = services, ["/".join(service) for service in services]
            past.forget(history.SERVICE, set(past.names(history.SERVICE)).difference(names))
            left = (number for number, one in known.items() if one.service is None or one.service in services)
            self._increments = known = {number: known[number] for number in left}
        origin, tally = self._counts.origin_and_tally(number)
        if tally.service is not None and tally.service not in services:  # it may come again, and have a row then
            return _increments(past, self._sums, origin, replace(tally, service=None))
        return known.setdefault(number, _increments(past, self._sums, origin, tally))


class _Sum(Struct):
    """How often something was counted."""

    times: int = 0


class _Increments(Struct, frozen=True):
    """What a reply adds to: ``sums``, and ``cells`` of the history, each with how much; some are of the ``service``."""

    sums: Sequence[_Sum]
    cells: Sequence[tuple[int, float]]
    service: tuple[str, str] | None


def _increments(past: History, sums: dict[Key, _Sum], origin: ClientOrigin, tally: Tally) -> _Increments:
    """Return what a reply to a client of *origin* with an answer of *tally* adds to."""
    keys: list[Key] = [(OUTCOMES, tally.outcome)] if tally.outcome else []
    measures: dict[int, float] = {}
    if tally.zones and origin.located_by:  # probes have no client
        word = relation(origin.zone, tally.zones)
        keys.append((ZONES, origin.zone, word))
        crossing = {ELSEWHERE: 1.0, SOME: 1 - 1 / len(tally.zones)}.get(word, 0.0)
        measures = {history.ANSWERS: 1.0, history.CROSSING: crossing}
    if origin.located_by and tally.outcome in OUTCOME_MEASURES:
        measures[OUTCOME_MEASURES[tally.outcome]] = 1.0
    about = [(history.ZONE, origin.zone)] if measures else []
    if measures and tally.service is not None:
        about.append((history.SERVICE, "/".join(tally.service)))
    cells = [(past.cell(*row, measure), share) for row in about for measure, share in measures.items() if share]
    return _Increments([sums.setdefault(key, _Sum()) for key in keys], cells, tally.service)


def _sources(counts: Counts) -> dict[Key, int]:
    """Return the sums of queries by what is wrong with their clients or forwarders."""
    return {
        **{(UNLOCATED, *key): number for key, number in counts.unlocated_clients.numbers().items()},
        **{(UNNAMED, forwarder): number for forwarder, number in counts.unnamed_clients.numbers.items()},
        **{(IGNORED, source): number for source, number in counts.ignored_clients.numbers.items()},
    }


def by_zone(answers: Mapping[tuple[str, str], float]) -> dict[str, Counter[str]]:
    """Return numbers of answers by zone, those whose zone is not known last, and by their relation to it."""
    zones: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for zone, word in sorted(answers, key=lambda key: (not key[0], key)):
        zones[zone][word] += round(answers[zone, word])
    return dict(zones)


def _most_first(found: Iterable[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    return sorted(found, key=lambda row: (-row[2], row))
