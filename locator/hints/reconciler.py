# SPDX-License-Identifier: Apache-2.0

"""Compares the hints that EndpointSlices should carry with those that they do, and returns the writes that are due.

A slice passes the webhook only when somebody writes it. If a node, a constraint or a policy changes, nobody does:
these writes are for that. They carry the hints themselves, and require the version that they were computed from. So
they work while the API server does not reach the webhook; an empty write, left for the webhook to fill, would not.

While the API server does not call the webhook, Kubernetes' EndpointSlice controller takes the hints away again. So a
slice rests between two writes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from msgspec import Struct

from locator.api.deltas import Delta, Drop, Replace
from locator.control.work_queue import WorkQueue
from locator.hints.hint_store import HintStore
from locator.hints.objects import HintedSlice, hints_patch, slice_path
from locator.model import Hints

MAX_KEYS = 50  # slices compared before other tasks get a turn: admission reviews wait meanwhile
REST_SECONDS = 5.0  # between two writes of one slice


class HintWrite(Struct, frozen=True):
    """The JSON patch that gives the endpoints of a slice the hints *wanted*. It applies to one version only."""

    namespace: str
    name: str
    wanted: tuple[Hints | None, ...]
    patch: list[dict[str, Any]]
    verb: str = "patch"

    @property
    def key(self) -> str:
        """The key of the slice."""
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """The API path."""
        return slice_path(self.namespace, self.name)

    def holds_in(self, left: HintedSlice) -> bool:
        """Whether a slice has the hints *wanted*."""
        return tuple(endpoint.hints for endpoint in left.endpoints) == self.wanted


class HintReconciler:
    """Keeps a store, and a queue of the slices to compare."""

    def __init__(self, store: HintStore) -> None:
        self.queue = WorkQueue()
        self.store = store
        self._resting: OrderedDict[str, float] = OrderedDict()  # until when, by key, in that order

    @property
    def unlisted(self) -> frozenset[type[Any]]:
        """The kinds that have not been listed yet. Until it is empty, no write is due."""
        return self.store.unlisted

    def apply(self, delta: Delta) -> None:
        """Apply a delta from a list or a watch."""
        listed = set(self.store.slice_keys) if isinstance(delta, Replace) else set()
        for key in self.store.apply(delta):
            self.queue.add(key)
        if isinstance(delta, Drop):
            listed = {delta.key}
        for key in listed - self.store.slice_keys:  # a follower, which takes no key out, must forget them, too
            self.queue.discard(key)

    def next_write(self, now: float) -> HintWrite | None:
        """Return the next write. None if no key is due, or if the next MAX_KEYS keys need no write.

        The caller must call ``queue.done`` or ``queue.retry`` for the write's key.
        """
        if self.unlisted:
            return None
        while self._resting and next(iter(self._resting.values())) <= now:
            self._resting.popitem(last=False)
        for _ in range(MAX_KEYS):
            key = self.queue.get(now)
            if key is None:
                return None
            write = self.write_for(key)
            if write is None:
                self.queue.done(key)
            elif key in self._resting:
                self.queue.defer(key, self._resting[key])
            else:
                return write
        return None

    def written(self, write: HintWrite, now: float) -> None:
        """Record that a write has succeeded at *now*: the slice rests."""
        self._resting[write.key] = now + REST_SECONDS
        self._resting.move_to_end(write.key)

    def write_for(self, key: str) -> HintWrite | None:
        """Return the write that a slice needs now. None if its hints are right, or are to stay as they are."""
        actual = self.store.slice(key)
        wanted = None if actual is None else self.store.wanted(actual)
        if actual is None or wanted is None:
            return None
        patch = hints_patch(actual, wanted)
        if not patch:
            return None
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": actual.version}
        return HintWrite(actual.namespace, actual.name, wanted, [test, *patch])
