# SPDX-License-Identifier: Apache-2.0

"""Whether an API server still has what topodns knows of a kind, or an older state, or that of another cluster.

An API server grants a watch that begins at a resourceVersion of the future, but skips all events up to that version
(Kubernetes 1.36, ``cacheWatcher.process``). Such a watch is silent for days. So is one whose version happens to exist
in a cluster that was built anew, or in an etcd that was restored from a backup and has overtaken that version. So
before each new watch, topodns asks for the object that changed last, the witness. The response also tells the current
version. The history that topodns knows is lost if

- the current version is older than the known one;
- the witness has another UID, or an older version than topodns knows of it;
- the last change was a deletion, and the deleted object is there again. Then topodns asks for both: for the one that
  changed last of those that exist, and for that one; or
- the witness is gone, and the watch from the known version on does not bring its deletion.

In most cases a witness that is gone was deleted meanwhile. Then topodns asks for the next one, and watches on if that
is as it should be. The kind is listed again, and no other one, if all the witnesses are gone, or if topodns knows no
object of the kind, and there is one.

It cannot notice an etcd that was restored, has overtaken the known version, and has changed the witness again since.
The documentation of etcd says how to prevent that for all clients of Kubernetes: restore it with ``--bump-revision``.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from locator.api.deltas import precedes, version_order

KEPT = 4  # objects of a kind: what changed last is often deleted next, and another one is then the witness
UNREAD = 256  # objects of a list that wait until the few to keep are chosen, and read: to read each takes too long


class CheckResult(Enum):
    """What the API server's response to a check means."""

    AS_KNOWN = "as known"
    GONE = "gone"  # deleted, or not yet made
    NOT_EMPTY = "not empty"  # of a kind of which topodns knows no object there is one
    LOST = "lost"  # the server has another history than topodns


class Witness(Struct, frozen=True):
    """The metadata of an object by which topodns recognises it."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    version: str = field(name="resourceVersion", default="")
    deleted: str | None = field(name="deletionTimestamp", default=None)


class WitnessCheck(NamedTuple):
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

    def judge(self, found: Witness | None) -> CheckResult:
        """Return what *found*, the object that the API server has, means."""
        if found is None:
            return CheckResult.GONE if self.witness.name and not self.gone else CheckResult.AS_KNOWN
        if not self.witness.name:
            return CheckResult.NOT_EMPTY
        contradicts = (found.uid == self.witness.uid) == self.gone or precedes(found.version, self.witness.version)
        return CheckResult.LOST if contradicts else CheckResult.AS_KNOWN


class Change(NamedTuple):
    """A change of an object: its event's JSON, and whether the object was deleted."""

    event: bytes
    gone: bool


class Witnesses:
    """The objects of a kind that changed last, a few of a list and a few of the watch that follows it.

    One more of the list is that which has not changed for longest: it often outlives the others.

    Noting a change costs next to nothing: its event is kept, and read only for the next check.
    """

    def __init__(self) -> None:
        self._listed: dict[str, Witness] = {}  # none of them has changed since, but for one that may come later
        self._unread: dict[str, tuple[tuple[int, str], Raw | bytes]] = {}  # likewise, with the order of their versions
        self._changed: dict[str, Change] = {}  # in their order
        self._dull = ((0, ""), (0, ""))  # versions of the list from the first to below the second are not kept

    def list_object(self, key: str, version: str, raw: Raw | bytes) -> None:
        """Note an object of a list, or of the event that brings it. Never raises."""
        (oldest, end), order = self._dull, version_order(version)
        if oldest <= order < end:
            return
        self._listed.pop(key, None)
        self._unread[key] = order, raw
        if len(self._unread) >= UNREAD:
            self.end_list()

    def end_list(self) -> None:
        """Choose the few objects of the list to keep."""
        orders = {key: version_order(witness.version) for key, witness in self._listed.items()}
        orders |= {key: order for key, (order, _) in self._unread.items()}
        in_order = sorted(orders, key=lambda key: orders[key])
        kept = dict.fromkeys((*in_order[:1], *in_order[-KEPT:]))
        found = ((key, self._listed.get(key) or witness_untrusted(self._unread[key][1])) for key in kept)
        self._listed, self._unread = {key: witness for key, witness in found if witness.name}, {}
        if len(in_order) > KEPT:
            self._dull = orders[in_order[0]], orders[in_order[-KEPT]]

    def forget(self, key: str) -> None:
        """Forget an object that was deleted while it was listed."""
        self._listed.pop(key, None)
        self._unread.pop(key, None)

    def change_object(self, key: str, event: bytes, *, gone: bool) -> None:
        """Note a change after the list. Never raises."""
        self.forget(key)
        self._changed.pop(key, None)
        self._changed[key] = Change(event, gone)
        if len(self._changed) > KEPT:
            first = next(iter(self._changed))
            oldest = self._changed.pop(first)
            if not self._listed and not oldest.gone:  # one stays, in case that all others are deleted
                self._listed[first] = witness_untrusted(oldest.event)

    def checks(self) -> list[WitnessCheck]:
        """Return what to check: the witnesses, of which the first that exists counts, then what must not exist.

        The first is the object that changed last; those that are about to be deleted only if there is no other one.
        """
        changed = [(change.gone, witness_untrusted(change.event)) for change in self._changed.values()]
        known = [*self._listed.values(), *(witness for gone, witness in changed if not gone)]
        known = [witness for witness in known if witness.name]
        known = [witness for witness in known if witness.deleted is None] or known
        known.sort(key=lambda witness: version_order(witness.version), reverse=True)
        if not known:
            return [WitnessCheck(Witness())]
        checks = [
            WitnessCheck(witness) for witness in (known if len(known) <= KEPT else [*known[: KEPT - 1], known[-1]])
        ]
        last_gone = next((witness for gone, witness in reversed(changed) if gone and witness.name), None)
        if last_gone is not None and not precedes(last_gone.version, known[0].version):
            checks.append(WitnessCheck(last_gone, gone=True))
        return checks


class _Object(Struct):
    metadata: Witness


class _Seen(Struct):
    """An object, or a watch event with its ``object``; no kind that topodns reads has such a field."""

    metadata: Witness = Witness()
    object: _Object | None = None


_SEEN = Decoder(_Seen)  # created on import, since threads share it


def witness_untrusted(raw: Raw | bytes) -> Witness:
    """Return an object, or that of a watch event, as a witness; one without a name if it is none. Never raises."""
    try:
        seen = _SEEN.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Witness()
    return seen.metadata if seen.object is None else seen.object.metadata
