"""Packs records as bytes that stay valid when a reply leaves records out or reorders them.

Names are compressed only against names with a fixed position: the question and the aliases right behind it. So a reply
can rotate packed records, leave some out and join them without packing them again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import dnslib
from dnslib.label import DNSBuffer

from dnsserver.message import wire
from dnsserver.message.glue import Glue, Target
from dnsserver.message.records import Address, Data, Host, HostInfo, Opaque, Record, Soa, Srv, Text
from dnsserver.names import labels_of, name_text

MAX_PACKED = 65536  # packed records of hot endpoints: about 10 MB


class Packer:
    """Renders records, one by one, to stand behind the question of these labels.

    Names are compressed against the question and the aliases, which always stand at the same
    place right behind it: ``aliases`` must be rendered first, and be sent with what follows.
    """

    def __init__(self, question: Sequence[bytes]) -> None:
        self._names = _question_names(question)
        self._asked = name_text(question)
        self._position = wire.HEADER + sum(len(label) + 1 for label in question) + 1 + 4

    def aliases(self, records: Iterable[Record]) -> list[bytes]:
        """Render CNAME records that stand behind each other right after the question."""
        packed = []
        for record in records:
            assert isinstance(record.data, Host)
            octets, target = _pack(record, self._names), labels_of(record.data.name)
            self._position += len(octets)
            at = self._position - len(_name(record.data.name, self._names))
            self._names.learn((name, place) for name, place in _names_of(target, at) if name not in self._names)
            packed.append(octets)
        return packed

    def records(self, records: Iterable[Record]) -> list[bytes]:
        """Render records of any type."""
        return [
            _pack_own(record.rtype, record.ttl, record.data)
            if record.name == self._asked and isinstance(record.data, (Address, Srv, HostInfo))
            else _pack(record, self._names)
            for record in records
        ]

    def glue(self, addresses: Iterable[Record], answers: Iterable[Record]) -> Glue | None:
        """Return the glue made of address records, for what SRV or NS records name; None where there is none."""
        packed: dict[str, list[bytes]] = {}
        for record in addresses:
            packed.setdefault(record.name, []).append(_pack_behind_owner(record))
        if not packed:
            return None
        targets: dict[str, Target] = {}
        named = []
        for record in answers:
            name = _target_of(record.data)
            if name not in targets:
                owner = _name(name, self._names)
                octets = len(name) + 2 if isinstance(record.data, Srv) else len(owner)  # RFC 2782: in full
                targets[name] = Target(octets, owner, tuple(packed.get(name, ())))
            named.append(targets[name])
        return Glue(named, begin=self._position)


def serial_offset(packed_soa: bytes) -> int:
    """Return where the serial stands in a rendered SOA record: five 32-bit numbers end it."""
    return len(packed_soa) - 20


class _KnownNames(dict[tuple[bytes, ...], int]):
    """dnslib's memory of where names stand, which learns of none by itself."""

    def __setitem__(self, labels: tuple[bytes, ...], offset: int) -> None:
        """A name somewhere would move with its record: it must not be pointed at."""

    learn = dict.update  # of names that stand still


def _names_of(labels: Sequence[bytes], position: int) -> Iterator[tuple[tuple[bytes, ...], int]]:
    """Yield each name that a name written out at *position* holds, with its place."""
    offsets = accumulate((len(label) + 1 for label in labels), initial=position)
    return ((tuple(labels[start:]), offset) for start, offset in zip(range(len(labels)), offsets, strict=False))


def _question_names(labels: Sequence[bytes]) -> _KnownNames:
    return _KnownNames(_names_of(labels, wire.HEADER))


@lru_cache(MAX_PACKED)
def _label(name: str) -> dnslib.DNSLabel:
    return dnslib.DNSLabel(labels_of(name))


# Data -> dnslib's form of it; a new type of record is a class above and a row here.
_DATA: dict[type[Data], Callable[[Any], Any]] = {
    Address: lambda data: dnslib.A(tuple(data.packed)) if len(data.packed) == 4 else dnslib.AAAA(tuple(data.packed)),
    Srv: lambda data: dnslib.SRV(data.priority, data.weight, data.port, _label(data.target)),
    Soa: lambda data: dnslib.SOA(
        _label(data.mname),
        _label(data.rname),
        (data.serial, data.refresh, data.retry, data.expire, data.minimum),
    ),
    Host: lambda data: dnslib.CNAME(_label(data.name)),  # NS and PTR are the same octets
    HostInfo: lambda data: dnslib.RD(_text(data.cpu) + _text(data.os)),
    Text: lambda data: dnslib.RD(_text(data.text)),
    Opaque: lambda data: dnslib.RD(data.octets),
}


def _target_of(data: Data) -> str:
    assert isinstance(data, (Srv, Host))
    return data.target if isinstance(data, Srv) else data.name


@lru_cache(MAX_PACKED)
def _pack_own(rtype: int, ttl: int, data: Data) -> bytes:
    """Render a record of the question's own name, whose data hold no name that may be compressed.

    Whatever the question, its name stands at one place, so the octets are the same: a Service
    that loses one of its hundred endpoints is not rendered a hundred times again.
    """
    return _pack(Record("question", rtype, ttl, data), _question_names((b"question",)))


def _pack(record: Record, names: _KnownNames) -> bytes:
    if isinstance(record.data, Address):  # the records of large answers; dnslib takes ten times as long
        return _name(record.name, names) + _pack_behind_owner(record)
    buffer = DNSBuffer()
    buffer.names = names
    data = _DATA[type(record.data)](record.data)
    dnslib.RR(_label(record.name), record.rtype, ttl=record.ttl, rdata=data).pack(buffer)
    return bytes(buffer.data)


def _pack_behind_owner(record: Record) -> bytes:
    """Render an address record without its owner."""
    assert isinstance(record.data, Address)
    packed = record.data.packed
    return struct.pack("!HHIH", record.rtype, wire.IN, record.ttl, len(packed)) + packed


def _name(name: str, names: _KnownNames) -> bytes:
    buffer = DNSBuffer()
    buffer.names = names
    buffer.encode_name(_label(name))
    return bytes(buffer.data)


def _text(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()
