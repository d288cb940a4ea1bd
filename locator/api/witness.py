"""Whether an API server still has what topodns knows of a kind, or an older state, or that of another cluster.

An API server grants a watch that begins at a resourceVersion of the future, but skips all events up to that version
(Kubernetes 1.36, ``cacheWatcher.process``). Such a watch is silent for days. So is one whose version happens to exist
in a cluster that was built anew. So after a failure, topodns asks for one object that it knows, the witness, before it
watches on. The response also tells the current version.

It cannot notice an etcd that was restored from a backup and has overtaken topodns' version since. The documentation of
etcd says how to prevent that for all clients of Kubernetes: restore it with ``--bump-revision``.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from locator.model import object_key


class Witness(Struct, frozen=True):
    """An object of the cluster; without a ``uid`` it proves nothing."""

    namespace: str = ""
    name: str = ""
    uid: str = ""

    @property
    def key(self) -> str:
        """The key of the object's record."""
        return object_key(self.namespace, self.name)

    def request(self, path: str) -> tuple[str, dict[str, str]]:
        """Return the path and the query that list this object alone; *path* lists all of its kind."""
        if not self.uid:
            return path, {"limit": "1"}
        if self.namespace:  # in one namespace, the API server reads one object, and need not look at all
            base, _, resource = path.rpartition("/")
            path = f"{base}/namespaces/{self.namespace}/{resource}"
        return path, {"fieldSelector": f"metadata.name={self.name}"}


class _Item(Struct):
    metadata: Witness


class _Event(Struct):
    object: _Item


_ITEM, _EVENT = Decoder(_Item), Decoder(_Event)  # created on import, since threads share them


def witness_of_item_untrusted(raw: Raw | bytes) -> Witness:
    """Return the object as a witness, one without a UID if it cannot be read. Never raises."""
    try:
        return _ITEM.decode(raw).metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Witness()


def witness_of_event_untrusted(line: bytes) -> Witness:
    """Return the object of a watch event as a witness, one without a UID if it cannot be read. Never raises."""
    try:
        return _EVENT.decode(line).object.metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Witness()


def is_older(version: str, known: str) -> bool:
    """Whether *version* comes before *known*; resourceVersions are decimal numbers (KEP-5504)."""
    return version.isdecimal() and known.isdecimal() and int(version) < int(known)
