"""Packs records as bytes that stay valid when a reply leaves records out or reorders them.

Names are compressed only against names with a fixed position: the question and the aliases right behind it. So a reply
can rotate packed records, leave some out and join them without packing them again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dnsserver.message import wire
from dnsserver.message.glue import POINTER, Glue, Target
from dnsserver.message.records import Address, Data, Host, HostInfo, Opaque, Record, Soa, Srv, Text
from dnsserver.names import MAX_LABEL, label_text, labels_of, name_text

LENGTHS = [bytes((length,)) for length in range(MAX_LABEL + 1)]
ROOT = LENGTHS[0]
QUESTION = (POINTER | wire.HEADER).to_bytes(2)  # a pointer to the queried name
FIXED = struct.Struct("!HHIH")  # type, class, TTL and length of the data, which stand behind the owner's name
SRV_NUMBERS = struct.Struct("!HHH")  # priority, weight, port
SOA_NUMBERS = struct.Struct("!IIIII")  # serial, refresh, retry, expire, minimum

Offsets = dict[str, int]  # names with a fixed position in the message, with their offsets


class Packer:
    """Packs the records of one reply, one by one.

    Names are compressed against the question and the aliases. So a caller must pack aliases before all other records,
    and must send all of them right behind the question.
    """

    def __init__(self, question: Sequence[bytes]) -> None:
        """*question* is the queried name as labels in lower case."""
        self._question = question
        self._queried_name = name_text(question)
        self._position = wire.HEADER + sum(map(len, question)) + len(question) + 1 + 4
        self._known_offsets: Offsets = {}  # filled when the first name is compressed: addresses need none
        self._uncompressed = _Siblings({})

    def aliases(self, records: Iterable[Record]) -> list[bytes]:
        """Pack CNAME records in the order in which they follow the question."""
        packed = []
        for record in records:
            assert isinstance(record.data, Host)
            (octets,), offsets = self.records((record,)), self._offsets
            self._position += len(octets)
            start = self._position - len(_name(record.data.name, offsets))
            for name, offset in _offsets_of(labels_of(record.data.name), start).items():
                offsets.setdefault(name, offset)
            packed.append(octets)
        return packed

    def records(self, records: Iterable[Record]) -> list[bytes]:
        """Pack records of any type."""
        packed, queried_name = [], self._queried_name
        for record in records:
            data = record.data
            # Large answers consist of these two types.
            if isinstance(data, Address):
                octets = data.packed
            elif isinstance(data, Srv):  # RFC 2782: the target is not compressed
                octets = SRV_NUMBERS.pack(data.priority, data.weight, data.port) + self._uncompressed.name(data.target)
            else:
                octets = _DATA[type(data)](data, self._offsets)
            owner = QUESTION if record.name == queried_name else _name(record.name, self._offsets)
            packed.append(owner + FIXED.pack(record.rtype, wire.IN, record.ttl, len(octets)) + octets)
        return packed

    def glue(self, addresses: Iterable[Record], answers: Iterable[Record]) -> Glue | None:
        """Return *addresses* as the glue of SRV or NS *answers*, or None without addresses."""
        packed: dict[str, tuple[bytes, ...]] = {}
        for record in addresses:
            assert isinstance(record.data, Address)
            octets = record.data.packed
            address = FIXED.pack(record.rtype, wire.IN, record.ttl, len(octets)) + octets
            packed[record.name] = (*packed.get(record.name, ()), address)
        if not packed:
            return None
        compressed = _Siblings(self._offsets)
        targets: dict[str, Target] = {}
        targets_of_answers = []
        for record in answers:
            name = _target_of(record.data)
            target = targets.get(name)
            if target is None:
                owner = compressed.name(name)
                octets_of_name = len(name) + 2 if isinstance(record.data, Srv) else len(owner)
                target = targets[name] = Target(octets_of_name, owner, packed.get(name, ()))
            targets_of_answers.append(target)
        return Glue(targets_of_answers, start=self._position)

    @property
    def _offsets(self) -> Offsets:
        """The names that others may be compressed against: the question, the aliases' targets, and their endings."""
        if not self._known_offsets:
            self._known_offsets = _offsets_of(self._question, wire.HEADER)
        return self._known_offsets


class _Siblings:
    """Packs names that are compressed against *offsets*, and of which many differ only in their first label."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._endings: dict[str, bytes] = {}

    def name(self, name: str) -> bytes:
        """Return a packed name, as ``_name`` does."""
        if name in self._offsets:
            return _name(name, self._offsets)
        label, _, rest = name.partition(".")
        ending = self._endings.get(rest)
        if ending is None:
            ending = self._endings[rest] = _name(rest, self._offsets)
        return LENGTHS[len(label)] + label.encode("ascii") + ending


def serial_offset(packed_soa: bytes) -> int:
    """Return the offset of the serial in a packed SOA record, which ends with five 32-bit numbers."""
    return len(packed_soa) - SOA_NUMBERS.size


def _offsets_of(labels: Sequence[bytes], position: int) -> Offsets:
    """Return every ending of a name that is packed uncompressed at *position*, with the ending's offset."""
    offsets, ending = {}, ""
    position += sum(map(len, labels)) + len(labels)
    for label in reversed(labels):
        ending = f"{label_text(label)}.{ending}" if ending else label_text(label)
        position -= len(label) + 1
        offsets[ending] = position
    return offsets


# Data -> how they are packed; ``Packer.records`` packs addresses and SRV data itself. A new record type needs a class
# in ``records`` and a row here.
_DATA: dict[type[Data], Callable[[Any, Offsets], bytes]] = {
    Soa: lambda data, offsets: (
        _name(data.mname, offsets)
        + _name(data.rname, offsets)
        + SOA_NUMBERS.pack(data.serial, data.refresh, data.retry, data.expire, data.minimum)
    ),
    Host: lambda data, offsets: _name(data.name, offsets),  # NS, CNAME and PTR data are all compressed
    HostInfo: lambda data, offsets: _text(data.cpu) + _text(data.os),
    Text: lambda data, offsets: _text(data.text),
    Opaque: lambda data, offsets: data.octets,
}


def _target_of(data: Data) -> str:
    assert isinstance(data, (Srv, Host))
    return data.target if isinstance(data, Srv) else data.name


def _name(name: str, offsets: Mapping[str, int]) -> bytes:
    """Pack a name; where the rest is among *offsets*, a pointer to it follows (RFC 1035, section 4.1.4)."""
    packed = b""
    while name:
        if (offset := offsets.get(name)) is not None:
            return packed + (POINTER | offset).to_bytes(2)
        label, _, name = name.partition(".")
        packed += LENGTHS[len(label)] + label.encode("ascii")
    return packed + ROOT


def _text(text: str) -> bytes:
    """Pack a character string: its length, then its octets (RFC 1035, section 3.3)."""
    return bytes((len(text),)) + text.encode()
