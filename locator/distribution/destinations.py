# SPDX-License-Identifier: Apache-2.0

"""The work queues of a federation: one for its API, and one for each cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from locator.api.deltas import Delta, Replace
from locator.control.reconciler import Destination
from locator.distribution.distribution import Distribution
from locator.distribution.records import NAMESPACE, OTHER_WORKLOADS, Key, Original
from locator.distribution.rules import CopyRules, DistributionRules, OriginalRules, Report
from locator.model import OWN


class ClusterContact(NamedTuple):
    """What the watches of a cluster tell: since when it cannot be read (None: it can), and why not."""

    lost_since: float | None
    problem: str = ""


class Destinations:
    """What writes to the federation API and to each cluster of *distribution*.

    Calls *report* with each new finding about an object of the federation API.
    """

    def __init__(self, distribution: Distribution, report: Report) -> None:
        self.distribution = distribution
        self._rules: dict[str, CopyRules] = {}
        self.originals: Destination = _Queue(OriginalRules(distribution, self._rules, report), self)
        """What writes to the federation API."""
        self.clusters: dict[str, Destination] = {}
        """What writes to a cluster, by its name."""
        for cluster in distribution.contacts:
            self._begin(cluster)

    def apply(self, delta: Delta, cluster: str = OWN) -> None:
        """Take in a delta of the federation API, or of a cluster."""
        distribution, vanished = self.distribution, False
        for change in distribution.objects.apply(delta, cluster):
            vanished = vanished or (isinstance(change.before, Original) and change.after is None)
            # What somebody writes now overtakes what many clusters may refuse again and again.
            urgent = cluster == OWN and not isinstance(delta, Replace)
            for key in distribution.note(change):
                self._compare([key], self.clusters if cluster == OWN else (cluster,), urgent=urgent)
        if isinstance(delta, Replace) and cluster == OWN and distribution.note_list(delta.kind, vanished=vanished):
            self._compare_all()

    def add_cluster(self, cluster: str, now: float) -> None:
        """Distribute to one more cluster."""
        self.distribution.add_cluster(cluster, now)
        self._begin(cluster)
        self._compare_all()

    def remove_cluster(self, cluster: str) -> None:
        """Forget a cluster, and leave there what is there."""
        self.distribution.remove_cluster(cluster)
        del self._rules[cluster], self.clusters[cluster]
        self._compare_all()

    def look(self, contacts: Mapping[str, ClusterContact], now: float) -> None:
        """Note which clusters can be read *now*."""
        distribution = self.distribution
        changed = [name for name, contact in contacts.items() if distribution.observe(name, *contact, now)]
        if distribution.end_doubts(now) or changed:
            self._compare_all()
        if moved := distribution.migrate(now):
            self._compare(moved, self.clusters)

    def _begin(self, cluster: str) -> None:
        rules = self._rules[cluster] = CopyRules(self.distribution, cluster, self._compare_answered)
        self.clusters[cluster] = _Queue(rules, self)

    def _compare_answered(self, key: Key) -> None:
        """Compare the objects about which a cluster's API server has said something."""
        keys = [key] if key.kind != NAMESPACE else self.distribution.keys_in(key.object)
        self._compare(keys, ())

    def _compare_all(self) -> None:
        self._compare(self.distribution.all_keys(), self.clusters)

    def _compare(self, keys: Iterable[Key], clusters: Iterable[str], *, urgent: bool = False) -> None:
        """Compare objects in the federation API, and in some clusters; *urgent* ones before all others."""
        for key in keys:
            text = str(key)
            if key.kind != NAMESPACE:
                self.originals.queue.add(text, urgent=urgent)
            if key.kind not in OTHER_WORKLOADS:
                for cluster in clusters:
                    self.clusters[cluster].queue.add(text, urgent=urgent)


class _Queue(Destination):
    """One of the work queues. What a write changes, all learn."""

    def __init__(self, rules: DistributionRules, destinations: Destinations) -> None:
        super().__init__(rules)
        self._destinations = destinations

    def apply(self, delta: Delta, cluster: str = OWN) -> None:
        """Take in a delta."""
        self._destinations.apply(delta, cluster)
