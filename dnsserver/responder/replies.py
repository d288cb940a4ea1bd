"""From a rendered answer and a query to the octets of a reply."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from dnsserver.message import wire
from dnsserver.message.edns import MAX_TCP_REPLY, Error
from dnsserver.message.records import Host
from dnsserver.message.rendering import RenderedAnswer, fitted
from dnsserver.metrics.counters import Channel
from dnsserver.responder.recognition import EdnsProfile, EdnsProfiles


class Envelope(Struct, frozen=True):
    """What a reply takes over from its query.

    ``end`` is where the question ends, ``head`` which of ``RenderedAnswer.heads`` goes with the
    query's flags, ``address`` the client subnet's, empty without one. ``ignored`` tells the client that
    the address it named is not heeded.
    """

    query: bytes
    end: int
    head: int
    profile: EdnsProfile
    address: bytes
    channel: Channel
    ignored: Error | None = None

    @property
    def qtype(self) -> int:
        """The type that is asked for."""
        return int.from_bytes(self.query[self.end - 4 : self.end - 2])


class PendingReply(Struct, frozen=True, eq=False):
    """A reply that waits until somebody knows what a name outside the zones has: the last one of ``alias``."""

    envelope: Envelope
    alias: RenderedAnswer

    @property
    def target(self) -> str:
        """The name to look up, in lower case and without a final dot."""
        data = self.alias.elsewhere[-1].data
        assert isinstance(data, Host)
        return data.name

    @property
    def qtype(self) -> int:
        """The type to look up."""
        return self.envelope.qtype


def written(found: RenderedAnswer, envelope: Envelope, profiles: EdnsProfiles) -> bytes:
    """Return the reply: id and question as they came, the records in their turn, the OPT record.

    What does not fit is left out in this order: the word about an ignored address, the text of the
    answer's own error, glue, and at last records, with TC.
    """
    query, end, profile, channel = envelope.query, envelope.end, envelope.profile, envelope.channel
    channel.counts[found.tally] += 1
    limit = profile.limit if channel.limited else MAX_TCP_REPLY
    for errors in _errors(found, envelope):
        opt = profiles.opt(profile, errors, dependent=found.dependent, address=envelope.address)
        if end + found.size + len(opt) <= limit:
            counts, body = found.heads[envelope.head], found.body(found.take_turn()) + found.tail
            break
    else:
        room = limit - end - len(opt)
        turn = found.take_turn() if found.least <= room else found.take_cut_turn()
        counts, body = fitted(found, envelope.head, room, turn=turn)
        if counts[0] & 0x02:
            channel.truncated += 1
    return b"".join((query[:2], counts, query[wire.HEADER : end], body, opt))


def _errors(found: RenderedAnswer, envelope: Envelope) -> Iterator[list[Error]]:
    """Yield what a reply may tell, the most first and the least last."""
    own = [found.error] if found.error is not None else []
    if envelope.ignored is not None:
        yield [*own, envelope.ignored]
    yield own
    if found.error is not None:
        code, _ = found.error
        yield [(code, "")]
