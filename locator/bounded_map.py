"""A map of bounded size for what is read far more often than it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_NOTHING: dict[Any, Any] = {}  # what thousands of maps have as their older generation; nothing is ever put into it


class BoundedMap(Generic[K, V]):
    """A map that forgets what nobody has asked for lately, a part at a time.

    It has two generations. What is put or asked for goes into the younger one, the plain
    dictionary ``recent``; when that is full it becomes the older one, and the older one is
    forgotten. So an entry that is asked for once in every generation stays, however many others
    come and go. A reader in a hurry may look into ``recent`` itself, which always stays the same
    object; what it misses there, ``get`` may still find.

    *limit* bounds the weight of both generations together; without *weigh* every entry weighs 1. An entry
    that weighs more than a generation may is not kept.
    """

    __slots__ = ("_older", "_room", "_weigh", "_weight", "recent")

    def __init__(self, limit: int, weigh: Callable[[V], int] | None = None) -> None:
        self.recent: dict[K, V] = {}
        self._older: dict[K, V] = _NOTHING
        self._room = max(1, limit // 2)
        self._weigh = weigh
        self._weight = 0  # of the younger generation, where entries are weighed

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def get(self, key: K) -> V | None:
        """Return the value of *key*, None if there is none."""
        value = self.recent.get(key)
        if value is None and self._older and (value := self._older.pop(key, None)) is not None:
            self[key] = value
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._older.pop(key, None)
        if self._weigh is None:
            if len(self.recent) >= self._room and key not in self.recent:
                self._turn()
        else:
            weight, before = self._weigh(value), self.recent.pop(key, None)
            if before is not None:
                self._weight -= self._weigh(before)
            if weight > self._room:
                return
            if self._weight + weight > self._room:
                self._turn()
            self._weight += weight
        self.recent[key] = value

    def values(self) -> Iterator[V]:
        """Yield every value."""
        yield from self.recent.values()
        yield from self._older.values()

    def clear(self) -> None:
        """Forget everything."""
        self.recent.clear()
        self._older = _NOTHING
        self._weight = 0

    def resize(self, limit: int) -> None:
        """Have another limit from now on; what is beyond it is forgotten by and by."""
        self._room = max(1, limit // 2)

    def _turn(self) -> None:
        self._older = self.recent.copy()
        self.recent.clear()
        self._weight = 0
