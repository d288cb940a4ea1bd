# SPDX-License-Identifier: Apache-2.0

"""Reads the clusters of the settings, each from its API server or from dumps, and publishes what they are together.

Servers follow them; commands read them once. Neither loads anything that it does not need: no reader of dumps, or no
client of an API server.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from dnsserver import __version__
from dnsserver.metrics.counters import Counts
from dnsserver.programs.from_settings import (
    cluster_of,
    cluster_set_of,
    other_store_of,
    store_of,
)
from dnsserver.programs.other_clusters import OtherClusters
from dnsserver.programs.server_log import log_loaded, read_text
from dnsserver.settings.settings import Settings
from locator.cluster.publisher import Publisher, Subscriber, on_new_findings
from locator.cluster.set_publisher import Cluster, SetPublisher
from locator.model import OWN, Health
from locator.state.store import Store

if TYPE_CHECKING:
    from dnsserver.metrics.server import ServerMetrics
    from locator.cluster.api_client import ApiClient
    from locator.cluster.cluster_folder import OpenedCluster
    from locator.cluster.dump_files import DumpFiles
    from locator.cluster.dumps.reading import Dump
    from locator.cluster.state_file import StateFile

log = logging.getLogger("topodns")


class Clusters:
    """The own cluster, the others, and what reads them as one if anything does: ``joined``.

    ``source`` and ``publisher`` are those of the own cluster, and ``client`` is that of its API server, None for a
    dump. *counts* learns of changes and of files that were read again. *other_sources* is what the others are
    read from if other parts of the program read them, too: whoever passes it follows it.
    """

    def __init__(self, settings: Settings, counts: Counts, other_sources: OtherClusters | None = None) -> None:
        """Raises BadCluster, BadDump."""
        self._settings = settings
        store = store_of(settings)
        self.kinds = [kind.__name__ for kind in store.kinds]
        self._is_followed = other_sources is not None
        if other_sources is None:
            other_sources = OtherClusters(settings, None if settings.snapshot else cluster_of(settings))
        self.other_sources, self.client = other_sources, other_sources.own
        if self.client is None:
            from locator.cluster.dump_files import DumpFiles

            self.own = _of_files(OWN, store, DumpFiles(settings.snapshot), counts)
        else:
            self.own = _live(settings, OWN, store, self.client, counts)
        self.source, self.publisher = self.own.source, self.own.publisher
        self.others: list[Cluster] = []
        self.by_name = {settings.cluster_name: self.publisher}
        """The publisher of each cluster, the own one first."""
        self._counts = counts
        self._nursery: trio.Nursery | None = None  # while the clusters are followed
        self.joined: SetPublisher | None = None
        if (clusters := cluster_set_of(settings)) is not None:
            self.joined = SetPublisher(clusters, self.publisher, max_age=settings.cluster_max_age)
            self.joined.note(OWN, other_sources.findings)
            other_sources.subscribe(self._change, partial(self.joined.note, OWN))
        for name, opened in other_sources.opened.items():
            self._add(name, opened)

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
        self._nursery = nursery
        nursery.start_soon(self.publisher.run)
        nursery.start_soon(self.source.run)
        nursery.start_soon(log_loaded, self.publisher, self._settings.trusted_forwarder)
        for cluster in self.others:
            nursery.start_soon(_follow, cluster)
        if self.joined is not None:
            nursery.start_soon(self.joined.run)
            if not self._is_followed:
                nursery.start_soon(self.other_sources.follow)

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

    def _change(self, name: str, opened: OpenedCluster | None) -> None:
        """Read another cluster from now on, or no longer if *opened* is None."""
        if opened is None:
            self._remove(name)
        else:
            self._add(name, opened)

    def _add(self, name: str, opened: OpenedCluster) -> None:
        """Read another cluster, too. Raises BadDump if it must be there, and is not."""
        from locator.cluster.cluster_folder import unreadable
        from locator.cluster.dump_files import DumpFiles

        joined, store = self.joined, other_store_of(self._settings, name)
        assert joined is not None  # there is one whenever there may be others
        if isinstance(opened, DumpFiles):
            (path,) = opened.paths

            def note(problem: str) -> None:
                joined.note(name, [unreadable(path, problem)] if problem else ())

            about, required = self.other_sources.source_of(name), self.other_sources.is_required(name)
            cluster = _of_files(name, store, opened, self._counts, about=about, required=required, on_problem=note)
        else:
            cluster = _live(self._settings, name, store, opened, self._counts)
        self.others.append(cluster)
        self.by_name[name] = cluster.publisher
        joined.add(cluster)
        if self._nursery is not None:
            self._nursery.start_soon(_follow, cluster)

    def _remove(self, name: str) -> None:
        """Read another cluster no longer, and forget it."""
        assert self.joined is not None
        (cluster,) = (other for other in self.others if other.name == name)
        cluster.scope.cancel()
        self.others.remove(cluster)
        del self.by_name[name]
        self.joined.remove(name)

    def problems(self) -> Collection[str]:
        """Return why the own cluster's API server is not listed, once for all kinds with the same problem."""
        return {watch.problem for watch in self.own.watches.values() if watch.restarts}


async def _follow(cluster: Cluster) -> None:
    """Read another cluster, and follow it, until its scope ends; then forget it."""
    with cluster.scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.publisher.run)
            nursery.start_soon(cluster.source.run)
            nursery.start_soon(log_loaded, cluster.publisher, (), f"cluster {cluster.name}: ")
    cluster.publisher.close()


def _live(settings: Settings, name: str, store: Store, client: ApiClient, counts: Counts) -> Cluster:
    """Return what reads a cluster into *store* from its API server; *name* is "" for the own one."""
    from locator.cluster.informer import Informer

    publisher = Publisher(store, on_programmed=counts.programmed)
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


def _of_files(
    name: str,
    store: Store,
    files: DumpFiles,
    counts: Counts,
    *,
    about: str = "",
    required: bool = True,
    on_problem: Callable[[str], None] = lambda problem: None,
) -> Cluster:
    """Return what reads a cluster into *store* from files. Raises BadDump if they are *required*, and not there."""
    from locator.cluster.dump_files import DumpSource

    publisher = Publisher(store, on_programmed=counts.programmed)

    async def deliver(dump: Dump) -> None:
        log.info("%s", read_text(dump.counts, about), extra={"fields": dump.counts._asdict()})
        await publisher.batches.send(dump.batch())
        await publisher.flush()

    if required:
        files.check()
    source = DumpSource(files, deliver, on_reread=counts.reread, on_problem=on_problem, about=about, required=required)
    return Cluster(name, source, publisher)
