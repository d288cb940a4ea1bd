# SPDX-License-Identifier: Apache-2.0

"""Kept: the last result of some work, for as long as it would be the same."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """A result, and the very objects that it was made from."""

    def __init__(self) -> None:
        self._parts: tuple[object, ...] = ()
        self._result: T | None = None

    def get(self, *parts: object) -> T | None:
        """Return the result if it was made from these objects, else None."""
        same = len(parts) == len(self._parts) and all(map(_same, parts, self._parts))
        return self._result if same else None

    def keep(self, result: T, *parts: object) -> T:
        """Keep and return a result that was made from *parts*, in place of any other."""
        self._parts, self._result = parts, result
        return result


def _same(one: object, other: object) -> bool:
    return one is other
