# SPDX-License-Identifier: Apache-2.0

"""The objects that the controller reads and writes, and their JSON: Pods, Nodes and PodLocators.

These records differ from the server's on purpose. They hold uid and resourceVersion, so that a write can require the
version that the controller saw. They hold labels by the names that they have on the node, old ones too. Two records
are equal exactly if the same PodLocator follows from both: heartbeats, conditions and container restarts make no
difference.

The controller's names of API fields are here; the server's are in ``locator/api/schema.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.json import Decoder

from locator.api import schema
from locator.api.decoding import NODE_METADATA, RESOURCES, Resource
from locator.api.finding_collector import FindingCollector
from locator.model import Pod, PodLocator

FINISHED = ("Succeeded", "Failed")


class OwnerPod(Struct, frozen=True, gc=False):
    """A pod that may own a PodLocator.

    ``ips`` is empty before the pod has an address, and once it has finished: another pod may then get its address.
    """

    namespace: str
    name: str
    uid: str
    ips: tuple[str, ...] = ()
    node: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class LabelledNode(Struct, frozen=True):
    """A node and all its labels that have a value: an empty one is no label."""

    name: str
    labels: dict[str, str]

    @property
    def key(self) -> str:
        """The node's name."""
        return self.name


class OwnerReference(Struct, frozen=True, gc=False):
    """An owner reference. Kubernetes' garbage collector deletes an object once all its owners are gone."""

    api_version: str
    kind: str
    name: str
    uid: str


class ActualLocator(Struct, frozen=True):
    """A PodLocator as it is in the API, whoever wrote it.

    ``version`` is its resourceVersion, so two versions with the same content differ. ``ips``, ``node`` and ``labels``
    are None if the API holds a value of another type there, which the controller cannot have written. A
    ``terminating`` PodLocator has been deleted, and stays until its finalizers are gone.
    """

    namespace: str
    name: str
    uid: str = ""
    version: str = ""
    ips: tuple[str, ...] | None = ()
    node: str | None = ""
    labels: dict[str, Any] | None = {}
    owners: tuple[OwnerReference, ...] = ()
    terminating: bool = False

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def pod_uid(self) -> str:
        """The uid of the pod that owns it, empty if it has no such owner."""
        return next((owner.uid for owner in self.owners if owner.kind == "Pod"), "")


ControllerObject = OwnerPod | LabelledNode | ActualLocator


class WantedLocator(Struct, frozen=True):
    """What a PodLocator should say: the pod's addresses, its node, and the node's labels that pass the filter.

    ``node`` and ``labels`` are empty if the Node does not exist.
    """

    ips: tuple[str, ...]
    node: str
    labels: dict[str, str]
    owners: tuple[OwnerReference, ...]


def owner_reference(pod: OwnerPod) -> OwnerReference:
    """Return a reference to *pod* without ``blockOwnerDeletion``, which would need more rights."""
    return OwnerReference("v1", "Pod", pod.name, pod.uid)


def differences(actual: ActualLocator, wanted: WantedLocator) -> dict[str, Any]:
    """Return the fields that turn *actual* into *wanted* by a merge patch, empty if it is as it should be."""
    patch: dict[str, Any] = {}
    if actual.owners != wanted.owners:
        patch["metadata"] = {"ownerReferences": _references(wanted.owners)}
    if actual.ips != wanted.ips:
        patch["ips"] = _ips(wanted.ips)
    if actual.node != wanted.node:
        patch["nodeName"] = wanted.node or None
    if actual.labels != wanted.labels:
        before: Mapping[str, Any] = actual.labels or {}
        changed = {key: value for key, value in wanted.labels.items() if before.get(key) != value}
        removed = dict.fromkeys(before.keys() - wanted.labels.keys())
        patch["nodeLabels"] = {**removed, **changed} if wanted.labels else None
    return patch


def _ips(ips: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"ip": ip} for ip in ips]


def _references(owners: tuple[OwnerReference, ...]) -> list[dict[str, str]]:
    return [
        {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid} for owner in owners
    ]


# Objects as the API returns them. Fields that somebody may have edited accept any type, so that they can be corrected.


class _Reference(Struct):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = field(name="apiVersion", default="")


class _IdentifiedMeta(schema.Meta):
    uid: str | None = None


class _OwnedMeta(_IdentifiedMeta):
    owners: list[_Reference] | None = field(name="ownerReferences", default=None)
    deleted: str | None = field(name="deletionTimestamp", default=None)


class _Pod(Struct):
    metadata: _IdentifiedMeta
    spec: schema.PodSpec | None = None
    status: schema.PodStatus | None = None


class _Node(Struct):
    metadata: schema.LabelledMeta


class _PodLocator(Struct, rename="camel"):
    metadata: _OwnedMeta
    ips: Any = None
    node_name: Any = None
    node_labels: Any = None


def _pod(raw: _Pod, collector: FindingCollector) -> OwnerPod:
    del collector  # a pod whose types are right has nothing to report
    status = raw.status or schema.PodStatus()
    ips = [address.ip for address in status.ips or () if address.ip] or [status.ip or ""]
    return OwnerPod(
        namespace=raw.metadata.namespace or "default",
        name=raw.metadata.name or "",
        uid=raw.metadata.uid or "",
        ips=() if status.phase in FINISHED else tuple(dict.fromkeys(filter(None, ips))),
        node=(raw.spec.node_name if raw.spec else None) or "",
    )


def _node(raw: _Node, collector: FindingCollector) -> LabelledNode:
    del collector
    labels = raw.metadata.labels or {}
    return LabelledNode(raw.metadata.name or "", {key: value for key, value in labels.items() if value})


def _pod_locator(raw: _PodLocator, collector: FindingCollector) -> ActualLocator:
    del collector  # the reconciler corrects what is wrong
    try:
        ips: tuple[str, ...] | None = tuple(address["ip"] for address in raw.ips or ())
    except (TypeError, KeyError):
        ips = None
    labels = {} if raw.node_labels is None else raw.node_labels
    if isinstance(labels, dict):  # to take empty ones out would be a write for nothing
        labels = {key: value for key, value in labels.items() if value != ""}
    node = "" if raw.node_name is None else raw.node_name
    return ActualLocator(
        namespace=raw.metadata.namespace or "default",
        name=raw.metadata.name or "",
        uid=raw.metadata.uid or "",
        version=raw.metadata.version or "",
        ips=ips,
        node=node if isinstance(node, str) else None,
        labels=labels if isinstance(labels, dict) else None,
        owners=tuple(
            OwnerReference(owner.api_version, owner.kind, owner.name, owner.uid) for owner in raw.metadata.owners or ()
        ),
        terminating=raw.metadata.deleted is not None,
    )


LOCATOR_RESOURCES: Mapping[type[ControllerObject], Resource] = {
    OwnerPod: RESOURCES[Pod]._replace(decoder=Decoder(_Pod), build=_pod),
    LabelledNode: NODE_METADATA._replace(decoder=Decoder(_Node), build=_node),
    ActualLocator: RESOURCES[PodLocator]._replace(decoder=Decoder(_PodLocator), build=_pod_locator),
}
