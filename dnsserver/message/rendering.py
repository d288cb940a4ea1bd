# SPDX-License-Identifier: Apache-2.0

"""Rendered answers: the part of a reply behind the question, as bytes that are rotated and truncated without packing.

The only exception is additional records whose owner names point into the rotated ones: they are written for each reply.

Some clients take a truncated reply for the whole answer (HAProxy, musl before 1.2.4). So a client finds the same
records in each of its truncated replies, whichever replica sends it, until the answer changes: an arc of the ring that
all records of the answer form. Where its arc starts depends on the client and the question alone: other clients have
other arcs, and together they use all endpoints evenly. The native code computes the same (``native/src/answer.rs``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from zlib import crc32

from dnsserver.message.additional import AdditionalRecords
from dnsserver.message.edns import MAX_TCP_REPLY
from dnsserver.message.records import AddressData, Record, Srv

SPREAD = 0x9E3779B1  # 2^32 divided by the golden ratio: spreads the checksums of neighbours (Knuth 1973, 6.4)

SectionCounts = tuple[int, int, int]  # records in the answer, authority and additional sections, but for an OPT record


class RenderedAnswer:
    """An answer as bytes, ready to follow a header and a question.

    What a reply consists of:

    - ``flags`` and ``section_counts``.
    - ``aliases``: the CNAME records that come before all other records.
    - ``blob``: the other answer records, twice in a row, and ``offsets``: the offset of each. So every rotation is one
      slice of ``length`` octets. ``records``: how many they are.
    - ``spares``: the answer records that come after all those that rotate, always in the same order.
    - ``tail``: the spares, the authority section and all ``additional`` records, as far as they fit.
    - ``size``: octets of aliases, one blob and tail, but more than any message holds if some additional record would
      begin where it must not (``additional.REACH``); ``required_size``: the same without additional records.
    - ``optional``: octets at the end of ``tail`` that native code cannot leave out or cut where they do not fit.
    - ``serial_at``: offset of the SOA's serial in ``tail``, 0 without SOA. ``stamp`` updates the serial.
    - ``dependent``: whether the answer depends on the client's location. ``error``: its extended error, or None.

    What belongs to it:

    - ``weight``: its approximate memory use in octets.
    - ``tally``: the number of its ``Tally``, under which it is counted.
    - ``noted``: whether it is noted who gets it (``Counts.askers``).
    - ``service`` (``namespace/name``, empty for none) and ``outcome`` of the Decision, or UNREADY, for who listens at
      the tap.
    - ``outside_target``: the name that the upstream must be asked for before there is a reply, and the namespace for
      which it is asked; None if there is none.
    """

    __slots__ = (
        "additional", "aliases", "blob", "dependent", "error", "flags", "length", "noted", "offsets", "optional",
        "outcome", "outside_target", "records", "required_size", "section_counts", "serial_at", "service", "size",
        "spares", "tail", "tally", "weight",
    )  # fmt: skip

    def __init__(
        self,
        *,
        flags: int,
        answers: Sequence[bytes],
        spares: Sequence[bytes] = (),
        aliases: Sequence[bytes] = (),
        authority: Sequence[bytes] = (),
        additional: AdditionalRecords | None = None,
        serial_at: int = 0,
        dependent: bool = False,
        error: tuple[int, str] | None = None,
        outside_target: tuple[str, str] | None = None,
        tally: int = 0,
        noted: bool = False,
        service: str = "",
        outcome: str = "",
    ) -> None:
        self.flags = flags
        self.aliases = tuple(aliases)
        self.records = len(answers)
        self.blob = b"".join(answers) * 2
        self.length = len(self.blob) // 2
        self.offsets = tuple(accumulate(map(len, (*answers, *answers)), initial=0))
        self.spares = tuple(spares)
        self.additional = additional
        whole, count = (additional.whole, additional.count) if additional is not None else (b"", 0)
        self.tail = b"".join((*spares, *authority, whole))
        self.section_counts = (len(self.aliases) + len(answers) + len(spares), len(authority), count)
        self.serial_at = serial_at
        self.size = sum(map(len, self.aliases)) + self.length + len(self.tail)
        self.required_size = self.size - len(whole)
        self.optional = len(self.tail) if spares else len(whole)
        self.weight = 1000 + len(self.tail) + 2 * self.length + 40 * self.records
        if additional is not None:
            self.weight += additional.weight
            if not additional.is_in_reach(self.length):
                self.size = MAX_TCP_REPLY + 1
        self.dependent = dependent
        self.error = error
        self.outside_target = outside_target
        self.tally = tally
        self.noted = noted
        self.service = service
        self.outcome = outcome

    def body(self, turn: int) -> bytes:
        """Return the aliases, then the other answer records from record *turn* on."""
        start = self.offsets[turn]
        records = self.blob[start : start + self.length]
        return b"".join((*self.aliases, records)) if self.aliases else records

    def stamp(self, serial: bytes) -> None:
        """Write a serial of four octets into the SOA record, if there is one."""
        if self.serial_at:
            self.tail = self.tail[: self.serial_at] + serial + self.tail[self.serial_at + 4 :]

    def fitted(self, room: int, *, turn: int) -> tuple[SectionCounts, bytes]:
        """Return the records from record *turn* on, and their numbers; all but the additional ones fit *room* octets.

        Additional records that do not fit are left out without TC (RFC 2181, section 9).
        """
        if self.size <= room or self.additional is None:
            return self.section_counts, self.body(turn) + self.tail
        number, records = self.additional.fitting(room - self.required_size, turn=turn, offsets=self.offsets)
        required = self.body(turn) + self.tail[: len(self.tail) - len(self.additional.whole)]
        return (*self.section_counts[:2], number), required + records

    def cut(self, room: int, *, start: int, drawn: int) -> tuple[SectionCounts, bytes]:
        """Return as many whole records as fit into *room* octets, and their numbers, without additional ones.

        They are the records from record *start* on, in an order that begins with any of them, as the random number
        *drawn* says. Spares are among them only if all others are.
        """
        aliases = self.aliases[: sum(end <= room for end in accumulate(map(len, self.aliases)))]
        aliases_blob, number = b"".join(aliases), 0
        offsets, blob = self.offsets, self.blob
        if len(aliases) == len(self.aliases):
            last = offsets[start] + room - len(aliases_blob)  # a record that ends behind this offset does not fit
            number = bisect_right(offsets, last, start, start + self.records + 1) - 1 - start
        turn = start + drawn % max(1, number)
        records = aliases_blob + blob[offsets[turn] : offsets[start + number]] + blob[offsets[start] : offsets[turn]]
        spares = 0
        if number == self.records:
            spares = sum(end <= room - len(records) for end in accumulate(map(len, self.spares)))
        return (len(aliases) + number + spares, 0, 0), b"".join((records, *self.spares[:spares]))


def ring(records: Iterable[Record]) -> list[Record]:
    """Return records in an order without a pattern, which depends on their data alone, not on the order they come in.

    The endpoints of one node have neighbouring addresses, but not neighbouring places: no arc consists of them alone. A
    record that comes or goes moves no other one, and the weights of SRV records do not count: they change with the
    number of records.
    """
    return sorted(records, key=_place_in_ring)


def arc_start(client: bytes, question: bytes, records: int) -> int:
    """Return at which of *records* the arc of a client starts.

    *client* is its packed address, or the octets of its address block; *question* the question's octets in lower case.
    """
    number = crc32(question, crc32(client)) * SPREAD & 0xFFFFFFFF
    return number * records >> 32


def _place_in_ring(record: Record) -> tuple[int, bytes]:
    data = record.data
    if isinstance(data, AddressData):
        target = data.packed
    else:
        target = (f"{data.target} {data.port}" if isinstance(data, Srv) else str(data)).encode()
    return crc32(target), target
