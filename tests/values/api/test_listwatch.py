# SPDX-License-Identifier: Apache-2.0

"""ListWatch: its requests to the API server and what the answers mean, as raw lines, without a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.api.decoding import RESOURCES, Resource
from locator.api.deltas import DeltaBatch, Drop, Put, Replace
from locator.api.list_watch import (
    ABSENT_SECONDS,
    CUT,
    DOUBT,
    ENDED,
    EXPIRED,
    LONGEST_REQUESTED,
    PAGE,
    REFUSED,
    SILENT,
    UNREACHABLE,
    ListWatch,
    ListWatchRequest,
)
from locator.backoff import STEADY, STEADY_WATCH
from locator.model import EndpointSlice, Namespace, PodLocator, ServiceImport
from tests.kit.api_answers import INITIAL_END, Raw, bookmark, error, line, page, raw

RESOURCE = RESOURCES[Namespace]


def kind(name: str, label: str = "1") -> Namespace:
    return Namespace(name, {"v": label})


def listwatch(
    resource: Resource = RESOURCE, *, streaming: bool = True, chance: Callable[[], float] = lambda: 0.0
) -> ListWatch:
    return ListWatch(Namespace, resource, chance=chance, streaming=streaming)


def watching(resource: Resource = RESOURCE) -> ListWatch:
    """Return a ListWatch that has listed the namespace ``a`` at version 10 and has a watch open."""
    machine = listwatch(resource, streaming=False)
    machine.next_request()
    machine.page(page(raw("a", 5), version=10))
    machine.next_request()
    machine.begun()
    return machine


def checked(machine: ListWatch, found: Raw | None = None, *, version: int = 1_000) -> ListWatchRequest:
    """Answer the check that comes before a new watch: *found* is as it was; return the next request."""
    found, ask = found or raw("a", 5), machine.next_request()
    assert (ask.path, ask.query) == (RESOURCE.path, {"fieldSelector": f"metadata.name={found['metadata']['name']}"})
    assert ask.check and not ask.watch
    assert not machine.page(page(found, version=version))
    return machine.next_request()


def changes(news: DeltaBatch) -> list[object]:
    return list(news.deltas)


def replaced(*objects: Namespace) -> list[object]:
    return [Replace(Namespace, list(objects))]


# Lists


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


@pytest.mark.parametrize(
    "sign",
    [
        pytest.param(lambda machine: machine.lines([bookmark(7)]), id="bookmark before the end"),
        pytest.param(lambda machine: machine.ended(400.0), id="ended"),
        pytest.param(lambda machine: machine.ended(150.0, SILENT, "silent"), id="silent"),
    ],
)
def test_a_server_that_ignores_the_wish_is_asked_for_pages(sign: Callable[[ListWatch], object]) -> None:
    """An old server ignores unknown parameters and sends an ordinary watch."""
    machine = listwatch()
    machine.next_request()
    machine.lines([line("ADDED", raw("a", 3))])
    sign(machine)
    if machine.over:
        machine.ended(1.0)
    assert machine.next_request() == ListWatchRequest("/api/v1/namespaces", {"limit": "500"}, watch=False)
    assert changes(machine.page(page(raw("b", 3), version=9))) == replaced(kind("b")), "nothing of the half list"


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
    assert [*limits, machine.next_request().query] == [{"limit": str(PAGE)}, {"limit": "5000"}, {"limit": "50000"}, {}]
    assert changes(machine.page(page(raw("b", 5), version=10))) == replaced(kind("b")), "nothing of the broken lists"
    machine.next_request()
    machine.lines([error(410)])
    machine.ended(0)
    assert machine.next_request().query == {"limit": "500"}


def fails_and_asks_again(machine: ListWatch, fault: int | str) -> None:
    """Let a request fail by an HTTP status, or by what cut it off: after a pause, the same one comes again."""
    ask = machine.next_request()
    if isinstance(fault, int):
        machine.refused(fault, "no")
    else:
        machine.ended(0, fault, "no")
    assert machine.pause >= 0.8
    assert machine.problem == "no"
    assert machine.next_request() == ask


@pytest.mark.parametrize("fault", [429, 500, 503, 403, CUT, UNREACHABLE])
def test_a_refused_page_is_asked_for_again(fault: int | str) -> None:
    """The pages before it are kept."""
    machine = listwatch(streaming=False)
    machine.next_request()
    machine.page(page(raw("a", 5), version=10, more="token"))
    fails_and_asks_again(machine, fault)
    assert changes(machine.page(page(raw("b", 5), version=10))) == replaced(kind("a"), kind("b"))
    assert not machine.problem
    assert machine.pause == 0


def test_a_page_that_cannot_be_read_is_no_list() -> None:
    """Half a page, or a proxy's error page, is not a list."""
    machine = listwatch(streaming=False)
    machine.next_request()
    assert not machine.page(b'{"metadata": {"resourceVersion": "1"}, "items": [{"met')
    assert machine.over
    assert machine.restart_reason == DOUBT
    machine.ended(0)
    assert machine.pause >= 0.8
    assert not machine.listed


def test_no_items_is_an_empty_list() -> None:
    """Go writes an empty list as ``null``."""
    machine = listwatch(streaming=False)
    machine.next_request()
    assert changes(machine.page(b'{"metadata": {"resourceVersion": "1"}, "items": null}')) == replaced()


# Watches


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


# What the API server has in the place of the object that changed last, ``b`` at version 11; the list's version; whether
# it may be the same history.
STATES = {
    "the same version": ([raw("b", 11)], 11, True),
    "the object has changed": ([raw("b", 12, "2")], 12, True),
    "etcd restored from a backup": ([raw("b", 9)], 10, False),
    "restored, and the version is overtaken": ([raw("b", 9)], 1_300, False),
    "restored, and its version has fewer digits": ([raw("b", 9)], 100_000, False),
    "another cluster": ([raw("b", 1_299, uid="2")], 1_300, False),
    "nothing but an older version of the list": ([raw("b", 11)], 10, False),
    "versions that nobody can compare": ([{"metadata": {"name": "b", "uid": "1", "resourceVersion": "x"}}], 11, True),
    "an object that cannot be read": ([{"metadata": 5}], 11, False),
}
# How long the watch before lasted, and how it ended.
ENDINGS = [
    (lasted, reason) for reason in (ENDED, CUT, SILENT) for lasted in (0.1, 4.0, STEADY - 1, STEADY, 2 * STEADY, 600.0)
] + [(0.0, UNREACHABLE), (0.0, ENDED)]


@pytest.mark.parametrize(("lasted", "reason"), ENDINGS)
@pytest.mark.parametrize(("found", "version", "same"), STATES.values(), ids=STATES)
def test_before_each_watch_the_cluster_is_compared_with_what_is_known(
    lasted: float, reason: str, found: list[Raw], version: int, same: bool
) -> None:
    """However the last one ended: the API server grants a watch from a version of the future, and is silent."""
    machine = watching()
    machine.lines([line("ADDED", raw("b", 11))])
    machine.ended(lasted, reason, "" if reason == ENDED else "why")
    assert machine.pause <= 0.8, "within 5 s"
    ask = machine.next_request()
    assert ask.check and ask.query == {"fieldSelector": "metadata.name=b"}
    assert not machine.page(page(*found, version=version))
    assert machine.pause == 0
    assert machine.restart_reason == ("" if same else EXPIRED)
    ask = machine.next_request()
    assert ask.watch == same
    assert ask.query.get("resourceVersion") == ("11" if same else None)


def follows_gone(gone: int, others: Sequence[Raw], *, version: int = 1_300) -> ListWatch:
    """Return a ListWatch whose last *gone* witnesses the server no longer has; the next one is there."""
    machine = listwatch(streaming=False)
    machine.next_request()
    machine.page(page(*others, version=10))
    machine.next_request()
    machine.lines([line("ADDED", raw(f"b{number}", 11 + number, uid=f"b{number}")) for number in range(gone)])
    machine.ended(300)
    for number in reversed(range(gone)):
        assert machine.next_request().query == {"fieldSelector": f"metadata.name=b{number}"}
        machine.page(page(version=version))
    return machine


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_witness_that_was_deleted_costs_no_list(gone: int) -> None:
    """Another one shows that the history is the same, and the watch brings the deletions."""
    machine = follows_gone(gone, [raw("a", 5)])
    assert checked(machine).query["resourceVersion"] == str(10 + gone)
    machine.begun()
    news = [line("DELETED", raw(f"b{number}", 1_001 + number, uid=f"b{number}")) for number in range(gone)]
    machine.lines([line("MODIFIED", raw("a", 1_000)), *news, bookmark(1_300), line("ADDED", raw("c", 1_301))])
    assert not (machine.over or machine.went_back or machine.restart_reason or machine.problem)


@pytest.mark.parametrize(
    "proof", [bookmark(1_300), line("ADDED", raw("c", 1_301)), line("DELETED", raw("b0", 1_301, uid="another"))]
)
def test_a_witness_that_never_was_is_noticed(proof: bytes) -> None:
    """An etcd restored to a time before the object, whose version is overtaken: the watch brings no deletion."""
    machine = follows_gone(1, [raw("a", 5)])
    assert checked(machine).watch
    machine.begun()
    machine.lines([line("ADDED", raw("d", 1_200)), bookmark(1_299)])
    assert not machine.over
    machine.lines([proof])
    assert machine.over and machine.went_back, "proof enough for all kinds"
    machine.ended(1)
    assert machine.next_request().query == {"limit": "500"}


@pytest.mark.parametrize("others", [[], [raw("b0", 5, uid="b0")]], ids=["none", "the same"])
def test_if_all_witnesses_are_gone_the_kind_alone_lists_again(others: list[Raw]) -> None:
    """That proves nothing about other kinds."""
    machine = follows_gone(1, others)
    assert machine.restart_reason == EXPIRED and not machine.went_back
    assert machine.next_request().query == {"limit": "500"}


@pytest.mark.parametrize(
    ("found", "version", "proof"),
    [
        pytest.param([raw("a", 4)], 1_300, True, id="an older version of it"),
        pytest.param([raw("a", 1_200, uid="2")], 1_300, True, id="another one of its name"),
        pytest.param([raw("a", 5)], 9, True, id="an older version of the list"),
        pytest.param([], 1_300, False, id="gone"),
        pytest.param([raw("a", 6)], 1_300, False, id="changed"),
        pytest.param([raw("a", 5)], 10, False, id="as known"),
    ],
)
def test_only_proof_makes_other_kinds_list_again(found: list[Raw], version: int, proof: bool) -> None:
    """Every replica would list everything whenever an object is deleted."""
    machine = watching()
    machine.ended(300)
    machine.next_request()
    machine.page(page(*found, version=version))
    assert machine.went_back == proof


@pytest.mark.parametrize("streaming", [True, False])
@given(st.permutations(range(2, 30)), st.integers(5, 28))
def test_what_has_not_changed_for_longest_is_a_witness(streaming: bool, versions: list[int], gone: int) -> None:
    """When all that was newest is deleted, as after a rollout, what is oldest still is there."""
    machine = listwatch(streaming=streaming)
    machine.next_request()
    items = [raw(f"n{version}", version, uid=str(version)) for version in versions]
    if streaming:
        machine.lines([*(line("ADDED", item) for item in items), bookmark(30, INITIAL_END)])
    else:
        machine.page(page(*items, version=30))
        machine.next_request()
    deleted = sorted(versions, reverse=True)[:gone]
    machine.lines([line("DELETED", raw(f"n{one}", 100 + one, uid=str(one))) for one in deleted if one != 2])
    machine.ended(300)
    assert machine.next_request().query == {"fieldSelector": "metadata.name=n2"}
    machine.page(page(raw("n2", 2, uid="2"), version=1_000))
    machine.next_request()
    machine.page(page(version=1_000))
    assert machine.next_request().watch


def test_who_may_not_check_watches_on() -> None:
    """An API server that starts forbids everything for a moment; one that goes on to do so forbids the check alone."""
    machine = watching()
    machine.ended(300)
    fails_and_asks_again(machine, 403)
    for _ in range(3):
        assert machine.next_request().check
        machine.refused(403, "no")
        assert not machine.pause and not machine.restart_reason
        assert machine.next_request().query["resourceVersion"] == "10"
        machine.begun()
        assert not machine.problem
        machine.ended(300)


@pytest.mark.parametrize(
    ("found", "version", "same"),
    [
        pytest.param([], 1_300, True, id="gone"),
        pytest.param([raw("b", 15, uid="2")], 1_300, True, id="made again"),
        pytest.param([raw("b", 11)], 1_300, False, id="there again"),
        pytest.param([raw("b", 9, uid="0")], 1_300, False, id="its predecessor is there again"),
        pytest.param([], 11, False, id="an older version"),
    ],
)
def test_what_was_deleted_last_must_not_be_there_again(found: list[Raw], version: int, same: bool) -> None:
    """An etcd restored to a time before the deletion has the object; the one that changed last is asked for, too."""
    machine = watching()
    machine.lines([line("ADDED", raw("b", 11)), line("DELETED", raw("b", 12))])
    machine.ended(300)
    assert machine.next_request().query == {"fieldSelector": "metadata.name=a"}
    machine.page(page(raw("a", 5), version=1_300))
    assert not machine.restart_reason
    ask = machine.next_request()
    assert ask.check and ask.query == {"fieldSelector": "metadata.name=b"}
    machine.page(page(*found, version=version))
    assert machine.next_request().watch == same


@pytest.mark.parametrize("events", [[], [line("ADDED", raw("b", 10)), line("DELETED", raw("b", 10))]], ids=len)
@pytest.mark.parametrize(
    ("found", "version", "same"),
    [
        pytest.param([], 10, True, id="still none"),
        pytest.param([], 9, False, id="an older version"),
        pytest.param([raw("b", 11)], 11, False, id="one"),
    ],
)
def test_of_a_kind_without_objects_any_may_be_old(
    events: list[bytes], found: list[Raw], version: int, same: bool
) -> None:
    """One that exists may be new, or prove another history; a list of a few objects tells."""
    machine = listwatch(streaming=False)
    machine.next_request()
    machine.page(page(version=10))
    machine.next_request()
    machine.lines(events)
    machine.ended(300)
    assert machine.next_request() == ListWatchRequest(RESOURCE.path, {"limit": "1"}, watch=False, check=True)
    machine.page(page(*found, version=version))
    assert machine.next_request().watch == same


def test_the_object_that_changed_last_is_asked_for() -> None:
    """In its namespace, by its name; not one that is about to be deleted, as long as another one is known."""
    machine = listwatch()
    machine.next_request()

    def shown(name: str, version: int, **more: object) -> Raw:
        return {"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version), **more}}

    def asked(*events: bytes) -> str:
        machine.lines(events)
        machine.ended(300)
        ask = machine.next_request()
        assert ask.check and ask.path == "/api/v1/namespaces/n/namespaces"
        name = ask.query["fieldSelector"].removeprefix("metadata.name=")
        machine.page(page(shown(name, 1_000), version=1_000))
        assert machine.next_request().watch
        return name

    many = [line("ADDED", shown(f"pod-{number}", (number * 7) % 100)) for number in range(100)]
    assert asked(*many, bookmark(100, INITIAL_END)) == "pod-57", "of a list, the one with the newest version"
    assert asked(line("MODIFIED", shown("pod-3", 101))) == "pod-3"
    assert asked(line("MODIFIED", shown("pod-4", 102, deletionTimestamp="2026-01-01T00:00:00Z"))) == "pod-3"
    assert asked(line("DELETED", shown("pod-3", 103)), line("MODIFIED", shown("pod-9", 104))) == "pod-9"
    gone = [line("DELETED", shown(f"pod-{number}", 200 + number)) for number in range(100)]
    machine.lines([*gone, line("MODIFIED", shown("old", 50)), line("DELETED", shown("last", 301))])
    machine.ended(300)
    assert machine.next_request().query == {"fieldSelector": "metadata.name=old"}


def test_versions_of_any_length_are_compared() -> None:
    """Also one that is far too long to be the number of a version."""
    machine = watching()
    machine.lines([line("ADDED", {"metadata": {"name": "b", "uid": "1", "resourceVersion": "9" * 10_000}})])
    machine.ended(300)
    machine.next_request()
    machine.page(page(raw("b", 11), version=11))
    assert machine.restart_reason == EXPIRED


@pytest.mark.parametrize("fault", [401, 403, 429, 503, 504, CUT, UNREACHABLE])
def test_a_comparison_that_fails_is_tried_again(fault: int | str) -> None:
    """What a load balancer or an API server that starts says proves nothing."""
    machine = watching()
    machine.ended(300, CUT, "cut")
    fails_and_asks_again(machine, fault)


def test_the_next_page_of_a_version_of_the_future_means_listing_again() -> None:
    """If the cluster was built anew in the middle of a list, its server refuses the continue token with 504."""
    machine = listwatch(streaming=False)
    machine.next_request()
    machine.page(page(raw("a", 5), version=10, more="token"))
    machine.next_request()
    machine.refused(504, "too large resource version")
    assert machine.next_request().query == {"limit": "500"}


@pytest.mark.parametrize("status", [401, 403, 429, 500, 502, 503, 504])
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


# Kinds that may not exist


LOCATORS = RESOURCES[PodLocator]._replace(optional=True)


@pytest.mark.parametrize("streaming", [True, False])
def test_there_are_none_of_an_optional_kind_that_the_api_does_not_know(streaming: bool) -> None:
    """A missing CRD is no problem; ListWatch asks again until it appears."""
    machine = ListWatch(PodLocator, LOCATORS, chance=lambda: 0.5, streaming=streaming)
    for expected in ([Replace(PodLocator, [])], [], []):
        machine.next_request()
        assert changes(machine.refused(404, "not found")) == expected
        assert machine.listed
        assert not machine.problem
        assert not machine.restart_reason, "nothing went wrong that would have to be counted"
        assert machine.pause == ABSENT_SECONDS
    machine.ended(0, UNREACHABLE, "no")
    machine.ended(0, UNREACHABLE, "no")
    assert machine.pause == pytest.approx(2.4), "the second delay"
    machine.next_request()
    machine.refused(404, "not found")
    machine.next_request()
    machine.ended(0, UNREACHABLE, "no")
    assert machine.pause == pytest.approx(1.2), "the first delay: it was in contact again"
    assert machine.problem == "no"
    assert machine.next_request().query.get("sendInitialEvents") == ("true" if streaming else None)


def test_an_optional_kind_can_vanish() -> None:
    """If its CRD is deleted, all its objects go; if the CRD is back, they are listed again."""
    machine = ListWatch(PodLocator, LOCATORS, chance=lambda: 0.0)
    machine.next_request()
    locator = {"metadata": {"name": "a", "namespace": "n", "resourceVersion": "7"}, "ips": [{"ip": "no address"}]}
    news = machine.lines([line("ADDED", locator), bookmark(9, INITIAL_END)])
    assert list(news.findings) == ["PodLocator n/a"]
    machine.ended(50)
    machine.next_request()
    gone = machine.refused(404, "not found")
    assert changes(gone) == [Replace(PodLocator, [])]
    assert gone.findings == {"PodLocator n/a": ()}, "what does not exist is not wrong"
    machine.next_request()
    assert len(machine.lines([line("ADDED", locator), bookmark(19, INITIAL_END)]).deltas) == 1


IMPORTS = RESOURCES[ServiceImport]
OLDER = IMPORTS.older_path
IMPORTED = {"metadata": {"name": "db", "namespace": "n", "resourceVersion": "7"}, "spec": {"type": "Headless"}}


@pytest.mark.parametrize("streaming", [True, False])
def test_an_older_version_of_an_api_serves_as_well(streaming: bool) -> None:
    """The newer one is asked first; the older one at once, if the API server does not know that; both again later."""
    machine = ListWatch(ServiceImport, IMPORTS, chance=lambda: 0.0, streaming=streaming)
    assert machine.next_request().path == IMPORTS.path
    assert not machine.refused(404, "not found") and not machine.listed and not machine.pause
    assert not machine.restart_reason, "nothing went wrong that would have to be counted"
    assert machine.next_request().path == OLDER
    assert changes(machine.refused(404, "not found")) == [Replace(ServiceImport, [])]
    assert machine.listed and machine.absent and machine.pause == ABSENT_SECONDS
    assert machine.next_request().path == IMPORTS.path
    machine.refused(404, "not found")
    assert machine.next_request().path == OLDER and not machine.pause


def test_a_version_of_an_api_may_be_removed_while_it_is_watched() -> None:
    """Objects stay while the other version is listed; if that is unknown, too, there are none."""
    machine = ListWatch(ServiceImport, IMPORTS, chance=lambda: 0.0, streaming=False)
    machine.next_request()
    machine.refused(404, "not found")
    for path, gone in ((OLDER, IMPORTS.path), (IMPORTS.path, OLDER)):
        assert machine.next_request().path == path
        listed = changes(machine.page(page(IMPORTED, version=10)))
        assert [[found.key for found in delta.objects] for delta in listed if isinstance(delta, Replace)] == [["n/db"]]
        assert machine.next_request().path == path
        assert not machine.refused(404, "not found") and not machine.pause
        assert machine.next_request().path == gone and not machine.absent
    assert changes(machine.refused(404, "not found")) == [Replace(ServiceImport, [])]
    assert machine.absent


@pytest.mark.parametrize(
    ("resource", "hint"),
    [
        pytest.param(RESOURCES[PodLocator]._replace(optional=False), "is its CRD installed?", id="of a CRD"),
        pytest.param(RESOURCES[EndpointSlice], "Kubernetes serves it from 1.21 on", id="of an old cluster"),
        pytest.param(RESOURCE, "is this the API server of a cluster?", id="of the core"),
    ],
)
def test_a_kind_that_is_needed_and_missing_is_a_problem(resource: Resource, hint: str) -> None:
    """The message names the kind and what may help."""
    machine = ListWatch(object, resource, chance=lambda: 0.0)
    machine.next_request()
    assert not machine.refused(404, "404 NotFound")
    assert machine.problem == f"404 NotFound: the API server has no {resource.path}; {hint}"
    assert not machine.listed


# Objects that cannot be read


def test_an_unreadable_object_is_passed_over_and_named() -> None:
    """The others are read; a finding lasts until the object is fixed or deleted."""
    machine = listwatch(streaming=False)
    machine.next_request()
    news = machine.page(page(raw("a", 1), raw("b", 2, 5), raw("c", 3, 5), version=10))
    assert changes(news) == replaced(kind("a"))
    named = {place: [finding.name for finding in found] for place, found in news.findings.items()}
    assert named == {"Namespace b": ["b"], "Namespace c": ["c"]}
    machine.next_request()
    assert changes(watched := machine.lines([line("MODIFIED", raw("a", 11, 5))])) == [Drop(Namespace, "a")]
    assert "unreadable" in watched.findings["Namespace a"][0].message
    assert machine.lines([line("MODIFIED", raw("a", 12))]).findings == {"Namespace a": ()}
    assert machine.lines([line("DELETED", raw("b", 13, 5))]).findings == {"Namespace b": ()}
    machine.lines([error(410)])
    machine.ended(0)
    machine.next_request()
    assert machine.page(page(raw("a", 1), version=20)).findings == {"Namespace c": ()}, (
        "a list clears what it does not hold"
    )


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
