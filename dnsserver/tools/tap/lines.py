# SPDX-License-Identifier: Apache-2.0

"""A Decision as a line: an explanation of it, with the answers that were sent."""

from __future__ import annotations

import msgspec

from dnsserver.answers.decision import Authority
from dnsserver.message.sections import answers_in, is_truncated
from dnsserver.tools.explain.explain import Asker, client_text, explain
from dnsserver.tools.explain.explanation import Explanation
from dnsserver.tools.tap.tap import Told
from locator.ip import address_text
from locator.times import time_text


class TailLine(Explanation):
    """A Decision, and the reply that was sent: ``answers`` has its records in their order, and no others.

    ``time`` is that of the reply (RFC 3339). ``source`` is the address that sent the query, by ``protocol`` udp or tcp.
    ``truncated`` says that the client was told to ask again over TCP. The client's address is empty if a forwarder
    named nobody.
    """

    time: str
    source: str
    protocol: str
    truncated: bool


DECODER: msgspec.json.Decoder[TailLine] = msgspec.json.Decoder(TailLine)


def line_of(told: Told, authority: Authority) -> TailLine:
    """Return the line about a reply. Names that do not exist get no suggestion: that would take too long."""
    inquiry = told.inquiry
    text, holder = "", ""
    if inquiry.client is not None:
        text, holder = client_text(inquiry.client), inquiry.snapshot.addresses.holder(inquiry.client)
    asker = Asker(text, inquiry.place, holder)
    explained = explain(
        inquiry.labels,
        inquiry.qtype,
        asker,
        told.snapshot,
        authority,
        suggests=False,
        outside=told.known.get,
    )
    return {
        **explained,
        "answers": [
            {"name": record.name, "type": record.type, "ttl": record.ttl, "data": record.data}
            for record in answers_in(told.reply)
        ],
        "time": time_text(told.time),
        "source": address_text(told.source),
        "protocol": told.protocol,
        "truncated": is_truncated(told.reply),
    }
