"""A live cluster as a source: a reflector for each kind feeds one publisher; its view is kept for the next start."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import trio

from locator.api.decoding import RESOURCES
from locator.api.deltas import DeltaBatch, replacements
from locator.cluster.api_client import ApiClient
from locator.cluster.publisher import Publisher
from locator.cluster.reflector import Reflector
from locator.cluster.state_file import StateFile
from locator.model import Health, Object
from locator.state.snapshot import Snapshot

KEEP_SECONDS = 30.0  # between looks at whether the kept view is still the present one
LAST_SECONDS = 5.0  # for keeping the last one; a folder that does not answer holds no end up


class Informer:
    """Sends *publisher* what a live *cluster* holds of each of *kinds*, and whatever changes there.

    With *kept*, it begins with the view that was kept, and keeps each view in turn.
    """

    def __init__(
        self,
        cluster: ApiClient,
        kinds: Iterable[type[Object]],
        publisher: Publisher,
        *,
        kept: StateFile | None = None,
    ) -> None:
        self.reflectors: Mapping[type[Object], Reflector] = {
            kind: Reflector(cluster, kind, RESOURCES[kind], publisher.deltas) for kind in kinds
        }
        self._publisher = publisher
        self._kept = kept
        self._saved: Snapshot | None = None

    def health(self) -> Mapping[str, Health]:
        """Return of each kind whether it is known, if only from a kept view, and what is wrong with its watch."""
        known = self._publisher.snapshot is not None
        return {RESOURCES[kind].name: each.health(known=known) for kind, each in self.reflectors.items()}

    def stale(self, after: float) -> bool:
        """Whether what is known may be old: kept from before the start, or contact lost for *after* seconds."""
        return bool(self._publisher.missing) or any(since + after <= trio.current_time() for since in self._lost())

    def read_again(self) -> None:
        """There is nothing to be read again: whatever changes is heard of."""

    async def run(self) -> None:
        """Follow for ever; keep the view at the end."""
        if self._kept is None:
            await self._follow()
            return
        objects = await trio.to_thread.run_sync(self._kept.load, abandon_on_cancel=True)
        if objects is not None:
            await self._publisher.deltas.send(DeltaBatch(replacements(objects), restored=True))
            del objects
            await self._publisher.flush()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep, self._kept)
                await self._follow()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_SECONDS):
                await self._save(self._kept)

    async def _follow(self) -> None:
        async with trio.open_nursery() as nursery:
            for reflector in self.reflectors.values():
                nursery.start_soon(reflector.run)

    def _lost(self) -> list[float]:
        """Return since when there has been no contact, for each kind that is so."""
        return [each.lost_since for each in self.reflectors.values() if each.lost_since is not None]

    async def _keep(self, kept: StateFile) -> None:
        while True:
            await trio.sleep(KEEP_SECONDS)
            await self._save(kept)

    async def _save(self, kept: StateFile) -> None:
        """Keep what is known, if all of it is known; it was true when there was contact last."""
        snapshot = self._publisher.snapshot
        if self._publisher.missing or snapshot is None:
            return
        now = trio.current_time()
        seen = time.time() - (now - min(self._lost(), default=now))
        if self._saved is snapshot and await trio.to_thread.run_sync(kept.touch, seen, abandon_on_cancel=True):
            return
        objects = await self._publisher.known()
        saved = await trio.to_thread.run_sync(kept.save, objects, seen, abandon_on_cancel=True)
        self._saved = snapshot if saved else None
