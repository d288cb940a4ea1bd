# SPDX-License-Identifier: Apache-2.0

"""The one multimap of the store and its parts: finds objects by values that they hold, as client-go's Indexer does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Set
from typing import Any, Generic, TypeVar, cast

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Index(Generic[K, T]):
    """Keys of objects by values that index functions read from the objects.

    ``Index(node=nodes_of, pod=pods_of).keys("node", "a1")`` returns the keys of the objects for which ``nodes_of``
    yields ``"a1"``. The index holds no objects, and drops a value when the last object with it is gone.
    """

    def __init__(self, **functions: Callable[[T], Iterable[Hashable]]) -> None:
        self._functions = functions
        # Most values have one key, and the table holds that key itself. The keys of others are in a dictionary, which
        # takes less than half of a set's memory for some dozens. Keys themselves are no dictionaries.
        self._tables: dict[str, dict[Hashable, Any]] = {name: {} for name in functions}

    def move(self, key: K, before: T | None, after: T | None) -> None:
        """Replace the object *before* at *key* by *after*; either is None if there is no such object."""
        for name, function in self._functions.items():
            joined: Iterable[Hashable] = function(after) if after is not None else ()
            if before is not None:
                had, has = set(function(before)), set(joined)
                for value in had - has:
                    self._leave(name, value, key)
                joined = has - had
            self.join(name, ((value, key) for value in joined))

    def join(self, name: str, added: Iterable[tuple[Hashable, K]]) -> None:
        """Add values, each with the key of an object that has it now; faster than ``move`` for many objects."""
        table = self._tables[name]
        for value, key in added:
            present = table.setdefault(value, key)
            if present.__class__ is dict:
                present[key] = None
            elif present is not key and present != key:
                table[value] = {present: None, key: None}

    def _leave(self, name: str, value: Hashable, key: K) -> None:
        table = self._tables[name]
        present = table.get(value)
        if present.__class__ is dict:
            present.pop(key, None)
            if len(present) == 1:
                (table[value],) = present
        elif present == key:
            del table[value]

    def only(self, name: str, value: Hashable) -> K | None:
        """Return the key of the one object that has *value*, None if there is none, or more than one."""
        present = self._tables[name].get(value)
        return None if present.__class__ is dict else cast("K | None", present)

    def keys(self, name: str, value: Hashable) -> Collection[K]:
        """Return the keys of the objects that have *value*. They change as the index does: copy them before it may."""
        present = self._tables[name].get(value)
        if present.__class__ is dict:
            keys: Collection[K] = present
            return keys
        return () if present is None else (present,)

    def values(self, name: str) -> Set[Any]:
        """Return all values that at least one object has."""
        return self._tables[name].keys()
