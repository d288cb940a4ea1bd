"""Rendered answers: everything of a reply behind the question, as bytes to rotate and to cut to size.

A reply is put together from slices of a rendered answer. Only glue whose owner names point into the rotated records is
written anew for a reply.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from dnsserver.message import wire
from dnsserver.message.glue import Glue
from dnsserver.message.records import Record
from dnsserver.message.rotation import Rotations


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
        self.turns, self.cut_turns = self.rotation.begin(), self.rotation.begin()

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
        turn = next(self.cut_turns, None)
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
