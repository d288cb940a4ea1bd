# SPDX-License-Identifier: Apache-2.0

"""Distributes the objects of a federation API to clusters: watches all, and writes while this replica leads.

``distribution`` decides what to write. Each API server has a writer of its own, so that one that is slow, or refuses,
holds up no other one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import trio

from locator.api.deltas import DeltaBatch
from locator.cluster import memory
from locator.cluster.api_client import ApiClient, Readiness
from locator.cluster.event_poster import EventPoster
from locator.cluster.leading.controller import WAITING_BATCHES, apply_in_turns
from locator.cluster.leading.elector import LeaderElector, boot_seconds
from locator.cluster.leading.writer import IN_FLIGHT, Writer
from locator.cluster.publisher import FindingLog
from locator.cluster.reflector import Reflector
from locator.control.reconciler import Destination
from locator.control.work_queue import RateLimiter
from locator.distribution.destinations import ClusterContact, Destinations
from locator.distribution.distribution import UNREACHABLE_SECONDS, Distribution
from locator.distribution.manifests import FIELD_MANAGER
from locator.distribution.records import KINDS, OTHER_WORKLOADS
from locator.labels import Selector
from locator.model import OWN, Finding, Health

log = logging.getLogger("topodns")

# In any second at most 20 writes reach a cluster, also if it stalls and then takes all that are in flight at once.
WRITES_PER_SECOND = 20.0 - IN_FLIGHT
ASK_SECONDS = 5.0  # between two small requests to each API server
GIVE_BACK_SECONDS = 20.0
LOOK_SECONDS = 1.0  # between two looks at which clusters can be read

PATHS = {kind.name: kind.path for kind in KINDS.values()} | {name: path for name, (path, _) in OTHER_WORKLOADS.items()}


class _Api:
    """The federation API, or that of a cluster: what watches it, and what writes to it."""

    def __init__(
        self, client: ApiClient, watches: Mapping[type[Any], Reflector], writer: Writer, receive: _Batches
    ) -> None:
        self.watches, self.writer = watches, writer
        self.client, self._receive = client, receive
        self._hangs_since: float | None = None
        self._excluded: ClusterContact | None = None
        self.exclusion = ""
        """Why it is not to be used, if its kubeconfig names the API server of something else."""
        self.scope = trio.CancelScope()

    async def run(self, take_in: Callable[[DeltaBatch], Any]) -> None:
        """Watch and write, until ``scope`` is cancelled."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                for watch in self.watches.values():
                    nursery.start_soon(watch.run)
                nursery.start_soon(self.writer.run)
                nursery.start_soon(self._ask_regularly)
                async for batch in self._receive:
                    await take_in(batch)

    def exclude(self, problem: str) -> None:
        """Count as out of reach from now on, because of a *problem* with its kubeconfig; no longer if it is empty."""
        self.exclusion = problem
        self._excluded = ClusterContact(boot_seconds() - UNREACHABLE_SECONDS, problem) if problem else None

    def contact(self) -> ClusterContact:
        """Return since when it cannot be read, on the clock of the elector, and why."""
        if self._excluded is not None:
            return self._excluded
        lost = [(watch.lost_since, watch.problem) for watch in self.watches.values() if watch.lost_since is not None]
        if self._hangs_since is not None:
            lost.append((self._hangs_since, f"{self.client.host}: does not answer"))
        if not lost:
            return ClusterContact(None)
        since, problem = min(lost)
        return ClusterContact(boot_seconds() - (trio.current_time() - since), problem)

    async def _ask_regularly(self) -> None:
        """Ask the API server whether it answers at all: a watch of one that hangs looks like one without changes."""
        while True:
            began = trio.current_time()
            found = await trio.to_thread.run_sync(self.client.readiness, abandon_on_cancel=True)
            if found is not Readiness.AWAY:
                self._hangs_since = None
            elif self._hangs_since is None:
                self._hangs_since = began
            await trio.sleep(ASK_SECONDS)


_Batches = trio.MemoryReceiveChannel[DeltaBatch]


class Federator:
    """Distributes the objects of the federation *name*, whose API is that of *client*, to the clusters that are added.

    It writes while this replica leads by *elector*. With *selector*, only the objects count that it matches. *instance*
    names this replica in Events.
    """

    def __init__(
        self,
        name: str,
        client: ApiClient,
        elector: LeaderElector,
        *,
        selector: Selector | None = None,
        instance: str,
    ) -> None:
        self._name, self._elector = name, elector
        self._findings = FindingLog()
        self._events = EventPoster(client, instance, tells=lambda finding: True, paths=PATHS)
        self._nursery: trio.Nursery | None = None
        distribution = self._distribution = Distribution(name, (), selector=selector, now=boot_seconds())
        self._destinations = Destinations(distribution, self._report)
        self._api = self._begin(client, OWN, self._destinations.originals)
        self._clusters: dict[str, _Api] = {}
        self._said_empty = False

    @property
    def clusters(self) -> Collection[str]:
        """The names of the clusters."""
        return self._clusters.keys()

    def problem_with(self, client: ApiClient) -> str:
        """Return why nothing is to be written to the API server of a cluster, empty if there is no problem."""
        if client.identity == self._api.client.identity:
            return f"{client.host} is the federation API, expected a cluster"
        for cluster, api in self._clusters.items():
            is_twin = client.identity != "" and api.client.identity == client.identity
            if is_twin and api.client is not client and not api.exclusion:
                return _twins(client, cluster)
        return ""

    @property
    def writers(self) -> Mapping[str, Writer]:
        """What writes to each API server, that of the federation under the name ""."""
        return {OWN: self._api.writer, **{cluster: api.writer for cluster, api in self._clusters.items()}}

    @property
    def reachable(self) -> Mapping[str, bool]:
        """Whether each cluster can be read, by its name."""
        return {cluster: api.contact().lost_since is None for cluster, api in self._clusters.items()}

    def health(self) -> dict[str, Health]:
        """Return the state of what is read. Clusters pass: one cluster does not hold up the others."""
        watches = self._api.watches.values()
        problem = next((watch.problem for watch in watches if not watch.listed), "")
        about = f"federation {self._name}"
        found = {about: Health(not problem, problem or "ok")}
        for cluster, api in self._clusters.items():
            lost = api.contact()
            found[f"{about}: cluster {cluster}"] = Health(True, lost.problem or "ok", lost.problem)
        return found

    def add_cluster(self, cluster: str, client: ApiClient) -> None:
        """Distribute to one more cluster."""
        self._destinations.add_cluster(cluster, boot_seconds())
        api = self._clusters[cluster] = self._begin(client, cluster, self._destinations.clusters[cluster])
        self._start(cluster, api)
        self._wake()

    def note_move(self, cluster: str) -> None:
        """Look again at the API servers that kubeconfigs name, since that of a cluster names another one now."""
        self._exclude(cluster, self.problem_with(self._clusters[cluster].client))
        self._look()

    def remove_cluster(self, cluster: str) -> None:
        """Forget a cluster, and leave there what is there."""
        api = self._clusters.pop(cluster)
        api.scope.cancel()
        self._elector.stop_telling(api.writer.wake)
        self._destinations.remove_cluster(cluster)
        self._look()

    async def run(self) -> None:
        """Watch, and write while this replica leads, for ever. ``LeaderElector.lead`` runs it."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._events.run)
            for cluster, api in ((OWN, self._api), *self._clusters.items()):
                self._start(cluster, api)
            nursery.start_soon(_give_back_regularly)
            while True:
                self._look()
                await trio.sleep(LOOK_SECONDS)

    def _exclude_twins(self) -> None:
        """Write nothing to a cluster that is another one, too; one that was there before goes on."""
        before: list[str] = []
        for cluster, api in self._clusters.items():
            problem = self.problem_with(api.client) if api.exclusion else ""
            if not problem and (twin := self._distribution.twin(cluster, before)):
                problem = _twins(api.client, twin)
            self._exclude(cluster, problem)
            if not problem:
                before.append(cluster)

    def _exclude(self, cluster: str, problem: str) -> None:
        api = self._clusters[cluster]
        if problem != api.exclusion:
            if problem:
                log.warning("cluster %s: %s; nothing is written there", cluster, problem)
            api.exclude(problem)
            self._destinations.look({cluster: api.contact()}, boot_seconds())

    def _begin(self, client: ApiClient, cluster: str, destination: Destination) -> _Api:
        send, receive = trio.open_memory_channel[DeltaBatch](WAITING_BATCHES)
        resources = self._distribution.resources
        source = f"cluster {cluster}" if cluster else f"federation {self._name}"
        watches = {
            kind: Reflector(client, kind, resources[kind], send, source=source)
            for kind in self._distribution.objects.kinds[cluster]
        }
        writer = Writer(
            client,
            self._elector,
            destination,
            field_manager=FIELD_MANAGER,
            rate=RateLimiter(WRITES_PER_SECOND, burst=1.0) if cluster else None,
            source=source,
        )
        return _Api(client, watches, writer, receive)

    def _start(self, cluster: str, api: _Api) -> None:
        async def take_in(batch: DeltaBatch) -> None:
            await apply_in_turns(batch, partial(self._destinations.apply, cluster=cluster), api.scope)
            self._exclude_twins()
            self._wake()

        if self._nursery is not None:
            self._nursery.start_soon(api.run, take_in)

    def _look(self) -> None:
        self._exclude_twins()
        contacts = {cluster: api.contact() for cluster, api in self._clusters.items()}
        self._destinations.look(contacts, boot_seconds())
        self._wake()
        is_empty = self._distribution.is_empty and self._distribution.objects.is_listed(OWN)
        if is_empty and not self._said_empty:
            log.warning(
                "federation %s: its API has no object to distribute; copies that are in clusters stay", self._name
            )
        self._said_empty = is_empty

    def _wake(self) -> None:
        for writer in self.writers.values():
            writer.wake()

    def _report(self, finding: Finding) -> None:
        self._findings.log([finding])
        self._events.offer([finding])


def _twins(client: ApiClient, cluster: str) -> str:
    return f"{client.host} is cluster {cluster}, too, expected each cluster once"


async def _give_back_regularly() -> None:
    """Give memory back to the system: whole objects are read, and little is kept of each."""
    while True:
        await trio.sleep(GIVE_BACK_SECONDS)
        await trio.to_thread.run_sync(memory.give_back)
