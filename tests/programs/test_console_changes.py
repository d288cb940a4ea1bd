# SPDX-License-Identifier: Apache-2.0

"""How pages of the console follow a server: events of changes, the window of what was counted, requests that wait."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import urllib3
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.metrics.counters import Counts
from dnsserver.net.upstream import Upstream
from dnsserver.programs.from_settings import authority_of
from dnsserver.tools.api.api import Api
from dnsserver.tools.api.events import EventStream
from dnsserver.tools.api.inspected import MAX_OUTSIDE, MAX_WAITING, Inspected, Turns
from dnsserver.tools.api.operations import DESCRIPTION
from dnsserver.tools.console.changes import CHANGE_SECONDS, PageChanges
from dnsserver.tools.console.console import MAX_STREAMS, Console
from dnsserver.tools.console.page import FOR_VIEWERS, IN_BACKGROUND, PageContext
from dnsserver.tools.console.recent import MAX_SLOTS, Key, Window
from tests.kit.api_client import Events, request
from tests.kit.api_objects import listed
from tests.kit.console_pages import CONSOLE_CLUSTER, is_safe, page, serving_console
from tests.kit.files import replace_file
from tests.kit.in_memory import settings_of, snapshot_of
from tests.kit.live_server import serving_live
from tests.kit.other_server import kubeconfig
from tests.kit.small_cluster import OUT, WEB, WEB_AND_MANY, WITH_ALIASES
from tests.kit.tapped import new_live
from tests.kit.topodns_process import Server
from tests.kit.unshrunk import unshrunk
from tests.kit.waiting import PATIENCE, until

SNAPSHOT = snapshot_of(WEB_AND_MANY)


@contextmanager
def live(server: Server) -> Iterator[Events]:
    """Read the events of ``/live`` until the block ends."""
    response = urllib3.request(
        "GET", f"http://{server.http}/live", timeout=PATIENCE, retries=False, preload_content=False
    )
    assert response.status == 200
    try:
        yield Events(response)
    finally:
        response.close()


def test_pages_hear_of_changes(tmp_path: Path) -> None:
    """First the version, by which a page knows whether it is out of date; then each change, and pages show it."""
    with serving_console(tmp_path, CONSOLE_CLUSTER) as running, live(running) as told:
        name, state = told.next()
        before = page(running, "/services/shop/near")
        assert (name, [state["version"]]) == ("state", before.attributes("body", "data-version"))
        fewer = [item for item in CONSOLE_CLUSTER if not item["metadata"]["name"].startswith("near-")]
        replace_file(tmp_path / "cluster.json", listed(fewer))
        running.send(signal.SIGHUP)
        while told.next() != ("changed", {"what": ["snapshot"]}):
            pass
        after = page(running, "/services/shop/near")
        assert len(before.rows) > 1 and after.rows == ["unmet shop/near *"], "no endpoint, and so a trouble"
        assert after.attributes("body", "data-version") != before.attributes("body", "data-version")


@pytest.mark.parametrize(
    "change",
    [PageChanges.counted, lambda changes: changes.published(snapshot_of(CONSOLE_CLUSTER), ())],
    ids=["counted", "published"],
)
def test_a_page_that_misses_a_change_notices(change: Callable[[PageChanges], None]) -> None:
    """What changes after a page was made, and before it begins to follow, changes the version that it is told first."""
    changes = PageChanges()
    made = changes.version
    change(changes)
    with changes.feed(lambda: None) as take:
        (told,) = take()
    assert changes.version in told and made not in told


def test_streams_are_bounded(tmp_path: Path) -> None:
    """One more is refused, and says so; the place of a reader that has gone is free again."""

    def opens() -> bool:
        try:
            with live(server):
                return True
        except AssertionError:
            return False

    with serving_console(tmp_path, CONSOLE_CLUSTER) as server:
        with ExitStack() as stack:
            for _ in range(MAX_STREAMS):
                stack.enter_context(live(server))
            assert request(server, "/live", "HEAD").status == 503
            refused = request(server, "/live")
            assert refused.headers["retry-after"] == "10"
            assert refused.json["detail"].startswith(f"{MAX_STREAMS} pages that follow changes found")
            assert page(server, "/").status == 200
        until(opens, "places are free again")


def test_changes_come_at_most_once_a_second() -> None:
    """Several together are one event; who has gone hears nothing more. In virtual time."""
    changes, got = PageChanges(), list[tuple[float, str]]()

    async def main() -> None:
        async def receive() -> dict[str, Any]:
            raise AssertionError

        async def send(message: Mapping[str, Any]) -> None:
            got.append((trio.current_time(), message.get("body", b"").decode()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(EventStream(changes.feed, pause=CHANGE_SECONDS), {}, receive, send)
            for _ in range(30):
                await trio.sleep(0.1)
                changes.published(SNAPSHOT, ())
                changes.counted()
            await trio.sleep(1.5)
            nursery.cancel_scope.cancel()
        assert not changes.readers
        changes.counted()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    times = [when for when, text in got if text.startswith("event: changed")]
    assert 3 <= len(times) <= 5 and all(later - sooner >= 1 for sooner, later in pairwise(times))
    assert all('"what":["snapshot","counts"]' in text for _, text in got if text.startswith("event: changed"))


SUMS = st.dictionaries(st.tuples(st.sampled_from("abc")), st.integers(0, 9), max_size=3)
LOOKS = st.lists(st.tuples(st.floats(0.1, 50.0), SUMS), max_size=30)


@settings(unshrunk)
@given(LOOKS, st.floats(0.0, 200.0))
def test_the_window_slides(looks: list[tuple[float, Mapping[Key, int]]], later: float) -> None:
    """It has what was counted since the last look before it began, and nothing older; it stays small."""
    window, now, sums = Window(100.0, 0.0, {}), 0.0, Counter[Key]()
    grown: list[tuple[float, Counter[Key]]] = []
    for pause, more in looks:
        now += pause
        sums.update(more)
        grown.append((now, Counter(more)))
        window = window.after(dict(sums), now)
        assert len(window.slots) <= MAX_SLOTS
    now += later
    expected = Counter[Key]()
    for when, more in grown:
        expected.update(more if when > now - 100.0 else {})
    assert +window.counted(now) == +expected
    assert window.covered(now) == min(100.0, now)


def test_the_window_has_few_slots() -> None:
    """Whoever looks too often sees less of the past."""
    window = Window(1e9, 0.0, {})
    for now in range(3 * MAX_SLOTS):
        window = window.after({("a",): now + 1}, float(now))
    assert len(window.slots) == MAX_SLOTS and window.counted(3.0 * MAX_SLOTS) == {("a",): MAX_SLOTS}


def test_what_takes_long_is_made_seldom() -> None:
    """Once it is made of something else, it may be old for so many times as long as it takes."""
    inspected = Inspected(lambda: None, {}, authority_of(settings_of()), "default")
    context = PageContext(inspected, Turns(), PageChanges(), new_live(), health=dict, ages=dict)
    made: list[tuple[float, str]] = []

    async def look(of: str) -> str:
        async def compute() -> str:
            await trio.sleep(2)
            made.append((trio.current_time(), of))
            return of

        context.changes.publication = of
        return await context.throttled("name", compute)

    async def main() -> None:
        begun = trio.current_time()
        assert [await look(of) for of in ("a", "b", "b")] == ["a", "a", "a"]
        await trio.sleep_until(begun + 2 + 2 * FOR_VIEWERS)
        assert [await look(of) for of in ("b", "c")] == ["b", "b"]
        assert made == [(begun + 2, "a"), (begun + 4 + 2 * FOR_VIEWERS, "b")]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("answers", "given", "pause"),
    [(False, None, 0), (True, None, FOR_VIEWERS), (True, IN_BACKGROUND, IN_BACKGROUND), (False, 7, 7)],
    ids=["console alone", "server", "in background", "given"],
)
def test_what_takes_long_is_made_as_often_as_one_may(answers: bool, given: int | None, pause: int) -> None:
    """To make something anew at each change takes one part in so many of the time; all of it where no query waits."""
    inspected = Inspected(lambda: None, {}, authority_of(settings_of()), "default")
    context = PageContext(inspected, Turns(), PageChanges(), new_live() if answers else None, health=dict, ages=dict)
    made: list[float] = []

    async def compute() -> None:
        await trio.sleep(2)
        made.append(trio.current_time())

    async def main() -> None:
        with trio.move_on_after(2000):
            while True:
                context.changes.publication = object()
                await context.throttled("name", compute, one_part_in=given)
                await trio.sleep(1)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    pauses = {later - sooner - 2 for sooner, later in pairwise(made)}
    assert len(pauses) == 1 and max(1, pause * 2) <= pauses.pop() <= pause * 2 + 1


def test_before_the_first_snapshot(tmp_path: Path) -> None:
    """Overview says what is missing; other pages, and the API, come with status 503, and say why."""
    with serving_live(tmp_path, kubeconfig(tmp_path, "http://127.0.0.1:1"), started=False) as running:
        found = page(running, "/")
        assert found.status == 200 and "Not ready" in found.text and "not read yet" in found.text
        for path in ("/map", "/services", "/services/a/b", "/nodes/local/a", "/explain?name=a.b&client=10.0.0.1"):
            found = page(running, path)
            assert found.status == 503 and "the server has not read the cluster yet" in found.text and is_safe(found)
        for path in ("explain?name=x.y&client=10.0.0.1", "topology", "services"):
            refused = request(running, f"/api/v1/{path}")
            assert (refused.status, refused.json["detail"]) == (503, "the server has not read the cluster yet")
        assert request(running, DESCRIPTION).status == 200


def test_requests_that_wait_are_bounded() -> None:
    """One page of each sort is computed, some wait; whoever comes then is told to come again, on a page."""
    changes = PageChanges()
    changes.published(SNAPSHOT, ())

    class SlowPublisher:
        """A publisher of which nobody gets the objects."""

        snapshot = SNAPSHOT

        async def objects(self, kind: object) -> dict[str, object]:
            await trio.sleep_forever()
            raise AssertionError

    inspected = Inspected(lambda: changes.snapshot, {"local": SlowPublisher()}, authority_of(settings_of()), "default")  # type: ignore[dict-item]

    async def main() -> None:
        console = Console(PageContext(inspected, Turns(), changes, None, health=dict, ages=dict))
        (endpoint,) = (route.endpoint for route in console.routes(loopback=False) if route.path == "/map")
        scope = {"type": "http", "method": "GET", "headers": [(b"host", b"x")], "query_string": b"", "path": "/map"}
        async with trio.open_nursery() as nursery:
            for _ in range(1 + MAX_WAITING):
                nursery.start_soon(endpoint, Request(scope))
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(PATIENCE):
                refused = await endpoint(Request(scope))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert b"<h1>Busy</h1>" in refused.body
            nursery.cancel_scope.cancel()

    trio.run(main)


class SilentUpstream(Upstream):
    """An upstream that never answers; ``asked`` is set when *number* requests wait for it."""

    def __init__(self, number: int) -> None:
        super().__init__((), Counts())
        self.asked, self._number = trio.Event(), number

    async def find(self, target: str, qtype: int, namespace: str, *, deadline: float = inf) -> UpstreamAnswer:
        self._number -= 1
        if not self._number:
            self.asked.set()
        await trio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize("path", ["/explain", "/api/v1/explain"])
def test_who_waits_for_the_upstream_holds_up_nobody(path: str) -> None:
    """A name in the zones is explained while more wait than there are turns to wait for."""
    snapshot, number = snapshot_of(WITH_ALIASES), 1 + MAX_WAITING
    authority = authority_of(settings_of({"upstream": "192.0.2.1"}))

    def asking(name: str) -> Request:
        query = f"name={name}&client=127.1.0.1".encode()
        return Request(
            {"type": "http", "method": "GET", "headers": [(b"host", b"x")], "query_string": query, "path": path}
        )

    async def main() -> None:
        upstream, turns = SilentUpstream(MAX_OUTSIDE), Turns()
        inspected = Inspected(lambda: snapshot, {}, authority, "default", find_all=upstream.find_all)
        console = Console(PageContext(inspected, turns, PageChanges(), None, health=dict, ages=dict))
        routes = [*Api(inspected, turns, None).routes(loopback=False), *console.routes(loopback=False)]
        (endpoint,) = (route.endpoint for route in routes if route.path == path)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for _ in range(number):
                    nursery.start_soon(endpoint, asking(OUT))
                await upstream.asked.wait()
                answered = await endpoint(asking(WEB))
                assert answered.status_code == 200 and b"127.1.0.1" in answered.body
                nursery.cancel_scope.cancel()

    trio.run(main)
