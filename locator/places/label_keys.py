# SPDX-License-Identifier: Apache-2.0

"""Counts which label keys the nodes carry, as Nodes and PodLocators say."""

from __future__ import annotations

from collections import Counter

from locator.model import CLUSTER


class LabelKeys:
    """The keys in some sets of labels, kept up to date set by set.

    Several objects may share one dictionary, as the PodLocators of a node do: its keys count once.
    """

    def __init__(self) -> None:
        self._sharers: Counter[int] = Counter()  # by the id of the dictionary, which its sharers keep alive
        self._carriers: Counter[str] = Counter()  # by key
        self._carried: frozenset[str] | None = frozenset()  # None: not computed since a key came or went

    @property
    def carried(self) -> frozenset[str]:
        """The keys that at least one set has; the same object until they change."""
        if self._carried is None:
            self._carried = frozenset(self._carriers)
        return self._carried

    def move(self, before: dict[str, str] | None, after: dict[str, str] | None) -> None:
        """Replace the labels of one object. None: it does not exist. They stay as they are while they count."""
        if before is after:
            return
        if after is not None:
            self._sharers[id(after)] += 1
            if self._sharers[id(after)] == 1:
                self._add(after)
        if before is not None:
            self._sharers[id(before)] -= 1
            if not self._sharers[id(before)]:
                del self._sharers[id(before)]
                self._remove(before)

    def _add(self, labels: dict[str, str]) -> None:
        for key in labels.keys() - {CLUSTER}:  # topodns adds that one itself
            if not self._carriers[key]:
                self._carried = None
            self._carriers[key] += 1

    def _remove(self, labels: dict[str, str]) -> None:
        for key in labels.keys() - {CLUSTER}:
            self._carriers[key] -= 1
            if not self._carriers[key]:
                del self._carriers[key]
                self._carried = None
