# SPDX-License-Identifier: Apache-2.0

"""One cluster as its source describes it: the store of its objects, and the findings of the source.

A live source and a dump both deliver batches of deltas here, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from locator.api.deltas import DeltaBatch, Origin, Replace, object_reference
from locator.model import Finding, Object, object_key
from locator.state.snapshot import Snapshot
from locator.state.store import Store


class Publication(Struct, frozen=True):
    """A snapshot, and all findings of the cluster: those of the source, then those of the store.

    Findings about objects in namespaces that are not served are left out.
    ``triggered`` has the times (RFC 3339) at which Kubernetes noted the changes that the snapshot is the first to show.
    """

    snapshot: Snapshot
    findings: Sequence[Finding]
    triggered: Sequence[str]


class ClusterView:
    """The known state of one cluster. Only one thread at a time may use it, as its *store*."""

    def __init__(self, store: Store) -> None:
        self.unlisted: set[type[Object]] = set(store.kinds)
        """The kinds that the source has not listed yet."""
        self.unknown: set[type[Object]] = set(store.kinds)
        """Those of them that were not restored from a state file either."""
        self._store = store
        self._findings: dict[str, Sequence[Finding]] = {}
        self._files: Mapping[str, Origin] = {}  # by object
        self._triggered: list[str] = []

    @property
    def due(self) -> float | None:
        """When to publish even without a change (seconds since 1970), None for never."""
        return self._store.due

    def apply(self, batch: DeltaBatch) -> bool:
        """Apply a batch; return whether publishing is worth it.

        It is if an answer or a finding may differ, or if this batch listed the last kind that was unlisted.
        """
        visible = False
        for delta in batch.deltas:
            visible |= self._store.apply(delta)
        if visible and not self.unlisted:  # objects of the first list changed long ago
            self._triggered += batch.triggered
        self._findings |= batch.findings
        for name in [name for name, findings in batch.findings.items() if not findings]:
            del self._findings[name]
        if batch.files is not None:
            self._files = batch.files
        incomplete = bool(self.unlisted)
        replaced = {delta.kind for delta in batch.deltas if isinstance(delta, Replace)}
        self.unknown -= replaced
        if not batch.restored:
            self.unlisted -= replaced
        return visible or bool(batch.findings) or (incomplete and not self.unlisted)

    def all_objects(self) -> list[Object]:
        """Return all objects, by kind."""
        return self._store.all_objects()

    def objects(self, kind: type[Object]) -> Mapping[str, Any]:
        """Return all objects of a kind by their keys."""
        return self._store.objects(kind)

    def namespaces(self) -> set[str]:
        """Return all namespaces that exist, served or not."""
        return self._store.namespaces()

    def start_from(self, kept: Snapshot) -> Publication:
        """Take over the snapshot of another view with the same settings, to be published before anything is applied.

        Its findings follow with its objects.
        """
        return Publication(self._store.start_from(kept), (), ())

    def publish(self, now: float) -> Publication:
        """Return the state at *now* (seconds since 1970)."""
        snapshot = self._store.publish(now)
        of_source = [finding for findings in self._findings.values() for finding in findings]
        publication = Publication(
            snapshot, self._served([*of_source, *self._located(snapshot.findings)]), self._triggered
        )
        self._triggered = []
        return publication

    def advice(self) -> Sequence[Finding]:
        """Return what is worth knowing about the last snapshot although nothing is wrong in it."""
        return list(self._located(self._store.advice()))

    def _served(self, findings: list[Finding]) -> list[Finding]:
        """Return the findings that are not about an object in a namespace that is not served."""
        if self._store.exposes_all:
            return findings
        return [finding for finding in findings if not finding.namespace or self._store.exposes(finding.namespace)]

    def _located(self, findings: Iterable[Finding]) -> Iterable[Finding]:
        return map(self.with_file, findings) if self._files else findings

    def with_file(self, finding: Finding) -> Finding:
        """Return a finding with the file that contains its object, and the line, if there is one."""
        origin = self._files.get(object_reference(finding.kind, object_key(finding.namespace, finding.name)))
        return finding if origin is None else replace(finding, file=origin.file, line=origin.line)
