"""Reads the cluster for a command, and turns errors of clusters and listeners into command errors.

It imports everything that reads clusters, so commands import it in ``run``, where ``--help`` does not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dnsserver.cli.errors import Failed, WrongInput
from dnsserver.from_settings import cluster_of, store_of
from dnsserver.net.listening import CannotListen
from dnsserver.settings.fields import Settings
from locator.api.deltas import DeltaBatch
from locator.cluster import dump_files
from locator.cluster.dumps.reading import BadDump
from locator.model import Finding, Object
from locator.state.cluster_view import ClusterView, Publication
from locator.state.snapshot import Snapshot


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn errors of dumps, clusters and listeners into ``CommandError``s."""
    from locator.cluster.credentials import BadCluster  # these import urllib3, which reading files does not need
    from locator.cluster.responses import Refused, Unreachable

    try:
        yield
    except (BadDump, BadCluster) as error:
        raise WrongInput(str(error)) from None
    except (CannotListen, Refused, Unreachable) as error:
        raise Failed(str(error)) from None


def read_cluster(settings: Settings) -> Publication:
    """Read the cluster once; return its snapshot and its findings. Raises CommandError."""
    return _read(settings)[1]


def check_cluster(settings: Settings) -> tuple[Snapshot, list[Finding]]:
    """Read the cluster once; return its snapshot and all findings, also those of severity info. Raises CommandError."""
    view, publication = _read(settings)
    return publication.snapshot, [*publication.findings, *view.advice()]


def _read(settings: Settings) -> tuple[ClusterView, Publication]:
    store = store_of(settings)
    view = ClusterView(store)
    view.apply(_files(settings.snapshot) if settings.snapshot else _live(settings, store.kinds))
    return view, view.publish(int(time.time()))


def _files(paths: Sequence[str]) -> DeltaBatch:
    try:
        return dump_files.read_here(dump_files.DumpFiles(paths).inputs()).batch()
    except BadDump as error:
        raise WrongInput(str(error)) from None


def _live(settings: Settings, kinds: Sequence[type[Object]]) -> DeltaBatch:
    from locator.cluster import api_client

    with cluster_errors():
        return api_client.list_once(cluster_of(settings), kinds)
