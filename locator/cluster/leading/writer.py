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
from functools import partial

import trio

from locator.api.decoding import Resource, decode_untrusted, labels_untrusted, uid_untrusted
from locator.api.list_watch import LONGEST_REQUESTED, SILENT
from locator.backoff import Backoff
from locator.cluster.api_client import ApiClient
from locator.cluster.leading.elector import LeaderElector, boot_seconds
from locator.cluster.responses import Refused, Unreachable
from locator.control.reconciler import Destination
from locator.control.work_queue import RateLimiter
from locator.control.writes import (
    BEHIND,
    CONFLICT,
    DELETE,
    DONE,
    FAILED,
    JSON_PATCH,
    LATE,
    REFUSED,
    UNREACHABLE,
    Existing,
    Write,
    object_path,
)

log = logging.getLogger("topodns")

# kube-scheduler's default rate of binding pods (kube-api-qps), so that PodLocators keep up with new pods. The first
# 150,000 take 50 minutes.
WRITES_PER_SECOND = 50.0
IN_FLIGHT = 8  # writes; at 20 ms each, 400 a second
MANY_FAILURES = 10  # in a row, after which all writes slow down
REFUSED_SECONDS = 1.0  # between writes while all are refused: little load, and a write that can succeed waits no longer
# About the API server. A 500 mostly is about one object: its webhook fails, or server-side apply cannot read its lists.
BUSY_STATUSES = (
    http.HTTPStatus.TOO_MANY_REQUESTS,
    http.HTTPStatus.REQUEST_TIMEOUT,
    http.HTTPStatus.BAD_GATEWAY,
    http.HTTPStatus.SERVICE_UNAVAILABLE,
    http.HTTPStatus.GATEWAY_TIMEOUT,
)
LOG_SECONDS = 60.0  # between two logs of failures with the same verb and cause

# A JSON patch whose test fails is refused like an invalid one, but these patches are always valid.
CONFLICTS = {JSON_PATCH: (http.HTTPStatus.CONFLICT, http.HTTPStatus.UNPROCESSABLE_ENTITY)}
WITHOUT_STATUS = "its CRD declares no status: apply the CRD of this version of topodns"


class NotLeading(Exception):
    """A request was not sent, because this replica does not lead."""


class Writer:
    """Sends the writes that are due at *destination* while this replica leads by *elector*, as *field_manager*."""

    def __init__(
        self,
        client: ApiClient,
        elector: LeaderElector,
        destination: Destination,
        *,
        field_manager: str,
        rate: RateLimiter | None = None,
        source: str = "",
    ) -> None:
        """*rate* is ``WRITES_PER_SECOND`` unless given. *source* names another cluster in the log."""
        self.writes: Counter[tuple[str, str]] = Counter()
        """The number of writes by verb and result."""
        self._client = client
        self._elector = elector
        self._destination = destination
        self._field_manager = field_manager
        self._timeout = elector.margin / 2  # applies twice: to the connection and to the response
        self._slots = trio.Semaphore(IN_FLIGHT)
        self._threads = trio.CapacityLimiter(IN_FLIGHT)
        self._rate = rate or RateLimiter(WRITES_PER_SECOND)
        self._about = f"{source}: " if source else ""
        self._wake = trio.Event()
        self._backoff = Backoff()
        self._resume_at = -math.inf
        self._logged_at: dict[tuple[str, str], float] = {}  # by verb and cause
        elector.on_observed(self.wake)

    @property
    def waiting(self) -> int:
        """The number of objects still to be looked at."""
        return len(self._destination.queue)

    async def run(self) -> None:
        """Write for ever, while this replica leads."""
        async with trio.open_nursery() as writes:
            while True:
                await self._slots.acquire()
                writes.start_soon(self._carry_out, *await self._next_due_write())

    def wake(self) -> None:
        """Look at the queue again: a key may be due."""
        self._wake.set()

    async def _next_due_write(self) -> tuple[Write, float]:
        """Wait until a write is due and may be sent; return it, and the present moment."""
        queue = self._destination.queue
        while True:
            self._wake = trio.Event()
            moment = boot_seconds()
            wait = max(self._resume_at - moment, self._rate.wait(moment))
            if not self._elector.is_leader():
                await self._wake.wait()
            elif wait > 0:
                await trio.sleep(wait)
            elif write := self._destination.next_write(moment):
                self._rate.spend(moment)
                return write, moment
            elif queue.ready and self._destination.has_synced:  # many keys that need no write
                await trio.lowlevel.checkpoint()
            else:
                due = queue.due()
                with trio.move_on_after(math.inf if due is None else max(0.0, due - moment)):
                    await self._wake.wait()

    async def _carry_out(self, write: Write, began: float) -> None:
        """Try a write and count its result. A failed write is tried again later."""
        words = ""
        try:
            result = await self._send(write, began)
        except NotLeading:
            result = LATE
        except Exception as error:  # boundary: one try of a write
            result, words = self._fail(write, error), str(error)
        finally:
            self._slots.release()
        self.writes[write.verb, result] += 1
        if result == DONE:
            self._backoff = Backoff()
            self._destination.queue.done(write.key)
        else:
            self._destination.rules.failed(write, result, words)
            # These come after all others: nobody knows when they can succeed, and a quota, a webhook that hangs, or
            # objects of somebody else in the way of many must not delay what can.
            last = result in (REFUSED, BEHIND, UNREACHABLE)
            self._destination.queue.retry(write.key, boot_seconds(), random.random(), urgent=not last)
        self.wake()

    async def _send(self, write: Write, began: float) -> str:
        """Send a write; return the result. Raises NotLeading, Refused, Unreachable."""
        if write.unless is not None and await self._exists(write.unless):
            return BEHIND
        try:
            raw = await trio.to_thread.run_sync(self._request, write, limiter=self._threads)
        except Refused as error:
            if error.status in CONFLICTS.get(write.media, (http.HTTPStatus.CONFLICT,)):
                return CONFLICT  # the watch brings what stands there
            if error.status != http.HTTPStatus.NOT_FOUND or not write.version:
                raise
            path = object_path(self._resource_of(write), self._destination.rules.written_object(write.key)[1])
            if write.path != path and await self._exists(Existing(path)):
                raise Refused(error.status, error.reason, WITHOUT_STATUS) from None
            self._destination.gone(write)
            return DONE  # nothing is left to write
        found = None if write.verb == DELETE else decode_untrusted(self._resource_of(write), raw).built
        return DONE if self._destination.written(write, found, began=began) else CONFLICT

    def _resource_of(self, write: Write) -> Resource:
        rules = self._destination.rules
        return rules.resources[rules.written_object(write.key)[0]]

    def _request(self, write: Write) -> bytes:
        """Send a write if this replica leads, in a thread: nothing comes between the check and the sending."""
        if not self._elector.is_leader():
            raise NotLeading
        query = {} if write.verb == DELETE else {"fieldManager": self._field_manager}
        if write.force:
            query["force"] = "true"
        return self._client.request(
            write.method, write.path, query=query, body=write.body, media=write.media, timeout=self._timeout
        )

    async def _exists(self, asked: Existing) -> bool:
        """Ask the API server for an object. Raises Refused, Unreachable."""
        request = partial(self._client.request, "GET", asked.path, timeout=self._timeout)
        try:
            raw = await trio.to_thread.run_sync(request, limiter=self._threads)
        except Refused as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            return False
        return asked.is_found(uid_untrusted(raw), labels_untrusted(raw))

    def _fail(self, write: Write, error: Exception) -> str:
        """Log a failure, and slow down if other writes would fail too; return the result to count."""
        moment = boot_seconds()
        status = error.status if isinstance(error, Refused) else 0
        result = REFUSED if status else UNREACHABLE if isinstance(error, Unreachable) else FAILED
        if moment >= self._resume_at:  # writes sent before the pause tell nothing new
            self._backoff = self._backoff.failed()
            hangs = isinstance(error, Unreachable) and error.reason == SILENT  # in a webhook, say
            if (result == UNREACHABLE and not hangs) or status in BUSY_STATUSES:
                requested = min(getattr(error, "retry_after", None) or 0.0, LONGEST_REQUESTED)
                self._resume_at = moment + max(self._backoff.delay(random.random()), requested)
            elif self._backoff.failures > MANY_FAILURES:
                self._resume_at = moment + REFUSED_SECONDS
        cause = (write.verb, str(status or result))
        if moment - self._logged_at.get(cause, -math.inf) >= LOG_SECONDS:
            self._logged_at[cause] = moment
            kind, key = self._resource_of(write).name, self._destination.rules.written_object(write.key)[1]
            cause_of_ours = error if result == FAILED else None
            log.warning("%s%s %s: %s", self._about, kind, key, error, exc_info=cause_of_ours)
        return result
