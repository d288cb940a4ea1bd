# SPDX-License-Identifier: Apache-2.0

"""Reads the cluster for a command, and turns errors of clusters and listeners into command errors.

It imports everything that reads clusters, so commands import it in ``run``, where ``--help`` does not wait for it.
"""

from __future__ import annotations

import http
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from dnsserver.cli.errors import Failed, WrongInput
from dnsserver.cli.progress import Report, shown_progress
from dnsserver.net.sockets import CannotListen
from dnsserver.programs.from_settings import (
    authority_of,
    cluster_of,
    cluster_set_of,
    other_clients_of,
    other_store_of,
    source_of,
    store_of,
    tried_by_kubectl,
    upstream_of,
)
from dnsserver.responder.answer_sizes import too_large
from dnsserver.settings.fields import Settings
from dnsserver.settings.values import ClusterSource
from locator.api.decoding import RESOURCES, Resources, by_group_kind, with_client_pods
from locator.api.deltas import DeltaBatch, Replace
from locator.cluster.publisher import Publication, Publisher
from locator.federation.clusterset import ClusterSet
from locator.findings import ClusterCode
from locator.labels import Selector
from locator.model import OWN, Finding, Node, Object, Pod, in_cluster
from locator.state.snapshot import Snapshot

if TYPE_CHECKING:
    from locator.api.dump import ReadCounts
    from locator.cluster.api_client import ApiClient
    from locator.cluster.dumps.reading import Dump


@contextmanager
def cluster_errors(*, or_dump: bool = False) -> Iterator[None]:
    """Turn errors of clusters and listeners into ``CommandError``s. With *or_dump* the command also reads dumps."""
    # These import urllib3, which reading files does not need.
    from locator.cluster.credentials import BadCluster, NoKubeconfig
    from locator.cluster.responses import Refused, Unreachable

    try:
        yield
    except BadCluster as error:
        instead = "; --snapshot reads a dump instead" if or_dump and isinstance(error, NoKubeconfig) else ""
        raise WrongInput(f"{error}{instead}") from None
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


class ReadClusters(NamedTuple):
    """The clusters as they were read once.

    ``publication`` is what a server would publish, ``own`` the own cluster's snapshot in it. ``objects`` are those of
    the own cluster by kind, ``nodes`` those of all clusters; each Node has the label of its cluster. ``namespace`` is
    that of the kubeconfig's context, or of the pod; "default" for files.
    By cluster, the own one with the name "": ``pods`` as they were read, ``publishers``, and ``counts`` of what was
    read in a dump. ``clusters`` reads the clusters as one, None if nothing needs more than the own one.
    """

    publication: Publication
    own: Snapshot
    objects: Mapping[type[Object], Sequence[Any]]
    nodes: Sequence[Node]
    namespace: str
    pods: Mapping[str, Sequence[Any]]
    publishers: Mapping[str, Publisher]
    clusters: ClusterSet | None
    counts: Mapping[str, ReadCounts]


class CheckedClusters(NamedTuple):
    """Clusters that were read and checked: all findings, also of severity info."""

    reading: ReadClusters
    findings: list[Finding]


def check_cluster(settings: Settings) -> CheckedClusters:
    """Read the clusters once, and check them. Raises CommandError."""
    reading = _read(settings, ())
    findings = [*reading.publication.findings]
    for name, publisher in reading.publishers.items():
        findings += [finding.in_cluster(name) for finding in publisher.advice()]
    if reading.clusters is not None:
        findings += _with_files(reading.clusters.advice(), reading.publishers)
    findings += _with_files(too_large(reading.publication.snapshot, authority_of(settings)), reading.publishers)
    return CheckedClusters(reading, findings)


def read_objects(settings: Settings, also: Sequence[type[Object]]) -> ReadClusters:
    """Read the clusters once, with the kinds *also* of the own one even if a server would not read them.

    Raises CommandError.
    """
    return _read(settings, also)


def read_clients(settings: Settings, selectors: Sequence[Selector]) -> ReadClusters:
    """Read the clusters once, and their Pods as ``ClientPod``, with the labels that *selectors* look at.

    Raises CommandError.
    """
    return _read(settings, (Pod,), with_client_pods(selectors), elsewhere=(Pod,))


OTHER_SILENCE = 10.0  # seconds: commands do without another cluster that sends nothing


def _read(
    settings: Settings,
    also: Sequence[type[Object]],
    resources: Resources = RESOURCES,
    *,
    elsewhere: Sequence[type[Object]] = (),
) -> ReadClusters:
    """Read the clusters, with the kinds *also* of the own one, and *elsewhere* of the others.

    *resources* says how each kind is read. A terminal shows what is being read.
    """
    with shown_progress() as report:
        return _read_and_tell(settings, also, elsewhere, resources, report)


def _read_and_tell(
    settings: Settings,
    also: Sequence[type[Object]],
    elsewhere: Sequence[type[Object]],
    resources: Resources,
    report: Report,
) -> ReadClusters:
    """Do what ``_read`` does, and report it."""
    store, clusters, now = store_of(settings), cluster_set_of(settings), int(time.time())
    publishers, client = {OWN: Publisher(store)}, None
    clients: Mapping[str, ApiClient | None] = {}
    counts: dict[str, ReadCounts] = {}
    if not settings.snapshot:
        with cluster_errors(or_dump=True):
            client = cluster_of(settings)
    if settings.cluster:
        with cluster_errors(), dump_errors():
            clients = other_clients_of(settings, client)
    if client is None:
        dump, namespace = _files(settings.snapshot, resources, report), "default"
        batch, counts[OWN] = dump.batch(), dump.counts
    else:
        kinds = tuple(dict.fromkeys((*store.kinds, *also)))
        batch, namespace = _live(settings, client, kinds, resources, report), client.namespace
    report("working out what was read")
    publishers[OWN].apply(batch)
    objects = {delta.kind: delta.objects for delta in batch.deltas if isinstance(delta, Replace)}
    objects[Node] = [
        replace(node, labels=in_cluster(node.labels, settings.cluster_name)) for node in objects.get(Node, ())
    ]
    pods: dict[str, Sequence[Any]] = {OWN: objects.get(Pod, ())}
    publication = own = publishers[OWN].publication(now)
    if clusters is not None:
        clusters.update_own(own.snapshot)
        findings = list(own.findings)
        for name, read in _read_others(settings, clients, elsewhere, resources, report).items():
            if isinstance(read, Finding):
                findings.append(read)
                continue
            if not isinstance(read, DeltaBatch):
                counts[name], read = read.counts, read.batch()
            publishers[name] = Publisher(other_store_of(settings, name))
            publishers[name].apply(read)
            pods[name] = _pods_in(read)
            other = publishers[name].publication(now)
            clusters.update(name, other.snapshot)
            findings += [finding.in_cluster(name) for finding in other.findings]
        snapshot = _resolved(settings, clusters, now)
        publication = Publication(snapshot, [*findings, *_with_files(clusters.findings(), publishers)])
    nodes = [*objects[Node]]
    for name in publishers.keys() - {OWN}:
        nodes += [found for found in publishers[name].store.all_objects() if isinstance(found, Node)]
    return ReadClusters(publication, own.snapshot, objects, nodes, namespace, pods, publishers, clusters, counts)


def _pods_in(batch: DeltaBatch) -> Sequence[Any]:
    return next((delta.objects for delta in batch.deltas if isinstance(delta, Replace) and delta.kind is Pod), ())


def _with_files(findings: Iterable[Finding], publishers: Mapping[str, Publisher]) -> Iterator[Finding]:
    """Yield findings between clusters, each with the file that contains its object, if there is one."""
    for finding in findings:
        yield publishers[finding.cluster].with_file(finding)


def _read_others(
    settings: Settings,
    clients: Mapping[str, ApiClient | None],
    elsewhere: Sequence[type[Object]],
    resources: Resources,
    report: Report,
) -> dict[str, DeltaBatch | Dump | Finding]:
    """Read the other clusters, side by side: a slow one costs no more than its own time. Raises CommandError.

    For a cluster that cannot be reached there is a finding.
    """
    sources = {cluster.name: cluster for cluster in settings.cluster}
    live = {name: client for name, client in clients.items() if client is not None}
    read: dict[str, DeltaBatch | Dump | Finding] = {
        name: _file(source, resources, report) for name, source in sources.items() if name not in live
    }

    def listed(name: str) -> tuple[str, DeltaBatch | Finding]:
        kinds = tuple(dict.fromkeys((*other_store_of(settings, name).kinds, *elsewhere)))
        return name, _listed(sources[name], live[name], kinds, resources, report)

    with ThreadPoolExecutor(max(1, len(live))) as threads:
        read |= threads.map(listed, live)
    return {name: read[name] for name in sources}


def _file(cluster: ClusterSource, resources: Resources, report: Report) -> Dump:
    try:
        return _files([cluster.path], resources, report)
    except WrongInput as error:
        raise WrongInput(f"{source_of(cluster)}: {error}") from None


def _listed(
    cluster: ClusterSource, client: ApiClient, kinds: Sequence[type[Object]], resources: Resources, report: Report
) -> DeltaBatch | Finding:
    from locator.cluster import api_client
    from locator.cluster.responses import Refused, Unreachable

    try:
        return api_client.list_once(client, kinds, report=report, silence=OTHER_SILENCE, resources=resources)
    except (Refused, Unreachable) as error:
        code, expected = ClusterCode.ClusterUnreachable, "a cluster whose API server answers"
        return code.finding(field=source_of(cluster), message=str(error), expected=expected)


def _resolved(settings: Settings, clusters: ClusterSet, now: int) -> Snapshot:
    """Return the snapshot of all clusters, with the host names of load balancers resolved if there is an upstream."""
    snapshot, servers = clusters.publish(now), upstream_of(settings)
    if not clusters.hosts or not servers:
        return snapshot
    import trio

    from dnsserver.metrics.counters import Counts
    from dnsserver.net import ingress_hosts
    from dnsserver.net.upstream import Upstream

    clusters.resolve(trio.run(ingress_hosts.resolved_once, Upstream(servers, Counts()), clusters.hosts))
    return clusters.publish(now)


def _files(paths: Sequence[str], resources: Resources, report: Report) -> Dump:
    from locator.cluster import dump_files

    with dump_errors():
        inputs = dump_files.DumpFiles(paths).inputs(report)
        return dump_files.read_here(inputs, report, by_group_kind(resources))


def _live(
    settings: Settings, client: ApiClient, kinds: Sequence[type[Object]], resources: Resources, report: Report
) -> DeltaBatch:
    from locator.cluster import api_client
    from locator.cluster.responses import Refused, Unreachable

    try:
        return api_client.list_once(client, kinds, report=report, resources=resources)
    except Refused as error:
        credentials = error.status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN)
        raise Failed(f"{client.host}: {error}{tried_by_kubectl(settings, credentials=credentials)}") from None
    except Unreachable as error:
        raise Failed(f"{error}{tried_by_kubectl(settings)}") from None
