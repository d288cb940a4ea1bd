# SPDX-License-Identifier: Apache-2.0

"""A model of pods, nodes, an API server and the PodLocator controller: whatever happens, it ends right."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from locator.api.deltas import Drop, Put, Replace
from locator.control.reconciler import Reconciler
from locator.control.writes import CREATE, DELETE, Write
from locator.podlocators.locators import (
    LOCATOR_RESOURCES,
    ActualLocator,
    ControllerObject,
    LabelledNode,
    OwnerPod,
)
from locator.podlocators.rules import LocatorRules
from tests.kit.api_objects import ZONE, Item
from tests.kit.controlled import merged, record

NAMES = ("p0", "p1", "p2")
NODES = ("n0", "n1")
LABELS = ({}, {ZONE: "a"}, {ZONE: "b", "rack": "1"})
IPS = ("10.0.0.1", "10.0.0.2")


def decoded(item: Item) -> Any:
    return record(LOCATOR_RESOURCES, {"kind": "PodLocator", **item})


class Refusal(Exception):
    pass


class ModelApi:
    """A model of the API server: versions, preconditions, merge patches, and events by kind."""

    def __init__(self) -> None:
        self.now = 0
        self.pods: dict[str, OwnerPod] = {}
        self.nodes: dict[str, LabelledNode] = {}
        self.locators: dict[str, Item] = {}
        self.log: dict[type[ControllerObject], list[Any]] = {OwnerPod: [], LabelledNode: [], ActualLocator: []}

    def version(self) -> str:
        self.now += 1
        return str(self.now)

    def put(self, kind: type[ControllerObject], record: Any) -> None:
        self.version()
        kept: dict[str, Any] = self.pods if kind is OwnerPod else self.nodes
        kept[record.key] = record
        self.log[kind].append(Put(record))

    def drop(self, kind: type[ControllerObject], key: str) -> None:
        self.version()
        kept: dict[str, Any] = {OwnerPod: self.pods, LabelledNode: self.nodes, ActualLocator: self.locators}[kind]
        if kept.pop(key, None) is not None:
            self.log[kind].append(Drop(kind, key))

    def store(self, item: Item) -> ActualLocator:
        item["metadata"]["resourceVersion"] = self.version()
        self.locators[f"shop/{item['metadata']['name']}"] = item
        written: ActualLocator = decoded(item)
        self.log[ActualLocator].append(Put(written))
        return written

    def carry_out(self, write: Write) -> ActualLocator | None:
        """Carry out a write. Raises Refusal."""
        present = self.locators.get(write.key)
        if write.verb == CREATE:
            if present is not None:
                raise Refusal
            item = json.loads(json.dumps(write.body))
            item["metadata"]["uid"] = f"l{self.now}"
            return self.store(item)
        if present is None or present["metadata"]["resourceVersion"] != write.version:
            raise Refusal
        meta = write.body["preconditions"] if write.verb == DELETE else write.body["metadata"]
        assert meta["resourceVersion"] == write.version
        # Nobody is robbed while its pod lives: not when a watch is behind, and not by an old leader's view.
        owner, heirs = decoded(present).pod_uid, meta.get("ownerReferences", [])
        if write.verb == DELETE or (heirs and heirs[0]["uid"] != owner):
            assert owner not in {pod.uid for pod in self.pods.values()}
        if write.verb == DELETE:
            self.drop(ActualLocator, write.key)
            return None
        return self.store(merged(present, write.body))

    def all(self, kind: type[ControllerObject]) -> list[Any]:
        if kind is ActualLocator:
            return [decoded(item) for item in self.locators.values()]
        return list(self.pods.values() if kind is OwnerPod else self.nodes.values())


class Controlling:
    """Pods, nodes and users change the cluster; watches lag, and writes may fail in every way."""

    def __init__(self) -> None:
        self.api, self.reconciler = ModelApi(), Reconciler(LocatorRules())
        self.told: dict[type[ControllerObject], int] = dict.fromkeys(
            LOCATOR_RESOURCES, 0
        )  # events of the log that were delivered
        self.listed: set[type[ControllerObject]] = set()
        self.clock = 0.0
        self.uids = 0
        self.under_way: dict[str, Write] = {}

    def begin(self, labels: dict[str, str], begun: bool, settled: bool) -> None:
        """Begin with a cluster that has run for a while, in most cases."""
        for name in NODES:
            self.label_node(name, labels)
        for name, node in zip(NAMES, (*NODES, ""), strict=True):
            self.change_pod(name, node, IPS[0], fresh=False)
        if begun or settled:
            self.catch_up()
        if settled:
            self.settle()

    # The cluster

    def change_pod(self, name: str, node: str, ip: str, fresh: bool) -> None:
        before = self.api.pods.get(f"shop/{name}")
        if before is None or fresh:
            if before is not None:
                self.api.drop(OwnerPod, before.key)
            self.uids += 1
            before = OwnerPod("shop", name, f"u{self.uids}")
        node = before.node or node  # a pod never moves
        self.api.put(OwnerPod, replace(before, node=node, ips=(ip,) if ip and node else ()))

    def delete_pod(self, name: str) -> None:
        self.api.drop(OwnerPod, f"shop/{name}")

    def label_node(self, name: str, labels: dict[str, str]) -> None:
        self.api.put(LabelledNode, LabelledNode(name, labels))

    def delete_node(self, name: str) -> None:
        self.api.drop(LabelledNode, name)

    def edit_by_hand(self, name: str, change: Item) -> None:
        present = self.api.locators.get(f"shop/{name}") or {"metadata": {"name": name, "namespace": "shop", "uid": "h"}}
        self.api.store(merged(present, change))

    def delete_by_hand(self, name: str) -> None:
        self.api.drop(ActualLocator, f"shop/{name}")

    def another_leader_writes(self, name: str) -> None:
        """An earlier leader, whose view was ahead of ours, writes."""
        if (pod := self.api.pods.get(f"shop/{name}")) and pod.ips and f"shop/{name}" not in self.api.locators:
            reconciler = Reconciler(LocatorRules())
            for kind, objects in ((ActualLocator, []), (OwnerPod, [pod]), (LabelledNode, [])):
                reconciler.apply(Replace(kind, objects))
            write = reconciler.next_write(0.0)
            assert write is not None
            self.api.carry_out(write)

    # The watches

    def deliver(self, kind: type[ControllerObject], count: int, twice: bool) -> None:
        if kind not in self.listed:
            return
        for change in self.api.log[kind][self.told[kind] :][:count]:
            self.told[kind] += 1
            for _ in range(1 + twice):
                self.reconciler.apply(change)

    def list_again(self, kind: type[ControllerObject]) -> None:
        self.reconciler.apply(Replace(kind, self.api.all(kind)))
        self.listed.add(kind)
        self.told[kind] = len(self.api.log[kind])

    # The writes

    def begin_write(self) -> None:
        if write := self.reconciler.next_write(self.clock):
            assert write.key not in self.under_way, "two writes of one object at once"
            self.under_way[write.key] = write

    def end_write(self, last: bool, lost: str) -> None:
        if self.under_way:
            self.finish(self.under_way.pop(list(self.under_way)[-1 if last else 0]), lost)

    def a_quiet_while(self, kind: type[ControllerObject]) -> None:
        """Everything arrives, but one watch lags."""
        for each in LOCATOR_RESOURCES:
            if each is not kind:
                self.deliver(each, len(self.api.log[each]), twice=False)
        self.settle()

    def finish(self, write: Write, lost: str = "") -> None:
        alive = self.api.pods.get(write.key)
        if write.unless is not None and write.unless.is_found(alive.uid if alive else "", {}):
            lost = "request"
        failed = bool(lost)
        if lost != "request":
            try:
                written = self.api.carry_out(write)
            except Refusal:
                failed = True
                if not lost and write.version and write.key not in self.api.locators:
                    self.reconciler.gone(write)
                    failed = False
            else:
                if not lost:
                    failed = not self.reconciler.written(write, written, began=self.clock)
        if failed:
            self.reconciler.queue.retry(write.key, self.clock, 0.5)
        else:
            self.reconciler.queue.done(write.key)

    def time_passes(self, seconds: float) -> None:
        self.clock += seconds

    # The end

    def finish_all(self) -> None:
        for key in list(self.under_way):
            self.finish(self.under_way.pop(key))
        for _ in range(10):
            self.catch_up()
            self.settle()
        self.assert_true()
        before = self.api.now
        for kind in LOCATOR_RESOURCES:
            self.list_again(kind)
        assert self.reconciler.next_write(self.clock + 60.0) is None, "a resync of an unchanged cluster writes"
        assert (self.api.now, len(self.reconciler.queue)) == (before, 0)

    def catch_up(self) -> None:
        for kind in LOCATOR_RESOURCES:
            if kind not in self.listed:
                self.list_again(kind)
            self.deliver(kind, len(self.api.log[kind]), twice=False)

    def settle(self) -> None:
        """Make all writes that are due or wait after failures, except those that wait for a watch event."""
        for _ in range(5):
            self.clock += 60.0
            while write := self.reconciler.next_write(self.clock):
                self.finish(write)

    def assert_true(self) -> None:
        """Compare all PodLocators with what KEP-536 asks for, computed from the cluster."""
        for key, pod in self.api.pods.items():
            item = self.api.locators.get(key)
            if item is None:
                assert not (pod.ips and pod.node), f"{key} has none"
                continue
            node = self.api.nodes.get(pod.node)
            assert [each["ip"] for each in item.get("ips", [])] == list(pod.ips)
            assert item.get("nodeName", "") == (pod.node if node else "")
            assert item.get("nodeLabels", {}) == (node.labels if node else {})
            assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [pod.uid]
        assert set(self.api.locators) <= set(self.api.pods), "an orphan is left"


HANDS: tuple[Item, ...] = (
    {"ips": [{"ip": "10.9.9.9"}]},
    {"ips": None},
    {"ips": "10.9.9.9", "nodeName": 7, "nodeLabels": ["z"]},
    {"ips": [{"address": "10.9.9.9"}], "nodeLabels": {"z": 1}},
    {"nodeName": "x"},
    {"nodeLabels": {"hand": "made"}},
    {"nodeLabels": None},
    {"metadata": {"ownerReferences": None}},
    {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n0", "uid": "no"}]}},
    {"metadata": {"labels": {"seen": "1"}}},
)
KINDS = tuple(LOCATOR_RESOURCES)

# What happens, and how often: dense enough that what must come together often does.
HAPPENINGS: Mapping[str, tuple[int, Callable[[random.Random], tuple[Any, ...]]]] = {
    "change_pod": (15, lambda rng: (rng.choice(NAMES), rng.choice(("", *NODES)), rng.choice(("", *IPS)),
                                    rng.random() < 0.3)),
    "delete_pod": (5, lambda rng: (rng.choice(NAMES),)),
    "label_node": (5, lambda rng: (rng.choice(NODES), rng.choice(LABELS))),
    "delete_node": (3, lambda rng: (rng.choice(NODES),)),
    "edit_by_hand": (5, lambda rng: (rng.choice(NAMES), rng.choice(HANDS))),
    "delete_by_hand": (3, lambda rng: (rng.choice(NAMES),)),
    "another_leader_writes": (3, lambda rng: (rng.choice(NAMES),)),
    "deliver": (20, lambda rng: (rng.choice(KINDS), rng.randint(1, 4), rng.random() < 0.2)),
    "list_again": (3, lambda rng: (rng.choice(KINDS),)),
    "begin_write": (15, lambda rng: ()),
    "end_write": (15, lambda rng: (rng.random() < 0.5, rng.choice(("", "", "", "request", "answer")))),
    "a_quiet_while": (3, lambda rng: (rng.choice(KINDS),)),
    "time_passes": (5, lambda rng: (rng.choice((0.1, 1.0, 10.0)),)),
}  # fmt: skip


@settings(max_examples=400)
@given(st.integers(0, 10**9))
def test_it_ends_well(seed: int) -> None:
    """After anything, all PodLocators become right, and then nothing more is written."""
    rng = random.Random(seed)
    controlling = Controlling()
    controlling.begin(rng.choice(LABELS), rng.random() < 0.7, rng.random() < 0.5)
    for what in rng.choices(list(HAPPENINGS), [weight for weight, _ in HAPPENINGS.values()], k=60):
        getattr(controlling, what)(*HAPPENINGS[what][1](rng))
        assert controlling.reconciler.has_synced or not controlling.under_way, "nothing is written before all is listed"
    controlling.finish_all()
