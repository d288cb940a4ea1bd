# SPDX-License-Identifier: Apache-2.0

"""The first page says what is wrong now: with what, for how many clients, since when, and what fixes it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.routing import Match

from dnsserver.programs.from_settings import authority_of, store_of
from dnsserver.tools.api.clients import ClientsByService
from dnsserver.tools.api.inspected import Inspected, Turns
from dnsserver.tools.api.live import Live
from dnsserver.tools.console.changes import PageChanges
from dnsserver.tools.console.console import LOOK_SECONDS, Console
from dnsserver.tools.console.first_seen import MAX_KNOWN, FirstSeen
from dnsserver.tools.console.page import PageContext
from dnsserver.tools.console.recent import RecentAnswers, RecentCounts
from dnsserver.tools.console.troubles import expected
from dnsserver.tools.console.troubles.now import look_at_troubles
from dnsserver.tools.console.troubles.sources import source_troubles
from dnsserver.tools.console.troubles.traffic import asked_troubles, live_unmet
from dnsserver.tools.console.troubles.trouble import (
    BAD,
    FINDING,
    KINDS,
    MAX_OF_A_KIND,
    UNMET,
    UNMET_ANSWERS,
    Now,
    Trouble,
    dated,
    in_short,
)
from dnsserver.tools.live import history
from locator.cluster.publisher import Publisher
from locator.model import Health
from locator.topology.annotations import MAX_OVERLOAD
from tests.kit.api_client import Answered
from tests.kit.api_objects import RACK, ZONE, Item, endpoint, endpoint_slice, listed, node, service, service_policy
from tests.kit.console_pages import Page, is_safe
from tests.kit.finding_rows import HEALTHY, SPREAD
from tests.kit.in_memory import dump_of, settings_of, snapshot_of
from tests.kit.lost_zone import three_zones
from tests.kit.skewed import skewed
from tests.kit.tapped import new_live

T = TypeVar("T")
FLAGS = {"forwarder-service": "off"}
CALM: Mapping[str, Health] = {"snapshot": Health(True)}
BROKEN = Health(True, "as it was before: line 7: bad", "line 7: bad")
CUT_OFF = Health(True, "as it was before: is it cut off?", "is it cut off?")


class Here(Turns):
    """Work that no thread does, so that virtual time stands still meanwhile."""

    async def in_thread(self, work: Callable[[], T]) -> T:
        return work()


class Shown(NamedTuple):
    """The console about a cluster in memory, which can change."""

    context: PageContext
    publish: Callable[[Sequence[Item]], None]

    async def page(self, path: str = "/") -> Page:
        """Return a page, the first one by default, as a browser reads it."""
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": path, "query_string": b""}
        scope["headers"] = [(b"host", b"x"), (b"accept", b"text/html")]
        matches = ((route, *route.matches(scope)) for route in Console(self.context).routes(loopback=False))
        route, found = next((route, found) for route, match, found in matches if match is Match.FULL)
        answered = await route.endpoint(Request(scope | found))
        return Page(Answered(answered.status_code, {}, answered.body))


def console(
    cluster: Sequence[Item], health: Mapping[str, Health] = CALM, ages: Mapping[str, float] | None = None,
    live: Live | None = None,
) -> Shown:  # fmt: skip
    """Return the console about a cluster."""
    settings = settings_of(FLAGS)
    publisher, changes = Publisher(store_of(settings)), PageChanges()
    publisher.subscribe(changes.published)

    def publish(items: Sequence[Item]) -> None:
        publisher.publish_once(dump_of(items).batch())

    publish(cluster)
    inspected = Inspected(lambda: publisher.snapshot, {"local": publisher}, authority_of(settings), "default")
    context = PageContext(inspected, Here(), changes, live, health=lambda: health, ages=lambda: ages or {"local": 0.0})
    return Shown(context, publish)


def first_page(*of: Any, **more: Any) -> Page:
    return trio.run(console(*of, **more).page)


def troubles_on(page: Page) -> list[str]:
    """Return what a page says is wrong, by kind and key."""
    kinds = tuple(f"{kind} " for kind in KINDS)
    return [row for row in page.rows if row.startswith(kinds) and not row.startswith("finding about")]


def dead_ends(page: Page) -> list[str]:
    """Return the links that lead nowhere within the page."""
    ids = {f"#{attributes['id']}" for _, attributes in page.elements if "id" in attributes}
    return [link for link in page.attributes("a", "href") if link.startswith("#") and link not in ids]


class Row(NamedTuple):
    """A state, the troubles that the page shows of it, and words that it says of them."""

    name: str
    cluster: Sequence[Item]
    troubles: Sequence[str] = ()
    words: Sequence[str] = ()
    health: Mapping[str, Health] = CALM
    ages: Mapping[str, float] | None = None


SOFTENED = f"kubectl -n shop annotate service hard --overwrite topodns.io/topology-keys='{ZONE},*'"
POLICY = service_policy("near", ZONE, app="hard")
ROWS = [
    Row("peace", three_zones(), [], ["Nothing is wrong: every client gets an endpoint of 2 constrained Services, and"]),
    Row("no constraint", [*HEALTHY, service("web"), endpoint_slice("web", 1, SPREAD)], [],
        ["no headless Service has a constraint; all"]),
    Row("a zone is lost", three_zones(lost="b"), ["unmet shop/hard b", "lost zone b"],
        ["2 things are wrong", "2 clients in b get nothing of shop/hard", "in this dump", SOFTENED,
         f"Its constraint {ZONE} is hard", "Its only endpoint there is not ready.",
         "Zone b has no ready endpoint of 2 Services", f"kubectl get nodes -l {ZONE}=b"]),
    Row("a zone never had any", three_zones(zones="ab"), ["unmet shop/hard *"],
        ["1 thing is wrong", "1 client in c gets nothing of shop/hard", "It has no endpoint there.", SOFTENED]),
    Row("one lost, one never had any", three_zones(zones="bc", lost="c"),
        ["unmet shop/hard c", "unmet shop/hard *", "lost zone c"],
        ["3 clients in a get nothing of shop/hard", "or let clients use others until then: the command above"]),
    Row("a policy requires", three_zones(POLICY, hard=f"{ZONE},*", lost="b"), ["unmet shop/hard b", "lost zone b"],
        ["or set the mode of ServicePolicy near to Preferred."]),
    Row("other labels than zones", three_zones(hard=RACK, zones="ac"), ["unmet shop/hard *"],
        ["2 clients in rack=rb get nothing", "No ready endpoint has the same labels as they."]),
    Row("none is ready", three_zones(service("none", keys=f"{ZONE},*"), endpoint_slice("none", 1, [
        endpoint("10.0.9.1", nodeName="a1", ready=False)])), ["unmet shop/none *", "lost zone a"],
        ["None of 6 clients gets anything of shop/none"]),
    Row("no zones", [{**one, "metadata": {"name": one["metadata"]["name"]}} if one["kind"] == "Node" else one
                     for one in three_zones()], ["unmet shop/hard *", "finding KeyOnNoNode"],
        ["6 clients without a zone get nothing of shop/hard", f"zone they are: their nodes have no label {ZONE}.",
         "Label the nodes of these clients, or let clients use others until then:", SOFTENED]),
    Row("none is ready, and no constraint", three_zones(service("none"), endpoint_slice("none", 1, [
        endpoint("10.0.9.1", nodeName="a1", ready=False)])), ["unmet shop/none *"],
        ["None of 6 clients gets anything of shop/none", "Its only endpoint is not ready."]),
    Row("none was ever there, and no constraint", three_zones(service("none"), endpoint_slice("none", 1, []))),
    Row("a dump that is cut off", three_zones(), ["source snapshot"],
        ["is it cut off? topodns answers from what it read before."], {"snapshot": CUT_OFF}),
    Row("overloaded", skewed(), ["overloaded shop/web", "finding ConstraintWithoutEffect"],
        ["web-a0 gets 2.6 times an even share of shop/web", f"service web --overwrite {MAX_OVERLOAD}=1.5"]),
    Row("a dump that cannot be read", three_zones(), ["source snapshot"],
        ["The dump cannot be read", "line 7: bad. topodns answers from what it read before.", "Out of date"],
        {"snapshot": BROKEN}),
    Row("another cluster", three_zones(), ["source cluster west"], ["Cluster west is out of contact"],
        {**CALM, "cluster west": Health(True, "no contact for 9 s", "no contact")}, {"local": 0.0, "west": 9.0}),
    Row("a finding", three_zones(node("bare")), ["finding NodeWithoutZone"],
        ["NodeWithoutZone: 1 warning", "docs/findings.md#nodewithoutzone"]),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_wrong(row: Row) -> None:
    """The troubles in order, and in the title how many they are; nothing green stands beside them."""
    page = first_page(row.cluster, row.health, row.ages)
    assert page.status == 200 and is_safe(page)
    assert troubles_on(page) == list(row.troubles)
    assert [word for word in row.words if word not in page.text] == []
    assert page.text.count(SOFTENED) <= 1, "a command stands once"
    assert dead_ends(page) == []
    assert re.search(r"\d+ things? (is|are) wrong" if row.troubles else "Nothing is wrong", page.text) is not None
    greens = [attributes for tag, attributes in page.elements if "good" in attributes.get("class", "").split()]
    assert bool([one for one in greens if "tile" in one["class"]]) == (not row.troubles)
    if row.troubles:
        assert "Nothing is wrong" not in page.text and "✓ none" not in page.text


def test_who_would_get_nothing_is_on_the_list_of_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody asks, and by the simulation of the first page: there is no second one."""
    down = [service("down"), endpoint_slice("down", 1, [endpoint("10.0.9.1", nodeName="a1", ready=False)])]
    worlds, world_of = list[object](), expected.world_of
    monkeypatch.setattr(expected, "world_of", lambda *of: worlds.append(of) or world_of(*of))
    shown = console(three_zones(*down, lost="b"))

    async def pages() -> Page:
        await shown.page()
        return await shown.page("/services")

    found = trio.run(pages)
    assert is_safe(found) and len(worlds) == 1
    said = re.findall(r"shop/(\w+) ?(✕ \d+ clients? gets? nothing)", found.text)
    assert said == [("hard", "✕ 2 clients get nothing"), ("down", "✕ 6 clients get nothing")]


def test_endpoints_that_are_not_ready_come_and_go() -> None:
    """It is wrong as soon as there are some, although answers stay the same; before and after, no page says so."""
    none, unready = (endpoint_slice("none", 1, rows) for rows in ([], [endpoint("10.0.9.1", ready=False)]))

    async def found() -> list[list[str]]:
        shown, pages = console(three_zones(service("none"), none)), []
        for change in (none, unready, none):
            shown.publish(three_zones(service("none"), change))
            pages += [await shown.page(), await shown.page("/services/shop/none")]
        return [troubles_on(page) for page in pages]

    assert trio.run(found) == [[], [], ["unmet shop/none *"], ["unmet shop/none *"], [], []]


class Sourced(NamedTuple):
    """Checks of sources and the ages of clusters, and what is said of them."""

    name: str
    health: Mapping[str, Health]
    ages: Mapping[str, float]
    said: Sequence[tuple[str, float | None]]


LOST = Health(True, "no contact, for 30 s: timed out", "no contact: timed out")
SOURCES = [
    Sourced("all well", {"pods": Health(True), "cluster west": Health(True)}, {"local": 0, "west": 0}, []),
    Sourced("no contact", {"pods": LOST, "nodes": LOST}, {"local": 30},
            [("No contact with the API server of local", 970.0)]),
    Sourced("not read", {"pods": Health(False, "not listed yet, for 2 s", "not listed yet")}, {"local": 0},
            [("Cluster local has not been read", None)]),
    Sourced("a dump not read", {"snapshot": Health(False, "not read yet; line 1: bad")}, {"local": 0},
            [("The dump has not been read", None)]),
    Sourced("another never read", {"pods": Health(True), "cluster west": Health(True, "not read yet", "not read yet")},
            {"local": 0, "west": 0}, [("Cluster west is not read as it is now", None)]),
]  # fmt: skip


@pytest.mark.parametrize("row", SOURCES, ids=lambda row: row.name)
def test_sources(row: Sourced) -> None:
    """Once for all kinds of a cluster; since when there is no contact is known exactly."""
    found = source_troubles(row.health, row.ages, 1000.0)
    assert [(one.title, one.since) for one in found] == list(row.said)


def asked(**more: Any) -> RecentAnswers:
    empty: dict[str, Any] = {
        **{"zones": {}, "unmet": 0, "spilled": 0, "unlocated": [], "unnamed": [], "untrusted": []},
        **{"services": {}, "service_seconds": 300.0},
    }
    return RecentAnswers(seconds=300, **{**empty, **more})


def trouble(kind: str, key: str = "x", **more: Any) -> Trouble:
    return Trouble(kind, key, BAD, f"{kind} {key}", "Because.", "Do.", **more)


def test_those_who_ask() -> None:
    """What to paste stands with each: a line of the Corefile, a flag; but no place for the clients of a forwarder."""
    found = list(asked_troubles(asked(
        unnamed=[("10.0.0.1", "", 3)], untrusted=[("10.0.0.2", "", 2), ("others", "", 1)],
        unlocated=[("10.0.0.0/24", "address", 9), ("10.9.0.0/24", "address", 7), ("other", "address", 1)],
    )))  # fmt: skip
    assert [(one.title, one.command) for one in found] == [
        ("A forwarder names no clients: 10.0.0.1", "rewrite edns0 subnet set 32 128 revert"),
        ("Clients are named by a forwarder that nobody trusts: 10.0.0.2, others", "--trusted-forwarder 10.0.0.2/32"),
        ("Nothing locates clients in 10.9.0.0/24, other", f"--subnet 10.9.0.0/24={ZONE}=ZONE"),
    ]
    assert not list(asked_troubles(asked()))


def test_those_who_ask_on_the_page() -> None:
    """Each trouble leads to the list of all that it is about: networks, forwarders, and what trusts each of these."""
    live = new_live()
    shown = console(three_zones(), live=live)

    async def looked() -> Page:
        recent = shown.context.recent
        assert recent is not None
        await recent.look()
        live.counts.unnamed_clients.note("10.0.0.1")
        for client in range(9):
            live.counts.ignored_clients.note("10.0.0.2", bytes([10, 1, 0, client]))
        live.counts.unlocated_clients.add("address", bytes([10, 9, 0, 1]), 7)
        await recent.look()
        return await shown.page()

    page = trio.run(looked)
    assert troubles_on(page) == ["forwarder unnamed", "forwarder untrusted", "unlocated unlocated"]
    assert dead_ends(page) == [] and is_safe(page)
    assert {"10.9.0.0/24 address", "10.0.0.1 ", "10.0.0.2 names several clients"} <= set(page.rows)
    assert "10.0.0.2 9 queries, names several clients" in page.text
    assert page.text.count("--trusted-forwarder 10.0.0.2/32") == 2 and page.text.count("rewrite edns0 subnet") == 1


def test_unmet_answers() -> None:
    """They stand with the Service whose clients get nothing, and alone if by now each client would get something."""
    known, other = trouble(UNMET, "a", service="shop/hard", parts=("a",)), trouble(UNMET, "b", service="shop/hard")
    services = {
        "shop/hard": history.Answered(3, unmet=4),
        "shop/past": history.Answered(unmet=1),
        "shop/idle": history.Answered(unmet=1),
        "shop/good": history.Answered(9),
    }
    without_any = snapshot_of(listed([service("idle")])).services
    first, second, idle, past = live_unmet([known, other], asked(unmet=5, services=services), without_any)
    assert first.cause == "Because. 4 answers were empty in the last 5 minutes." and second.cause == "Because."
    assert first.links[-1][1] == "/tail?service=shop%2Fhard&outcome=unmet"
    (before,) = live_unmet([known], asked(), {})
    assert before.links == first.links, "decisions are kept longer than they are counted"
    assert (past.kind, past.title) == (UNMET_ANSWERS, "1 answer of shop/past was empty in the last 5 minutes")
    assert "Each running pod would get one now." in past.cause
    assert "no ready endpoint" in idle.cause and idle.command.startswith("kubectl -n shop get endpointslices")
    (alone,) = live_unmet([], asked(unmet=4), {})  # of which Service is not counted
    assert alone.title == "4 answers were empty in the last 5 minutes" and alone.links[0][1] == "/tail?outcome=unmet"
    assert [*live_unmet([], asked(), {}), *live_unmet([], None, {})] == []


STATES = st.lists(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from("abc")), unique=True), max_size=8)


@given(STATES)
def test_since_when(states: list[list[tuple[str, str]]]) -> None:
    """The time of the first look of those without a break that found it; none if that was the very first."""
    first_seen, before, when = FirstSeen(), dict[tuple[str, str], float | None](), 1000.0
    for number, state in enumerate(states):
        found = dated([trouble(*one) for one in state], first_seen, when + number, settled=True)
        before = {one: before.get(one, when + number if number else None) for one in state}
        assert [one.since for one in found] == [before[one] for one in state]


def test_parts_are_dated_each() -> None:
    """A trouble of several parts is as it is since the newest is there; what was a trouble of its own stays dated."""
    first_seen = FirstSeen()
    of = {place: trouble(UNMET, f"x {place}", parts=(f"x {place}",)) for place in "bc"}
    both = trouble(UNMET, "x *", parts=("x b", "x c"))
    looks = [[of["c"]], [of["c"], of["b"]], [both], [of["c"]]]
    seen = [dated(look, first_seen, 1000.0 + number, settled=True) for number, look in enumerate(looks)]
    assert [[one.since for one in found] for found in seen] == [[None], [None, 1001.0], [1001.0], [None]]


def test_the_page_of_a_service_dates_as_the_first_page_does() -> None:
    """Also a trouble that no look has found yet: that is new. The same command stands once."""
    one_lost = three_zones(zones="bc", lost="c")  # of clients in a and c

    async def times() -> list[list[str]]:
        shown, found = console(three_zones(), {}), []
        await look_at_troubles(shown.context)
        shown.publish(one_lost)
        for _ in range(2):
            page = await shown.page("/services/shop/hard")
            found.append(re.findall(r"since \d\d:\d\d UTC \(\d+ seconds?\)|or earlier", page.text))
            await look_at_troubles(shown.context)
        assert len(troubles_on(page)) == 2 and page.text.count(SOFTENED) == 1
        return found

    for seen in trio.run(times):
        assert len(seen) == 2 and "or earlier" not in seen


def test_before_the_first_look() -> None:
    """The page of a Service that is served or watched is not about a dump, even if it is the first that is read."""
    page = trio.run(console(three_zones(lost="b"), {}).page, "/services/shop/hard")
    assert troubles_on(page) == ["unmet shop/hard b"]
    assert "in this dump" not in page.text and re.search(r"since \d\d:\d\d UTC or earlier", page.text)


def test_a_service_that_loses_all() -> None:
    """It is worse than one that never had any, and comes first, once it is known that it had some."""
    never, standing = service("never", keys=f"{ZONE},*"), three_zones(zones="ab")
    had = [service("had", keys=f"{ZONE},*"), endpoint_slice("had", 1, SPREAD)]

    async def keys_and_tones() -> list[list[str]]:
        shown, found = console([*standing, never, *had]), []
        for cluster in ([*standing, never, *had], [*standing, never, had[0]]):
            shown.publish(cluster)
            page = await shown.page()
            bad = {one.get("data-key") for _, one in page.elements if "bad" in one.get("class", "").split()}
            found.append([f"{row}{'!' * (row in bad)}" for row in troubles_on(page)])
        return found

    assert trio.run(keys_and_tones) == [
        ["unmet shop/hard *!", "unmet shop/never *"],
        ["unmet shop/had *!", "unmet shop/hard *!", "unmet shop/never *"],
    ]


def test_what_is_known_is_bounded() -> None:
    """Of more troubles it is not known since when; each kind shows a few, and says how many more there are."""
    first_seen, many = FirstSeen(), [trouble(FINDING, str(number)) for number in range(MAX_KNOWN + 5)]
    dated([], first_seen, 1.0, settled=True)
    found = dated(many, first_seen, 2.0, settled=True)
    assert Counter(one.since for one in found) == {2.0: MAX_KNOWN, None: 5}
    shown, more = in_short([*found, trouble(UNMET)])
    assert [one.kind for one in shown] == [UNMET, *[FINDING] * MAX_OF_A_KIND]
    assert more == {FINDING: MAX_KNOWN + 5 - MAX_OF_A_KIND}
    assert Now(shown, more, 0.0, None, "").verdict == f"{MAX_KNOWN + 6:,} things are wrong"


@pytest.mark.parametrize(
    ("since", "began", "text"),
    [
        (None, None, "in this dump"),
        (None, 172_800.0 - 60, "since 23:59 UTC or earlier"),
        (172_800.0 - 180, 0.0, "since 23:57 UTC (3 minutes)"),
        (0.0, 0.0, "since 01 Jan 00:00 UTC (2 days)"),
    ],
    ids=["dump", "at-first", "minutes", "days"],
)
def test_since_as_people_read_it(since: float | None, began: float | None, text: str) -> None:
    """With the day if that is not today."""
    assert Now((), {}, 172_800.0, began, "").since_text(trouble(UNMET, since=since)) == text


def test_it_is_known_since_when_although_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console looks by itself after a change, and does not simulate again where nothing changed."""
    simulated: list[str] = []
    simulate = expected.simulate
    monkeypatch.setattr(expected, "simulate", lambda *of: simulated.append(of[0].key) or simulate(*of))

    async def main() -> None:
        shown = console(three_zones(), live=new_live())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Console(shown.context).run)
            await trio.sleep(3 * LOOK_SECONDS)
            assert simulated == ["shop/hard", "shop/soft"]
            shown.publish(three_zones(lost="b"))
            began = time.time()
            await trio.sleep(2 * LOOK_SECONDS)
            assert simulated[2:] == ["shop/hard", "shop/soft"]
            page = await shown.page()
            assert troubles_on(page) == ["unmet shop/hard b", "lost zone b"]
            assert f"since {time.strftime('%H:%M', time.gmtime(began))} UTC (" in page.text
            assert simulated[4:] == []
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("looks", "look", "what"),
    [(expected, "simulate", "what is wrong"), (RecentCounts, "look", "what was asked"),
     (ClientsByService, "look", "who asks"), (Live, "keep", "what was decided")],
    ids=["troubles", "counters", "clients", "decisions"],
)  # fmt: skip
def test_a_look_that_fails_costs_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, looks: object, look: str, what: str
) -> None:
    """It is counted and logged, and the next look comes."""

    def fail(*of: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(looks, look, fail)
    live = new_live()

    async def main() -> None:
        with trio.move_on_after(1.5 * LOOK_SECONDS):
            await Console(console(three_zones(), live=live).context).run()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert live.counts.failures["console"] == 2 and f"{what} could not be found out" in caplog.text
