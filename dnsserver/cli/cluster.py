"""Reads the cluster for a command, and turns errors of clusters and listeners into command errors.

It imports everything that reads clusters, so commands import it in ``run``, where ``--help`` does not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from dnsserver.cli.errors import Failed, WrongInput
from dnsserver.from_settings import cluster_of, store_of
from dnsserver.net.listening import CannotListen
from dnsserver.settings.fields import Settings
from locator.api.deltas import DeltaBatch, Replace
from locator.model import Finding, Object
from locator.state.cluster_view import ClusterView, Publication
from locator.state.snapshot import Snapshot


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn errors of clusters and listeners into ``CommandError``s."""
    from locator.cluster.credentials import BadCluster  # these import urllib3, which reading files does not need
    from locator.cluster.responses import Refused, Unreachable

    try:
        yield
    except BadCluster as error:
        raise WrongInput(str(error)) from None
    except (CannotListen, Refused, Unreachable) as error:
        raise Failed(str(error)) from None


@contextmanager
def dump_errors() -> Iterator[None]:
    """Turn an error of dumps into a ``CommandError``."""
    from locator.cluster.dumps.reading import BadDump  # a live cluster needs no module that reads dumps

    try:
        yield
    except BadDump as error:
        raise WrongInput(str(error)) from None


class Reading(NamedTuple):
    """A cluster that was read once: what a server would publish, all objects by kind, and the user's namespace.

    ``namespace`` is that of the kubeconfig's context, or of the pod; "default" for files.
    """

    publication: Publication
    objects: Mapping[type[Object], Sequence[Any]]
    namespace: str


class Checked(NamedTuple):
    """A cluster that was checked: its snapshot, all findings, also those of severity info, and all its namespaces."""

    snapshot: Snapshot
    findings: list[Finding]
    namespaces: set[str]


def check_cluster(settings: Settings) -> Checked:
    """Read the cluster once, and check it. Raises CommandError."""
    reading, view = _read(settings, ())
    publication = reading.publication
    return Checked(publication.snapshot, [*publication.findings, *view.advice()], view.namespaces())


def read_objects(settings: Settings, also: Sequence[type[Object]]) -> Reading:
    """Read the cluster once, with the kinds *also* even if a server would not read them. Raises CommandError."""
    return _read(settings, also)[0]


def _read(settings: Settings, also: Sequence[type[Object]]) -> tuple[Reading, ClusterView]:
    store = store_of(settings)
    view = ClusterView(store)
    if settings.snapshot:
        batch, namespace = _files(settings.snapshot), "default"
    else:
        batch, namespace = _live(settings, tuple(dict.fromkeys((*store.kinds, *also))))
    view.apply(batch)
    objects = {delta.kind: delta.objects for delta in batch.deltas if isinstance(delta, Replace)}
    return Reading(view.publish(int(time.time())), objects, namespace), view


def _files(paths: Sequence[str]) -> DeltaBatch:
    from locator.cluster import dump_files

    with dump_errors():
        return dump_files.read_here(dump_files.DumpFiles(paths).inputs()).batch()


def _live(settings: Settings, kinds: Sequence[type[Object]]) -> tuple[DeltaBatch, str]:
    from locator.cluster import api_client

    with cluster_errors():
        client = cluster_of(settings)
        return api_client.list_once(client, kinds), client.namespace
