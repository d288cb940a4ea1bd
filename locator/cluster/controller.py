"""Keeps the PodLocators of a live cluster true: one leader among replicas, the others wait for its Lease.

What is to be written is decided elsewhere, and so is who may write. Here is the order of things: leadership is looked
at right before a write is sent, and no write stays under way for longer than the Lease outlives that look. So while
another leads, nothing is on its way from here, unless this process was stopped just between that look and the sending:
then the API server refuses to create what is there, and to change or remove what is not as it was seen.
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

from locator.api.decoding import decode_untrusted
from locator.api.deltas import DeltaBatch, Put
from locator.api.events import uid_untrusted
from locator.api.listwatch import LONGEST_REQUESTED
from locator.backoff import Backoff
from locator.cluster.api_client import ApiClient
from locator.cluster.leader_elector import LeaderElector, now
from locator.cluster.reflector import Reflector
from locator.cluster.responses import Refused, Unreachable
from locator.control.lease import LeaderElection
from locator.control.workqueue import RateLimiter
from locator.podlocators.objects import CONTROLLER_RESOURCES, ActualLocator, ControllerObject, locator_path, pod_path
from locator.podlocators.reconciler import DELETE, Labels, Reconciler, Write

log = logging.getLogger("topodns")

# As many as the scheduler binds pods by default (its kube-api-qps): PodLocators come as fast as pods do. 150,000 are
# first written within 50 minutes.
WRITES_PER_SECOND = 50.0
IN_FLIGHT = 8  # writes: at 20 ms each, 400 a second
WAITING = 16  # pieces of news that may wait to be taken in; then those who read wait, too
MANY = 10  # failures in a row after which all writes wait a little
REFUSED_SECONDS = 1.0  # between writes while all are refused: no storm, and what would not be refused waits no longer
BUSY = (http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.REQUEST_TIMEOUT)
QUIET_SECONDS = 60.0  # between two logs of failures that are alike
FIELD_MANAGER = "topodns-controller"  # one for all replicas: another costs a kilobyte in each object

# What became of a write, in the words that are counted.
DONE, CONFLICT, REFUSED, UNREACHABLE, FAILED = "done", "conflict", "refused", "unreachable", "failed"
BEHIND = "behind"  # not sent: news of the pod is under way
LATE = "late"  # not sent: not leading any more


class _NotLeading(Exception):
    """Nothing was sent."""


class Controller:
    """Keeps PodLocators as Pods and Nodes say, while *election* says that it leads.

    *labels* are globs of the node labels that are told, all if there are none. ``writes`` counts by verb and result.
    """

    def __init__(
        self,
        cluster: ApiClient,
        election: LeaderElection,
        *,
        labels: Sequence[str] = (),
        writes_per_second: float = WRITES_PER_SECOND,
    ) -> None:
        self.writes: Counter[tuple[str, str]] = Counter()
        self._cluster = cluster
        self._desk = Reconciler(Labels(labels))
        self._send, self._receive = trio.open_memory_channel[DeltaBatch](WAITING)
        self.reflectors: Mapping[type[ControllerObject], Reflector] = {
            kind: Reflector(cluster, kind, resource, self._send) for kind, resource in CONTROLLER_RESOURCES.items()
        }
        self._candidate = LeaderElector(cluster, election, on_observed=self._look_again)
        self._timeout = self._candidate.margin / 2  # once to connect, once for the answer
        self._slots = trio.Semaphore(IN_FLIGHT)
        self._threads = trio.CapacityLimiter(IN_FLIGHT)
        self._pace = RateLimiter(writes_per_second)
        self._wake = trio.Event()
        self._failed = Backoff()
        self._resume = -math.inf
        self._logged: dict[tuple[str, str], float] = {}

    @property
    def leading(self) -> bool:
        """Whether this replica may write now."""
        return self._candidate.is_leader()

    @property
    def objects(self) -> dict[str, int]:
        """How many objects are known, by kind."""
        return self._desk.objects

    @property
    def waiting(self) -> int:
        """How many PodLocators are still to be looked at."""
        return len(self._desk.queue)

    async def run(self) -> None:
        """Follow, stand for election and write for ever; give the Lease back at the end."""
        async with trio.open_nursery() as standing:
            standing.start_soon(self._candidate.run)
            try:
                async with trio.open_nursery() as nursery:
                    for reflector in self.reflectors.values():
                        nursery.start_soon(reflector.run)
                    nursery.start_soon(self._take_in)
                    nursery.start_soon(self._write)
            finally:
                standing.cancel_scope.cancel()

    async def _take_in(self) -> None:
        async for news in self._receive:
            for change in news.changes:
                self._desk.apply(change)
            self._look_again()

    def _look_again(self) -> None:
        self._wake.set()

    async def _write(self) -> None:
        async with trio.open_nursery() as writes:
            while True:
                await self._slots.acquire()
                writes.start_soon(self._carry_out, await self._next())

    async def _next(self) -> Write:
        """Wait until there is something to write, and until it may be written."""
        while True:
            self._wake = trio.Event()
            moment = now()
            wait = max(self._resume - moment, self._pace.wait(moment))
            if not self._candidate.is_leader():
                await self._wake.wait()
            elif wait > 0:
                await trio.sleep(wait)
            elif write := self._desk.next(moment):
                self._pace.spend(moment)
                return write
            elif self._desk.queue.ready and not self._desk.missing:  # many that need no write
                await trio.lowlevel.checkpoint()
            else:
                due = self._desk.queue.due()
                with trio.move_on_after(math.inf if due is None else due - moment):
                    await self._wake.wait()

    async def _carry_out(self, write: Write) -> None:
        """Carry out one write; whatever becomes of it is counted, and what fails is tried again."""
        try:
            result = await self._try(write)
        except Exception as error:  # the wall: one try of a state write
            result = self._fail(write, error)
        finally:
            self._slots.release()
        self.writes[write.verb, result] += 1
        if result == DONE:
            self._failed = Backoff()
            self._desk.queue.done(write.key)
        else:
            # What is refused waits behind all else: one namespace's quota is no other's business.
            self._desk.queue.retry(write.key, now(), random.random(), urgent=result != REFUSED)
        self._look_again()

    async def _try(self, write: Write) -> str:
        """Raises Refused, Unreachable."""
        if write.unseen is not None and not self._desk.asked(write, await self._uid_of_pod(write)):
            return BEHIND
        try:
            raw = await trio.to_thread.run_sync(self._send_write, write, limiter=self._threads)
        except _NotLeading:
            return LATE
        except Refused as error:
            gone = error.status == http.HTTPStatus.NOT_FOUND and bool(write.version)
            if error.status != http.HTTPStatus.CONFLICT and not gone:
                raise
            await self._look_at(write)
            return CONFLICT
        if write.verb == DELETE:
            self._desk.vanished(write)
        else:
            self._take_in_answer(raw)
        return DONE

    def _send_write(self, write: Write) -> bytes:
        """In a thread. Raises _NotLeading, Refused, Unreachable."""
        query = {"fieldManager": FIELD_MANAGER} if write.verb != DELETE else {}
        if not self._candidate.is_leader():
            raise _NotLeading
        return self._cluster.request(
            write.method, write.path, query=query, body=write.body, media=write.media, timeout=self._timeout
        )

    async def _look_at(self, write: Write) -> None:
        """Learn what stands where a write did not fit. Raises Refused, Unreachable."""
        try:
            self._take_in_answer(await self._get(locator_path(write.namespace, write.name)))
        except Refused as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            self._desk.vanished(write)

    async def _uid_of_pod(self, write: Write) -> str:
        try:
            return uid_untrusted(await self._get(pod_path(write.namespace, write.name)))
        except Refused as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            return ""

    async def _get(self, path: str) -> bytes:
        ask = partial(self._cluster.request, "GET", path, timeout=self._timeout)
        return await trio.to_thread.run_sync(ask, limiter=self._threads)

    def _take_in_answer(self, raw: bytes) -> None:
        written = decode_untrusted(CONTROLLER_RESOURCES[ActualLocator], raw).built
        if written is not None:
            self._desk.apply(Put(written))

    def _fail(self, write: Write, error: Exception) -> str:
        """Log a failure, and decide whether others need be tried now; return what it counts as."""
        moment = now()
        status = error.status if isinstance(error, Refused) else 0
        result = REFUSED if status else UNREACHABLE if isinstance(error, Unreachable) else FAILED
        if moment >= self._resume:  # those that were sent before that tell nothing new
            self._failed = self._failed.failed()
            if result == UNREACHABLE or status in BUSY or status >= 500:
                told = min(getattr(error, "retry_after", None) or 0.0, LONGEST_REQUESTED)
                self._resume = moment + max(self._failed.delay(random.random()), told)
            elif self._failed.failures > MANY:
                self._resume = moment + REFUSED_SECONDS
        kind = (write.verb, str(status or result))
        if moment - self._logged.get(kind, -math.inf) >= QUIET_SECONDS:
            self._logged[kind] = moment
            log.warning("PodLocator %s: %s", write.key, error, exc_info=error if result == FAILED else None)
        return result
