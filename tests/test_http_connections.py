"""HTTP connections, of metrics and health as of the webhook: whatever a client sends harms its own connection only."""

from __future__ import annotations

import base64
import json
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import pytest
import trio
from hypercorn.config import Config
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dnsserver.http import connections
from dnsserver.http.application import application
from locator.model import Health
from tests.waiting import PATIENCE

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
ONCE = GET + b"Connection: close\r\n\r\n"
WEBSOCKET = GET + b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\nConnection: upgrade"
# HEADERS of stream 1 (RFC 9113, section 6.2): literal fields (RFC 7541, section 6.2.2), of which the path is no ASCII.
FIELDS = b"\x82\x87\x04\x02/\xff\x01\x01x"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" + b"\0\0%c\1\5\0\0\0\1" % len(FIELDS) + FIELDS
CUT = base64.b64encode(b"\0\3\0\0\0d\0\4")

Connect = Callable[[], Awaitable[trio.SocketStream]]
End = Callable[[], Awaitable[None]]


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello" * 1000)


def serving(
    test: Callable[[Connect, End], Awaitable[None]], *, grace: float = 1.0, app: Starlette | None = None
) -> Counter[str]:
    """Run *test* with a function that connects to a server, and one that makes the server end and waits for it.

    Return the errors that were counted. Without an *app*, it says hello.
    """
    failures: Counter[str] = Counter()

    async def main() -> None:
        sock, ending, ended, config = socket.socket(), trio.Event(), trio.Event(), Config()
        config.graceful_timeout = grace
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        served = app or Starlette(routes=[Route("/", hello)])

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            await connections.serve(sock, served, config, failures, until=ending.wait, task_status=task_status)
            ended.set()

        async def end() -> None:
            ending.set()
            await ended.wait()

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                await nursery.start(serve)
                await test(lambda: trio.open_tcp_stream("127.0.0.1", port), end)
                await end()

    trio.run(main)
    return failures


async def received(stream: trio.SocketStream) -> bytes:
    """Return what comes until the server closes the connection."""
    try:
        return b"".join([part async for part in stream])
    except trio.BrokenResourceError:
        return b""


async def answers(connect: Connect) -> bool:
    async with await connect() as stream:
        await stream.send_all(ONCE)
        return (await received(stream)).endswith(b"hello")


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(WEBSOCKET + b", \xff\r\n\r\n", id="websocket-connection"),
        pytest.param(WEBSOCKET + b"\r\nSec-WebSocket-Protocol: \xff\r\n\r\n", id="websocket-protocol"),
        pytest.param(WEBSOCKET + b"\r\nSec-WebSocket-Extensions: \xff\r\n\r\n", id="websocket-extensions"),
        pytest.param(HTTP2, id="http2-path"),
        pytest.param(GET + b"Upgrade: h2c\r\nHTTP2-Settings: " + CUT[:-1] + b"\r\n\r\n", id="http2-settings"),
    ],
)
def test_odd_bytes_end_their_connection(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Not the process, and not the other connections. It is counted, and logged, but not each time."""

    async def test(connect: Connect, end: End) -> None:
        async with await connect() as other:
            for _ in range(2):
                async with await connect() as stream:
                    await stream.send_all(sent)
                    await received(stream)
            await other.send_all(ONCE)
            assert (await received(other)).endswith(b"hello")

    assert serving(test) == {"http": 2}
    assert [record.name for record in caplog.records] == ["topodns"]
    assert caplog.messages[0].startswith("an HTTP connection was closed: ")


def test_an_error_in_topodns_is_told_as_a_problem(caplog: pytest.LogCaptureFixture) -> None:
    """As RFC 9457 has it, and without a word of the error itself, which is counted and logged."""

    def broken() -> Mapping[str, Health]:
        raise ValueError("a secret")

    async def test(connect: Connect, end: End) -> None:
        async with await connect() as stream:
            await stream.send_all(ONCE.replace(b"GET /", b"GET /readyz"))
            head, _, body = (await received(stream)).partition(b"\r\n\r\n")
        assert b"application/problem+json" in head
        assert json.loads(body)["status"] == 500 and b"secret" not in body

    failures: Counter[str] = Counter()
    serving(test, app=application(CollectorRegistry(), failures, ready=broken))
    assert failures == {"http": 1} and "a secret" in caplog.text


def test_a_client_that_reads_nothing_does_not_delay_the_end() -> None:
    """Its connection is closed when the grace period is over."""

    async def test(connect: Connect, end: End) -> None:
        stream = await connect()
        with trio.move_on_after(0.5):  # until neither side can send any more
            while True:
                await stream.send_all((GET + b"\r\n") * 1000)
        assert await answers(connect)
        await end()
        await stream.aclose()

    serving(test, grace=0.1)


def test_at_the_limit_a_new_connection_closes_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)

    async def test(connect: Connect, end: End) -> None:
        streams = [await connect() for _ in range(3)]
        assert await answers(connect)
        assert await received(streams[0]) == b""
        await streams[2].send_all(ONCE)
        assert (await received(streams[2])).endswith(b"hello")
        for stream in streams:
            await stream.aclose()

    serving(test)


def test_errors_are_logged_once_a_minute() -> None:
    """Whoever sends odd bytes cannot fill the log."""
    seldom = connections.Seldom()
    passed = []
    for second in (0, 1, 59, 60, 61, 119, 120):
        record = logging.makeLogRecord({"msg": "Error in ASGI Framework"})
        record.created = 1_700_000_000.0 + second
        if seldom.filter(record):
            passed.append(second)
    assert passed == [0, 60, 120]
