"""Rendered answers: the part of a reply behind the question, as bytes that are rotated and truncated without packing.

The only exception is glue whose owner names point into the rotated records: ``glue`` writes it for each reply.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from functools import lru_cache
from itertools import accumulate, islice
from operator import length_hint

from dnsserver.message import wire
from dnsserver.message.glue import Glue
from dnsserver.message.rotation import Rotations


class RenderedAnswer:
    """An answer as bytes, ready to follow a header and a question.

    What a reply consists of:

    - ``heads``: flags and counts, by ``head_index``. ``section_counts``: records in the answer and authority sections.
    - ``aliases``: the CNAME records that come before all other records.
    - ``blob``: the other answer records, twice in a row, and ``offsets``: the offset of each. So every rotation is one
      slice of ``length`` octets.
    - ``spares``: the answer records that come after all those that rotate.
    - ``tail``: the spares, the authority section and all glue; ``glue`` shortens the latter if it does not fit.
    - ``size``: octets of aliases, one blob and tail; ``size_without_glue``: the same without glue.
    - ``serial_at``: offset of the SOA's serial in ``tail``, 0 without SOA. ``stamp`` updates the serial.
    - ``dependent``: whether the answer depends on the client's location. ``error``: its extended error, or None.
    - ``plain``: whether a reply needs nothing but a rotation and an OPT record.

    What belongs to it:

    - ``weight``: its approximate memory use in octets.
    - ``tally``: the number of its ``Tally``, under which it is counted.
    - ``outside_target``: the name that the upstream must be asked for before there is a reply; None if there is none.
    - ``turns``: yields the index of the record that the next reply begins with, ``cut_turns`` the same for truncated
      replies. When one runs out, ``take_turn`` or ``take_cut_turn`` starts another.
    """

    __slots__ = (
        "aliases", "blob", "cut_turns", "dependent", "error", "flags", "glue", "heads", "length", "offsets",
        "outside_target", "plain", "records", "rotation", "section_counts", "serial_at", "size", "size_without_glue",
        "spares", "tail", "tally", "turns", "weight",
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
        outside_target: str | None = None,
        tally: int = 0,
        rotations: Rotations,
    ) -> None:
        self.flags = flags
        self.aliases = tuple(aliases)
        self.records = len(answers)
        self.blob = b"".join(answers) * 2
        self.length = len(self.blob) // 2
        self.offsets = tuple(accumulate(map(len, (*answers, *answers)), initial=0))
        self.spares = tuple(spares)
        self.tail = b"".join((*spares, *authority, glue.whole if glue is not None else b""))
        self.glue = glue
        self.section_counts = (len(self.aliases) + len(answers) + len(spares), len(authority))
        self.heads = _heads(flags, *self.section_counts, glue.count if glue is not None else 0)
        self.serial_at = serial_at
        self.size = sum(map(len, self.aliases)) + self.length + len(self.tail)
        self.size_without_glue = self.size if glue is None else self.size - len(glue.whole)
        self.dependent = dependent
        self.error = error
        self.outside_target = outside_target
        self.plain = not aliases and error is None
        self.tally = tally
        self.rotation = rotations.of(len(answers))
        self.turns = self.rotation.first_turns()
        self.cut_turns: Iterator[int] | None = None
        self.weight = 1000 + self.size + self.length + 40 * self.records + (glue.weight if glue is not None else 0)

    def take_turn(self) -> int:
        """Return the index of the record that the next whole reply begins with."""
        turn = next(self.turns, None)
        if turn is None:
            self.turns = self.rotation.more_turns()
            turn = next(self.turns)
        return turn

    def take_cut_turn(self) -> int:
        """Return the index of the record that the next truncated reply begins with.

        Truncated replies have their own turns. Otherwise a client that asks again over TCP would take two turns of
        one round.
        """
        turn = None if self.cut_turns is None else next(self.cut_turns, None)
        if turn is None:
            self.cut_turns = self.rotation.more_turns()
            turn = next(self.cut_turns)
        return turn

    def rest_of_rounds(self) -> tuple[list[int], list[int]]:
        """Return the records that the next whole, and the next truncated, replies begin with, to the round's end."""
        return self._rest(self.turns), self._rest(self.cut_turns or iter(()))

    def _rest(self, turns: Iterator[int]) -> list[int]:
        return list(islice(copy(turns), length_hint(turns) % max(1, self.records)))

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
    """Return flags with counts, and the records from record *turn* on that fit into *room* octets.

    Glue that does not fit is left out without TC. If the answer itself does not fit, the reply has TC, as many whole
    records as fit, and no glue (RFC 2181, section 9).
    """
    if rendered.size <= room:
        return rendered.heads[head], rendered.body(turn) + rendered.tail
    if rendered.size_without_glue > room or rendered.glue is None:
        return _cut(rendered, head, room, turn)
    number, glue = rendered.glue.fitting(room - rendered.size_without_glue, turn=turn, offsets=rendered.offsets)
    authority = rendered.tail[: len(rendered.tail) - len(rendered.glue.whole)]
    return _heads(rendered.flags, *rendered.section_counts, number)[head], rendered.body(turn) + authority + glue


def _cut(rendered: RenderedAnswer, head: int, room: int, turn: int) -> tuple[bytes, bytes]:
    """Return flags with TC and counts, and as many whole records as fit; spares only if all others do."""
    aliases = rendered.aliases[: sum(end <= room for end in accumulate(map(len, rendered.aliases)))]
    aliases_blob, fit = b"".join(aliases), 0
    offsets, start = rendered.offsets, rendered.offsets[turn]
    if len(aliases) == len(rendered.aliases):
        last = start + room - len(aliases_blob)  # a record that ends behind this offset does not fit
        fit = bisect_right(offsets, last, turn, turn + rendered.records + 1) - 1 - turn
    records = aliases_blob + rendered.blob[start : offsets[turn + fit]]
    spares = 0
    if fit == rendered.records:
        spares = sum(end <= room - len(records) for end in accumulate(map(len, rendered.spares)))
    head_and_counts = _heads(rendered.flags | wire.TC, len(aliases) + fit + spares, 0, 0)[head]
    return head_and_counts, b"".join((records, *rendered.spares[:spares]))
