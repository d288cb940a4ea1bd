# SPDX-License-Identifier: Apache-2.0

"""Makes the answer to a query that was just answered known to native code: reads once more what it takes to find it."""

from __future__ import annotations

from dnsserver.message import wire
from dnsserver.message.proxy_protocol import PLAIN_HEADERS
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.responder.answer_cache import AnswerCache
from dnsserver.responder.clients import Clients
from dnsserver.responder.native_feed import EdnsForm, Lifetime, NativeFeed
from dnsserver.responder.recognition import (
    HEAD_INDEXES,
    NO_EDNS,
    SUBNET_ADDRESS_AT,
    SUBNET_CONTENT_AT,
    WITH_OPT,
    EdnsProfiles,
)
from locator.model import Location


def put_query(
    feed: NativeFeed, query: bytes, source: bytes, clients: Clients, profiles: EdnsProfiles, cache: AnswerCache
) -> None:
    """Make known what it takes to repeat the answer to a query, if it can be repeated."""
    place = clients.source(source)
    in_header: bytes | None = None
    if place.forwarder:
        for start, size, octets in PLAIN_HEADERS:
            if query.startswith(start) and len(query) >= size:
                query, in_header = query[size:], query[len(start) : len(start) + octets]
    head, end = HEAD_INDEXES.get(query[2 : wire.HEADER]), query.find(b"\0", wire.HEADER) + 5
    if head is None:
        return
    rest, profile = query[end:], NO_EDNS
    if head >= WITH_OPT:
        known = profiles.known.get(rest[:SUBNET_ADDRESS_AT])
        if known is None or (known.octets and len(rest) != SUBNET_ADDRESS_AT + known.octets):
            return
        profile = known
        feed.put_edns(rest[:SUBNET_ADDRESS_AT], EdnsForm(known.limit, known.opts, known.octets, known.host))
    if place.forwarder:
        subnet = rest[SUBNET_ADDRESS_AT:] if profile.octets else b""
        named = subnet if in_header is None else in_header
        if not named:
            return
        if in_header is not None or profile.host:
            place = clients.locate(named)
        else:
            content = rest[SUBNET_CONTENT_AT:]
            block = clients.blocks.get(content)
            network = clients.client_of(source, profile.edns_of(named), header_client=None)
            if block is None or network is None:
                return
            place = block
            feed.put_block(content, network, place)
    put_answer(feed, query[wire.HEADER : end], place.location, cache)


def put_answer(feed: NativeFeed, asked: bytes, location: Location, cache: AnswerCache) -> None:
    """Make known the remembered answer to a question, for clients at a location."""
    question = asked.lower()
    remembered = cache.current.get(question) or cache.recall(question)
    if remembered is None:
        return
    source_object = cache.source_object_of(question)
    lifetime = Lifetime.with_service if source_object is not None else Lifetime.until_published
    if isinstance(remembered, RenderedAnswer):
        feed.put(asked, remembered, lifetime, location, source_object=source_object)
    elif source_object is not None and (answer := remembered[2].get(location)) is not None:
        answers = remembered[2]
        keys, values = answers.client_keys, answers.values_at(location)
        feed.put(asked, answer, lifetime, location, source_object=source_object, client_keys=keys, values=values)
