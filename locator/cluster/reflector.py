"""One kind of one live cluster, kept up to date: carries out what a ``ListWatch`` asks, hands on what it makes of it.

A thread reads and decodes, whole batches at a time; the news crosses into trio over a bounded channel, so that a
receiver that is slow slows the thread, and the API server behind it, not the memory.
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
from locator.api.listwatch import ListWatch
from locator.cluster.api_client import (
    ApiClient,
)
from locator.cluster.responses import (
    Refused,
    Stream,
    Unreachable,
)
from locator.model import Health

log = logging.getLogger("topodns")

SILENCE = 150.0  # seconds; bookmarks come each minute, so that two were missed then
FLEETING = 10.0  # seconds: contact that is lost sooner, without any news, was none


class Reflector:
    """Keeps whoever receives *send*'s news up to date about one kind of one cluster, for ever.

    *silence* is how many seconds an answer may be silent for before contact counts as lost.
    """

    def __init__(
        self,
        cluster: ApiClient,
        kind: type[Any],
        resource: Resource,
        send: trio.MemorySendChannel[DeltaBatch],
        *,
        silence: float = SILENCE,
    ) -> None:
        self.listed = False
        """Whether all objects have been sent once."""
        self._listwatch = ListWatch(kind, resource, chance=random.random)
        self.problem = self._listwatch.problem
        """What is wrong, empty if nothing is."""
        self.since = 0.0
        """Since when ``problem`` is what it is, on trio's clock."""
        self.lost_since: float | None = None
        """Since when there has been no contact, on trio's clock; None while there is, and before ``run``."""
        self.restarts: Counter[str] = Counter()
        """How often it was begun again, by ``listwatch.REASONS``."""
        self._cluster = cluster
        self._name, self._path = resource.name, resource.path
        self._absent = False  # whether the log said last that the API server does not know the kind
        self._send = send
        self._silence = silence
        self._warned = ""  # what the log says was wrong last, until there was contact
        self._threads = trio.CapacityLimiter(1)  # its own: reads last, and others need threads, too

    async def run(self) -> None:
        """Follow for ever: what goes wrong is logged, told by ``problem``, and tried again."""
        self.since = self.lost_since = trio.current_time()
        while True:
            await trio.sleep(self._listwatch.pause)
            before, reading = self.lost_since, _Reading()
            try:
                await trio.to_thread.run_sync(self._try, reading, abandon_on_cancel=True, limiter=self._threads)
            except Exception as error:  # the wall around one try; whatever was missed, a new list mends
                log.exception("%s: reading failed by a mistake in this program", self._name)
                self._listwatch.failed(f"a mistake in this program: {error!r}")
            finally:
                reading.end()
            if self._listwatch.reason:
                self.restarts[self._listwatch.reason] += 1
            self._note()
            if self.lost_since is None or before is None or reading.brought_contact:
                self._warned = ""
            else:
                self.lost_since = before
            if self._listwatch.reason:  # else it goes on: a page came, or lists are not streamed
                self._warn()

    def health(self, *, known: bool = False) -> Health:
        """Return whether the kind has been listed, or is *known* from elsewhere, and what is wrong with its watch."""
        if self.listed and self.lost_since is None:
            return Health(True, f"none: the API server has no {self._path}" if self._absent else "ok")
        what, since = ("no contact", self.lost_since) if self.listed else ("not listed yet", self.since)
        age = trio.current_time() - (self.since if since is None else since)
        return Health(self.listed or known, f"{what}, for {age:.0f} s{f': {self.problem}' if self.problem else ''}")

    def _try(self, reading: _Reading) -> None:
        """Ask once, and take in what comes until no more does. Runs in a thread."""
        listwatch, ask = self._listwatch, self._listwatch.next()
        began = time.monotonic()
        try:
            with self._cluster.open(ask.path, ask.query, silence=self._silence) as stream:
                began = reading.begin(stream)
                if not ask.watch:
                    body = stream.read()
                    reading.fruitful = True
                    self._hand_on(listwatch.page(body))
                    if listwatch.over:
                        listwatch.ended(0.0)
                    return
                listwatch.begun()
                trio.from_thread.run_sync(self._note)
                for batch in stream:
                    self._hand_on(listwatch.lines(batch))
                    reading.fruitful = reading.fruitful or not listwatch.problem  # nothing is learnt of a 410
                    if listwatch.over:
                        break
            listwatch.ended(time.monotonic() - began)
        except Refused as error:
            self._hand_on(listwatch.refused(error.status, str(error), error.retry_after))
        except Unreachable as error:
            listwatch.ended(time.monotonic() - began, error.word, str(error))

    def _hand_on(self, news: DeltaBatch) -> None:
        if news:
            trio.from_thread.run(self._send_on, news)

    async def _send_on(self, news: DeltaBatch) -> None:
        await self._send.send(news)
        self._note()

    def _note(self) -> None:
        """Say how it stands."""
        now, listwatch = trio.current_time(), self._listwatch
        if (listwatch.problem, listwatch.listed) != (self.problem, self.listed):
            if self._warned and not listwatch.problem and self.problem:
                log.info("%s: in contact again", self._name)
            self.problem, self.listed, self.since = listwatch.problem, listwatch.listed, now
        if listwatch.absent != self._absent:
            self._absent = listwatch.absent
            if self._absent:
                log.info("%s: the API server has no %s, so there are none until it has", self._name, self._path)
        if not self.problem:
            self.lost_since = None
        elif self.lost_since is None:
            self.lost_since = now

    def _warn(self) -> None:
        if self.problem and self.problem != self._warned:
            log.warning("%s: %s", self._name, self.problem)
            self._warned = self.problem


class _Reading:
    """A read in a thread, which may be ended before it has begun."""

    def __init__(self) -> None:
        self.fruitful = False
        """Whether anything came that is worth knowing."""
        self._lock = threading.Lock()
        self._began: float | None = None
        self._stream: Stream | None = None
        self._ended = False

    @property
    def brought_contact(self) -> bool:
        """Whether there was more than a connection that was cut at once, as by a balancer without servers."""
        return self.fruitful or (self._began is not None and time.monotonic() - self._began >= FLEETING)

    def begin(self, stream: Stream) -> float:
        """The answer is under way; return when it began."""
        with self._lock:
            self._stream, self._began = stream, time.monotonic()
            if self._ended:
                stream.end()
            return self._began

    def end(self) -> None:
        """End the read, now or when it begins. Harmless if it has ended by itself."""
        with self._lock:
            self._ended = True
            if self._stream is not None:
                self._stream.end()
