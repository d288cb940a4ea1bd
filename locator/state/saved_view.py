# SPDX-License-Identifier: Apache-2.0

"""A view saved for the next start: a snapshot, and the objects of which it was made.

A snapshot is read in a tenth of the time that it takes to make it again, so a restarted topodns answers from it while
it reads the objects. It is pickled, so that what it shares stays shared; only the classes below are read back, whatever
a file says. The objects are packed, except the slices, which the snapshot has already.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from inspect import get_annotations
from itertools import chain, compress
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct

from locator.api import packing
from locator.api.packing import share_parts
from locator.endpoints import Endpoint, Hints, Port, SliceEndpoints
from locator.ip import Network
from locator.labels import Requirement, Selector
from locator.model import (
    UNKNOWN_LOCATION,
    EndpointSlice,
    Finding,
    HealthEntry,
    Location,
    Object,
    Service,
    ServiceHealth,
    ServiceImport,
)
from locator.places.address_map import AddressMap, AddressRow
from locator.places.book import AddressBook, Place
from locator.places.prefix_table import PrefixTable
from locator.state.snapshot import CompiledService, ExportedService, ImportedObjects, Snapshot
from locator.topology.balance import Balance, Balanced, Pool
from locator.topology.constraints import Declaration
from locator.topology.selection import FirstMatch, Hinted, LocatedEndpoint, Narrowing, Unconstrained

T = TypeVar("T")

MAGIC = b"topodns view\n"
LENGTH = 4  # octets of the length before the header
OTHER_VERSION = "written by another version of topodns"
NO_VIEW = "holds no view of a cluster"
CHECKSUM = hashlib.sha256().digest_size  # at the end of the file

# What a snapshot is pickled of, and what is packed.
STRUCTS: tuple[type[Struct], ...] = (
    *(Snapshot, Finding, LocatedEndpoint, Location, Place, AddressRow),
    *(Declaration, FirstMatch, Hinted, Narrowing, Unconstrained, Balance, Balanced),
    *(Endpoint, SliceEndpoints, Hints, Port),
    *(ExportedService, ImportedObjects, ServiceImport, EndpointSlice, ServiceHealth, HealthEntry),
)
OTHERS: tuple[Callable[[], Any], ...] = (AddressBook, AddressMap, PrefixTable)
TUPLES = (Network, Pool)
PACKED: tuple[type[Struct], ...] = (CompiledService, *packing.PACKED_KINDS, Requirement, Selector)
CONSTANTS = (UNKNOWN_LOCATION,)  # locations that stay the same object: readers compare by identity


class Unusable(ValueError):
    """A saved view that cannot be used; the text says what was found and what was expected."""


class Writable(Protocol):
    """Where the octets of a view go, such as a file."""

    def write(self, octets: bytes, /) -> object:
        """Write *octets*."""


class SavedIdentity(Struct, frozen=True):
    """What a view is of: the *cluster*, the *kinds* of its objects, and the *settings* with which it was made.

    *settings* is any text. With other settings, the same objects make another snapshot.
    """

    cluster: str
    kinds: tuple[str, ...]
    settings: str


class SavedView(NamedTuple):
    """A view as it was saved.

    ``snapshot`` is None if it was made with other settings. ``objects`` returns all objects, and takes longer. It is
    called once, and raises Unusable.
    """

    snapshot: Snapshot | None
    objects: Callable[[], list[Object]]


class _Header(Struct):
    layout: str
    origin: SavedIdentity


# Created on import: msgspec 0.22 crashes if two threads create a decoder at once.
_HEADERS = msgspec.msgpack.Decoder(_Header)
_PACKED = msgspec.msgpack.Decoder(tuple[Service, tuple[EndpointSlice, ...]])


def write(file: Writable, snapshot: Snapshot, objects: Sequence[Object], origin: SavedIdentity) -> None:
    """Write a view of *origin*, with all objects of its kinds. ``read`` reads it.

    Other threads can run meanwhile, except for up to 11 ms in a cluster of 150,000 pods, twice.
    """
    output = _Checked(file)
    output.write(MAGIC)
    header = msgspec.msgpack.encode(_Header(_layout(), origin))
    output.write(len(header).to_bytes(LENGTH) + header)
    pickler = _Pickler(output, pickle.HIGHEST_PROTOCOL)
    pickler.dump(snapshot)
    pickler.clear_memo()  # here, because it takes some milliseconds: at the return, everything would be freed at once
    ids = {id(item) for item in objects if isinstance(item, EndpointSlice)}
    pickler.dump(bytes([id(part) in ids for part in _slices_in(snapshot)]))  # which of them are objects still
    ids.intersection_update(map(id, _slices_in(snapshot)))
    pickler.dump(list(packing.batches([item for item in objects if id(item) not in ids])))
    file.write(output.digest())


def read(data: bytes, origin: SavedIdentity) -> SavedView:
    """Return the view in the content of a file. Raises Unusable unless it is of *origin*, except for its settings."""
    if not data.startswith(MAGIC):
        raise Unusable("not a state file of topodns")
    content = memoryview(data)[:-CHECKSUM]
    if hashlib.sha256(content).digest() != data[-CHECKSUM:]:
        raise Unusable("damaged: the checksum does not match")
    start = len(MAGIC) + LENGTH
    end = start + int.from_bytes(data[len(MAGIC) : start])
    try:
        header = _HEADERS.decode(content[start:end])
    except msgspec.DecodeError:
        raise Unusable(OTHER_VERSION) from None
    if header.layout != _layout():
        raise Unusable(OTHER_VERSION)
    if header.origin.cluster != origin.cluster:
        raise Unusable(f"state of another cluster: {header.origin.cluster}, expected {origin.cluster}")
    if missing := set(origin.kinds) - set(header.origin.kinds):
        raise Unusable(f"written with other settings: without {', '.join(sorted(missing))}")
    stream = io.BytesIO(data)  # shares the octets
    stream.seek(end)
    unpickler = _Unpickler(stream)
    snapshot = _next(unpickler, Snapshot)  # also with other settings: it has most slices
    same = header.origin.settings == origin.settings
    return SavedView(snapshot if same else None, lambda: _objects(unpickler, snapshot))


def _slices_in(snapshot: Snapshot) -> Iterator[EndpointSlice]:
    return chain.from_iterable(service.slices for service in snapshot.services.values())


def _objects(unpickler: _Unpickler, snapshot: Snapshot) -> list[Object]:
    objects: list[Object] = list(compress(_slices_in(snapshot), _next(unpickler, bytes)))
    try:
        objects.extend(packing.unbatched(_next(unpickler, list)))
    except (msgspec.DecodeError, KeyError, TypeError):
        raise Unusable(NO_VIEW) from None
    return objects


def _next(unpickler: _Unpickler, kind: type[T]) -> T:
    try:
        value = unpickler.load()
    except Exception:  # pickle documents no closed set
        raise Unusable(OTHER_VERSION) from None
    if not isinstance(value, kind):
        raise Unusable(NO_VIEW)
    return value


class _Checked:
    """Passes octets on, and computes their checksum."""

    def __init__(self, file: Writable) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.digest = self._digest.digest

    def write(self, octets: bytes, /) -> None:
        self._digest.update(octets)
        self._file.write(octets)


def _compiled(
    packed: bytes,
    declarations: tuple[Declaration, ...],
    locations: tuple[Location, ...],
    empty: bool,
    plans: tuple[Balanced, ...],
) -> CompiledService:
    service, slices = _PACKED.decode(packed)
    share_parts(service)
    for part in slices:  # at once: the equal parts of all slices would take 50 MB meanwhile
        share_parts(part)
    return CompiledService(service, declarations, slices, locations, empty, plans)


def _constant(position: int) -> Location:
    return CONSTANTS[position]


class _Pickler(pickle.Pickler):
    """Leaves out what readers of a snapshot have added to it, and what belongs to a store."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, CompiledService):
            # As one string of octets: no other thread runs while pickle's table of known objects grows or is freed.
            packed = msgspec.msgpack.encode((value.service, value.slices))
            return _compiled, (packed, value.declarations, value.locations, value.empty, value.plans)
        if isinstance(value, AddressBook):
            return AddressBook, (), value.saved_parts()
        if isinstance(value, Location):
            for position, constant in enumerate(CONSTANTS):
                if value is constant:
                    return _constant, (position,)
        return NotImplemented


_READ = {
    (known.__module__, known.__qualname__): known  # type: ignore[attr-defined]
    for known in (*STRUCTS, *OTHERS, *TUPLES, _constant, _compiled)
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _READ[module, name]


def _layout() -> str:
    """Return a digest of all fields and the types of those of structs: no version number has to be kept up to date.

    pickle checks no type, so a field that has another one now must make a file unusable.
    """
    structs = [(struct.__qualname__, struct.__struct_fields__, _types(struct)) for struct in (*STRUCTS, *PACKED)]
    others = [sorted(getattr(made, "__dict__", ()) or made.__slots__) for made in (new() for new in OTHERS)]
    return hashlib.sha256(msgspec.json.encode((structs, others))).hexdigest()[:16]


def _types(struct: type[Struct]) -> list[list[str]]:
    return [[f"{name}: {kind}" for name, kind in get_annotations(base).items()] for base in struct.__mro__]
