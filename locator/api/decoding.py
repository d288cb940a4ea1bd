# SPDX-License-Identifier: Apache-2.0

"""Decodes the JSON of a Kubernetes object to a record of ``locator.model``.

``RESOURCES`` has one row for each kind: its path in the API, its schema, and its conversion. Whatever is wrong in an
object becomes a ``Finding`` that names the object, the field and what was expected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from locator.api import conversion, schema
from locator.api.finding_collector import FindingCollector
from locator.findings import ClusterCode
from locator.model import (
    ENDPOINTS,
    EndpointSlice,
    Finding,
    Namespace,
    Node,
    Object,
    Pod,
    PodLocator,
    Service,
    ServiceExport,
    ServiceHealth,
    ServiceImport,
    ServicePolicy,
    object_key,
)

MULTICLUSTER_API = "/apis/multicluster.x-k8s.io/v1beta1"
OLDER_MULTICLUSTER_API = "/apis/multicluster.x-k8s.io/v1alpha1"


class Resource(NamedTuple):
    """How topodns reads the objects of one kind.

    ``name`` is the kind, ``path`` lists all its objects. ``decoder`` returns a struct of ``schema``, and ``build``
    converts that to a record, None if the object is not usable. ``code`` is the code of a finding about one of its
    fields. ``optional``: the API server may not know the kind, since its CRD may be installed later or never.
    ``older_path`` is that of an older version of the API, which is asked if the server does not know this one.
    ``labels`` are the keys of the labels that records keep, where they keep only those that somebody asks for.
    ``label_selector`` is that of the requests: other objects are not read.
    ``metadata_only``: the API server is asked for the objects' metadata alone, as PartialObjectMetadata.
    """

    name: str
    path: str
    decoder: Decoder[Any]
    build: Callable[[Any, FindingCollector], Any]
    optional: bool = False
    older_path: str = ""
    code: ClusterCode = ClusterCode.UnreadableObject
    labels: frozenset[str] = frozenset()
    label_selector: str = ""
    metadata_only: bool = False

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.path.split("/")[2] if self.path.startswith("/apis/") else ""


# Decoders are created on import, not on first use: msgspec 0.22 crashes if two threads create a decoder at once.
# One row serves all versions of a group, since they agree in the fields that topodns reads.
RESOURCES: Mapping[type[Object], Resource] = {
    Namespace: Resource("Namespace", "/api/v1/namespaces", Decoder(schema.Namespace), conversion.to_namespace),
    Node: Resource("Node", "/api/v1/nodes", Decoder(schema.Node), conversion.to_node),
    Pod: Resource("Pod", "/api/v1/pods", Decoder(schema.Pod), conversion.to_pod),
    PodLocator: Resource(
        "PodLocator", "/apis/topodns.io/v1alpha1/podlocators", Decoder(schema.PodLocator), conversion.to_pod_locator
    ),
    Service: Resource("Service", "/api/v1/services", Decoder(schema.Service), conversion.to_service),
    ServicePolicy: Resource(
        "ServicePolicy",
        "/apis/topodns.io/v1alpha1/servicepolicies",
        Decoder(schema.ServicePolicy),
        conversion.to_service_policy,
        optional=True,
        code=ClusterCode.InvalidServicePolicy,
    ),
    EndpointSlice: Resource(
        "EndpointSlice",
        "/apis/discovery.k8s.io/v1/endpointslices",
        Decoder(schema.EndpointSlice),
        conversion.to_endpoint_slice,
    ),
    ServiceExport: Resource(
        "ServiceExport",
        f"{MULTICLUSTER_API}/serviceexports",
        Decoder(schema.ServiceExport),
        conversion.to_service_export,
        optional=True,
        older_path=f"{OLDER_MULTICLUSTER_API}/serviceexports",
    ),
    ServiceImport: Resource(
        "ServiceImport",
        f"{MULTICLUSTER_API}/serviceimports",
        Decoder(schema.ServiceImport),
        conversion.to_service_import,
        optional=True,
        older_path=f"{OLDER_MULTICLUSTER_API}/serviceimports",
    ),
    # Its CRD comes with the component of the manifests that switches the prober on.
    ServiceHealth: Resource(
        "ServiceHealth",
        "/apis/topodns.io/v1alpha1/servicehealths",
        Decoder(schema.ServiceHealth),
        conversion.to_service_health,
        optional=True,
    ),
}
# For those who need the labels of nodes, but neither their addresses nor their pod CIDRs.
NODE_METADATA = RESOURCES[Node]._replace(metadata_only=True)
_CLIENT_POD = Decoder(schema.ClientPod)
# Only dumps are read for Endpoints: in a live cluster, Kubernetes writes EndpointSlices of them.
_ENDPOINTS = Resource(ENDPOINTS, "/api/v1/endpoints", Decoder(schema.Endpoints), conversion.to_endpoints)

Resources = Mapping[type[Object], Resource]


def with_pod_labels(keys: Iterable[str]) -> Resources:
    """Return ``RESOURCES``, but Pods that have labels with some *keys* are read as ``ClientPod``."""
    labels = frozenset(keys)

    def build(raw: schema.ClientPod, collector: FindingCollector) -> Pod:
        return conversion.to_client_pod(raw, collector, labels)

    return {**RESOURCES, Pod: RESOURCES[Pod]._replace(decoder=_CLIENT_POD, build=build, labels=labels)}


ByGroupKind = Mapping[tuple[str, str], Resource]


def by_group_kind(resources: Resources) -> ByGroupKind:
    """Return how the objects of a dump are read, by API group and kind."""
    return {(resource.group, resource.name): resource for resource in (*resources.values(), _ENDPOINTS)}


RESOURCES_BY_GROUP_KIND = by_group_kind(RESOURCES)


class Decoded(NamedTuple):
    """One decoded object, and what is wrong in it.

    ``built`` is the record, None if the object is not usable; a finding then says why. ``version`` is the object's
    resourceVersion, ``triggered`` an EndpointSlice's last-change-trigger-time (RFC 3339). Both are empty if unknown.
    """

    namespace: str
    name: str
    version: str
    built: Any
    findings: Sequence[Finding] = ()
    triggered: str = ""

    @property
    def key(self) -> str:
        """The key of the object's record."""
        return object_key(self.namespace, self.name)


def decode_untrusted(resource: Resource, raw: Raw | bytes, where: str = "") -> Decoded:
    """Decode one object. Findings call it *where* if it has no name. Never raises."""
    try:
        typed = resource.decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a field of the wrong type, or not JSON
        message, path = error_words(error)
        namespace, name, version = _identity(bytes(raw))
        finding = ClusterCode.UnreadableObject.finding(
            resource.name, namespace, name or where, field=path, message=f"unreadable object: {message}"
        )
        return Decoded(namespace, name, version, None, [finding])
    return converted(resource, typed, where)


def converted(resource: Resource, typed: Any, where: str = "") -> Decoded:
    """Return the record of an object that is decoded to a struct of ``schema``; as ``decode_untrusted``."""
    meta: schema.Meta = typed.metadata
    if not meta.name:
        finding = ClusterCode.UnreadableObject.finding(
            resource.name,
            meta.namespace or "",
            where,
            field="metadata.name",
            message="object without a name",
            expected="a name",
        )
        return Decoded(meta.namespace or "", "", meta.version or "", None, [finding])
    collector = FindingCollector(resource.code, resource.name, meta.namespace or "", meta.name)
    built = resource.build(typed, collector)
    triggered = ""
    if isinstance(meta, schema.SliceMeta) and meta.annotations is not None:
        triggered = meta.annotations.at or ""
    return Decoded(meta.namespace or "", meta.name, meta.version or "", built, collector, triggered)


class _IdentityMeta(Struct):
    uid: str = ""
    labels: dict[str, str] | None = None


class _Identified(Struct):
    metadata: _IdentityMeta


_IDENTIFIED = Decoder(_Identified)


def uid_untrusted(raw: bytes) -> str:
    """Return the uid of an object of any kind, empty if it has none or is unreadable."""
    return _identified_untrusted(raw).uid


def labels_untrusted(raw: bytes) -> Mapping[str, str]:
    """Return the labels of an object of any kind, none if it is unreadable."""
    return _identified_untrusted(raw).labels or {}


def _identified_untrusted(raw: bytes) -> _IdentityMeta:
    try:
        return _IDENTIFIED.decode(raw).metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _IdentityMeta()


def error_words(error: Exception) -> tuple[str, str]:
    """Return the message of a msgspec error, and the path of the field that it is about."""
    message, _, path = str(error).partition(" - at ")
    message = message.replace("`", "")
    if match := re.fullmatch(r"Expected (.+), got (.+)", message):
        message = f"{match[2]} found, expected {match[1].replace(' | null', '')}"
    return message, path.strip("`").removeprefix("$").removeprefix(".")


def _identity(raw: bytes) -> tuple[str, str, str]:
    """Return namespace, name and resourceVersion of an unreadable object, each empty if it is unreadable too."""
    try:
        meta = json.loads(raw.decode(errors="replace")).get("metadata")
    except (ValueError, AttributeError, RecursionError):  # ValueError also for a number of 5,000 digits
        return "", "", ""
    if not isinstance(meta, dict):
        return "", "", ""
    return _printable(meta.get("namespace")), _printable(meta.get("name")), _printable(meta.get("resourceVersion"))


def _printable(value: object) -> str:
    """Return a JSON value as printable text: replaces unpaired surrogates, which cannot be printed."""
    return str(value or "").encode(errors="replace").decode()
