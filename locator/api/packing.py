"""Objects as bytes, and back: how they cross from one process to another, or from one start to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from locator.model import (
    KINDS,
    EndpointSlice,
    Namespace,
    Node,
    Object,
    Pod,
    PodLocator,
    Service,
    ServicePolicy,
)

BATCH = 500  # objects packed at a time: some milliseconds during which nothing else runs
MAGIC = b"topodns view\n"
LENGTH = 4  # octets that say how long what follows is


class Unusable(ValueError):
    """A kept view that cannot be used: what was found, and what was expected."""


class _Batch(Struct):
    """Some objects by kind."""

    namespaces: list[Namespace] = []
    nodes: list[Node] = []
    pods: list[Pod] = []
    pod_locators: list[PodLocator] = []
    services: list[Service] = []
    policies: list[ServicePolicy] = []
    slices: list[EndpointSlice] = []


_FIELDS: dict[type[Object], str] = dict(zip(KINDS, _Batch.__struct_fields__, strict=True))


class _Head(Struct):
    """What a kept view is of: the shape of its records, the cluster, the kinds of objects."""

    shape: str
    cluster: str
    kinds: list[str]


def batches(objects: Sequence[Object]) -> Iterator[bytes]:
    """Yield *objects*, packed some at a time."""
    for start in range(0, len(objects), BATCH):
        batch = _Batch()
        for each in objects[start : start + BATCH]:
            getattr(batch, _FIELDS[type(each)]).append(each)
        yield msgspec.msgpack.encode(batch)


def unbatched(packed: Iterable[bytes]) -> Iterator[Object]:
    """Yield the objects of batches; those of one batch by kind. Raises msgspec.DecodeError."""
    for each in packed:
        batch = msgspec.msgpack.decode(each, type=_Batch)
        for name in _FIELDS.values():
            yield from getattr(batch, name)


def packed(objects: Sequence[Object], *, cluster: str, kinds: Sequence[type[Object]]) -> Iterator[bytes]:
    """Yield the octets of a view of *cluster*: all objects of some *kinds*. ``unpacked`` reads them."""
    digest = hashlib.sha256()
    yield MAGIC
    for part in (msgspec.msgpack.encode(_Head(_shape(), cluster, _names(kinds))), *batches(objects)):
        framed = len(part).to_bytes(LENGTH) + part
        digest.update(framed)
        yield framed
    yield bytes(LENGTH) + digest.digest()


def unpacked(data: bytes, *, cluster: str, kinds: Sequence[type[Object]]) -> list[Object]:
    """Return the objects of a view of *cluster* with *kinds*. Raises Unusable."""
    if not data.startswith(MAGIC):
        raise Unusable("no view of a cluster")
    parts: list[bytes] = []
    position = len(MAGIC)
    while length := int.from_bytes(data[position : position + LENGTH]):
        position += LENGTH
        parts.append(data[position : position + length])
        position += length
    if data[position:] != bytes(LENGTH) + hashlib.sha256(data[len(MAGIC) : position]).digest():
        raise Unusable("damaged: its checksum is another")
    try:
        head = msgspec.msgpack.decode(parts[0], type=_Head)
        if head.shape != _shape():
            raise Unusable("kept by another version of topodns")
        if head.cluster != cluster:
            raise Unusable(f"the view of another cluster: {head.cluster}, expected {cluster}")
        if lacking := set(_names(kinds)) - set(head.kinds):
            raise Unusable(f"kept with other settings: without {', '.join(sorted(lacking))}")
        return list(unbatched(parts[1:]))
    except (msgspec.DecodeError, IndexError):
        raise Unusable("kept by another version of topodns") from None


def _names(kinds: Iterable[type[Object]]) -> list[str]:
    return [kind.__name__ for kind in kinds]


def _shape() -> str:
    """Return what changes when a record's fields do: nobody has to remember to count up a version."""
    return hashlib.sha256(msgspec.json.encode(msgspec.json.schema(_Batch))).hexdigest()[:16]
