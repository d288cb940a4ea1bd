# SPDX-License-Identifier: Apache-2.0

"""The reconciler, with the smallest controller that there can be: it copies Services from another cluster, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

from locator.api.decoding import RESOURCES, Resource
from locator.api.deltas import Drop, Put, Replace
from locator.control.reconciler import MAX_KEYS, KnownObjects, Later, ObjectChange, Reconciler, Rules
from locator.control.writes import Existing, Write, creation, deletion, json_patch, merge_patch, object_path
from locator.model import Namespaced, Service, ServiceHealth

HUB = "hub"
PAUSE = 5.0


class Copy(Namespaced, frozen=True):
    """A Service, as far as this controller is concerned."""

    text: str = ""
    version: str = ""


class CopyRules(Rules):
    """The Services of the hub should be in this cluster, too; each is written every PAUSE seconds at most."""

    resources: Mapping[type[Any], Resource] = {Copy: RESOURCES[Service]}
    writes: type[Any] = Copy
    urgent: Collection[type[Any]] = ()

    def __init__(self) -> None:
        self.objects = KnownObjects((Copy,), {HUB: (Copy,)})
        self.written_at: dict[str, float] = {}

    def changed(self, change: ObjectChange) -> Iterable[str]:
        return (change.key,)

    def exists(self, key: str) -> bool:
        return any(self.objects.get(Copy, key, cluster) for cluster in self.objects.kinds)

    def write_for(self, key: str, now: float) -> Write | Later | None:
        wanted, actual = self.objects.get(Copy, key, HUB), self.objects.get(Copy, key)
        if wanted is None:
            return deletion(RESOURCES[Service], key, actual.version) if actual and self.objects.is_complete else None
        if actual is None:
            return creation(RESOURCES[Service], key, {"text": wanted.text})
        if actual.text == wanted.text:
            return None
        if now < self.written_at.get(key, -PAUSE) + PAUSE:
            return Later(self.written_at[key] + PAUSE)
        return merge_patch(RESOURCES[Service], key, actual.version, {"text": wanted.text})

    def written(self, write: Write, found: Any, began: float) -> bool:
        self.written_at[write.key] = began
        return found is None or found.text == write.body["text"]


def copy(name: str, text: str = "", version: str = "") -> Copy:
    return Copy("shop", name, text, version)


def reconciler_of(hub: Iterable[Copy] = (), own: Iterable[Copy] = ()) -> Reconciler:
    one = Reconciler(CopyRules())
    one.apply(Replace(Copy, list(own)))
    one.apply(Replace(Copy, list(hub)), HUB)
    return one


def writes_of(one: Reconciler, now: float = 0.0) -> list[str]:
    """Return the verb and the name of all writes that are due, none of which is carried out."""
    writes = []
    while write := one.next_write(now):
        writes.append(f"{write.verb} {write.key.removeprefix('shop/')}")
        one.queue.done(write.key)
    return writes


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        (Put(copy("a", "new", "8")), ["patch a"]),
        (Put(copy("a", "old", "10")), []),
        (Put(copy("a", "new", "6")), []),
        (Drop(Copy, "shop/a"), ["create a"]),
        (Drop(Copy, "shop/unknown"), []),
        (Replace(Copy, []), ["create a"]),
        (Replace(Copy, [copy("a", "old", "7"), copy("b", version="9")]), ["delete b"]),
    ],
    ids=["changed", "touched", "an-older-version", "gone", "never-known", "a-list-without-it", "a-list-with-another"],
)
def test_a_change(delta: Any, expected: list[str]) -> None:
    """Only what differs is compared again; an event that comes late changes nothing."""
    one = reconciler_of([copy("a", "old")], [copy("a", "old", "7")])
    assert writes_of(one) == []
    one.apply(delta)
    assert writes_of(one) == expected


def test_who_writes_nothing_remembers_nothing_of_what_is_gone() -> None:
    """A follower, which takes no key out of the queue, keeps none of an object that is in no cluster any more."""
    one = reconciler_of()
    for number in range(100):
        one.apply(Put(copy(f"{number}")), HUB)
        one.apply(Drop(Copy, f"shop/{number}"), HUB)
    assert len(one.queue) == 0


def test_the_end_of_a_write() -> None:
    """The answer counts like an event, if it says what was written; and what pauses is compared when that is over."""
    one = reconciler_of([copy("a", "new")], [copy("a", "old", "7")])
    write = one.next_write(1.0)
    assert write is not None
    assert not one.written(write, copy("a", "old", "8"), began=1.0), "something at admission has undone it"
    assert one.written(write, copy("a", "new", "9"), began=1.0)
    one.queue.done(write.key)
    assert writes_of(one, 2.0) == []
    one.apply(Put(copy("a", "newer")), HUB)
    assert (writes_of(one, 3.0), one.queue.due()) == ([], 1.0 + PAUSE)
    assert writes_of(one, 1.0 + PAUSE) == ["patch a"]


def test_what_is_gone_does_not_come_back_with_a_late_response() -> None:
    """An object may be deleted after it was patched, and the watch may tell so before the response is read."""
    one = reconciler_of([copy("a", "new")], [copy("a", "old", "7")])
    write = one.next_write(1.0)
    assert write is not None
    one.apply(Put(copy("a", "new", "8")))
    one.apply(Drop(Copy, "shop/a"))
    assert one.written(write, copy("a", "new", "8"), began=1.0)
    one.queue.done(write.key)
    assert one.rules.objects.get(Copy, "shop/a") is None
    assert writes_of(one, 2.0) == ["create a"]


def test_others_get_their_turn_between_many_comparisons() -> None:
    """A pass compares few keys; the queue says that there are more."""
    many = [copy(str(number), version="1") for number in range(3 * MAX_KEYS)]
    one, passes = reconciler_of(many, many), 1
    while one.next_write(0.0) is None and one.queue.ready:
        passes += 1
    assert passes == 3


def test_writes() -> None:
    """Paths, bodies and preconditions follow from the resource, the key and the version."""
    service, health = RESOURCES[Service], RESOURCES[ServiceHealth]
    assert object_path(service, "shop/web") == "/api/v1/namespaces/shop/services/web"
    assert object_path(health, "web.shop") == "/apis/topodns.io/v1alpha1/servicehealths/web.shop"
    fields = {"metadata": {"labels": {"a": "b"}}, "spec": 1}
    made = creation(service, "shop/web", fields)
    assert (made.method, made.path) == ("POST", "/api/v1/namespaces/shop/services")
    meta = {"namespace": "shop", "name": "web", "labels": {"a": "b"}}
    assert made.body == {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": 1}
    made = creation(health, "web.shop", {})
    assert (made.path, made.body["apiVersion"]) == (health.path, "topodns.io/v1alpha1")
    assert made.body["metadata"] == {"name": "web.shop"}
    patch = merge_patch(service, "shop/web", "7", fields, subresource="/status")
    assert (patch.method, patch.path) == ("PATCH", "/api/v1/namespaces/shop/services/web/status")
    assert patch.body == {"metadata": {"resourceVersion": "7", "labels": {"a": "b"}}, "spec": 1}
    assert json_patch(service, "shop/web", "7", [{"op": "remove", "path": "/x"}]).body == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}, {"op": "remove", "path": "/x"}]  # fmt: skip
    gone = deletion(service, "shop/web", "7", unless=Existing("/p"), uid="u")
    assert (gone.method, gone.body["preconditions"]) == ("DELETE", {"uid": "u", "resourceVersion": "7"})
    assert gone.body["propagationPolicy"] == "Background"
