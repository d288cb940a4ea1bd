# SPDX-License-Identifier: Apache-2.0

"""ListWatch: its requests to the API server and what the answers mean, as raw lines, without a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.api.decoding import RESOURCES, Resource
from locator.api.deltas import Drop, Put, Replace
from locator.api.list_watch import (
    CUT,
    DOUBT,
    ENDED,
    EXPIRED,
    JSON,
    LONGEST_REQUESTED,
    PAGE_SIZE,
    REFUSED,
    SILENT,
    UNREACHABLE,
    ListWatch,
    ListWatchRequest,
)
from locator.backoff import STEADY, STEADY_WATCH
from locator.hints.slices import HINT_RESOURCES
from locator.model import EndpointSlice, Namespace
from locator.podlocators.locators import LOCATOR_RESOURCES
from locator.policies.status import POLICY_RESOURCES
from tests.kit.api_answers import INITIAL_END, Raw, bookmark, error, line, page, raw
from tests.kit.list_watches import RESOURCE, changes, checked, fails_and_asks_again, kind, listwatch, replaced, watching


def test_a_list_is_streamed_where_the_server_can() -> None:
    """The watch begins with all objects; a bookmark ends the list, and the same stream goes on as a watch."""
    machine = listwatch(chance=lambda: 0.5)
    ask = machine.next_request()
    assert ask == ListWatchRequest(
        "/api/v1/namespaces",
        {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "timeoutSeconds": "450",
        },
        watch=True,
    )
    machine.begun()
    assert not machine.lines([line("ADDED", raw("a", 3)), line("ADDED", raw("b", 4))]), "a part of a list is no news"
    assert not machine.listed
    news = machine.lines([line("ADDED", raw("c", 2)), bookmark(9, INITIAL_END), line("ADDED", raw("d", 10))])
    assert changes(news) == [Replace(Namespace, [kind("a"), kind("b"), kind("c")]), Put(kind("d"))]
    assert machine.listed
    assert not machine.over
    assert not machine.problem
    machine.ended(300)
    assert machine.pause == 0
    assert checked(machine, raw("d", 10)).query["resourceVersion"] == "10"


@pytest.mark.parametrize("status", [400, 405, 422])
def test_a_server_that_refuses_to_stream_is_asked_for_pages(status: int) -> None:
    """At once, and without a resourceVersion: with 0, the server ignores ``limit``."""
    machine = listwatch()
    machine.next_request()
    assert not machine.refused(status, "no")
    assert machine.pause == 0
    assert machine.next_request() == ListWatchRequest("/api/v1/namespaces", {"limit": "500"}, watch=False)
    assert not machine.page(page(raw("a", 5), version=10, more="token"))
    assert machine.next_request().query == {"limit": "500", "continue": "token"}
    assert changes(machine.page(page(raw("b", 6), version=10))) == replaced(kind("a"), kind("b"))
    assert machine.next_request().query == {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "10",
        "timeoutSeconds": "300",
    }


def test_metadata_alone_is_asked_for_by_the_header_accept() -> None:
    """As client-go's metadata client does: the kind of a list differs, and whole objects are accepted, too."""

    def accepted(request: ListWatchRequest) -> list[str]:
        partial, whole = request.accept.split(",")
        assert partial.endswith(";g=meta.k8s.io;v=v1")
        return [partial.removesuffix(";g=meta.k8s.io;v=v1"), whole]

    one, many = ([f"application/json;as=PartialObjectMetadata{suffix}", JSON] for suffix in ("", "List"))
    machine = listwatch(RESOURCE._replace(metadata_only=True))
    assert accepted(machine.next_request()) == one, "a streamed list is a watch"
    machine.refused(400, "no")
    assert accepted(machine.next_request()) == many
    machine.page(page(raw("a", 5), version=10))
    assert accepted(machine.next_request()) == one
    machine.ended(300)
    check = machine.next_request()
    assert check.check and accepted(check) == many
    assert listwatch().next_request().accept == JSON


@pytest.mark.parametrize("resources", [HINT_RESOURCES, LOCATOR_RESOURCES, POLICY_RESOURCES])
def test_controllers_read_the_metadata_of_nodes_alone(resources: Mapping[type[object], Resource]) -> None:
    """They need labels. Of all other kinds, they need more."""
    assert [resource.name for resource in resources.values() if resource.metadata_only] == ["Node"]


@pytest.mark.parametrize("fault", [(0.1, CUT, "cut"), (0.0, UNREACHABLE, "refused"), (0.0, SILENT, "hangs")])
def test_a_streamed_list_that_breaks_off_is_streamed_again(fault: tuple[float, str, str]) -> None:
    """ListWatch discards the broken list and begins again."""
    machine = listwatch()
    machine.next_request()
    machine.lines([line("ADDED", raw("a", 3))])
    machine.ended(*fault)
    assert machine.pause >= 0.8
    assert machine.next_request().query["sendInitialEvents"] == "true"
    assert changes(machine.lines([bookmark(9, INITIAL_END)])) == replaced()


def test_expired_continue_tokens_lead_to_larger_pages() -> None:
    """Each try has pages ten times as large, at last one page; the next list begins small again."""
    machine, limits = listwatch(streaming=False), []
    for number in range(3):
        limits.append(machine.next_request().query)
        machine.page(page(raw(f"gone-{number}", 5), version=10, more="token"))
        assert machine.next_request().query["continue"] == "token"
        machine.refused(410, "expired")
        assert machine.restart_reason == EXPIRED
        assert machine.pause == 0
    limits.append(machine.next_request().query)
    assert limits == [{"limit": str(PAGE_SIZE)}, {"limit": "5000"}, {"limit": "50000"}, {}]
    assert changes(machine.page(page(raw("b", 5), version=10))) == replaced(kind("b")), "nothing of the broken lists"
    machine.next_request()
    machine.lines([error(410)])
    machine.ended(0)
    assert machine.next_request().query == {"limit": "500"}


@pytest.mark.parametrize("fault", [403, 503, CUT, UNREACHABLE])
def test_a_refused_page_is_asked_for_again(fault: int | str) -> None:
    """The pages before it are kept."""
    machine = listwatch(streaming=False)
    machine.next_request()
    machine.page(page(raw("a", 5), version=10, more="token"))
    fails_and_asks_again(machine, fault)
    assert changes(machine.page(page(raw("b", 5), version=10))) == replaced(kind("a"), kind("b"))
    assert not machine.problem
    assert machine.pause == 0


def test_no_items_is_an_empty_list() -> None:
    """Go writes an empty list as ``null``."""
    machine = listwatch(streaming=False)
    machine.next_request()
    assert changes(machine.page(b'{"metadata": {"resourceVersion": "1"}, "items": null}')) == replaced()


@pytest.mark.parametrize(
    ("events", "expected", "version", "exists"),
    [
        pytest.param([line("ADDED", raw("b", 11))], [Put(kind("b"))], "11", [raw("b", 11)], id="added"),
        pytest.param([line("MODIFIED", raw("a", 12, "2"))], [Put(kind("a", "2"))], "12", [raw("a", 12)], id="modified"),
        pytest.param([line("DELETED", raw("a", 13))], [Drop(Namespace, "a")], "13", [], id="deleted"),
        pytest.param([line("DELETED", raw("a", 13, 5))], [Drop(Namespace, "a")], "13", [], id="unreadable one deleted"),
        pytest.param([bookmark(99)], [], "99", [raw("a", 5)], id="bookmark"),
        pytest.param([line("ADDED", raw("a", 5))] * 2, [Put(kind("a"))] * 2, "5", [raw("a", 5)], id="the same again"),
        pytest.param([line("ADDED", {"metadata": {"resourceVersion": "8"}})], [], "8", [raw("a", 5)], id="nameless"),
        pytest.param([], [], "10", [raw("a", 5)], id="nothing"),
    ],
)
def test_events_become_changes(
    events: Sequence[bytes], expected: list[object], version: str, exists: list[Raw]
) -> None:
    """Each event gives a delta, and advances the version."""
    machine = watching()
    assert changes(machine.lines(events)) == expected
    assert not machine.over
    machine.ended(300)
    machine.next_request()
    machine.page(page(*exists, version=1_000))
    assert machine.next_request().query["resourceVersion"] == version


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        pytest.param(error(410), EXPIRED, id="410"),
        pytest.param(error(500), DOUBT, id="another error"),
        pytest.param(b'{"type": "ERROR", "object": {}}', DOUBT, id="an error without a word"),
        pytest.param(b'{"type": "ADDED", "object": {"metadata": {"na', DOUBT, id="no JSON"),
        pytest.param(b"upstream connect error", DOUBT, id="a proxy's words"),
        pytest.param(b"\xff\xfe", DOUBT, id="no text"),
        pytest.param(b"[]", DOUBT, id="another shape"),
        pytest.param(line("WHATEVER", raw("b", 11)), DOUBT, id="unknown event"),
        pytest.param(b'{"type": "BOOKMARK", "object": {"metadata": 5}}', DOUBT, id="bookmark of another shape"),
    ],
)
def test_doubt_about_what_was_missed_means_listing_again(last: bytes, reason: str) -> None:
    """Deltas before the doubtful line hold; later lines are ignored, and the new list fixes the rest."""
    machine = watching()
    news = machine.lines([line("ADDED", raw("b", 11)), last, line("ADDED", raw("c", 12))])
    assert changes(news) == [Put(kind("b"))]
    assert machine.over
    machine.ended(1)
    assert machine.restart_reason == reason
    assert machine.problem
    assert (machine.pause >= 0.8) == (reason != EXPIRED)
    assert machine.next_request() == ListWatchRequest("/api/v1/namespaces", {"limit": "500"}, watch=False)
    assert changes(machine.page(page(raw("c", 12), version=20))) == replaced(kind("c"))
    assert not machine.problem


@pytest.mark.parametrize(
    ("lived", "reason", "waits"),
    [
        pytest.param(300, ENDED, False, id="time over"),
        pytest.param(1, ENDED, True, id="ended early"),
        pytest.param(300, CUT, True, id="cut"),
        pytest.param(1, CUT, True, id="cut at once"),
        pytest.param(160, SILENT, True, id="silent"),
        pytest.param(0, UNREACHABLE, True, id="unreachable"),
    ],
)
def test_a_watch_that_ends_is_watched_on(lived: float, reason: str, waits: bool) -> None:
    """The next watch begins at the last version, after a check; without a pause if the last one lived and ended."""
    machine = watching()
    machine.lines([line("ADDED", raw("b", 11))])
    machine.ended(lived, reason, "" if reason == ENDED else "why")
    assert machine.restart_reason == reason
    assert bool(machine.problem) == waits
    assert (machine.pause >= 0.8) == waits
    assert checked(machine, raw("b", 11)).query["resourceVersion"] == "11"
    assert bool(machine.problem) == waits
    machine.begun()
    assert not machine.problem


@pytest.mark.parametrize("status", [410, 404, 400, 422])
def test_a_version_that_is_refused_means_listing_again(status: int) -> None:
    """410, too old: at once, as long as nothing else failed."""
    machine = watching()
    machine.ended(300)
    checked(machine)
    machine.refused(status, "no")
    assert (machine.pause >= 0.8) == (status != 410)
    assert machine.restart_reason == (EXPIRED if status == 410 else REFUSED)
    assert machine.next_request().query == {"limit": "500"}


def test_lists_for_versions_that_expire_again_and_again_wait() -> None:
    """If the API server forgets a version while it sends the list, the next list would be as useless."""
    machine, pauses = listwatch(), []
    for _ in range(4):
        machine.next_request()
        machine.lines([line("ADDED", raw("a", 3)), bookmark(9, INITIAL_END), error(410)])
        machine.ended(STEADY - 1)
        pauses.append(machine.pause)
    assert pauses == pytest.approx([0, 1.6, 3.2, 6.4])


@pytest.mark.parametrize("status", [403, 503, 504])
def test_a_watch_that_is_refused_for_now_is_asked_for_again(status: int) -> None:
    """The last version still holds; meanwhile the refusal is reported as a problem."""
    machine = watching()
    machine.ended(300)
    ask = checked(machine)
    machine.refused(status, f"{status} why")
    assert machine.problem == f"{status} why"
    assert machine.restart_reason == REFUSED
    again = checked(machine)
    assert (again.path, again.query) == (ask.path, ask.query)


@pytest.mark.parametrize(("asked", "pause"), [(None, 0.8), (0.1, 0.8), (7.0, 7.0), (1e9, LONGEST_REQUESTED)], ids=str)
def test_retry_after_is_honoured(asked: float | None, pause: float) -> None:
    """Up to a limit, and never sooner than the backoff delay."""
    machine = listwatch()
    machine.next_request()
    machine.refused(429, "busy", asked)
    assert machine.pause == pause


def test_watches_that_die_at_once_never_storm() -> None:
    """Each watch is granted, and each delay is longer than the last one, up to the cap."""
    machine, pauses = watching(), []
    for _ in range(8):
        machine.ended(0.01, CUT, "cut")
        pauses.append(machine.pause)
        assert checked(machine).watch
        machine.begun()
        machine.lines([bookmark(11)])
    assert pauses == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8, 15, 15, 15])
    machine.ended(STEADY_WATCH - 1, CUT, "cut")
    assert machine.pause == 15
    machine.next_request()
    machine.page(page(raw("a", 5), version=11))
    machine.next_request()
    machine.ended(STEADY_WATCH, CUT, "cut")
    assert machine.pause == 0.8, "a watch alone counts as steady sooner than a list, which is expensive to repeat"
    assert machine.problem == "cut"


def test_nothing_that_failed_before_counts_once_the_server_is_back() -> None:
    """The next delays are the first ones again."""
    machine = watching()
    for _ in range(5):
        machine.ended(0, UNREACHABLE, "no")
    machine.server_is_back()
    machine.next_request()
    machine.ended(0, UNREACHABLE, "no")
    assert machine.pause == 0.8


@pytest.mark.parametrize(
    ("fail", "most"),
    [
        pytest.param(lambda machine: machine.ended(0, UNREACHABLE, "no"), 250, id="unreachable"),
        pytest.param(lambda machine: machine.refused(503, "no"), 250, id="503"),
        pytest.param(lambda machine: machine.refused(429, "no", 20.0), 180, id="429, to come again in 20 s"),
        pytest.param(lambda machine: machine.refused(403, "no"), 500, id="403"),  # to a check, and to the watch
        pytest.param(lambda machine: machine.ended(0.1, CUT, "no"), 250, id="cut at once"),
    ],
)
@pytest.mark.parametrize("known", [True, False], ids=["watching", "listing"])
def test_an_hour_of_failures_costs_few_requests(fail: Callable[[ListWatch], object], most: int, known: bool) -> None:
    """As few as those of client-go, even if each pause is the shortest possible."""
    machine, now, asked = watching() if known else listwatch(), 0.0, 0
    while now < 3_600:
        fail(machine)
        now += machine.pause
        machine.next_request()
        asked += 1
    assert 120 < asked <= most


def test_the_time_of_a_slices_change_is_handed_on() -> None:
    """For events, not for a list: a list says nothing about our delay."""
    machine = ListWatch(EndpointSlice, RESOURCES[EndpointSlice], chance=lambda: 0.0)
    machine.next_request()

    def sliced(time: str) -> Raw:
        noted = {"endpoints.kubernetes.io/last-change-trigger-time": time}
        return {"metadata": {"name": "s", "namespace": "n", "resourceVersion": "1", "annotations": noted}}

    assert not machine.lines([line("ADDED", sliced("2024-01-01T00:00:00Z")), bookmark(2, INITIAL_END)]).triggered
    news = machine.lines([line("MODIFIED", sliced("2024-01-01T00:00:05Z")), line("DELETED", sliced("later"))])
    assert news.triggered == ["2024-01-01T00:00:05Z"]


@given(batch=st.lists(st.binary() | st.sampled_from([error(410), bookmark(3), line("ADDED", raw("a", 1))])))
def test_whatever_lines_hold_something_is_asked_next(batch: list[bytes]) -> None:
    """No line, of an API server or a proxy, ends a reflector."""
    machine = watching()
    machine.lines(batch)
    machine.ended(1)
    assert machine.next_request().path == RESOURCE.path


@given(
    body=st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["metadata", "items", "continue"]), inner),
    ).map(lambda value: json.dumps(value).encode())
)
def test_whatever_a_page_holds_something_is_asked_next(body: bytes) -> None:
    """No page ends a reflector."""
    machine = listwatch(streaming=False)
    machine.next_request()
    machine.page(body)
    if machine.over:
        machine.ended(0)
    assert machine.next_request().path == RESOURCE.path
