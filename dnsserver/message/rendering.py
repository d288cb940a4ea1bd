"""Records as bytes: rendering, rotation, truncation.

A rendered answer is position-independent: names are compressed against the question and the
aliases right behind it, which always stand at the same place. So records can be rotated, left
out and joined without being rendered again. Only the owners of glue point to what moves.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import dnslib
from dnslib.label import DNSBuffer

from dnsserver.message import wire
from dnsserver.message.glue import Glue, Target
from dnsserver.message.records import Address, Data, Host, HostInfo, Opaque, Record, Soa, Srv, Text
from dnsserver.message.rotation import Rotations
from dnsserver.names import labels_of, name_text

MAX_PACKED = 65536  # rendered records of hot endpoints: some 10 MB


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


class RenderedAnswer:
    """An answer as bytes, to be put behind a header and a question.

    ``aliases`` are the CNAME records that come before all others. ``blob`` holds the answer
    records behind them twice over and ``offsets`` where each begins, so that every rotation is
    one slice of ``length``. ``tail`` is authority and glue, ``glue`` how it is shortened where it
    has no room, ``size`` how many octets all of this takes and ``least`` without the glue.
    ``serial_at`` is where the SOA's serial stands in ``tail``, 0 where there is none. ``heads``
    are flags and counts by the index of ``head_index``. ``tally`` is what the answer counts as,
    ``elsewhere`` the aliases again, as records, where what they lead to is to be looked up, and
    ``finished`` what was last found there, with the answer that it made. An answer is ``plain``
    if nothing but a rotation and an OPT record is left to be done. What changes: ``turns`` yields
    the record that the next reply begins with, until ``take_turn`` goes on with others, ``cut_turns`` the
    same of truncated replies; ``stamp`` brings the serial up to date.
    """

    __slots__ = (
        "aliases", "blob", "counts", "cut_turns", "dependent", "elsewhere", "error", "finished", "flags", "glue",
        "heads", "least", "length", "offsets", "plain", "records", "rotation", "serial_at", "size", "tail", "tally",
        "turns",
    )  # fmt: skip

    def __init__(
        self,
        *,
        flags: int,
        answers: Sequence[bytes],
        aliases: Sequence[bytes] = (),
        authority: Sequence[bytes] = (),
        glue: Glue | None = None,
        serial_at: int = 0,
        dependent: bool = False,
        error: tuple[int, str] | None = None,
        elsewhere: tuple[Record, ...] = (),
        tally: int = 0,
        rotations: Rotations,
    ) -> None:
        self.flags = flags
        self.aliases = tuple(aliases)
        self.records = len(answers)
        self.blob = b"".join(answers) * 2
        self.length = len(self.blob) // 2
        self.offsets = tuple(accumulate(map(len, (*answers, *answers)), initial=0))
        self.tail = b"".join((*authority, glue.whole if glue is not None else b""))
        self.glue = glue
        self.counts = (len(self.aliases) + len(answers), len(authority))
        self.heads = _heads(flags, *self.counts, glue.count if glue is not None else 0)
        self.serial_at = serial_at
        self.size = sum(map(len, self.aliases)) + self.length + len(self.tail)
        self.least = self.size if glue is None else self.size - len(glue.whole)
        self.dependent = dependent
        self.error = error
        self.elsewhere = elsewhere
        self.finished: tuple[object, RenderedAnswer] | None = None
        self.plain = not aliases and error is None
        self.tally = tally
        self.rotation = rotations.of(len(answers))
        self.turns = self.rotation.begin()
        self.cut_turns: Iterator[int] | None = None

    @property
    def weight(self) -> int:
        """How many octets of memory it takes, roughly."""
        glue = self.glue.weight if self.glue is not None else 0
        return 1000 + self.size + self.length + 40 * self.records + glue

    def take_turn(self) -> int:
        """Return with which record a whole reply begins, counted from 0."""
        turn = next(self.turns, None)
        if turn is None:
            self.turns = self.rotation.go_on()
            turn = next(self.turns)
        return turn

    def take_cut_turn(self) -> int:
        """Return with which record a truncated reply begins.

        They take turns of their own: a client that asks again by TCP would take two of one round else.
        """
        turn = None if self.cut_turns is None else next(self.cut_turns, None)
        if turn is None:
            self.cut_turns = self.rotation.go_on()
            turn = next(self.cut_turns)
        return turn

    def body(self, turn: int) -> bytes:
        """Return the answer records, aliases first, beginning with one of them."""
        start = self.offsets[turn]
        return b"".join((*self.aliases, self.blob[start : start + self.length]))

    def stamp(self, serial: bytes) -> None:
        """Put a serial of four octets into the SOA record, if there is one."""
        if self.serial_at:
            self.tail = self.tail[: self.serial_at] + serial + self.tail[self.serial_at + 4 :]


HEAD_BITS = (0, wire.RD, wire.CD, wire.RD | wire.CD)


def head_index(flags: int, *, opt: bool) -> int:
    """Return which of ``RenderedAnswer.heads`` answers a query with these flags, with or without an OPT."""
    return (1 if flags & wire.RD else 0) + (2 if flags & wire.CD else 0) + (4 if opt else 0)


@lru_cache(4096)  # shared by all answers of one form, and so in the processor's cache when they are needed
def _heads(flags: int, answers: int, authority: int, additional: int) -> tuple[bytes, ...]:
    return tuple(_head(flags | bits, answers, authority, additional, opt=opt) for opt in (0, 1) for bits in HEAD_BITS)


def _head(flags: int, answers: int, authority: int, additional: int, *, opt: int) -> bytes:
    return struct.pack("!HHHHH", flags, 1, answers, authority, additional + opt)


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


def serial_offset(packed_soa: bytes) -> int:
    """Return where the serial stands in a rendered SOA record: five 32-bit numbers end it."""
    return len(packed_soa) - 20


def _text(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def fitted(rendered: RenderedAnswer, head: int, room: int, *, turn: int) -> tuple[bytes, bytes]:
    """Return flags with counts, and records, as much of an answer as has *room* octets, from record *turn* on.

    Glue that does not fit is left out silently. If the answer does not, as many whole records of it stay
    as fit, with TC and without glue (RFC 2181, section 9).
    """
    if rendered.size <= room:
        return rendered.heads[head], rendered.body(turn) + rendered.tail
    if rendered.least > room or rendered.glue is None:
        return _cut(rendered, head, room, turn)
    number, glue = rendered.glue.fitting(room - rendered.least, turn=turn, offsets=rendered.offsets)
    authority = rendered.tail[: len(rendered.tail) - len(rendered.glue.whole)]
    return _heads(rendered.flags, *rendered.counts, number)[head], rendered.body(turn) + authority + glue


def _cut(rendered: RenderedAnswer, head: int, room: int, turn: int) -> tuple[bytes, bytes]:
    aliases = rendered.aliases[: sum(end <= room for end in accumulate(map(len, rendered.aliases)))]
    kept, fit = b"".join(aliases), 0
    offsets, start = rendered.offsets, rendered.offsets[turn]
    if len(aliases) == len(rendered.aliases):
        last = start + room - len(kept)  # the octet behind which nothing fits
        fit = bisect_right(offsets, last, turn, turn + rendered.records + 1) - 1 - turn
    head_and_counts = _heads(rendered.flags | wire.TC, len(aliases) + fit, 0, 0)[head]
    return head_and_counts, kept + rendered.blob[start : offsets[turn + fit]]
