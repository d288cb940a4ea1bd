# SPDX-License-Identifier: Apache-2.0

"""Reads the answer section of a reply that topodns has written, for people."""

from __future__ import annotations

from typing import NamedTuple

from dnsserver.message import wire
from dnsserver.message.records import type_name


class SentRecord(NamedTuple):
    """A record as a reply has it: the name with its final dot, the TTL in seconds, the data as in a zone file."""

    name: str
    type: str
    ttl: int
    data: str


def answers_in(reply: bytes) -> list[SentRecord]:
    """Return the records of the answer section, in their order."""
    import dns.message  # loaded late: most servers never need it

    # dnspython refuses some client subnets that topodns echoes, but only after it has read the answers.
    message = dns.message.from_wire(reply, one_rr_per_rrset=True, continue_on_error=True)
    return [
        SentRecord(rrset.name.to_text().lower(), type_name(rrset.rdtype), rrset.ttl, record.to_text())
        for rrset in message.answer
        for record in rrset
    ]


def is_truncated(reply: bytes) -> bool:
    """Whether a reply has TC."""
    return bool(int.from_bytes(reply[2:4]) & wire.TC)
