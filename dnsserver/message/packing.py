# SPDX-License-Identifier: Apache-2.0

"""Packs records as bytes that stay valid when a reply leaves records out or reorders them.

Names are compressed only against names with a fixed position: the question and the aliases right behind it. So a reply
can rotate packed records, leave some out and join them without packing them again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import dnslib
from dnslib.label import DNSBuffer

from dnsserver.message import wire
from dnsserver.message.additional import POINTER, AdditionalRecords, AddressedTarget
from dnsserver.message.records import AddressData, Data, Host, HostInfo, Opaque, Record, Soa, Srv, Text
from dnsserver.names import MAX_LABEL, name_text

LENGTHS = [bytes((length,)) for length in range(MAX_LABEL + 1)]
ROOT = LENGTHS[0]
QUESTION = (POINTER | wire.HEADER).to_bytes(2)  # a pointer to the queried name
FIXED = struct.Struct("!HHIH")  # type, class, TTL and length of the data, which stand behind the owner's name
SRV_NUMBERS = struct.Struct("!HHH")  # priority, weight, port
SOA_NUMBERS = struct.Struct("!IIIII")  # serial, refresh, retry, expire, minimum

Offsets = dict[tuple[bytes, ...], int]  # from names in the message to where they stand, as dnslib keeps them


class Packer:
    """Packs the records of one reply, one by one.

    Names are compressed against the question and the aliases. So a caller must pack aliases before all other records,
    and must send all of them right behind the question.

    Addresses, SRV and SOA records are packed here: most answers consist of them, and dnslib, which packs all others,
    takes five times as long.
    """

    def __init__(self, question: Sequence[bytes]) -> None:
        """*question* is the queried name as labels in lower case."""
        self._question = tuple(question)
        self._queried_name = name_text(question)
        self._uncompressed = _Names()
        self._position = wire.HEADER + sum(map(len, question)) + len(question) + 1 + 4

    def aliases(self, records: Iterable[Record]) -> list[bytes]:
        """Pack CNAME records in the order in which they follow the question."""
        packed = []
        for record in records:
            packed.append(self._by_dnslib(record, self._offsets))
            self._position += len(packed[-1])
        return packed

    def records(self, records: Iterable[Record]) -> list[bytes]:
        """Pack records of any type."""
        packed, queried_name = [], self._queried_name
        for record in records:
            data = record.data
            if isinstance(data, AddressData):
                octets = data.packed
            elif isinstance(data, Srv):  # RFC 2782: the target is not compressed
                octets = SRV_NUMBERS.pack(data.priority, data.weight, data.port) + self._uncompressed[data.target]
            elif isinstance(data, Soa):
                times = SOA_NUMBERS.pack(data.serial, data.refresh, data.retry, data.expire, data.minimum)
                octets = self._compressed[data.mname] + self._compressed[data.rname] + times
            else:
                packed.append(self._by_dnslib(record, _Unchanged(self._offsets)))
                continue
            owner = QUESTION if record.name == queried_name else self._compressed[record.name]
            packed.append(owner + FIXED.pack(record.rtype, wire.IN, record.ttl, len(octets)) + octets)
        return packed

    def additional(
        self, addresses: Iterable[Record], answers: Sequence[Record], spares: Sequence[Record] = ()
    ) -> AdditionalRecords | None:
        """Return *addresses* as those of the targets of SRV or NS *answers* and *spares*, or None without addresses."""
        packed: dict[str, tuple[bytes, ...]] = {}
        for record in addresses:
            assert isinstance(record.data, AddressData)
            octets = record.data.packed
            address = FIXED.pack(record.rtype, wire.IN, record.ttl, len(octets)) + octets
            packed[record.name] = (*packed.get(record.name, ()), address)
        if not packed:
            return None
        targets: dict[str, AddressedTarget] = {}
        targets_of_records = []
        for record in (*answers, *spares):
            name = _target_of(record.data)
            target = targets.get(name)
            if target is None:
                owner = self._compressed[name]
                octets_of_name = len(name) + 2 if isinstance(record.data, Srv) else len(owner)
                target = targets[name] = AddressedTarget(octets_of_name, owner, packed.get(name, ()))
            targets_of_records.append(target)
        ends = accumulate(map(len, self.records(spares)))
        split = len(answers)
        return AdditionalRecords(
            targets_of_records[:split],
            list(zip(targets_of_records[split:], ends, strict=True)),
            start=self._position,
        )

    def _by_dnslib(self, record: Record, names: Offsets) -> bytes:
        """Pack the record behind the aliases, compressed against *names*, to which its own names are added."""
        owner: Sequence[bytes] = record.name.encode().split(b".") if record.name else ()
        if record.name == self._queried_name:
            owner = self._question
        buffer = DNSBuffer(bytes(self._position))
        buffer.names, buffer.offset = names, self._position
        dnslib.RR(owner, record.rtype, ttl=record.ttl, rdata=_DATA[type(record.data)](record.data)).pack(buffer)
        return bytes(buffer.data[self._position :])

    @cached_property
    def _offsets(self) -> Offsets:
        """The names that others may be compressed against: the question, the aliases' targets, and their endings."""
        offsets, position = {}, wire.HEADER
        for number, label in enumerate(self._question):
            offsets[self._question[number:]] = position
            position += 1 + len(label)
        return offsets

    @cached_property
    def _compressed(self) -> _Names:
        names = _Names()
        for name, offset in self._offsets.items():
            names[name_text(name)] = (POINTER | offset).to_bytes(2)
        return names


class _Names(dict[str, bytes]):
    """Names and their octets. A name is packed when it is first looked up: many share all but their first label."""

    def __missing__(self, name: str) -> bytes:
        label, _, rest = name.partition(".")
        packed = self[name] = LENGTHS[len(label)] + label.encode("ascii") + (self[rest] if rest else ROOT)
        return packed


class _Unchanged(dict[tuple[bytes, ...], int]):
    """Offsets to which dnslib adds no names: those of its records move with them, so nothing may point to them."""

    def __setitem__(self, name: tuple[bytes, ...], offset: int) -> None:
        """Leave the offsets as they are."""


def encoded_name(labels: Iterable[bytes]) -> bytes:
    """Return a name as a message has it, without compression."""
    return b"".join(LENGTHS[len(label)] + label for label in labels) + ROOT


def serial_offset(packed_soa: bytes) -> int:
    """Return the offset of the serial in a packed SOA record, which ends with five 32-bit numbers."""
    return len(packed_soa) - SOA_NUMBERS.size


# Data -> the same data for dnslib. A new record type needs a class in ``records`` and a row here.
_DATA: dict[type[Data], Callable[[Any], dnslib.RD]] = {
    Host: lambda data: dnslib.CNAME(data.name.encode()),  # NS and PTR data have the same form
    HostInfo: lambda data: dnslib.TXT((data.cpu, data.os)),  # two character strings
    Text: lambda data: dnslib.TXT(data.text),
    Opaque: lambda data: dnslib.RD(data.octets),
}


def _target_of(data: Data) -> str:
    assert isinstance(data, (Srv, Host))
    return data.target if isinstance(data, Srv) else data.name
