# SPDX-License-Identifier: Apache-2.0

"""Label selectors: what they select, which are invalid, and what of a cluster they let topodns serve. Label keys."""

from __future__ import annotations

import pytest

from locator.labels import nearest_label_key, parse_client_selector, parse_selector
from locator.model import Namespace, Pod, Service
from locator.state.store import Store, StoreOptions
from locator.topology.scope import Scope
from tests.kit.label_selectors import NO_TEXTS, TEXTS


@pytest.mark.parametrize(("text", "selected", "other"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS])
def test_selects(text: str, selected: dict[str, str], other: dict[str, str]) -> None:
    """A selector selects as the API's ``labelSelector`` does."""
    selector = parse_selector(text)
    assert selector.matches(selected) and not selector.matches(other)
    assert selector.matches(selector.relevant({**selected, "more": "labels"}))
    assert "more" not in selector.relevant({**selected, "more": "labels"})


@pytest.mark.parametrize("text", NO_TEXTS)
def test_no_selector(text: str) -> None:
    """An unreadable selector is an error, rather than one that selects too much."""
    with pytest.raises(ValueError, match=r".+"):
        parse_selector(text)


@pytest.mark.parametrize(
    ("text", "namespace", "labels", "matches"),
    [
        ("shop", "shop", {}, True),
        ("shop", "jobs", {}, False),
        ("shop/app=web", "shop", {"app": "web"}, True),
        ("shop/app=web", "shop", {"app": "db"}, False),
        ("shop/app=web", "jobs", {"app": "web"}, False),
        ("shop/example.com/app", "shop", {"example.com/app": ""}, True),
    ],
)
def test_clients_that_are_meant(text: str, namespace: str, labels: dict[str, str], matches: bool) -> None:
    """The pods of one namespace, all of them or those with some labels."""
    assert parse_client_selector(text).matches(namespace, labels) is matches


SERVICE = Service("shop", "web", labels={"app": "web", "version": "1"})
NEWER = Service("shop", "web", labels={"app": "web", "version": "2"})


def test_labels_that_are_not_looked_at_are_invisible() -> None:
    """If other labels of a Service change, it stays the same, with its cached answers."""
    for scope in (Scope(), Scope(service_selector=parse_selector("app=web"))):
        store = Store(StoreOptions(scope=scope))
        store.replace(Service, [SERVICE])
        first = store.publish(1)
        assert store.replace(Service, [NEWER]) is False
        assert store.publish(2) is first


def test_labels_that_are_looked_at_are_seen() -> None:
    """A Service, or its namespace, that is no longer selected is not served, until it is again."""
    store = Store(StoreOptions(scope=Scope(frozenset(), parse_selector("team=a"), parse_selector("version=1"))))
    for team, service, served in (
        ("a", SERVICE, True),
        ("a", NEWER, False),
        ("b", SERVICE, False),
        ("a", SERVICE, True),
    ):
        store.replace(Namespace, [Namespace("shop", {"team": team})])
        store.replace(Service, [service])
        snapshot = store.publish(1)
        assert ("shop/web" in snapshot.services) == served
        assert ("shop" in snapshot.namespaces) == (team == "a")


def test_a_namespace_without_an_object_is_selected_by_name_alone() -> None:
    """It has no labels: a selector does not match it, its name does."""
    for scope, served in ((Scope(frozenset(("shop",))), True), (Scope(frozenset(), parse_selector("!x")), False)):
        store = Store(StoreOptions(scope=scope))
        store.replace(Service, [SERVICE])
        assert ("shop" in store.publish(1).namespaces) == served


def test_namespaces_that_only_unwatched_pods_are_in() -> None:
    """A namespace exists if any object is in it, watched or not."""
    store = Store(StoreOptions(pods=False))
    store.replace(Pod, [Pod("shop", "web-0")])
    assert store.publish(1).namespaces == {"shop"}
    assert store.replace(Pod, [Pod("lab", "web-0")]) is True
    assert store.publish(2).namespaces == {"lab"}
    assert store.replace(Pod, [Pod("lab", "web-1")]) is False


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("topology.kubernetes.io/zon", "topology.kubernetes.io/zone"),
        ("kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("topology.kubernetes.io/rack", "topology.example.com/rack"),
        ("zone", "topology.kubernetes.io/zone"),
        ("topology.gke.io/Zone", "topology.gke.io/zone"),
        ("example.com/rakc", "topology.example.com/rack"),
    ],
)
def test_nearest_label_key(key: str, nearest: str) -> None:
    """A key with the same name counts as nearer than one with the same prefix."""
    known = ("kubernetes.io/hostname", "kubernetes.io/os", "topology.example.com/rack", "topology.gke.io/zone",
             "topology.kubernetes.io/region", "topology.kubernetes.io/zone")  # fmt: skip
    assert nearest_label_key(key, known) == nearest
