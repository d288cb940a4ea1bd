# SPDX-License-Identifier: Apache-2.0

"""Leader election among replicas: reads and writes the Lease as ``control.lease`` decides."""

from __future__ import annotations

import http
import logging
import random
import time
from collections.abc import Awaitable, Callable

import trio

from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused, Unreachable
from locator.control.lease import LeaderElection, LeaseWrite, lease_untrusted, leases_path
from locator.times import time_text

# Statuses of a write that does not fit the Lease as it now is: read the Lease again.
UNFIT = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.UNPROCESSABLE_ENTITY)

log = logging.getLogger("topodns")


def boot_seconds() -> float:
    """Return seconds on a monotonic clock, which also counts while the machine sleeps where the system has such."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LeaderElector:
    """Acquires the Lease and renews it. *writes* is what the leader writes, for the log."""

    def __init__(self, client: ApiClient, election: LeaderElection, *, writes: str) -> None:
        self._client = client
        self._election = election
        self._writes = writes
        self.lease = f"{election.namespace}/{election.name}"
        self._subscribers: list[Callable[[], None]] = []
        self._warned = ""
        # A request that gets no response leaves time for another before the deadline.
        self._timeout = (election.deadline - election.retry) / 2
        self.margin = election.duration - election.deadline
        """Seconds that a write may take after ``is_leader`` returned True."""

    def is_leader(self) -> bool:
        """Whether this replica leads now. Any thread may call it."""
        return self._election.is_leader(boot_seconds())

    @property
    def led_last(self) -> bool:
        """Whether this replica led, and no other one has been seen to lead since: the API server may be away."""
        return self._election.held_last

    def on_observed(self, subscriber: Callable[[], None]) -> None:
        """Call *subscriber* after each read or write of the Lease that succeeds: this replica may lead from then on."""
        self._subscribers.append(subscriber)

    def stop_telling(self, subscriber: Callable[[], None]) -> None:
        """Do not call *subscriber* any more."""
        self._subscribers.remove(subscriber)

    async def lead(self, *works: Callable[[], Awaitable[None]]) -> None:
        """Run *works*, which write while this replica leads; release the Lease when all of them have ended."""
        election = trio.CancelScope(shield=True)  # a write that is under way needs the Lease to its end

        async def take_part() -> None:
            with election:
                await self.run()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_part)
            try:
                async with trio.open_nursery() as working:
                    for work in works:
                        working.start_soon(work)
            finally:
                election.cancel()

    async def run(self) -> None:
        """Take part in the election for ever; release the Lease when cancelled. All writes must have ended by then."""
        led = False
        try:
            while True:
                pause = await self._step()
                if self.is_leader() != led:
                    led = not led
                    log.info(
                        "became leader: this replica writes %s"
                        if led
                        else "stopped leading: this replica writes no %s",
                        self._writes,
                    )
                await trio.sleep(pause)
        finally:
            with trio.CancelScope(shield=True):
                await self._release()

    async def _step(self) -> float:
        """Read the Lease, or try to acquire or renew it; return the seconds until the next step."""
        election, began = self._election, boot_seconds()
        write = election.acquire_or_renew(began, timestamp_now())
        spread = 0.0 if self.is_leader() else random.random() / 5  # so that waiting replicas do not ask in step
        pause = election.retry * (1 + spread)
        try:
            lease = lease_untrusted(await trio.to_thread.run_sync(self._request, write))
        except Unreachable as error:
            self._warn(str(error))
        except Refused as error:
            if error.status == http.HTTPStatus.NOT_FOUND and write is None:
                election.not_found()
                return 0.0
            if error.status == http.HTTPStatus.CONFLICT:
                election.write_refused()
                return 0.0
            if error.status in UNFIT:
                election.write_refused()
            self._warn(str(error))
        else:
            if lease is None:
                self._warn("the response is not a Lease")
                return pause
            self._warned = ""
            election.observed(lease, began=began, now=boot_seconds(), written=write is not None)
            for subscriber in self._subscribers:  # a writer may have found the deadline over a moment ago
                subscriber()
            if write is None and election.acquire_or_renew(boot_seconds(), "") is not None:  # the Lease is free
                return 0.0
        return pause

    def _request(self, write: LeaseWrite | None) -> bytes:
        """Send *write*, or read the Lease if it is None. Runs in a thread. Raises Refused, Unreachable."""
        election = self._election
        name = "" if write is not None and write.method == "POST" else election.name
        path = leases_path(election.namespace, name)
        if write is None:
            return self._client.request("GET", path, timeout=self._timeout)
        return self._client.request(write.method, path, body=write.body, timeout=self._timeout)

    async def _release(self) -> None:
        write = self._election.release(boot_seconds(), timestamp_now())
        if write is None:
            return
        try:
            await trio.to_thread.run_sync(self._request, write)
        except (Refused, Unreachable) as error:
            log.info("the Lease could not be released, so it has to expire: %s", error)

    def _warn(self, problem: str) -> None:
        """Log a problem once, until it changes or is over."""
        if problem != self._warned:
            self._warned = problem
            log.warning("Lease %s: %s", self.lease, problem)


def timestamp_now() -> str:
    """Return the present time as Leases state it: RFC 3339 with microseconds. For people; no rule depends on it."""
    return time_text(time.time(), "microseconds")
