"""Makes what reads each cluster: from its API server, or from dumps.

A server of one cluster loads nothing that it does not need: no reader of dumps, or no client of an API server.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dnsserver import __version__
from dnsserver.from_settings import cluster_of, other_client_of, other_store_of, source_of
from dnsserver.metrics.counters import Counts
from dnsserver.metrics.families import Watch
from dnsserver.settings.fields import Settings
from dnsserver.settings.values import ClusterSource
from locator.cluster.publisher import Publisher, Source
from locator.cluster.set_publisher import OtherCluster
from locator.state.store import Store

if TYPE_CHECKING:
    from locator.cluster.api_client import ApiClient
    from locator.cluster.event_poster import EventPoster
    from locator.cluster.informer import Informer


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
    return OwnCluster(informer, client, {kind.__name__: watch for kind, watch in informer.reflectors.items()})


def other_cluster(settings: Settings, cluster: ClusterSource, counts: Counts) -> OtherCluster:
    """Return what reads another cluster, with a store and a publisher of its own. Raises BadCluster, BadDump."""
    store = other_store_of(settings, cluster.name)
    publisher = Publisher(store, on_programmed=counts.programmed)
    client = other_client_of(cluster)
    if client is None:
        files = _files(publisher, [cluster.path], counts, source_of(cluster))
        return OtherCluster(cluster.name, files, publisher)
    informer = _informer(settings, client, store, publisher, cluster.name)
    watches = {kind.__name__: watch for kind, watch in informer.reflectors.items()}
    return OtherCluster(cluster.name, informer, publisher, watches)


def event_poster(client: ApiClient) -> EventPoster:
    """Return what posts Events about Services of the own cluster."""
    from locator.cluster.event_poster import EventPoster

    return EventPoster(client, socket.gethostname())


def _files(publisher: Publisher, paths: Sequence[str], counts: Counts, about: str = "") -> Source:
    from locator.cluster import dump_files

    return dump_files.DumpSource(dump_files.DumpFiles(paths), publisher, on_reread=counts.reread, about=about)


def _informer(settings: Settings, client: ApiClient, store: Store, publisher: Publisher, cluster: str = "") -> Informer:
    """Return what reads a live cluster, by the name *cluster* if it is not the own one."""
    from locator.cluster.informer import Informer
    from locator.cluster.state_file import NAME, StateFile

    kept = None
    if settings.state_dir is not None:
        kept = StateFile(
            settings.state_dir,
            name=f"{NAME}-{cluster}" if cluster else NAME,
            cluster=client.identity,
            kinds=store.kinds,
            settings=f"{__version__} {store.settings}",
            max_age=settings.state_max_age,
        )
    return Informer(client, store.kinds, publisher, state_file=kept, cluster=cluster)
