# SPDX-License-Identifier: Apache-2.0

"""Makes what reads each cluster: from its API server, or from dumps.

A server of one cluster loads nothing that it does not need: no reader of dumps, or no client of an API server.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dnsserver import __version__
from dnsserver.metrics.counters import Counts
from dnsserver.metrics.families import Watch
from dnsserver.programs.from_settings import cluster_of, other_clients_of, other_store_of, source_of
from dnsserver.programs.loaded import read_text
from dnsserver.settings.fields import Settings
from dnsserver.settings.values import ClusterSource
from locator.cluster.publisher import Publisher, Source
from locator.cluster.set_publisher import OtherCluster
from locator.state.store import Store

if TYPE_CHECKING:
    from locator.cluster.api_client import ApiClient
    from locator.cluster.dumps.reading import Dump
    from locator.cluster.event_poster import EventPoster
    from locator.cluster.informer import Informer
    from locator.cluster.reflector import Reflector

log = logging.getLogger("topodns")


class OwnCluster(NamedTuple):
    """What reads the own cluster; ``watches`` are by kind. A dump has neither a ``client`` nor watches."""

    source: Source
    client: ApiClient | None = None
    watches: Mapping[str, Watch] = {}


def own_cluster(settings: Settings, store: Store, publisher: Publisher, counts: Counts) -> OwnCluster:
    """Return what reads the own cluster. Raises BadCluster, BadDump."""
    if settings.snapshot:
        return OwnCluster(_files(publisher, settings.snapshot, counts))
    client = cluster_of(settings)
    informer = _informer(settings, client, store, publisher)
    return OwnCluster(informer, client, _watches_of(informer))


def other_clusters(settings: Settings, own: OwnCluster, counts: Counts) -> list[OtherCluster]:
    """Return what reads the other clusters. Raises BadCluster, BadDump."""
    clients = other_clients_of(settings, own.client)
    return [_other_cluster(settings, cluster, clients[cluster.name], counts) for cluster in settings.cluster]


def _other_cluster(
    settings: Settings, cluster: ClusterSource, client: ApiClient | None, counts: Counts
) -> OtherCluster:
    """Return what reads another cluster, with a store and a publisher of its own. Raises BadDump."""
    store = other_store_of(settings, cluster.name)
    publisher = Publisher(store, on_programmed=counts.programmed)
    if client is None:
        files = _files(publisher, [cluster.path], counts, source_of(cluster))
        return OtherCluster(cluster.name, files, publisher)
    informer = _informer(settings, client, store, publisher, cluster.name)
    return OtherCluster(cluster.name, informer, publisher, _watches_of(informer))


def event_poster(client: ApiClient) -> EventPoster:
    """Return what posts Events about Services of the own cluster."""
    from locator.cluster.event_poster import EventPoster

    return EventPoster(client, socket.gethostname())


def _files(publisher: Publisher, paths: Sequence[str], counts: Counts, about: str = "") -> Source:
    from locator.cluster import dump_files

    async def deliver(dump: Dump) -> None:
        log.info("%s", read_text(dump.counts, about), extra={"fields": dump.counts._asdict()})
        await publisher.batches.send(dump.batch())
        await publisher.flush()

    files = dump_files.DumpFiles(paths)
    files.check()
    return dump_files.DumpSource(files, deliver, on_reread=counts.reread, about=about)


def _informer(settings: Settings, client: ApiClient, store: Store, publisher: Publisher, cluster: str = "") -> Informer:
    """Return what reads a live cluster, by the name *cluster* if it is not the own one."""
    from locator.cluster.informer import Informer
    from locator.cluster.state_file import FILE_NAME, StateFile

    saved = None
    if settings.state_dir is not None:
        saved = StateFile(
            settings.state_dir,
            name=f"{FILE_NAME}-{cluster}" if cluster else FILE_NAME,
            cluster=client.identity,
            kinds=store.kinds,
            settings=f"{__version__} {store.settings}",
            max_age=settings.state_max_age,
        )
    return Informer(client, store.kinds, publisher, state_file=saved, cluster=cluster)


def _watches_of(informer: Informer) -> dict[str, Reflector]:
    """Return the reflectors of a live cluster by the names of their kinds."""
    return {kind.__name__: reflector for kind, reflector in informer.reflectors.items()}
