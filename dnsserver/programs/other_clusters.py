# SPDX-License-Identifier: Apache-2.0

"""The other clusters, by ``--cluster`` and ``--cluster-dir``: what each is read from, and which come and go."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dnsserver.settings.settings import Settings
from dnsserver.settings.values import ClusterSource
from dnsserver.spelling import nearest
from locator.cluster.cluster_folder import ClusterFolder, OnChange, OnFindings, OpenedCluster, open_cluster
from locator.model import Finding

if TYPE_CHECKING:
    from locator.cluster.api_client import ApiClient

log = logging.getLogger("topodns")


class OtherClusters:
    """What each other cluster of the settings is read from; *own* is the client of the own one, None for a dump.

    All parts of a program share it, and ``subscribe``; one of them runs ``follow``.

    Warns of a cluster that is given twice: nobody can tell in which of the two an address is, and its votes count
    twice. Raises BadCluster and BadDump, whose texts begin with the flag.
    """

    def __init__(self, settings: Settings, own: ApiClient | None) -> None:
        self.own = own
        self.opened: dict[str, OpenedCluster] = {}
        """By name."""
        self._subscribers: list[tuple[OnChange, OnFindings]] = []
        self._own_name = settings.cluster_name
        self._own_identities = {os.path.realpath(path) for path in settings.snapshot} | (
            {own.identity} if own else set()
        )
        self._named = frozenset(cluster.name for cluster in settings.cluster)
        self._folder: ClusterFolder | None = None
        for cluster in settings.cluster:
            self._add(cluster.name, _opened(cluster))
        if settings.cluster_dir is not None:
            reserved = dict.fromkeys(self._named, "that of a --cluster")
            self._folder = ClusterFolder(
                settings.cluster_dir, {**reserved, settings.cluster_name: "the own cluster's (--cluster-name)"}
            )
            _read(self._folder)
            for name, opened in self._folder.clusters.items():
                self._add(name, opened)
        known = [settings.cluster_name, *self.opened]
        for name in sorted({name for names in settings.flat_network for name in names}.difference(known)):
            expected = f"names of clusters: {', '.join(known)}; it counts once it is in --cluster-dir"
            log.warning("--flat-network: no cluster %s%s, expected %s", name, nearest(name, known), expected)

    @property
    def findings(self) -> Sequence[Finding]:
        """What is wrong in the folder now."""
        return self._folder.findings if self._folder is not None else ()

    def is_required(self, name: str) -> bool:
        """Whether a cluster must be readable at the start: it is given by ``--cluster``."""
        return name in self._named

    def is_usable(self, name: str) -> bool:
        """Whether there is anything to ask; if there is not, a finding says why."""
        return not getattr(self.opened[name], "unusable", "")

    def source_of(self, name: str) -> str:
        """Return how a message begins that is about the source of a cluster."""
        return f"{'--cluster' if name in self._named else '--cluster-dir'} {name}"

    def subscribe(self, on_change: OnChange, on_findings: OnFindings) -> None:
        """Call these as ``ClusterFolder.run`` does, after those of all earlier subscribers."""
        self._subscribers.append((on_change, on_findings))

    async def follow(self) -> None:
        """Follow the folder for ever; return if there is none."""
        if self._folder is not None:
            await self._folder.run(self._change, self._tell)

    def _change(self, name: str, opened: OpenedCluster | None) -> None:
        if opened is None:
            del self.opened[name]
        else:
            self._add(name, opened)
        log.info("cluster %s: %s in --cluster-dir", name, "no longer" if opened is None else "new")
        for on_change, _ in self._subscribers:
            on_change(name, opened)

    def _tell(self, findings: Sequence[Finding]) -> None:
        for _, on_findings in self._subscribers:
            on_findings(findings)

    def _add(self, name: str, opened: OpenedCluster) -> None:
        identity, where = _identity_of(opened)
        twins = [self._own_name] if identity in self._own_identities else []
        twins += [other for other, known in self.opened.items() if identity and _identity_of(known)[0] == identity]
        if twins:
            log.warning("%s: %s is cluster %s, too, expected each cluster once", self.source_of(name), where, twins[0])
        self.opened[name] = opened


def _identity_of(opened: OpenedCluster) -> tuple[str, str]:
    """Return what differs between clusters, empty if it is not known, and where a cluster is read."""
    from locator.cluster.dump_files import DumpFiles

    if isinstance(opened, DumpFiles):
        (path,) = opened.paths
        return os.path.realpath(path), path
    return opened.identity, opened.host


def _opened(cluster: ClusterSource) -> OpenedCluster:
    """Open a cluster of ``--cluster``. Raises BadCluster, BadDump."""
    from locator.cluster.dumps.reading import BadDump

    about = f"--cluster {cluster.name}"
    try:
        return open_cluster(cluster.path, cluster.context)
    except BadDump as error:
        raise BadDump(f"{about}: {error}") from None
    except Exception as error:
        from locator.cluster.credentials import BadCluster  # imports urllib3, which reading files does not need

        if isinstance(error, BadCluster):
            raise BadCluster(f"{about}: {error}") from None
        raise


def _read(folder: ClusterFolder) -> None:
    from locator.cluster.dumps.reading import BadDump

    try:
        folder.read()
    except BadDump as error:
        raise BadDump(f"--cluster-dir: {error}") from None
