# SPDX-License-Identifier: Apache-2.0

"""Queries about a cluster that hypothesis draws, and functions that pass them to a responder in memory."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from dnsserver.message.proxy_protocol import read_header_untrusted
from dnsserver.message.query import Unreadable
from dnsserver.responder.responder import Responder
from locator.ip import parse_address
from tests.kit.dns_queries import AD, CD, CLIENT_OPTION, RD, TC, ecs, opt, option, query
from tests.kit.in_memory import CountedResponder
from tests.kit.proxy_headers import LOCAL, PROXY_SIGNATURE, UNSPEC, proxied, proxy_header, tlv
from tests.kit.random_cluster import FORWARDER, UNKNOWN_CLIENT, World


class Asked(NamedTuple):
    """A query, its source address, and ``udp`` or ``tcp``; ``header`` is a PROXY header before it, or empty."""

    wire: bytes
    source: str
    proto: str
    header: bytes = b""


def without_header(responder: Responder, asked: Asked) -> tuple[bytes, bytes | None] | None:
    """Return the DNS message, and the client that a PROXY header before it names: b"" for none, None without a header.

    Returns None if the header is malformed; the server must then drop the query.
    """
    sent = asked.header + asked.wire
    if not sent.startswith(PROXY_SIGNATURE) or not responder.may_send_proxy_header(parse_address(asked.source)):
        return sent, None
    try:
        header = read_header_untrusted(sent)
    except Unreadable:
        header = None
    return None if header is None else (sent[header.size :], header.client)


def replied(responder: CountedResponder, asked: Asked, *, compute: bool = False) -> Any:
    """Return the reply to a query, or what one that remembers nothing replies if *compute*.

    Over TCP the PROXY header is removed before, as the server does.
    """
    source = parse_address(asked.source)
    channel = responder.channel(source, asked.proto)
    reply = responder.computed if compute else responder.reply
    if asked.proto == "udp":
        return reply(asked.header + asked.wire, source, channel)
    left = without_header(responder, asked)
    return None if left is None else reply(left[0], source, channel, header_client=left[1])


ASKED_TYPES = ("A", "AAAA", "SRV", "PTR", "CNAME", "ANY", "TXT", "SPF", "NS", "SOA", 65, 97, "AXFR")


def asked(world: World, types: Sequence[str | int] = ASKED_TYPES) -> st.SearchStrategy[Asked]:
    """Return a strategy of queries about *world*: any name, type, client and way to name the client."""
    return st.builds(
        _asked,
        st.sampled_from(world.names),
        st.sampled_from(types),
        st.sampled_from(world.addresses),
        st.sampled_from(world.addresses),
        st.sampled_from(world.addresses),
        st.integers(0, len(_FORMS) - 1),
        st.integers(0, len(_HEADERS) - 1),
        st.sampled_from((RD, RD, RD, 0, RD | CD, RD | AD, CD, RD | 0x0040, TC)),
        st.integers(0, 7),
        st.sampled_from((0, 100, 512, 700, 1232, 4096)),
        st.sampled_from(("udp", "udp", "tcp")),
    )


# How a query names its client: each function returns the options of the OPT record, or None for no OPT record.
_FORMS = (
    lambda client: None,
    lambda client: None,
    lambda client: (),
    lambda client: (),
    *[lambda client: (ecs(client),)] * 5,
    *[lambda client, four=four, six=six: (ecs(f"{client}/{four if '.' in client else six}"),)
      for four, six in ((24, 64), (24, 56), (16, 48), (8, 32), (25, 66), (23, 63), (22, 8))],
    lambda client: (ecs(f"{client}/0"),),
    lambda client: (ecs("0"),),
    lambda client: (ecs(f"::ffff:{client}" if "." in client else client),),
    lambda client: (ecs(f"::ffff:{client}/120" if "." in client else f"{client}/120"),),
    lambda client: (option(10, b"12345678"), ecs(client)),
    lambda client: (ecs(client), option(3)),
    lambda client: (ecs(f"{client}/{24 if '.' in client else 56}"), option(3)),
    lambda client: (option(CLIENT_OPTION, ipaddress.ip_address(client).packed),),
    lambda client: (ecs(UNKNOWN_CLIENT), option(CLIENT_OPTION, ipaddress.ip_address(client).packed)),
    lambda client: (option(CLIENT_OPTION, b"12345"), ecs(client)),
    lambda client: (option(CLIENT_OPTION, b"1234"), ecs(client), option(CLIENT_OPTION, b"1234")),
    lambda client: (ecs(client), ecs(client)),
)  # fmt: skip
# PROXY headers before a query, as functions of the client's address; most queries have none.
_HEADERS = (
    *[lambda client: b""] * 4,
    proxied,
    lambda client: proxied(client, tlv(4) + tlv(0xE0, b"x" * 20), stream=True),
    lambda client: proxied(f"::ffff:{client}" if "." in client else client),
    lambda client: proxy_header(command=LOCAL, family=UNSPEC),
    lambda client: proxy_header(family=UNSPEC),
)


def _asked(
    name: str,
    qtype: str | int,
    client: str,
    other: str,
    third: str,
    form: int,
    head: int,
    flags: int,
    case: int,
    size: int,
    proto: str,
) -> Asked:
    name = "".join(letter.upper() if case >> (position % 3) & 1 else letter for position, letter in enumerate(name))
    options, header = _FORMS[form](other), _HEADERS[head](third)
    source = FORWARDER if (options or header) and case & 1 else client
    edns = b"" if options is None else opt(*options, size=size, flags=0x8000 if case & 2 else 0)
    return Asked(query(name, qtype, number=size ^ 0x5A00 ^ case, flags=flags, edns=edns), source, proto, header)
