# SPDX-License-Identifier: Apache-2.0

"""Applies the deltas of a source to a store, and publishes snapshots of it to subscribers.

One task applies all deltas in order, so the store itself needs no lock. The publisher has one for reading all
objects and for plans that somebody tries, which must not happen while a thread works on the store.

The publisher waits for a short pause before it publishes, since one change often comes with others: when a pod becomes
ready, its EndpointSlice changes too.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import trio
from msgspec import Struct
from msgspec.structs import replace

from locator.api.decoding import RESOURCES, Resources
from locator.api.deltas import Delta, DeltaBatch, FileLine, Put, Replace, object_reference
from locator.cluster import memory
from locator.model import ERROR, INFO, WARNING, EndpointSlice, Finding, Health, Object, object_key
from locator.state.balancing import Balances, Plans
from locator.state.snapshot import CompiledService, Snapshot
from locator.state.store import Store
from locator.times import parse_time

if TYPE_CHECKING:
    from locator.api.dump import ReadCounts  # a live cluster needs no module that reads dumps

log = logging.getLogger("topodns")

QUIET_SECONDS = 0.005  # without a visible change before publishing; related changes come faster than that
LATEST_SECONDS = 0.1  # from the first visible change to its publication, even if changes keep coming
WAITING_BATCHES = 16  # between the source and the store; the source waits while the channel is full
LABELS_SECONDS = 30.0  # from one list of all Pods, for the sake of their labels, to the next
MAX_LOGGED = 50  # findings of a severity in LOG_SECONDS; ``check`` lists all
LOG_SECONDS = 60.0
YOUNG = 1  # the generations of objects that have not survived two collections
FREED_AT_ONCE = 2048  # objects, which takes a fifth of a millisecond
AT_ONCE = 64  # objects or endpoints that are applied between two queries; a thread applies larger batches

# Called at each publication with the snapshot and all findings in the cluster.
Subscriber = Callable[[Snapshot, Sequence[Finding]], None]

T = TypeVar("T")


def without_gc(work: Callable[[], T]) -> T:
    """Return ``work()``, run without garbage collection: a collection in any thread would stop the answering too."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return work()
    finally:
        if was_enabled:
            gc.enable()


def _run_and_freeze(work: Callable[[], T]) -> T:
    """Return ``work()``; what it makes lives long, and collections never visit it: they would delay answers."""

    def work_and_freeze() -> T:
        result = work()
        gc.freeze()
        return result

    return without_gc(work_and_freeze)


class ReadOnce(NamedTuple):
    """What to read once: the kinds *also* beside those that a server reads, each as *resources* says.

    ``report`` is called, by any thread, with what is being read now.
    """

    also: Sequence[type[Object]] = ()
    resources: Resources = RESOURCES
    report: Callable[[str], None] = lambda text: None


class ReadBatch(NamedTuple):
    """All of a cluster as it was read once, and for files how much was read."""

    batch: DeltaBatch
    counts: ReadCounts | None = None

    def objects(self) -> dict[type[Object], Sequence[Any]]:
        """Return the objects by kind."""
        return {delta.kind: delta.objects for delta in self.batch.deltas if isinstance(delta, Replace)}


class Source(Protocol):
    """Reads a cluster, from its API server or from files, and sends deltas to a publisher."""

    def health(self) -> Mapping[str, Health]:
        """Return the checks that must pass before topodns is ready, by name."""

    def stale(self, after: float) -> bool:
        """Whether objects may be out of date: contact with the cluster has been lost for *after* seconds."""

    def age(self) -> float:
        """Return for how many seconds the objects may have been out of date, 0 while there is contact."""

    def read_again(self) -> None:
        """Read everything again, unless the source notices all changes itself."""

    def read_pod_labels(self, keys: frozenset[str]) -> None:
        """Read the labels of Pods with these *keys* from now on, and all Pods once more; not if it has read them."""

    async def run(self) -> None:
        """Read the cluster and follow its changes for ever."""

    async def read_once(self, wanted: ReadOnce) -> ReadBatch:
        """Read the cluster once, instead of ``run``. Raises at the first failure: BadDump, Refused or Unreachable."""


class Publication(Struct, frozen=True):
    """A snapshot, and all findings of the cluster: those of the source, then those of the store.

    Findings about objects in namespaces that are not served are left out.
    ``triggered`` has the times (RFC 3339) at which Kubernetes noted the changes that the snapshot is the first to show.
    """

    snapshot: Snapshot
    findings: Sequence[Finding]
    triggered: Sequence[str] = ()


class Publisher:
    """Applies the deltas sent to ``batches`` to *store*, and publishes a snapshot whenever something visible changed.

    Publishes first when every kind of the store has been listed, or when a source calls ``start_from`` or ``flush``.
    Calls *on_programmed* with the seconds from a change of an EndpointSlice, by Kubernetes' timestamp, to its
    publication. Who reads a cluster only once calls ``publish_once`` instead of ``run``.
    """

    def __init__(self, store: Store, *, on_programmed: Callable[[float], None] = lambda seconds: None) -> None:
        self.store = store
        """Only one thread at a time may use it."""
        self.snapshot: Snapshot | None = None
        """The snapshot published last, None before the first."""
        self._send, self._receive = trio.open_memory_channel[DeltaBatch | trio.Event](WAITING_BATCHES)
        self.batches: trio.MemorySendChannel[DeltaBatch] = self._send
        """Where sources send their batches."""
        self.kinds = store.kinds
        """The kinds of objects that sources send."""
        self._unsynced = set(store.kinds)  # that the source has not listed yet
        self._unknown = set(store.kinds)  # those of them that were not restored from a state file either
        self._found: dict[str, Sequence[Finding]] = {}  # by the source
        self._files: Mapping[str, FileLine] = {}  # by object
        self._triggered: list[str] = []
        self._subscribers: list[Subscriber] = []
        self._on_programmed = on_programmed
        self.read_pod_labels: Callable[[frozenset[str]], None] = lambda keys: None
        """What has the source read labels of Pods (``Source.read_pod_labels``)."""
        self._labels: frozenset[str] = frozenset()  # that the source was asked to read
        self._labels_read = -math.inf  # when it was asked
        self._labels_due = math.inf  # when to ask it again
        self._frozen = True  # whether gc.freeze has exempted all objects from collection
        self._lock = trio.Lock()  # held while a thread works on the store, or while all objects are read

    def has_synced(self) -> bool:
        """Whether the source has listed every kind."""
        return not self._unsynced

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call *subscriber* at each publication from now on, after all earlier subscribers."""
        self._subscribers.append(subscriber)

    def close(self) -> None:
        """Forget everything, once ``run`` has ended for good. Who still asks meets no object.

        The store is in circles of references, and exempt from collection: without this, it would stay for ever.
        """
        vars(self.store).clear()
        self.store, self.snapshot = Store(), None
        self._subscribers.clear()
        self.read_pod_labels = lambda keys: None

    def apply(self, batch: DeltaBatch) -> bool:
        """Apply a batch; return whether publishing is worth it.

        It is if an answer or a finding may differ, or if this batch listed the last kind that was not listed.
        """
        visible = False
        for delta in batch.deltas:
            visible |= self.store.apply(delta)
        if visible and self.has_synced():  # objects of the first list changed long ago
            self._triggered += batch.triggered
        self._found |= batch.findings
        for name in [name for name, findings in batch.findings.items() if not findings]:
            del self._found[name]
        if batch.files is not None:
            self._files = batch.files
        had_synced = self.has_synced()
        replaced = {delta.kind for delta in batch.deltas if isinstance(delta, Replace)}
        self._unknown -= replaced
        if not batch.restored:
            self._unsynced -= replaced
        return visible or bool(batch.findings) or (self.has_synced() and not had_synced)

    def publication(self, now: float, clock: Callable[[], float] | None = None) -> Publication:
        """Return what there is to publish at *now* (seconds since 1970). *clock* is as in ``Store.publish``."""
        snapshot, triggered = self.store.publish(now, clock), self._triggered
        self._triggered = []
        findings = [*chain.from_iterable(self._found.values()), *self._with_files(snapshot.findings)]
        if not self.store.exposes_all:
            findings = [found for found in findings if not found.namespace or self.store.exposes(found.namespace)]
        return Publication(snapshot, findings, triggered)

    def publish_once(self, batch: DeltaBatch) -> None:
        """Apply all that a source has read, and publish it."""
        self.apply(batch)
        self._show(self.publication(time.time()))

    def advice(self) -> list[Finding]:
        """Return what is worth knowing about the last snapshot although nothing is wrong in it."""
        return list(self._with_files(self.store.advice()))

    def with_file(self, finding: Finding) -> Finding:
        """Return a finding with the file that contains its object, and the line, if there is one."""
        origin = self._files.get(object_reference(finding.kind, object_key(finding.namespace, finding.name)))
        return finding if origin is None else replace(finding, file=origin.file, line=origin.line)

    def _with_files(self, findings: Iterable[Finding]) -> Iterable[Finding]:
        return map(self.with_file, findings) if self._files else findings

    def start_from(self, saved: Snapshot) -> None:
        """Publish a saved snapshot, before any batch is sent, and nothing else until all kinds are known.

        Its findings follow with its objects.
        """
        self._show(Publication(self.store.start_from(saved), ()))
        gc.freeze()

    async def flush(self) -> None:
        """Publish what has been sent so far, even if some kinds have not been listed; return once it is published."""
        published = trio.Event()
        await self._send.send(published)
        await published.wait()

    async def all_objects(self) -> list[Object]:
        """Return all objects, by kind."""
        async with self._lock:
            return self.store.all_objects()

    async def objects(self, kind: type[Object]) -> Mapping[str, Any]:
        """Return the objects of a kind by their keys; of many Pods, ``listed`` and ``look_up`` are faster."""
        async with self._lock:
            return dict(self.store.objects(kind))

    async def listed(self, kind: type[Object]) -> list[Any]:
        """Return the objects of a kind: of 150,000 in a millisecond."""
        async with self._lock:
            return list(self.store.objects(kind).values())

    async def look_up(self, kind: type[Object], key: str) -> tuple[Any, Sequence[str]]:
        """Return the object of a kind with this key; if there is none, None and all keys."""
        async with self._lock:
            known = self.store.objects(kind)
            return (known[key], ()) if key in known else (None, list(known))

    async def some(self, kind: type[Object], keys: Iterable[str]) -> dict[str, Any]:
        """Return those objects of a kind that have these keys."""
        async with self._lock:
            known = self.store.objects(kind)
            return {key: known[key] for key in keys if key in known}

    async def plans_of(self, compiled: CompiledService) -> tuple[Plans, Balances]:
        """Return what ``Store.plans_of`` does. A thread counts the clients; labels of theirs may have to be read first.

        Until the labels are known, the Service has no plans. Something is published when they are.
        """
        async with self._lock:
            plans = await trio.to_thread.run_sync(without_gc, partial(self.store.plans_of, compiled))
        self._want_labels()
        return plans

    async def run(self) -> None:
        """Apply deltas and publish for ever."""
        quiet = latest = math.inf
        while True:
            received = None  # frees the batch before the next comes: it may hold a whole list
            with trio.move_on_at(min(quiet, latest, self._due())):
                received = await self._receive.receive()
            if received is None or isinstance(received, trio.Event):
                quiet = latest = math.inf
                await self._publish()
                if received is not None:
                    received.set()
            elif await self._take(received) and not self._unknown:
                now = trio.current_time()
                quiet, latest = now + QUIET_SECONDS, min(latest, now + LATEST_SECONDS)

    def _due(self) -> float:
        """Return when to publish although nothing changed, on trio's clock: something of the store is due."""
        due = self.store.due
        if due is None or self.snapshot is None:
            return self._labels_due
        return min(self._labels_due, trio.current_time() + max(0.0, due - time.time()))

    def _want_labels(self) -> None:
        """Have more labels of Pods read if Services ask for them; not often, since any Service may ask for some."""
        wanted, now = self.store.wanted_labels, trio.current_time()
        self._labels_due = math.inf
        if wanted <= self._labels:
            return
        if now < self._labels_read + LABELS_SECONDS:
            self._labels_due = self._labels_read + LABELS_SECONDS
            return
        self._labels, self._labels_read = wanted, now
        self.read_pod_labels(wanted)

    async def _take(self, batch: DeltaBatch) -> bool:
        """Apply a batch, in a thread if it is large or one has the store; return whether publishing is worth it."""
        if sum(map(_weight, batch.deltas)) <= AT_ONCE and not self._lock.locked():
            return self.apply(batch)
        # Only after a list: whatever else exists at that moment is frozen, too, and never freed if it becomes garbage.
        if listed := any(isinstance(delta, Replace) for delta in batch.deltas):
            self._frozen = False
        async with self._lock:
            work = partial(self._apply_all, batch)
            return await trio.to_thread.run_sync(_run_and_freeze if listed else without_gc, work)

    def _apply_all(self, batch: DeltaBatch) -> bool:
        """Apply a large batch, and free its lists a part at a time: 150,000 pods at once would stop all threads."""
        visible = self.apply(batch)
        for delta in batch.deltas:
            while isinstance(delta, Replace) and delta.objects:
                del delta.objects[-FREED_AT_ONCE:]
        return visible

    async def _publish(self) -> None:
        work = partial(self.publication, time.time(), time.perf_counter)
        async with self._lock:
            # A small publication makes few objects. Without collections meanwhile, the next one would visit all those
            # that answers made.
            publication = await trio.to_thread.run_sync(*((work,) if self._frozen else (_run_and_freeze, work)))
        self._show(publication)
        self._want_labels()
        if not self._frozen:
            gc.freeze()  # what the subscribers have made lives as long
            await trio.to_thread.run_sync(memory.give_back)
            self._frozen = True
        # Often and little: Python itself waits until new objects outnumber the old ones that were freed meanwhile, and
        # then visits all new ones.
        gc.collect(YOUNG)
        now = time.time()
        for text in publication.triggered:
            try:
                self._on_programmed(max(0.0, now - parse_time(text)))
            except ValueError:
                log.debug("EndpointSlice: time of the last change: %r found, expected a time in RFC 3339", text)

    def _show(self, publication: Publication) -> None:
        self.snapshot = publication.snapshot
        for subscriber in self._subscribers:
            subscriber(publication.snapshot, publication.findings)


def on_new_findings(report: Callable[[Sequence[Finding]], None]) -> Subscriber:
    """Return a subscriber that calls *report* with the findings that the previous publication did not have."""
    tell = only_new(report)
    return lambda _, findings: tell(findings)


def only_new(report: Callable[[Sequence[Finding]], None]) -> Callable[[Sequence[Finding]], None]:
    """Return a function of all findings that calls *report* with those that were not there at its previous call."""
    last: Sequence[Finding] = ()

    def tell(findings: Sequence[Finding]) -> None:
        nonlocal last
        if findings != last:
            known, last = set(last), findings
            if new := [finding for finding in findings if finding not in known]:
                report(new)

    return tell


_LEVELS = {ERROR: logging.ERROR, WARNING: logging.WARNING, INFO: logging.INFO}


class FindingLog:
    """Logs findings, at most MAX_LOGGED of each severity in LOG_SECONDS: whoever may change one object causes many."""

    def __init__(self) -> None:
        self._began = -math.inf  # the seconds that are counted now
        self._logged = Counter[str]()  # by severity
        self._left_out = 0
        self._said = False  # that some are left out

    def log(self, findings: Sequence[Finding]) -> None:
        """Log *findings*, or how many of them are left out."""
        now = trio.current_time()
        if now - self._began >= LOG_SECONDS:
            self._began, self._said = now, False
            self._logged.clear()
        shown = False
        for finding in findings:
            if self._logged[finding.severity] < MAX_LOGGED:
                self._logged[finding.severity] += 1
                log.log(_LEVELS[finding.severity], "%s", finding, extra={"fields": finding.fields()})
                shown = True
            else:
                self._left_out += 1
        if self._left_out and (shown or not self._said):
            log.warning("%d more findings; 'topodns check' lists all", self._left_out)
            self._left_out, self._said = 0, True


def _weight(delta: Delta) -> int:
    """Return how much work a delta is, in objects; an EndpointSlice counts once more for each endpoint."""
    objects = delta.objects if isinstance(delta, Replace) else [delta.object] if isinstance(delta, Put) else []
    if len(objects) > AT_ONCE:
        return len(objects)  # enough to decide
    return max(1, sum(1 + (len(each.endpoints) if isinstance(each, EndpointSlice) else 0) for each in objects))
