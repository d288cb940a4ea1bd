# SPDX-License-Identifier: Apache-2.0

"""Packs objects as bytes, for another process or for a state file, and unpacks them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import force_setattr

from locator.api.sharing import shared_labels, shared_ports, shared_text
from locator.model import KINDS, ClientPod, EndpointSlice, Namespaced, Node, Object, Pod

PACKED_KINDS = (*KINDS, ClientPod)
BATCH = 500  # objects packed at a time, which blocks the event loop for some milliseconds

# Created on import: msgspec 0.22 crashes if two threads create a decoder at once.
_BATCHES = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_OBJECTS = {kind.__name__: msgspec.msgpack.Decoder(list[kind]) for kind in PACKED_KINDS}  # type: ignore[valid-type]


def batches(objects: Iterable[Object]) -> Iterator[bytes]:
    """Yield *objects* by kind, packed BATCH at a time. ``unbatched`` reads them."""
    by_type: dict[type[Object], list[Object]] = {kind: [] for kind in PACKED_KINDS}
    for item in objects:
        by_type[type(item)].append(item)
    for kind, of_type in by_type.items():
        for start in range(0, len(of_type), BATCH):
            yield msgspec.msgpack.encode((kind.__name__, of_type[start : start + BATCH]))


def unbatched(packed: Iterable[bytes]) -> Iterator[Object]:
    """Yield the objects of packed batches. Raises msgspec.DecodeError and KeyError."""
    for part in packed:
        kind, of_kind = _BATCHES.decode(part)
        for item in _OBJECTS[kind].decode(of_kind):
            share_parts(item)
            yield item


def share_parts(thing: Object) -> None:
    """Let an object that nobody else has seen yet share its parts with others."""
    if isinstance(thing, Namespaced):
        force_setattr(thing, "namespace", shared_text(thing.namespace))
    if isinstance(thing, Pod):
        for part in ("node", "phase", "owner"):
            if text := getattr(thing, part):
                force_setattr(thing, part, shared_text(text))
    elif isinstance(thing, Node):
        force_setattr(thing, "name", shared_text(thing.name))
        for key, value in thing.labels.items():
            thing.labels[key] = shared_text(value)
    elif isinstance(thing, EndpointSlice):
        force_setattr(thing, "managed_by", shared_text(thing.managed_by))
        endpoints = thing.endpoints
        force_setattr(endpoints, "ports", tuple(map(shared_ports, endpoints.ports)))
        if endpoints.hostnames == endpoints.pods:
            force_setattr(endpoints, "hostnames", endpoints.pods)
        force_setattr(
            endpoints, "nodes", tuple([node if node is None else shared_text(node) for node in endpoints.nodes])
        )
        force_setattr(endpoints, "slice_labels", tuple(map(shared_labels, endpoints.slice_labels)))
