# SPDX-License-Identifier: Apache-2.0

"""The objects of a federation API and their copies in clusters: which kinds, and what is known of each object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct, field

from locator.distribution.instructions import Instructions, Problem
from locator.model import Namespaced
from locator.topology.annotations import FEDERATION

T = TypeVar("T", bound=Struct)

FINALIZER = FEDERATION


class Key(NamedTuple):
    """An object among all that a federation has, and the key of the work queue that stands for it."""

    kind: str
    object: str
    """Its ``NAMESPACE/NAME``, or the name of a Namespace."""

    @classmethod
    def parse(cls, text: str) -> Key:
        """Return the key whose text is this."""
        kind, _, found = text.partition(" ")
        return cls(kind, found)

    def __str__(self) -> str:
        return f"{self.kind} {self.object}"

    @property
    def namespace(self) -> str:
        """The namespace, a Namespace's own name."""
        return self.object.partition("/")[0]

    @property
    def name(self) -> str:
        """The object's name."""
        return self.object.rpartition("/")[2]


NAMESPACE = "Namespace"


def namespace_key(name: str) -> Key:
    """Return the key of a namespace."""
    return Key(NAMESPACE, name)


class Replicas(Struct, frozen=True):
    """How many pods a workload has, and how many of them are in which state: the numbers in its status."""

    replicas: int = 0
    ready: int = field(name="readyReplicas", default=0)
    available: int = field(name="availableReplicas", default=0)
    updated: int = field(name="updatedReplicas", default=0)
    unavailable: int = field(name="unavailableReplicas", default=0)


class Original(Namespaced, frozen=True):
    """An object in the federation API.

    ``manifest`` is its copy as JSON, without replicas and without what names it. ``replicas`` is None of a kind that
    has none. It is ``distributed`` unless nobody asks for that: somebody owns it, say. ``problems`` are about it alone,
    and let its copies stay as they are; ``unknown`` are annotations and labels that topodns does not know. ``status``
    is what stands in the fields of its status that topodns writes, ``federation_status`` the value of its annotation
    ``topodns.io/federation-status``.
    """

    version: str
    uid: str
    manifest: bytes
    instructions: Instructions
    problems: tuple[Problem, ...]
    unknown: tuple[Problem, ...]
    finalizers: tuple[str, ...]
    generation: int = 0
    replicas: int | None = None
    balanced: bool = False
    """Whether it is a Service of type LoadBalancer."""
    deleting: bool = False
    distributed: bool = True
    status: Mapping[str, Any] = {}
    federation_status: str = ""

    @property
    def is_held(self) -> bool:
        """Whether it cannot go before its copies."""
        return FINALIZER in self.finalizers


class Copy(Namespaced, frozen=True):
    """A copy of an original in a cluster.

    ``digest`` is that of the fields that topodns owns there; if it owns none, the object was not ``applied`` by it, and
    only has the label. ``replicas`` is None of a kind that has none, and ``owns_replicas`` says whether topodns was the
    last to set that field. It is ``observed`` if its status is about its present generation.
    """

    version: str
    uid: str
    digest: bytes
    applied: bool = True
    replicas: int | None = None
    owns_replicas: bool = False
    status: Replicas = Replicas()
    observed: bool = True
    deleting: bool = False


class Undistributed(Namespaced, frozen=True):
    """A workload in the federation API of a kind that is not distributed."""

    version: str


class ClusterNamespace(Struct, frozen=True):
    """A namespace of a cluster. While it is ``deleting``, nothing can be created in it, nor another one of its name."""

    name: str
    version: str
    uid: str = ""
    deleting: bool = False

    @property
    def key(self) -> str:
        """Its name."""
        return self.name


class Autoscaler(Namespaced, frozen=True):
    """A HorizontalPodAutoscaler: the workload that it names."""

    version: str
    target: Key


class Kind(NamedTuple):
    """A kind that is distributed: its API, the types of its originals and copies, and whether it has replicas."""

    name: str
    path: str
    original: type[Original]
    copy: type[Copy]
    has_replicas: bool = False
    counts_updated: bool = False
    """Whether its status says how many replicas are of the latest template, and how many are missing."""


def _kind(name: str, path: str, *, has_replicas: bool = False, counts_updated: bool = False) -> Kind:
    # A type for each kind, since a list replaces all that is known of its type.
    return Kind(name, path, _subtype(Original, name), _subtype(Copy, name), has_replicas, counts_updated)


def _subtype(base: type[T], name: str) -> type[T]:
    subtype: Any = msgspec.defstruct(f"{base.__name__}{name}", [], bases=(base,), frozen=True)
    return cast("type[T]", subtype)


# In the order in which a cluster needs them.
KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        _kind("ConfigMap", "/api/v1/configmaps"),
        _kind("Secret", "/api/v1/secrets"),
        _kind("ServiceAccount", "/api/v1/serviceaccounts"),
        _kind("Service", "/api/v1/services"),
        _kind("Deployment", "/apis/apps/v1/deployments", has_replicas=True, counts_updated=True),
        _kind("ReplicaSet", "/apis/apps/v1/replicasets", has_replicas=True),
        _kind("ReplicationController", "/api/v1/replicationcontrollers", has_replicas=True),
    )
}
OTHER_WORKLOADS: Mapping[str, tuple[str, type[Undistributed]]] = {
    name: (path, _subtype(Undistributed, name))
    for name, path in (
        ("StatefulSet", "/apis/apps/v1/statefulsets"),
        ("DaemonSet", "/apis/apps/v1/daemonsets"),
        ("Job", "/apis/batch/v1/jobs"),
        ("CronJob", "/apis/batch/v1/cronjobs"),
    )
}
KIND_OF: Mapping[type[Any], str] = {
    **{kind.original: name for name, kind in KINDS.items()},
    **{kind.copy: name for name, kind in KINDS.items()},
    **{type_: name for name, (_, type_) in OTHER_WORKLOADS.items()},
    ClusterNamespace: NAMESPACE,
}
"""The name of the kind by type."""
