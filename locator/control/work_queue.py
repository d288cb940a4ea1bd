# SPDX-License-Identifier: Apache-2.0

"""A work queue as in client-go: which key to work on next, after which delay a failed one, and at what rate.

A key is in the queue at most once, however often its object changed, and no key is given out while it is being
processed. So the writes of one object are in order, and each is computed from the latest state.

Callers pass in the time and the random numbers.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

from locator.backoff import Backoff


def namespace_of(key: str) -> str:
    """Return the namespace in a key ``NAMESPACE/NAME``."""
    return key.partition("/")[0]


class _InTurn:
    """Keys that wait: those of one namespace in order, and one of each namespace in turn."""

    def __init__(self, namespace_of: Callable[[str], str]) -> None:
        self._namespace_of = namespace_of
        # Plain dicts are slow to lose their first key.
        self._keys: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def __contains__(self, key: str) -> bool:
        return key in self._keys.get(self._namespace_of(key), ())

    def add(self, key: str) -> None:
        """Add a key that does not wait yet."""
        self._keys.setdefault(self._namespace_of(key), OrderedDict())[key] = None
        self._number += 1

    def take(self) -> str:
        """Remove the next key, of which there must be one, and return it."""
        namespace, keys = next(iter(self._keys.items()))
        key = next(iter(keys))
        self._keys.move_to_end(namespace)
        self.discard(key)
        return key

    def discard(self, key: str) -> None:
        """Remove a key if it waits."""
        namespace = self._namespace_of(key)
        keys = self._keys.get(namespace)
        if keys is not None and key in keys:
            del keys[key]
            self._number -= 1
            if not keys:
                del self._keys[namespace]


class WorkQueue:
    """Keys that wait, keys that are being processed, and keys that wait out a backoff.

    Keys are ``NAMESPACE/NAME``, unless *namespace_of* finds the namespace in another way: each namespace gets its turn,
    however many keys another one has.
    """

    def __init__(self, namespace_of: Callable[[str], str] = namespace_of) -> None:
        self._urgent, self._normal = _InTurn(namespace_of), _InTurn(namespace_of)
        self._processing: set[str] = set()
        self._dirty: dict[str, bool] = {}  # keys added while being processed, and whether as urgent
        self._due: dict[str, float] = {}  # when the backoff of a key ends
        self._heap: list[tuple[float, str, bool]] = []  # entries that differ from _due are obsolete
        self._backoffs: dict[str, Backoff] = {}

    def __len__(self) -> int:
        """Return how many keys are still to be processed, without those being processed now."""
        return len(self._urgent) + len(self._normal) + len(self._dirty) + len(self._due)

    @property
    def ready(self) -> bool:
        """Whether ``get`` would return a key even if no backoff has ended."""
        return bool(self._urgent or self._normal)

    def add(self, key: str, *, urgent: bool = False) -> None:
        """Add a key, without waiting for its backoff. ``get`` returns *urgent* keys before all others."""
        if key in self._processing:
            self._dirty[key] = urgent or self._dirty.get(key, False)
        elif key not in self._urgent:
            if urgent:
                self._normal.discard(key)
                self._urgent.add(key)
            elif key not in self._normal:
                self._normal.add(key)
            self._due.pop(key, None)

    def get(self, now: float) -> str | None:
        """Return the next key, None if no key is due. The caller must call ``done`` or ``retry`` for the key."""
        while self._heap and self._heap[0][0] <= now:
            due, key, urgent = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                self.add(key, urgent=urgent)
        for waiting in (self._urgent, self._normal):
            if waiting:
                key = waiting.take()
                self._processing.add(key)
                return key
        return None

    def done(self, key: str) -> None:
        """End the processing of a key with success, and reset its backoff."""
        self._backoffs.pop(key, None)
        self._end_processing(key)

    def retry(self, key: str, now: float, chance: float, *, urgent: bool = True) -> None:
        """End the processing of a key with a failure: it is due again after a backoff, or when it is added.

        Unless *urgent*, it then comes after all other keys. *chance*, from 0 to below 1, spreads the delay.
        """
        backoff = self._backoffs[key] = self._backoffs.get(key, Backoff()).failed()
        self.defer(key, now + backoff.delay(chance), urgent=urgent)

    def defer(self, key: str, due: float, *, urgent: bool = False) -> None:
        """End the processing of a key that is not to be processed yet: it is due at *due*, or when it is added."""
        self._end_processing(key)
        if key not in self._urgent and key not in self._normal:
            self._due[key] = due
            heapq.heappush(self._heap, (due, key, urgent))

    def discard(self, key: str) -> None:
        """Remove a key that waits, and its backoff. Has no effect on the processing of a key."""
        for waiting in (self._urgent, self._normal):
            waiting.discard(key)
        for keys in (self._due, self._backoffs, self._dirty):
            keys.pop(key, None)

    def due(self) -> float | None:
        """Return when the first backoff ends, None if no key waits out a backoff."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _end_processing(self, key: str) -> None:
        self._processing.discard(key)
        if key in self._dirty:
            self.add(key, urgent=self._dirty.pop(key))


class RateLimiter:
    """Allows *rate* writes a second over time, and *burst* writes at once after a pause."""

    def __init__(self, rate: float, *, burst: float | None = None) -> None:
        """*burst* is at least one write; None means the writes of one second."""
        self._interval = 1.0 / rate
        self._slack = (max(1.0, rate if burst is None else burst) - 1.0) * self._interval
        self._paid_until = float("-inf")  # when an even rate would reach the number of writes so far

    def wait(self, now: float) -> float:
        """Return the seconds to wait before the next write, 0 if it may be sent now."""
        return max(0.0, self._paid_until - self._slack - now)

    def spend(self, now: float) -> None:
        """Count a write that is sent now."""
        self._paid_until = max(self._paid_until, now) + self._interval
