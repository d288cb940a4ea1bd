# SPDX-License-Identifier: Apache-2.0

"""Reads the clusters once for a command, and turns errors of clusters and listeners into command errors.

It imports everything that reads clusters, so commands import it in ``run``, where ``--help`` does not wait for it.
"""

from __future__ import annotations

import http
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import trio
from msgspec.structs import replace

from dnsserver.cli.errors import CommandError, Failed, WrongInput
from dnsserver.cli.progress import shown_progress
from dnsserver.metrics.counters import Counts
from dnsserver.net.sockets import CannotListen
from dnsserver.programs.clusters import Clusters
from dnsserver.programs.from_settings import authority_of, tried_by_kubectl, upstream_of
from dnsserver.responder.answer_sizes import too_large
from dnsserver.settings.settings import Settings
from locator.api.decoding import with_pod_labels
from locator.cluster.publisher import Publication, Publisher, ReadBatch, ReadOnce
from locator.federation.clusterset import ClusterSet
from locator.findings import ClusterCode
from locator.model import OWN, Finding, Node, Object, Pod, in_cluster
from locator.state.snapshot import Snapshot

if TYPE_CHECKING:
    from locator.cluster.api_client import ApiClient
    from locator.cluster.set_publisher import Cluster

SERVED = ReadOnce()


@contextmanager
def cluster_errors(*, or_dump: bool = False) -> Iterator[None]:
    """Turn errors of clusters, dumps and listeners into ``CommandError``s.

    With *or_dump* the message about a missing kubeconfig says that the command also reads dumps.
    """
    try:
        yield
    except CommandError:
        raise
    except CannotListen as error:
        raise Failed(str(error)) from None
    except Exception as error:
        # Imported only now: a live cluster needs no module that reads dumps, and a dump needs no urllib3.
        from locator.cluster.credentials import BadCluster, NoKubeconfig
        from locator.cluster.dumps.reading import BadDump
        from locator.cluster.responses import Refused, Unreachable

        if isinstance(error, (Refused, Unreachable)):
            raise Failed(str(error)) from None
        if isinstance(error, (BadCluster, BadDump)):
            instead = "; --snapshot reads a dump instead" if or_dump and isinstance(error, NoKubeconfig) else ""
            raise WrongInput(f"{error}{instead}") from None
        raise


class ReadClusters(NamedTuple):
    """The *clusters* as they were read once: what a server would publish, and what was *read* of each by its name.

    The own one has the name "". A cluster that could not be reached is left out.
    """

    clusters: Clusters
    publication: Publication
    read: Mapping[str, ReadBatch]
    own_name: str

    @property
    def publishers(self) -> dict[str, Publisher]:
        """The publisher of each cluster, the own one first."""
        both = (self.clusters.own, *self.clusters.others)
        return {cluster.name: cluster.publisher for cluster in both if cluster.name in self.read}

    @property
    def snapshots(self) -> dict[str, Snapshot]:
        """The snapshot of each cluster by itself."""
        found = {name: publisher.snapshot for name, publisher in self.publishers.items()}
        return {name: snapshot for name, snapshot in found.items() if snapshot is not None}

    @property
    def own(self) -> Snapshot:
        """The own cluster's snapshot."""
        return self.snapshots[OWN]

    @property
    def objects(self) -> dict[type[Object], Sequence[Any]]:
        """The objects of the own cluster by kind; each Node has the label of the cluster."""
        found = self.read[OWN].objects()
        nodes = [replace(node, labels=in_cluster(node.labels, self.own_name)) for node in found.get(Node, ())]
        return {**found, Node: nodes}

    @property
    def nodes(self) -> list[Node]:
        """The nodes of all clusters, each with the label of its cluster."""
        others = [publisher.store.objects(Node) for name, publisher in self.publishers.items() if name != OWN]
        return [*self.objects[Node], *chain.from_iterable(found.values() for found in others)]

    @property
    def joined(self) -> ClusterSet | None:
        """What reads the clusters as one, None if nothing needs more than the own one."""
        return None if self.clusters.joined is None else self.clusters.joined.clusters


def check_clusters(settings: Settings) -> tuple[ReadClusters, list[Finding]]:
    """Read the clusters once, and return them with all findings, also of severity info. Raises CommandError."""
    reading = _read(settings)
    findings = [*reading.publication.findings]
    for name, publisher in reading.publishers.items():
        findings += [finding.in_cluster(name) for finding in publisher.advice()]
    between = [] if reading.joined is None else [*reading.joined.advice()]
    between += too_large(reading.publication.snapshot, authority_of(settings))
    findings += [reading.publishers[finding.cluster].with_file(finding) for finding in between]
    return reading, findings


def read_objects(settings: Settings, also: Sequence[type[Object]]) -> ReadClusters:
    """Read the clusters once, with the kinds *also* of the own one even if a server would not read them.

    Raises CommandError.
    """
    return _read(settings, own=ReadOnce(also))


def read_clients(settings: Settings, labels: Iterable[str]) -> ReadClusters:
    """Read the clusters once, and their Pods with their *labels*, beside those that balanced Services ask for.

    Raises CommandError.
    """
    wanted = ReadOnce((Pod,), with_pod_labels(labels))
    return _read(settings, own=wanted, others=wanted)


def _read(settings: Settings, *, own: ReadOnce = SERVED, others: ReadOnce = SERVED) -> ReadClusters:
    """Read the clusters. A terminal shows what is being read."""
    with shown_progress() as report, cluster_errors(or_dump=True):
        clusters = Clusters(settings, Counts())
        with _own_errors(settings, clusters.client):
            return trio.run(_read_all, settings, clusters, own._replace(report=report), others._replace(report=report))


@contextmanager
def _own_errors(settings: Settings, client: ApiClient | None) -> Iterator[None]:
    """Raise Failed where the own cluster's API server refuses or cannot be reached."""
    if client is None:
        yield
        return
    from locator.cluster.responses import Refused, Unreachable

    try:
        yield
    except Refused as error:
        credentials = error.status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN)
        raise Failed(f"{client.host}: {error}{tried_by_kubectl(settings, credentials=credentials)}") from None
    except Unreachable as error:
        raise Failed(f"{error}{tried_by_kubectl(settings)}") from None


async def _read_all(settings: Settings, clusters: Clusters, own: ReadOnce, others: ReadOnce) -> ReadClusters:
    """Read the own cluster, then the others, and publish them, each once, as a server does first."""
    read = {OWN: await clusters.source.read_once(own)}
    unreachable = await _read_others(clusters, others, read)
    own.report("working out what was read")
    published = list[Publication]()
    clusters.subscribe(lambda snapshot, findings: published.append(Publication(snapshot, findings)))
    for cluster in (clusters.own, *clusters.others):
        if cluster.name in read:
            cluster.publisher.publish_once(read[cluster.name].batch)
    if (joined := clusters.joined) is not None:
        joined.start(unreachable)
        if joined.clusters.hosts and (servers := upstream_of(settings)):
            from dnsserver.net.ingress_hosts import resolved_once
            from dnsserver.net.upstream import Upstream

            joined.resolve(await resolved_once(Upstream(servers, Counts()), joined.clusters.hosts))
    return ReadClusters(clusters, published[-1], read, settings.cluster_name)


async def _read_others(clusters: Clusters, wanted: ReadOnce, read: dict[str, ReadBatch]) -> dict[str, Finding]:
    """Read the other clusters into *read*; return a finding for each that cannot be."""
    unreachable, sources = dict[str, Finding](), clusters.other_sources

    async def read_live(cluster: Cluster) -> None:
        from locator.cluster.responses import Refused, Unreachable

        try:
            read[cluster.name] = await cluster.source.read_once(wanted)
        except (Refused, Unreachable) as error:
            code, expected = ClusterCode.ClusterUnreachable, "a cluster whose API server answers"
            finding = code.finding(field=sources.source_of(cluster.name), message=str(error), expected=expected)
            unreachable[cluster.name] = finding

    async def read_dump(cluster: Cluster) -> None:
        from locator.cluster.dumps.reading import BadDump

        try:
            read[cluster.name] = await cluster.source.read_once(wanted)
        except BadDump:
            if sources.is_required(cluster.name):
                raise  # else it is a finding

    for cluster in clusters.others:
        if not cluster.watches:
            await read_dump(cluster)
    async with trio.open_nursery() as nursery:  # side by side: a slow one costs no more than its own time
        for cluster in clusters.others:
            if cluster.watches and sources.is_usable(cluster.name):
                nursery.start_soon(read_live, cluster)
    return unreachable
