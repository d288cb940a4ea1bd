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

from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from locator.api.watching.versions import precedes, version_order

KEPT = 4  # objects of a kind: what changed last is often deleted next, and another one is then the witness


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
    """A change of an object: its event's JSON, and whether the object was deleted."""

    event: bytes
    gone: bool


class Witnesses:
    """The objects of a kind that changed last, a few of a list and a few of the watch that follows it.

    Noting a change costs next to nothing: its event is kept, and read only for the next check.
    """

    def __init__(self) -> None:
        self._listed: dict[str, Witness] = {}  # none of them has changed since, but for one that may come later
        self._changed: dict[str, Change] = {}  # in their order
        self._oldest = (0, "")  # version that is kept of a list

    def list_object(self, key: str, version: str, raw: Raw | bytes) -> None:
        """Note an object of a list, or of the event that brings it. Never raises."""
        order = version_order(version)
        if order < self._oldest:
            return
        if (witness := witness_untrusted(raw)).name:
            self._listed[key] = witness
        if len(self._listed) > KEPT:
            by_age = sorted(self._listed, key=lambda key: version_order(self._listed[key].version))
            del self._listed[by_age[0]]
            self._oldest = version_order(self._listed[by_age[1]].version)

    def forget(self, key: str) -> None:
        """Forget an object that was deleted while it was listed."""
        self._listed.pop(key, None)

    def change_object(self, key: str, event: bytes, *, gone: bool) -> None:
        """Note a change after the list. Never raises."""
        self._listed.pop(key, None)
        self._changed.pop(key, None)
        self._changed[key] = Change(event, gone)
        if len(self._changed) > KEPT:
            first = next(iter(self._changed))
            oldest = self._changed.pop(first)
            if not self._listed and not oldest.gone:  # one stays, in case that all others are deleted
                self._listed[first] = witness_untrusted(oldest.event)

    def checks(self) -> list[Check]:
        """Return what to check: the object that changed last, rather one that is not about to be deleted."""
        changed = [(change.gone, witness_untrusted(change.event)) for change in self._changed.values()]
        existing = [*self._listed.values(), *(witness for gone, witness in changed if not gone)]
        newest = max(
            (witness for witness in existing if witness.name),
            key=lambda witness: (witness.deleted is None, version_order(witness.version)),
            default=None,
        )
        last_gone = next((witness for gone, witness in reversed(changed) if gone and witness.name), None)
        if newest is None:
            return [Check(Witness())]
        if last_gone is None or precedes(last_gone.version, newest.version):
            return [Check(newest)]
        return [Check(newest), Check(last_gone, gone=True)]


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
