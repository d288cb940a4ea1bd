# SPDX-License-Identifier: Apache-2.0

"""Puts together what ``controller --federate`` runs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dnsserver.metrics.controller import FEDERATION_REACHABLE, FEDERATION_WAITING, FEDERATION_WRITES
from dnsserver.metrics.families import Family, Values
from dnsserver.programs.other_clusters import OtherClusters
from dnsserver.programs.run import election_for
from dnsserver.settings.settings import Settings
from locator.cluster.api_client import ApiClient
from locator.cluster.cluster_folder import OpenedCluster
from locator.cluster.credentials import BadCluster
from locator.cluster.leading.elector import LeaderElector
from locator.cluster.leading.federator import Federator

log = logging.getLogger("topodns")

LEASE = "topodns-federation"


@dataclass(frozen=True)
class Federation:
    """What distributes objects while it leads by a Lease in the federation API."""

    elector: LeaderElector
    federator: Federator
    is_own: bool
    """Whether the own cluster is the federation API, so that nothing else is to be done there."""
    _left_out: dict[str, OpenedCluster] = field(default_factory=dict, init=False)
    """The other clusters, by name, to which nothing is distributed as long as there is a problem with them."""

    async def run(self) -> None:
        """Distribute for ever; release the Lease when cancelled."""
        await self.elector.lead(self.federator.run)

    def change(self, name: str, opened: OpenedCluster | None) -> None:
        """Distribute to another cluster from now on, or no longer if *opened* is None."""
        if opened is None:
            self._left_out.pop(name, None)
            if name in self.federator.clusters:
                self.federator.remove_cluster(name)
            self._add_left_out()
            return
        if isinstance(opened, ApiClient):
            opened.on_moved.append(partial(self._look_again, name, opened))
        self._add(name, opened)

    def problem_with(self, opened: OpenedCluster) -> str:
        """Return why nothing can be distributed to a cluster, empty if it can."""
        if not isinstance(opened, ApiClient):
            return "a dump found, expected a kubeconfig"
        return self.federator.problem_with(opened)

    def _add(self, name: str, opened: OpenedCluster) -> None:
        self._left_out.pop(name, None)
        if problem := self.problem_with(opened):
            log.warning("cluster %s: %s; nothing is distributed to it", name, problem)
            self._left_out[name] = opened
        elif isinstance(opened, ApiClient):
            self.federator.add_cluster(name, opened)

    def _add_left_out(self) -> None:
        """Add those with which there is no problem any more: one that is renamed has two names for a while, say."""
        for name, opened in list(self._left_out.items()):
            if not self.problem_with(opened):
                self._add(name, opened)

    def _look_again(self, name: str, opened: ApiClient) -> None:
        """Take up that the kubeconfig of a cluster names another API server now."""
        if name in self.federator.clusters:
            self.federator.note_move(name)
        else:
            self._add(name, opened)
        self._add_left_out()

    @property
    def shown(self) -> dict[Family, Callable[[], Values]]:
        """Its metrics: what returns the values of each family."""
        federator = self.federator
        return {
            FEDERATION_WRITES: lambda: {
                (cluster, *which): number
                for cluster, writer in federator.writers.items()
                for which, number in writer.writes.items()
            },
            FEDERATION_WAITING: lambda: {(cluster,): writer.waiting for cluster, writer in federator.writers.items()},
            FEDERATION_REACHABLE: lambda: {(cluster,): can for cluster, can in federator.reachable.items()},
        }


def federation_of(settings: Settings, own: ApiClient, others: OtherClusters) -> Federation:
    """Return what ``--federate`` asks for; *own* is the client of the own cluster. Raises BadCluster."""
    source = settings.federate
    assert source is not None
    try:
        client = ApiClient(kubeconfig=source.path, context=source.context)
    except BadCluster as error:
        raise BadCluster(f"--federate {source.name}: {error}") from None
    elector = LeaderElector(
        client, election_for(client.namespace, LEASE), writes=f"the copies of federation {source.name}"
    )
    federator = Federator(
        source.name, client, elector, selector=settings.federate_selector, instance=socket.gethostname()
    )
    federation = Federation(elector, federator, is_own=own.identity == client.identity)
    for name, opened in others.opened.items():
        problem = federation.problem_with(opened)
        if problem and others.is_required(name):
            raise BadCluster(f"{others.source_of(name)}: {problem}")
        federation.change(name, opened)
    # The federation API may be where topodns runs; and the own cluster may be among the others, under a name.
    if not federator.problem_with(own):
        federator.add_cluster(settings.cluster_name, own)
    if federator.clusters:
        log.info("federation %s: distributes to %s", source.name, ", ".join(sorted(federator.clusters)))
    else:
        expected = "--cluster, or a kubeconfig in --cluster-dir"
        log.warning("federation %s: distributes to no cluster, expected %s", source.name, expected)
    return federation
