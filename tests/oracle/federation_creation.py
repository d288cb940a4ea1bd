# SPDX-License-Identifier: Apache-2.0

"""What a federation creates in its clusters, computed a second time: by brute force where that is possible.

Tests compare it with what ``topodns controller --federate`` does. It shares no code with the packages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, count
from typing import Any, NamedTuple

Item = dict[str, Any]  # an object of Kubernetes as JSON
THEIRS = "theirs"  # the member of ``data`` that only somebody else writes: it stays when an object is adopted


class Found(NamedTuple):
    """What stands in a cluster under a name: whether it is the federation's, and its data or its replicas."""

    ours: bool
    content: Any


class Creation:
    """What a federation has created in its clusters, once all of them have been read for a while.

    ``there`` is by cluster and object. It says nothing of what happens on the way there.
    """

    def __init__(self, clusters: Collection[str]) -> None:
        self.there: dict[str, dict[str, Found]] = {name: {} for name in clusters}

    def settle(self, objects: Mapping[str, Item], orphaned: Collection[str]) -> None:
        """Let all clusters become what valid *objects* ask for; all others have been deleted, or *orphaned*."""
        for cluster, there in self.there.items():
            for name, found in list(there.items()):
                if found.ours and name in orphaned:
                    there[name] = Found(False, found.content)
                elif found.ours and (name not in objects or cluster not in self.clusters_of(objects[name])):
                    del there[name]
            for name, item in objects.items():
                if cluster in self.clusters_of(item):
                    there[name] = self._copy(cluster, item, there.get(name))

    def states(self, name: str, item: Item) -> dict[str, str]:
        """Return what the object's status says of each cluster."""
        where = self.clusters_of(item)
        return {cluster: "synced" if self.there[cluster][name].ours else "not-ours" for cluster in where}

    def clusters_of(self, item: Item) -> list[str]:
        """Return the clusters in which an object is."""
        listed = _said(item, "clusters")
        return sorted(listed.split(",") if listed else self.there)

    def _copy(self, cluster: str, item: Item, found: Found | None) -> Found:
        if found and not found.ours and _said(item, "adopt") != "true":
            return found
        if "data" in item:
            before = found.content if found else {}
            return Found(True, {key: text for key, text in before.items() if key == THEIRS} | item["data"])
        if found and _said(item, "replicas") == "local":
            return Found(True, found.content)
        return Found(True, self._shares(item)[cluster])

    def _shares(self, item: Item) -> dict[str, int]:
        where, said = self.clusters_of(item), _said(item, "cluster-weights")
        named = dict(part.split("=") for part in said.split(",")) if said else dict.fromkeys(where, "1")
        weights = {cluster: int(named.get(cluster, "0")) for cluster in where}
        return brute_split(item["spec"]["replicas"], weights, spare=int(_said(item, "overprovision") or "0"))


def _said(item: Item, annotation: str) -> str:
    found = item["metadata"].get("annotations", {}).get(f"topodns.io/{annotation}", "")
    return str(found)


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
