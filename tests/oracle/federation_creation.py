# SPDX-License-Identifier: Apache-2.0

"""What a federation creates in its clusters, computed a second time: by brute force where that is possible.

Tests compare it with what ``topodns controller --federate`` does. It shares no code with the packages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, count


def brute_split(
    replicas: int, weights: Mapping[str, int], *, spare: int = 0, lost: Collection[str] = ()
) -> dict[str, int]:
    """Return how many of *replicas* each cluster gets, by trying all ways to split them.

    *spare* is how many clusters may be lost while all replicas remain. *lost* are those that have been.
    """
    names = sorted(weights)
    counted = {name: 0 if name in lost else weights[name] for name in names}
    if not any(counted.values()):
        counted = dict(weights)  # nobody is left to take the shares of the lost ones, so each keeps its own
    together = sum(counted.values())
    if not together:
        return dict.fromkeys(names, 0)
    if not spare:
        return dict(
            zip(names, _nearest(replicas, [Fraction(replicas * counted[n], together) for n in names]), strict=True)
        )
    heavy = [weight for weight in counted.values() if weight]
    losses = min(spare, len(heavy) - 1)  # where all are lost, nothing can remain
    left = min(together - sum(gone) for gone in combinations(heavy, losses))
    raised = next(number for number in count() if number * left >= replicas * together)
    return {name: _whole(Fraction(raised * counted[name], together)) for name in names}


def _nearest(replicas: int, shares: Sequence[Fraction]) -> tuple[int, ...]:
    """Return the whole numbers that are nearest to *shares* of all that add up; among equals the first names win."""

    def distance(parts: Sequence[int]) -> Fraction:
        return Fraction(sum((part - share) ** 2 for part, share in zip(parts, shares, strict=True)))

    return min(_parts(replicas, len(shares)), key=lambda parts: (distance(parts), [-part for part in parts]))


def _parts(total: int, number: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write *total* as so many numbers."""
    if number == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _parts(total - first, number - 1):
            yield (first, *rest)


def _whole(share: Fraction) -> int:
    return next(number for number in count() if number >= share)
