"""Packs records as bytes that stay valid when a reply leaves records out or reorders them.

Names are compressed only against names with a fixed position: the question and the aliases right behind it. So a reply
can rotate packed records, leave some out and join them without packing them again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import dnslib
from dnslib.label import DNSBuffer

from dnsserver.message import wire
from dnsserver.message.glue import POINTER, Glue, Target
from dnsserver.message.records import Address, Data, Host, HostInfo, Opaque, Record, Soa, Srv, Text
from dnsserver.names import MAX_LABEL, labels_of, name_text

MAX_PACKED = 65536  # packed records of hot endpoints: about 10 MB
MAX_ENDINGS = 4096  # names of Services, which end the names of their endpoints
LENGTHS = [bytes((length,)) for length in range(MAX_LABEL + 1)]
ROOT = LENGTHS[0]
QUESTION = (POINTER | wire.HEADER).to_bytes(2)  # a pointer to the queried name


class Packer:
    """Packs the records of one reply, one by one.

    Names are compressed against the question and the aliases. So a caller must pack aliases before all other records,
    and must send all of them right behind the question.
    """

    def __init__(self, question: Sequence[bytes]) -> None:
        """*question* is the queried name as labels in lower case."""
        self._names = _question_names(question)
        self._queried_name = name_text(question)
        self._position = wire.HEADER + sum(len(label) + 1 for label in question) + 1 + 4

    def aliases(self, records: Iterable[Record]) -> list[bytes]:
        """Pack CNAME records in the order in which they follow the question."""
        packed = []
        for record in records:
            assert isinstance(record.data, Host)
            octets, target = _pack(record, self._names), labels_of(record.data.name)
            self._position += len(octets)
            start = self._position - len(_name(record.data.name, self._names))
            self._names.add((name, offset) for name, offset in _names_of(target, start) if name not in self._names)
            packed.append(octets)
        return packed

    def records(self, records: Iterable[Record]) -> list[bytes]:
        """Pack records of any type."""
        return [
            _pack_behind_question(record.rtype, record.ttl, record.data)
            if record.name == self._queried_name and isinstance(record.data, (Address, Srv, HostInfo))
            else _pack(record, self._names)
            for record in records
        ]

    def glue(self, addresses: Iterable[Record], answers: Iterable[Record]) -> Glue | None:
        """Return *addresses* as the glue of SRV or NS *answers*, or None without addresses."""
        packed: dict[str, list[bytes]] = {}
        for record in addresses:
            assert isinstance(record.data, Address)
            packed.setdefault(record.name, []).append(_pack_without_owner(record.rtype, record.ttl, record.data))
        if not packed:
            return None
        targets: dict[str, Target] = {}
        targets_of_answers = []
        for record in answers:
            name = _target_of(record.data)
            if name not in targets:
                owner = _name(name, self._names)
                octets = len(name) + 2 if isinstance(record.data, Srv) else len(owner)  # RFC 2782: uncompressed
                targets[name] = Target(octets, owner, tuple(packed.get(name, ())))
            targets_of_answers.append(targets[name])
        return Glue(targets_of_answers, start=self._position)


def serial_offset(packed_soa: bytes) -> int:
    """Return the offset of the serial in a packed SOA record, which ends with five 32-bit numbers."""
    return len(packed_soa) - 20


class _KnownNames(dict[tuple[bytes, ...], int]):
    """The names that dnslib may compress against, with their offsets in the message."""

    def __setitem__(self, labels: tuple[bytes, ...], offset: int) -> None:
        """Ignore names that dnslib adds while it packs: they move with their records, so nothing may point to them."""

    add = dict.update  # for names with a fixed position


def _names_of(labels: Sequence[bytes], position: int) -> Iterator[tuple[tuple[bytes, ...], int]]:
    """Yield every suffix of a name that is packed uncompressed at *position*, with the suffix's offset."""
    offsets = accumulate((len(label) + 1 for label in labels), initial=position)
    return ((tuple(labels[start:]), offset) for start, offset in zip(range(len(labels)), offsets, strict=False))


def _question_names(labels: Sequence[bytes]) -> _KnownNames:
    return _KnownNames(_names_of(labels, wire.HEADER))


@lru_cache(MAX_PACKED)
def _labels(name: str) -> tuple[bytes, ...]:
    """Return the labels of a name in lower case. The hundreds of endpoints of a Service share all but the first."""
    first, _, rest = name.partition(".")
    return (first.encode("ascii"), *_labels(rest)) if rest else labels_of(first)


def _label(name: str) -> dnslib.DNSLabel:
    return dnslib.DNSLabel(_labels(name))


# Data -> dnslib's class for it. A new record type needs a class in ``records`` and a row here. Addresses and SRV data
# are packed without dnslib: large answers consist of them, and dnslib is ten times as slow.
_DATA: dict[type[Data], Callable[[Any], Any]] = {
    Soa: lambda data: dnslib.SOA(
        _label(data.mname),
        _label(data.rname),
        (data.serial, data.refresh, data.retry, data.expire, data.minimum),
    ),
    Host: lambda data: dnslib.CNAME(_label(data.name)),  # NS and PTR data pack to the same bytes
    HostInfo: lambda data: dnslib.RD(_text(data.cpu) + _text(data.os)),
    Text: lambda data: dnslib.RD(_text(data.text)),
    Opaque: lambda data: dnslib.RD(data.octets),
}


def _target_of(data: Data) -> str:
    assert isinstance(data, (Srv, Host))
    return data.target if isinstance(data, Srv) else data.name


@lru_cache(MAX_PACKED)
def _pack_behind_question(rtype: int, ttl: int, data: Data) -> bytes:
    """Pack a record that the queried name owns and whose data contain no name to compress.

    The owner is always a pointer to the question, so the bytes are the same for every name. The cache keeps a Service
    that loses one of its hundred endpoints from packing the other 99 again.
    """
    if isinstance(data, (Address, Srv)):
        return QUESTION + _pack_without_owner(rtype, ttl, data)
    return _pack(Record("question", rtype, ttl, data), _question_names((b"question",)))


def _pack(record: Record, names: _KnownNames) -> bytes:
    if isinstance(record.data, (Address, Srv)):
        return _name(record.name, names) + _pack_without_owner(record.rtype, record.ttl, record.data)
    buffer = DNSBuffer()
    buffer.names = names
    data = _DATA[type(record.data)](record.data)
    dnslib.RR(_label(record.name), record.rtype, ttl=record.ttl, rdata=data).pack(buffer)
    return bytes(buffer.data)


def _pack_without_owner(rtype: int, ttl: int, data: Address | Srv) -> bytes:
    """Pack an address or SRV record without its owner name."""
    if isinstance(data, Address):
        packed = data.packed
    else:  # RFC 2782 forbids compressing the target
        packed = struct.pack("!HHH", data.priority, data.weight, data.port) + _target(data.target)
    return struct.pack("!HHIH", rtype, wire.IN, ttl, len(packed)) + packed


def _target(name: str) -> bytes:
    """Pack the target of an SRV record. All targets of a Service end with the same labels."""
    label, (_, dot, rest) = _labels(name)[0], name.partition(".")
    return LENGTHS[len(label)] + label + (_ending(rest) if dot else ROOT)


@lru_cache(MAX_ENDINGS)
def _ending(name: str) -> bytes:
    return _name(name, {})


def _name(name: str, names: Mapping[tuple[bytes, ...], int]) -> bytes:
    """Pack a name, compressed against *names*: where the rest is among them, a pointer follows (RFC 1035, 4.1.4)."""
    labels, packed = _labels(name), b""
    for start, label in enumerate(labels):
        if (offset := names.get(labels[start:])) is not None:
            return packed + (POINTER | offset).to_bytes(2)
        packed += LENGTHS[len(label)] + label
    return packed + ROOT


def _text(text: str) -> bytes:
    """Pack a character string: its length, then its octets (RFC 1035, section 3.3)."""
    return bytes((len(text),)) + text.encode()
