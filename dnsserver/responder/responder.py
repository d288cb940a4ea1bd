# SPDX-License-Identifier: Apache-2.0

"""Answers a query: reads it, locates its client, and looks up the answer, or else resolves, renders and remembers it.

Whole packets are never remembered: behind a forwarder, hardly two are alike. What is remembered is the answer to a
question, for the clients who get the same. A responder that remembers nothing yet gives the same replies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from cachetools import FIFOCache
from msgspec import Struct

from dnsserver import names
from dnsserver.answers.decision import Authority, UpstreamAnswer
from dnsserver.answers.endpoint_names import endpoint_names
from dnsserver.answers.resolution import resolve
from dnsserver.message import wire
from dnsserver.message.edns import Error
from dnsserver.message.packing import encoded_name
from dnsserver.message.proxy_protocol import SIGNATURE, ProxyHeader, read_header_untrusted
from dnsserver.message.query import Query, Unreadable, read_query
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.metrics.counters import ADDRESS, BLOCK, NOBODYS, OTHER, Channel, Counts, Tally, counted_type
from dnsserver.names import QueryName, query_name_of
from dnsserver.responder.answer_cache import AnswerCache, CachedAnswers
from dnsserver.responder.clients import UNNAMED_CLIENT, Clients, LocatedClient
from dnsserver.responder.native_feed import AnswerTable, NativeFeed
from dnsserver.responder.rendered import DecisionRenderer, belongs_to_source_object
from dnsserver.responder.replies import DEFAULT_OPTIONS, AnsweredQuery, ReplyOptions, ReplyWriter
from locator.ip import address_text
from locator.model import ZONE, Location
from locator.places.book import UNKNOWN_PLACE, Place
from locator.state.snapshot import Snapshot, answers_differ

MAX_ASKED = 8192  # questions, about a megabyte
MAX_FINISHED = 4 << 20  # octets of answers with what the upstream said
NOT_READY = (wire.EDE_NOT_READY, "the cluster has not been read yet")
STALE = (wire.EDE_STALE, "")  # the code is enough, and a text would take room from records


class _Found(Struct, frozen=True, gc=False):
    """An answer to a question, what is remembered of that, whether it was computed just now, and whether it may last.

    An answer lasts if it is likely to be asked for again: most names that do not exist are asked for only once.
    """

    answer: RenderedAnswer
    cached: CachedAnswers | None
    computed: bool
    lasting: bool


class Responder:
    """Answers queries from the last published snapshot, and with SERVFAIL before the first.

    *draw* returns a random number of so many bits; it decides which record a reply begins with. *native* is native code
    that repeats answers; ``feed`` makes them known to it.

    Each responder has its own memory, so several can answer from one snapshot.
    """

    def __init__(
        self,
        authority: Authority,
        counts: Counts,
        *,
        draw: Callable[[int], int],
        options: ReplyOptions = DEFAULT_OPTIONS,
        native: AnswerTable | None = None,
    ) -> None:
        self._authority = authority
        self._counts = counts
        self._client_option = options.client_option
        self._proxy_protocol = options.proxy_protocol
        self._snapshot: Snapshot | None = None
        self._on_answered: Callable[[AnsweredQuery], None] | None = None
        self._writer = ReplyWriter(draw, options)
        self._renderer = DecisionRenderer(authority, counts)
        self._clients = Clients()
        self._cache = AnswerCache()
        self._finished: FIFOCache[object, RenderedAnswer] = FIFOCache(MAX_FINISHED, attrgetter("weight"))
        make_names = partial(endpoint_names, pod_names=authority.endpoint_pod_names)
        self._names_of = partial(self._cache.names_of, make=make_names)
        self._apexes = frozenset(encoded_name(zone.labels) for zone in authority.zones)
        self._asked: FIFOCache[bytes, bool] = FIFOCache(MAX_ASKED)
        self._feed: NativeFeed | None = None
        if native is not None:
            self._feed = NativeFeed(native, counts, self._writer, origin_of=self._origin, put_again=self._put_again)
            counts.before_reading.append(self._feed.count)

    def publish(self, snapshot: Snapshot) -> None:
        """Answer from *snapshot* from now on."""
        before, self._snapshot = self._snapshot, snapshot
        if before is not None and before.serial == snapshot.serial and not answers_differ(before, snapshot):
            return  # only findings, numbers of objects, or endpoints that are not ready changed
        self._clients.follow(snapshot.addresses)
        self._cache.publish(snapshot)
        self._counts.free_places(snapshot.has)
        self._finished.clear()
        if self._feed is not None:
            self._feed.publish(snapshot)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that it answers from, None before the first."""
        return self._snapshot

    def mark_stale(self, stale: bool) -> None:
        """Mark every answer from now on as stale, or no longer (RFC 8914, section 4.4)."""
        errors = (STALE,) if stale else ()
        if errors != self._writer.common_errors:
            self._writer.common_errors = errors
            if self._feed is not None:
                self._feed.forget_edns()

    def listen(
        self, on_answered: Callable[[AnsweredQuery], None] | None, services: frozenset[str] | None = frozenset()
    ) -> None:
        """Call *on_answered* with every reply that something was decided for, from now on; None: call nobody any more.

        Meanwhile the native code leaves all queries about *services* (``namespace/name``) to Python; None: all queries.
        """
        self._on_answered = on_answered
        if self._feed is not None:
            self._feed.leave_to_python(services)

    def feed(self, answered: AnsweredQuery) -> None:
        """Make known to the native code how to repeat what was just answered, if it is likely to be asked for again."""
        if self._feed is not None:
            self._feed.put_answered(answered)

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
        self, octets: bytes, source: bytes, channel: Channel, *, header_client: bytes | None = None
    ) -> AnsweredQuery | None:
        """Answer the query in *octets* from *source* (a packed address); return None to stay silent.

        *header_client* is the packed address from a PROXY header that the caller has removed, empty if the
        header had none. It is None without a header; then a datagram may still begin with one.

        Never raises, whatever *octets* hold: an unreadable query gets FORMERR when its header is
        whole, and silence otherwise (RFC 1035, section 4.1.1).
        """
        if (
            self._proxy_protocol
            and header_client is None
            and channel.is_udp
            and octets.startswith(SIGNATURE)
            and self.may_send_proxy_header(source)
        ):
            header = _header(octets)
            if header is None:  # malformed: no reply
                self._counts.malformed_headers[channel.proto] += 1
                self._counts.silent += 1
                return None
            octets, header_client = octets[header.size :], header.client
        query = read_query(octets, client_option=self._client_option, header_client=header_client)
        if query is None:
            self._counts.silent += 1
            return None
        answered = self._answered(query, source, channel)
        if self._on_answered is not None and answered.snapshot is not None and answered.reply is not None:
            self._on_answered(answered)
        return answered

    def finish(self, pending: AnsweredQuery, said: UpstreamAnswer) -> AnsweredQuery:
        """Answer a query whose reply waits, now that the upstream has *said* something about its target.

        It may have to wait again if the aliases lead to another name outside the zones: at most ``MAX_ALIASES`` times.
        What lies in the zones is answered from the present snapshot, for the client.
        """
        snapshot, client = self._snapshot, pending.client
        assert snapshot is not None  # nothing is pending before the first
        assert client is not None
        known = {**pending.known, pending.target: said}
        answer = self._finished_answer(pending.query, client.place.location, snapshot, known)
        reply = self._replied(answer, pending.query, pending.source, pending.channel, client)
        answered = AnsweredQuery(
            pending.query, pending.source, pending.channel, reply, client, snapshot, answer, known=known
        )
        if self._on_answered is not None and reply is not None:
            self._on_answered(answered)
        return answered

    def _answered(self, query: Query, source: bytes, channel: Channel) -> AnsweredQuery:
        """Answer a query from the snapshot."""
        if query.rcode:
            return AnsweredQuery(query, source, channel, self._error_reply(query, query.rcode, channel, OTHER))
        snapshot, client = self._snapshot, self._clients.client_of(query, source)
        location = client.place.location
        cached = self._cache.find(query.question)
        answer = cached.find(location) if cached is not None else None
        lasting = True
        if answer is None:
            qtype, qclass = query.type_and_class
            labels = query.labels
            query_name = query_name_of(labels, self._authority.zones) if qclass == wire.IN else None
            if query_name is None or qtype in (wire.AXFR, wire.IXFR):
                refused = self._error_reply(query, wire.REFUSED, channel, counted_type(qtype))
                decided = snapshot if qclass == wire.IN else None
                return AnsweredQuery(query, source, channel, refused, client, decided)
            if snapshot is None:
                failed = self._error_reply(query, wire.SERVFAIL, channel, counted_type(qtype), errors=(NOT_READY,))
                return AnsweredQuery(query, source, channel, failed)
            found = self._found(query, labels, query_name, location, snapshot)
            self._counts.computed += found.computed
            answer, cached, lasting = found.answer, found.cached, found.lasting
        self._note(query, source, client)
        reply = self._replied(answer, query, source, channel, client)
        return AnsweredQuery(query, source, channel, reply, client, snapshot, answer, cached, lasting)

    def _replied(
        self, answer: RenderedAnswer, query: Query, source: bytes, channel: Channel, client: LocatedClient
    ) -> bytes | None:
        """Write and count the reply; return None if it has to wait for the upstream."""
        if answer.outside_target is not None:
            return None
        edns, origin, ignored = query.edns, NOBODYS, None
        if edns is None or not edns.probe:
            origin = self._origin(client.place)
        if edns is not None and not client.forwarded and edns.named_client:
            ignored = wire.EDE_OTHER, f"client subnet ignored: {address_text(source)} is no trusted forwarder"
        reply, truncated = self._writer.write(answer, query, client, ignored, is_udp=channel.is_udp)
        channel.counts[origin + answer.tally] += 1
        channel.truncated += truncated
        if answer.noted and origin != NOBODYS and client.place is not UNKNOWN_PLACE and client.is_host:
            self._counts.note_askers([(answer.tally, client.address)])
        return reply

    def _note(self, query: Query, source: bytes, client: LocatedClient) -> None:
        """Count what a query says about its client, and lacks."""
        counts, edns = self._counts, query.edns
        if client.place is UNNAMED_CLIENT and query.question[:-4] not in self._apexes:  # which is the same for all
            counts.unnamed_clients.note(address_text(source))
        if edns is not None and edns.probe:  # a query, but of no client
            counts.probes += 1
            return
        if client.place is UNKNOWN_PLACE:
            counts.unlocated_clients.add(ADDRESS if client.is_host else BLOCK, client.address)
        if edns is not None and not client.forwarded and (named := edns.named_client):
            # A source that names itself, or a block that it is in, does not ask on behalf of others.
            counts.ignored_clients.note(address_text(source), b"" if source.startswith(named) else named)

    def _origin(self, place: Place) -> int:
        """Return the number of the ``ClientOrigin`` of clients at *place*."""
        return self._counts.origin(place.located_by, place.location.value(ZONE) or "")

    def _found(
        self, query: Query, labels: Sequence[bytes], query_name: QueryName, location: Location, snapshot: Snapshot
    ) -> _Found:
        """Decide and render the answer to a question of which nothing is remembered for a client, and remember it."""
        question, qtype = query.question, query.qtype
        shared = self._shared_by_zones(query_name, snapshot)
        if shared is not None and qtype in shared:
            return _Found(shared[qtype], None, computed=False, lasting=False)
        decision = resolve(query_name, qtype, snapshot, location, self._authority, names_of=self._names_of)
        if decision.source_object is not None and belongs_to_source_object(decision):
            render = partial(self._renderer.render, labels, decision)
            answer, cached = self._cache.keep(question, location, decision, render)
            return _Found(answer, cached, computed=True, lasting=True)
        answer, remembered = self._renderer.render_without_source(labels, decision), None
        if shared is not None and decision.answers and not decision.additional_records:
            shared[qtype] = answer
        elif not decision.client_keys:
            remembered = self._cache.keep_without_source(question, answer)
        lasting = question in self._asked
        self._asked[question] = True
        return _Found(answer, remembered, computed=True, lasting=lasting)

    def _shared_by_zones(self, query_name: QueryName, snapshot: Snapshot) -> dict[int, RenderedAnswer] | None:
        """Return the answers, by type, to names that prefer a zone without an endpoint; None for any other name."""
        compiled = snapshot.services.get(query_name.service_key) if query_name.name_type == names.PREFERRED else None
        key = self._authority.zonal
        if compiled is None or key is None:
            return None
        zonal = self._cache.zonal(compiled, key)
        return None if query_name.value in zonal.zones else zonal.others[query_name.zone]

    def _put_again(self, query: Query, location: Location) -> None:
        """Make the answer to a question that was asked before known to the native code; nobody asks now."""
        assert self._feed is not None
        cached = self._cache.find(query.question)
        answer = cached.find(location) if cached is not None else None
        labels = query.labels
        query_name = query_name_of(labels, self._authority.zones)
        if answer is None and query_name is not None and self._snapshot is not None:
            found = self._found(query, labels, query_name, location, self._snapshot)
            answer, cached = found.answer, found.cached
        if answer is not None and cached is not None:
            self._feed.put(query, answer, cached, location)

    def _finished_answer(
        self, query: Query, location: Location, snapshot: Snapshot, known: Mapping[str, UpstreamAnswer]
    ) -> RenderedAnswer:
        """Return the remembered answer to a query that waited, else compute it from what is *known* now."""
        labels, qtype = query.labels, query.qtype
        for_all = (labels, qtype, *known.values())
        here = (location, *for_all)
        answer = self._finished.get(for_all) or self._finished.get(here)
        if answer is None:
            query_name = query_name_of(labels, self._authority.zones)
            decision = resolve(
                query_name, qtype, snapshot, location, self._authority, names_of=self._names_of, outside=known.get
            )
            answer = self._renderer.render(labels, decision)
            if answer.weight <= MAX_FINISHED // 2:
                self._finished[here if decision.client_keys else for_all] = answer
        return answer

    def _error_reply(
        self, query: Query, rcode: int, channel: Channel, label: str, *, errors: Sequence[Error] = ()
    ) -> bytes:
        """Return and count a response that only says why there is no answer; *label* is that of the query's type."""
        self._counts.computed += 1
        channel.counts[self._counts.tally(Tally(label, rcode))] += 1
        return self._writer.error(query, rcode, errors)


def _header(octets: bytes) -> ProxyHeader | None:
    """Return the PROXY header of a datagram, None if it is malformed."""
    try:
        return read_header_untrusted(octets)
    except Unreadable:
        return None
