"""Whether an API server still has what topodns knows of a kind, or an older state, or that of another cluster.

An API server grants a watch that begins at a resourceVersion of the future, but skips all events up to that version
(Kubernetes 1.36, ``cacheWatcher.process``). Such a watch is silent for days. So is one whose version happens to exist
in a cluster that was built anew, or in an etcd that was restored from a backup and has overtaken that version. So
before each new watch, topodns asks for the object that changed last, the witness. The response also tells the current
version. The history that topodns knows is lost if

- the current version is older than the known one;
- the witness has another UID, or an older version than topodns knows of it, or is gone: in most cases somebody deleted
  it meanwhile, but only a list can tell;
- the last change was a deletion, and the deleted object is there again. Then topodns asks for both: for the one that
  changed last of those that exist, and for that one; or
- topodns knows no object of the kind, and there is one. That may be new; to list a few objects costs little.

It cannot notice an etcd that was restored, has overtaken the known version, and has changed the witness again since.
The documentation of etcd says how to prevent that for all clients of Kubernetes: restore it with ``--bump-revision``.
"""

from __future__ import annotations

from heapq import nlargest
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from locator.api.watching.versions import precedes, version_order

KEPT = 8  # objects of a kind: what changed last is often deleted next, and another one is then the witness


class Witness(Struct, frozen=True):
    """The metadata of an object by which topodns recognises it."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    version: str = field(name="resourceVersion", default="")
    deleted: str | None = field(name="deletionTimestamp", default=None)


class Check(NamedTuple):
    """What topodns expects of a kind: this object as it is known or newer, or if it is ``gone``, none of that UID.

    A witness without a name stands for any object of a kind of which topodns knows none.
    """

    witness: Witness
    gone: bool = False

    def request(self, path: str) -> tuple[str, dict[str, str]]:
        """Return the path and the query that list this object alone; *path* lists all of its kind."""
        namespace, name = self.witness.namespace, self.witness.name
        if not name:
            return path, {"limit": "1"}
        if namespace:  # in one namespace, the API server reads one object, and need not look at all
            base, _, resource = path.rpartition("/")
            path = f"{base}/namespaces/{namespace}/{resource}"
        return path, {"fieldSelector": f"metadata.name={name}"}

    def fails(self, found: Witness | None) -> bool:
        """Whether *found*, the object that the API server has, may contradict what topodns knows."""
        if found is None:
            return bool(self.witness.name) and not self.gone
        if not self.witness.name:
            return True
        return (found.uid == self.witness.uid) == self.gone or precedes(found.version, self.witness.version)


class Change(NamedTuple):
    """A change of an object: its version afterwards, its JSON or that of its event, and whether it was deleted."""

    version: str
    raw: Raw | bytes
    gone: bool = False


class Witnesses:
    """The objects of a kind that changed last, a few, and the last one that was deleted."""

    def __init__(self) -> None:
        self._existing: dict[str, Witness] = {}
        self._gone: Witness | None = None
        self._changes: dict[str, Change] = {}

    def note(self, key: str, change: Change) -> None:
        """Note a change of the object with this key, until ``settle``."""
        self._changes[key] = change

    def settle(self) -> None:
        """Read the changes noted last, and keep none of the JSON. Never raises."""
        existing = {key: change for key, change in self._changes.items() if not change.gone}
        for key in self._changes:
            self._existing.pop(key, None)
        for key in nlargest(KEPT, existing, key=lambda key: version_order(existing[key].version)):
            if (witness := witness_untrusted(existing[key].raw)).name:
                self._existing[key] = witness
        gone = [change for change in self._changes.values() if change.gone]
        if (
            gone
            and (witness := witness_untrusted(max(gone, key=lambda change: version_order(change.version)).raw)).name
        ):
            self._gone = witness
        self._changes = {}
        if len(self._existing) > KEPT:  # the oldest stays: it is the least likely to be deleted soon
            oldest, *others = sorted(self._existing.items(), key=lambda item: version_order(item[1].version))
            self._existing = dict([oldest, *others[1 - KEPT :]])

    def checks(self) -> list[Check]:
        """Return what to check: the object that changed last, rather one that is not about to be deleted."""
        existing = max(
            self._existing.values(),
            key=lambda witness: (witness.deleted is None, version_order(witness.version)),
            default=None,
        )
        if existing is None:
            return [Check(Witness())]
        if self._gone is None or precedes(self._gone.version, existing.version):
            return [Check(existing)]
        return [Check(existing), Check(self._gone, gone=True)]


class _Object(Struct):
    metadata: Witness


class _Event(Struct):
    object: _Object


_OBJECT, _EVENT = Decoder(_Object), Decoder(_Event)  # created on import, since threads share them


def witness_untrusted(raw: Raw | bytes) -> Witness:
    """Return an object, or that of a watch event, as a witness; one without a name if it is none. Never raises."""
    try:
        return _EVENT.decode(raw).object.metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return _OBJECT.decode(raw).metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Witness()
