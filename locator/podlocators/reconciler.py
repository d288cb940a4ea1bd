# SPDX-License-Identifier: Apache-2.0

"""Compares the PodLocators that should exist with those that do, and returns the writes that are due (KEP-536).

A pod gets a PodLocator once it has an address and a node, and keeps it as long as the pod exists. If the Node does not
exist, the PodLocator has neither node nor labels.

When a pod finishes, its PodLocator loses the addresses, since other pods may get them. A finished pod without a
PodLocator does not get one.

Pods on the host network get PodLocators too. They all share their node's address and location; without them, clients
that read only PodLocators could not locate such pods.

If a pod's name is used again while the earlier pod's PodLocator still exists, one patch hands the PodLocator over to
the new pod. Deleting and creating it would leave the name without a PodLocator, or with a wrong address, in between.
If the new pod has no address yet, the PodLocator is deleted.

The reconciler computes every write from the present state and never from an event: events may be late, duplicated or
lost. Each patch and delete requires the version that the controller saw, so it never overwrites an unseen change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from locator.api.deltas import Delta, Drop, Put, Replace, precedes
from locator.control.workqueue import WorkQueue
from locator.podlocators.label_filter import LabelFilter
from locator.podlocators.objects import (
    MERGE_PATCH,
    ActualLocator,
    ControllerObject,
    LabelledNode,
    OwnerPod,
    WantedLocator,
    create_body,
    delete_options,
    locator_path,
    matches,
    owner_reference,
    patch_body,
)

CREATE, PATCH, DELETE = "create", "patch", "delete"
METHODS = {CREATE: "POST", PATCH: "PATCH", DELETE: "DELETE"}

MAX_KEYS = 1000  # compared before other tasks get a turn


class Write(Struct, frozen=True):
    """One write of one PodLocator.

    ``version`` is the resourceVersion of the PodLocator that the write replaces, empty for a new one.

    ``unseen_owner`` is the uid in the PodLocator's owner reference (empty: it has none) if the watch has shown neither
    that pod nor its deletion, otherwise None. The pod may be new: before sending the write, GET the pod and pass its
    uid to ``Reconciler.confirm_owner``.
    """

    namespace: str
    name: str
    verb: str
    body: dict[str, Any]
    version: str = ""
    unseen_owner: str | None = None

    @property
    def key(self) -> str:
        """The key of the PodLocator."""
        return f"{self.namespace}/{self.name}"

    @property
    def method(self) -> str:
        """The HTTP method."""
        return METHODS[self.verb]

    @property
    def path(self) -> str:
        """The API path."""
        return locator_path(self.namespace, "" if self.verb == CREATE else self.name)

    @property
    def media(self) -> str:
        """The media type of the body."""
        return MERGE_PATCH if self.verb == PATCH else "application/json"


class Reconciler:
    """Holds Pods, Nodes and PodLocators, and a queue of the PodLocators to compare.

    Deltas may come late, twice or not at all; ``write_for`` returns what the present state asks for. In the queue,
    changes of single pods come before changes of nodes, which concern many pods, and before the results of a list.
    """

    def __init__(self, labels: LabelFilter | None = None) -> None:
        self.queue = WorkQueue()
        self._labels = labels or LabelFilter()
        self._unlisted: set[type[ControllerObject]] = {OwnerPod, LabelledNode, ActualLocator}
        self._pods: dict[str, OwnerPod] = {}
        self._nodes: dict[str, dict[str, str]] = {}  # node -> its labels that pass the filter
        self._locators: dict[str, ActualLocator] = {}
        self._pods_on: dict[str, set[str]] = {}  # node -> keys of its pods
        self._deleted_owners: dict[str, str] = {}  # PodLocator's key -> uid of an owner that certainly does not exist
        self._shared_labels: dict[str, dict[str, Any]] = {}  # node -> labels in its PodLocators, one dict for all

    @property
    def unlisted(self) -> frozenset[type[ControllerObject]]:
        """The kinds that have not been listed yet. Until it is empty, no write is due."""
        return frozenset(self._unlisted)

    @property
    def object_counts(self) -> dict[str, int]:
        """The number of objects of each kind."""
        return {"Pod": len(self._pods), "Node": len(self._nodes), "PodLocator": len(self._locators)}

    def apply(self, delta: Delta) -> None:
        """Apply a delta from a list, a watch or the response to a write."""
        match delta:
            case Replace(kind=kind, objects=objects):
                self._replace(kind, objects)
                self._unlisted.discard(kind)
            case Put(object=OwnerPod() as pod):
                self._put_pod(pod, urgent=True)
            case Put(object=LabelledNode() as node):
                self._put_node(node)
            case Put(object=ActualLocator() as locator):
                known = self._locators.get(locator.key)
                if known is None or not precedes(locator.version, known.version):
                    self._put_locator(locator, urgent=True)
            case Drop(kind=kind, key=key):
                self._drop(kind, key, urgent=True)

    def confirm_owner(self, write: Write, uid: str) -> bool:
        """Return whether *write* may be sent, given the *uid* that the API server returned for its pod.

        *uid* is empty if there is no such pod. False if the unseen owner exists: its watch event is on the way.
        """
        if uid and write.unseen_owner in ("", uid):
            return False
        if write.key in self._locators:
            self._deleted_owners[write.key] = write.unseen_owner or ""
        return True

    def locator_gone(self, write: Write) -> None:
        """Record that the PodLocator that *write* was for does not exist, unless a newer version is known."""
        locator = self._locators.get(write.key)
        if locator is not None and locator.version == write.version:
            self._drop(ActualLocator, write.key, urgent=True)

    def next_write(self, now: float) -> Write | None:
        """Return the next write. None if no key is due, or if the next MAX_KEYS keys need no write.

        The caller must call ``queue.done`` or ``queue.retry`` for the write's key.
        """
        if self._unlisted:
            return None
        return self.queue.first(now, MAX_KEYS, self.write_for)

    def write_for(self, key: str) -> Write | None:
        """Return the write that a PodLocator needs now. None if it is as it should be, or a kind is ``unlisted``."""
        if self._unlisted:
            return None
        pod, actual = self._pods.get(key), self._locators.get(key)
        if pod is not None and pod.ips and pod.node:
            wanted = self._wanted(pod)
            if actual is None:
                return Write(pod.namespace, pod.name, CREATE, create_body(pod.namespace, pod.name, wanted))
        elif actual is None:
            return None
        elif pod is not None and pod.uid == actual.pod_uid:
            wanted = self._wanted(pod)
        elif not actual.terminating:
            return self._write_to_existing(DELETE, actual, pod, delete_options(actual))
        else:  # a finalizer delays the deletion; other pods may get the addresses meanwhile
            wanted = WantedLocator((), actual.node or "", actual.labels or {}, actual.owners)
        if matches(actual, wanted):
            return None
        return self._write_to_existing(PATCH, actual, pod, patch_body(actual, wanted))

    def _write_to_existing(self, verb: str, actual: ActualLocator, pod: OwnerPod | None, body: dict[str, Any]) -> Write:
        owner = actual.pod_uid
        known = {self._deleted_owners.get(actual.key)} | ({"", pod.uid} if pod is not None else set())
        return Write(actual.namespace, actual.name, verb, body, actual.version, None if owner in known else owner)

    def _wanted(self, pod: OwnerPod) -> WantedLocator:
        labels = self._nodes.get(pod.node)
        return WantedLocator(pod.ips, "" if labels is None else pod.node, labels or {}, (owner_reference(pod),))

    def _replace(self, kind: type[Any], objects: Iterable[Any]) -> None:
        if kind is OwnerPod:
            gone = dict.fromkeys(self._pods)
        elif kind is LabelledNode:
            gone = dict.fromkeys(self._nodes)
        else:
            gone = dict.fromkeys(self._locators)
            self._shared_labels.clear()
        for listed in objects:
            gone.pop(listed.key, None)
            if kind is OwnerPod:
                self._put_pod(listed)
            elif kind is LabelledNode:
                self._put_node(listed)
            else:
                self._put_locator(listed)
        for key in gone:
            self._drop(kind, key)

    def _put_pod(self, pod: OwnerPod, *, urgent: bool = False) -> None:
        key, before = pod.key, self._pods.get(pod.key)
        if before == pod:
            return
        if before is not None:
            self._remove_pod(key, before, successor=pod.uid)
        self._pods[key] = pod
        if pod.node:
            self._pods_on.setdefault(pod.node, set()).add(key)
        self.queue.add(key, urgent=urgent)

    def _remove_pod(self, key: str, pod: OwnerPod, *, successor: str = "") -> None:
        del self._pods[key]
        if pod.uid != successor and key in self._locators:
            self._deleted_owners[key] = pod.uid
        if pod.node:
            keys = self._pods_on[pod.node]
            keys.discard(key)
            if not keys:
                del self._pods_on[pod.node]

    def _put_node(self, node: LabelledNode) -> None:
        labels = self._labels.select(node)
        if self._nodes.get(node.name) != labels:
            self._nodes[node.name] = labels
            self._enqueue_pods_on(node.name)

    def _enqueue_pods_on(self, node: str) -> None:
        for key in sorted(self._pods_on.get(node, ())):
            self.queue.add(key)

    def _put_locator(self, locator: ActualLocator, *, urgent: bool = False) -> None:
        key = locator.key
        if self._locators.get(key) == locator:
            return
        if (node := locator.node) and (labels := locator.labels):  # 150,000 PodLocators hold the labels of 5,000 nodes
            shared = self._shared_labels.get(node)
            if shared == labels:
                locator = replace(locator, labels=shared)
            else:
                self._shared_labels[node] = labels
        self._locators[key] = locator
        self.queue.add(key, urgent=urgent)

    def _drop(self, kind: type[Any], key: str, *, urgent: bool = False) -> None:
        if kind is LabelledNode:
            if self._nodes.pop(key, None) is not None:
                self._enqueue_pods_on(key)
        elif kind is OwnerPod:
            if (pod := self._pods.get(key)) is not None:
                self._remove_pod(key, pod)
                self._enqueue(key, urgent=urgent)
        elif self._locators.pop(key, None) is not None:
            self._deleted_owners.pop(key, None)
            self._enqueue(key, urgent=urgent)

    def _enqueue(self, key: str, *, urgent: bool) -> None:
        """Add *key* to the queue, or discard it if neither pod nor PodLocator is left: a follower drains no queue."""
        if key in self._pods or key in self._locators:
            self.queue.add(key, urgent=urgent)
        else:
            self.queue.discard(key)
