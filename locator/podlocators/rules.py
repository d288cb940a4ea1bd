# SPDX-License-Identifier: Apache-2.0

"""Which PodLocators should exist, and what they should say (KEP-536).

A pod gets a PodLocator once it has an address and a node, and keeps it as long as the pod exists. If the Node does not
exist, the PodLocator has neither node nor labels.

When a pod finishes, its PodLocator loses the addresses, since other pods may get them. A finished pod without a
PodLocator does not get one.

Pods on the host network get PodLocators too. They all share their node's address and location; without them, clients
that read only PodLocators could not locate such pods.

If a pod's name is used again while the earlier pod's PodLocator still exists, one patch hands the PodLocator over to
the new pod. Deleting and creating it would leave the name without a PodLocator, or with a wrong address, in between.
If the new pod has no address yet, the PodLocator is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import translate
from typing import Any

from cachetools import LRUCache
from msgspec.structs import replace

from locator.api.decoding import Resource
from locator.control.reconciler import KnownObjects, ObjectChange, Rules
from locator.control.writes import Existing, Write, creation, deletion, merge_patch, object_path
from locator.index import Index
from locator.model import SUCCESSORS
from locator.podlocators.locators import (
    LOCATOR_RESOURCES,
    ActualLocator,
    LabelledNode,
    OwnerPod,
    WantedLocator,
    differences,
    owner_reference,
)

MAX_SHARED = 1 << 13  # more than the nodes of the largest clusters

_RESOURCE = LOCATOR_RESOURCES[ActualLocator]

# Kubernetes renamed some labels. A glob that matches one name of such a label selects it under both.
_OTHER_NAME = {**SUCCESSORS, **{new: old for old, new in SUCCESSORS.items()}}


class LocatorRules(Rules):
    """Compares PodLocators with Pods and Nodes.

    A PodLocator gets the labels of its node whose keys match one of *globs*, all of them if there are no globs.
    """

    resources: Mapping[type[Any], Resource] = LOCATOR_RESOURCES
    writes: type[Any] = ActualLocator
    urgent: Collection[type[Any]] = (OwnerPod, ActualLocator)  # before changes of nodes, which concern many pods

    def __init__(self, globs: Iterable[str] = ()) -> None:
        self.objects = KnownObjects(LOCATOR_RESOURCES, keep=self._keep)
        patterns = [translate(glob) for glob in globs]
        self._pattern = re.compile("|".join(patterns)) if patterns else None
        self._pods: Index[str, OwnerPod] = Index(node=lambda pod: (pod.node,) if pod.node else ())
        self._deleted_owners: dict[str, str] = {}  # by PodLocator: the uid of a pod that certainly does not exist
        # One dictionary of labels for all PodLocators of a node; they may name nodes that nobody knows.
        self._shared_labels: LRUCache[str, dict[str, Any]] = LRUCache(MAX_SHARED)

    def changed(self, change: ObjectChange) -> Iterable[str]:
        """Return the PodLocator of a pod, or those of all pods on a node."""
        if change.kind is LabelledNode:
            return sorted(self._pods.keys("node", change.key))
        if change.kind is OwnerPod:
            self._pods.move(change.key, change.before, change.after)
            self._note_deleted(change.before, change.after)
        elif change.after is None:
            self._deleted_owners.pop(change.key, None)
        return (change.key,)

    def exists(self, key: str) -> bool:
        """Whether there is a pod, or a PodLocator."""
        return key in self.objects.of_kind(OwnerPod) or key in self.objects.of_kind(ActualLocator)

    def write_for(self, key: str, now: float) -> Write | None:
        """Return the write that a PodLocator needs, None if it is as it should be."""
        pod: OwnerPod | None = self.objects.get(OwnerPod, key)
        actual: ActualLocator | None = self.objects.get(ActualLocator, key)
        if pod is not None and pod.ips and pod.node:
            wanted = self._wanted(pod)
            if actual is None:
                return creation(_RESOURCE, key, differences(ActualLocator(pod.namespace, pod.name), wanted))
        elif actual is None:
            return None
        elif pod is not None and pod.uid == actual.pod_uid:
            wanted = self._wanted(pod)
        elif not actual.terminating:
            unless = self._unseen_owner(actual, pod)
            return deletion(_RESOURCE, key, actual.version, unless=unless, uid=actual.uid)
        else:  # a finalizer delays the deletion; other pods may get the addresses meanwhile
            wanted = WantedLocator((), actual.node or "", actual.labels or {}, actual.owners)
        if not (fields := differences(actual, wanted)):
            return None
        return merge_patch(_RESOURCE, key, actual.version, fields, unless=self._unseen_owner(actual, pod))

    def _unseen_owner(self, actual: ActualLocator, pod: OwnerPod | None) -> Existing | None:
        """Return the pod by that name if it may be an owner that the watch has not shown: it may be new.

        If the PodLocator has no owner, this is whatever pod has the name. None if the watch has shown the owner, or
        its end.
        """
        owner = actual.pod_uid
        if owner == self._deleted_owners.get(actual.key) or (pod is not None and owner in ("", pod.uid)):
            return None
        return Existing(object_path(LOCATOR_RESOURCES[OwnerPod], actual.key), owner)

    def _wanted(self, pod: OwnerPod) -> WantedLocator:
        node: LabelledNode | None = self.objects.get(LabelledNode, pod.node)
        if node is None:
            return WantedLocator(pod.ips, "", {}, (owner_reference(pod),))
        return WantedLocator(pod.ips, node.name, node.labels, (owner_reference(pod),))

    def _note_deleted(self, before: OwnerPod | None, after: OwnerPod | None) -> None:
        """Note that a pod is gone, whether or not another one has its name."""
        is_gone = before is not None and (after is None or after.uid != before.uid)
        if before is not None and is_gone and self.objects.get(ActualLocator, before.key) is not None:
            self._deleted_owners[before.key] = before.uid

    def _keep(self, found: Any) -> Any:
        """Return an object with those labels alone that matter, shared where 150,000 PodLocators have 5,000 nodes'."""
        if isinstance(found, LabelledNode) and self._pattern is not None:
            selected = {key: value for key, value in found.labels.items() if self._is_selected(key)}
            return replace(found, labels=selected)
        if isinstance(found, ActualLocator) and found.node and found.labels:
            shared = self._shared_labels.get(found.node)
            if shared == found.labels:
                return replace(found, labels=shared)
            self._shared_labels[found.node] = found.labels
        return found

    def _is_selected(self, key: str) -> bool:
        names = (key, _OTHER_NAME.get(key, key))
        return self._pattern is None or any(map(self._pattern.match, names))
