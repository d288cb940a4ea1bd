# SPDX-License-Identifier: Apache-2.0

"""Publishes federated names as DNSEndpoints: reads all clusters as a server does, and writes as controllers do."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import trio

from dnsserver.metrics.counters import Counts
from dnsserver.programs.clusters import Clusters
from dnsserver.programs.from_settings import upstream_of
from dnsserver.programs.other_clusters import OtherClusters
from dnsserver.settings.settings import Settings
from locator.cluster.leading.controller import Controller
from locator.cluster.publisher import FindingLog, on_new_findings
from locator.findings import ClusterCode
from locator.model import Finding, Health
from locator.printable import cut
from locator.publishing.rules import PublishingRules, Services, Unread
from locator.state.snapshot import Snapshot

log = logging.getLogger("topodns")

LOOK_SECONDS = 1.0  # between looks at what changes with time alone, as in a server
MAX_LOGGED = 10  # problems at each look


class NamePublisher:
    """Keeps a DNSEndpoint in *namespace* for each federated name of the settings, in its own and the *others*.

    *make* returns a controller with rules. Raises BadDump.
    """

    def __init__(
        self, settings: Settings, others: OtherClusters, namespace: str, make: Callable[[PublishingRules], Controller]
    ) -> None:
        self._rules = PublishingRules([zone.name for zone in settings.federation], namespace)
        self.controller = make(self._rules)
        self._clusters, servers = Clusters(reading_balancers(settings), Counts(), others), upstream_of(settings)
        assert self._clusters.joined is not None  # there are federated names
        self._joined, self._hosts = self._clusters.joined, None
        if servers:
            from dnsserver.net.ingress_hosts import IngressHosts
            from dnsserver.net.upstream import Upstream

            self._hosts = IngressHosts(Upstream(servers, Counts()), self._joined.resolve)
            self._joined.resolve_by(self._hosts.want)
        self._patience, self._began = float(settings.cluster_max_age), math.inf
        self._services: Services | None = None
        self._unread = Unread()  # as of the last comparison
        self._told: Mapping[str, str] = {}  # problems, as logged
        self._findings = FindingLog()
        self._clusters.subscribe(self._publish)
        self._clusters.subscribe(on_new_findings(self._log_unpublished))

    def health(self) -> Mapping[str, Health]:
        """Return the state of what is read, and what is not published. Only the own cluster holds up readiness."""
        (watch,) = self.controller.health().values()
        problems = [f"{name_of(key)} is not published: {text}" for key, text in self._rules.problems.items()][:1]
        return {**self._clusters.health(), "DNSEndpoint": Health(True, "; ".join([watch.text, *problems]))}

    async def run(self) -> None:
        """Read all clusters, and write while this replica leads, for ever. ``LeaderElector.lead`` runs it."""
        self._began = trio.current_time()
        async with trio.open_nursery() as nursery:
            self._clusters.start(nursery)
            nursery.start_soon(self.controller.run)
            if self._hosts is not None:
                nursery.start_soon(self._hosts.run)
            while True:
                self._look()
                await trio.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        """Look at what changes with time alone: what has been out of reach for too long, and what cannot be written."""
        self._clusters.check_ages()
        if self._services is not None and self._still_unread() != self._unread:
            self._compare(self._services)
        problems = dict(self._rules.problems)
        new = [(key, text) for key, text in problems.items() if self._told.get(key) != text]
        for key, text in new[:MAX_LOGGED]:
            log.warning("%s is not published: %s", name_of(key), text)
        if len(new) > MAX_LOGGED:
            log.warning("%d more names are not published", len(new) - MAX_LOGGED)
        self._told = problems

    def _still_unread(self) -> Unread:
        """Return what this replica may not know yet. It gives up as a server does, after ``--cluster-max-age``."""
        clusters = any(cluster.publisher.snapshot is None and not cluster.lost for cluster in self._clusters.others)
        young = trio.current_time() - self._began < self._patience
        return Unread(clusters=clusters, hosts=self._hosts is not None and young)

    def _publish(self, snapshot: Snapshot, _: Sequence[Finding]) -> None:
        self._compare(snapshot.federated)

    def _compare(self, services: Services) -> None:
        self._services, self._unread = services, self._still_unread()
        for key in self._rules.want(services, self._unread):
            self.controller.reconciler.queue.add(key)
        self.controller.writer.wake()

    def _log_unpublished(self, findings: Sequence[Finding]) -> None:
        """Log the findings that say why a load balancer is not published; a server logs all."""
        self._findings.log([found for found in findings if found.code == ClusterCode.HostNameWithoutUpstream.name])


def reading_balancers(settings: Settings) -> Settings:
    """Return the settings by which clusters are read: without Pods and Nodes, since nobody asks where a client is."""
    return replace(settings, client_source=frozenset(), no_endpoints=True)


def name_of(key: str) -> str:
    """Return the federated name that the DNSEndpoint of a key publishes, for a log."""
    return cut(key.partition("/")[2])
