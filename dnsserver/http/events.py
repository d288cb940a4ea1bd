"""Server-sent events: Decisions as they are made. Browsers read them with EventSource, and so does ``topodns tail``.

A reader that is slower than the server loses lines, and is told how many. Whatever a reader does, telling it takes at
most a tenth of the processor's time.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dnsserver.inspection.operations import EVENT_STREAM
from dnsserver.inspection.tap.listeners import Stream, Wanted
from dnsserver.inspection.tap.tap import Tap, Told

PAUSE_SECONDS = 0.1  # between two looks at what is new: people do not notice, and a busy server is not woken each time
SHARE = 10  # a stream takes at most one part in so many of the time
COMMENT_SECONDS = 15.0  # between comments on a quiet stream, so that proxies keep it, and its end is noticed
STALLED_SECONDS = 30.0  # after which a reader that reads nothing is given up: others may want its place


class DecisionStream(Response):
    """A response that never ends: an event for each Decision that is *wanted*, as *line_of* tells it."""

    media_type = EVENT_STREAM

    def __init__(self, tap: Tap, wanted: Wanted, line_of: Callable[[Told], Any], ended: Callable[[], None]) -> None:
        """*ended* is called when the stream has ended."""
        super().__init__(headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._tap, self._wanted, self._line_of, self._ended = tap, wanted, line_of, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the reader has gone."""
        new = _Bell()
        stream = Stream(self._wanted, new.ring)
        self._tap.listen(stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
                with trio.move_on_after(STALLED_SECONDS) as patience:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send(_body(": topodns\n\n"))
                    await self._send_events(stream, new, send, patience)
                nursery.cancel_scope.cancel()
        finally:
            self._tap.leave(stream)
            self._ended()

    async def _send_events(self, stream: Stream, new: _Bell, send: Send, patience: trio.CancelScope) -> None:
        while True:
            patience.deadline = trio.current_time() + COMMENT_SECONDS + STALLED_SECONDS
            rang = await new.wait(COMMENT_SECONDS)
            told, lost = stream.take()
            took = 0.0
            for one in told:
                began = time.perf_counter()
                event = f"data: {msgspec.json.encode(self._line_of(one)).decode()}\n\n"
                took += time.perf_counter() - began
                patience.deadline = trio.current_time() + STALLED_SECONDS
                await send(_body(event))
            if lost:
                await send(_body(f'event: lost\ndata: {{"lost": {lost}}}\n\n'))
            if not rang:
                await send(_body(":\n\n"))
            patience.deadline = trio.current_time() + STALLED_SECONDS + SHARE * took
            await trio.sleep(max(PAUSE_SECONDS, (SHARE - 1) * took))


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


async def _until_gone(receive: Callable[[], Awaitable[Any]], scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _body(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}
