# SPDX-License-Identifier: Apache-2.0

"""Posts a Kubernetes Event for what an object asks for and is invalid, in the background and at a limited rate."""

from __future__ import annotations

import http
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import trio

from locator.api.decoding import uid_untrusted
from locator.api.events import SERVICES, event_of, events_path, object_path
from locator.backoff import Backoff
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused, Unreachable
from locator.control.work_queue import RateLimiter
from locator.model import Finding
from locator.times import time_text
from locator.topology.service_checks import is_told_by_event

log = logging.getLogger("topodns")

# Six tries take 20 to 40 seconds. The log, a metric and ``check`` report the finding even if no Event can be posted.
TRIES = 6
# Two requests for each Event. Thousands of Events take minutes, and do not load the API server.
EVENTS_PER_SECOND = 5.0
BURST = 25.0
TIMEOUT_SECONDS = 10.0
MAX_WAITING = 1000  # findings to be posted; the log, a metric and ``check`` report those beyond
PERMANENT = (http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.FORBIDDEN, http.HTTPStatus.UNPROCESSABLE_ENTITY)


class EventPoster:
    """Posts an Event about each object that asks for what is invalid; *instance* is its ``reportingInstance``.

    *tells* says which findings it posts, and *paths* where their objects are, as ``events.SERVICES`` does.
    """

    def __init__(
        self,
        client: ApiClient,
        instance: str,
        *,
        tells: Callable[[Finding], bool] = is_told_by_event,
        paths: Mapping[str, str] = SERVICES,
    ) -> None:
        self._client, self._instance, self._tells, self._paths = client, instance, tells, paths
        self._send, self._receive = trio.open_memory_channel[Finding](MAX_WAITING)

    def offer(self, findings: Sequence[Finding]) -> None:
        """Queue those of *findings* of which an Event tells. Drops them if the queue is full."""
        with suppress(trio.WouldBlock):
            for finding in filter(self._tells, findings):
                self._send.send_nowait(finding)

    async def run(self) -> None:
        """Post Events for ever."""
        await post(self._client, self._receive, self._instance, self._paths)


async def post(
    client: ApiClient,
    findings: trio.MemoryReceiveChannel[Finding],
    instance: str,
    paths: Mapping[str, str] = SERVICES,
) -> None:
    """Post an Event for each finding until the channel is closed; *instance* is its ``reportingInstance``.

    Tries each Event up to TRIES times, then logs the failure. Once an Event has failed that often, the next ones get
    one try each, until a try succeeds.
    """
    rate, backoff = RateLimiter(EVENTS_PER_SECOND, burst=BURST), Backoff()
    async for finding in findings:
        await trio.sleep(rate.wait(trio.current_time()))
        rate.spend(trio.current_time())
        while True:
            try:
                await trio.to_thread.run_sync(_post_event, client, finding, instance, paths)
                backoff = Backoff()
            except (Refused, Unreachable) as error:
                backoff = backoff.failed()
                if backoff.failures < TRIES and not _is_permanent(error):
                    await trio.sleep(max(backoff.delay(random.random()), getattr(error, "retry_after", None) or 0.0))
                    continue
                log.warning("%s %s/%s: no Event posted: %s", finding.kind, finding.namespace, finding.name, error)
            except Exception:  # boundary: one try of a write
                log.exception(
                    "%s %s/%s: no Event posted: internal error", finding.kind, finding.namespace, finding.name
                )
            break


def _is_permanent(error: Refused | Unreachable) -> bool:
    return isinstance(error, Refused) and error.status in PERMANENT


def _post_event(client: ApiClient, finding: Finding, instance: str, paths: Mapping[str, str]) -> None:
    """Post one Event. Does nothing if the object or its namespace is gone, or if the Event exists already.

    Runs in a thread. Raises Refused, Unreachable.
    """
    try:
        uid = uid_untrusted(client.request("GET", object_path(finding, paths), timeout=TIMEOUT_SECONDS))
        now = time_text(time.time(), "seconds")
        event = event_of(finding, uid, instance=instance, timestamp=now, paths=paths)
        client.request("POST", events_path(finding), body=event, timeout=TIMEOUT_SECONDS)
    except Refused as refused:
        if refused.status not in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT):
            raise
