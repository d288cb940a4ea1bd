# SPDX-License-Identifier: Apache-2.0

"""The one multimap of the store and its parts: finds objects by values that they hold, as client-go's Indexer does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Set
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V", bound=Hashable)


class Index(Generic[K, T]):
    """Keys of objects by values that index functions read from the objects.

    ``Index(node=nodes_of, pod=pods_of).keys("node", "a1")`` returns the keys of the objects for which ``nodes_of``
    yields ``"a1"``. The index holds no objects, and drops a value when the last object with it is gone.
    """

    def __init__(self, **functions: Callable[[T], Iterable[Hashable]]) -> None:
        self._functions = functions
        # Most values have one key, and the table holds that key itself. The keys of others are in a list: for some
        # dozens, such as the pods of a node, a set takes seven times the memory. To leave a value costs a look at all
        # its keys, a tenth of a millisecond for 10,000. Keys themselves are no lists.
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
            if present.__class__ is list:
                if present[-1] is not key:  # an object may have a value twice, and joins all of its own at once
                    present.append(key)
            elif present is not key and present != key:
                table[value] = [present, key]

    def _leave(self, name: str, value: Hashable, key: K) -> None:
        table = self._tables[name]
        present = table.get(value)
        if present.__class__ is list:
            with suppress(ValueError):
                present.remove(key)
            if len(present) == 1:
                (table[value],) = present
        elif present == key:
            del table[value]

    def only(self, name: str, value: Hashable) -> K | None:
        """Return the key of the one object that has *value*, None if there is none, or more than one."""
        present = self._tables[name].get(value)
        return None if present.__class__ is list else cast("K | None", present)

    def only_each(self, name: str, values: Iterable[Hashable]) -> list[K | None]:
        """Return what ``only`` returns for each of some values; faster for many."""
        present = map(self._tables[name].get, values)
        return [None if found.__class__ is list else found for found in present]

    def keys(self, name: str, value: Hashable) -> Collection[K]:
        """Return the keys of the objects that have *value*. They change as the index does: copy them before it may."""
        present = self._tables[name].get(value)
        if present.__class__ is list:
            keys: Collection[K] = present
            return keys
        return () if present is None else (present,)

    def values(self, name: str) -> Set[Any]:
        """Return all values that at least one object has."""
        return self._tables[name].keys()


class Relation(Generic[K, V]):
    """Some values of each key, such as the pods that a slice depends on, and the keys by those values."""

    def __init__(self) -> None:
        self._values: dict[K, tuple[V, ...]] = {}
        self._keys: Index[K, tuple[V, ...]] = Index(value=tuple)

    def __bool__(self) -> bool:
        return bool(self._values)

    def set(self, key: K, values: tuple[V, ...]) -> bool:
        """Replace the values of a key; return whether they differ."""
        before = self._values.pop(key, ())
        if values:
            self._values[key] = values
        if values == before:
            return False
        self._keys.move(key, before, values)
        return True

    def values_of(self, key: K) -> tuple[V, ...]:
        """Return the values of a key."""
        return self._values.get(key, ())

    def keys_of(self, value: V) -> Collection[K]:
        """Return the keys that have a value, in no order."""
        return self._keys.keys("value", value)

    def values(self) -> Set[V]:
        """Return all values that some key has."""
        return self._keys.values("value")
