"""Posts Events about invalid constraints, one after another, in nobody's way."""

from __future__ import annotations

import http
import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import trio

from locator.api.events import event_of, events_path, service_path, uid_untrusted
from locator.backoff import Backoff
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused, Unreachable
from locator.control.workqueue import RateLimiter
from locator.model import Finding
from locator.topology.constraints import is_invalid_constraint

log = logging.getLogger("topodns")

# Six tries take 20 to 40 seconds. An Event that cannot be posted then is in the log, in `check` and in a metric still.
TRIES = 6
# Two requests each. What is wrong in thousands of Services at once is said within minutes, and loads nobody.
EVENTS_PER_SECOND = 5.0
BURST = 25.0
TIMEOUT_SECONDS = 10.0
MAX_WAITING = 1000  # findings that wait to be posted; what is beyond is in the log, a metric and ``check``
HOPELESS = (http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.FORBIDDEN, http.HTTPStatus.UNPROCESSABLE_ENTITY)


class EventPoster:
    """Posts an Event on each Service whose constraint is found to be invalid; *instance* is who says it."""

    def __init__(self, cluster: ApiClient, instance: str) -> None:
        self._cluster, self._instance = cluster, instance
        self._send, self._receive = trio.open_memory_channel[Finding](MAX_WAITING)

    def offer(self, findings: Sequence[Finding]) -> None:
        """Post what is to be posted of new findings, in time."""
        with suppress(trio.WouldBlock):
            for finding in filter(is_invalid_constraint, findings):
                self._send.send_nowait(finding)

    async def run(self) -> None:
        """Post for ever."""
        await post(self._cluster, self._receive, self._instance)


async def post(cluster: ApiClient, findings: trio.MemoryReceiveChannel[Finding], instance: str) -> None:
    """Post an Event for each finding about a Service, until the channel is closed; *instance* is who says it.

    Tries again some times where it fails, and logs once what it gives up. While nothing can be posted, later findings
    get one try each.
    """
    pace, backoff = RateLimiter(EVENTS_PER_SECOND, burst=BURST), Backoff()
    async for finding in findings:
        await trio.sleep(pace.wait(trio.current_time()))
        pace.spend(trio.current_time())
        while True:
            try:
                await trio.to_thread.run_sync(_post_one, cluster, finding, instance)
                backoff = Backoff()
            except (Refused, Unreachable) as error:
                backoff = backoff.failed()
                if backoff.failures < TRIES and not _hopeless(error):
                    await trio.sleep(max(backoff.delay(random.random()), getattr(error, "retry_after", None) or 0.0))
                    continue
                log.warning("no Event on Service %s/%s: %s", finding.namespace, finding.name, error)
            except Exception:  # the wall: one try of a state write
                log.exception("no Event on Service %s/%s", finding.namespace, finding.name)
            break


def _hopeless(error: Refused | Unreachable) -> bool:
    return isinstance(error, Refused) and error.status in HOPELESS


def _post_one(cluster: ApiClient, finding: Finding, instance: str) -> None:
    """Do nothing if the Service is gone, or if it has the Event already. Raises Refused, Unreachable."""
    try:
        uid = uid_untrusted(cluster.request("GET", service_path(finding), timeout=TIMEOUT_SECONDS))
        wall = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = event_of(finding, uid, instance=instance, wall=wall)
        cluster.request("POST", events_path(finding), body=event, timeout=TIMEOUT_SECONDS)
    except Refused as refused:
        if refused.status not in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT):
            raise
