# SPDX-License-Identifier: Apache-2.0

"""Writes a reply: a rendered answer, fitted to one query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.message import wire
from dnsserver.message.edns import MAX_TCP_REPLY, Error
from dnsserver.message.rendering import RenderedAnswer, cut, fitted
from dnsserver.message.truncation import arc_start
from dnsserver.metrics.counters import Channel
from dnsserver.responder.recognition import EdnsProfile, EdnsProfiles
from locator.model import Location

DRAWN_BITS = 30  # of a random number: the most that CPython computes with in one step


class Envelope(Struct, frozen=True, gc=False):
    """What a reply takes from its query.

    ``end`` is where the question ends. ``head`` is the index in ``RenderedAnswer.heads`` for the
    query's flags. ``address`` is that of the client subnet, empty without one. ``client`` is whom the reply is for, as
    ``Clients.named`` has it. ``origin`` is the number of the client's ``Origin``. ``ignored`` is the extended error for
    a client subnet that is ignored, None if there is none.
    """

    query: bytes
    end: int
    head: int
    profile: EdnsProfile
    address: bytes
    client: bytes
    channel: Channel
    origin: int
    ignored: Error | None = None

    @property
    def qtype(self) -> int:
        """The type in the question."""
        return int.from_bytes(self.query[self.end - 4 : self.end - 2])


class PendingReply(Struct, frozen=True, eq=False, gc=False):
    """A reply that needs to know what the upstream says about ``target``, a name outside the zones in lower case.

    ``namespace`` is that of the Service in the question. ``location`` is the client's. ``known`` is what the upstream
    has said about other names on the way, by name.
    """

    envelope: Envelope
    target: str
    namespace: str
    location: Location
    known: Mapping[str, UpstreamAnswer] = {}

    @property
    def qtype(self) -> int:
        """The type to look up."""
        return self.envelope.qtype


def written(answer: RenderedAnswer, envelope: Envelope, profiles: EdnsProfiles, draw: Callable[[int], int]) -> bytes:
    """Return the reply: ID and question as they came, the records rotated by what *draw* draws, the OPT record.

    A reply that is too large loses, in this order: glue, the error for an ignored client subnet,
    the text of the answer's own error, and at last records, with TC.
    """
    query, end, profile, channel = envelope.query, envelope.end, envelope.profile, envelope.channel
    channel.counts[envelope.origin + answer.tally] += 1
    limit = profile.limit if channel.is_udp else MAX_TCP_REPLY
    for errors in _errors(answer, envelope):
        opt = profiles.opt(profile, errors, dependent=answer.dependent, address=envelope.address)
        room = limit - end - len(opt)
        if answer.size_without_glue <= room:
            head, body = fitted(answer, envelope.head, room, turn=draw(DRAWN_BITS) % answer.turns)
            break
    else:  # ``room`` is beside the smallest OPT record: ``_errors`` yields the fewest octets last
        start = arc_start(envelope.client, query[wire.HEADER : end].lower(), answer.records)
        head, body = cut(answer, envelope.head, room, start=start, drawn=draw(DRAWN_BITS))
        channel.truncated += 1
    return b"".join((query[:2], head, query[wire.HEADER : end], body, opt))


def _errors(answer: RenderedAnswer, envelope: Envelope) -> Iterator[list[Error]]:
    """Yield the extended errors that a reply may have, from the most to the fewest octets."""
    own = [answer.error] if answer.error is not None else []
    if envelope.ignored is not None:
        yield [*own, envelope.ignored]
    yield own
    if answer.error is not None:
        code, _ = answer.error
        yield [(code, "")]
