# SPDX-License-Identifier: Apache-2.0

"""ListWatch: kinds, and versions of an API, that the API server may not have."""

from __future__ import annotations

import pytest

from locator.api.decoding import RESOURCES, Resource
from locator.api.deltas import Replace
from locator.api.list_watch import ABSENT_SECONDS, UNREACHABLE, ListWatch
from locator.model import EndpointSlice, PodLocator, ServiceImport
from tests.kit.api_answers import INITIAL_END, bookmark, line, page
from tests.kit.list_watches import RESOURCE, changes

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
