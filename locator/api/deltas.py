# SPDX-License-Identifier: Apache-2.0

"""The deltas that a source sends: changes of objects, and findings about objects.

An unreadable object counts as absent; a finding says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from locator.api.decoding import Decoded, Resource
from locator.model import Finding, Object, by_kind


class Replace(Struct, frozen=True, gc=False):
    """All objects of a kind. They replace everything known of that kind.

    The list belongs to the receiver, who may empty it. If the source ``lacks`` the kind, it has none and says nothing
    about them, as a dump of other kinds: there may be some in the cluster. If they are ``partial``, there may be more,
    as beside a dump of some namespaces. ``labels`` are the keys of the labels that they have as far as there are any:
    those of Pods are read only if somebody asks for them.
    """

    kind: type[Any]
    objects: list[Any]
    lacks: bool = False
    partial: bool = False
    labels: frozenset[str] = frozenset()


class Put(Struct, frozen=True, gc=False):
    """One object that is new or changed."""

    object: Any


class Drop(Struct, frozen=True, gc=False):
    """The key of an object that is gone, or has become unreadable."""

    kind: type[Any]
    key: str


Delta = Replace | Put | Drop


class FileLine(NamedTuple):
    """The file and the line on which an object begins; None for a file as a whole."""

    file: str
    line: int | None


class DeltaBatch(Struct, frozen=True, gc=False):
    """Deltas in order, to be published together, and what else changes with them.

    ``findings`` are the current findings by object (``object_reference``) or source; an empty sequence removes earlier
    ones. ``triggered`` are the last-change-trigger-times (RFC 3339) of the changed EndpointSlices.
    ``files`` maps each object (``object_reference``) to where it stands; None means no change. ``restored`` marks
    objects of a state file: they hold until the source has listed their kind.
    """

    deltas: Sequence[Delta] = ()
    findings: Mapping[str, Sequence[Finding]] = {}
    triggered: Sequence[str] = ()
    files: Mapping[str, FileLine] | None = None
    restored: bool = False

    def __bool__(self) -> bool:
        return bool(self.deltas or self.findings)


def object_reference(kind: str, key: str) -> str:
    """Return how findings and files refer to an object, by the name of its kind: ``Service shop/web``, ``Node a1``."""
    return f"{kind} {key}"


def replacements(objects: Iterable[Object]) -> list[Delta]:
    """Return one Replace for every kind, so that a store holds *objects* and nothing else."""
    return [Replace(kind, of_kind) for kind, of_kind in by_kind(objects).items()]


class DeltaBuilder:
    """Collects, from the decoded objects of one kind, the deltas that bring a store to the cluster's state."""

    def __init__(self, kind: type[Any], resource: Resource) -> None:
        self._kind = kind
        self._resource = resource
        self._listed: dict[str, Any] = {}  # by key: the objects of the list so far
        self._list_findings: dict[str, Sequence[Finding]] = {}  # by key: the findings of the list so far
        self._faulty: set[str] = set()  # keys of the objects with findings
        self._deltas: list[Delta] = []
        self._findings: dict[str, Sequence[Finding]] = {}
        self._triggered: list[str] = []

    def read_with(self, resource: Resource) -> None:
        """Expect objects that *resource* decodes, of the same kind."""
        self._resource = resource

    def forget_list(self) -> None:
        """Drop the list so far: it starts again, or has been taken over."""
        self._listed, self._list_findings = {}, {}

    def list_object(self, decoded: Decoded, *, gone: bool = False) -> None:
        """Add an object to the list, or remove it if it is *gone*."""
        key = decoded.key
        if self._list_findings:
            self._list_findings.pop(key, None)
        if gone or decoded.built is None:
            self._listed.pop(key, None)
        else:
            self._listed[key] = decoded.built
        if decoded.findings and not gone:
            self._list_findings[key] = decoded.findings

    def end_list(self) -> None:
        """Turn the complete list into a Replace."""
        self._deltas.append(Replace(self._kind, list(self._listed.values()), labels=self._resource.labels))
        self._findings |= {key: () for key in self._faulty if key not in self._list_findings} | self._list_findings
        self._faulty = set(self._list_findings)
        self.forget_list()

    def change_object(self, decoded: Decoded, *, gone: bool = False) -> None:
        """Add the change of one object, which is new, changed or *gone*."""
        if decoded.built is not None and not gone:
            self._deltas.append(Put(decoded.built))
            if decoded.triggered:
                self._triggered.append(decoded.triggered)
        elif decoded.name:
            self._deltas.append(Drop(self._kind, decoded.key))
        if decoded.findings and not gone:
            self._faulty.add(decoded.key)
            self._findings[decoded.key] = decoded.findings
        elif decoded.key in self._faulty:
            self._faulty.discard(decoded.key)
            self._findings[decoded.key] = ()

    def pop_batch(self) -> DeltaBatch:
        """Return what has been collected since the last call."""
        findings = {object_reference(self._resource.name, key): findings for key, findings in self._findings.items()}
        batch = DeltaBatch(self._deltas, findings, self._triggered)
        self._deltas, self._findings, self._triggered = [], {}, []
        return batch


def version_order(version: str) -> tuple[int, str]:
    """Return what sorts resourceVersions, the earliest first; those that are no numbers come before all others.

    They are decimal numbers without leading zeros, and comparable within one resource (KEP-5504, Kubernetes 1.35).
    """
    return (len(version), version) if version.isascii() and version.isdigit() else (0, "")


def precedes(version: str, other: str) -> bool:
    """Whether *version* is earlier than *other*, both of one resource; False if that is unknown."""
    return (0, "") < version_order(version) < version_order(other)
