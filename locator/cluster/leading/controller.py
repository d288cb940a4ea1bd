# SPDX-License-Identifier: Apache-2.0

"""A controller in a live cluster: watches what its rules read, and writes what they want while this replica leads.

``control.reconciler`` decides what to write by the rules, and ``writer`` sends it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import trio

from locator.api.deltas import DeltaBatch, Replace
from locator.cluster.api_client import ApiClient
from locator.cluster.leading.elector import LeaderElector
from locator.cluster.leading.writer import Writer
from locator.cluster.reflector import Reflector
from locator.control.reconciler import Reconciler, Rules
from locator.model import OWN, Health

if TYPE_CHECKING:
    from locator.cluster.dump_files import DumpFiles, DumpSource
    from locator.cluster.dumps.reading import Dump

WAITING_BATCHES = 16  # between a source and the reconciler; a source waits while the channel is full
DELTAS_AT_ONCE = 50  # applied before other tasks get a turn: admission reviews wait meanwhile


class Controller:
    """Keeps what *rules* want true in the cluster of *client*, while this replica leads by *elector*.

    *others* are the other clusters that the rules read, live or from files, by name. All replicas write as
    *field_manager*: each further manager adds a kilobyte to every object.
    """

    def __init__(
        self,
        client: ApiClient,
        elector: LeaderElector,
        rules: Rules,
        *,
        field_manager: str,
        others: Mapping[str, ApiClient | DumpFiles] | None = None,
    ) -> None:
        self.reconciler = Reconciler(rules)
        self.writer = Writer(client, elector, self.reconciler, field_manager=field_manager)
        self._received: dict[str, trio.MemoryReceiveChannel[DeltaBatch]] = {}
        self._others: list[tuple[str, Reflector | DumpSource]] = []
        self.watches = {rules.resources[kind].name: watch for kind, watch in self._watch(client, OWN).items()}
        """By kind, the watches of the cluster that it writes to."""
        for cluster, source in (others or {}).items():
            if isinstance(source, ApiClient):
                self._others += ((cluster, watch) for watch in self._watch(source, cluster).values())
            else:
                self._others.append((cluster, self._follow_dump(source, cluster)))
        self._subscribers: list[Callable[[], None]] = []

    @property
    def object_counts(self) -> dict[str, int]:
        """The number of objects of each kind."""
        rules = self.reconciler.rules
        return {rules.resources[kind].name: number for kind, number in rules.objects.counts.items()}

    def health(self) -> dict[str, Health]:
        """Return the state of what is read. Other clusters pass: one cluster does not hold up the others."""
        others = {f"cluster {cluster}": Health(True, _state_of(source)) for cluster, source in self._others}
        return {kind: watch.health() for kind, watch in self.watches.items()} | others

    def on_change(self, subscriber: Callable[[], None]) -> None:
        """Call *subscriber* after changes have been taken in."""
        self._subscribers.append(subscriber)

    async def run(self) -> None:
        """Watch, and write while this replica leads, for ever. ``LeaderElector.lead`` runs it."""
        async with trio.open_nursery() as nursery:
            for source in (*self.watches.values(), *(source for _, source in self._others)):
                nursery.start_soon(source.run)
            for cluster, receive in self._received.items():
                nursery.start_soon(self._take_in, cluster, receive)
            nursery.start_soon(self.writer.run)

    def _watch(self, client: ApiClient, cluster: str) -> dict[type[Any], Reflector]:
        """Return the watches of what the rules read in a cluster, by kind."""
        rules, send = self.reconciler.rules, self._channel_of(cluster)
        return {
            kind: Reflector(client, kind, rules.resources[kind], send, cluster=cluster)
            for kind in rules.objects.kinds[cluster]
        }

    def _follow_dump(self, files: DumpFiles, cluster: str) -> DumpSource:
        """Return what reads the same from files, and again when they change."""
        from locator.cluster.dump_files import DumpSource

        kinds, send = self.reconciler.rules.objects.kinds[cluster], self._channel_of(cluster)

        async def deliver(dump: Dump) -> None:
            found = {kind: [one for one in dump.objects if isinstance(one, kind)] for kind in kinds}
            await send.send(DeltaBatch([Replace(kind, objects) for kind, objects in found.items()]))

        return DumpSource(files, deliver, about=f"cluster {cluster}", required=False)

    def _channel_of(self, cluster: str) -> trio.MemorySendChannel[DeltaBatch]:
        send, self._received[cluster] = trio.open_memory_channel[DeltaBatch](WAITING_BATCHES)
        return send

    async def _take_in(self, cluster: str, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        async for batch in receive:  # without its findings: the server and ``check`` report those
            had_synced = self.reconciler.has_synced
            for number, delta in enumerate(batch.deltas, start=1):
                self.reconciler.apply(delta, cluster)
                if number % DELTAS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            if self.reconciler.has_synced and not had_synced:
                gc.collect()
                gc.freeze()  # the objects live long, and collections that visit them would hold up whatever waits
            self.writer.wake()
            for subscriber in self._subscribers:
                subscriber()


def _state_of(source: Reflector | DumpSource) -> str:
    health = source.health()
    return health.text if isinstance(health, Health) else health["snapshot"].text
