# SPDX-License-Identifier: Apache-2.0

"""Knows which hints the cluster's EndpointSlices should carry; while this replica leads, it corrects outdated ones.

``hints.hint_store`` says which hints, for admission reviews in every replica and for the leader's writes alike.
``hints.reconciler`` decides what to write, and ``leader_writer`` sends it.
"""

from __future__ import annotations

import gc
import http
from collections.abc import Mapping
from typing import Any

import trio

from locator.api.decoding import decode_untrusted
from locator.api.deltas import DeltaBatch
from locator.cluster.api_client import ApiClient
from locator.cluster.leading.elector import LeaderElector, boot_seconds
from locator.cluster.leading.leader_writer import CONFLICT, DONE, LeaderWriter
from locator.cluster.reflector import Reflector
from locator.cluster.responses import Refused
from locator.hints.hint_store import HintStore
from locator.hints.objects import JSON_PATCH, WEBHOOK_RESOURCES, HintedSlice
from locator.hints.reconciler import HintReconciler, HintWrite

WAITING_BATCHES = 16  # between the reflectors and the reconciler; a reflector waits while the channel is full
DELTAS_AT_ONCE = 50  # applied before other tasks get a turn: admission reviews wait meanwhile
FIELD_MANAGER = "topodns-webhook"  # shared by all replicas, as the controller's


class HintController:
    """Watches all that hints depend on, into ``store``, and writes outdated hints while it leads by *elector*."""

    def __init__(self, client: ApiClient, elector: LeaderElector, *, writes_per_second: float) -> None:
        self.store = HintStore()
        self._reconciler = HintReconciler(self.store)
        self._send, self._receive = trio.open_memory_channel[DeltaBatch](WAITING_BATCHES)
        self.reflectors: Mapping[type[Any], Reflector] = {
            kind: Reflector(client, kind, resource, self._send) for kind, resource in WEBHOOK_RESOURCES.items()
        }
        self.writer: LeaderWriter[HintWrite] = LeaderWriter(
            client,
            elector,
            kind="EndpointSlice",
            desk=self._reconciler,
            attempt=self._try,
            writes_per_second=writes_per_second,
        )

    async def run(self) -> None:
        """Watch, and write while this replica leads, for ever. ``LeaderElector.lead`` runs it."""
        await self.writer.run_with(self.reflectors.values(), self._apply_deltas)

    async def _apply_deltas(self) -> None:
        async for batch in self._receive:  # without its findings: the server and ``check`` report those
            was_unlisted = self.store.unlisted
            for number, delta in enumerate(batch.deltas, start=1):
                self._reconciler.apply(delta)
                if number % DELTAS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            if was_unlisted and not self.store.unlisted:
                gc.collect()
                gc.freeze()  # the objects live long, and collections that visit them would delay replies
            self.writer.wake()

    async def _try(self, write: HintWrite) -> str:
        """Send a write; return the result. Raises NotLeading, Refused, Unreachable."""
        query = {"fieldManager": FIELD_MANAGER}
        try:
            raw = await self.writer.request("PATCH", write.path, query=query, body=write.patch, media=JSON_PATCH)
        except Refused as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return DONE  # nothing is left to write
            # The slice has changed; the watch brings that version. An invalid patch has the same status as one whose
            # test fails, but the hints are always valid.
            if error.status not in (http.HTTPStatus.CONFLICT, http.HTTPStatus.UNPROCESSABLE_ENTITY):
                raise
            return CONFLICT
        left = decode_untrusted(WEBHOOK_RESOURCES[HintedSlice], raw).built
        if left is not None and not write.holds_in(left):
            # At admission, a replica that has not heard of the latest change has put the old hints back. Then the
            # slice is as it was, and no event will come.
            return CONFLICT
        self._reconciler.written(write, boot_seconds())
        return DONE
