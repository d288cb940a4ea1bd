# SPDX-License-Identifier: Apache-2.0

"""Which slices the leader writes: those whose hints a node, a constraint or a policy has made wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.api.deltas import Delta, Drop, Put, Replace
from locator.control.reconciler import Reconciler
from locator.control.writes import Write
from locator.hints.rules import NODE_TRIES, REST_SECONDS, HintRules
from locator.hints.slices import HINT_RESOURCES, HintedSlice
from locator.model import Node, Service, ServicePolicy
from tests.kit.api_objects import (
    HOSTNAME,
    RACK,
    REGION,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    node,
    service,
    service_policy,
)
from tests.kit.controlled import record as record_of
from tests.kit.hint_worlds import HINTED, admitted, patched, records_of, rules_of, zones_of

record = partial(record_of, HINT_RESOURCES)


def versioned(thing: Item, version: int) -> Item:
    return {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(version)}}


def hinted_slice(number: int = 0, *on: str, owner: str = "web", zones: str = "", late: bool = False) -> Item:
    """Return version 7 of a slice with an endpoint on each node *on*, all with hints for *zones* or none.

    A *late* one says no zone, and has an endpoint that is not ready.
    """
    hints = {"hints": {"forZones": [{"name": zone} for zone in zones]}} if zones else {}
    endpoints = [
        endpoint(f"10.0.{number}.{place + 1}", nodeName=name, **({} if late else {"zone": name[0]}), **hints)
        for place, name in enumerate(on)
    ]
    endpoints += [endpoint(f"10.0.{number}.99", ready=False, nodeName="a1", **hints)] if late else []
    return versioned(endpoint_slice(owner, number, endpoints, labels=HINTED), 7)


def reconciler_of(items: Iterable[Item]) -> Reconciler:
    """Return a reconciler that has listed a cluster and compared everything."""
    reconciler = Reconciler(HintRules())
    for kind, records in records_of(items).items():
        reconciler.apply(Replace(kind, records))
    assert drained(reconciler) == []
    return reconciler


def drained(reconciler: Reconciler, now: float = 0.0) -> list[tuple[str, Any]]:
    """Carry out the writes that are due; return the key and the patch of each."""
    writes = []
    while write := reconciler.next_write(now):
        writes.append((write.key, write.body))
        assert reconciler.written(write, None, began=now)
        reconciler.queue.done(write.key)
    return writes


def service_of(**asked: Any) -> Item:
    return service("web", cluster_ips=("10.96.0.9",), **asked)


POLICY = service_policy("p", RACK)
A1, B1 = node("a1", {ZONE: "a", RACK: "r1", REGION: "west"}), node("b1", {ZONE: "b", RACK: "r2", REGION: "west"})
WORLD = [A1, B1, service_of(labels={"app": "web"}, keys=ZONE), hinted_slice(0, "a1", zones="a"),
         service("other", cluster_ips=("10.96.0.10",)), hinted_slice(0, "a1", owner="other", zones="a")]  # fmt: skip


@pytest.mark.parametrize(
    ("delta", "zone"),
    [
        pytest.param(Put(record(service_of(keys="example.com/no"))), "none.topodns.io", id="no-zone-gets-it"),
        pytest.param(Put(record(node("a1", {ZONE: "c"}))), "c", id="zone-of-its-node"),
        pytest.param(Put(record(POLICY)), None, id="policy-with-the-same-effect"),
        pytest.param(Put(record(node("a1", {ZONE: "a", "new": "x"}))), None, id="another-label"),
        pytest.param(Drop(Service, "shop/web"), None, id="service-gone"),
        pytest.param(Put(record(hinted_slice(1, "b1", zones="b"))), None, id="another-slice"),
    ],
)
def test_one_write_for_what_is_wrong(delta: Delta, zone: str | None) -> None:
    """It sets the hints, and requires the version that it was computed from."""
    reconciler = reconciler_of(WORLD)
    reconciler.apply(delta)
    write = dict(drained(reconciler)).get("shop/web-0")
    hints = {"op": "add", "path": "/endpoints/0/hints", "value": {"forZones": [{"name": zone}]}}
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert write == (None if zone is None else [test, hints])


def test_hints_are_taken_away_and_come_back() -> None:
    """While one hint would need more than eight zones, and afterwards."""
    reconciler = reconciler_of(
        [*WORLD, *(node(f"z{number}", {ZONE: f"z{number}", REGION: "west"}) for number in range(7))]
    )
    reconciler.apply(Put(record(service_of(keys=REGION))))
    ((key, patch),) = drained(reconciler)
    assert (key, patch[1]) == ("shop/web-0", {"op": "remove", "path": "/endpoints/0/hints"})
    reconciler.apply(Put(record(versioned(hinted_slice(0, "a1"), 8))))
    assert drained(reconciler) == []
    reconciler.apply(Put(record(service_of(keys=ZONE))))
    ((_, patch),) = drained(reconciler, REST_SECONDS)
    assert patch[1]["value"] == {"forZones": [{"name": "a"}]}


def test_a_slice_rests_between_two_writes() -> None:
    """If somebody takes the hints away each time, one slice is written every 5 s, and others are not held up."""
    reconciler = reconciler_of(WORLD)
    reconciler.apply(Put(record(hinted_slice(0, "a1"))))
    assert [key for key, _ in drained(reconciler, 100.0)] == ["shop/web-0"]
    for version in range(10, 20):
        reconciler.apply(Put(record(versioned(hinted_slice(0, "a1", zones="a"), version))))
        reconciler.apply(Put(record(versioned(hinted_slice(0, "a1"), version))))
        assert drained(reconciler, 100.0 + (version - 10) * 0.4) == []
    reconciler.apply(Put(record(hinted_slice(0, "a1", owner="other"))))
    assert [key for key, _ in drained(reconciler, 104.0)] == ["shop/other-0"]
    assert reconciler.queue.due() == 100.0 + REST_SECONDS
    assert [key for key, _ in drained(reconciler, 100.0 + REST_SECONDS)] == ["shop/web-0"]


def test_hints_for_nodes_that_the_api_server_drops() -> None:
    """The leader writes them a few times: a replica that knew less may have dropped them. Then zones alone count.

    Once a slice has such hints, the API server has learned to keep them.
    """
    reconciler = reconciler_of(WORLD)
    reconciler.apply(Put(record(service_of(keys=f"{HOSTNAME},{ZONE}"))))
    now, version = 100.0, 7
    for _ in range(NODE_TRIES):
        write = reconciler.next_write(now)
        assert write is not None
        assert write.body[1]["value"] == {"forZones": [{"name": "a"}], "forNodes": [{"name": "a1"}]}
        version += 1
        dropped = record(versioned(hinted_slice(0, "a1", zones="a"), version))
        assert not reconciler.written(write, dropped, began=now)
        reconciler.queue.retry(write.key, now, 0.0)
        now += 2 * REST_SECONDS
    assert drained(reconciler, now) == []
    reconciler.apply(Put(record(node("a1", {ZONE: "c"}))))
    ((_, patch),) = [row for row in drained(reconciler, now) if row[0] == "shop/web-0"]
    assert patch[1]["value"] == {"forZones": [{"name": "c"}]}
    kept = hinted_slice(0, "a1")
    kept["endpoints"][0]["hints"] = {"forNodes": [{"name": "b1"}]}
    reconciler.apply(Put(record(versioned(kept, version + 1))))
    ((_, patch),) = drained(reconciler, now + 2 * REST_SECONDS)
    assert patch[1]["value"] == {"forZones": [{"name": "c"}], "forNodes": [{"name": "a1"}]}


def test_a_write_that_fails_is_tried_again_without_rest() -> None:
    """It waits out its backoff alone, and then fits the version that came between."""
    reconciler = reconciler_of(WORLD)
    reconciler.apply(Put(record(hinted_slice(0, "a1"))))
    write = reconciler.next_write(100.0)
    assert write is not None
    reconciler.queue.retry(write.key, 100.0, 0.0)
    reconciler.apply(Put(record(versioned(hinted_slice(0, "a1"), 8))))
    again = reconciler.next_write(102.0)
    assert again is not None
    assert again.body[0]["value"] == "8"


def test_heartbeats_are_no_work() -> None:
    """What changes no hint asks for no comparison."""
    reconciler = reconciler_of(WORLD)
    beating = {**A1, "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}
    reconciler.apply(Put(record(beating)))
    reconciler.apply(Put(record(versioned(hinted_slice(0, "a1", zones="a"), 8))))
    assert not reconciler.queue.ready


def test_who_does_not_write_remembers_nothing_of_what_is_gone() -> None:
    """A follower, which takes nothing out of the queue, keeps no key of a deleted slice."""
    reconciler = reconciler_of(WORLD)
    for number in range(2, 100):
        reconciler.apply(Put(record(hinted_slice(number, "a1"))))
        reconciler.apply(Drop(HintedSlice, f"shop/web-{number}"))
    reconciler.apply(Put(record(hinted_slice(1, "a1"))))
    reconciler.apply(Replace(HintedSlice, [record(hinted_slice(0, "a1", zones="a"))]))
    assert len(reconciler.queue) <= 1


CHANGES: dict[str, Callable[[random.Random], Delta]] = {
    "node": lambda rng: Put(record(node(rng.choice(("a1", "a2", "b1")), rng.choice(
        ({}, {ZONE: "a"}, {ZONE: "b", RACK: "r1"}, {ZONE: "a", RACK: "r1", REGION: "west"}))))),
    "no-node": lambda rng: Drop(Node, rng.choice(("a1", "a2", "b1"))),
    "service": lambda rng: Put(record(service_of(labels=rng.choice(({}, {"app": "web"})), keys=rng.choice(
        (None, ZONE, RACK, f"{REGION},*", "*,*", f"{HOSTNAME},*"))))),
    "no-service": lambda rng: Drop(Service, "shop/web"),
    "policy": lambda rng: Put(record(POLICY)),
    "no-policy": lambda rng: Drop(ServicePolicy, "shop/p"),
    "slice": lambda rng: Put(record(hinted_slice(
        rng.randint(0, 2), *rng.choices(("a1", "a2", "b1"), k=rng.randint(0, 3)), zones=rng.choice(("", "a", "ab")),
        late=rng.random() < 0.3))),
    "no-slice": lambda rng: Drop(HintedSlice, f"shop/web-{rng.randint(0, 2)}"),
}  # fmt: skip


@settings(max_examples=150)
@given(st.integers(0, 10**9))
def test_after_any_changes_every_slice_is_as_admission_would_leave_it(seed: int) -> None:
    """However the state was reached: what was compared equals what a fresh store of the same objects wants."""
    rng = random.Random(seed)
    reconciler = reconciler_of(WORLD)
    known: dict[type[Any], dict[str, Any]] = {
        kind: {one.key: one for one in records} for kind, records in records_of(WORLD).items()
    }
    now = 0.0
    for name in rng.choices(list(CHANGES), k=15):
        delta = CHANGES[name](rng)
        reconciler.apply(delta)
        if isinstance(delta, Put):
            known[type(delta.object)][delta.object.key] = delta.object
        elif isinstance(delta, Drop):
            known[delta.kind].pop(delta.key, None)
        if rng.random() < 0.3:
            now += 2 * REST_SECONDS
            for key, _ in drained(reconciler, now):  # the write is lost, and the slice compared again
                reconciler.queue.add(key)
    fresh = Reconciler(HintRules())
    for kind, records in known.items():
        fresh.apply(Replace(kind, list(records.values())))
    later = now + 2 * REST_SECONDS
    assert sorted(drained(reconciler, later), key=str) == sorted(drained(fresh, later), key=str)


def test_the_leader_and_admission_agree() -> None:
    """The leader's patch makes what admission makes of the same slice."""
    one = hinted_slice(0, "a1", "b1")
    cluster = [A1, B1, service_of(keys=f"{ZONE},*"), one]
    reconciler = Reconciler(rules_of(cluster))
    write = reconciler.rules.write_for("shop/web-0", 0.0)
    assert isinstance(write, Write)
    assert patched(one, write.body) == admitted(one, reconciler.rules)
    assert zones_of(patched(one, write.body)) == [["a"], ["b"]]
