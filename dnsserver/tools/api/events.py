# SPDX-License-Identifier: Apache-2.0

"""Server-sent events, such as decisions as they are made. Browsers read them with EventSource, and so does
``topodns tail``.

A reader that is slower than the server loses events, and gets their number. Whatever a reader does, making its events
takes at most a tenth of the processor's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dnsserver.tools.api.operations import EVENT_STREAM
from dnsserver.tools.tap.listeners import DecisionStream, Wanted
from dnsserver.tools.tap.tap import Tap, TapEvent
from locator.printable import json_text

SHARE = 10  # a stream takes at most one part in so many of the time
COMMENT_SECONDS = 15.0  # between comments on a quiet stream, so that proxies keep it, and its end is noticed
DECISION_SECONDS = 0.1  # between two looks at decisions: people do not notice, and a busy server is not woken each time

Take = Callable[[], Iterator[str]]
"""Yields what is new since the last call, as events; each is made when it is taken."""
Feed = Callable[[Callable[[], None]], AbstractContextManager[Take]]
"""Gives ``Take`` to a reader, and until that has gone, calls the given function when there is something to take."""


@contextmanager
def decisions(tap: Tap, wanted: Wanted, line_of: Callable[[TapEvent], Any], wake: Callable[[], None]) -> Iterator[Take]:
    """Give an event for each decision that is *wanted*, made by *line_of*, and how many there was no room for."""
    stream = DecisionStream(wanted, wake)

    def take() -> Iterator[str]:
        taken, lost = stream.take()
        for event in taken:
            yield f"data: {json_text(line_of(event))}\n\n"
        if lost:
            yield f'event: lost\ndata: {{"lost": {lost}}}\n\n'

    tap.listen(stream)
    try:
        yield take
    finally:
        tap.leave(stream)


class EventStream(Response):
    """A response that never ends. It sends what *feed* has, with *pause* seconds between two looks."""

    media_type = EVENT_STREAM

    def __init__(self, feed: Feed, *, pause: float) -> None:
        super().__init__(headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._feed, self._pause = feed, pause
        self._new = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until cancelled: when the reader has gone, or takes nothing."""
        with self._feed(lambda: self._new.set()) as take:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send(_body(": topodns\n\n"))
            while True:
                with trio.move_on_after(COMMENT_SECONDS):
                    await self._new.wait()
                quiet = not self._new.is_set()
                self._new = trio.Event()
                took = await _send_events(take(), send)
                if quiet:
                    await send(_body(":\n\n"))
                await trio.sleep(max(self._pause, (SHARE - 1) * took))


async def _send_events(events: Iterator[str], send: Send) -> float:
    """Send *events*, and return how many seconds it took to make them."""
    took = 0.0
    while True:
        began = time.perf_counter()
        event = next(events, None)
        took += time.perf_counter() - began
        if event is None:
            return took
        await send(_body(event))


def _body(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}
