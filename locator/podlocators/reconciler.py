"""Pods and Nodes to the PodLocators wanted, and these against those there are, to writes (KEP-536).

A pod gets a PodLocator once it has an address and a node, and keeps it while it exists. A finished pod's tells no
address, since that goes to others; a finished pod that has none gets none. Where the Node is not known, neither
node nor labels are told.

Pods on their node's network get theirs like others. Their address is the node's, and all of them on one node tell
the same place; without them nobody who reads PodLocators alone would know where such clients and endpoints are.

A PodLocator whose owner is an earlier pod of the same name is handed over: one patch, and so no moment in which the
name tells nothing or the wrong address, where deleting and creating would take two writes. While the new pod has no
address, it is removed.

Everything is worked out from the present state, never from what an event seemed to say: events may come late, twice
or not at all. Every change or removal is pinned to the version that was seen, so that nothing is overwritten unseen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from locator.api.deltas import Delta, Drop, Put, Replace
from locator.control.workqueue import WorkQueue
from locator.model import SUCCESSORS
from locator.podlocators.objects import (
    MERGE_PATCH,
    ActualLocator,
    ControllerObject,
    LabelledNode,
    OwnerPod,
    WantedLocator,
    correction,
    creation,
    locator_path,
    owner_of,
    removal,
    tells,
)

CREATE, PATCH, DELETE = "create", "patch", "delete"
METHODS = {CREATE: "POST", PATCH: "PATCH", DELETE: "DELETE"}

# A label that Kubernetes renamed is one label: whoever names it by one name gets it under both.
_OTHER_NAME = {**SUCCESSORS, **{new: old for old, new in SUCCESSORS.items()}}


class Labels:
    """Which of a node's labels are told: those whose key one of *globs* matches, all if there are none."""

    def __init__(self, globs: Iterable[str] = ()) -> None:
        patterns = [translate(each) for each in globs]
        self._told = re.compile("|".join(patterns)) if patterns else None

    def of(self, node: LabelledNode) -> dict[str, str]:
        """Return the labels of a node that are told."""
        if self._told is None:
            return node.labels
        return {key: value for key, value in node.labels.items() if self._tells(key)}

    def _tells(self, key: str) -> bool:
        names = (key, _OTHER_NAME.get(key, key))
        return self._told is None or any(map(self._told.match, names))


class Write(Struct, frozen=True):
    """One write that makes one PodLocator what it should be.

    ``version`` is the one of the PodLocator that it was made for, empty if there is none. ``unseen`` is the uid of
    the pod that the PodLocator belongs to if that pod was never seen (empty if it names no pod): the view may be
    behind. That pod must be asked for first, and the answer given to ``Reconciler.asked``.
    """

    namespace: str
    name: str
    verb: str
    body: dict[str, Any]
    version: str = ""
    unseen: str | None = None

    @property
    def key(self) -> str:
        """Which PodLocator it is about."""
        return f"{self.namespace}/{self.name}"

    @property
    def method(self) -> str:
        """The HTTP method."""
        return METHODS[self.verb]

    @property
    def path(self) -> str:
        """Where it is sent."""
        return locator_path(self.namespace, "" if self.verb == CREATE else self.name)

    @property
    def media(self) -> str:
        """The type of its body."""
        return MERGE_PATCH if self.verb == PATCH else "application/json"


class Reconciler:
    """What is known of Pods, Nodes and PodLocators, and which PodLocators must be looked at.

    Takes changes in any order, late, twice or not at all; ``write_for`` always speaks of the state as it is known now.
    What changes for one pod comes before what changes for all pods of a node, and before what a new list brings.
    """

    def __init__(self, labels: Labels | None = None) -> None:
        self.queue = WorkQueue()
        self._labels = labels or Labels()
        self._missing: set[type[ControllerObject]] = {OwnerPod, LabelledNode, ActualLocator}
        self._pods: dict[str, OwnerPod] = {}
        self._nodes: dict[str, dict[str, str]] = {}
        self._written: dict[str, ActualLocator] = {}
        self._on: dict[str, set[str]] = {}  # node -> keys of its pods
        self._gone: dict[str, str] = {}  # key -> uid of the pod that is known to be gone, if its PodLocator is there
        self._shared: dict[str, dict[str, Any]] = {}  # node -> labels its PodLocators tell: one object for all of them

    @property
    def missing(self) -> frozenset[type[ControllerObject]]:
        """The kinds that have not been listed yet; until they are, nothing is to be written."""
        return frozenset(self._missing)

    @property
    def objects(self) -> dict[str, int]:
        """How many objects there are, by kind."""
        return {"Pod": len(self._pods), "Node": len(self._nodes), "PodLocator": len(self._written)}

    def apply(self, change: Delta) -> None:
        """Take in what a list or a watch says, or an answer to a write."""
        match change:
            case Replace(kind=kind, objects=objects):
                self._replace(kind, objects)
                self._missing.discard(kind)
            case Put(object=OwnerPod() as pod):
                self._put_pod(pod, urgent=True)
            case Put(object=LabelledNode() as node):
                self._put_node(node)
            case Put(object=ActualLocator() as written):
                known = self._written.get(written.key)
                if known is None or not _older(written, known):
                    self._put_written(written, urgent=True)
            case Drop(kind=kind, key=key):
                self._drop(kind, key, urgent=True)

    def asked(self, write: Write, uid: str) -> bool:
        """Take in the uid of the pod that a doubtful write is about, empty if there is no such pod.

        Return whether the doubt is gone. It is not where the pod that was never seen exists: news of it is under way.
        """
        if uid and write.unseen in ("", uid):
            return False
        if write.key in self._written:
            self._gone[write.key] = write.unseen or ""
        return True

    def vanished(self, write: Write) -> None:
        """Take in that the PodLocator that a write was made for is not there any more, unless newer news came."""
        written = self._written.get(write.key)
        if written is not None and written.version == write.version:
            self._drop(ActualLocator, write.key, urgent=True)

    def next(self, now: float, *, most: int = 1000) -> Write | None:
        """Return a write, whose key is in work then; None where nothing is due, or none of *most* keys needs one.

        Whoever gets it says ``queue.done`` or ``queue.retry``.
        """
        if self._missing:
            return None
        for _ in range(most):
            key = self.queue.get(now)
            if key is None:
                return None
            if write := self.write_for(key):
                return write
            self.queue.done(key)
        return None

    def write_for(self, key: str) -> Write | None:
        """Return what is to be written for a PodLocator now; None if it is as it should be, or not all is known."""
        if self._missing:
            return None
        pod, actual = self._pods.get(key), self._written.get(key)
        if pod is not None and pod.ips and pod.node:
            told = self._told(pod)
            if actual is None:
                return Write(pod.namespace, pod.name, CREATE, creation(pod.namespace, pod.name, told))
        elif actual is None:
            return None
        elif pod is not None and pod.uid == actual.pod_uid:
            told = self._told(pod)
        elif not actual.ending:
            return self._write(DELETE, actual, pod, removal(actual))
        else:  # somebody's finalizer holds it; the addresses go to others meanwhile
            told = WantedLocator((), actual.node or "", actual.labels or {}, actual.owners)
        return None if tells(actual, told) else self._write(PATCH, actual, pod, correction(actual, told))

    def _write(self, verb: str, actual: ActualLocator, pod: OwnerPod | None, body: dict[str, Any]) -> Write:
        owner = actual.pod_uid
        known = {self._gone.get(actual.key)} | ({"", pod.uid} if pod is not None else set())
        return Write(actual.namespace, actual.name, verb, body, actual.version, None if owner in known else owner)

    def _told(self, pod: OwnerPod) -> WantedLocator:
        labels = self._nodes.get(pod.node)
        return WantedLocator(pod.ips, "" if labels is None else pod.node, labels or {}, (owner_of(pod),))

    def _replace(self, kind: type[Any], objects: Iterable[Any]) -> None:
        if kind is OwnerPod:
            left = dict.fromkeys(self._pods)
        elif kind is LabelledNode:
            left = dict.fromkeys(self._nodes)
        else:
            left = dict.fromkeys(self._written)
            self._shared.clear()
        for each in objects:
            left.pop(each.key, None)
            if kind is OwnerPod:
                self._put_pod(each)
            elif kind is LabelledNode:
                self._put_node(each)
            else:
                self._put_written(each)
        for key in left:
            self._drop(kind, key)

    def _put_pod(self, pod: OwnerPod, *, urgent: bool = False) -> None:
        key, before = pod.key, self._pods.get(pod.key)
        if before == pod:
            return
        if before is not None:
            self._forget_pod(key, before, pod.uid)
        self._pods[key] = pod
        if pod.node:
            self._on.setdefault(pod.node, set()).add(key)
        self.queue.add(key, urgent=urgent)

    def _forget_pod(self, key: str, pod: OwnerPod, successor: str = "") -> None:
        del self._pods[key]
        if pod.uid != successor and key in self._written:
            self._gone[key] = pod.uid
        if pod.node:
            on = self._on[pod.node]
            on.discard(key)
            if not on:
                del self._on[pod.node]

    def _put_node(self, node: LabelledNode) -> None:
        told = self._labels.of(node)
        if self._nodes.get(node.name) != told:
            self._nodes[node.name] = told
            self._look_at_pods_on(node.name)

    def _look_at_pods_on(self, node: str) -> None:
        for key in sorted(self._on.get(node, ())):
            self.queue.add(key)

    def _put_written(self, written: ActualLocator, *, urgent: bool = False) -> None:
        key = written.key
        if self._written.get(key) == written:
            return
        if (node := written.node) and (labels := written.labels):  # 150,000 of them tell the labels of 5,000 nodes
            shared = self._shared.get(node)
            if shared == labels:
                written = replace(written, labels=shared)
            else:
                self._shared[node] = labels
        self._written[key] = written
        self.queue.add(key, urgent=urgent)

    def _drop(self, kind: type[Any], key: str, *, urgent: bool = False) -> None:
        if kind is LabelledNode:
            if self._nodes.pop(key, None) is not None:
                self._look_at_pods_on(key)
        elif kind is OwnerPod:
            if (pod := self._pods.get(key)) is not None:
                self._forget_pod(key, pod)
                self._look_at(key, urgent=urgent)
        elif self._written.pop(key, None) is not None:
            self._gone.pop(key, None)
            self._look_at(key, urgent=urgent)

    def _look_at(self, key: str, *, urgent: bool) -> None:
        """Have a key looked at, unless nothing is left of it: who does not lead empties no queue."""
        if key in self._pods or key in self._written:
            self.queue.add(key, urgent=urgent)
        else:
            self.queue.discard(key)


def _older(one: ActualLocator, other: ActualLocator) -> bool:
    """Whether *one* was written before *other*: versions of one kind can be compared (Kubernetes 1.35)."""
    if not (one.version.isdecimal() and other.version.isdecimal()):
        return False
    return int(one.version) < int(other.version)
