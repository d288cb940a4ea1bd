"""Where something is to be found by what it says: the one multimap of the store and its parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Index(Generic[K, T]):
    """Keys of objects, by values that functions read off these objects, as client-go's Indexer has it.

    ``Index(node=nodes_of, pod=pods_of).keys("node", "a1")`` are the keys of the objects for which ``nodes_of`` yields
    ``"a1"``. The objects themselves are not held. A value that no object has any more leaves no trace.
    """

    def __init__(self, **functions: Callable[[T], Iterable[Hashable]]) -> None:
        # Most values have one key, which stands there by itself: a set of its own would be ten times its size.
        self._tables: dict[str, dict[Hashable, Any]] = {name: {} for name in functions}
        self._functions = [(function, self._tables[name]) for name, function in functions.items()]

    def move(self, key: K, before: T | None, after: T | None) -> None:
        """Note that the object at *key* was *before* and is *after*, None where there was or is none."""
        for function, table in self._functions:
            joined: Iterable[Hashable] = function(after) if after is not None else ()
            if before is not None:
                had, has = set(function(before)), set(joined)
                for value in had - has:
                    _leave(table, value, key)
                joined = has - had
            for value in joined:
                if (found := table.setdefault(value, key)) is not key:
                    _join(table, value, key, found)

    def keys(self, name: str, value: Hashable) -> Collection[K]:
        """Return the keys of the objects that have *value*, in no order."""
        found = self._tables[name].get(value)
        if found.__class__ is dict:
            keys: Collection[K] = found
            return keys
        return () if found is None else (found,)

    def values(self, name: str) -> Collection[Any]:
        """Return every value that some object has."""
        return self._tables[name].keys()


def _join(table: dict[Hashable, Any], value: Hashable, key: Hashable, found: Any) -> None:
    if found.__class__ is dict:
        found[key] = None
    elif found != key:
        table[value] = {found: None, key: None}


def _leave(table: dict[Hashable, Any], value: Hashable, key: Hashable) -> None:
    found = table.get(value)
    if found.__class__ is dict:
        found.pop(key, None)
        if len(found) == 1:
            (table[value],) = found
    elif found == key:
        del table[value]
