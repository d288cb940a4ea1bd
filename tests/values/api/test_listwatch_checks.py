# SPDX-License-Identifier: Apache-2.0

"""ListWatch: before each watch, it compares the cluster with what it knows, since etcd may have been restored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from locator.api.list_watch import CUT, ENDED, EXPIRED, SILENT, UNREACHABLE, ListWatch, ListWatchRequest
from locator.backoff import STEADY
from tests.kit.api_answers import INITIAL_END, Raw, bookmark, line, page, raw
from tests.kit.list_watches import RESOURCE, checked, fails_and_asks_again, listwatch, watching

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
ENDINGS = [(600.0, ENDED), (0.1, ENDED), (STEADY, CUT), (STEADY - 1, SILENT), (0.0, UNREACHABLE)]


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

    listed = [line("ADDED", shown(f"pod-{number}", number)) for number in (57, 99, 3)]
    assert asked(*listed, bookmark(100, INITIAL_END)) == "pod-99", "of a list, the one with the newest version"
    assert asked(line("MODIFIED", shown("pod-3", 101))) == "pod-3"
    assert asked(line("MODIFIED", shown("pod-4", 102, deletionTimestamp="2026-01-01T00:00:00Z"))) == "pod-3"
    assert asked(line("DELETED", shown("pod-3", 103)), line("MODIFIED", shown("pod-9", 104))) == "pod-9"


def test_versions_of_any_length_are_compared() -> None:
    """Also one that is far too long to be the number of a version."""
    machine = watching()
    machine.lines([line("ADDED", {"metadata": {"name": "b", "uid": "1", "resourceVersion": "9" * 10_000}})])
    machine.ended(300)
    machine.next_request()
    machine.page(page(raw("b", 11), version=11))
    assert machine.restart_reason == EXPIRED


@pytest.mark.parametrize("fault", [403, 504, CUT, UNREACHABLE])
def test_a_comparison_that_fails_is_tried_again(fault: int | str) -> None:
    """What a load balancer or an API server that starts says proves nothing."""
    machine = watching()
    machine.ended(300, CUT, "cut")
    fails_and_asks_again(machine, fault)
