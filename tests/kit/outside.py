# SPDX-License-Identifier: Apache-2.0

"""What an upstream says about names outside the zones, as a responder takes it."""

from __future__ import annotations

from collections.abc import Sequence

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.message.records import Host, Record
from dnsserver.message.wire import CNAME, EDE_NO_REACHABLE_AUTHORITY, NOERROR, SERVFAIL

FAILED = UpstreamAnswer(SERVFAIL, extended_error=(EDE_NO_REACHABLE_AUTHORITY, "nobody answers"))


def said(records: Sequence[Record], *, rcode: int = NOERROR, soa: Sequence[Record] = ()) -> UpstreamAnswer:
    """Return an answer with these records: CNAMEs first, then those of the type."""
    aliases = tuple(record for record in records if record.rtype == CNAME)
    return UpstreamAnswer(rcode, aliases, tuple(records[len(aliases) :]), tuple(soa))


def alias(name: str, target: str, ttl: int = 60) -> Record:
    """Return a CNAME record."""
    return Record(name, CNAME, ttl, Host(target))
