# SPDX-License-Identifier: Apache-2.0

"""Puts together what ``controller --federate`` runs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import NamedTuple

from dnsserver.metrics.controller import FEDERATION_REACHABLE, FEDERATION_WAITING, FEDERATION_WRITES
from dnsserver.metrics.families import Family, Values
from dnsserver.programs.from_settings import other_clients_of, source_of
from dnsserver.programs.run import election_for
from dnsserver.settings.settings import Settings
from locator.cluster.api_client import ApiClient
from locator.cluster.credentials import BadCluster
from locator.cluster.leading.elector import LeaderElector
from locator.cluster.leading.federator import Federator

log = logging.getLogger("topodns")

LEASE = "topodns-federation"


class Federation(NamedTuple):
    """What distributes objects while it leads by a Lease in the federation API."""

    elector: LeaderElector
    federator: Federator
    is_own: bool
    """Whether the own cluster is the federation API, so that nothing else is to be done there."""

    async def run(self) -> None:
        """Distribute for ever; release the Lease when cancelled."""
        await self.elector.lead(self.federator.run)

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


def federation_of(settings: Settings, own: ApiClient) -> Federation | None:
    """Return what ``--federate`` asks for, None without it; *own* is the client of the own cluster.

    Raises BadCluster and BadDump.
    """
    source = settings.federate
    if source is None:
        return None
    try:
        client = ApiClient(kubeconfig=source.path, context=source.context)
    except BadCluster as error:
        raise BadCluster(f"--federate {source.name}: {error}") from None
    clusters = _clusters_of(settings, own, client)
    elector = LeaderElector(
        client, election_for(client.namespace, LEASE), writes=f"the copies of federation {source.name}"
    )
    federator = Federator(
        source.name, client, clusters, elector, selector=settings.federate_selector, instance=socket.gethostname()
    )
    return Federation(elector, federator, own.identity == client.identity)


def _clusters_of(settings: Settings, own: ApiClient, federation: ApiClient) -> dict[str, ApiClient]:
    """Return a client of each cluster to distribute to, by name. Raises BadCluster and BadDump."""
    found: dict[str, ApiClient] = {}
    known: dict[str, str] = {}
    for name, client in other_clients_of(settings, own).items():
        if client is None:
            log.warning("%s: a dump: nothing is distributed to it", source_of(name))
            continue
        if client.identity == federation.identity:
            raise BadCluster(f"{source_of(name)}: {client.host} is the federation API, expected a cluster")
        if client.identity in known:
            raise BadCluster(f"{source_of(name)}: {client.host} is cluster {known[client.identity]}, too")
        known[client.identity], found[name] = name, client
    # The federation API may be where topodns runs; and the own cluster may be among the others, under a name.
    if own.identity != federation.identity and own.identity not in known:
        found[settings.cluster_name] = own
    return found
