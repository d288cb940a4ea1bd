"""Counts the votes of all clusters: which load balancer addresses leave the answers.

The rules:

1. An address is voted out while more than half of all configured clusters vote against it. A cluster that cannot be
   reached, or has no prober, counts among all, and votes for nobody.
2. A vote counts for ``VOTE_SECONDS`` after it was renewed. The clocks of clusters may differ. So only at first sight
   does a vote's age go by the time that stands in it, where a time in the future counts as now. From then on it goes
   by when this reader saw it change, as client-go treats a Lease.

Callers pass the times in: *now* on a monotonic clock, *wall* in seconds since 1970.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from locator.health.objects import ServiceHealth

VOTE_SECONDS = 30.0  # a prober renews its votes several times in that, and a new leader takes over within it

HEALTHY, UNHEALTHY, TOO_OLD, NONE = "healthy", "unhealthy", "too old", "none"


class _Sighting(Struct, frozen=True):
    """The votes of one cluster on one Service, and the last moment at which they count."""

    health: ServiceHealth
    until: float

    def counts(self, now: float) -> bool:
        return now <= self.until

    def against(self) -> list[str]:
        return [entry.address for entry in self.health.entries if not entry.healthy]


class Votes:
    """The votes of *clusters*, by name, as one reader has seen them. Services are given by their keys."""

    def __init__(self, clusters: Iterable[str]) -> None:
        self._seen: dict[str, dict[str, _Sighting]] = {cluster: {} for cluster in clusters}  # by cluster, by Service
        self._out: dict[str, frozenset[str]] = {}  # by Service, where an address is voted out
        self._counted_at = -math.inf

    def voted_out(self, service: str) -> frozenset[str]:
        """Return the addresses of a Service that were voted out at the last ``observe`` or ``expire``."""
        return self._out.get(service, frozenset())

    @property
    def due(self) -> float | None:
        """When ``expire`` must be called, since time alone may bring an address back. None if it cannot."""
        ends = [
            sighting.until
            for service in self._out
            for sighting in self._sightings_of(service)
            if sighting.counts(self._counted_at) and sighting.against()
        ]
        return math.nextafter(min(ends), math.inf) if ends else None

    def observe(self, cluster: str, healths: Iterable[ServiceHealth], *, now: float, wall: float) -> set[str]:
        """Take in all ServiceHealths that a cluster has now; return the Services whose ``voted_out`` has changed."""
        before, after = self._seen[cluster], {}
        changed: set[str] = set()
        for health in healths:
            known = before.get(health.service)
            if known is None:
                until = now - _age(health.renewed, wall) + VOTE_SECONDS
            elif known.health.renewed != health.renewed:
                until = now + VOTE_SECONDS
            else:
                until = known.until
            if known is not None and known.health is health:
                after[health.service] = known
            else:
                after[health.service] = _Sighting(health, until)
                changed.add(health.service)
        self._seen[cluster] = after
        return self._recount(changed | (before.keys() - after.keys()), now)

    def expire(self, now: float) -> set[str]:
        """Leave out the votes that are too old at *now*; return the Services whose ``voted_out`` has changed."""
        return self._recount(list(self._out), now)

    def of_address(self, service: str, address: str, *, now: float) -> Mapping[str, str]:
        """Return what each cluster says of an address: HEALTHY, UNHEALTHY, TOO_OLD (whatever it said), or NONE."""
        return {cluster: self._vote(cluster, service, address, now) for cluster in self._seen}

    def numbers(self, now: float) -> Mapping[str, int]:
        """Return the number of addresses on which each cluster has a vote that counts."""
        return {
            cluster: sum(len(sighting.health.entries) for sighting in seen.values() if sighting.counts(now))
            for cluster, seen in self._seen.items()
        }

    def _vote(self, cluster: str, service: str, address: str, now: float) -> str:
        sighting = self._seen[cluster].get(service)
        if sighting is None:
            return NONE
        for entry in sighting.health.entries:
            if entry.address == address:
                return TOO_OLD if not sighting.counts(now) else HEALTHY if entry.healthy else UNHEALTHY
        return NONE

    def _sightings_of(self, service: str) -> Sequence[_Sighting]:
        return [seen[service] for seen in self._seen.values() if service in seen]

    def _recount(self, services: Iterable[str], now: float) -> set[str]:
        self._counted_at = now
        changed: set[str] = set()
        for service in services:
            counts: Counter[str] = Counter()
            for sighting in self._sightings_of(service):
                if sighting.counts(now):
                    counts.update(sighting.against())
            out = frozenset(address for address, number in counts.items() if number * 2 > len(self._seen))
            if out != self._out.get(service, frozenset()):
                changed.add(service)
            if out:
                self._out[service] = out
            else:
                self._out.pop(service, None)
        return changed


def _age(renewed: str, wall: float) -> float:
    """Return how old a vote is by the time that stands in it: infinitely, if that is unreadable or names no zone."""
    try:
        moment = datetime.fromisoformat(renewed)
    except ValueError:
        return math.inf
    return math.inf if moment.tzinfo is None else max(0.0, wall - moment.timestamp())
