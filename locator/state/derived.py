# SPDX-License-Identifier: Apache-2.0

"""What a snapshot has by key, such as its Services: computed anew where something changed, and shared elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Derived(Generic[T]):
    """Values by key. Marked ones are computed by *compute*, of their key and their last value.

    It returns None for a key that has no value, and the very same object if the value is the same.
    """

    def __init__(self, compute: Callable[[str, T | None], T | None]) -> None:
        self.values: Mapping[str, T] = {}
        """The values as of the last ``update``; the same mapping until one differs. It never changes."""
        self._compute = compute
        self._marked: set[str] = set()

    def mark(self, keys: Iterable[str]) -> None:
        """Note that the values of some keys may differ now."""
        self._marked.update(keys)

    def update(self) -> Mapping[str, T | None]:
        """Compute the marked values; return those that differ, None for one that is gone."""
        marked, self._marked = self._marked, set()
        changes: dict[str, T | None] = {}
        for key in marked:
            known = self.values.get(key)
            if (value := self._compute(key, known)) is not known:
                changes[key] = value
        self.values = mapping_after(self.values, changes)
        return changes


def mapping_after(before: Mapping[str, T], changes: Mapping[str, T | None]) -> Mapping[str, T]:
    """Return a mapping after *changes*, of which None removes a key; *before* itself if there are none."""
    if not changes:
        return before
    after = dict(before)
    for key, value in changes.items():
        if value is None:
            del after[key]
        else:
            after[key] = value
    return after
