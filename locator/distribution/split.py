# SPDX-License-Identifier: Apache-2.0

"""Splits the replicas of a workload over clusters."""

from __future__ import annotations

from collections.abc import Collection, Mapping

MAX_REPLICAS = 10**6


def split(replicas: int, weights: Mapping[str, int], *, spare: int = 0, lost: Collection[str] = ()) -> dict[str, int]:
    """Return how many of the *replicas* each cluster gets, in proportion to its weight, by its name.

    What does not divide goes to the largest remainders, of equal ones to the first clusters by name. With *spare*,
    each share is so large, and rounded up, that all *replicas* remain whichever *spare* clusters fail. The clusters in
    *lost* weigh 0, unless nobody is left who could take their share; if at most *spare* others are left, one of them
    has to do.

    Raises ValueError, with a text for people, if fewer than *spare* clusters and one more have a weight, or if a share
    is greater than ``MAX_REPLICAS``.
    """
    names = sorted(weights)
    if spare and spare >= sum(weight > 0 for weight in weights.values()):
        raise ValueError(f"{spare} clusters may be lost")
    weighing = {name: 0 if name in lost else weights[name] for name in names}
    if not any(weighing.values()):
        weighing = dict(weights)
    total = sum(weighing.values())
    if not total:
        return dict.fromkeys(names, 0)
    if spare:
        left = min(spare, sum(weight > 0 for weight in weighing.values()) - 1)
        failing = sum(sorted(weighing.values(), reverse=True)[:left])
        more = _divided_up(replicas * total, total - failing)
        shares = {name: _divided_up(more * weighing[name], total) for name in names}
        if max(shares.values()) > MAX_REPLICAS:
            raise ValueError(f"{max(shares.values())} replicas in one cluster")
        return shares
    shares = {name: replicas * weighing[name] // total for name in names}
    by_remainder = sorted(names, key=lambda name: (-(replicas * weighing[name] % total), name))
    for name in by_remainder[: replicas - sum(shares.values())]:
        shares[name] += 1
    return shares


def _divided_up(number: int, divisor: int) -> int:
    return -(-number // divisor)
