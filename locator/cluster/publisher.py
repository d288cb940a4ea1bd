"""Takes in what a source tells of a cluster, and tells subscribers whatever is visible of it.

One task takes all of it in, in the order in which it came, so that the store needs no lock. Publishing waits for a
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
from locator.model import ERROR, EndpointSlice, Finding, Health, Object
from locator.state.cluster_view import ClusterView
from locator.state.snapshot import Snapshot
from locator.state.store import Store

log = logging.getLogger("topodns")

QUIET_SECONDS = 0.005  # without visible news, before what is visible is published: the pause between related events
LATEST_SECONDS = 0.1  # from the first visible news to its publication, whatever else comes
WAITING = 16  # batches that may wait to be taken in; then those who read wait, too
MAX_LOGGED = 50  # findings at a time; ``check`` lists them all
AT_ONCE = 64  # objects, or endpoints, that are taken in between two queries; more go to a thread

# Called with each publication: a snapshot, and all that is wrong in the cluster.
Subscriber = Callable[[Snapshot, Sequence[Finding]], None]

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
    """Whoever reads a cluster, live or from files, and sends a publisher what it learns."""

    def health(self) -> Mapping[str, Health]:
        """Return what must be well before queries can be answered, by name."""

    def stale(self, after: float) -> bool:
        """Whether what is known may be old: contact with the cluster has been lost for *after* seconds."""

    def read_again(self) -> None:
        """Look at everything again, if there is anything that would not be noticed by itself."""

    async def run(self) -> None:
        """Follow for ever."""


class Publisher:
    """Feeds *store* with what is sent to ``deltas``, and tells the subscribers whenever something visible changed.

    The first time is when every kind of the store has been listed, or when a source asks for it by ``flush``.
    *programmed* is told the seconds from an EndpointSlice's change, as Kubernetes noted it, to its publication.
    """

    def __init__(self, store: Store, *, programmed: Callable[[float], None]) -> None:
        self.snapshot: Snapshot | None = None
        """What was published last, None before the first time."""
        self._send, self._receive = trio.open_memory_channel[DeltaBatch | trio.Event](WAITING)
        self.deltas: trio.MemorySendChannel[DeltaBatch] = self._send
        """Where sources send what they learn."""
        self._view = ClusterView(store)
        self._subscribers: list[Subscriber] = []
        self._programmed = programmed
        self._frozen = True  # whether all that is known is long-lived: collections need not walk it
        self._lock = trio.Lock()  # a thread changes the view, or asks for all that is known of it

    @property
    def missing(self) -> frozenset[type[Object]]:
        """The kinds that have not been listed yet."""
        return frozenset(self._view.missing)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call *subscriber* with each publication from now on, after those who subscribed before."""
        self._subscribers.append(subscriber)

    async def flush(self) -> None:
        """Publish all that was sent until now, however little is known; return when it is published."""
        published = trio.Event()
        await self._send.send(published)
        await published.wait()

    async def known(self) -> list[Object]:
        """Return every object that is known."""
        async with self._lock:
            return self._view.known()

    async def run(self) -> None:
        """Take in and publish for ever."""
        quiet = latest = math.inf
        while True:
            told = None  # a list that was taken in is let go before the next comes
            with trio.move_on_at(min(quiet, latest, self._due())):
                told = await self._receive.receive()
            if told is None or isinstance(told, trio.Event):
                quiet = latest = math.inf
                await self._publish()
                if told is not None:
                    told.set()
            elif await self._take(told) and (self.snapshot is not None or not self._view.missing):
                now = trio.current_time()
                quiet, latest = now + QUIET_SECONDS, min(latest, now + LATEST_SECONDS)

    def _due(self) -> float:
        """When a publication is due by itself, on trio's clock: a forwarder's grace is over."""
        due = self._view.due
        if due is None or self.snapshot is None:
            return math.inf
        return trio.current_time() + max(0.0, due - time.time())

    async def _take(self, batch: DeltaBatch) -> bool:
        if sum(map(_weight, batch.changes)) <= AT_ONCE:
            return self._view.take(batch)
        self._frozen = False
        async with self._lock:
            return await trio.to_thread.run_sync(uncollected, partial(self._view.take, batch))

    async def _publish(self) -> None:
        async with self._lock:
            made = await trio.to_thread.run_sync(uncollected, partial(self._view.publish, time.time()))
        self.snapshot = made.snapshot
        for subscriber in self._subscribers:
            subscriber(made.snapshot, made.findings)
        if not self._frozen:
            gc.freeze()  # a view lives long: collections that walk it would be felt
            self._frozen = True
        now = time.time()
        for text in made.triggered:
            try:
                self._programmed(max(0.0, now - datetime.fromisoformat(text).timestamp()))
            except ValueError:
                log.debug("an EndpointSlice's last change is noted as %r, which is no time", text)


def on_fresh(tell: Callable[[Sequence[Finding]], None]) -> Subscriber:
    """Return a subscriber that calls *tell* with those findings that the publication before did not have."""
    last: Sequence[Finding] = ()

    def subscriber(_: Snapshot, findings: Sequence[Finding]) -> None:
        nonlocal last
        if findings != last:
            known, last = set(last), findings
            if fresh := [finding for finding in findings if finding not in known]:
                tell(fresh)

    return subscriber


def log_findings(findings: Sequence[Finding]) -> None:
    """Log what is wrong, as far as somebody would read it."""
    for finding in findings[:MAX_LOGGED]:
        log.log(logging.ERROR if finding.severity == ERROR else logging.WARNING, "%s", finding)
    if len(findings) > MAX_LOGGED:
        log.warning("%d more findings; 'topodns check' lists all", len(findings) - MAX_LOGGED)


def _weight(change: Delta) -> int:
    """Return how much work a change is, in objects; a slice counts by its endpoints."""
    if isinstance(change, Replace):
        return len(change.objects)
    if isinstance(change, Put) and isinstance(change.object, EndpointSlice):
        return 1 + len(change.object.endpoints)
    return 1
