"""The one multimap of the store and its parts: finds objects by values that they hold, as client-go's Indexer does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Index(Generic[K, T]):
    """Keys of objects by values that index functions read from the objects.

    ``Index(node=nodes_of, pod=pods_of).keys("node", "a1")`` returns the keys of the objects for which ``nodes_of``
    yields ``"a1"``. The index holds no objects, and drops a value when the last object with it is gone.
    """

    def __init__(self, **functions: Callable[[T], Iterable[Hashable]]) -> None:
        # Most values have one key. The table holds that key itself: a set around it would take ten times the memory.
        self._tables: dict[str, dict[Hashable, Any]] = {name: {} for name in functions}
        self._functions = [(function, self._tables[name]) for name, function in functions.items()]

    def move(self, key: K, before: T | None, after: T | None) -> None:
        """Replace the object *before* at *key* by *after*; either is None if there is no such object."""
        for function, table in self._functions:
            joined: Iterable[Hashable] = function(after) if after is not None else ()
            if before is not None:
                had, has = set(function(before)), set(joined)
                for value in had - has:
                    _leave(table, value, key)
                joined = has - had
            for value in joined:
                if (present := table.setdefault(value, key)) is not key:
                    _join(table, value, key, present)

    def keys(self, name: str, value: Hashable) -> Collection[K]:
        """Return the keys of the objects that have *value*, in no particular order."""
        present = self._tables[name].get(value)
        if present.__class__ is dict:
            keys: Collection[K] = present
            return keys
        return () if present is None else (present,)

    def values(self, name: str) -> Collection[Any]:
        """Return all values that at least one object has."""
        return self._tables[name].keys()


def _join(table: dict[Hashable, Any], value: Hashable, key: Hashable, present: Any) -> None:
    if present.__class__ is dict:
        present[key] = None
    elif present != key:
        table[value] = {present: None, key: None}


def _leave(table: dict[Hashable, Any], value: Hashable, key: Hashable) -> None:
    present = table.get(value)
    if present.__class__ is dict:
        present.pop(key, None)
        if len(present) == 1:
            (table[value],) = present
    elif present == key:
        del table[value]
