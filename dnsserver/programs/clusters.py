# SPDX-License-Identifier: Apache-2.0

"""Reads the clusters of the settings, each from its API server or from dumps, and publishes what they are together.

Servers follow them; commands read them once. Neither loads anything that it does not need: no reader of dumps, or no
client of an API server.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from dnsserver import __version__
from dnsserver.metrics.counters import Counts
from dnsserver.programs.from_settings import (
    cluster_of,
    cluster_set_of,
    other_clients_of,
    other_store_of,
    source_of,
    store_of,
)
from dnsserver.programs.server_log import log_loaded, read_text
from dnsserver.settings.settings import Settings
from locator.cluster.publisher import Publisher, Source, Subscriber, on_new_findings
from locator.cluster.set_publisher import Cluster, SetPublisher
from locator.model import OWN, Health
from locator.state.store import Store

if TYPE_CHECKING:
    from dnsserver.metrics.server import ServerMetrics
    from locator.cluster.api_client import ApiClient
    from locator.cluster.dumps.reading import Dump
    from locator.cluster.state_file import StateFile

log = logging.getLogger("topodns")


class Clusters:
    """The own cluster, the others, and what reads them as one if anything does: ``joined``.

    ``source`` and ``publisher`` are those of the own cluster, and ``client`` is that of its API server, None for a
    dump. *counts* learns of changes and of files that were read again.
    """

    def __init__(self, settings: Settings, counts: Counts) -> None:
        """Raises BadCluster, BadDump."""
        self._settings = settings
        store = store_of(settings)
        self.kinds = [kind.__name__ for kind in store.kinds]
        self.client = None if settings.snapshot else cluster_of(settings)
        self.own = _cluster(settings, OWN, store, self.client, settings.snapshot, counts)
        self.source, self.publisher = self.own.source, self.own.publisher
        clients = other_clients_of(settings, self.client)
        self.others = [
            _cluster(settings, name, other_store_of(settings, name), clients[name], [cluster.path], counts)
            for cluster in settings.cluster
            for name in [cluster.name]
        ]
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

    def show_in(self, metrics: ServerMetrics) -> None:
        """Let *metrics* show what is known of the clusters."""
        metrics.watches, metrics.others, metrics.ages = self.own.watches, self.others, self.ages
        if self.joined is not None:
            metrics.votes = self.joined.votes
        self.subscribe(metrics.show)

    def post_events(self, nursery: trio.Nursery) -> None:
        """Post Events about invalid constraints of the own cluster, if it is a live one."""
        if self.client is not None:
            from locator.cluster.event_poster import EventPoster

            events = EventPoster(self.client, socket.gethostname())
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
        return {watch.problem for watch in self.own.watches.values() if watch.restarts}


def _cluster(
    settings: Settings, name: str, store: Store, client: ApiClient | None, paths: Sequence[str], counts: Counts
) -> Cluster:
    """Return what reads a cluster into *store*: with *client* from its API server, else from files.

    *name* is "" for the own one. Raises BadDump.
    """
    publisher = Publisher(store, on_programmed=counts.programmed)
    if client is None:
        return Cluster(name, _files(publisher, paths, counts, source_of(name) if name else ""), publisher)
    from locator.cluster.informer import Informer

    informer = Informer(
        client, store.kinds, publisher, state_file=_state_file(settings, name, store, client), cluster=name
    )
    publisher.read_pod_labels = informer.read_pod_labels
    return Cluster(name, informer, publisher, {kind.__name__: watch for kind, watch in informer.reflectors.items()})


def _state_file(settings: Settings, cluster: str, store: Store, client: ApiClient) -> StateFile | None:
    if settings.state_dir is None:
        return None
    from locator.cluster.state_file import FILE_NAME, StateFile

    return StateFile(
        settings.state_dir,
        name=f"{FILE_NAME}-{cluster}" if cluster else FILE_NAME,
        cluster=client.identity,
        kinds=store.kinds,
        settings=f"{__version__} {store.settings}",
        max_age=settings.state_max_age,
    )


def _files(publisher: Publisher, paths: Sequence[str], counts: Counts, about: str) -> Source:
    from locator.cluster import dump_files

    async def deliver(dump: Dump) -> None:
        log.info("%s", read_text(dump.counts, about), extra={"fields": dump.counts._asdict()})
        await publisher.batches.send(dump.batch())
        await publisher.flush()

    files = dump_files.DumpFiles(paths)
    files.check()
    return dump_files.DumpSource(files, deliver, on_reread=counts.reread, about=about)
