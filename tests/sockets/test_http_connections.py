# SPDX-License-Identifier: Apache-2.0

"""HTTP connections, of metrics and health as of the webhook: whatever a client sends harms its own connection only."""

from __future__ import annotations

import itertools
import json
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dnsserver.http import connections, conversation
from dnsserver.http.application import application
from dnsserver.http.conversation import Limits
from dnsserver.metrics.families import METRICS_SECONDS
from dnsserver.net import bounds
from dnsserver.net.bounds import HeldOctets
from dnsserver.tools.api.events import EventStream, Take
from locator.model import Health
from tests.kit.waiting import PATIENCE, until_in_trio

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
ONCE = GET + b"Connection: close\r\n\r\n"
UNREAD = GET.replace(b"/", b"/large", 1) + b"\r\n"
WEBSOCKET = GET + b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\nConnection: upgrade"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # the first frame of HTTP/2 (RFC 9113, section 6.5)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
H2C = GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
TCP_ESTABLISHED = 1
LENGTH = b"Content-Length: 2000000\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"

Connect = Callable[..., Awaitable[trio.SocketStream]]
End = Callable[[], Awaitable[None]]
Test = Callable[[Connect, End], Awaitable[None]]


class Pages:
    """Pages of a server; ``began`` and ``ended`` count the requests for the one that never comes, and for events."""

    def __init__(self) -> None:
        self.began = self.ended = 0
        paths = {"/": self._hello, "/large": self._large, "/never": self._never, "/events": self._events}
        routes = [Route(path, page, methods=["GET"]) for path, page in paths.items()]
        self.app = Starlette(routes=[*routes, Route("/echo", self._echo, methods=["POST"])])

    async def _hello(self, request: Request) -> Response:
        return PlainTextResponse("hello" * 1000)

    async def _large(self, request: Request) -> Response:
        return PlainTextResponse("x" * 4_000_000)

    async def _echo(self, request: Request) -> Response:
        return Response(await request.body())

    async def _never(self, request: Request) -> Response:
        self.began += 1
        try:
            await trio.sleep_forever()
        finally:
            self.ended += 1
        raise AssertionError

    async def _events(self, request: Request) -> Response:
        return EventStream(self._endless, pause=0.0)

    @contextmanager
    def _endless(self, wake: Callable[[], None]) -> Iterator[Take]:
        """Give large events without end."""
        self.began += 1
        wake()
        try:
            yield lambda: itertools.repeat("x" * 100_000)
        finally:
            self.ended += 1


def serving(
    test: Test, *, app: ASGIApp | None = None, grace: float = 1.0, idle: float = PATIENCE, all_for: bytes = b""
) -> Counter[str]:
    """Run *test* with a function that connects to a server, and one that makes the server end and waits for it.

    Return the errors that were counted. Without an *app*, there are ``Pages``. The source *all_for* may take
    all connections.
    """
    failures: Counter[str] = Counter()
    limits = Limits(HeldOctets(failures), idle, grace, all_for.__eq__)

    async def main() -> None:
        sock, ending, ended = socket.socket(), trio.Event(), trio.Event()
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        served = app or Pages().app

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            await connections.serve(sock, served, failures, limits, until=ending.wait, task_status=task_status)
            ended.set()

        async def end() -> None:
            ending.set()
            await ended.wait()

        async def connect(**given: str) -> trio.SocketStream:
            stream = await trio.open_tcp_stream("127.0.0.1", port, **given)
            opened.callback(stream.socket.close)
            return stream

        with ExitStack() as opened, trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                await nursery.start(serve)
                await test(connect, end)
                await end()

    trio.run(main)
    return failures


async def received(stream: trio.SocketStream) -> bytes:
    """Return what comes until the server closes the connection."""
    parts = b""
    try:
        async for part in stream:
            parts += part
    except trio.BrokenResourceError:
        pass
    return parts


async def answers(connect: Connect, **given: str) -> bool:
    async with await connect(**given) as stream:
        await stream.send_all(ONCE)
        return (await received(stream)).endswith(b"hello")


async def send_until_full(stream: trio.SocketStream, sent: bytes) -> None:
    """Send again and again until neither side takes any more, or the server closes the connection."""
    with trio.move_on_after(0.5), suppress(trio.BrokenResourceError):
        while True:
            await stream.send_all(sent)


def closed_by_peer(stream: trio.SocketStream) -> bool:
    """Whether the server has closed a connection, although nobody has read what it sent."""
    state = stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != TCP_ESTABLISHED


REFUSED = [
    # id, what is sent, the status of the only response
    ("http2", PREFACE, 505),
    ("http3", GET.replace(b"1.1", b"3.0") + b"\r\n", 505),
    ("http09", b"GET /\r\n\r\n", 400),
    ("tls", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(500), 400),
    ("zeros", bytes(70_000), 400),
    ("no-host", b"GET / HTTP/1.1\r\n\r\n", 400),
    ("no-ascii", b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("long-line", b"GET /" + b"x" * 70_000, 431),
    ("long-query", b"GET /?" + b"x" * 60_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    ("long-header", GET + b"A: " + b"x" * 65_536 + b"\r\n\r\n", 431),
    ("many-headers", GET + b"A: b\r\n" * 1000 + b"\r\n", 431),
    ("many-short-headers", GET + b"a:\n" * 5000 + b"\n", 431),
    ("get-with-body", GET + b"Content-Length: 5\r\n\r\nhello", 400),
    ("head-with-body", GET.replace(b"GET", b"HEAD") + b"Content-Length: 5\r\n\r\n", 400),
    ("get-with-endless-body", GET + CHUNKED + b"ffff\r\n" + b"x" * 65_535, 400),
    ("two-lengths", GET + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
    ("empty-line", b"\r\n" + ONCE, 400),
]


@pytest.mark.parametrize(("sent", "status"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_odd_requests_end_their_connection(sent: bytes, status: int) -> None:
    """Each has one response, after which the connection is closed. Others go on, and nothing has failed."""

    async def test(connect: Connect, end: End) -> None:
        async with await connect() as other, await connect() as stream:
            with trio.move_on_after(0.5):  # it reads no more than it must
                await stream.send_all(sent)
            answer = await received(stream)
            assert answer.startswith(b"HTTP/1.1 %d " % status) and answer.count(b"HTTP/1.1") == 1
            await other.send_all(ONCE)
            assert (await received(other)).endswith(b"hello")

    assert not serving(test)


ANSWERED = [
    # id, what is sent, what is answered: the heads' beginnings, and the last octets
    ("keep-alive", GET + b"\r\n" + ONCE, [b"200"] * 2, b"hello"),
    ("head", GET.replace(b"GET", b"HEAD") + b"Connection: close\r\n\r\n", [b"200"], b"\r\n\r\n"),
    ("head-keeps-alive", GET.replace(b"GET", b"HEAD") + b"\r\n" + ONCE, [b"200"] * 2, b"hello"),
    ("http10", b"GET / HTTP/1.0\r\n\r\n", [b"200"], b"hello"),
    ("expecting", GET.replace(b"GET /", b"POST /echo") + b"Content-Length: 2\r\nExpect: 100-continue\r\n"
     b"Connection: close\r\n\r\nok", [b"100", b"200"], b"ok"),
    ("chunks", GET.replace(b"GET /", b"POST /echo") + CHUNKED + b"2\r\nok\r\n0\r\n\r\n" + ONCE, [b"200"] * 2, b"hello"),
    ("method", GET.replace(b"GET", b"DELETE") + b"\r\n" + ONCE, [b"405", b"200"], b"hello"),
    ("unread-body", GET.replace(b"GET", b"POST") + b"Content-Length: 9\r\n\r\n123456789", [b"405"], b"Not Allowed"),
    ("connect", b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" + ONCE, [b"404", b"200"], b"hello"),
    ("absolute", ONCE.replace(b"GET /", b"GET http://x/"), [b"404"], b"Not Found"),
    ("h2c", H2C + ONCE, [b"200"] * 2, b"hello"),
    ("websocket", WEBSOCKET + b"\r\n\r\n" + ONCE, [b"200"] * 2, b"hello"),
    ("odd-websocket", WEBSOCKET + b", \xff\r\nSec-WebSocket-Protocol: \xff\r\n\r\n" + ONCE, [b"200"] * 2, b"hello"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "statuses", "end"), [row[1:] for row in ANSWERED], ids=[row[0] for row in ANSWERED])
def test_what_is_answered(sent: bytes, statuses: list[bytes], end: bytes) -> None:
    """One response after the other, by HTTP/1.1 alone."""

    async def test(connect: Connect, _: End) -> None:
        async with await connect() as stream:
            await stream.send_all(sent)
            answer = await received(stream)
        assert [part[1:4] for part in answer.split(b"HTTP/1.1")[1:]] == statuses and answer.endswith(end)
        assert statuses[0] == b"100" or b"date: " in answer

    assert not serving(test)


@pytest.mark.parametrize("begun", [False, True], ids=["before-the-response", "in-the-response"])
def test_an_error_ends_its_request_alone(begun: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It is counted each time, and logged, but not each time."""

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/":
            await Pages().app(scope, receive, send)
            return
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        raise ExceptionGroup("several", [ValueError("a bug")])

    async def test(connect: Connect, end: End) -> None:
        async with await connect() as other:
            for _ in range(2):
                async with await connect() as stream:
                    await stream.send_all(GET.replace(b"/", b"/bug", 1) + b"\r\n")
                    assert (await received(stream)).startswith(b"HTTP/1.1 200" if begun else b"HTTP/1.1 500")
            await other.send_all(ONCE)
            assert (await received(other)).endswith(b"hello")

    assert serving(test, app=broken) == {"http": 2}
    assert len(caplog.messages) == 1 and "a bug" in caplog.text


def test_who_reads_a_500_finds_the_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It is told as RFC 9457 has it, without a word of the error itself.

    Other errors of the same minute do not hide it in the log; only the same error again has no line of its own.
    """

    async def another(request: Request) -> Response:
        raise LookupError("another secret")

    def broken() -> Mapping[str, Health]:
        raise ValueError("a secret")

    async def test(connect: Connect, end: End) -> None:
        for path in (b"readyz", b"another", b"readyz", b"another"):
            async with await connect() as stream:
                await stream.send_all(ONCE.replace(b"GET /", b"GET /" + path))
                head, _, body = (await received(stream)).partition(b"\r\n\r\n")
            assert b"application/problem+json" in head and b"secret" not in body
            problem = json.loads(body)
            assert problem["status"] == 500
            assert problem["detail"] == "an error in topodns; its log says more, once a minute for each error"

    app = application(CollectorRegistry(), ready=broken, loopback=False, more=[Route("/another", another)])
    assert serving(test, app=app) == {"http": 4}
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a secret", "another secret"]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(UNREAD, id="large"),
        pytest.param(UNREAD.replace(b"large", b"events"), id="events"),
        pytest.param((GET + b"\r\n") * 1000, id="pipelined"),
    ],
)
def test_who_reads_nothing_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Each piece must be taken in time."""
    monkeypatch.setattr(conversation, "PIECE_SECONDS", 0.3)

    async def test(connect: Connect, end: End) -> None:
        async with await connect() as stream:
            await send_until_full(stream, sent)
            assert await answers(connect)
            if b"events" in sent:
                await until_in_trio(lambda: pages.ended == pages.began > 0)
            await until_in_trio(lambda: closed_by_peer(stream))

    pages = Pages()
    assert not serving(test, app=pages.app)


@pytest.mark.parametrize("sent", [b"", GET, GET + b"A: b\r\n" * 5], ids=["nothing", "half-a-line", "half-a-head"])
@pytest.mark.parametrize("before", [b"", GET + b"\r\n"], ids=["first", "later"])
def test_who_is_too_slow_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes, before: bytes) -> None:
    """A head must be complete soon after its first octet, and the next must not wait too long."""
    monkeypatch.setattr(conversation, "HEAD_SECONDS", 0.2)

    async def test(connect: Connect, end: End) -> None:
        async with await connect() as stream:
            await stream.send_all(before + sent)
            assert (await received(stream)).count(b"HTTP/1.1") == bool(before)

    assert not serving(test, idle=0.2 if not sent else PATIENCE)


def test_who_has_gone_costs_nothing_more() -> None:
    """What is computed for it is cancelled."""
    pages = Pages()

    async def test(connect: Connect, end: End) -> None:
        for number in (1, 2, 3):
            async with await connect() as stream:
                if number > 1:  # not in its first request
                    await stream.send_all(GET + b"\r\n")
                    await stream.receive_some(1)
                await stream.send_all(GET.replace(b"/", b"/never", 1) + b"\r\n")
                await until_in_trio(lambda number=number: pages.began == number)
                assert pages.ended == number - 1
            await until_in_trio(lambda number=number: pages.ended == number)

    assert not serving(test, app=pages.app)


def test_who_sends_no_more_can_still_read() -> None:
    """Such as ``nc``, which ends its side after the request."""

    async def test(connect: Connect, end: End) -> None:
        async with await connect() as stream:
            await stream.send_all(UNREAD)
            await stream.send_eof()
            assert len(await received(stream)) > 4_000_000

    assert not serving(test)


def test_what_all_hold_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds most is closed first: that of a request, and that of a response."""
    monkeypatch.setattr(bounds, "MAX_HELD", 1_000_000)

    async def test(connect: Connect, end: End) -> None:
        async with await connect() as small, await connect() as asking, await connect() as sending:
            await small.send_all(GET[:-1])
            await asking.send_all(UNREAD)
            assert len(await received(asking)) < 4_000_000
            await send_until_full(sending, GET.replace(b"GET /", b"POST /echo") + LENGTH + b"x" * 2_000_000)
            assert await received(sending) == b""
            await small.send_all(GET[-1:] + b"Connection: close\r\n\r\n")
            assert (await received(small)).endswith(b"hello")

    assert serving(test) == {"memory": 2}


def test_a_client_that_reads_nothing_does_not_delay_the_end() -> None:
    """Its connection is closed when the grace period is over."""

    async def test(connect: Connect, end: End) -> None:
        stream = await connect()
        await send_until_full(stream, (GET + b"\r\n") * 1000)
        assert await answers(connect)
        await end()

    serving(test, grace=0.1)


def test_the_end() -> None:
    """Idle connections are closed at once, a request that has begun is answered, and then its connection is closed."""

    async def test(connect: Connect, end: End) -> None:
        idle, used, begun = [await connect() for _ in range(3)]
        await used.send_all(GET + b"\r\n")
        await used.receive_some()
        await begun.send_all(GET)
        assert await answers(connect)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            assert await received(idle) == b""
            await received(used)
            await begun.send_all(b"\r\n")
            answer = await received(begun)
            assert b"connection: close" in answer and answer.endswith(b"hello")

    serving(test, grace=PATIENCE)


SHARES = [
    # id, who may take all, sources of connections in their order, which of them are closed
    ("others-keep-theirs", "", [2, *[1] * 11], [1, 2]),
    ("may-take-all", "127.0.0.1", [*[1] * 10, 2, 1, 1], []),
    ("many-sources", "", [*[1] * 9, *[2] * 9, *[3] * 9, *[4] * 9, 5], [0]),
]


@pytest.mark.parametrize(("all_for", "sources", "closed"), [row[1:] for row in SHARES], ids=[row[0] for row in SHARES])
def test_connections_are_bounded(
    monkeypatch: pytest.MonkeyPatch, all_for: str, sources: list[int], closed: list[int]
) -> None:
    """Of 36, a source has nine, and its oldest makes room for a tenth; of all the oldest does."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 36)

    async def test(connect: Connect, end: End) -> None:
        streams = []
        for number in sources:
            streams.append(await connect(local_address=f"127.0.0.{number}"))
            await streams[-1].send_all(GET + b"\r\n")
            await streams[-1].receive_some(1)
        for number, stream in enumerate(streams):
            if number in closed:
                await received(stream)
            else:
                await stream.send_all(ONCE)
                assert (await received(stream)).endswith(b"hello")

    assert not serving(test, all_for=socket.inet_aton(all_for) if all_for else b"")


def test_a_request_that_has_begun_outlives_idle_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest idle connection makes room, not the oldest of all."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 36)

    async def test(connect: Connect, end: End) -> None:
        begun = await connect(local_address="127.0.0.1")
        await begun.send_all(GET)
        idle = [await connect(local_address="127.0.0.1") for _ in range(9)]
        await received(idle[0])
        await begun.send_all(b"Connection: close\r\n\r\n")
        assert (await received(begun)).endswith(b"hello")

    assert not serving(test)


class Collected(Collector):
    """Counts how often it is collected."""

    times = 0

    def collect(self) -> Iterator[Any]:
        self.times += 1
        return iter(())


def test_metrics_are_kept_for_a_second() -> None:
    """Each of their two forms, whoever asks and however; in virtual time."""
    collected, registry = Collected(), CollectorRegistry(auto_describe=False)
    registry.register(collected)
    app = application(registry, ready=dict, loopback=False)
    (metrics,) = (route.endpoint for route in app.routes if isinstance(route, Route) and route.path == "/metrics")
    accepted = ["", "text/plain", "text/plain;version=1.2.3", "text/plain;version=1.2.4"]
    accepted += [f"application/openmetrics-text;version=1.0.{patch};q=0.5,*/*" for patch in range(10)]

    async def main() -> None:
        for seconds in range(3):
            for method in ("GET", "HEAD"):
                for accept in accepted:
                    scope = {"type": "http", "method": method, "headers": [(b"accept", accept.encode())]}
                    found = await metrics(Request(scope))
                    assert found.media_type.startswith("application/" if "openmetrics" in accept else "text/plain")
            assert collected.times == 2 * (seconds + 1)
            await trio.sleep(METRICS_SECONDS)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
