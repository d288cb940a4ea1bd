"""The controller that keeps PodLocators up to date in a live cluster: one leader among replicas writes.

``podlocators.reconciler`` decides what to write, and ``control.lease`` who may write. This module checks the
leadership right before it sends a write, and limits each write to the time that the Lease outlasts that check. So no
write of this replica is on its way while another replica leads.

The one exception is a process that is suspended between the check and the sending. Then the API server refuses the
write if it creates a PodLocator that exists, or changes or deletes a version that is not the latest.
"""

from __future__ import annotations

import http
import logging
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import trio

from locator.api.decoding import decode_untrusted, uid_untrusted
from locator.api.deltas import DeltaBatch, Put
from locator.api.listwatch import LONGEST_REQUESTED
from locator.backoff import Backoff
from locator.cluster.api_client import ApiClient
from locator.cluster.leader_elector import LeaderElector, boot_seconds
from locator.cluster.reflector import Reflector
from locator.cluster.responses import Refused, Unreachable
from locator.control.lease import LeaderElection
from locator.control.workqueue import RateLimiter
from locator.podlocators.label_filter import LabelFilter
from locator.podlocators.objects import CONTROLLER_RESOURCES, ActualLocator, ControllerObject, locator_path, pod_path
from locator.podlocators.reconciler import DELETE, Reconciler, Write

log = logging.getLogger("topodns")

# kube-scheduler's default rate of binding pods (kube-api-qps), so that PodLocators keep up with new pods. The first
# 150,000 take 50 minutes.
WRITES_PER_SECOND = 50.0
IN_FLIGHT = 8  # writes; at 20 ms each, 400 a second
WAITING_BATCHES = 16  # between the reflectors and the reconciler; a reflector waits while the channel is full
MANY_FAILURES = 10  # in a row, after which all writes slow down
REFUSED_SECONDS = 1.0  # between writes while all are refused: little load, and a write that can succeed waits no longer
BUSY = (http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.REQUEST_TIMEOUT)
LOG_SECONDS = 60.0  # between two logs of failures with the same verb and cause
FIELD_MANAGER = "topodns-controller"  # shared by all replicas: each further manager adds a kilobyte to every object

# The results of a write, as the metric counts them.
DONE, CONFLICT, REFUSED, UNREACHABLE, FAILED = "done", "conflict", "refused", "unreachable", "failed"
BEHIND = "behind"  # not sent: the owner's watch event is on the way
LATE = "late"  # not sent: this replica does not lead any more


class _NotLeading(Exception):
    """The write was not sent."""


class Controller:
    """Writes PodLocators for Pods and Nodes while this replica leads by *election*.

    *labels* are globs that select node labels; without globs a PodLocator has all labels of its node.
    """

    def __init__(
        self,
        client: ApiClient,
        election: LeaderElection,
        *,
        labels: Sequence[str] = (),
        writes_per_second: float = WRITES_PER_SECOND,
    ) -> None:
        self.writes: Counter[tuple[str, str]] = Counter()
        """The number of writes by verb and result."""
        self._client = client
        self._reconciler = Reconciler(LabelFilter(labels))
        self._send, self._receive = trio.open_memory_channel[DeltaBatch](WAITING_BATCHES)
        self.reflectors: Mapping[type[ControllerObject], Reflector] = {
            kind: Reflector(client, kind, resource, self._send) for kind, resource in CONTROLLER_RESOURCES.items()
        }
        self._elector = LeaderElector(client, election, on_observed=self._wake_writer)
        self._timeout = self._elector.margin / 2  # applies twice: to the connection and to the response
        self._slots = trio.Semaphore(IN_FLIGHT)
        self._threads = trio.CapacityLimiter(IN_FLIGHT)
        self._rate = RateLimiter(writes_per_second)
        self._wake = trio.Event()
        self._backoff = Backoff()
        self._resume_at = -math.inf
        self._logged_at: dict[tuple[str, str], float] = {}  # by verb and cause

    @property
    def leading(self) -> bool:
        """Whether this replica may write now."""
        return self._elector.is_leader()

    @property
    def object_counts(self) -> dict[str, int]:
        """The number of objects of each kind."""
        return self._reconciler.object_counts

    @property
    def waiting(self) -> int:
        """The number of PodLocators still to be compared with their pods."""
        return len(self._reconciler.queue)

    async def run(self) -> None:
        """Watch, take part in the election and write for ever; release the Lease when cancelled."""
        async with trio.open_nursery() as election_nursery:  # it outlives the writes
            election_nursery.start_soon(self._elector.run)
            try:
                async with trio.open_nursery() as nursery:
                    for reflector in self.reflectors.values():
                        nursery.start_soon(reflector.run)
                    nursery.start_soon(self._apply_deltas)
                    nursery.start_soon(self._send_due_writes)
            finally:
                election_nursery.cancel_scope.cancel()

    async def _apply_deltas(self) -> None:
        async for batch in self._receive:  # without its findings: the server and ``check`` report those
            for delta in batch.deltas:
                self._reconciler.apply(delta)
            self._wake_writer()

    def _wake_writer(self) -> None:
        self._wake.set()

    async def _send_due_writes(self) -> None:
        async with trio.open_nursery() as writes:
            while True:
                await self._slots.acquire()
                writes.start_soon(self._carry_out, await self._next_due_write())

    async def _next_due_write(self) -> Write:
        """Wait until a write is due and may be sent; return it."""
        while True:
            self._wake = trio.Event()
            moment = boot_seconds()
            wait = max(self._resume_at - moment, self._rate.wait(moment))
            if not self._elector.is_leader():
                await self._wake.wait()
            elif wait > 0:
                await trio.sleep(wait)
            elif write := self._reconciler.next_write(moment):
                self._rate.spend(moment)
                return write
            elif self._reconciler.queue.ready and not self._reconciler.unlisted:  # many keys that need no write
                await trio.lowlevel.checkpoint()
            else:
                due = self._reconciler.queue.due()
                with trio.move_on_after(math.inf if due is None else due - moment):
                    await self._wake.wait()

    async def _carry_out(self, write: Write) -> None:
        """Try a write and count its result. A failed write is tried again later."""
        try:
            result = await self._try(write)
        except Exception as error:  # boundary: one try of a write
            result = self._fail(write, error)
        finally:
            self._slots.release()
        self.writes[write.verb, result] += 1
        if result == DONE:
            self._backoff = Backoff()
            self._reconciler.queue.done(write.key)
        else:
            # Refused writes come after all others: one namespace's quota must not delay other namespaces.
            self._reconciler.queue.retry(write.key, boot_seconds(), random.random(), urgent=result != REFUSED)
        self._wake_writer()

    async def _try(self, write: Write) -> str:
        """Send a write and apply the response; return the result. Raises Refused, Unreachable."""
        if write.unseen_owner is not None and not self._reconciler.confirm_owner(write, await self._uid_of_pod(write)):
            return BEHIND
        try:
            raw = await trio.to_thread.run_sync(self._send_write, write, limiter=self._threads)
        except _NotLeading:
            return LATE
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

    def _send_write(self, write: Write) -> bytes:
        """Send a write if this replica leads. Runs in a thread. Raises _NotLeading, Refused, Unreachable."""
        query = {"fieldManager": FIELD_MANAGER} if write.verb != DELETE else {}
        if not self._elector.is_leader():
            raise _NotLeading
        return self._client.request(
            write.method, write.path, query=query, body=write.body, media=write.media, timeout=self._timeout
        )

    async def _read_locator(self, write: Write) -> None:
        """Read the PodLocator whose version was not the expected one. Raises Refused, Unreachable."""
        try:
            self._apply_response(await self._get(locator_path(write.namespace, write.name)))
        except Refused as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            self._reconciler.locator_gone(write)

    async def _uid_of_pod(self, write: Write) -> str:
        """Return the uid of the pod by the API server, empty if there is none. Raises Refused, Unreachable."""
        try:
            return uid_untrusted(await self._get(pod_path(write.namespace, write.name)))
        except Refused as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            return ""

    async def _get(self, path: str) -> bytes:
        request = partial(self._client.request, "GET", path, timeout=self._timeout)
        return await trio.to_thread.run_sync(request, limiter=self._threads)

    def _apply_response(self, raw: bytes) -> None:
        locator = decode_untrusted(CONTROLLER_RESOURCES[ActualLocator], raw).built
        if locator is not None:
            self._reconciler.apply(Put(locator))

    def _fail(self, write: Write, error: Exception) -> str:
        """Log a failure, and slow down if other writes would fail too; return the result to count."""
        moment = boot_seconds()
        status = error.status if isinstance(error, Refused) else 0
        result = REFUSED if status else UNREACHABLE if isinstance(error, Unreachable) else FAILED
        if moment >= self._resume_at:  # writes sent before the pause tell nothing new
            self._backoff = self._backoff.failed()
            if result == UNREACHABLE or status in BUSY or status >= 500:
                requested = min(getattr(error, "retry_after", None) or 0.0, LONGEST_REQUESTED)
                self._resume_at = moment + max(self._backoff.delay(random.random()), requested)
            elif self._backoff.failures > MANY_FAILURES:
                self._resume_at = moment + REFUSED_SECONDS
        cause = (write.verb, str(status or result))
        if moment - self._logged_at.get(cause, -math.inf) >= LOG_SECONDS:
            self._logged_at[cause] = moment
            log.warning("PodLocator %s: %s", write.key, error, exc_info=error if result == FAILED else None)
        return result
