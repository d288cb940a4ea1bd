# SPDX-License-Identifier: Apache-2.0

"""How the objects of a federation API and their copies in clusters are read, and what a copy is made of.

Of an original topodns keeps the copy that it makes of it, as JSON. Of a copy it keeps a digest of the fields that it
owns there by server-side apply (KEP-555): if that is the digest of the copy that is wanted, there is nothing to write.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.json import Decoder

from locator.api import schema
from locator.api.decoding import Resource
from locator.api.finding_collector import FindingCollector
from locator.distribution.instructions import Problem, read_instructions
from locator.distribution.records import (
    FINALIZER,
    KINDS,
    OTHER_WORKLOADS,
    Autoscaler,
    ClusterNamespace,
    Copy,
    Key,
    Kind,
    Original,
    Replicas,
    Undistributed,
)
from locator.labels import Selector
from locator.model import MAX_NAME
from locator.topology.annotations import FEDERATED, FEDERATION, FEDERATION_STATUS, OF_FEDERATIONS
from locator.topology.unknown_names import unknown_names

FIELD_MANAGER = "topodns-federation"
LABEL = FEDERATION
APPLIED = "Apply"  # the operation of fields that are owned by server-side apply
MAX_LABEL = 63
_DIGITS = 12  # of a hash that shortens a label

SYSTEM_NAMESPACES = "kube-"  # the beginning of their names
HEADLESS = "None"
SINGLE_STACK = "SingleStack"
# Annotations that say something about the object in the federation API alone.
NOT_COPIED = frozenset(
    (*OF_FEDERATIONS, "kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision")
)
TOKEN_TYPES = ("kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token")
# What Kubernetes makes itself, by kind: namespace (None: any) and name.
MADE_BY_KUBERNETES = {
    "ConfigMap": ((None, "kube-root-ca.crt"),),
    "ServiceAccount": ((None, "default"),),
    "Service": (("default", "kubernetes"),),
}


class _ManagedFields(Struct):
    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields: dict[str, Any] | None = field(name="fieldsV1", default=None)


class _Meta(schema.AnnotatedMeta):
    uid: str = ""
    generation: int = 0
    deleted: str | None = field(name="deletionTimestamp", default=None)
    finalizers: list[str] | None = None
    owners: list[Any] | None = field(name="ownerReferences", default=None)
    managed: list[_ManagedFields] | None = field(name="managedFields", default=None)


class _Status(Replicas, frozen=True):
    generation: int = field(name="observedGeneration", default=0)
    balancer: dict[str, Any] | None = field(name="loadBalancer", default=None)


class _Manifest(Struct, rename="camel"):
    """An object of any kind that is distributed."""

    metadata: _Meta
    spec: dict[str, Any] | None = None
    status: _Status | None = None
    data: dict[str, Any] | None = None
    binary_data: dict[str, Any] | None = None
    immutable: bool | None = None
    type: str | None = None
    image_pull_secrets: list[Any] | None = None
    automount_service_account_token: bool | None = None


class _Named(Struct):
    metadata: _Meta


class _Target(Struct):
    kind: str = ""
    name: str = ""


class _AutoscalerSpec(Struct):
    target: _Target = field(name="scaleTargetRef", default_factory=_Target)


class _Autoscaler(Struct):
    metadata: _Meta
    spec: _AutoscalerSpec = field(default_factory=_AutoscalerSpec)


def label_value(federation: str) -> str:
    """Return the value of the label of copies, by the federation's name; a long one is shortened by a hash."""
    if len(federation) <= MAX_LABEL:
        return federation
    digest = hashlib.sha256(federation.encode()).hexdigest()[:_DIGITS]
    return f"{re.sub('[^a-z0-9]+$', '', federation[: MAX_LABEL - _DIGITS - 1])}-{digest}"


def original_resources(federation: str, selector: Selector | None) -> dict[type[Any], Resource]:
    """Return how the objects of a federation API are read; with *selector* only those that it matches count."""
    decoder = Decoder(_Manifest)
    found: dict[type[Any], Resource] = {
        kind.original: Resource(name, kind.path, decoder, partial(_original, kind, federation, selector))
        for name, kind in KINDS.items()
    }
    named = Decoder(_Named)
    for name, (path, type_) in OTHER_WORKLOADS.items():
        found[type_] = Resource(
            name, path, named, partial(_undistributed, type_, selector), optional=True, metadata_only=True
        )
    return found


def copy_resources(federation: str) -> dict[type[Any], Resource]:
    """Return how a cluster is read: its copies, namespaces and autoscalers."""
    decoder, selector = Decoder(_Manifest), f"{LABEL}={label_value(federation)}"
    found: dict[type[Any], Resource] = {
        kind.copy: Resource(name, kind.path, decoder, partial(_copy, kind), label_selector=selector)
        for name, kind in KINDS.items()
    }
    found[ClusterNamespace] = Resource(
        "Namespace", "/api/v1/namespaces", Decoder(_Named), _namespace, metadata_only=True
    )
    path = "/apis/autoscaling/v1/horizontalpodautoscalers"
    found[Autoscaler] = Resource("HorizontalPodAutoscaler", path, Decoder(_Autoscaler), _autoscaler, optional=True)
    return found


def wanted_manifest(original: Original, replicas: int | None) -> dict[str, Any]:
    """Return the copy of an original, without what names it; *replicas* is None if it is not to set them."""
    manifest: dict[str, Any] = msgspec.json.decode(original.manifest)
    if replicas is not None:
        manifest["spec"]["replicas"] = replicas
    return manifest


def digest_of(manifest: Any) -> bytes:
    """Return a digest of JSON values that differs if one of them does."""
    return hashlib.blake2b(msgspec.json.encode(manifest, order="deterministic"), digest_size=12).digest()


# --- What is kept of an object ----------------------------------------------------------------------------------------


def _original(
    kind: Kind, federation: str, selector: Selector | None, raw: _Manifest, _: FindingCollector
) -> Original | None:
    meta = raw.metadata
    namespace, name = meta.namespace or "", meta.name or ""
    labels, annotations, spec = meta.labels or {}, meta.annotations or {}, raw.spec or {}
    finalizers = tuple(meta.finalizers or ())
    distributed = (
        not meta.owners
        and not namespace.startswith(SYSTEM_NAMESPACES)
        and not _is_made_by_kubernetes(kind, namespace, name)
        and raw.type not in TOKEN_TYPES
        and (selector is None or selector.matches(labels))
    )
    if not distributed and FINALIZER not in finalizers:
        return None
    instructions, problems = read_instructions(annotations)
    balanced = kind.name == "Service" and spec.get("type") == "LoadBalancer"
    if kind.name == "Service" and len(f"{name}.{namespace}.{federation}") > MAX_NAME:
        message = f"the federated name {name}.{namespace}.{federation} has more than {MAX_NAME} characters"
        problems.append(Problem("metadata.name", message, "a shorter name"))
    return kind.original(
        namespace, name, meta.version or "", meta.uid,
        manifest=msgspec.json.encode(_copied(kind, federation, raw)),
        instructions=instructions,
        problems=tuple(problems),
        unknown=tuple(Problem(*name) for name in unknown_names(annotations, labels)),
        finalizers=finalizers,
        generation=meta.generation,
        replicas=spec.get("replicas", 1) if kind.has_replicas else None,
        balanced=balanced,
        deleting=meta.deleted is not None,
        distributed=distributed,
        status=_written_status(kind, raw.status or _Status()),
        federation_status=annotations.get(FEDERATION_STATUS, ""),
    )  # fmt: skip


def _is_made_by_kubernetes(kind: Kind, namespace: str, name: str) -> bool:
    made = MADE_BY_KUBERNETES.get(kind.name, ())
    return any(name == one and where in (None, namespace) for where, one in made)


def _copied(kind: Kind, federation: str, raw: _Manifest) -> dict[str, Any]:
    """Return what a copy has of an object: all that somebody wrote, and nothing that a server gave it."""
    meta = raw.metadata
    labels = {**(meta.labels or {}), LABEL: label_value(federation)}
    annotations = {key: text for key, text in (meta.annotations or {}).items() if key not in NOT_COPIED}
    spec = dict(raw.spec or {})
    if kind.name == "Service":
        annotations[FEDERATED] = "true"
        _forget_allocated(spec)
    spec.pop("replicas", None)
    content = {
        **_content(raw),
        "metadata": {"labels": labels, **({"annotations": annotations} if annotations else {})},
        "spec": spec if raw.spec is not None else None,
    }
    copied: dict[str, Any] = _without_nulls(content)
    return copied


def _content(raw: _Manifest) -> dict[str, Any]:
    """Return the fields of an object that somebody writes; those that it lacks are None."""
    return {
        "metadata": {"labels": raw.metadata.labels or {}, "annotations": raw.metadata.annotations or {}},
        "spec": raw.spec,
        "data": raw.data,
        "binaryData": raw.binary_data,
        "immutable": raw.immutable,
        "type": raw.type,
        "imagePullSecrets": raw.image_pull_secrets,
        "automountServiceAccountToken": raw.automount_service_account_token,
    }


def _forget_allocated(spec: dict[str, Any]) -> None:
    """Take out of a Service's *spec* what each cluster allocates itself."""
    if spec.get("clusterIP") != HEADLESS:
        spec.pop("clusterIP", None)
    for name in ("clusterIPs", "ipFamilies", "healthCheckNodePort"):
        spec.pop(name, None)
    if spec.get("ipFamilyPolicy") == SINGLE_STACK:  # what a server of one address family sets
        del spec["ipFamilyPolicy"]
    if isinstance(ports := spec.get("ports"), list):
        spec["ports"] = [{key: value for key, value in port.items() if key != "nodePort"} for port in ports]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def status_of(kind: Kind, numbers: Replicas, generation: int) -> dict[str, Any]:
    """Return the status of a workload in the federation API; a *generation* of 0 is none."""
    status: dict[str, Any] = msgspec.to_builtins(numbers)
    if not kind.counts_updated:
        del status["updatedReplicas"], status["unavailableReplicas"]
    return status | ({"observedGeneration": generation} if generation else {})


def _written_status(kind: Kind, status: _Status) -> dict[str, Any]:
    """Return what of a status topodns writes."""
    if kind.name == "Service":
        return {"loadBalancer": status.balancer or {}}
    if not kind.has_replicas:
        return {}
    return status_of(kind, _numbers(status), 0) | {"observedGeneration": status.generation}


def _numbers(status: _Status) -> Replicas:
    return msgspec.convert(status, Replicas, from_attributes=True)


def _copy(kind: Kind, raw: _Manifest, _: FindingCollector) -> Copy:
    meta, status = raw.metadata, raw.status or _Status()
    owned = next((one.fields or {} for one in meta.managed or () if _is_ours(one)), {})
    return kind.copy(
        meta.namespace or "", meta.name or "", meta.version or "", meta.uid,
        digest=digest_of(_owned_part(_content(raw), owned) if owned else {}),
        applied=bool(owned),
        replicas=(raw.spec or {}).get("replicas", 1) if kind.has_replicas else None,
        owns_replicas="f:replicas" in owned.get("f:spec", {}),
        status=_numbers(status),
        observed=not kind.has_replicas or status.generation >= meta.generation,
        deleting=meta.deleted is not None,
    )  # fmt: skip


def _is_ours(fields: _ManagedFields) -> bool:
    return fields.manager == FIELD_MANAGER and fields.operation == APPLIED and not fields.subresource


def _owned_part(value: Any, owned: Mapping[str, Any]) -> Any:
    """Return the part of a JSON *value* that *owned*, a set of fields in the form FieldsV1, names."""
    names = [name for name in owned if name != "."]
    if not names:
        return {} if "." in owned and isinstance(value, dict) else [] if "." in owned else value
    if isinstance(value, dict):
        fields = {name.removeprefix("f:"): name for name in names if name.startswith("f:")}
        return {field: _owned_part(value[field], owned[name]) for field, name in fields.items() if field in value}
    found: dict[int, Any] = {}
    for name in names:
        sort, _, text = name.partition(":")
        sought = msgspec.json.decode(text)
        for position, item in enumerate(value if isinstance(value, list) else ()):
            if item == sought if sort == "v" else isinstance(item, dict) and sought.items() <= item.items():
                found[position] = _owned_part(item, owned[name])
    return [found[position] for position in sorted(found)]


def _undistributed(
    type_: type[Undistributed], selector: Selector | None, raw: _Named, _: FindingCollector
) -> Undistributed | None:
    meta = raw.metadata
    namespace = meta.namespace or ""
    if meta.owners or namespace.startswith(SYSTEM_NAMESPACES):
        return None
    if selector is not None and not selector.matches(meta.labels or {}):
        return None
    return type_(namespace, meta.name or "", meta.version or "")


def _namespace(raw: _Named, _: FindingCollector) -> ClusterNamespace:
    meta = raw.metadata
    return ClusterNamespace(meta.name or "", meta.version or "", meta.uid, deleting=meta.deleted is not None)


def _autoscaler(raw: _Autoscaler, _: FindingCollector) -> Autoscaler:
    meta, target = raw.metadata, raw.spec.target
    namespace = meta.namespace or ""
    key = Key(target.kind, f"{namespace}/{target.name}")
    return Autoscaler(namespace, meta.name or "", meta.version or "", key)
