# SPDX-License-Identifier: Apache-2.0

"""PodLocators: which ones Pods and Nodes call for, and what the controller writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import pytest
from msgspec.structs import replace

from locator.api.decoding import decode_untrusted
from locator.api.deltas import Delta, Drop, Put, Replace
from locator.control.reconciler import Reconciler
from locator.control.writes import DELETE, PATCH, Existing, Write
from locator.podlocators import rules
from locator.podlocators.locators import (
    LOCATOR_RESOURCES,
    ActualLocator,
    ControllerObject,
    LabelledNode,
    OwnerPod,
    OwnerReference,
    owner_reference,
)
from locator.podlocators.rules import LocatorRules
from tests.kit.api_objects import HOSTNAME, OLD, ZONE

Item = dict[str, Any]

ZONES = {"a1": {ZONE: "a", HOSTNAME: "a1"}, "b1": {ZONE: "b", "rack": "7"}}
POD = OwnerPod("shop", "web-0", "u1", ("10.0.0.1", "fd00::1"), "a1")
TRUE = ActualLocator(
    "shop", "web-0", "l1", "5", POD.ips, "a1", ZONES["a1"], (OwnerReference("v1", "Pod", "web-0", "u1"),)
)  # what POD's PodLocator should be
KEY, POD_PATH = POD.key, "/api/v1/namespaces/shop/pods/web-0"


def decoded(kind: type[ControllerObject], item: Mapping[str, Any]) -> Any:
    found = decode_untrusted(LOCATOR_RESOURCES[kind], json.dumps(item).encode())
    assert not found.findings
    return found.built


def reconciler_of(
    pods: Sequence[OwnerPod] = (),
    written: Sequence[ActualLocator] = (),
    nodes: Mapping[str, dict[str, str]] = ZONES,
    globs: Sequence[str] = (),
) -> Reconciler:
    reconciler = Reconciler(LocatorRules(globs))
    reconciler.apply(Replace(ActualLocator, list(written)))
    reconciler.apply(Replace(LabelledNode, [LabelledNode(name, node) for name, node in nodes.items()]))
    reconciler.apply(Replace(OwnerPod, list(pods)))
    return reconciler


def writes_of(reconciler: Reconciler) -> list[Write]:
    """Return all writes that are due, as if each were refused for ever."""
    writes = []
    while write := reconciler.next_write(0.0):
        writes.append(write)
    return writes


def needed(reconciler: Reconciler, key: str = KEY) -> Any:
    """Return the write that a PodLocator needs."""
    return reconciler.rules.write_for(key, 0.0)


class Labels(dict[str, str]):
    """Labels of which one can tell whether anybody still has them."""

    __hash__ = object.__hash__  # type: ignore[assignment]


# What is read


def pod(*, phase: str = "Running", ips: Sequence[str] = ("10.0.0.1",), node: str = "a1", **status: Any) -> Item:
    return {
        "metadata": {"namespace": "shop", "name": "web-0", "uid": "u1", "resourceVersion": "9"},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips], **status} if ips else {},
    }


@pytest.mark.parametrize(
    ("item", "ips", "node"),
    [
        (pod(ips=["10.0.0.1", "fd00::1"]), ("10.0.0.1", "fd00::1"), "a1"),
        (pod(podIPs=None), ("10.0.0.1",), "a1"),
        (pod(ips=["10.0.0.1", "10.0.0.1"]), ("10.0.0.1",), "a1"),
        (pod(phase="Pending", ips=[], node=""), (), ""),
        (pod(phase="Succeeded"), (), "a1"),
        (pod(phase="Failed"), (), "a1"),
        (pod(phase="Unknown"), ("10.0.0.1",), "a1"),
    ],
    ids=["both-families", "only-podIP", "twice", "not-scheduled", "succeeded", "failed", "node-silent"],
)
def test_a_pod_is_read(item: Item, ips: tuple[str, ...], node: str) -> None:
    """Its addresses while it may have them, its node, and its uid."""
    assert decoded(OwnerPod, item) == OwnerPod("shop", "web-0", "u1", ips, node)


def test_what_changes_often_is_invisible() -> None:
    """After a heartbeat, a condition or a restart the record is equal, and nothing is queued."""
    before = decoded(OwnerPod, pod())
    item = pod(conditions=[{"type": "Ready", "status": "True"}], containerStatuses=[{"restartCount": 3}])
    item["metadata"] |= {"resourceVersion": "10", "annotations": {"a": "b"}, "labels": {"c": "d"}}
    after = decoded(OwnerPod, item)
    assert before == after
    node = {"metadata": {"name": "a1", "labels": ZONES["a1"]}, "status": {"conditions": [{"type": "Ready"}]}}
    assert decoded(LabelledNode, node) == LabelledNode("a1", ZONES["a1"])
    reconciler = reconciler_of([before])
    writes_of(reconciler)
    reconciler.apply(Put(after))
    reconciler.apply(Put(LabelledNode("a1", dict(ZONES["a1"]))))
    assert not reconciler.queue.ready


@pytest.mark.parametrize(
    ("fields", "ips", "node", "labels"),
    [
        ({}, (), "", {}),
        ({"ips": [{"ip": "10.0.0.1"}], "nodeName": "a1", "nodeLabels": {"z": "1"}}, ("10.0.0.1",), "a1", {"z": "1"}),
        ({"ips": None, "nodeName": None, "nodeLabels": None}, (), "", {}),
        ({"ips": "10.0.0.1", "nodeName": 7, "nodeLabels": ["z"]}, None, None, None),
        ({"ips": [{"address": "10.0.0.1"}], "nodeLabels": {"z": 1}}, None, "", {"z": 1}),
    ],
    ids=["empty", "whole", "null", "wrong-types", "wrong-within"],
)
def test_any_pod_locator_is_read(fields: Item, ips: object, node: object, labels: object) -> None:
    """Any content is read, so that it can be fixed; a wrong one never equals a right one."""
    item = {"metadata": {"namespace": "shop", "name": "web-0", "uid": "l1", "resourceVersion": "5"}, **fields}
    assert decoded(ActualLocator, item) == ActualLocator("shop", "web-0", "l1", "5", ips, node, labels)  # type: ignore[arg-type]
    reconciler = reconciler_of([POD], [decoded(ActualLocator, item)])
    assert [write.verb for write in writes_of(reconciler)] == [PATCH]


# What is written

OTHER = OwnerPod("shop", "web-0", "u2", ("10.0.0.9",), "b1")
PENDING = OwnerPod("shop", "web-0", "u2")


@pytest.mark.parametrize(
    ("pods", "written", "verb", "body"),
    [
        ([POD], [TRUE], None, {}),
        ([PENDING], [], None, {}),
        ([replace(POD, node="")], [], None, {}),
        ([replace(POD, ips=())], [], None, {}),
        ([replace(POD, ips=())], [TRUE], PATCH, {"ips": []}),
        ([replace(POD, ips=("10.0.0.2",))], [TRUE], PATCH, {"ips": [{"ip": "10.0.0.2"}]}),
        ([replace(POD, node="b1")], [TRUE], PATCH,
         {"nodeName": "b1", "nodeLabels": {HOSTNAME: None, ZONE: "b", "rack": "7"}}),
        ([replace(POD, node="gone")], [TRUE], PATCH, {"nodeName": None, "nodeLabels": None}),
        ([POD], [replace(TRUE, labels={**ZONES["a1"], ZONE: "x", "hand": "made"})], PATCH,
         {"nodeLabels": {ZONE: "a", "hand": None}}),
        ([POD], [replace(TRUE, node="b1")], PATCH, {"nodeName": "a1"}),
    ],
    ids=["as-it-should-be", "pending", "no-node", "no-address", "finished", "address", "moved", "node-gone",
         "labels-edited", "node-edited"],
)  # fmt: skip
def test_what_is_written(pods: list[OwnerPod], written: list[ActualLocator], verb: str | None, body: Item) -> None:
    """A patch has only the differences, and the version that was seen as its precondition."""
    writes = writes_of(reconciler_of(pods, written))
    if verb is None:
        assert writes == []
        return
    (write,) = writes
    assert (write.verb, write.unless, write.version) == (verb, None, "5")
    assert write.body == {"metadata": {"resourceVersion": "5"}, **body}
    assert (write.method, write.path) == (
        "PATCH", "/apis/topodns.io/v1alpha1/namespaces/shop/podlocators/web-0"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pods", "later", "owner", "verb", "asked"),
    [
        pytest.param([POD], Drop(OwnerPod, KEY), "u1", DELETE, None, id="seen-to-go"),
        pytest.param([POD], Put(OTHER), "u1", PATCH, None, id="seen-to-be-followed"),
        pytest.param([POD], Put(PENDING), "u1", DELETE, None, id="seen-to-be-followed-by-one-without-address"),
        pytest.param([], None, "u1", DELETE, "u1", id="not-seen"),
        pytest.param([OTHER], None, "u1", PATCH, "u1", id="not-seen-but-a-successor"),
        pytest.param([PENDING], None, "u1", DELETE, "u1", id="not-seen-but-a-successor-without-address"),
        pytest.param([], None, "", DELETE, "", id="no-owner-and-no-pod"),
        pytest.param([OTHER], None, "", PATCH, None, id="no-owner-but-a-pod"),
    ],
)
def test_a_locator_whose_pod_is_gone(
    pods: list[OwnerPod], later: Delta | None, owner: str, verb: str, asked: str | None
) -> None:
    """A successor with an address takes it over, else it is deleted, in the version that was seen.

    Without having seen its pod go, the controller asks the API for that pod first: its watch may be behind.
    """
    owners = (OwnerReference("v1", "Pod", "web-0", owner),) if owner else ()
    reconciler = reconciler_of(pods, [replace(TRUE, owners=owners)])
    if later is not None:
        reconciler.apply(later)
    (write,) = writes_of(reconciler)
    assert (write.verb, write.unless) == (verb, None if asked is None else Existing(POD_PATH, asked))
    if verb == DELETE:
        assert write.body["preconditions"] == {"uid": "l1", "resourceVersion": "5"}
    else:
        assert write.body["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "u2"}
        ]
        assert (write.body["ips"], write.body["nodeName"]) == ([{"ip": "10.0.0.9"}], "b1")


def test_a_relabelled_node_concerns_its_pods_only() -> None:
    """Only its pods are queued, behind new pods."""
    pods = [OwnerPod("shop", f"p{n}", f"u{n}", (f"10.0.0.{n}",), "a1" if n % 2 else "b1") for n in range(1, 9)]
    reconciler = reconciler_of(pods)
    known = [
        ActualLocator("shop", pod.name, "l", "1", pod.ips, pod.node, ZONES[pod.node], (owner_reference(pod),))
        for pod in pods
    ]
    reconciler.apply(Replace(ActualLocator, known))
    assert writes_of(reconciler) == []
    reconciler.apply(Put(LabelledNode("a1", {ZONE: "c", HOSTNAME: "a1"})))
    reconciler.apply(Put(POD))
    writes = writes_of(reconciler)
    assert [write.key for write in writes] == [KEY, *sorted(pod.key for pod in pods if pod.node == "a1")]
    assert {str(write.body["nodeLabels"]) for write in writes[1:]} == {str({ZONE: "c"})}


@pytest.mark.parametrize(
    ("globs", "told"),
    [
        ((), {ZONE, OLD[ZONE], HOSTNAME, "example.com/rack", "beta"}),
        ((ZONE,), {ZONE, OLD[ZONE]}),
        ((OLD[ZONE],), {ZONE, OLD[ZONE]}),
        (("topology.kubernetes.io/*", "example.com/*"), {ZONE, OLD[ZONE], "example.com/rack"}),
        (("Topology*", "none"), set()),
    ],
    ids=["all", "one", "by-its-old-name", "globs", "none"],
)
def test_labels(globs: tuple[str, ...], told: set[str]) -> None:
    """A PodLocator has the labels that a glob matches, under old and new names; changes of others cause no write."""
    labels = {ZONE: "a", OLD[ZONE]: "a", HOSTNAME: "a1", "example.com/rack": "7", "beta": "x"}
    reconciler = reconciler_of([POD], nodes={"a1": labels}, globs=globs)
    (write,) = writes_of(reconciler)
    assert set(write.body.get("nodeLabels", {})) == told
    if globs:
        reconciler.queue.done(write.key)
        reconciler.apply(Put(LabelledNode("a1", {**labels, "beta": "y"})))
        assert not reconciler.queue.ready


def test_who_does_not_write_remembers_nothing_of_what_is_gone() -> None:
    """A standby, which sees all pods come and go, keeps no state of deleted ones."""
    reconciler = Reconciler(LocatorRules())
    for number in range(1000):
        pod = OwnerPod("shop", f"web-{number}", f"u{number}", ("10.0.0.1",), "n1")
        reconciler.apply(Put(pod))
        reconciler.apply(Put(ActualLocator("shop", pod.name, f"l{number}", "1", pod.ips)))
        reconciler.apply(Drop(OwnerPod, pod.key))
        assert len(reconciler.queue) == 1, "it may be an orphan"
        reconciler.apply(Drop(ActualLocator, pod.key))
        assert len(reconciler.queue) == 0


def test_of_nodes_that_do_not_exist_it_remembers_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write PodLocators in one namespace can name a node, with labels, that nobody knows."""
    monkeypatch.setattr(rules, "MAX_SHARED", 10)
    reconciler = Reconciler(LocatorRules())
    known: WeakSet[Labels] = WeakSet()
    for number in range(100):
        labels = Labels(rack=str(number))
        known.add(labels)
        reconciler.apply(Put(ActualLocator("shop", "web", "l1", str(number), (), f"n{number}", labels)))
    del labels
    assert len(known) <= 11


def test_one_that_somebody_holds_tells_no_address() -> None:
    """An orphan with a finalizer is emptied, with one write, since its address is used again."""
    reconciler = Reconciler(LocatorRules())
    for kind in LOCATOR_RESOURCES:
        reconciler.apply(Replace(kind, []))
    held = ActualLocator("shop", "web", "l1", "7", ("10.0.0.1",), "n1", {"zone": "a"}, terminating=True)
    reconciler.apply(Put(held))
    write = needed(reconciler, "shop/web")
    assert write is not None
    assert (write.verb, write.body) == (PATCH, {"metadata": {"resourceVersion": "7"}, "ips": []})
    reconciler.apply(Put(replace(held, version="8", ips=())))
    assert needed(reconciler, "shop/web") is None
