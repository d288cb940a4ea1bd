"""Bytes in, bytes out: a query is recognised, or read, resolved and rendered, and then remembered.

Two memories make the fast path. By *what is asked*: the question's bytes, case folded, lead to
what a Service remembers or to an answer that hangs on the whole snapshot. By *what matters of
the place*: the client's values of the few label keys that the Service names lead to a rendered
answer. Whole packets are never remembered, since behind a forwarder hardly two are alike.

``Responder.compute`` is the oracle: the same reply without any memory.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from cachetools import LRUCache
from msgspec import Struct

from dnsserver import names
from dnsserver.answers.decision import ADDRESS_SIZES, LOOKED_UP, Authority, Decision
from dnsserver.answers.resolution import resolve
from dnsserver.message import wire
from dnsserver.message.edns import (
    MAX_TCP_REPLY,
    MIN_UDP_REPLY,
    Error,
    error_reply,
    opt_head,
    opt_record,
    udp_limit,
)
from dnsserver.message.proxy_protocol import SIGNATURE, read_header_untrusted
from dnsserver.message.records import (
    Host,
    Record,
)
from dnsserver.message.rendering import HEAD_BITS, Packer, RenderedAnswer, fitted, head_index, serial_offset
from dnsserver.message.wire import Edns, Query, Unreadable, question_labels, read_untrusted
from dnsserver.metrics.counters import OTHER, Channel, Counts, Tally, counted_type
from dnsserver.names import meaning_of
from dnsserver.responder.clients import UNNAMED_CLIENT, Clients
from locator.ip import address_text
from locator.model import Location
from locator.state.snapshot import CompiledService, Snapshot

MAX_PASSING = 16 << 20  # octets of answers about names of which there is no end: most do not exist
MAX_ANSWERS = 4096  # records rendered of one answer: more do not fit into any message
MAX_TERMS = 256  # lists of label keys for which a place remembers its values
MAX_SHAPES = 1024  # ways to write what follows a question; real clients and forwarders know a handful
MAX_PLACES = 1024  # answers to one question by the client's label values
MAX_QUESTIONS = 16  # remembered questions for each Service and address: types times zones, with room

# Types that get a place beside the Service; 65,000 others are one NODATA each and share a small memory.
REMEMBERED_TYPES = LOOKED_UP | {wire.CNAME, wire.ANY}

SUBNET_AT = 19  # octets from an OPT record's begin to the address of a client subnet that stands first in it
CONTENT_AT = 15  # and to the content of that option
NOT_READY = (wire.EDE_NOT_READY, "the cluster has not been read yet")
STALE = (wire.EDE_STALE, "")  # the code says it all, and a text would push records out

# Flags and counts of a plain query -> index of the reply's head; whatever else is set is read with care.
_HEADS: Mapping[bytes, int] = {
    struct.pack("!HHHHH", bits | ad, 1, 0, 0, opt): head_index(bits, opt=bool(opt))
    for bits in HEAD_BITS
    for ad in (0, 0x0020)
    for opt in (0, 1)
}


# What is remembered of a question: an answer for everybody, or the label keys that matter and the
# answers by the client's values of them.
Memory = RenderedAnswer | tuple[tuple[str, ...], dict[object, RenderedAnswer]]


class Shape(Struct, frozen=True):
    """What follows a question, but for the client subnet's address: what the reply needs of it.

    ``opts`` is the reply's OPT record without that address, for an answer that did not depend
    on the client and one that did. ``octets`` is how many octets of address make the message
    complete, ``host`` whether they are one host's.
    """

    edns: Edns | None
    limit: int
    opts: tuple[bytes, bytes]
    octets: int = 0
    host: bool = True


def shape_of(edns: Edns, *, nsid: bytes, errors: Sequence[Error] = ()) -> Shape:
    """Return the shape of a query with this OPT record, at a server of the name *nsid* with these *errors* to tell."""
    independent, dependent = (opt_head(edns, nsid=nsid, dependent=each, errors=errors) for each in (False, True))
    subnet = edns.subnet
    octets, host = (len(subnet.address), subnet.host) if subnet is not None else (0, True)
    return Shape(edns, udp_limit(edns), (independent, dependent), octets, host)


_NO_EDNS = Shape(None, MIN_UDP_REPLY, (b"", b""))


class PendingReply(Struct, frozen=True, eq=False):
    """A reply that waits for what a name elsewhere has: *target*, without a final dot, and a type.

    The rest is what ``Responder.finish`` makes the reply of.
    """

    target: str
    qtype: int
    query: bytes
    end: int
    head: int
    shape: Shape
    address: bytes
    channel: Channel
    alias: RenderedAnswer


def _lasting(decision: Decision) -> bool:
    """Whether an answer is worth a place of its own: there are many more names and types without records than with."""
    if decision.qtype not in REMEMBERED_TYPES or decision.meaning is None:
        return False
    has_records = bool(decision.answers or decision.aliases or decision.terms)
    common = decision.qtype in ADDRESS_SIZES and decision.service is not None
    return has_records or common or decision.meaning.shape == names.SERVICE


def _passing() -> LRUCache[bytes, RenderedAnswer]:
    return LRUCache(MAX_PASSING, lambda rendered: rendered.weight)


class Responder:
    """Answers queries from the snapshot published last; SERVFAIL before the first.

    *client_option* is the EDNS option in which trusted forwarders may name a client, *proxy_protocol*
    whether they may by the PROXY protocol's header; *nsid* what names this server to those who ask
    (RFC 5001), empty for nothing. What is remembered hangs on the snapshots published: a snapshot
    belongs to one responder.
    """

    def __init__(
        self,
        authority: Authority,
        counts: Counts,
        *,
        client_option: int | None = None,
        proxy_protocol: bool = False,
        nsid: bytes = b"",
    ) -> None:
        self._authority = authority
        self._counts = counts
        self._client_option = client_option
        self._proxy_protocol = proxy_protocol
        self._nsid = nsid
        self._snapshot: Snapshot | None = None
        self._clients = Clients()
        self._places, self._blocks = self._clients.places, self._clients.blocks
        self._services: Mapping[str, CompiledService] = {}
        self._serial = b""
        self._located = counts.located
        self._owners: dict[bytes, str] = {}
        self._index: dict[bytes, Memory] = {}
        self._passing = _passing()
        self._shapes: dict[bytes, Shape] = {}
        self._standing: tuple[Error, ...] = ()  # what every answer tells
        self._turn = 0

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from *snapshot* from now on."""
        self._snapshot = snapshot
        self._clients.follow(snapshot.addresses)
        self._services = snapshot.services
        self._serial = struct.pack("!I", snapshot.serial & 0xFFFFFFFF)
        self._index = {}
        self._passing = _passing()

    def mark_stale(self, stale: bool) -> None:
        """Say with every answer from now on whether it may be old (RFC 8914, section 4.4)."""
        standing = (STALE,) if stale else ()
        if standing != self._standing:
            self._standing = standing
            self._shapes.clear()  # they hold the OPT record that goes with an answer

    def proxied(self, source: bytes) -> bool:
        """Whether a PROXY header may stand before what comes from *source* (a packed address).

        Before the first snapshot nobody knows who is trusted, and nobody's place matters.
        """
        return self._proxy_protocol and (self._snapshot is None or self._clients.source(source).forwarder)

    def answer(
        self, query: bytes, source: bytes, channel: Channel, *, client: bytes | None = None
    ) -> bytes | PendingReply | None:
        """Return the reply to *query* from *source* (a packed address), or None to stay silent.

        *client* is what a PROXY header said that was taken off before: a packed address, or empty
        where it named none. None if there was none; then a datagram may still begin with one.

        A reply that needs to know of a name elsewhere is ``PendingReply`` for it. Never raises,
        whatever *query* holds: a query that cannot be read gets FORMERR when its header is
        whole, and silence otherwise (RFC 1035, section 4.1.1).
        """
        head = _HEADS.get(query[2:12])
        # A label that holds a zero octet makes this end too early: such a question is never remembered.
        end = query.find(b"\0", wire.HEADER) + 5
        if head is None or self._snapshot is None:
            return self._read(query, source, channel, client=client)
        address = b""
        if head < 4:
            if len(query) != end:
                return self._read(query, source, channel, client=client)
            shape = _NO_EDNS
        else:
            known = self._shapes.get(query[end : end + SUBNET_AT])
            if known is None:
                return self._read(query, source, channel, client=client)
            shape = known
            if shape.octets:
                address = query[end + SUBNET_AT :]
            if len(address) != shape.octets:
                return self._read(query, source, channel, client=client)
        place = self._places.get(source) or self._clients.source(source)
        if place.forwarder:
            named = address if client is None else client
            if not named:
                return self._read(query, source, channel, client=client)
            if shape.host or client is not None:
                place = self._places.get(named) or self._clients.locate(named)
            else:
                block = self._blocks.get(query[end + CONTENT_AT :])
                if block is None:
                    return self._read(query, source, channel)
                place = block
        question = query[wire.HEADER : end]
        folded = question.lower()
        found: Any = self._index.get(folded) or self._recall(folded)
        if found.__class__ is tuple:
            found = found[1].get(place.location.memory.get(found[0]))
        if found is None:
            return self._read(query, source, channel, client=client)
        self._located[place.located_by] += 1
        opt = shape.opts[found.dependent]
        limit = shape.limit if channel.limited else MAX_TCP_REPLY
        if not found.plain or end + found.size + len(opt) + len(address) > limit:
            return self._reply(found, query, end, head, shape, address, channel)
        # The common case of ``_written``, in line: a call costs as much as all of this.
        channel.counts[found.tally] += 1
        turn = found.turn
        start = found.offsets[turn]
        found.turn = turn + 1 if turn + 1 < found.records else 0
        body = found.blob[start : start + found.length]
        reply: bytes = b"".join((query[:2], found.heads[head], question, body, found.tail, opt, address))
        return reply

    def finish(self, waiting: PendingReply, found: Sequence[Record] | None) -> bytes:
        """Return the reply that waited, with what was *found*: aliases, then records of the type.

        Without anything found, the alias alone: its own name and where it leads are known.
        """
        alias = waiting.alias
        if found:
            if alias.finished is None or alias.finished[0] is not found:  # else it was the same before
                alias.finished = found, self._finished(waiting, found)
            alias = alias.finished[1]
        return self._written(
            alias, waiting.query, waiting.end, waiting.head, waiting.shape, waiting.address, waiting.channel
        )

    def _finished(self, waiting: PendingReply, found: Sequence[Record]) -> RenderedAnswer:
        packer, alias = Packer(question_labels(waiting.query)), waiting.alias
        self._turn += 1
        return RenderedAnswer(
            flags=alias.flags,
            aliases=packer.aliases([*alias.elsewhere, *(each for each in found if each.rtype == wire.CNAME)]),
            answers=packer.records(each for each in found if each.rtype != wire.CNAME),
            tally=alias.tally,
            turn=self._turn,
        )

    def compute(
        self, query: bytes, source: bytes, channel: Channel, *, client: bytes | None = None
    ) -> bytes | PendingReply | None:
        """Return what ``answer`` returns, but for the rotation, without looking at any memory."""
        return self._read(query, source, channel, client=client, remember=False)

    def _behind_header(
        self, query: bytes, source: bytes, channel: Channel, *, remember: bool
    ) -> bytes | PendingReply | None:
        """Answer what stands behind a datagram's PROXY header; who sends a malformed one gets no reply."""
        try:
            header = read_header_untrusted(query)
        except Unreadable:
            header = None
        if header is None:
            self._counts.malformed_headers[channel.proto] += 1
            self._counts.silent += 1
            return None
        reply = self.answer if remember else self.compute
        return reply(query[header.size :], source, channel, client=header.client)

    def _recall(self, question: bytes) -> Memory | None:
        """Return what is remembered of a question (case folded), from before this snapshot, too.

        Folding reaches the type, too: 65 to 90 fall together with 97 to 122. No type of either
        range has records in what is served, so both get the same NODATA.
        """
        compiled = self._services.get(self._owners.get(question, ""))
        memory: Memory | None = compiled.memory.get(question) if compiled is not None else None
        if memory is None:
            return self._passing.get(question)
        for rendered in memory[1].values() if isinstance(memory, tuple) else (memory,):
            rendered.stamp(self._serial)
        self._index[question] = memory
        return memory

    def _read(
        self, query: bytes, source: bytes, channel: Channel, *, client: bytes | None = None, remember: bool = True
    ) -> bytes | PendingReply | None:
        """Answer a query that was not recognised: judge it, the coarsest fault first."""
        if client is None and channel.limited and query.startswith(SIGNATURE) and self.proxied(source):
            return self._behind_header(query, source, channel, remember=remember)
        if len(query) < wire.HEADER or query[2] & 0x80:
            self._counts.silent += 1
            return None
        opcode = int.from_bytes(query[2:4]) & wire.OPCODE
        try:
            read = read_untrusted(query, client_option=self._client_option)
        except Unreadable as error:
            rcode = wire.NOTIMP if opcode else wire.FORMERR
            return self._refuse(query, rcode, channel, end=error.end, edns=error.edns)
        if opcode:
            return self._refuse(query, wire.NOTIMP, channel, end=read.end, edns=read.edns)
        if read.edns is not None and read.edns.version != 0:
            return self._refuse(query, wire.BADVERS, channel, end=read.end, edns=read.edns)
        meaning = meaning_of(read.labels, self._authority.zones) if read.qclass == wire.IN else None
        if meaning is None or read.qtype in (wire.AXFR, wire.IXFR):
            return self._refuse(query, wire.REFUSED, channel, end=read.end, edns=read.edns, qtype=read.qtype)
        if self._snapshot is None:
            return self._refuse(
                query, wire.SERVFAIL, channel, end=read.end, edns=read.edns, qtype=read.qtype, errors=(NOT_READY,)
            )
        place = self._clients.place_of(source, read.edns, client=client, remember=remember)
        if place is UNNAMED_CLIENT and meaning.shape != names.APEX:  # what a zone itself has is the same for everybody
            self._counts.nameless.note(address_text(source))
        self._counts.located[place.located_by] += 1
        question = query[wire.HEADER : read.end].lower()
        memory = (self._index.get(question) or self._recall(question)) if remember else None
        found = memory[1].get(place.location.memory.get(memory[0])) if isinstance(memory, tuple) else memory
        if found is None:
            self._counts.computed += 1
            decision = resolve(meaning, read.qtype, self._snapshot, place.location, self._authority)
            found = (
                self._remember(question, read, decision, place.location) if remember else self._render(read, decision)
            )
        shape = self._shape(query, read)
        head = head_index(int.from_bytes(query[2:4]), opt=read.edns is not None)
        address = read.edns.subnet.address if read.edns is not None and read.edns.subnet is not None else b""
        return self._reply(found, query, read.end, head, shape, address, channel)

    def _refuse(
        self,
        query: bytes,
        rcode: int,
        channel: Channel,
        *,
        end: int | None,
        edns: Edns | None,
        qtype: int | None = None,
        errors: Sequence[Error] = (),
    ) -> bytes:
        self._counts.computed += 1
        label = OTHER if qtype is None else counted_type(qtype)
        channel.counts[self._counts.tally(Tally(label, rcode))] += 1
        return error_reply(query, rcode, end=end, edns=edns, nsid=self._nsid, errors=errors)

    def _shape(self, query: bytes, read: Query) -> Shape:
        """Return the shape of what follows the question, and remember it where the address alone varies."""
        edns, tail = read.edns, query[read.end :]
        if edns is None:
            return _NO_EDNS
        subnet = edns.subnet
        shape = shape_of(edns, nsid=self._nsid, errors=self._standing)
        # Of whole octets, so that whatever the address is, no bits stand beyond its prefix.
        whole = subnet is not None and 0 < subnet.source == 8 * len(subnet.address)
        first = tail[11:13] == b"\0\x08" and tail[0:3] == b"\0\0\x29"
        if (whole and first and len(tail) == SUBNET_AT + shape.octets) or (len(tail) == 11 and subnet is None):
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[tail[:SUBNET_AT]] = shape
        return shape

    def _render(self, read: Query, decision: Decision) -> RenderedAnswer:
        """Return a decision as bytes: of more records than any message holds, some, in turn which."""
        selection = decision.selection if decision.answers or decision.terms else None
        tier = selection.key if selection is not None and selection.key is not None else ""
        outcome = selection.outcome if selection is not None else ""
        self._turn += 1
        answers, glue = decision.answers, decision.additional
        if len(answers) > MAX_ANSWERS:  # they are cut again, so glue never goes with them
            start = self._turn % len(answers)
            answers, glue = (*answers[start:], *answers[:start])[:MAX_ANSWERS], ()
        elsewhere = decision.elsewhere is not None and self._authority.looks_up(read.qtype)
        packer = Packer(read.labels)
        aliases = packer.aliases(decision.aliases)
        soa = packer.records(decision.authority)
        return RenderedAnswer(
            flags=wire.QR | wire.AA | decision.rcode,
            answers=packer.records(answers),
            aliases=aliases,
            authority=soa,
            glue=packer.glue(glue, answers),
            serial_at=serial_offset(soa[0]) if soa else 0,
            dependent=bool(decision.terms),
            error=decision.extended_error,
            elsewhere=decision.aliases if elsewhere else (),
            tally=self._counts.tally(Tally(counted_type(decision.qtype), decision.rcode, outcome, tier)),
            turn=self._turn,
        )

    def _remember(self, question: bytes, read: Query, decision: Decision, location: Location) -> RenderedAnswer:
        """Render a decision and keep it where all that it was made from is kept.

        What exists bounds the memory on Services and on the snapshot; everything else shares
        one small memory.
        """
        memory: MutableMapping[Any, Any] = self._passing
        hangs_on = decision.hangs_on if _lasting(decision) else None
        if isinstance(hangs_on, CompiledService):
            memory = hangs_on.memory
            if len(self._owners) >= MAX_QUESTIONS * (len(self._services) + len(self._places) + 64):
                self._owners.clear()  # names of Services that are long gone have filled it
            self._owners[question] = hangs_on.service.key
        elif hangs_on is not None:
            memory = self._index
        terms = decision.terms
        if not terms:
            memory[question] = found = self._render(read, decision)
            return found
        values = location.memory.get(terms)
        if values is None:
            if len(location.memory) >= MAX_TERMS:
                location.memory.clear()  # Services that asked for other keys have filled it
            values = location.memory[terms] = (location.known, *map(location.labels.get, terms))
        by_place: dict[object, RenderedAnswer] = memory.setdefault(question, (terms, {}))[1]
        if len(by_place) >= MAX_PLACES:
            by_place.clear()
        by_place[values] = found = self._shared(by_place, read, decision)
        return found

    def _shared(self, by_place: dict[object, RenderedAnswer], read: Query, decision: Decision) -> RenderedAnswer:
        """Places that get the same endpoints for the same reason share one answer, and one rotation."""
        selection = decision.selection
        if selection is None or decision.extended_error is not None:  # what differs by place alone
            return self._render(read, decision)
        key = (tuple(map(id, selection.endpoints)), selection.outcome, selection.key)
        found = by_place.get(key)
        if found is None:
            found = by_place[key] = self._render(read, decision)
        return found

    def _reply(
        self, found: RenderedAnswer, query: bytes, end: int, head: int, shape: Shape, address: bytes, channel: Channel
    ) -> bytes | PendingReply:
        """Put a reply together, unless it must wait for a name elsewhere."""
        if found.elsewhere:
            target = found.elsewhere[-1].data
            assert isinstance(target, Host)
            qtype = int.from_bytes(query[end - 4 : end - 2])
            return PendingReply(target.name, qtype, query, end, head, shape, address, channel, found)
        return self._written(found, query, end, head, shape, address, channel)

    def _written(
        self, found: RenderedAnswer, query: bytes, end: int, head: int, shape: Shape, address: bytes, channel: Channel
    ) -> bytes:
        """Put a reply together: id and question as they came, the records in their turn, the OPT."""
        channel.counts[found.tally] += 1
        error = found.error if shape.edns is not None else None
        opt = shape.opts[found.dependent] + address if error is None else self._opt(found, shape, address, error)
        room = (shape.limit if channel.limited else MAX_TCP_REPLY) - end - len(opt)
        if error is not None and found.size > room:  # its text goes before any record does
            room += len(opt)
            opt = self._opt(found, shape, address, (error[0], ""))
            room -= len(opt)
        cut = found.least > room
        counts, body = fitted(found, head, room, turn=found.take_turn(cut=cut))
        channel.truncated += cut
        return b"".join((query[:2], counts, query[wire.HEADER : end], body, opt))

    def _opt(self, found: RenderedAnswer, shape: Shape, address: bytes, error: Error) -> bytes:
        assert shape.edns is not None
        errors = (error, *self._standing)
        return opt_record(shape.edns, nsid=self._nsid, dependent=found.dependent, errors=errors, address=address)
