"""Takes news of a cluster into a store, and publishes what is visible of it.

News is taken in by one task, in the order in which it came, so that the store needs no lock. Publishing waits for a
quiet moment, since one event of a cluster often brings others: a pod that becomes ready changes its slice, too.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol, TypeVar

import trio

from locator.api.deltas import Delta, DeltaBatch, Put, Replace
from locator.model import EndpointSlice, Finding, Health, Object, by_kind
from locator.state.snapshot import Snapshot
from locator.state.store import Store

log = logging.getLogger("topodns")

QUIET_SECONDS = 0.005  # without visible news, before what is visible is published: the pause between related events
LATEST_SECONDS = 0.1  # from the first visible news to its publication, whatever else comes
AT_ONCE = 64  # objects, or endpoints, that are taken in between two queries; more go to a thread

# Called with a snapshot whenever something visible changed, and with all that is wrong in the cluster.
Published = Callable[[Snapshot, Sequence[Finding]], None]

T = TypeVar("T")


def uncollected(work: Callable[[], T]) -> T:
    """Do some work, in a thread, with collection off: a collection would stop the answering, too."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return work()
    finally:
        if collecting:
            gc.enable()


class Source(Protocol):
    """A cluster that is followed: its snapshots go to whoever it was made with."""

    def health(self) -> Mapping[str, Health]:
        """Return what must be well before queries can be answered, by name."""

    def stale(self, after: float) -> bool:
        """Whether what is known may be old: contact with the cluster has been lost for *after* seconds."""

    def read_again(self) -> None:
        """Look at everything again, if there is anything that would not be noticed by itself."""

    async def run(self) -> None:
        """Follow for ever."""


class Publisher:
    """Feeds *store* what *receive* brings, and calls *published* whenever something visible changed.

    The first time is when every kind of the store has been listed, or ``begin_with`` has given a view to start from.
    *programmed* is told the seconds from an EndpointSlice's change, as Kubernetes noted it, to its publication.
    """

    def __init__(
        self,
        store: Store,
        receive: trio.MemoryReceiveChannel[DeltaBatch],
        *,
        published: Published,
        programmed: Callable[[float], None],
    ) -> None:
        self.missing: set[type[Object]] = set(store.kinds)
        """The kinds that have not been listed yet."""
        self.snapshot: Snapshot | None = None
        """What was published last, None before the first time."""
        self._store = store
        self._receive = receive
        self._published = published
        self._programmed = programmed
        self._findings: dict[tuple[type[Object], str], Sequence[Finding]] = {}
        self._triggers: list[str] = []
        self._settled = True  # whether what is known is long-lived: collections need not walk it
        self._lock = trio.Lock()  # a thread changes the store, or asks for all that is known of it

    async def begin_with(self, objects: Sequence[Object]) -> None:
        """Publish *objects* as all that is known, until the cluster has been listed."""
        await self._apply([Replace(kind, each) for kind, each in by_kind(objects).items()])
        await self._publish()

    async def known(self) -> list[Object]:
        """Return every object that is known."""
        async with self._lock:
            return self._store.known()

    async def run(self) -> None:
        """Take in news for ever."""
        quiet = latest = math.inf
        while True:
            news = None
            with trio.move_on_at(min(quiet, latest, self._due())):
                news = await self._receive.receive()
            if news is None:
                quiet = latest = math.inf
                await self._publish()
                continue
            visible = await self._apply(news.changes)
            if visible and not self.missing:
                self._triggers += news.triggered
            if (self._note(news) or visible) and (self.snapshot is not None or not self.missing):
                now = trio.current_time()
                quiet, latest = now + QUIET_SECONDS, min(latest, now + LATEST_SECONDS)

    def _due(self) -> float:
        """When a publication is due by itself, on trio's clock: a forwarder's grace is over."""
        due = self._store.due
        if due is None or self.snapshot is None:
            return math.inf
        return trio.current_time() + max(0.0, due - time.time())

    def _note(self, news: DeltaBatch) -> bool:
        """Note what news says beside the changes; return whether that is worth telling, or completes the view."""
        for key, findings in news.findings.items():
            if findings:
                self._findings[news.kind, key] = findings
            else:
                self._findings.pop((news.kind, key), None)
        incomplete = bool(self.missing)
        if any(isinstance(each, Replace) for each in news.changes):
            self.missing.discard(news.kind)
        return bool(news.findings) or (incomplete and not self.missing)

    async def _apply(self, changes: Sequence[Delta]) -> bool:
        if sum(map(_weight, changes)) <= AT_ONCE:
            return self._take(changes)
        self._settled = False
        async with self._lock:
            return await trio.to_thread.run_sync(uncollected, partial(self._take, changes))

    def _take(self, changes: Sequence[Delta]) -> bool:
        visible = False
        for each in changes:
            visible |= self._store.apply(each)
        return visible

    async def _publish(self) -> None:
        async with self._lock:
            snapshot = await trio.to_thread.run_sync(uncollected, partial(self._store.publish, time.time()))
        found = [finding for findings in self._findings.values() for finding in findings]
        self.snapshot = snapshot
        self._published(snapshot, [*found, *snapshot.findings])
        if not self._settled:
            gc.freeze()  # a view lives long: collections that walk it would be felt
            self._settled = True
        now = time.time()
        for text in self._triggers:
            try:
                self._programmed(max(0.0, now - datetime.fromisoformat(text).timestamp()))
            except ValueError:
                log.debug("an EndpointSlice's last change is noted as %r, which is no time", text)
        self._triggers.clear()


def _weight(change: Delta) -> int:
    """Return how much work a change is, in objects; a slice counts by its endpoints."""
    if isinstance(change, Replace):
        return len(change.objects)
    if isinstance(change, Put) and isinstance(change.object, EndpointSlice):
        return 1 + len(change.object.endpoints)
    return 1
