# SPDX-License-Identifier: Apache-2.0

"""Reads the clusters of the settings, follows them, and publishes what they are together."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import trio

from dnsserver.metrics.counters import Counts
from dnsserver.metrics.exposition import Metrics
from dnsserver.programs.cluster_sources import event_poster, other_clusters, own_cluster
from dnsserver.programs.from_settings import cluster_set_of, store_of
from dnsserver.programs.loaded import log_loaded
from dnsserver.settings.fields import Settings
from locator.cluster.publisher import Publisher, Subscriber, on_new_findings
from locator.cluster.set_publisher import SetPublisher
from locator.model import Health


class Clusters:
    """The own cluster, the others, and what reads them as one if anything does: ``joined``.

    ``publisher`` is that of the own cluster. *counts* learns of changes and of files that were read again.
    """

    def __init__(self, settings: Settings, counts: Counts) -> None:
        """Raises BadCluster, BadDump."""
        self._settings = settings
        store = store_of(settings)
        self.kinds = [kind.__name__ for kind in store.kinds]
        self.publisher = Publisher(store, on_programmed=counts.programmed)
        self._own = own_cluster(settings, store, self.publisher, counts)
        self.source = self._own.source
        self.others = other_clusters(settings, self._own, counts)
        self.joined: SetPublisher | None = None
        if (clusters := cluster_set_of(settings)) is not None:
            self.joined = SetPublisher(clusters, self.publisher, self.others, max_age=settings.cluster_max_age)

    @property
    def by_name(self) -> dict[str, Publisher]:
        """The publisher of each cluster, the own one first."""
        own = {self._settings.cluster_name: self.publisher}
        return own | {cluster.name: cluster.publisher for cluster in self.others}

    @property
    def namespace(self) -> str:
        """The namespace in which names without one are looked up."""
        served = self._settings.serve_namespace
        return served[0] if len(served) == 1 else "default"

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call *subscriber* at each publication of all clusters together, after all earlier subscribers."""
        (self.joined or self.publisher).subscribe(subscriber)

    def show_in(self, metrics: Metrics) -> None:
        """Let *metrics* show what is known of the clusters."""
        metrics.watches, metrics.others, metrics.ages = self._own.watches, self.others, self.ages
        if self.joined is not None:
            metrics.votes = self.joined.votes
        self.subscribe(metrics.show)

    def post_events(self, nursery: trio.Nursery) -> None:
        """Post Events about invalid constraints of the own cluster, if it is a live one."""
        if self._own.client is not None:
            events = event_poster(self._own.client)
            self.publisher.subscribe(on_new_findings(events.offer))
            nursery.start_soon(events.run)

    def start(self, nursery: trio.Nursery) -> None:
        """Read all clusters, and follow them, in tasks of *nursery*."""
        nursery.start_soon(self.publisher.run)
        nursery.start_soon(self.source.run)
        if self.joined is not None:
            nursery.start_soon(self.joined.run)
        for cluster in self.others:
            nursery.start_soon(cluster.publisher.run)
            nursery.start_soon(cluster.source.run)

    def log_loaded(self, nursery: trio.Nursery) -> None:
        """Log what was loaded from each cluster, once it is, in tasks of *nursery*."""
        nursery.start_soon(log_loaded, self.publisher, self._settings.trusted_forwarder)
        for cluster in self.others:
            nursery.start_soon(log_loaded, cluster.publisher, (), f"cluster {cluster.name}: ")

    def read_again(self) -> None:
        """Read everything again that topodns does not follow by itself."""
        for source in (self.source, *(cluster.source for cluster in self.others)):
            source.read_again()

    def check_ages(self) -> None:
        """Let other clusters go that have been out of reach for too long, and back in once they are there again."""
        if self.joined is not None:
            self.joined.check_ages()

    def ages(self) -> Mapping[str, float]:
        """Return for how many seconds each cluster is out of reach, 0 while there is contact."""
        return {self._settings.cluster_name: self.source.age()} | {other.name: other.age() for other in self.others}

    def health(self) -> Mapping[str, Health]:
        """Return the checks of readiness: those of the own cluster; the others are told of, and always pass."""
        published = {} if self.joined is None else {"clusters": self.joined.health()}
        others = {f"cluster {cluster.name}": cluster.health() for cluster in self.others}
        return {**self.source.health(), **published, **others}

    def problems(self) -> Collection[str]:
        """Return why the own cluster's API server is not listed, once for all kinds with the same problem."""
        return {watch.problem for watch in self._own.watches.values() if watch.restarts}
