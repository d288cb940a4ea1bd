# SPDX-License-Identifier: Apache-2.0

"""Writes the status of ServicePolicies while this replica leads: whether each is accepted, and whether effective.

``policies.reconciler`` decides what to write, and ``leader_writer`` sends it. Nothing depends on the status. So a
cluster without the CRD, and an account without these rights, have none, and all else goes on.
"""

from __future__ import annotations

import http
import time
from collections.abc import Mapping
from typing import Any

import trio

from locator.api.decoding import decode_untrusted
from locator.api.deltas import DeltaBatch, Put
from locator.cluster.api_client import ApiClient
from locator.cluster.leading.elector import LeaderElector
from locator.cluster.leading.leader_writer import CONFLICT, DONE, LeaderWriter
from locator.cluster.reflector import Reflector
from locator.cluster.responses import Refused
from locator.model import Health
from locator.policies.objects import MERGE_PATCH, POLICY_RESOURCES, ActualPolicy
from locator.policies.reconciler import PolicyReconciler, StatusWrite
from locator.times import time_text

WAITING_BATCHES = 16  # between the reflectors and the reconciler; a reflector waits while the channel is full
FIELD_MANAGER = "topodns-controller"  # as for PodLocators
WITHOUT_STATUS = "its CRD declares no status: apply the CRD of this version of topodns"


class PolicyController:
    """Keeps the status of ServicePolicies true, while this replica leads by *elector*."""

    def __init__(self, client: ApiClient, elector: LeaderElector, *, writes_per_second: float) -> None:
        self._reconciler = PolicyReconciler(_wall_time)
        self._send, self._receive = trio.open_memory_channel[DeltaBatch](WAITING_BATCHES)
        self.reflectors: Mapping[type[Any], Reflector] = {
            kind: Reflector(client, kind, resource, self._send) for kind, resource in POLICY_RESOURCES.items()
        }
        self.writer: LeaderWriter[StatusWrite] = LeaderWriter(
            client,
            elector,
            kind="ServicePolicy",
            desk=self._reconciler,
            attempt=self._try,
            writes_per_second=writes_per_second,
        )

    @property
    def object_counts(self) -> dict[str, int]:
        """The number of objects of each kind."""
        return self._reconciler.object_counts

    def health(self) -> dict[str, Health]:
        """Return the state of the watch of each kind. All pass: a controller without the status is ready, too."""
        reflectors = self.reflectors.items()
        return {POLICY_RESOURCES[kind].name: Health(True, reflector.health().text) for kind, reflector in reflectors}

    async def run(self) -> None:
        """Watch, and write while this replica leads, for ever. ``LeaderElector.lead`` runs it."""
        await self.writer.run_with(self.reflectors.values(), self._apply_deltas)

    async def _apply_deltas(self) -> None:
        async for batch in self._receive:  # without its findings: the status says those of a policy
            for delta in batch.deltas:
                self._reconciler.apply(delta)
            self.writer.wake()

    async def _try(self, write: StatusWrite) -> str:
        """Send a write and apply the response; return the result. Raises NotLeading, Refused, Unreachable."""
        query = {"fieldManager": FIELD_MANAGER}
        try:
            raw = await self.writer.request(
                "PATCH", f"{write.path}/status", query=query, body=write.patch, media=MERGE_PATCH
            )
        except Refused as error:
            if error.status == http.HTTPStatus.CONFLICT:
                return CONFLICT  # the watch brings what stands there
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            if await self._is_gone(write):
                return DONE  # nothing is left to write
            raise Refused(error.status, error.reason, WITHOUT_STATUS) from None
        policy = decode_untrusted(POLICY_RESOURCES[ActualPolicy], raw).built
        if policy is not None:
            self._reconciler.apply(Put(policy))
        return DONE

    async def _is_gone(self, write: StatusWrite) -> bool:
        """Ask whether the policy that a write was for does not exist any more. Raises Refused, Unreachable."""
        try:
            await self.writer.get(write.path)
        except Refused as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            return True
        return False


def _wall_time() -> str:
    return time_text(time.time(), "seconds")
