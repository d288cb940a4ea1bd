# SPDX-License-Identifier: Apache-2.0

"""Pods that are alike, by node: many Services may ask for some of them, each for others, as long as it is cheap.

Whether a pod is one of the clients that somebody means depends on its namespace and the labels that are read of it, and
nearly all pods have these in common with others. So selectors are compared with the few that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Generic, TypeVar

from locator.model import Pod, PodLocator, labels_of

Asker = TypeVar("Asker")  # who wants to know about some of the pods


class Crowd(Generic[Asker]):
    """Pods of a *namespace* with the same *labels*: how many are on each node, and ``askers``, for whom they count."""

    __slots__ = ("askers", "labels", "namespace", "on_node")

    def __init__(self, namespace: str, labels: Mapping[str, str], askers: list[Asker]) -> None:
        self.namespace, self.labels, self.askers = namespace, labels, askers
        self.on_node: dict[Hashable, int] = {}


class Crowds(Generic[Asker]):
    """All pods that ask, by what they have in common. *askers_of* finds for whom those in a namespace count."""

    def __init__(self, askers_of: Callable[[str, Mapping[str, str]], list[Asker]]) -> None:
        self._askers_of = askers_of
        self._crowds: dict[Hashable, Crowd[Asker]] = {}

    def __iter__(self) -> Iterator[Crowd[Asker]]:
        """Yield the crowds, none of them empty."""
        return iter(self._crowds.values())

    def add(self, pod: Pod | PodLocator, node: Hashable, number: int) -> list[Asker]:
        """Add a pod on a node (*number* is 1) or take one away (-1); return for whom it counts."""
        labels = labels_of(pod)
        key = pod.namespace, frozenset(labels.items())
        crowd = self._crowds.get(key)
        if crowd is None:
            crowd = self._crowds[key] = Crowd(pod.namespace, labels, self._askers_of(pod.namespace, labels))
        crowd.on_node[node] = crowd.on_node.get(node, 0) + number
        if not crowd.on_node[node]:
            del crowd.on_node[node]
            if not crowd.on_node:
                del self._crowds[key]
        return crowd.askers
