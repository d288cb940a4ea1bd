# SPDX-License-Identifier: Apache-2.0

"""Rendered answers: the part of a reply behind the question, as bytes that are rotated and truncated without packing.

The only exception is glue whose owner names point into the rotated records: ``glue`` writes it for each reply.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from dnsserver.message import wire
from dnsserver.message.edns import MAX_TCP_REPLY
from dnsserver.message.glue import Glue


class RenderedAnswer:
    """An answer as bytes, ready to follow a header and a question.

    What a reply consists of:

    - ``heads``: flags and counts, by ``head_index``; none if no message can hold the answer.
    - ``section_counts``: records in the answer and authority sections.
    - ``aliases``: the CNAME records that come before all other records.
    - ``blob``: the other answer records, twice in a row, and ``offsets``: the offset of each. So every rotation is one
      slice of ``length`` octets. ``records``: how many they are; ``turns``: how many rotations there are.
    - ``spares``: the answer records that come after all those that rotate, always in the same order.
    - ``tail``: the spares, the authority section and all glue; ``glue`` shortens the latter if it does not fit.
    - ``size``: octets of aliases, one blob and tail, but more than any message holds if some glue would begin where it
      must not (``glue.REACH``); ``size_without_glue``: the same without glue.
    - ``serial_at``: offset of the SOA's serial in ``tail``, 0 without SOA. ``stamp`` updates the serial.
    - ``dependent``: whether the answer depends on the client's location. ``error``: its extended error, or None.
    - ``plain``: whether a reply needs nothing but a rotation and an OPT record.

    What belongs to it:

    - ``weight``: its approximate memory use in octets.
    - ``tally``: the number of its ``Tally``, under which it is counted.
    - ``outside_target``: the name that the upstream must be asked for before there is a reply, and the namespace for
      which it is asked; None if there is none.
    """

    __slots__ = (
        "aliases", "blob", "dependent", "error", "flags", "glue", "heads", "length", "offsets", "outside_target",
        "plain", "records", "section_counts", "serial_at", "size", "size_without_glue", "spares", "tail", "tally",
        "turns", "weight",
    )  # fmt: skip

    def __init__(
        self,
        *,
        flags: int,
        answers: Sequence[bytes],
        spares: Sequence[bytes] = (),
        aliases: Sequence[bytes] = (),
        authority: Sequence[bytes] = (),
        glue: Glue | None = None,
        serial_at: int = 0,
        dependent: bool = False,
        error: tuple[int, str] | None = None,
        outside_target: tuple[str, str] | None = None,
        tally: int = 0,
    ) -> None:
        self.flags = flags
        self.aliases = tuple(aliases)
        self.records = len(answers)
        self.turns = max(1, len(answers))
        self.blob = b"".join(answers) * 2
        self.length = len(self.blob) // 2
        self.offsets = tuple(accumulate(map(len, (*answers, *answers)), initial=0))
        self.spares = tuple(spares)
        self.tail = b"".join((*spares, *authority, glue.whole if glue is not None else b""))
        self.glue = glue
        self.section_counts = (len(self.aliases) + len(answers) + len(spares), len(authority))
        self.serial_at = serial_at
        self.size = self.size_without_glue = sum(map(len, self.aliases)) + self.length + len(self.tail)
        if glue is not None:
            self.size_without_glue -= len(glue.whole)
            if not glue.is_in_reach(self.length):
                self.size = MAX_TCP_REPLY + 1
        fits = self.size_without_glue <= MAX_TCP_REPLY
        self.heads = _heads(flags, *self.section_counts, glue.count if glue is not None else 0) if fits else ()
        self.dependent = dependent
        self.error = error
        self.outside_target = outside_target
        self.plain = not aliases and error is None
        self.tally = tally
        self.weight = 1000 + len(self.tail) + 2 * self.length + 40 * self.records
        if glue is not None:
            self.weight += glue.weight

    def body(self, turn: int) -> bytes:
        """Return the aliases, then the other answer records from record *turn* on."""
        start = self.offsets[turn]
        return b"".join((*self.aliases, self.blob[start : start + self.length]))

    def stamp(self, serial: bytes) -> None:
        """Write a serial of four octets into the SOA record, if there is one."""
        if self.serial_at:
            self.tail = self.tail[: self.serial_at] + serial + self.tail[self.serial_at + 4 :]


HEAD_BITS = (0, wire.RD, wire.CD, wire.RD | wire.CD)


def head_index(flags: int, *, opt: bool) -> int:
    """Return the index in ``RenderedAnswer.heads`` for a query with these flags. *opt*: the reply has an OPT record."""
    return (1 if flags & wire.RD else 0) + (2 if flags & wire.CD else 0) + (4 if opt else 0)


@lru_cache(4096)  # answers with equal counts share their heads, which therefore stay in the processor's cache
def _heads(flags: int, answers: int, authority: int, additional: int) -> tuple[bytes, ...]:
    return tuple(_head(flags | bits, answers, authority, additional, opt=opt) for opt in (0, 1) for bits in HEAD_BITS)


def _head(flags: int, answers: int, authority: int, additional: int, *, opt: int) -> bytes:
    return struct.pack("!HHHHH", flags, 1, answers, authority, additional + opt)


def fitted(rendered: RenderedAnswer, head: int, room: int, *, turn: int) -> tuple[bytes, bytes]:
    """Return flags with counts, and the records from record *turn* on; all but the glue fit into *room* octets.

    Glue that does not fit is left out without TC (RFC 2181, section 9).
    """
    if rendered.size <= room or rendered.glue is None:
        return rendered.heads[head], rendered.body(turn) + rendered.tail
    number, glue = rendered.glue.fitting(room - rendered.size_without_glue, turn=turn, offsets=rendered.offsets)
    authority = rendered.tail[: len(rendered.tail) - len(rendered.glue.whole)]
    return _heads(rendered.flags, *rendered.section_counts, number)[head], rendered.body(turn) + authority + glue


def cut(rendered: RenderedAnswer, head: int, room: int, *, start: int, drawn: int) -> tuple[bytes, bytes]:
    """Return flags with TC and counts, and as many whole records as fit into *room* octets, without glue.

    They are the records from record *start* on, in an order that begins with any of them, as the random number *drawn*
    says. Spares are among them only if all others are.
    """
    aliases = rendered.aliases[: sum(end <= room for end in accumulate(map(len, rendered.aliases)))]
    aliases_blob, number = b"".join(aliases), 0
    offsets, blob = rendered.offsets, rendered.blob
    if len(aliases) == len(rendered.aliases):
        last = offsets[start] + room - len(aliases_blob)  # a record that ends behind this offset does not fit
        number = bisect_right(offsets, last, start, start + rendered.records + 1) - 1 - start
    turn = start + drawn % max(1, number)
    records = aliases_blob + blob[offsets[turn] : offsets[start + number]] + blob[offsets[start] : offsets[turn]]
    spares = 0
    if number == rendered.records:
        spares = sum(end <= room - len(records) for end in accumulate(map(len, rendered.spares)))
    head_and_counts = _heads(rendered.flags | wire.TC, len(aliases) + number + spares, 0, 0)[head]
    return head_and_counts, b"".join((records, *rendered.spares[:spares]))
