# SPDX-License-Identifier: Apache-2.0

"""A Decision as a line, for programs and for people: an explanation of it, with the answers that were sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct, structs

from dnsserver.answers.decision import Authority
from dnsserver.message import wire
from dnsserver.message.records import type_name
from dnsserver.text import painter
from dnsserver.tools.explain.explain import Asker, client_text, explain
from dnsserver.tools.explain.explanation import AnswerExplained, Explanation
from dnsserver.tools.explain.explanation_text import OUTCOME_COLOURS
from dnsserver.tools.tap.tap import TapEvent
from locator.ip import address_text, host_network, parse_address
from locator.model import ZONE
from locator.places.book import Book
from locator.printable import printable_values
from locator.times import time_text

MAX_SHOWN = 4  # records in a line for people
MAX_PLACES = 16  # of addresses in a line: one that has thousands would take too long


class AnswerPlace(Struct, frozen=True):
    """Where an address in an answer is: the object that holds it, its node and its zone, None if that is not known."""

    address: str
    holder: str | None
    node: str | None
    zone: str | None


class TailLine(Explanation, frozen=True, kw_only=True):
    """A Decision, and the reply that was sent: ``answers`` has its records in their order, and no others.

    ``time`` is that of the reply (RFC 3339). ``source`` is the address that sent the query, by ``protocol`` udp or tcp.
    ``truncated`` says that the client was told to ask again over TCP. The client's address is empty if a forwarder
    named nobody. ``places`` says where the first addresses in the answers are; older servers do not tell.
    """

    time: str
    source: str
    protocol: str
    truncated: bool
    places: tuple[AnswerPlace, ...] = ()


DECODER: msgspec.json.Decoder[TailLine] = msgspec.json.Decoder(TailLine)


def line_of(event: TapEvent, authority: Authority) -> TailLine:
    """Return the line about a reply. Names that do not exist get no suggestion: that would take too long."""
    import dns.message  # loaded late: most servers never need it

    answered = event.answered
    reply, client, snapshot = answered.reply, answered.client, answered.snapshot
    assert reply is not None
    assert client is not None
    assert snapshot is not None
    text, holder = "", ""
    if client.network is not None:
        text, holder = client_text(client.network), client.book.holder(client.network)
    explained = explain(
        answered.query.labels,
        answered.query.qtype,
        Asker(text, client.place, holder),
        snapshot,
        authority,
        suggests=False,
        outside=answered.known.get,
    )
    # dnspython refuses some client subnets that topodns echoes, but only after it has read the answers.
    message = dns.message.from_wire(reply, one_rr_per_rrset=True, continue_on_error=True)
    fields = structs.asdict(explained)
    fields["answers"] = tuple(
        AnswerExplained(rrset.name.to_text().lower(), type_name(rrset.rdtype), rrset.ttl, record.to_text())
        for rrset in message.answer
        for record in rrset
    )
    return TailLine(
        **fields,
        time=time_text(event.time),
        source=address_text(answered.source),
        protocol=answered.channel.proto,
        truncated=bool(int.from_bytes(reply[2:4]) & wire.TC),
        places=tuple(_places(fields["answers"], client.book)),
    )


def _places(answers: Sequence[AnswerExplained], book: Book) -> Iterator[AnswerPlace]:
    """Yield where the first addresses in some answers are."""
    addresses = [answer.data for answer in answers if answer.type in ("A", "AAAA")]
    for text in addresses[:MAX_PLACES]:
        network = host_network(parse_address(text))
        holder, location = book.holder(network), book.locate_network(network).location
        yield AnswerPlace(text, holder or None, location.node, location.value(ZONE))


def as_text(line: TailLine, *, colour: bool = False, with_day: bool = False) -> str:
    """Return when it was, who asked for what, how the endpoints were chosen and what was answered."""
    day, _, time = line.time.rstrip("Z").partition("T")
    when = f"{day} {time}" if with_day else time
    return f"{when}  {summary(printable_values(line), colour=colour)}\n"


def summary(line: TailLine, *, colour: bool = False) -> str:
    """Return all of that but the time. What others wrote is not made printable."""
    question, outcome = line.question, line.outcome
    painted = painter(colour=colour)(outcome, OUTCOME_COLOURS[outcome])
    parts = (_client(line), f"{question.name} {question.type}", painted + _decisive(line), _answer(line))
    return "  ".join(parts)


def _client(line: TailLine) -> str:
    client = line.client
    if not client.address:
        return f"unnamed by {line.source}"
    return f"{client.address} ({client.holder or client.located_by})"


def _decisive(line: TailLine) -> str:
    """Return the key that decided and the client's value, "" if none did."""
    steps = line.steps
    if line.outcome != "nearest" or not steps or steps[-1].value is None:
        return ""
    return f" {steps[-1].key.rpartition('/')[2]}={steps[-1].value}"


def _answer(line: TailLine) -> str:
    if line.rcode != "NOERROR":
        return line.rcode
    shown = [answer.data for answer in line.answers]
    more = [f"and {len(shown) - MAX_SHOWN} more"] if len(shown) > MAX_SHOWN else []
    cut = ["truncated"] if line.truncated else []
    return ", ".join([*shown[:MAX_SHOWN], *more, *cut]) or "no records"
