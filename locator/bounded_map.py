# SPDX-License-Identifier: Apache-2.0

"""A map of bounded size, for entries that are read far more often than written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_NOTHING: dict[Any, Any] = {}  # what thousands of maps have as their older generation; nothing is ever put into it


class BoundedMap(Generic[K, V]):
    """A map that drops entries nobody has used lately, half of its capacity at a time.

    It has two generations. Writing or getting an entry moves it into the younger generation, the plain dictionary
    ``recent``. When ``recent`` is full, its entries become the older generation, and the former older generation is
    dropped. So an entry that is used once per generation stays, however many others come and go.

    A hot path may read ``recent`` directly, which stays the same object; an entry missing there may still be found
    by ``get``.

    *limit* bounds the weight of both generations together; without *weigh* every entry weighs 1. An entry that
    weighs more than half of *limit* is not stored.
    """

    __slots__ = ("_half", "_older", "_weigh", "_weight", "recent")

    def __init__(self, limit: int, weigh: Callable[[V], int] | None = None) -> None:
        self.recent: dict[K, V] = {}
        self._older: dict[K, V] = _NOTHING
        self._half = max(1, limit // 2)
        self._weigh = weigh
        self._weight = 0  # of the younger generation; 0 without *weigh*

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def get(self, key: K) -> V | None:
        """Return the value of *key*, or None."""
        value = self.recent.get(key)
        if value is None and self._older and (value := self._older.pop(key, None)) is not None:
            self[key] = value
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._older.pop(key, None)
        if self._weigh is None:
            if len(self.recent) >= self._half and key not in self.recent:
                self._start_generation()
        else:
            weight, before = self._weigh(value), self.recent.pop(key, None)
            if before is not None:
                self._weight -= self._weigh(before)
            if weight > self._half:
                return
            if self._weight + weight > self._half:
                self._start_generation()
            self._weight += weight
        self.recent[key] = value

    def values(self) -> Iterator[V]:
        """Yield all values."""
        yield from self.recent.values()
        yield from self._older.values()

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield all keys with their values."""
        yield from self.recent.items()
        yield from self._older.items()

    def clear(self) -> None:
        """Drop all entries."""
        self.recent.clear()
        self._older = _NOTHING
        self._weight = 0

    def resize(self, limit: int) -> None:
        """Set a new limit; entries beyond it are dropped as new ones come in."""
        self._half = max(1, limit // 2)

    def _start_generation(self) -> None:
        self._older = self.recent.copy()
        self.recent.clear()
        self._weight = 0
