# SPDX-License-Identifier: Apache-2.0

"""Probes the load balancers of all clusters while this replica leads, and writes the results into its own cluster.

``health.reconciler`` decides what to probe and to write, ``prober`` probes, and ``leader_writer`` sends the writes.
A replica that cannot reach its API server any more goes on probing until it hears of another leader, so that it has
results when the API server is back.
"""

from __future__ import annotations

import http
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import trio

from locator.api.decoding import RESOURCES, decode_untrusted
from locator.api.deltas import DeltaBatch, Replace
from locator.cluster.api_client import ApiClient
from locator.cluster.dump_files import DumpFiles, DumpSource
from locator.cluster.dumps.reading import Dump
from locator.cluster.leading.leader_elector import LeaderElector, wall_time
from locator.cluster.leading.leader_writer import CONFLICT, DONE, LeaderWriter
from locator.cluster.leading.prober import RESULTS, Prober
from locator.cluster.reflector import Reflector
from locator.cluster.responses import Refused
from locator.health.reconciler import CREATE, DELETE, OWN, HealthReconciler, HealthWrite
from locator.health.targets import Target
from locator.model import Health, Service, ServiceHealth

log = logging.getLogger("topodns")

WAITING_BATCHES = 16  # between a source and the reconciler; a source waits while the channel is full
FIELD_MANAGER = "topodns-controller"  # as for PodLocators
# For other clusters, before a leader begins without those that cannot be read. Until then, the votes of the leader
# before it count: they are not too old yet.
WAIT_SECONDS = 10.0

Batches = trio.MemorySendChannel[DeltaBatch]


class HealthController:
    """Keeps the ServiceHealths of the cluster called *name* true, while this replica leads by *elector*.

    *others* are the other clusters, live or from files, by name.
    """

    def __init__(
        self,
        client: ApiClient,
        elector: LeaderElector,
        *,
        name: str,
        others: Mapping[str, ApiClient | DumpFiles],
        writes_per_second: float,
    ) -> None:
        self.probes: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        """The number of probes by result."""
        self._reconciler = HealthReconciler(name, others=len(others), wall=wall_time)
        self._elector = elector
        self._changed = trio.Event()
        self._channels = [trio.open_memory_channel[DeltaBatch](WAITING_BATCHES) for _ in range(1 + len(others))]
        send = self._channels[OWN][0]
        channels = zip(others.items(), self._channels[OWN + 1 :], strict=True)
        self._followed = {name: _followed(name, source, send) for (name, source), (send, _) in channels}
        self.reflectors: Mapping[type[Any], Reflector] = {
            Service: Reflector(client, Service, RESOURCES[Service], send),
            ServiceHealth: Reflector(client, ServiceHealth, RESOURCES[ServiceHealth]._replace(optional=False), send),
        }
        self.writer: LeaderWriter[HealthWrite] = LeaderWriter(
            client,
            elector,
            kind="ServiceHealth",
            desk=self._reconciler,
            attempt=self._try,
            writes_per_second=writes_per_second,
        )
        elector.on_observed(self._wake)

    @property
    def object_counts(self) -> dict[str, int]:
        """The number of Services that are probed, and of ServiceHealths."""
        return self._reconciler.object_counts

    @property
    def addresses(self) -> dict[bool, int]:
        """The number of addresses by whether they are healthy; zeros while this replica does not probe."""
        healthy = Counter(entry.healthy for entry in self._reconciler.entries)
        return {state: healthy[state] for state in (True, False)}

    @property
    def clusters(self) -> dict[str, Health]:
        """The state of what is read of each other cluster. All pass: one cluster does not hold up the others."""
        return {name: Health(True, _state_of(followed)) for name, followed in self._followed.items()}

    async def run(self) -> None:
        """Watch, and probe and write while this replica leads, for ever. ``LeaderElector.lead`` runs it."""
        async with trio.open_nursery() as nursery:
            for reflector in self.reflectors.values():
                nursery.start_soon(reflector.run)
            for position, (_, receive) in enumerate(self._channels):
                nursery.start_soon(self._apply_deltas, position, receive)
            for followed in self._followed.values():
                nursery.start_soon(followed.run)
            nursery.start_soon(self._stop_waiting)
            nursery.start_soon(self._probe_while_leading)
            nursery.start_soon(self.writer.run)

    async def _apply_deltas(self, position: int, receive: trio.MemoryReceiveChannel[DeltaBatch]) -> None:
        async for batch in receive:  # without its findings: the server and ``check`` report those
            for delta in batch.deltas:
                self._reconciler.apply(delta, position)
            self._wake()

    async def _stop_waiting(self) -> None:
        await trio.sleep(WAIT_SECONDS)
        self._reconciler.stop_waiting()
        self._wake()

    def _wake(self) -> None:
        """Look again at what there is to probe and to write."""
        self._changed.set()
        self.writer.wake()

    async def _probe_while_leading(self) -> None:
        async with trio.open_nursery() as nursery:
            prober, probing = Prober(nursery, self._record, results=self.probes), False
            while True:
                self._changed = trio.Event()
                if probing != (self._elector.led_last and self._reconciler.ready):
                    probing = not probing
                    if probing:
                        self._reconciler.start_probing()
                        self.writer.wake()
                    else:
                        self._reconciler.stop_probing()
                prober.follow(self._reconciler.targets if probing else frozenset())
                await self._changed.wait()

    def _record(self, target: Target, failure: str) -> None:
        entry = self._reconciler.record(target, failure)
        if entry is not None:
            state = "healthy again" if entry.healthy else f"unhealthy: {entry.message}"
            log.info("Service %s: %s port %d is %s", target.service, target.address, target.port, state)
            self.writer.wake()

    async def _try(self, write: HealthWrite) -> str:
        """Send a write and apply the response; return the result. Raises NotLeading, Refused, Unreachable."""
        query = {"fieldManager": FIELD_MANAGER} if write.verb != DELETE else {}
        try:
            raw = await self.writer.request(write.method, write.path, query=query, body=write.body, media=write.media)
        except Refused as error:
            gone = error.status == http.HTTPStatus.NOT_FOUND and write.verb != CREATE
            if gone or error.status == http.HTTPStatus.CONFLICT:
                return CONFLICT  # the watch brings what stands there
            raise
        answer = None if write.verb == DELETE else decode_untrusted(RESOURCES[ServiceHealth], raw).built
        self._reconciler.written(write, answer)
        return DONE


def _followed(name: str, source: ApiClient | DumpFiles, send: Batches) -> Reflector | DumpSource:
    """Return what sends the Services of the cluster called *name*, and then their changes."""
    if isinstance(source, ApiClient):
        return Reflector(source, Service, RESOURCES[Service], send, cluster=name)

    async def deliver(dump: Dump) -> None:
        await send.send(DeltaBatch([Replace(Service, [one for one in dump.objects if isinstance(one, Service)])]))

    return DumpSource(source, deliver, about=f"cluster {name}", required=False)


def _state_of(followed: Reflector | DumpSource) -> str:
    health = followed.health()
    return health.text if isinstance(health, Health) else health["snapshot"].text
