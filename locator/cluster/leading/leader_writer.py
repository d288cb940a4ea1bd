# SPDX-License-Identifier: Apache-2.0

"""Sends the writes of a controller to the API server, while this replica leads.

A reconciler decides what to write, and ``control.lease`` who may write. This module checks the leadership right before
it sends a write, and limits each write to the time that the Lease outlasts that check. So no write of this replica is
on its way while another replica leads.

The one exception is a process that is suspended between the check and the sending. So each write must require the
version of the object that the reconciler saw: then the API server refuses it if that is not the latest.
"""

from __future__ import annotations

import http
import logging
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import trio

from locator.api.list_watch import LONGEST_REQUESTED
from locator.backoff import Backoff
from locator.cluster.api_client import ApiClient
from locator.cluster.leading.leader_elector import LeaderElector, boot_seconds
from locator.cluster.reflector import Reflector
from locator.cluster.responses import Refused, Unreachable
from locator.control.workqueue import RateLimiter, WorkQueue

log = logging.getLogger("topodns")

# kube-scheduler's default rate of binding pods (kube-api-qps), so that PodLocators keep up with new pods. The first
# 150,000 take 50 minutes.
WRITES_PER_SECOND = 50.0
IN_FLIGHT = 8  # writes; at 20 ms each, 400 a second
MANY_FAILURES = 10  # in a row, after which all writes slow down
REFUSED_SECONDS = 1.0  # between writes while all are refused: little load, and a write that can succeed waits no longer
BUSY = (http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.REQUEST_TIMEOUT)
LOG_SECONDS = 60.0  # between two logs of failures with the same verb and cause

# The results of a write, as the metrics count them.
DONE, CONFLICT, REFUSED, UNREACHABLE, FAILED = "done", "conflict", "refused", "unreachable", "failed"
LATE = "late"  # not sent: this replica does not lead any more


class NotLeading(Exception):
    """A request was not sent, because this replica does not lead."""


class Write(Protocol):
    """A write of one object; ``key`` is that of the work queue."""

    @property
    def key(self) -> str:
        """``namespace/name``."""

    @property
    def verb(self) -> str:
        """What it does, for the log and the metrics."""


W = TypeVar("W", bound=Write)
W_co = TypeVar("W_co", bound=Write, covariant=True)


class Desk(Protocol[W_co]):
    """What decides on the writes: a reconciler."""

    queue: WorkQueue

    @property
    def unlisted(self) -> Collection[object]:
        """The kinds that have not been listed yet. Until it is empty, no write is due."""

    def next_write(self, now: float) -> W_co | None:
        """Return the next write; None if no key is due, or if many keys in a row needed none."""


class LeaderWriter(Generic[W]):
    """Sends the writes of *desk* while this replica leads by *elector*.

    *attempt* sends one write by ``request`` and returns its result; it may raise NotLeading, Refused, Unreachable. A
    result other than ``DONE`` means that the write is tried again. *kind* is the kind of the objects, for the log.
    """

    def __init__(
        self,
        client: ApiClient,
        elector: LeaderElector,
        *,
        kind: str,
        desk: Desk[W],
        attempt: Callable[[W], Awaitable[str]],
        writes_per_second: float,
    ) -> None:
        self.writes: Counter[tuple[str, str]] = Counter()
        """The number of writes by verb and result."""
        self._client = client
        self._kind = kind
        self._desk = desk
        self._attempt = attempt
        self._elector = elector
        self._timeout = self._elector.margin / 2  # applies twice: to the connection and to the response
        self._slots = trio.Semaphore(IN_FLIGHT)
        self._threads = trio.CapacityLimiter(IN_FLIGHT)
        self._rate = RateLimiter(writes_per_second)
        self._wake = trio.Event()
        self._backoff = Backoff()
        self._resume_at = -math.inf
        self._logged_at: dict[tuple[str, str], float] = {}  # by verb and cause
        elector.on_observed(self.wake)

    @property
    def leading(self) -> bool:
        """Whether this replica may write now."""
        return self._elector.is_leader()

    @property
    def waiting(self) -> int:
        """The number of objects still to be looked at."""
        return len(self._desk.queue)

    async def run(self) -> None:
        """Write for ever, while this replica leads."""
        async with trio.open_nursery() as writes:
            while True:
                await self._slots.acquire()
                writes.start_soon(self._carry_out, await self._next_due_write())

    async def run_with(self, reflectors: Iterable[Reflector], apply_deltas: Callable[[], Awaitable[None]]) -> None:
        """Write for ever, while *reflectors* watch, and while *apply_deltas* hands to the desk what they bring."""
        async with trio.open_nursery() as nursery:
            for reflector in reflectors:
                nursery.start_soon(reflector.run)
            nursery.start_soon(apply_deltas)
            nursery.start_soon(self.run)

    def wake(self) -> None:
        """Look at the desk again: a key may be due."""
        self._wake.set()

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        """Send a write if this replica leads; *more* is as for ``ApiClient.request``.

        Raises NotLeading, Refused, Unreachable.
        """
        return await trio.to_thread.run_sync(partial(self._request, method, path, **more), limiter=self._threads)

    def _request(self, method: str, path: str, **more: Any) -> bytes:
        """Do as ``request``, in a thread: nothing comes between the check and the sending."""
        if not self._elector.is_leader():
            raise NotLeading
        return self._client.request(method, path, timeout=self._timeout, **more)

    async def get(self, path: str) -> bytes:
        """Read an object. Raises Refused, Unreachable."""
        request = partial(self._client.request, "GET", path, timeout=self._timeout)
        return await trio.to_thread.run_sync(request, limiter=self._threads)

    async def _next_due_write(self) -> W:
        """Wait until a write is due and may be sent; return it."""
        while True:
            self._wake = trio.Event()
            moment = boot_seconds()
            wait = max(self._resume_at - moment, self._rate.wait(moment))
            if not self._elector.is_leader():
                await self._wake.wait()
            elif wait > 0:
                await trio.sleep(wait)
            elif write := self._desk.next_write(moment):
                self._rate.spend(moment)
                return write
            elif self._desk.queue.ready and not self._desk.unlisted:  # many keys that need no write
                await trio.lowlevel.checkpoint()
            else:
                due = self._desk.queue.due()
                with trio.move_on_after(math.inf if due is None else due - moment):
                    await self._wake.wait()

    async def _carry_out(self, write: W) -> None:
        """Try a write and count its result. A failed write is tried again later."""
        try:
            result = await self._attempt(write)
        except NotLeading:
            result = LATE
        except Exception as error:  # boundary: one try of a write
            result = self._fail(write, error)
        finally:
            self._slots.release()
        self.writes[write.verb, result] += 1
        if result == DONE:
            self._backoff = Backoff()
            self._desk.queue.done(write.key)
        else:
            # Refused writes come after all others: one namespace's quota must not delay other namespaces.
            self._desk.queue.retry(write.key, boot_seconds(), random.random(), urgent=result != REFUSED)
        self.wake()

    def _fail(self, write: W, error: Exception) -> str:
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
            log.warning("%s %s: %s", self._kind, write.key, error, exc_info=error if result == FAILED else None)
        return result
