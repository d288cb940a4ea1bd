"""One cluster as its source tells it: what the store makes of the objects, and what the source says beside them.

Whoever follows a cluster and whoever reads it once take batches in here, and get the same out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from locator.api.deltas import DeltaBatch, Replace, object_reference
from locator.model import Finding, Object
from locator.state.snapshot import Snapshot
from locator.state.store import Store


class Publication(Struct, frozen=True):
    """A snapshot, and all that is wrong in the cluster: what the source found, then what the store did.

    ``triggered`` is when what is visible in it for the first time changed, as Kubernetes noted it (RFC 3339).
    """

    snapshot: Snapshot
    findings: Sequence[Finding]
    triggered: Sequence[str]


class ClusterView:
    """What is known of one cluster. It is for one thread at a time, as its *store* is."""

    def __init__(self, store: Store) -> None:
        self.missing: set[type[Object]] = set(store.kinds)
        """The kinds that the source has not listed yet."""
        self._store = store
        self._findings: dict[str, Sequence[Finding]] = {}
        self._files: Mapping[str, str] = {}
        self._triggered: list[str] = []

    @property
    def due(self) -> float | None:
        """When to publish although nothing changes (seconds since 1970), None for never."""
        return self._store.due

    def take(self, batch: DeltaBatch) -> bool:
        """Take in what a source tells; return whether it is worth publishing, or completes the view."""
        visible = False
        for change in batch.changes:
            visible |= self._store.apply(change)
        if visible and not self.missing:  # what the first list brings changed long ago
            self._triggered += batch.triggered
        self._findings |= batch.findings
        for place in [place for place, found in batch.findings.items() if not found]:
            del self._findings[place]
        if batch.files is not None:
            self._files = batch.files
        incomplete = bool(self.missing)
        if not batch.restored:
            self.missing -= {change.kind for change in batch.changes if isinstance(change, Replace)}
        return visible or bool(batch.findings) or (incomplete and not self.missing)

    def known(self) -> list[Object]:
        """Return every object that is known."""
        return self._store.known()

    def publish(self, now: float) -> Publication:
        """Return what is known at *now* (seconds since 1970)."""
        snapshot = self._store.publish(now)
        told = [finding for findings in self._findings.values() for finding in findings]
        publication = Publication(snapshot, [*told, *map(self._in_its_file, snapshot.findings)], self._triggered)
        self._triggered = []
        return publication

    def _in_its_file(self, finding: Finding) -> Finding:
        """Return a finding with the file that its object stands in, if that is known."""
        file = self._files.get(object_reference(finding.kind, finding.namespace, finding.name))
        return finding if file is None else replace(finding, file=file)
