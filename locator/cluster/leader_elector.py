"""Stands for election: reads and writes the Lease by which one of several replicas leads."""

from __future__ import annotations

import http
import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

import trio

from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused, Unreachable
from locator.control.lease import Claim, Election, lease_untrusted, leases_path

# A claim is refused so if it does not fit what is there, whatever its version says: look again.
UNFIT = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.UNPROCESSABLE_ENTITY)

log = logging.getLogger("topodns")


def now() -> float:
    """Return seconds on a clock that never goes back, and goes on while the machine sleeps, where it has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LeaderElector:
    """Tries to lead, and to stay leader. *changed* is called whenever it may have begun to lead."""

    def __init__(self, cluster: ApiClient, election: Election, *, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._election = election
        self._changed = changed
        self._complaint = ""
        # One that gets no answer leaves time for another before the deadline.
        self._timeout = (election.deadline - election.retry) / 2
        self.margin = election.duration - election.deadline
        """Seconds that a write may take once ``may_write`` has said yes."""

    def may_write(self) -> bool:
        """Whether this replica leads now. For any thread."""
        return self._election.may_write(now())

    async def run(self) -> None:
        """Stand for election for ever; give the Lease back at the end. All writing must have ended then."""
        led = False
        try:
            while True:
                pause = await self._step()
                if self.may_write() != led:
                    led = not led
                    log.info("leading: PodLocators are written from here" if led else "not leading any more")
                await trio.sleep(pause)
        finally:
            with trio.CancelScope(shield=True):
                await self._give_back()

    async def _step(self) -> float:
        """Read the Lease, or try to get or to keep it; return the seconds until the next step."""
        election, began = self._election, now()
        claim = election.claim(began, moment())
        spread = 0.0 if self.may_write() else random.random() / 5  # those who wait do not all come at once
        pause = election.retry * (1 + spread)
        try:
            lease = lease_untrusted(await trio.to_thread.run_sync(self._ask, claim))
        except Unreachable as error:
            self._complain(str(error))
        except Refused as error:
            if error.status == http.HTTPStatus.NOT_FOUND and claim is None:
                election.absent()
                return 0.0
            if error.status == http.HTTPStatus.CONFLICT:
                election.lost()
                return 0.0
            if error.status in UNFIT:
                election.lost()
            self._complain(str(error))
        else:
            if lease is None:
                self._complain("it cannot be read")
                return pause
            self._complaint = ""
            election.heard(lease, began=began, now=now(), claimed=claim is not None)
            self._changed()  # whoever saw the time run out a moment ago waits for this
            if claim is None and election.claim(now(), "") is not None:  # it is free
                return 0.0
        return pause

    def _ask(self, claim: Claim | None) -> bytes:
        """In a thread. Raises Refused, Unreachable."""
        election = self._election
        name = "" if claim is not None and claim.method == "POST" else election.name
        path = leases_path(election.namespace, name)
        if claim is None:
            return self._cluster.request("GET", path, timeout=self._timeout)
        return self._cluster.request(claim.method, path, body=claim.body, timeout=self._timeout)

    async def _give_back(self) -> None:
        claim = self._election.release(now(), moment())
        if claim is None:
            return
        try:
            await trio.to_thread.run_sync(self._ask, claim)
        except (Refused, Unreachable) as error:
            log.info("the Lease could not be given back, it runs out by itself: %s", error)

    def _complain(self, why: str) -> None:
        """Log what is wrong once, until it is something else."""
        if why != self._complaint:
            self._complaint = why
            log.warning("Lease %s/%s: %s", self._election.namespace, self._election.name, why)


def moment() -> str:
    """Return the time as Leases have it: RFC 3339 with microseconds. For people only: nothing is decided by it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
