# SPDX-License-Identifier: Apache-2.0

"""Answers a query: recognises it, or else judges, resolves, renders and remembers it.

The fast path parses nothing. It looks up, each in a dictionary:

- the flags and counts, in ``HEAD_INDEXES``
- the octets after the question (the EDNS), in ``EdnsProfiles``
- the packet's source, and the client that a forwarder names, in ``Clients``
- the question in lower case, in ``AnswerCache``
- if the answer depends on the client: its location, then its values of the constraint's label keys

Whatever is missing, ``Responder._answer_parsed`` computes and remembers. Whole packets are never
remembered: behind a forwarder, hardly two are alike.

``Responder.compute`` returns the same reply and uses nothing remembered. Tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec import Struct

from dnsserver import names
from dnsserver.answers.decision import Authority, UpstreamAnswer
from dnsserver.answers.resolution import endpoint_names, resolve
from dnsserver.message import wire
from dnsserver.message.edns import MAX_TCP_REPLY, UDP_SIZE, Error, error_reply
from dnsserver.message.proxy_protocol import SIGNATURE, read_header_untrusted
from dnsserver.message.rendering import RenderedAnswer, head_index
from dnsserver.message.wire import Unreadable, question_untrusted
from dnsserver.metrics.counters import ADDRESS, BLOCK, NOBODYS, OTHER, Channel, Counts, Tally, counted_type
from dnsserver.names import meaning_of
from dnsserver.responder.answer_cache import AnswerCache
from dnsserver.responder.clients import UNNAMED_CLIENT, Clients
from dnsserver.responder.feeding import put_answer, put_query
from dnsserver.responder.judging import (
    Question,
    Refusal,
    accept_untrusted,
    decided_untrusted,
    is_query,
    judge_untrusted,
)
from dnsserver.responder.native_feed import AnswerTable, NativeFeed
from dnsserver.responder.recognition import (
    HEAD_INDEXES,
    NO_EDNS,
    SUBNET_ADDRESS_AT,
    SUBNET_CONTENT_AT,
    WITH_OPT,
    EdnsProfiles,
)
from dnsserver.responder.rendered_decisions import (
    DecisionRenderer,
    belongs_to_source_object,
    distinguishing_values,
    share_key,
)
from dnsserver.responder.replies import DRAWN_BITS, Envelope, PendingReply, written
from locator.bounded_map import BoundedMap
from locator.ip import Network, address_text, host_network, plain_address
from locator.model import ZONE, Location
from locator.places.address_book import UNKNOWN_PLACE, Place
from locator.state.snapshot import Snapshot, answers_differ

MAX_PASSING = 8192  # questions, about a megabyte
# Those of the methods of ``Responder``.
Answer = Callable[..., "bytes | PendingReply | None"]
Finish = Callable[[PendingReply, UpstreamAnswer], "bytes | PendingReply"]
MAX_FINISHED = 4 << 20  # octets of answers with what the upstream said
MAX_PLACES = 65_536  # most addresses share the few places of their node
NOT_READY = (wire.EDE_NOT_READY, "the cluster has not been read yet")
_NOTHING: Mapping[str, UpstreamAnswer] = {}
STALE = (wire.EDE_STALE, "")  # the code is enough, and a text would take room from records


class Inquiry(Struct, frozen=True, eq=False, gc=False):
    """What the Decision on a query is made from.

    ``labels`` are those of the queried name in lower case. ``client`` is None if a trusted forwarder does not name it.
    """

    labels: tuple[bytes, ...]
    qtype: int
    client: Network | None
    place: Place
    snapshot: Snapshot


class Responder:
    """Answers queries from the last published snapshot, and with SERVFAIL before the first.

    Trusted forwarders may name a client in the EDNS option *client_option*, and with *proxy_protocol*
    in a PROXY header. *nsid* is the server's identifier for clients that ask for it (RFC 5001), empty
    for none. UDP replies have at most *max_udp_size* octets. *draw* returns a random number of so many bits; it decides
    which record a reply begins with.

    *native* is native code that repeats answers; ``learn`` makes them known to it. ``passing`` is the number of
    answers that are not worth that: most names that do not exist are asked for only once.

    Each responder has its own memory, so several can answer from one snapshot.
    """

    def __init__(
        self,
        authority: Authority,
        counts: Counts,
        *,
        draw: Callable[[int], int],
        client_option: int | None = None,
        proxy_protocol: bool = False,
        nsid: bytes = b"",
        max_udp_size: int = UDP_SIZE,
        native: AnswerTable | None = None,
    ) -> None:
        self._authority = authority
        self._counts = counts
        self._client_option = client_option
        self._proxy_protocol = proxy_protocol
        self._snapshot: Snapshot | None = None
        self._draw = draw
        self._renderer = DecisionRenderer(authority, counts)
        self._clients = Clients()
        self._profiles = EdnsProfiles(nsid, max_udp_size)
        self._cache = AnswerCache()
        self._finished: BoundedMap[object, RenderedAnswer] = BoundedMap(MAX_FINISHED, attrgetter("weight"))
        make_names = partial(endpoint_names, pod_names=authority.endpoint_pod_names)
        self._names_of = partial(self._cache.names_of, make=make_names)
        # The dictionaries of the fast path. Each is always the same object.
        self._known_profiles = self._profiles.known
        self._blocks = self._clients.blocks
        self._current, self._unlimited = self._cache.current, self._cache.unlimited
        self._origins: BoundedMap[Place, int] = BoundedMap(MAX_PLACES)
        self._known_origins = self._origins.recent
        self.passing = 0
        self._asked: BoundedMap[bytes, bool] = BoundedMap(MAX_PASSING)
        self._feed: NativeFeed | None = None
        if native is not None:
            self._feed = NativeFeed(native, counts, origin_of=self._origin, put_again=self._put_again)
            counts.before_reading.append(self._feed.count)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that it answers from, None before the first."""
        return self._snapshot

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from *snapshot* from now on."""
        before, self._snapshot = self._snapshot, snapshot
        if before is not None and before.serial == snapshot.serial and not answers_differ(before, snapshot):
            return  # only findings, numbers of objects, or endpoints that are not ready changed
        self._clients.follow(snapshot.addresses)
        self._cache.publish(snapshot)
        self._finished.clear()
        if self._feed is not None:
            self._feed.publish(snapshot)

    def mark_stale(self, stale: bool) -> None:
        """Mark every answer from now on as stale, or no longer (RFC 8914, section 4.4)."""
        if self._profiles.set_common_errors((STALE,) if stale else ()) and self._feed is not None:
            self._feed.forget_edns()

    def learn(self, query: bytes, source: bytes) -> None:
        """Make known to the native code how to repeat what ``answer`` has just answered."""
        if self._feed is not None and self._snapshot is not None:
            put_query(self._feed, query, source, self._clients, self._profiles, self._cache)

    def inquiry(self, query: bytes, source: bytes, *, header_client: bytes | None) -> Inquiry | None:
        """Return what ``answer`` decides a query from at this moment; None if it decides nothing about its name."""
        parsed = decided_untrusted(query, client_option=self._client_option) if is_query(query) else None
        if parsed is None or self._snapshot is None:
            return None
        client = self._clients.client_of(source, parsed.edns, header_client=header_client)
        place = self._clients.place_of(source, parsed.edns, header_client=header_client, remember=True)
        return Inquiry(parsed.labels, parsed.qtype, client, place, self._snapshot)

    def tap(self, answer: Answer, finish: Finish, services: frozenset[str] | None) -> None:
        """Let *answer* and *finish* stand in for the methods of these names until ``untap``: nobody else pays for them.

        Meanwhile the native code leaves to them all queries about *services* (``namespace/name``); None: all queries.
        """
        vars(self).update(answer=answer, finish=finish)
        if self._feed is not None:
            self._feed.leave_to_python(services)

    def untap(self) -> None:
        """Undo ``tap``."""
        del self.answer, self.finish
        if self._feed is not None:
            self._feed.leave_to_python(frozenset())

    def may_send_proxy_header(self, source: bytes) -> bool:
        """Whether data from *source* (a packed address) may begin with a PROXY header.

        Before the first snapshot it may from any source: trusted forwarders are not known yet, and
        no answer depends on the client.
        """
        return self._proxy_protocol and (self._snapshot is None or self._clients.source(source).forwarder)

    def may_take_all(self, source: bytes) -> bool:
        """Whether one *source* (a packed address) may have all connections: a trusted forwarder, or a node."""
        return self._clients.asks_for_many(source)

    def answer(
        self, query: bytes, source: bytes, channel: Channel, *, header_client: bytes | None = None
    ) -> bytes | PendingReply | None:
        """Return the reply to *query* from *source* (a packed address), or None to stay silent.

        *header_client* is the packed address from a PROXY header that the caller has removed, empty if the
        header had none. It is None without a header; then a datagram may still begin with one.

        A reply that needs to know what the upstream says about a name outside the zones is a ``PendingReply``.
        Never raises, whatever *query* holds: an unreadable query gets FORMERR when its header is
        whole, and silence otherwise (RFC 1035, section 4.1.1).
        """
        head = HEAD_INDEXES.get(query[2:12])
        # A zero octet inside a label makes this end too early. No remembered question equals such a prefix, so the
        # query is parsed.
        end = query.find(b"\0", wire.HEADER) + 5
        if head is None or self._snapshot is None:
            return self._answer_parsed(query, source, channel, header_client=header_client)
        subnet_address = b""
        if head < WITH_OPT:
            if len(query) != end:
                return self._answer_parsed(query, source, channel, header_client=header_client)
            profile = NO_EDNS
        else:
            known = self._known_profiles.get(query[end : end + SUBNET_ADDRESS_AT])
            if known is None:
                return self._answer_parsed(query, source, channel, header_client=header_client)
            profile = known
            if profile.octets:
                subnet_address = query[end + SUBNET_ADDRESS_AT :]
            if len(subnet_address) != profile.octets:
                return self._answer_parsed(query, source, channel, header_client=header_client)
        places = self._clients.places
        place = places.get(source) or self._clients.source(source)
        if place.forwarder:
            # A PROXY header overrides the client subnet, even if it names nobody.
            named = subnet_address if header_client is None else header_client
            if not named:
                return self._answer_parsed(query, source, channel, header_client=header_client)
            client, ignored = named, b""
            if profile.host or header_client is not None:
                place = places.get(named) or self._clients.locate(named)
            else:
                block = self._blocks.get(query[end + SUBNET_CONTENT_AT :])
                if block is None:
                    return self._answer_parsed(query, source, channel)
                place = block
        else:
            client, ignored = source, subnet_address  # whom an untrusted source names does not count
        question = query[wire.HEADER : end]
        folded = question.lower()
        answer: Any = self._current.get(folded) or self._unlimited.get(folded) or self._cache.recall(folded)
        if answer.__class__ is tuple:  # (location -> values, values -> answer, DependentAnswers): see ``Remembered``
            values = answer[0].get(place.location)
            answer = answer[1].get(values) or (values and answer[2].shared(values))
        if answer is None:
            answer = self._first_answer(query, end, folded, place.location, self._snapshot)
            if answer is None:
                return self._answer_parsed(query, source, channel, header_client=header_client)
        origin = self._known_origins.get(place)
        if origin is None:
            origin = self._origin(place)
            if place is UNKNOWN_PLACE:
                if client is subnet_address and not profile.host:
                    edns = profile.edns_of(client)
                    self._note_unlocated(self._clients.client_of(source, edns, header_client=None))
                else:  # told apart because it costs less
                    self._note_unlocated(host_network(plain_address(client)))
        opt = profile.opts[answer.dependent]
        limit = profile.limit if channel.is_udp else MAX_TCP_REPLY
        if ignored or not answer.plain or end + answer.size + len(opt) + len(subnet_address) > limit:
            error = self._ignored_client(source, ignored) if ignored else None
            client = plain_address(client)
            envelope = Envelope(query, end, head, profile, subnet_address, client, channel, origin, error)
            return self._reply(answer, envelope, place.location)
        # The common case of ``written``, inlined: a call would cost as much as all of this.
        channel.counts[origin + answer.tally] += 1
        start = answer.offsets[self._draw(DRAWN_BITS) % answer.turns]
        body = answer.blob[start : start + answer.length]
        reply: bytes = b"".join((query[:2], answer.heads[head], question, body, answer.tail, opt, subnet_address))
        return reply

    def finish(self, pending: PendingReply, said: UpstreamAnswer) -> bytes | PendingReply:
        """Return the pending reply with what the upstream has *said* about its target.

        It is pending again if the aliases lead to another name outside the zones: at most ``MAX_ALIASES`` times. What
        lies in the zones is answered from the present snapshot, for the client.
        """
        known = {**pending.known, pending.target: said}
        return self._reply(self._finished_answer(pending, known), pending.envelope, pending.location, known)

    def _finished_answer(self, pending: PendingReply, known: Mapping[str, UpstreamAnswer]) -> RenderedAnswer:
        """Return the remembered answer to the query of a pending reply, else compute it from what is *known* now."""
        assert self._snapshot is not None  # nothing is pending before the first
        labels, _ = question_untrusted(pending.envelope.query)
        for_all = (labels, pending.qtype, *known.values())
        here = (pending.location, *for_all)
        answer = self._finished.get(for_all) or self._finished.get(here)
        if answer is None:
            decision = resolve(
                meaning_of(labels, self._authority.zones),
                pending.qtype,
                self._snapshot,
                pending.location,
                self._authority,
                names_of=self._names_of,
                outside=known.get,
            )
            answer = self._renderer.render(labels, decision)
            self._finished[here if decision.client_keys else for_all] = answer
        return answer

    def compute(
        self, query: bytes, source: bytes, channel: Channel, *, header_client: bytes | None = None
    ) -> bytes | PendingReply | None:
        """Return what ``answer`` returns, except for the rotation, and use nothing remembered."""
        return self._answer_parsed(query, source, channel, header_client=header_client, remember=False)

    def _answer_parsed(
        self,
        query: bytes,
        source: bytes,
        channel: Channel,
        *,
        header_client: bytes | None = None,
        remember: bool = True,
    ) -> bytes | PendingReply | None:
        """Answer a query by parsing it: the slow path, for whatever ``answer`` did not find remembered.

        Without *remember*, nothing remembered is used, and nothing is added.
        """
        if (
            header_client is None
            and channel.is_udp
            and query.startswith(SIGNATURE)
            and self.may_send_proxy_header(source)
        ):
            return self._behind_header(query, source, channel, remember=remember)
        if not is_query(query):
            self._counts.silent += 1
            return None
        judged = judge_untrusted(query, self._authority.zones, client_option=self._client_option)
        if isinstance(judged, Refusal):
            return self._refuse(query, judged, channel)
        parsed, question = judged.query, judged.question
        if self._snapshot is None:
            refusal = Refusal(wire.SERVFAIL, parsed.end, parsed.edns, parsed.qtype)
            return self._refuse(query, refusal, channel, errors=(NOT_READY,))
        place = self._clients.place_of(source, parsed.edns, header_client=header_client, remember=remember)
        edns, ignored = parsed.edns, b""
        if place is UNNAMED_CLIENT and question.meaning.shape != names.APEX:  # the apex is the same for all clients
            self._counts.unnamed_clients.note(address_text(source))
        probe = edns is not None and edns.probe  # a query, but of no client
        self._counts.probes += probe
        subnet_address = edns.subnet.address if edns is not None and edns.subnet is not None else b""
        if edns is not None and edns.names_client and not self._clients.source(source).forwarder:
            ignored = edns.option or subnet_address
        envelope = Envelope(
            query,
            parsed.end,
            head_index(int.from_bytes(query[2:4]), opt=edns is not None),
            self._profiles.of(query, parsed, remember=remember),
            subnet_address,
            self._clients.named(source, edns, header_client=header_client),
            channel,
            NOBODYS if probe else self._origin(place),
            self._ignored_client(source, ignored, counted=not probe) if ignored else None,
        )
        if place is UNKNOWN_PLACE and not probe:
            self._note_unlocated(self._clients.client_of(source, edns, header_client=header_client))
        answer = self._answer_to(question, place.location, self._snapshot, remember=remember)
        return self._reply(answer, envelope, place.location)

    def _behind_header(
        self, query: bytes, source: bytes, channel: Channel, *, remember: bool
    ) -> bytes | PendingReply | None:
        """Answer the query after a datagram's PROXY header. A malformed header gets no reply."""
        try:
            header = read_header_untrusted(query)
        except Unreadable:
            header = None
        if header is None:
            self._counts.malformed_headers[channel.proto] += 1
            self._counts.silent += 1
            return None
        reply = self.answer if remember else self.compute
        return reply(query[header.size :], source, channel, header_client=header.client)

    def _ignored_client(self, source: bytes, client: bytes, *, counted: bool = True) -> Error:
        """Count a query that names *client*, an address or the start of one; return the error for its reply.

        A source that names itself, or a block that it is in, does not speak for others.
        """
        text = address_text(source)
        if counted:
            self._counts.ignored_clients.note(text, b"" if source.startswith(client) else client)
        return wire.EDE_OTHER, f"client subnet ignored: {text} is no trusted forwarder"

    def _note_unlocated(self, client: Network | None) -> None:
        """Count a query whose *client* nothing locates."""
        assert client is not None  # nobody is named: that is ``UNNAMED_CLIENT``
        self._counts.unlocated_clients.add(ADDRESS if client.is_host else BLOCK, client.address)

    def _origin(self, place: Place) -> int:
        """Return the number of the ``Origin`` of clients at *place*."""
        if place is UNKNOWN_PLACE:  # not among the known ones: ``answer`` then counts its range, too
            return self._counts.origin(place.located_by, "")
        origin = self._origins.get(place)
        if origin is None:
            zone = place.location.value(ZONE) or ""
            origin = self._origins[place] = self._counts.origin(place.located_by, zone)
        return origin

    def _first_answer(
        self, query: bytes, end: int, folded: bytes, location: Location, snapshot: Snapshot
    ) -> RenderedAnswer | None:
        """Return the answer to a query of which all but question and location is recognised, None if it must be parsed.

        The question ends at *end* if it is right. *folded* is it in lower case.
        """
        remembered = self._current.get(folded)
        if isinstance(remembered, tuple) and (answer := remembered[2].get(location)) is not None:
            return answer
        question = accept_untrusted(query, end, self._authority.zones)
        return None if question is None else self._computed(question, location, snapshot, remember=True)

    def _put_again(self, question: bytes, location: Location) -> None:
        """Compute the answer to a question that was asked before, and make it known; nobody asked now."""
        accepted = accept_untrusted(bytes(wire.HEADER) + question, wire.HEADER + len(question), self._authority.zones)
        if accepted is not None and self._snapshot is not None:
            computed = self._counts.computed
            self._answer_to(accepted, location, self._snapshot, remember=True)
            self._counts.computed = computed  # which counts replies
            if self._feed is not None:
                put_answer(self._feed, question, location, self._cache)

    def _answer_to(
        self, question: Question, location: Location, snapshot: Snapshot, *, remember: bool
    ) -> RenderedAnswer:
        """Return the remembered answer to a question, else compute it."""
        if remember:
            remembered = self._current.get(question.folded) or self._cache.recall(question.folded)
            answer = remembered[2].get(location) if isinstance(remembered, tuple) else remembered
            if answer is not None:
                return answer
        return self._computed(question, location, snapshot, remember=remember)

    def _computed(
        self, question: Question, location: Location, snapshot: Snapshot, *, remember: bool
    ) -> RenderedAnswer:
        """Decide and render the answer to a question, and remember it if *remember*."""
        folded, cache = question.folded, self._cache
        same = self._same_for_other_zones(question, snapshot) if remember else None
        if same is not None and question.qtype in same:
            self._note_passing(folded)
            return same[question.qtype]
        self._counts.computed += 1
        names_of = self._names_of if remember else None
        decision = resolve(question.meaning, question.qtype, snapshot, location, self._authority, names_of=names_of)
        if not remember:
            return self._renderer.render(question.labels, decision)
        if decision.source_object is not None and belongs_to_source_object(decision):
            return cache.keep(
                folded,
                partial(self._renderer.render, question.labels, decision),
                source_object=decision.source_object,
                location=location,
                client_keys=decision.client_keys,
                distinguishing=distinguishing_values(decision),
                share_key=share_key(decision),
            )
        self._note_passing(folded)
        answer = self._renderer.render_unlimited(question.labels, decision)
        if same is not None and decision.answers and not decision.additional_records:
            same[question.qtype] = answer
        elif not decision.client_keys:
            cache.keep_unlimited(folded, answer)
        return answer

    def _same_for_other_zones(self, question: Question, snapshot: Snapshot) -> dict[int, RenderedAnswer] | None:
        """Return the answers, by type, to names that prefer a zone without an endpoint; None for any other name."""
        meaning, key = question.meaning, self._authority.zonal
        compiled = snapshot.services.get(meaning.service_key) if meaning.shape == names.PREFERRED else None
        if compiled is None or key is None:
            return None
        zonal = self._cache.zonal(compiled, key)
        return None if meaning.value in zonal.zones else zonal.others[meaning.zone]

    def _note_passing(self, question: bytes) -> None:
        """Count an answer that belongs to no Service, unless the question was asked before."""
        if self._feed is not None and self._asked.get(question) is None:
            self._asked[question] = True
            self.passing += 1

    def _refuse(self, query: bytes, refusal: Refusal, channel: Channel, *, errors: Sequence[Error] = ()) -> bytes:
        self._counts.computed += 1
        self.passing += 1
        label = OTHER if refusal.qtype is None else counted_type(refusal.qtype)
        channel.counts[self._counts.tally(Tally(label, refusal.rcode))] += 1
        return error_reply(
            query, refusal.rcode, end=refusal.end, edns=refusal.edns, nsid=self._profiles.nsid, errors=errors
        )

    def _reply(
        self,
        answer: RenderedAnswer,
        envelope: Envelope,
        location: Location,
        known: Mapping[str, UpstreamAnswer] = _NOTHING,
    ) -> bytes | PendingReply:
        if answer.outside_target is None:
            return written(answer, envelope, self._profiles, self._draw)
        return PendingReply(envelope, *answer.outside_target, location, known)
