# SPDX-License-Identifier: Apache-2.0

"""Packs objects as bytes, for another process or for a state file, and unpacks them."""

from __future__ import annotations

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
    ServiceExport,
    ServiceHealth,
    ServiceImport,
    ServicePolicy,
)
from locator.sharing import share_parts

BATCH = 500  # objects packed at a time, which blocks the event loop for some milliseconds


class _Batch(Struct):
    """Some objects, by kind."""

    namespaces: list[Namespace] = []
    nodes: list[Node] = []
    pods: list[Pod] = []
    pod_locators: list[PodLocator] = []
    services: list[Service] = []
    policies: list[ServicePolicy] = []
    slices: list[EndpointSlice] = []
    exports: list[ServiceExport] = []
    imports: list[ServiceImport] = []
    healths: list[ServiceHealth] = []


_BATCHES = msgspec.msgpack.Decoder(_Batch)  # created on import, since threads share it: see ``decoding.RESOURCES``
_FIELDS: dict[type[Object], str] = dict(zip(KINDS, _Batch.__struct_fields__, strict=True))


def batches(objects: Sequence[Object]) -> Iterator[bytes]:
    """Yield *objects*, packed BATCH at a time. ``unbatched`` reads them."""
    for start in range(0, len(objects), BATCH):
        batch = _Batch()
        for item in objects[start : start + BATCH]:
            getattr(batch, _FIELDS[type(item)]).append(item)
        yield msgspec.msgpack.encode(batch)


def unbatched(packed: Iterable[bytes]) -> Iterator[Object]:
    """Yield the objects of packed batches, ordered by kind within a batch. Raises msgspec.DecodeError."""
    for part in packed:
        batch = _BATCHES.decode(part)
        for name in _FIELDS.values():
            for item in getattr(batch, name):
                share_parts(item)
                yield item
