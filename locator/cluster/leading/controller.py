# SPDX-License-Identifier: Apache-2.0

"""A controller in a live cluster: watches what its rules read, and writes what they want while this replica leads.

``control.reconciler`` decides what to write by the rules, and ``writer`` sends it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping

import trio

from locator.api.deltas import DeltaBatch
from locator.cluster.api_client import ApiClient
from locator.cluster.leading.elector import LeaderElector
from locator.cluster.leading.writer import WRITES_PER_SECOND, Writer
from locator.cluster.reflector import Reflector
from locator.control.reconciler import OWN, Reconciler, Rules
from locator.model import Health

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
        writes_per_second: float = WRITES_PER_SECOND,
    ) -> None:
        self.reconciler = Reconciler(rules)
        self.writer = Writer(
            client, elector, self.reconciler, field_manager=field_manager, writes_per_second=writes_per_second
        )
        send, receive = trio.open_memory_channel[DeltaBatch](WAITING_BATCHES)
        self._received = {OWN: receive}
        self.watches: Mapping[str, Reflector] = {
            rules.resources[kind].name: Reflector(client, kind, rules.resources[kind], send)
            for kind in rules.objects.kinds[OWN]
        }
        """By kind, the watches of the cluster that it writes to."""
        self._subscribers: list[Callable[[], None]] = []

    @property
    def object_counts(self) -> dict[str, int]:
        """The number of objects of each kind."""
        rules = self.reconciler.rules
        return {rules.resources[kind].name: number for kind, number in rules.objects.counts.items()}

    def health(self) -> dict[str, Health]:
        """Return the state of what is read."""
        return {kind: watch.health() for kind, watch in self.watches.items()}

    def on_change(self, subscriber: Callable[[], None]) -> None:
        """Call *subscriber* after changes have been taken in."""
        self._subscribers.append(subscriber)

    async def run(self) -> None:
        """Watch, and write while this replica leads, for ever. ``LeaderElector.lead`` runs it."""
        async with trio.open_nursery() as nursery:
            for source in self.watches.values():
                nursery.start_soon(source.run)
            for cluster, receive in self._received.items():
                nursery.start_soon(self._take_in, cluster, receive)
            nursery.start_soon(self.writer.run)

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
