# SPDX-License-Identifier: Apache-2.0

"""A part of a long list, so that a page stays small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")
U = TypeVar("U")


class Part(Struct, Generic[T], frozen=True):
    """Some ``rows`` of a list that has ``total``; ``first`` is how many come before them.

    ``number`` counts the parts from 1; there are ``parts``, at least 1.
    """

    rows: Sequence[T]
    total: int
    first: int
    number: int
    parts: int

    @property
    def last(self) -> int:
        """How many rows there are up to the last one of this part."""
        return self.first + len(self.rows)

    def of(self, rows: Sequence[U]) -> Part[U]:
        """Return the same part with other *rows*, which were made from its own."""
        return Part(rows, self.total, self.first, self.number, self.parts)


def part_of(rows: Sequence[T], number: int, size: int) -> Part[T]:
    """Return part *number* (from 1) of *rows*, of *size* rows, or the last part if there are not so many."""
    parts = max(1, -(-len(rows) // size))
    number = min(max(number, 1), parts)
    first = (number - 1) * size
    return Part(rows[first : first + size], len(rows), first, number, parts)
