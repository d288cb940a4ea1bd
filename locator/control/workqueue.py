"""Which object is to be worked on next, and when a write may go out. Clock and chance are handed in.

A key stands in the queue at most once, however often its object changed, and nobody is given a key that another
still works on: so the writes of one object are in order, and each is made from the latest state.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from locator.backoff import Backoff


class WorkQueue:
    """Keys that wait, keys in work, and keys that wait out a failure."""

    def __init__(self) -> None:
        self._urgent: OrderedDict[str, None] = OrderedDict()  # a plain dict is slow at its front
        self._rest: OrderedDict[str, None] = OrderedDict()
        self._working: set[str] = set()
        self._again: dict[str, bool] = {}  # added while in work, and whether that was urgent
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str, bool]] = []
        self._failed: dict[str, Backoff] = {}

    def __len__(self) -> int:
        """How many keys there are to be looked at, those in work aside."""
        return len(self._urgent) + len(self._rest) + len(self._again) + len(self._due)

    @property
    def ready(self) -> bool:
        """Whether a key waits that is neither in work nor waits out a failure."""
        return bool(self._urgent or self._rest)

    def add(self, key: str, *, urgent: bool = False) -> None:
        """Have a key worked on; *urgent* ones come before all others."""
        if key in self._working:
            self._again[key] = urgent or self._again.get(key, False)
        elif key not in self._urgent:
            if urgent:
                self._rest.pop(key, None)
                self._urgent[key] = None
            else:
                self._rest[key] = None
            self._due.pop(key, None)

    def take(self, now: float) -> str | None:
        """Return the next key, which is in work from now on until ``done`` or ``retry``; None if none is due."""
        while self._heap and self._heap[0][0] <= now:
            due, key, urgent = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                self.add(key, urgent=urgent)
        for waiting in (self._urgent, self._rest):
            if waiting:
                key, _ = waiting.popitem(last=False)
                self._working.add(key)
                return key
        return None

    def done(self, key: str) -> None:
        """Say that nothing is left to do for a key, unless it was added again meanwhile."""
        self._failed.pop(key, None)
        self._leave(key)

    def forget(self, key: str) -> None:
        """Say that nothing is left to do for a key, whatever was said before, unless it is in work."""
        for waiting in (self._urgent, self._rest, self._due, self._failed, self._again):
            waiting.pop(key, None)

    def retry(self, key: str, now: float, chance: float, *, urgent: bool = True) -> None:
        """Say that the work on a key failed: it comes again after a delay, or when it is added.

        Unless it is *urgent*, it comes after all others then.
        """
        failed = self._failed[key] = self._failed.get(key, Backoff()).failed()
        self._leave(key)
        if key not in self._urgent and key not in self._rest:
            due = self._due[key] = now + failed.delay(chance)
            heapq.heappush(self._heap, (due, key, urgent))

    def due(self) -> float | None:
        """Return when the first key that waits out a failure comes again; None if there is none."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _leave(self, key: str) -> None:
        self._working.discard(key)
        if key in self._again:
            self.add(key, urgent=self._again.pop(key))


class Pace:
    """At most so many writes a second over time, and so many at once after a quiet while."""

    def __init__(self, rate: float, *, burst: float | None = None) -> None:
        """*burst* is at least one write, if not given as many as a second allows."""
        self._interval = 1.0 / rate
        self._slack = (max(1.0, rate if burst is None else burst) - 1.0) * self._interval
        self._paid = float("-inf")  # until when the writes made so far are paid for

    def wait(self, now: float) -> float:
        """Return how many seconds to wait; 0 says that a write may go out now."""
        return max(0.0, self._paid - self._slack - now)

    def spend(self, now: float) -> None:
        """Count a write that goes out now."""
        self._paid = max(self._paid, now) + self._interval
