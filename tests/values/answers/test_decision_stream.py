# SPDX-License-Identifier: Apache-2.0

"""What ``/api/v1/tail`` sends, when it gives a reader up, and ``--log-queries``; in virtual time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from starlette.requests import Request

from dnsserver.cli.log_format import set_up_logging
from dnsserver.programs import query_log
from dnsserver.programs.from_settings import authority_of
from dnsserver.tools.api import events
from dnsserver.tools.api.api import Api
from dnsserver.tools.api.events import COMMENT_SECONDS, DECISION_SECONDS, EventStream, Take, decisions
from dnsserver.tools.api.inspected import MAX_OUTSIDE, MAX_WAITING, Busy, Inspected, Turns
from dnsserver.tools.tap.lines import line_of
from dnsserver.tools.tap.listeners import MAX_WAITING as ROOM
from dnsserver.tools.tap.listeners import Wanted
from locator.ip import parse_address
from tests.kit.dns_queries import query
from tests.kit.in_memory import CountedResponder, responder_of, settings_of, snapshot_of
from tests.kit.small_cluster import WEB, WEB_AND_MANY
from tests.kit.tapped import tap_of

CLIENT = parse_address("203.0.113.7")
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Reader:
    """A reader of decisions about a small cluster."""

    def __init__(self) -> None:
        self.responder: CountedResponder = responder_of(WEB_AND_MANY)
        self.got: list[tuple[float, str]] = []  # when, and what
        self.ended: list[float] = []

    def ask(self) -> None:
        self.responder.reply(query(WEB), CLIENT, self.responder.channel(CLIENT, "udp"))

    async def run(self) -> None:
        line = partial(line_of, authority=authority_of(settings_of()))
        takes: list[Take] = []

        @contextmanager
        def feed(wake: Callable[[], None]) -> Iterator[Take]:
            with decisions(tap_of(self.responder), Wanted(), line, wake) as take:
                takes.append(take)
                yield take

        try:
            await EventStream(feed, pause=DECISION_SECONDS)({}, nothing, self._send)  # type: ignore[arg-type]
        finally:
            self.ended.append(trio.current_time())
            for take in takes:
                list(take())
                self.ask()
                assert not list(take())  # nobody listens any more

    async def _send(self, message: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.body":
            self.got.append((trio.current_time(), message["body"].decode()))


async def nothing() -> dict[str, Any]:
    await trio.sleep_forever()
    raise AssertionError


@asynccontextmanager
async def reading() -> AsyncIterator[Reader]:
    """Let a reader read until the block ends."""
    reader = Reader()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        yield reader
        nursery.cancel_scope.cancel()


def in_virtual_time(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_quiet_stream_has_comments() -> None:
    """So that proxies keep it, and that its end is noticed; until the reader goes."""

    async def main() -> None:
        async with reading() as reader:
            await trio.sleep(10 * COMMENT_SECONDS)
        first, *comments = reader.got
        assert first == (0.0, ": topodns\n\n")
        assert 9 <= len(comments) <= 10 and {text for _, text in comments} == {":\n\n"}
        assert reader.ended == [10 * COMMENT_SECONDS]

    in_virtual_time(main)


def test_events_and_losses_come_soon() -> None:
    """Each decision is an event, and after those an event says how many there was no room for."""

    async def main() -> None:
        async with reading() as reader:
            await trio.sleep(1)
            for _ in range(ROOM + 3):
                reader.ask()
            await trio.sleep(1)
        _, *told, lost = (text for _, text in reader.got)
        assert len(told) == ROOM and lost == 'event: lost\ndata: {"lost": 3}\n\n'
        assert all(json.loads(text.removeprefix("data: "))["question"]["name"] == f"{WEB}." for text in told)
        assert reader.got[1][0] < 1.5

    in_virtual_time(main)


def test_queries_wait_for_one_logged_line_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    """A second may have thousands, which take a second to make. The end cuts off none."""
    set_up_logging("text")  # to this test's standard error, wherever an earlier test had it

    async def main() -> None:
        reader, count, lines = Reader(), 100, 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(query_log.write, tap_of(reader.responder), authority_of(settings_of()), count)
            await trio.sleep(0.5)
            for _ in range(count):
                reader.ask()
            await trio.sleep(0.5)
            while lines < count // 2:
                await trio.lowlevel.checkpoint()
                written = capsys.readouterr().err.count("\n")
                assert written <= 2  # tasks take turns in any order
                lines += written
            nursery.cancel_scope.cancel()
        assert lines + capsys.readouterr().err.count("\n") == count

    in_virtual_time(main)


def test_telling_takes_at_most_a_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After many lines the stream rests as much longer."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.05  # so that each line takes as long
        return now

    monkeypatch.setattr(events.time, "perf_counter", clock)

    async def main() -> None:
        async with reading() as reader:
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(2):
                for _ in range(20):
                    reader.ask()
                await trio.sleep(1)
            await trio.sleep(60)
        times = [when for when, text in reader.got if text.startswith("data: ")]
        assert len(times) == 40
        assert times[20] - times[19] >= (events.SHARE - 1) * 20 * 0.05 - 1e-6

    in_virtual_time(main)


class SlowPublisher:
    """A publisher of which nobody gets the objects."""

    snapshot = snapshot_of(WEB_AND_MANY)

    async def objects(self, kind: object) -> dict[str, object]:
        await trio.sleep_forever()
        raise AssertionError


def test_explanations_that_wait_for_the_upstream_are_bounded() -> None:
    """A few ask it at a time, some wait, and whoever comes then is told to come again."""
    asking = 0

    async def ask() -> None:
        nonlocal asking
        asking += 1
        await trio.sleep_forever()

    async def main() -> None:
        turns = Turns()
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_OUTSIDE + MAX_WAITING):
                nursery.start_soon(turns.wait_outside, ask)
            await trio.testing.wait_all_tasks_blocked()
            assert asking == MAX_OUTSIDE
            with pytest.raises(Busy):
                await turns.wait_outside(ask)
            nursery.cancel_scope.cancel()

    in_virtual_time(main)


def test_requests_that_wait_are_bounded() -> None:
    """One is computed, some wait; whoever comes then is told to come again."""
    responder, path = responder_of(WEB_AND_MANY), "/api/v1/topology"
    inspected = Inspected(
        lambda: responder.snapshot, {"local": SlowPublisher()}, authority_of(settings_of()), "default"
    )  # type: ignore[dict-item]

    async def main() -> None:
        routes = Api(inspected, Turns(), None).routes(loopback=False)
        (endpoint,) = (route.endpoint for route in routes if route.path == path)
        scope = {"type": "http", "method": "GET", "headers": [(b"host", b"x")], "query_string": b"", "path": path}
        async with trio.open_nursery() as nursery:
            for _ in range(1 + MAX_WAITING):
                nursery.start_soon(endpoint, Request(scope))
            await trio.testing.wait_all_tasks_blocked()
            refused = await endpoint(Request(scope))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            nursery.cancel_scope.cancel()

    in_virtual_time(main)
