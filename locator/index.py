# SPDX-License-Identifier: Apache-2.0

"""The one multimap of the store and its parts: finds objects by values that they hold, as client-go's Indexer does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Set
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V", bound=Hashable)

# A dictionary whose keys come and go doubles when its room is used up, however few keys it has then, and stays so. This
# is how many keys may go, by those that are left, before it is packed: mostly, it has room for as many new ones.
GONE = 1 / 8
MIN_GONE = 4096  # keys; to pack a smaller dictionary makes no difference
LARGE = 16_384  # keys; fewer are packed in less than 2 ms
FEW = 256  # keys of one value that are in a list; a longer one would take long to search


class Packing:
    """Keeps a dictionary whose keys come and go at the size that it needs.

    That takes 20 ms for 150,000 keys, so a large dictionary waits for ``pack``, which a thread can call.
    """

    def __init__(self, table: dict[Any, Any]) -> None:
        self._table = table
        self._gone = 0

    def note_gone(self) -> None:
        """Note that a key is gone from the dictionary."""
        self._gone += 1
        if self._gone > MIN_GONE and len(self._table) < LARGE:
            self.pack()

    def pack(self) -> None:
        """Pack the dictionary if enough keys are gone. Another thread that reads it may find it empty for a moment."""
        if self._gone > max(MIN_GONE, len(self._table) * GONE):
            self._gone = 0
            packed = {key: value for key, value in self._table.items()}  # noqa: C416 (dict() would stop all threads)
            self._table.clear()
            self._table.update(packed)


class Index(Generic[K, T]):
    """Keys of objects by values that index functions read from the objects.

    ``Index(node=nodes_of, pod=pods_of).keys("node", "a1")`` returns the keys of the objects for which ``nodes_of``
    yields ``"a1"``. The index holds no objects, and drops a value when the last object with it is gone.
    """

    def __init__(self, **functions: Callable[[T], Iterable[Hashable]]) -> None:
        # Most values have one key, and the table holds that key itself. Others have a few, such as a node's pods, and
        # these are in a list: a dictionary of 30 keys takes four times the memory. Keys themselves are no lists.
        self._tables: dict[str, dict[Hashable, Any]] = {name: {} for name in functions}
        self._functions = [
            (function, self._tables[name], Packing(self._tables[name])) for name, function in functions.items()
        ]

    def move(self, key: K, before: T | None, after: T | None) -> None:
        """Replace the object *before* at *key* by *after*; either is None if there is no such object."""
        for function, table, packing in self._functions:
            joined: Iterable[Hashable] = function(after) if after is not None else ()
            if before is not None:
                had, has = set(function(before)), set(joined)
                for value in had - has:
                    if _leave(table, value, key):
                        packing.note_gone()
                joined = has - had
            for value in joined:
                if (present := table.setdefault(value, key)) is not key:
                    _join(table, value, key, present)

    def join(self, name: str, added: Iterable[tuple[Hashable, K]]) -> None:
        """Add values, each with the key of an object that has it now; faster than ``move`` for many objects."""
        table = self._tables[name]
        for value, key in added:
            present = table.setdefault(value, key)
            if present.__class__ is list and len(present) < FEW:  # as _join does, without a call
                if present[-1] is not key:
                    present.append(key)
            elif present is not key:
                _join(table, value, key, present)

    def pack(self) -> None:
        """Give memory back, see ``Packing.pack``."""
        for _, _, packing in self._functions:
            packing.pack()

    def only(self, name: str, value: Hashable) -> K | None:
        """Return the key of the one object that has *value*, None if there is none, or more than one."""
        present = self._tables[name].get(value)
        return None if present.__class__ is list or present.__class__ is dict else cast("K | None", present)

    def only_each(self, name: str, values: Iterable[Hashable]) -> list[K | None]:
        """Return what ``only`` returns for each of some values; faster for many."""
        present = map(self._tables[name].get, values)
        return [None if found.__class__ is list or found.__class__ is dict else found for found in present]

    def keys(self, name: str, value: Hashable) -> Collection[K]:
        """Return the keys of the objects that have *value*, in no particular order."""
        present = self._tables[name].get(value)
        if present.__class__ is list or present.__class__ is dict:
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


def _join(table: dict[Hashable, Any], value: Hashable, key: Hashable, present: Any) -> None:
    if present.__class__ is dict:
        present[key] = None
    elif present.__class__ is not list:
        if present != key:
            table[value] = [present, key]
    elif present[-1] is not key:  # an object may have a value twice, one after the other
        present.append(key)
        if len(present) > FEW:
            table[value] = dict.fromkeys(present)


def _leave(table: dict[Hashable, Any], value: Hashable, key: Hashable) -> bool:
    """Remove a key from those of a value; return whether it was the last."""
    present = table.get(value)
    if present.__class__ is dict:
        present.pop(key, None)
        if len(present) <= FEW // 2:
            table[value] = list(present)
    elif present.__class__ is list:
        with suppress(ValueError):
            present.remove(key)
        if len(present) == 1:
            (table[value],) = present
    elif present == key:
        del table[value]
        return True
    return False
