# SPDX-License-Identifier: Apache-2.0

"""The controller that keeps PodLocators up to date in a live cluster: one leader among replicas writes.

``podlocators.reconciler`` decides what to write, and ``leader_writer`` sends it.
"""

from __future__ import annotations

import http
from collections.abc import Mapping, Sequence

import trio

from locator.api.decoding import decode_untrusted, uid_untrusted
from locator.api.deltas import DeltaBatch, Put
from locator.cluster.api_client import ApiClient
from locator.cluster.leading.leader_elector import LeaderElector
from locator.cluster.leading.leader_writer import CONFLICT, DONE, WRITES_PER_SECOND, LeaderWriter
from locator.cluster.reflector import Reflector
from locator.cluster.responses import Refused
from locator.podlocators.label_filter import LabelFilter
from locator.podlocators.objects import CONTROLLER_RESOURCES, ActualLocator, ControllerObject, locator_path, pod_path
from locator.podlocators.reconciler import DELETE, Reconciler, Write

WAITING_BATCHES = 16  # between the reflectors and the reconciler; a reflector waits while the channel is full
FIELD_MANAGER = "topodns-controller"  # shared by all replicas: each further manager adds a kilobyte to every object

BEHIND = "behind"  # the result of a write that was not sent: the owner's watch event is on the way


class Controller:
    """Writes PodLocators for Pods and Nodes while this replica leads by *elector*.

    *labels* are globs that select node labels; without globs a PodLocator has all labels of its node.
    """

    def __init__(
        self,
        client: ApiClient,
        elector: LeaderElector,
        *,
        labels: Sequence[str] = (),
        writes_per_second: float = WRITES_PER_SECOND,
    ) -> None:
        self._reconciler = Reconciler(LabelFilter(labels))
        self._send, self._receive = trio.open_memory_channel[DeltaBatch](WAITING_BATCHES)
        self.reflectors: Mapping[type[ControllerObject], Reflector] = {
            kind: Reflector(client, kind, resource, self._send) for kind, resource in CONTROLLER_RESOURCES.items()
        }
        self.writer: LeaderWriter[Write] = LeaderWriter(
            client,
            elector,
            kind="PodLocator",
            desk=self._reconciler,
            attempt=self._try,
            writes_per_second=writes_per_second,
        )

    @property
    def object_counts(self) -> dict[str, int]:
        """The number of objects of each kind."""
        return self._reconciler.object_counts

    async def run(self) -> None:
        """Watch, and write while this replica leads, for ever. ``LeaderElector.lead`` runs it."""
        await self.writer.run_with(self.reflectors.values(), self._apply_deltas)

    async def _apply_deltas(self) -> None:
        async for batch in self._receive:  # without its findings: the server and ``check`` report those
            for delta in batch.deltas:
                self._reconciler.apply(delta)
            self.writer.wake()

    async def _try(self, write: Write) -> str:
        """Send a write and apply the response; return the result. Raises NotLeading, Refused, Unreachable."""
        if write.unseen_owner is not None and not self._reconciler.confirm_owner(write, await self._uid_of_pod(write)):
            return BEHIND
        query = {"fieldManager": FIELD_MANAGER} if write.verb != DELETE else {}
        try:
            raw = await self.writer.request(write.method, write.path, query=query, body=write.body, media=write.media)
        except Refused as error:
            gone = error.status == http.HTTPStatus.NOT_FOUND and bool(write.version)
            if error.status != http.HTTPStatus.CONFLICT and not gone:
                raise
            await self._read_locator(write)
            return CONFLICT
        if write.verb == DELETE:
            self._reconciler.locator_gone(write)
        else:
            self._apply_response(raw)
        return DONE

    async def _read_locator(self, write: Write) -> None:
        """Read the PodLocator whose version was not the expected one. Raises Refused, Unreachable."""
        try:
            self._apply_response(await self.writer.get(locator_path(write.namespace, write.name)))
        except Refused as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            self._reconciler.locator_gone(write)

    async def _uid_of_pod(self, write: Write) -> str:
        """Return the uid of the pod by the API server, empty if there is none. Raises Refused, Unreachable."""
        try:
            return uid_untrusted(await self.writer.get(pod_path(write.namespace, write.name)))
        except Refused as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            return ""

    def _apply_response(self, raw: bytes) -> None:
        locator = decode_untrusted(CONTROLLER_RESOURCES[ActualLocator], raw).built
        if locator is not None:
            self._reconciler.apply(Put(locator))
