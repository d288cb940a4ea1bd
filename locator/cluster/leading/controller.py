# SPDX-License-Identifier: Apache-2.0

"""A controller in a live cluster: watches what its rules read, and writes what they want while this replica leads.

``control.reconciler`` decides what to write by the rules, and ``writer`` sends it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from locator.api.deltas import Delta, DeltaBatch, Replace
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

    All replicas write as *field_manager*: each further manager adds a kilobyte to every object.
    """

    def __init__(
        self,
        client: ApiClient,
        elector: LeaderElector,
        rules: Rules,
        *,
        field_manager: str,
    ) -> None:
        self.reconciler = Reconciler(rules)
        self.writer = Writer(client, elector, self.reconciler, field_manager=field_manager)
        self._own = self._watched(OWN, client)
        self.watches: dict[str, Reflector] = {
            rules.resources[kind].name: watch
            for kind, watch in zip(rules.objects.kinds[OWN], self._own.sources, strict=True)
            if isinstance(watch, Reflector)
        }
        """By kind, the watches of the cluster that it writes to."""
        self._others: dict[str, _FollowedCluster] = {}
        self._nursery: trio.Nursery | None = None  # while it runs
        self._subscribers: list[Callable[[], None]] = []

    @property
    def object_counts(self) -> dict[str, int]:
        """The number of objects of each kind."""
        rules = self.reconciler.rules
        return {rules.resources[kind].name: number for kind, number in rules.objects.counts.items()}

    def health(self) -> dict[str, Health]:
        """Return the state of what is read. Other clusters pass: one cluster does not hold up the others."""
        others = {
            f"cluster {name}": Health(True, _state_of(source))
            for name, cluster in self._others.items()
            for source in cluster.sources
        }
        return {kind: watch.health() for kind, watch in self.watches.items()} | others

    def on_change(self, subscriber: Callable[[], None]) -> None:
        """Call *subscriber* after changes have been taken in."""
        self._subscribers.append(subscriber)

    def add_cluster(self, name: str, source: ApiClient | DumpFiles) -> None:
        """Read what the rules need of another cluster, too, live or from files."""
        self.reconciler.add_cluster(name)
        cluster = self._watched(name, source) if isinstance(source, ApiClient) else self._dumped(name, source)
        self._others[name] = cluster
        if self._nursery is not None:
            self._nursery.start_soon(self._follow, cluster)

    def remove_cluster(self, name: str) -> None:
        """Read another cluster no longer, and forget its objects."""
        self._others.pop(name).scope.cancel()
        self.reconciler.remove_cluster(name)
        self._tell()

    async def run(self) -> None:
        """Watch, and write while this replica leads, for ever. ``LeaderElector.lead`` runs it."""
        async with trio.open_nursery() as self._nursery:
            for cluster in (self._own, *self._others.values()):
                self._nursery.start_soon(self._follow, cluster)
            self._nursery.start_soon(self.writer.run)

    async def _follow(self, cluster: _FollowedCluster) -> None:
        with cluster.scope:
            async with trio.open_nursery() as nursery:
                for source in cluster.sources:
                    nursery.start_soon(source.run)
                nursery.start_soon(self._take_in, cluster)

    def _watched(self, name: str, client: ApiClient) -> _FollowedCluster:
        """Return what the rules read in a live cluster: a watch for each kind."""
        send, receive = trio.open_memory_channel[DeltaBatch](WAITING_BATCHES)
        rules = self.reconciler.rules
        kinds, source = rules.objects.kinds[name], f"cluster {name}" if name else ""
        watches = [Reflector(client, kind, rules.resources[kind], send, source=source) for kind in kinds]
        return _FollowedCluster(name, watches, receive)

    def _dumped(self, name: str, files: DumpFiles) -> _FollowedCluster:
        """Return what the rules read in the files of a cluster, again when they change."""
        from locator.cluster.dump_files import DumpSource

        send, receive = trio.open_memory_channel[DeltaBatch](WAITING_BATCHES)
        kinds = self.reconciler.rules.objects.kinds[name]

        async def deliver(dump: Dump) -> None:
            found = {kind: [one for one in dump.objects if isinstance(one, kind)] for kind in kinds}
            await send.send(DeltaBatch([Replace(kind, objects) for kind, objects in found.items()]))

        dumps = DumpSource(files, deliver, about=f"cluster {name}", required=False)
        return _FollowedCluster(name, [dumps], receive)

    async def _take_in(self, cluster: _FollowedCluster) -> None:
        async for batch in cluster.receive:  # without its findings: the server and ``check`` report those
            had_synced = self.reconciler.has_synced
            await apply_in_turns(batch, partial(self.reconciler.apply, cluster=cluster.name), cluster.scope)
            if self.reconciler.has_synced and not had_synced:
                gc.collect()
                gc.freeze()  # the objects live long, and collections that visit them would hold up whatever waits
            self._tell()

    def _tell(self) -> None:
        """Have everybody look at what has changed."""
        self.writer.wake()
        for subscriber in self._subscribers:
            subscriber()


async def apply_in_turns(batch: DeltaBatch, apply: Callable[[Delta], None], scope: trio.CancelScope) -> None:
    """Apply the deltas of a cluster, a few at a time, since other tasks want their turns; stop once *scope* ends."""
    for number, delta in enumerate(batch.deltas, start=1):
        if scope.cancel_called:
            return
        apply(delta)
        if number % DELTAS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()


class _FollowedCluster:
    """A cluster whose *sources* send to *receive*; ``scope`` ends that."""

    def __init__(
        self, name: str, sources: Sequence[Reflector | DumpSource], receive: trio.MemoryReceiveChannel[DeltaBatch]
    ) -> None:
        self.name, self.sources, self.receive = name, sources, receive
        self.scope = trio.CancelScope()


def _state_of(source: Reflector | DumpSource) -> str:
    health = source.health()
    return health.text if isinstance(health, Health) else health["snapshot"].text
