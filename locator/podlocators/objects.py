"""What the controller reads and writes, and its JSON: Pods, Nodes, and the PodLocators it keeps.

These records differ from the serving model on purpose. They hold uid and resourceVersion, by which a write is
pinned to what was seen, and labels letter by letter, since whoever reads a PodLocator knows best what they mean.
Two records are equal exactly when nothing changed that a PodLocator is made from: a heartbeat, a condition or a
container's restart is invisible here.

This module spells the API's field names for the controller, as ``decoding`` does for the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.json import Decoder

from locator.api import schema
from locator.api.decoding import Resource
from locator.api.reading import Reading

GROUP_VERSION = "topodns.io/v1alpha1"
PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
POD_LOCATORS = f"/apis/{GROUP_VERSION}/podlocators"
MERGE_PATCH = "application/merge-patch+json"  # RFC 7396: a list is replaced, a field that is null is removed

FINISHED = ("Succeeded", "Failed")


class OwnerPod(Struct, frozen=True, gc=False):
    """A pod that may own a PodLocator.

    ``ips`` is empty before the pod has an address, and once it is finished: its address goes to others then.
    """

    namespace: str
    name: str
    uid: str
    ips: tuple[str, ...] = ()
    node: str = ""

    @property
    def key(self) -> str:
        """What tells this object from others of its kind."""
        return f"{self.namespace}/{self.name}"


class LabelledNode(Struct, frozen=True):
    """A node and all its labels, letter by letter."""

    name: str
    labels: dict[str, str]

    @property
    def key(self) -> str:
        """What tells this object from others of its kind."""
        return self.name


class Owner(Struct, frozen=True, gc=False):
    """An owner reference. The garbage collector removes an object when all its owners are gone."""

    api_version: str
    kind: str
    name: str
    uid: str


class ActualLocator(Struct, frozen=True):
    """A PodLocator as it is in the API, whoever wrote it.

    ``version`` is its resourceVersion: two versions are not equal, even if they tell the same. Of ``ips`` and
    ``labels``, None says that what stands there cannot be what we wrote. One that is ``ending`` has been deleted, and
    is there until its finalizers are gone.
    """

    namespace: str
    name: str
    uid: str
    version: str
    ips: tuple[str, ...] | None = ()
    node: str | None = ""
    labels: dict[str, Any] | None = {}
    owners: tuple[Owner, ...] = ()
    ending: bool = False

    @property
    def key(self) -> str:
        """What tells this object from others of its kind."""
        return f"{self.namespace}/{self.name}"

    @property
    def pod_uid(self) -> str:
        """The uid of the pod that owns it, empty if it says none."""
        return next((each.uid for each in self.owners if each.kind == "Pod"), "")


ControllerObject = OwnerPod | LabelledNode | ActualLocator


class WantedLocator(Struct, frozen=True):
    """What a PodLocator is to tell: its pod's addresses, that pod's node and those of the node's labels that count.

    ``node`` is empty, and so are ``labels``, where the Node is not known.
    """

    ips: tuple[str, ...]
    node: str
    labels: dict[str, str]
    owners: tuple[Owner, ...]


def owner_of(pod: OwnerPod) -> Owner:
    """Return the reference to a pod; it does not block the pod's deletion, which would need more rights."""
    return Owner("v1", "Pod", pod.name, pod.uid)


def tells(actual: ActualLocator, told: WantedLocator) -> bool:
    """Whether a PodLocator is as it should be."""
    return (actual.ips, actual.node, actual.labels, actual.owners) == (told.ips, told.node, told.labels, told.owners)


def pod_path(namespace: str, name: str) -> str:
    """Return where the API has a pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def locator_path(namespace: str, name: str = "") -> str:
    """Return where the API has a PodLocator, or all of a namespace."""
    where = f"/apis/{GROUP_VERSION}/namespaces/{namespace}/podlocators"
    return f"{where}/{name}" if name else where


def creation(namespace: str, name: str, told: WantedLocator) -> dict[str, Any]:
    """Return a new PodLocator."""
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "PodLocator",
        "metadata": {"namespace": namespace, "name": name, "ownerReferences": _references(told.owners)},
        "ips": _ips(told.ips),
        **({"nodeName": told.node} if told.node else {}),
        **({"nodeLabels": told.labels} if told.labels else {}),
    }


def correction(actual: ActualLocator, told: WantedLocator) -> dict[str, Any]:
    """Return the merge patch that makes *actual* tell what it should, for that very version of it."""
    patch: dict[str, Any] = {"metadata": {"resourceVersion": actual.version}}
    if actual.owners != told.owners:
        patch["metadata"]["ownerReferences"] = _references(told.owners)
    if actual.ips != told.ips:
        patch["ips"] = _ips(told.ips)
    if actual.node != told.node:
        patch["nodeName"] = told.node or None
    if actual.labels != told.labels:
        before: Mapping[str, Any] = actual.labels or {}
        after = {key: value for key, value in told.labels.items() if before.get(key) != value}
        patch["nodeLabels"] = {**dict.fromkeys(before.keys() - told.labels.keys()), **after} if told.labels else None
    return patch


def removal(actual: ActualLocator) -> dict[str, Any]:
    """Return the options that delete that very version of *actual*, and nothing else."""
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": actual.uid, "resourceVersion": actual.version},
    }


def _ips(ips: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"ip": each} for each in ips]


def _references(owners: tuple[Owner, ...]) -> list[dict[str, str]]:
    return [{"apiVersion": each.api_version, "kind": each.kind, "name": each.name, "uid": each.uid} for each in owners]


# As the API has them. What may have been edited by hand is read whatever it is, so that it can be mended.


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


def _pod(raw: _Pod, found: Reading) -> OwnerPod:
    del found  # nothing here can be wrong once its types are right
    status = raw.status or schema.PodStatus()
    ips = [each.ip for each in status.ips or () if each.ip] or [status.ip or ""]
    return OwnerPod(
        namespace=raw.metadata.namespace or "default",
        name=raw.metadata.name or "",
        uid=raw.metadata.uid or "",
        ips=() if status.phase in FINISHED else tuple(dict.fromkeys(filter(None, ips))),
        node=(raw.spec.node_name if raw.spec else None) or "",
    )


def _node(raw: _Node, found: Reading) -> LabelledNode:
    del found
    return LabelledNode(raw.metadata.name or "", raw.metadata.labels or {})


def _pod_locator(raw: _PodLocator, found: Reading) -> ActualLocator:
    del found  # what is wrong is mended
    try:
        ips: tuple[str, ...] | None = tuple(each["ip"] for each in raw.ips or ())
    except (TypeError, KeyError):
        ips = None
    labels = {} if raw.node_labels is None else raw.node_labels
    node = "" if raw.node_name is None else raw.node_name
    return ActualLocator(
        namespace=raw.metadata.namespace or "default",
        name=raw.metadata.name or "",
        uid=raw.metadata.uid or "",
        version=raw.metadata.version or "",
        ips=ips,
        node=node if isinstance(node, str) else None,
        labels=labels if isinstance(labels, dict) else None,
        owners=tuple(Owner(each.api_version, each.kind, each.name, each.uid) for each in raw.metadata.owners or ()),
        ending=raw.metadata.deleted is not None,
    )


CONTROLLER_RESOURCES: Mapping[type[ControllerObject], Resource] = {
    OwnerPod: Resource("Pod", PODS, Decoder(_Pod), _pod),
    LabelledNode: Resource("Node", NODES, Decoder(_Node), _node),
    ActualLocator: Resource("PodLocator", POD_LOCATORS, Decoder(_PodLocator), _pod_locator),
}
