# SPDX-License-Identifier: Apache-2.0

"""The inputs of both fuzzers, and what Python must make of one.

The first octet of an input selects source, transport and server; the rest is the query, with or without a PROXY header.
Each query must get a sound reply or silence, and the remembered reply, of Python or of the native code, must equal the
computed one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, product

from dnsserver.message import wire
from dnsserver.message.records import AddressData, Host, Record
from dnsserver.responder.native_feed import AnswerTable
from dnsserver.responder.replies import AnsweredQuery
from tests.kit import api_objects, dns_queries, proxy_headers
from tests.kit.dns_queries import CLIENT_OPTION, ecs, opt, option, query
from tests.kit.in_memory import CountedResponder, responder_of
from tests.kit.outside import FAILED, said
from tests.kit.random_queries import Asked, replied, without_header
from tests.kit.replies import assert_same, assert_sound
from tests.kit.wire_cluster import CLUSTER, FLAGS, FORWARDER, IN_A, IN_B, NAME, NOWHERE, RECORD, WEB, Row
from tests.kit.wire_rows import ROWS, UNSYNCED

SOURCES = (IN_A, IN_B, FORWARDER, NOWHERE, "fd00:1::1", "10.244.1.1", "10.244.2.77", "2001:db8::9")
PROTOCOLS = ("udp", "tcp")
# Without and with an upstream and PROXY headers.
SERVERS = (
    {},
    {
        "upstream": ["192.0.2.1"],
        "nsid": "off",
        "zone": ["cluster.local", "local"],
        "pods": "insecure",
        "proxy-protocol": True,
    },
)
LONGEST = 4096  # octets; an OPT record with every option is shorter, and so are the costliest datagrams


class Target:
    """A responder of each server, with the cache of all earlier inputs."""

    def __init__(self, natives: Sequence[AnswerTable | None] = (None, None)) -> None:
        """Start them; *natives* are their native codes, None for whatever is installed."""
        self.responders = [
            responder_of(api_objects.listed(CLUSTER), {**FLAGS, **flags}, native=native)
            for flags, native in zip(SERVERS, natives, strict=True)
        ]

    def __call__(self, data: bytes) -> None:
        """Ask. Raises AssertionError for a wrong reply, or whatever the responder raises."""
        if not data:
            return
        responder = self.responders[data[0] >> 4 & 1]
        each = Asked(data[1:], SOURCES[data[0] & 7], PROTOCOLS[data[0] >> 3 & 1])
        computed = reply_of(responder, each, compute=True)
        whole = reply_of(responder, each._replace(proto="tcp"), compute=True)
        for _ in range(2):
            reply = reply_of(responder, each)
            assert_sound_reply(responder, each, reply)
            assert_same(reply, computed, whole)


def assert_sound_reply(responder: CountedResponder, asked: Asked, reply: bytes | None) -> None:
    """A reply is sound for the query after a PROXY header; after a malformed header there is none."""
    left = without_header(responder, asked)
    if left is None:
        assert reply is None
    else:
        assert_sound(asked._replace(wire=left[0]), reply)


def reply_of(responder: CountedResponder, asked: Asked, *, compute: bool = False) -> bytes | None:
    """Return the reply; one that waits for an upstream gets an alias and, for type A, addresses."""
    reply = replied(responder, asked, compute=compute)
    if not isinstance(reply, AnsweredQuery):
        return reply
    found = [Record(reply.target, wire.CNAME, 60, Host("cdn.example.net"))]
    if reply.query.qtype == wire.A:
        found += [Record("cdn.example.net", wire.A, 60, AddressData(bytes((192, 0, 2, last)))) for last in range(60)]
    unfound = responder.finished(reply, FAILED)
    assert isinstance(unfound, bytes)
    assert_sound_reply(responder, asked, unfound)
    finished = responder.finished(reply, said(found) if reply.query.octets[1] & 1 else FAILED)
    assert isinstance(finished, bytes)
    return finished


def seed_of(row: Row, server: int, header: bytes = b"") -> bytes:
    """Return a row of the wire table as an input; with a *header*, its source is the forwarder."""
    proto, source = PROTOCOLS.index(row.only or "udp"), FORWARDER if header else row.client
    return bytes((SOURCES.index(source) | proto << 3 | server << 4,)) + header + row.wire


def costly() -> Iterator[bytes]:
    """Yield the queries that cost most to read: what there may be many of, as often as fits."""
    yield query(WEB, edns=opt(*[option(65002)] * 900))
    yield query(WEB, edns=opt(*[option(CLIENT_OPTION, b"a=b")] * 500))
    yield query(WEB, edns=opt(*[ecs(IN_A)] * 300))
    yield query(WEB, edns=opt() * 300, counts=(1, 0, 0, 300))
    yield query(WEB, edns=RECORD * 200, counts=(1, 200, 0, 0))
    yield query(WEB, edns=RECORD * 200, counts=(1, 0, 0, 65535))
    yield query(WEB, edns=b"\0\0\1\0\1" * 700, counts=(65535, 0, 0, 0))
    yield query([b"a"] * 127)
    yield query([b"\xff" * 63] * 3 + [b"\xff" * 61])
    yield query(WEB, edns=b"".join((12 + at).to_bytes(2) for at in range(0x0C, 0x3F0, 2)), counts=(1, 0, 0, 9))
    yield query(WEB, edns=b"\xc0\x0c" * 1500, counts=(2, 0, 0, 0))


def seeds() -> Iterator[bytes]:
    """Yield the inputs to begin with: the rows of the wire table, for each server and behind PROXY headers."""
    for server in range(len(SERVERS)):
        yield from (seed_of(row, server) for row in (*ROWS, *UNSYNCED))
        for source, proto in product((IN_A, FORWARDER), range(len(PROTOCOLS))):
            first = SOURCES.index(source) | proto << 3 | server << 4
            yield from (bytes((first,)) + packet for packet in costly())
    for row, header in zip(ROWS, cycle(headers()), strict=False):
        yield seed_of(row, 1, header)


def headers() -> Iterator[bytes]:
    """Yield PROXY headers of each kind."""
    yield proxy_headers.proxied(IN_A)
    yield proxy_headers.proxied("fd00:1::1", proxy_headers.tlv(4, b"ab") + proxy_headers.tlv(3), stream=True)
    yield proxy_headers.proxied(f"::ffff:{IN_B}")
    yield proxy_headers.proxy_header(command=proxy_headers.LOCAL, family=proxy_headers.UNSPEC)
    yield proxy_headers.proxy_header(b"12345", family=proxy_headers.UNSPEC)
    yield proxy_headers.proxy_header(bytes(216), family=proxy_headers.UNIX_DGRAM)
    yield proxy_headers.proxied(NOWHERE)


def words() -> str:
    """Return octets worth inserting anywhere (options, records, labels), as libFuzzer reads a dictionary."""
    found = {
        dns_queries.option(code, data)
        for code in (3, 8, 10, 15, dns_queries.CLIENT_OPTION)
        for data in (b"", b"12345678")
    }
    found |= {
        dns_queries.ecs(text) for text in ("0", "0.0.0.0/0", IN_A, "10.244.1.0/24", "192.0.2.128/25", "2001:db8::/57")
    }
    found |= {dns_queries.opt(), dns_queries.opt(version=1), dns_queries.opt(flags=0x8000, size=512), b"\xc0\x0c", NAME}
    found |= {
        dns_queries.encoded(label)[:-1] for label in ("_tcp", "_zone", "pin", "prefer", "svc", "pod", "cluster.local")
    }
    found |= {*headers(), proxy_headers.PROXY_SIGNATURE}
    found |= {number.to_bytes(2) + b"\0\1" for number in (1, 5, 6, 12, 16, 28, 33, 41, 252, 255)}
    return "".join('"' + "".join(map("\\x{:02x}".format, word)) + '"\n' for word in sorted(found))
