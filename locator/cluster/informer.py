# SPDX-License-Identifier: Apache-2.0

"""A live cluster as a source: a reflector for each kind sends its deltas to one publisher.

With a state file the informer starts from the view of the last run, and saves its own for the next.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import trio
from msgspec.structs import replace

from locator.api.decoding import RESOURCES, with_pod_labels
from locator.api.deltas import DeltaBatch, Replace, replacements
from locator.cluster import api_client
from locator.cluster.publisher import Publisher, ReadBatch, ReadOnce, without_gc
from locator.cluster.reflector import Reflector
from locator.cluster.state_file import StateFile
from locator.model import Health, Object, Pod, Service
from locator.state.snapshot import Snapshot
from locator.topology.annotations import labels_asked_for

SAVE_SECONDS = 30.0  # between two updates of the state file
OTHER_SILENCE = 10.0  # seconds: who reads once does without another cluster that sends nothing
LAST_SAVE_SECONDS = 5.0  # for the save at the end: a file system that hangs must not delay the exit


class Informer:
    """Sends *publisher* all objects of *kinds* in a live cluster, then their changes.

    With *state_file*, starts from the view saved there, and saves the view regularly. *cluster* is the name of another
    cluster, for the log.
    """

    def __init__(
        self,
        client: api_client.ApiClient,
        kinds: Iterable[type[Object]],
        publisher: Publisher,
        *,
        state_file: StateFile | None = None,
        cluster: str = "",
    ) -> None:
        source = f"cluster {cluster}" if cluster else ""
        self.reflectors: Mapping[type[Object], Reflector] = {
            kind: Reflector(client, kind, RESOURCES[kind], publisher.batches, source=source) for kind in kinds
        }
        self._client, self._publisher = client, publisher
        self._silence = OTHER_SILENCE if cluster else api_client.READ_SILENCE
        self._state_file = state_file
        self._saved: Snapshot | None = None

    def health(self) -> Mapping[str, Health]:
        """Return the state of the watch of each kind; it passes once the kind is listed or read from the state file."""
        restored = self._publisher.snapshot is not None
        return {
            RESOURCES[kind].name: reflector.health(restored=restored) for kind, reflector in self.reflectors.items()
        }

    def stale(self, after: float) -> bool:
        """Whether objects may be out of date: read from the state file, or without contact for *after* seconds."""
        return not self._publisher.has_synced() or any(since + after <= trio.current_time() for since in self._lost())

    def age(self) -> float:
        """Return for how many seconds a kind has been without contact, or how old what was restored is, if more."""
        now = trio.current_time()
        age = now - min(self._lost(), default=now)
        restored = self._publisher.snapshot is not None and not self._publisher.has_synced()
        return max(age, time.time() - self._state_file.seen) if restored and self._state_file is not None else age

    def read_pod_labels(self, keys: frozenset[str]) -> None:
        """List the Pods again, and read their labels with these *keys* from now on."""
        if Pod in self.reflectors:
            self.reflectors[Pod].read_with(with_pod_labels(keys)[Pod])

    def read_again(self) -> None:
        """Do nothing: the watches report every change."""

    async def run(self) -> None:
        """List and watch for ever; save the state file when cancelled."""
        if self._state_file is None:
            await self._run_reflectors()
            return
        await self._restore(self._state_file)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._save_regularly, self._state_file)
                await self._run_reflectors()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_SAVE_SECONDS):
                await self._save(self._state_file)

    async def read_once(self, wanted: ReadOnce) -> ReadBatch:
        """List each kind once, one after the other. Raises Refused, Unreachable."""
        kinds = tuple(dict.fromkeys((*self.reflectors, *wanted.also)))
        first = await self._listed_once(kinds, wanted)
        asked = labels_asked_for(first.objects().get(Service, ())) | wanted.resources[Pod].labels
        if Pod not in kinds or asked == wanted.resources[Pod].labels:
            return first
        again = await self._listed_once((Pod,), wanted._replace(resources=with_pod_labels(asked)))
        others = [delta for delta in first.batch.deltas if not (isinstance(delta, Replace) and delta.kind is Pod)]
        return first._replace(batch=replace(first.batch, deltas=[*others, *again.batch.deltas]))

    async def _listed_once(self, kinds: Sequence[type[Object]], wanted: ReadOnce) -> ReadBatch:
        work = partial(
            api_client.list_once,
            self._client,
            kinds,
            report=wanted.report,
            silence=self._silence,
            resources=wanted.resources,
        )
        return ReadBatch(await trio.to_thread.run_sync(work, abandon_on_cancel=True))

    async def _restore(self, state_file: StateFile) -> None:
        """Publish the saved snapshot, and then what becomes of the saved objects."""
        saved = await trio.to_thread.run_sync(without_gc, state_file.load, abandon_on_cancel=True)
        if saved is None:
            return
        if saved.snapshot is not None:
            self._publisher.start_from(saved.snapshot)
        objects = await trio.to_thread.run_sync(
            without_gc, partial(state_file.objects_in, saved), abandon_on_cancel=True
        )
        if objects is not None:
            await self._publisher.batches.send(DeltaBatch(replacements(objects), restored=True))
            del objects, saved
            await self._publisher.flush()

    async def _run_reflectors(self) -> None:
        async with trio.open_nursery() as nursery:
            for reflector in self.reflectors.values():
                nursery.start_soon(reflector.run)

    def _lost(self) -> list[float]:
        """Return when contact was lost, for each kind without contact."""
        return [reflector.lost_since for reflector in self.reflectors.values() if reflector.lost_since is not None]

    async def _save_regularly(self, state_file: StateFile) -> None:
        while True:
            await trio.sleep(SAVE_SECONDS)
            await self._save(state_file)

    async def _save(self, state_file: StateFile) -> None:
        """Save all objects, if every kind has been listed, as of the last moment with contact."""
        snapshot = self._publisher.snapshot
        if snapshot is None or not self._publisher.has_synced():
            return
        now = trio.current_time()
        seen = time.time() - (now - min(self._lost(), default=now))
        if self._saved is snapshot and await trio.to_thread.run_sync(state_file.touch, seen, abandon_on_cancel=True):
            return
        objects = await self._publisher.all_objects()
        saved = await trio.to_thread.run_sync(state_file.save, snapshot, objects, seen, abandon_on_cancel=True)
        self._saved = snapshot if saved else None
