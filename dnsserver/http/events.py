# SPDX-License-Identifier: Apache-2.0

"""Server-sent events, such as Decisions as they are made. Browsers read them with EventSource, and so does
``topodns tail``.

A reader that is slower than the server loses lines, and is told how many. Whatever a reader does, telling it takes at
most a tenth of the processor's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dnsserver.inspection.operations import EVENT_STREAM
from dnsserver.inspection.tap.listeners import Stream, Wanted
from dnsserver.inspection.tap.tap import Tap, TapEvent
from locator.printable import json_text

SHARE = 10  # a stream takes at most one part in so many of the time
COMMENT_SECONDS = 15.0  # between comments on a quiet stream, so that proxies keep it, and its end is noticed


class Feed(Protocol):
    """What a stream tells."""

    @property
    def pause(self) -> float:
        """Seconds between two looks at what is new."""

    def open(self, wake: Callable[[], None]) -> None:
        """Call *wake* whenever there is something to take."""

    def take(self) -> Iterator[str]:
        """Yield what is new, as events; each is made when it is taken."""

    def close(self) -> None:
        """Call *wake* no longer."""


class DecisionFeed:
    """Tells an event for each Decision that is *wanted*, as *line_of* tells it, and how many there was no room for."""

    pause = 0.1  # people do not notice, and a busy server is not woken each time

    def __init__(self, tap: Tap, wanted: Wanted, line_of: Callable[[TapEvent], Any]) -> None:
        self._tap, self._wanted, self._line_of = tap, wanted, line_of
        self._stream: Stream | None = None

    def open(self, wake: Callable[[], None]) -> None:
        """See ``Feed``."""
        self._stream = Stream(self._wanted, wake)
        self._tap.listen(self._stream)

    def take(self) -> Iterator[str]:
        """See ``Feed``."""
        assert self._stream is not None
        taken, lost = self._stream.take()
        for event in taken:
            yield f"data: {json_text(self._line_of(event))}\n\n"
        if lost:
            yield f'event: lost\ndata: {{"lost": {lost}}}\n\n'

    def close(self) -> None:
        """See ``Feed``."""
        assert self._stream is not None
        self._tap.leave(self._stream)


class EventStream(Response):
    """A response that never ends, and tells what *feed* has."""

    media_type = EVENT_STREAM

    def __init__(self, feed: Feed, ended: Callable[[], None], headers: Mapping[str, str] | None = None) -> None:
        """*ended* is called when the stream has ended."""
        super().__init__(headers={"Cache-Control": "no-store", **(headers or {})})
        del self.headers["content-length"]
        self._feed, self._ended = feed, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until cancelled: when the reader has gone, or takes nothing."""
        new = _Bell()
        self._feed.open(new.ring)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send(_body(": topodns\n\n"))
            await self._send_events(new, send)
        finally:
            self._feed.close()
            self._ended()

    async def _send_events(self, new: _Bell, send: Send) -> None:
        while True:
            rang = await new.wait(COMMENT_SECONDS)
            events, took = self._feed.take(), 0.0
            while True:
                began = time.perf_counter()
                event = next(events, None)
                took += time.perf_counter() - began
                if event is None:
                    break
                await send(_body(event))
            if not rang:
                await send(_body(":\n\n"))
            await trio.sleep(max(self._feed.pause, (SHARE - 1) * took))


class _Bell:
    """Wakes one task."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, seconds: float) -> bool:
        """Wait until the bell rings, or has rung since the last call; return whether it did."""
        with trio.move_on_after(seconds):
            await self._rung.wait()
        rang = self._rung.is_set()
        self._rung = trio.Event()
        return rang


def _body(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}
