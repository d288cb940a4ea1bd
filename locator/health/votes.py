# SPDX-License-Identifier: Apache-2.0

"""Counts the votes of all clusters: which load balancer addresses leave the answers.

The rules:

1. An address is voted out while more than half of all configured clusters vote against it. A cluster that cannot be
   reached, or has no prober, counts among all, and votes for nobody.
2. A vote counts for ``VOTE_SECONDS`` after it was renewed. The clocks of clusters may differ. So only at first sight
   does a vote's age go by the time that stands in it, where a time in the future counts as now. From then on it goes
   by when this reader saw it change, as client-go treats a Lease.

Callers pass the times in: *now* on a monotonic clock, *unix_time* in seconds since 1970.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from locator.model import ServiceHealth
from locator.times import parse_time

VOTE_SECONDS = 30.0  # a prober renews its votes several times in that, and a new leader takes over within it

HEALTHY, UNHEALTHY, TOO_OLD, NO_VOTE = "healthy", "unhealthy", "too old", "none"


class _Sighting(Struct, frozen=True):
    """The votes of one cluster on one Service: the last moment at which they count, and whether they still do."""

    health: ServiceHealth
    until: float
    counts: bool

    @property
    def said(self) -> tuple[bool, Sequence[tuple[str, bool]]]:
        """What of it a reader can notice: a renewal, or another message, is no change."""
        return self.counts, [(entry.address, entry.healthy) for entry in self.health.entries]


class Votes:
    """The votes of *clusters*, by name, as one reader has seen them. Services are given by their keys."""

    def __init__(self, clusters: Iterable[str]) -> None:
        self._seen: dict[str, dict[str, _Sighting]] = {}  # by cluster, by Service
        # A heap of ``until``, cluster and Service; what a renewal made obsolete, or is gone, is skipped.
        self._ends: list[tuple[float, str, str]] = []
        for cluster in clusters:
            self.add(cluster)

    def add(self, cluster: str) -> None:
        """Count a cluster among all from now on, also while it votes for nobody."""
        self._seen[cluster] = {}

    def remove(self, cluster: str) -> None:
        """Count a cluster no longer, and forget its votes."""
        del self._seen[cluster]

    @property
    def due(self) -> float | None:
        """When ``expire`` must be called, since a vote will be too old then. None if no vote counts."""
        while self._ends and self._ending(*self._ends[0]) is None:
            heapq.heappop(self._ends)
        return math.nextafter(self._ends[0][0], math.inf) if self._ends else None

    def observe(self, cluster: str, healths: Iterable[ServiceHealth], *, now: float, unix_time: float) -> set[str]:
        """Take in all ServiceHealths that a cluster has now; return the Services on which a vote has changed.

        A vote that is too old has changed, too; one that was renewed has not.
        """
        changed = self.expire(now)
        before, after = self._seen[cluster], {}
        for health in healths:
            known = before.get(health.service)
            if known is not None and known.health is health:
                after[health.service] = known
                continue
            if known is None:
                until = now - _age(health.renewed, unix_time) + VOTE_SECONDS
            else:
                until = known.until if known.health.renewed == health.renewed else now + VOTE_SECONDS
            sighting = after[health.service] = _Sighting(health, until, now <= until)
            if sighting.counts:
                heapq.heappush(self._ends, (until, cluster, health.service))
            if known is None or sighting.said != known.said:
                changed.add(health.service)
        self._seen[cluster] = after
        return changed | (before.keys() - after.keys())

    def expire(self, now: float) -> set[str]:
        """Leave out the votes that are too old at *now*; return the Services on which there was one."""
        changed: set[str] = set()
        while self._ends and self._ends[0][0] < now:
            until, cluster, service = heapq.heappop(self._ends)
            sighting = self._ending(until, cluster, service)
            if sighting is not None:
                self._seen[cluster][service] = replace(sighting, counts=False)
                changed.add(service)
        return changed

    def voted_out(self, service: str) -> frozenset[str]:
        """Return the addresses of a Service that more than half of all clusters vote against."""
        against: Counter[str] = Counter()
        for seen in self._seen.values():
            sighting = seen.get(service)
            if sighting is not None and sighting.counts:
                against.update(entry.address for entry in sighting.health.entries if not entry.healthy)
        return frozenset(address for address, number in against.items() if number * 2 > len(self._seen))

    def of_address(self, service: str, address: str) -> Mapping[str, str]:
        """Return what each cluster says of an address: HEALTHY, UNHEALTHY, TOO_OLD (whatever it said), or NO_VOTE."""
        return {cluster: _vote(seen.get(service), address) for cluster, seen in self._seen.items()}

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of addresses on which each cluster has a vote that counts."""
        return {
            cluster: sum(len(sighting.health.entries) for sighting in seen.values() if sighting.counts)
            for cluster, seen in self._seen.items()
        }

    def _ending(self, until: float, cluster: str, service: str) -> _Sighting | None:
        """Return the votes that end at *until*, None if they have been renewed, or have ended."""
        sighting = self._seen.get(cluster, {}).get(service)
        return sighting if sighting is not None and sighting.counts and sighting.until == until else None


def _vote(sighting: _Sighting | None, address: str) -> str:
    if sighting is not None:
        for entry in sighting.health.entries:
            if entry.address == address:
                return TOO_OLD if not sighting.counts else HEALTHY if entry.healthy else UNHEALTHY
    return NO_VOTE


def _age(renewed: str, unix_time: float) -> float:
    """Return how old a vote is by the time that stands in it: infinitely, if that is unreadable or names no zone."""
    try:
        return max(0.0, unix_time - parse_time(renewed))
    except ValueError:
        return math.inf
