# SPDX-License-Identifier: Apache-2.0

"""Keeps one kind of object of a live cluster up to date, as client-go's Reflector does.

The reflector sends the requests that ``ListWatch`` asks for and passes on the deltas that it returns. A thread
reads and decodes whole batches of lines. The deltas go to trio through a bounded channel, so that a slow receiver
slows down the thread, and with it the API server, instead of filling the memory.

*Contact*: the objects of the kind are complete, and a watch brings their changes.

All kinds share the API server's history. If one finds that it may be lost, all list again: another kind may have no
object that shows it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from typing import Any

import trio

from locator.api.decoding import Resource
from locator.api.deltas import DeltaBatch
from locator.api.list_watch import SILENT, UNREACHABLE, ListWatch
from locator.backoff import JITTER
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused, Stream, Unreachable
from locator.model import Health

log = logging.getLogger("topodns")

SILENCE = 150.0  # seconds: bookmarks come every minute, so two have been missed
CHECK_SILENCE = 3.0  # seconds: one object comes at once, and a request may hang since before the API server was back
LONGER = 2.0  # factor by which the next check waits if nothing came although the API server is ready: it is overloaded
BRIEF_SECONDS = 10.0  # a watch that ends sooner and brought no event does not count as contact


class Reflector:
    """Sends deltas of one *kind* to *send* for ever: first a list, then its changes.

    *silence* is how many seconds a response may bring no byte before contact counts as lost. *source* is what has
    the objects, for the log, such as ``cluster east``; empty for the own cluster.
    """

    def __init__(
        self,
        client: ApiClient,
        kind: type[Any],
        resource: Resource,
        send: trio.MemorySendChannel[DeltaBatch],
        *,
        silence: float = SILENCE,
        source: str = "",
    ) -> None:
        self.listed = False
        """Whether a complete list has been sent."""
        self._listwatch = ListWatch(kind, resource, chance=random.random)
        self.problem = self._listwatch.problem
        """Why the deltas sent may be out of date, empty if they are not."""
        self.problem_since = 0.0
        """When ``problem`` or ``listed`` last changed, on trio's clock."""
        self.lost_since: float | None = None
        """When contact was lost, on trio's clock. None while there is contact, and before ``run``."""
        self.restarts: Counter[str] = Counter()
        """The number of restarted lists and watches by reason (``list_watch.RESTART_REASONS``)."""
        self._client = client
        self._about = f"{source}: " if source else ""
        self._name = f"{self._about}{resource.name}"
        self._path = resource.path
        self._absent = False  # whether the API server does not know the resource, as last logged
        self._send = send
        self._silence, self._check_silence = silence, CHECK_SILENCE
        self._warned = ""  # the problem logged last, empty after contact
        self._response = _Response()
        self._doubted = False  # whether another kind doubts the history since the last request
        self._moved = False  # whether the client has another API server since then
        self._resource: Resource | None = None  # with which to read from the next request on
        self._listed_at = 0.0  # when the last request for a list began
        self._followed_until = 0.0  # when the last list or watch ended
        self._threads = trio.CapacityLimiter(1)  # its own: a watch lasts for minutes, and others need threads too

    async def run(self) -> None:
        """List and watch for ever. Failures are logged, shown as ``problem``, and tried again."""
        self.problem_since = self.lost_since = trio.current_time()
        self._client.on_history_lost.append(self._doubt)
        self._client.on_moved.append(self._move)
        try:
            while True:
                await self._list_or_watch()
        finally:
            self._client.on_history_lost.remove(self._doubt)
            self._client.on_moved.remove(self._move)

    def read_with(self, resource: Resource) -> None:
        """List again, and decode the objects as *resource* says from now on."""
        self._resource = resource
        self._response.end()

    def _doubt(self, since: float) -> None:
        """List again, unless a list began *since*: another kind found that the API server may have gone back."""
        if not self._listwatch.lists and self._listed_at <= since:
            self._doubted = True
            self._response.end()

    def _move(self) -> None:
        """List again, from the API server that the client has now. Until then, what is known stays."""
        self._moved = True
        self._response.end()

    async def _list_or_watch(self) -> None:
        """Send one request, process the response to its end, and wait until the next one is due."""
        lost_before, response, back = self.lost_since, _Response(), self._client.server_readiness.next
        self._response, self._doubted = response, False
        if self._listwatch.lists:
            self._listed_at = trio.current_time()
        try:
            await trio.to_thread.run_sync(self._try, response, abandon_on_cancel=True, limiter=self._threads)
        except Exception as error:  # boundary: one try; a new list replaces whatever was lost
            log.exception("%s: internal error while reading", self._name)
            self._listwatch.failed(f"internal error: {error!r}")
        finally:
            response.end()
        if response.followed:
            self._followed_until = trio.current_time()
        self._list_again_if_told()
        if not self._doubted and self._listwatch.went_back:
            for doubt in self._client.on_history_lost:
                doubt(self._followed_until)
        if self._listwatch.restart_reason:
            self.restarts[self._listwatch.restart_reason] += 1
        self._update()
        still_lost = lost_before is not None and self.lost_since is not None and not response.was_contact
        if still_lost:
            self.lost_since = lost_before  # if a watch began, it broke off at once: contact was not back
        else:
            # There was contact, so the next problem is new: log it.
            self._warned = self._client.server_readiness.warned = ""
        if self._listwatch.restart_reason:  # otherwise nothing failed: the next page, or pages instead of a stream
            self._warn()
        await self._pause(back)
        self._list_again_if_told()
        if self._listwatch.restart_reason == SILENT:
            self._check_silence *= LONGER
        if not self._client.server_readiness.ready:
            self._check_silence = CHECK_SILENCE

    def _list_again_if_told(self) -> None:
        if self._moved:
            self._moved = False
            self._listwatch.server_moved(self.problem)
        if self._doubted:
            self._listwatch.doubt_history()
        if self._resource is not None:
            self._listwatch.read_with(self._resource)
            self._resource = None

    async def _pause(self, back: trio.Event) -> None:
        """Wait until the next request is due, or until *back*: the API server was away, and is ready again."""
        listwatch = self._listwatch
        if not listwatch.restart_reason or not listwatch.pause:  # nothing failed, or nothing is to be waited for
            await trio.sleep(listwatch.pause)
            return
        with trio.move_on_after(listwatch.pause):
            await self._client.server_readiness.wait(back)
            listwatch.server_is_back()
            await trio.sleep(random.random() * JITTER)

    def health(self, *, restored: bool = False) -> Health:
        """Return the state of the watch; it passes once the kind is listed, or *restored* from a state file."""
        if not self.listed:
            state, since = "not listed yet", self.problem_since
        elif self.lost_since is not None:
            state, since = "no contact", self.lost_since
        else:
            return Health(True, f"none: the API server has no {self._path}" if self._absent else "ok")
        problem = f": {self.problem}" if self.problem else ""
        text = f"{state}, for {trio.current_time() - since:.0f} s{problem}"
        return Health(self.listed or restored, text, f"{state}{problem}")

    def _try(self, response: _Response) -> None:
        """Send one request and process its response to the end. Runs in a thread."""
        listwatch, request = self._listwatch, self._listwatch.next_request()
        began: float | None = None
        try:
            silence = min(self._silence, self._check_silence) if request.check else self._silence
            with self._client.open(request.path, request.query, silence=silence, accept=request.accept) as stream:
                began, response.followed = response.begin(stream), not request.check
                if not request.watch:
                    body, self._check_silence = stream.read(), CHECK_SILENCE
                    response.brought_data = not request.check
                    self._pass_on(listwatch.page(body))
                    if listwatch.over:
                        listwatch.ended(0.0)
                    return
                listwatch.begun()
                trio.from_thread.run_sync(self._update)
                for lines in stream:
                    self._pass_on(listwatch.lines(lines))
                    if not listwatch.problem:  # after a 410 the objects are out of date
                        response.brought_data = True
                    if listwatch.over:
                        break
            listwatch.ended(time.monotonic() - began)
        except Refused as error:
            self._pass_on(listwatch.refused(error.status, str(error), error.retry_after))
        except Unreachable as error:
            lasted = 0.0 if began is None else time.monotonic() - began
            listwatch.ended(lasted, error.reason, str(error))

    def _pass_on(self, batch: DeltaBatch) -> None:
        if batch:
            trio.from_thread.run(self._send_on, batch)

    async def _send_on(self, batch: DeltaBatch) -> None:
        await self._send.send(batch)
        self._update()

    def _update(self) -> None:
        """Copy the state of the ListWatch into the public fields, and log what changed.

        Only after its deltas have been sent: when ``listed`` is true, the receiver has the list.
        """
        now, listwatch = trio.current_time(), self._listwatch
        if (listwatch.problem, listwatch.listed) != (self.problem, self.listed):
            if self._warned and not listwatch.problem and self.problem:
                log.info("%s: in contact again", self._name)
            self.problem, self.listed, self.problem_since = listwatch.problem, listwatch.listed, now
        if listwatch.absent != self._absent:
            self._absent = listwatch.absent
            if self._absent:
                log.info("%s: the API server has no %s yet; treating it as empty", self._name, self._path)
        if not self.problem:
            self.lost_since = None
        elif self.lost_since is None:
            self.lost_since = now

    def _warn(self) -> None:
        """Log a new problem. That nothing responds is no kind's fault: one line is enough for all of them."""
        if not self.problem or self.problem == self._warned:
            return
        self._warned = self.problem
        if self._listwatch.restart_reason != UNREACHABLE:
            log.warning("%s: %s", self._name, self.problem)
        elif self._client.server_readiness.warned != self.problem:
            self._client.server_readiness.warned = self.problem
            log.warning("%s%s", self._about, self.problem)


class _Response:
    """A response that a thread reads, and that another thread may end, even before it begins."""

    def __init__(self) -> None:
        self.brought_data = False
        """Whether it brought a page, or an event of a watch that is not a 410."""
        self.followed = False
        """Whether it brings objects, or their changes."""
        self._lock = threading.Lock()
        self._began: float | None = None
        self._stream: Stream | None = None
        self._ended = False

    @property
    def was_contact(self) -> bool:
        """Whether an API server responded: a load balancer without servers accepts a connection and cuts it at once."""
        return self.brought_data or (self._began is not None and time.monotonic() - self._began >= BRIEF_SECONDS)

    def begin(self, stream: Stream) -> float:
        """Record that the response has begun; return when."""
        with self._lock:
            self._stream, self._began = stream, time.monotonic()
            if self._ended:
                stream.end()
            return self._began

    def end(self) -> None:
        """End the reading now, or as soon as it begins. Has no effect on a response that was read to its end."""
        with self._lock:
            self._ended = True
            if self._stream is not None:
                self._stream.end()
