# SPDX-License-Identifier: Apache-2.0

"""What may be on the other side of a probe: servers that answer, and servers that do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import trio

Handler = Callable[[trio.abc.Stream], Awaitable[None]]


@asynccontextmanager
async def listening(handler: Handler, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Serve connections by *handler*, whatever becomes of them; yield the port."""

    async def handle(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):  # the probe had enough
            await handler(stream)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(port, host=host)
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def request_of(stream: trio.abc.Stream) -> bytes:
    """Return a whole request."""
    request = b""
    while not request.endswith(b"\r\n\r\n"):
        request += await stream.receive_some()
    return request


def says(*parts: bytes, then: Handler | None = None) -> Handler:
    """Return a handler that answers a request with *parts*, and closes."""

    async def handler(stream: trio.abc.Stream) -> None:
        await request_of(stream)
        for part in parts:
            await stream.send_all(part)
        if then is not None:
            await then(stream)

    return handler


def status(line: str) -> Handler:
    return says(f"HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n".encode())


async def hangs(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()
