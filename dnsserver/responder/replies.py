# SPDX-License-Identifier: Apache-2.0

"""What a query is answered and what from; and how the reply is written: a rendered answer, fitted to the query."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.message import wire
from dnsserver.message.edns import MAX_TCP_REPLY, UDP_SIZE, Error, opt_record, udp_limit
from dnsserver.message.query import Edns, Query
from dnsserver.message.rendering import RenderedAnswer, arc_start
from dnsserver.metrics.counters import Channel
from dnsserver.responder.answer_cache import CachedAnswers
from dnsserver.responder.clients import LocatedClient
from locator.state.snapshot import Snapshot

DRAWN_BITS = 30  # of a random number: the most that CPython computes with in one step

COPIED = wire.RD | wire.CD  # flags of the query

_FLAGS_AND_COUNTS = struct.Struct("!HHHHH")
_NOTHING: Mapping[str, UpstreamAnswer] = {}
_NO_ERRORS: Sequence[Sequence[Error]] = ((),)


class ReplyOptions(NamedTuple):
    """What differs from one server to the next in how queries are read and replies written, whatever is decided.

    Trusted forwarders may name a client in the EDNS option ``client_option``, and with ``proxy_protocol`` in a PROXY
    header. ``nsid`` is the server's identifier for clients that ask for it (RFC 5001), empty for none. UDP replies have
    at most ``max_udp_size`` octets.
    """

    client_option: int | None = None
    proxy_protocol: bool = False
    nsid: bytes = b""
    max_udp_size: int = UDP_SIZE


DEFAULT_OPTIONS = ReplyOptions()


class AnsweredQuery(Struct, frozen=True, eq=False, gc=False):
    """A query from *source* (a packed address), its reply, and what that was made from.

    ``reply`` is None if it needs to know what the upstream says about a name outside the zones, the ``target``.
    ``snapshot`` is the one that the answer was decided from, and ``known`` what the upstream says about other names, by
    name. If nothing was decided about the name, since the query is malformed, say, there is no snapshot, and perhaps
    no client.

    ``answer`` is that of the reply, None for a reply that only says why there is none. ``cached`` is what is remembered
    of the question, None if that is nothing. ``lasting``: the answer is likely to be asked for again.
    """

    query: Query
    source: bytes
    channel: Channel
    reply: bytes | None
    client: LocatedClient | None = None
    snapshot: Snapshot | None = None
    answer: RenderedAnswer | None = None
    cached: CachedAnswers | None = None
    lasting: bool = False
    known: Mapping[str, UpstreamAnswer] = _NOTHING

    @property
    def target(self) -> str:
        """The name outside the zones that the reply waits for, in lower case."""
        return self._outside_target[0]

    @property
    def namespace(self) -> str:
        """The namespace of the Service in the question, for which the upstream is asked."""
        return self._outside_target[1]

    @property
    def _outside_target(self) -> tuple[str, str]:
        assert self.answer is not None
        assert self.answer.outside_target is not None
        return self.answer.outside_target


class ReplyWriter:
    """Writes replies, rotated by random numbers that *draw* returns, of so many bits.

    ``common_errors`` are the extended errors in every reply.
    """

    def __init__(self, draw: Callable[[int], int], options: ReplyOptions) -> None:
        self._nsid = options.nsid
        self.max_udp_size = options.max_udp_size
        self.common_errors: tuple[Error, ...] = ()
        self._draw = draw

    def write(
        self, answer: RenderedAnswer, query: Query, client: LocatedClient, ignored: Error | None, *, is_udp: bool
    ) -> tuple[bytes, bool]:
        """Return the reply, and whether it is truncated: id and question as they came, the records, the OPT record.

        *ignored* is the error for a client subnet that is ignored, None if there is none. A reply that is too large
        loses, in this order: additional records, that error, the text of the answer's own error, and at last records,
        with TC.
        """
        edns, octets, question = query.edns, query.octets, query.question
        end = wire.HEADER + len(question)
        limit = udp_limit(edns, self.max_udp_size) if is_udp else MAX_TCP_REPLY
        flags, truncated = answer.flags | query.flags & COPIED, False
        for own in _NO_ERRORS if ignored is None and answer.error is None else _errors(answer.error, ignored):
            errors = (*own, *self.common_errors) if own else self.common_errors
            opt = self.opt(edns, dependent=answer.dependent, errors=errors) if edns else b""
            room = limit - end - len(opt)
            if answer.required_size <= room:
                counts, records = answer.fitted(room, turn=self._draw(DRAWN_BITS) % (answer.records or 1))
                break
        else:  # ``room`` is beside the smallest OPT record: ``_errors`` yields the fewest octets last
            start = arc_start(client.octets, question, answer.records)
            counts, records = answer.cut(room, start=start, drawn=self._draw(DRAWN_BITS))
            flags, truncated = flags | wire.TC, True
        answers, authority, additional = counts
        head = _FLAGS_AND_COUNTS.pack(flags, 1, answers, authority, additional + (edns is not None))
        return b"".join((octets[:2], head, octets[wire.HEADER : end], records, opt)), truncated

    def error(self, query: Query, rcode: int, errors: Sequence[Error]) -> bytes:
        """Return a reply without records, but for an OPT record if the *query* has one; it repeats the question."""
        opt = self.opt(query.edns, dependent=False, rcode=rcode, errors=errors)
        flags = wire.QR | query.flags & (wire.OPCODE | wire.RD | wire.CD) | rcode & 15
        head = _FLAGS_AND_COUNTS.pack(flags, 1 if query.question else 0, 0, 0, 1 if opt else 0)
        question = query.octets[wire.HEADER : query.end] if query.question else b""
        return b"".join((query.octets[:2], head, question, opt))

    def opt(self, edns: Edns | None, *, dependent: bool, rcode: int = wire.NOERROR, errors: Sequence[Error]) -> bytes:
        """Return the OPT record of a reply: ``opt_record`` with what this server alone knows.

        ``NativeFeed`` gives native code those to repeat.
        """
        return opt_record(edns, nsid=self._nsid, dependent=dependent, rcode=rcode, errors=errors)


def _errors(own: Error | None, ignored: Error | None) -> Iterator[Sequence[Error]]:
    """Yield the extended errors that a reply may have, from the most to the fewest octets."""
    first = (own,) if own is not None else ()
    if ignored is not None:
        yield *first, ignored
    yield first
    if own is not None:
        code, _ = own
        yield ((code, ""),)
