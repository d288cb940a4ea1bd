"""Packs objects as bytes, for another process or for a state file, and unpacks them."""

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
from locator.sharing import share_parts

BATCH = 500  # objects packed at a time, which blocks the event loop for some milliseconds
MAGIC = b"topodns view\n"
LENGTH = 4  # octets of the length before each part; zero ends the parts


class Unusable(ValueError):
    """A state file that cannot be used; the text says what was found and what was expected."""


class _Batch(Struct):
    """Some objects, by kind."""

    namespaces: list[Namespace] = []
    nodes: list[Node] = []
    pods: list[Pod] = []
    pod_locators: list[PodLocator] = []
    services: list[Service] = []
    policies: list[ServicePolicy] = []
    slices: list[EndpointSlice] = []


_FIELDS: dict[type[Object], str] = dict(zip(KINDS, _Batch.__struct_fields__, strict=True))


class _Header(Struct):
    """The header of a state file: the layout of its records, the cluster, and the kinds of its objects."""

    layout: str
    cluster: str
    kinds: list[str]


def batches(objects: Sequence[Object]) -> Iterator[bytes]:
    """Yield *objects*, packed BATCH at a time. ``unbatched`` reads them."""
    for start in range(0, len(objects), BATCH):
        batch = _Batch()
        for item in objects[start : start + BATCH]:
            getattr(batch, _FIELDS[type(item)]).append(item)
        yield msgspec.msgpack.encode(batch)


def unbatched(packed: Iterable[bytes | memoryview]) -> Iterator[Object]:
    """Yield the objects of packed batches, ordered by kind within a batch. Raises msgspec.DecodeError."""
    for part in packed:
        batch = msgspec.msgpack.decode(part, type=_Batch)
        for name in _FIELDS.values():
            for item in getattr(batch, name):
                share_parts(item)
                yield item


def packed(objects: Sequence[Object], *, cluster: str, kinds: Sequence[type[Object]]) -> Iterator[bytes]:
    """Yield the content of a state file, with all objects of *kinds* in *cluster*. ``unpacked`` reads it."""
    digest = hashlib.sha256()
    yield MAGIC
    for part in (msgspec.msgpack.encode(_Header(_layout(), cluster, _names(kinds))), *batches(objects)):
        framed = len(part).to_bytes(LENGTH) + part
        digest.update(framed)
        yield framed
    yield bytes(LENGTH) + digest.digest()


def unpacked(data: bytes, *, cluster: str, kinds: Sequence[type[Object]]) -> list[Object]:
    """Return the objects in the content of a state file. Raises Unusable unless it is of *cluster* and has *kinds*."""
    if not data.startswith(MAGIC):
        raise Unusable("not a state file of topodns")
    parts: list[memoryview] = []
    whole = memoryview(data)  # whose parts are no copies
    position = len(MAGIC)
    while length := int.from_bytes(data[position : position + LENGTH]):
        position += LENGTH
        parts.append(whole[position : position + length])
        position += length
    if data[position:] != bytes(LENGTH) + hashlib.sha256(whole[len(MAGIC) : position]).digest():
        raise Unusable("damaged: the checksum does not match")
    try:
        header = msgspec.msgpack.decode(parts[0], type=_Header)
        if header.layout != _layout():
            raise Unusable("written by another version of topodns")
        if header.cluster != cluster:
            raise Unusable(f"state of another cluster: {header.cluster}, expected {cluster}")
        if missing := set(_names(kinds)) - set(header.kinds):
            raise Unusable(f"written with other settings: without {', '.join(sorted(missing))}")
        return list(unbatched(parts[1:]))
    except (msgspec.DecodeError, IndexError):
        raise Unusable("written by another version of topodns") from None


def _names(kinds: Iterable[type[Object]]) -> list[str]:
    return [kind.__name__ for kind in kinds]


def _layout() -> str:
    """Return a digest of the records' fields. It changes with them, so no version number has to be kept up to date."""
    return hashlib.sha256(msgspec.json.encode(msgspec.json.schema(_Batch))).hexdigest()[:16]
