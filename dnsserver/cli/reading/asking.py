# SPDX-License-Identifier: Apache-2.0

"""Asks a DNS server one question, as ``topodns doctor`` does to compare the answer with what it should be.

Each query says that it is a probe, also through a forwarder: topodns does not count who asks as a client.
"""

from __future__ import annotations

import os
import socket

import dns.asyncbackend
import dns.asyncquery
import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import trio

from dnsserver.message.wire import PROBE, PROBE_TEXT
from dnsserver.tools.doctor.facts import Question, Reply
from locator.ip import address_text, parse_address

REPLY_SECONDS = 2.0  # as long as forwarders such as CoreDNS wait


async def ask(address: bytes, port: int, question: Question, *, tcp: bool) -> Reply:
    """Return the reply of the server at an address. Never raises, and takes no longer than ``REPLY_SECONDS``."""
    where, source = address_text(address), source_towards(address)
    if source is None:
        return Reply(error=f"{where}: no route leads there from here")
    options: list[dns.edns.Option] = [dns.edns.GenericOption(dns.edns.OptionType.make(PROBE), PROBE_TEXT)]
    if question.client:
        options.append(dns.edns.ECSOption(question.client, 128 if ":" in question.client else 32))
    query = dns.message.make_query(question.name, question.qtype, use_edns=0, options=options)
    send = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
    try:
        with trio.fail_after(REPLY_SECONDS):
            reply = await send(query, where, port=port, backend=dns.asyncbackend.get_backend("trio"))
    except trio.TooSlowError:
        return Reply(source, error=f"{where}: no reply within {REPLY_SECONDS:g} s")
    except OSError as error:
        return Reply(source, error=f"{where}: {os.strerror(error.errno) if error.errno else error}")
    except (dns.exception.DNSException, EOFError) as error:
        return Reply(source, error=f"{where}: {error or type(error).__name__}")
    rtype = dns.rdatatype.from_text(question.qtype)
    found = frozenset(row.to_text() for rrset in reply.answer if rrset.rdtype == rtype for row in rrset)
    return Reply(source, dns.rcode.to_text(reply.rcode()), found, bool(reply.flags & dns.flags.TC))


def source_towards(address: bytes) -> bytes | None:
    """Return the address of this machine that a server sees, as far as nothing translates it; None without a route."""
    family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address_text(address), 53))
            return parse_address(sock.getsockname()[0])
    except (OSError, ValueError):
        return None
