# SPDX-License-Identifier: Apache-2.0

"""The cluster that the rows of the wire are about, its clients, and what a row is made of."""

from __future__ import annotations

import struct
from typing import NamedTuple

from tests.kit import api_objects
from tests.kit.api_objects import ZONE, external
from tests.kit.dns_queries import CLIENT_OPTION, RD, encoded, opt, option

AA, RA, Z = 0x0400, 0x0080, 0x0040
FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 1, 2, 3, 4, 5, 16
NSID, SUBNET, COOKIE, KEEPALIVE, PADDING, EXTENDED_ERROR = 3, 8, 10, 11, 12, 15
CH = 3  # a class

# The clients. They have loopback addresses, so that they can ask over real sockets, too.
IN_A, IN_B, FORWARDER, NOWHERE = "127.0.1.1", "127.0.1.2", "127.0.0.53", "127.0.9.9"

SERVED = "shop.svc.cluster.local"
WEB = f"web.{SERVED}"  # hard: one endpoint in zone a, two in zone b
FREE = f"free.{SERVED}"  # without a constraint
MANY = f"many.{SERVED}"  # 250 endpoints
FIFTY = f"fifty.{SERVED}"
MISSING = f"nope.{SERVED}"
ZONE_NAME = "cluster.local"

NAME = b"server-1"
FLAGS = {"client-option": CLIENT_OPTION, "ns-address": ["192.0.2.53"], "nsid": NAME.decode()}


def filling(limit: int, *, extra: int) -> tuple[str, int]:
    """Return a Service's name and number of endpoints for which question, A records and *extra* fill *limit* octets."""
    rest = limit - 12 - len(encoded(f".{SERVED}")) - 1 - 4 - extra
    count = (rest - 10) // 16
    return "x" * (rest - 16 * count), count


# Services whose replies end exactly at the limit, one octet before it, and one after it.
FITS_512, FITS_1232 = filling(512, extra=0), filling(1232, extra=11)
EXACT = [("512", b"", *FITS_512), ("1232", opt(size=4096), *FITS_1232)]


CLUSTER = [
    api_objects.namespace("shop"),
    api_objects.namespace("kube-system"),
    api_objects.node("node-a", {ZONE: "a"}, addresses=[IN_A, "fd00:1::1"], cidrs=["10.244.1.0/24", "fd00:244:1::/64"]),
    api_objects.node("node-b", {ZONE: "b"}, addresses=[IN_B, "fd00:1::2"], cidrs=["10.244.2.0/24"]),
    api_objects.service("web", keys=ZONE),
    api_objects.endpoint_slice(
        "web",
        0,
        [
            api_objects.endpoint("10.244.1.1", nodeName="node-a", hostname="web-0"),
            api_objects.endpoint("10.244.2.1", nodeName="node-b", hostname="web-1"),
            api_objects.endpoint("10.244.2.2", nodeName="node-b", hostname="web-2"),
        ],
    ),
    api_objects.service("soft", keys=f"{ZONE},*"),
    api_objects.endpoint_slice("soft", 0, [api_objects.endpoint("10.244.2.3", nodeName="node-b")]),
    api_objects.service("free"),
    api_objects.endpoint_slice("free", 0, [api_objects.endpoint("10.244.1.9"), api_objects.endpoint("10.244.2.9")]),
    api_objects.endpoint_slice("free", 1, [api_objects.endpoint("fd00:244:1::9")], family="IPv6"),
    api_objects.service("empty"),
    api_objects.service("api", cluster_ips=["10.96.0.20"], ports=[("https", 443, "TCP")]),
    external("inside", FREE),
    external("outside", "www.example.com"),
    external("dangling", MISSING),
    external("ring", f"ring.{SERVED}"),
    external("crowd", MANY),
    api_objects.service("kube-dns", cluster_ips=["10.96.0.10"], where="kube-system", selects=True),
    api_objects.endpoint_slice(
        "kube-dns",
        0,
        [api_objects.endpoint(FORWARDER, nodeName="node-a")],
        where="kube-system",
        by=api_objects.SLICE_CONTROLLER,
    ),
    *api_objects.large("many", 250),
    *api_objects.large("fifty", 50, net="10.251"),
    *api_objects.large("ten", 10, net="10.252"),
    *[
        item
        for number, (_, _, label, count) in enumerate(EXACT)
        for more in (-1, 0, 1)
        for item in api_objects.large(
            label[1:] if more < 0 else label + "x" * more, count, net=f"10.{200 + 3 * number + more}"
        )
    ],
]


# Expected replies

Section = int | tuple[str, ...]


class Reply(NamedTuple):
    """An expected reply; it also repeats id, opcode, RD, CD, and the question unless that cannot be read.

    A section is the number of its records, or their types and data, in any order; data that is left out may be any.
    ``ttl`` is that of every record. ``options`` are those of the OPT record, None without one; the text of an extended
    error may be any. ``size`` is in octets.
    """

    rcode: int = 0
    answer: Section = ()
    authority: Section = ()
    additional: Section = ()  # but for the OPT record
    ttl: int = 5
    options: tuple[bytes, ...] | None = None
    do: bool = False
    tc: bool = False
    question: bool = True
    size: int | None = None

    def edns(self, *options: bytes, do: bool = False) -> Reply:
        """Return the same with an OPT record that holds these options."""
        return self._replace(options=options, do=do)


class Row(NamedTuple):
    """A query and its reply: None for silence, ``tcp`` over TCP if it differs there.

    ``only`` is the transport if the row is for one alone.
    """

    id: str
    wire: bytes
    reply: Reply | None
    client: str = IN_A
    tcp: Reply | None = None
    only: str = ""

    def expected(self, proto: str) -> Reply | None:
        return self.tcp if self.tcp is not None and proto == "tcp" else self.reply


IN_ZONE_A = Reply(answer=("A 10.244.1.1",))
IN_ZONE_B = Reply(answer=("A 10.244.2.1", "A 10.244.2.2"))
EVERYBODY = Reply(answer=("A 10.244.1.1", "A 10.244.2.1", "A 10.244.2.2"))
FREE_A = Reply(answer=("A 10.244.1.9", "A 10.244.2.9"))
NODATA = Reply(authority=("SOA ns.dns.cluster.local. hostmaster.cluster.local.",))
NO_NAME = NODATA._replace(rcode=NXDOMAIN)
UNMET = NODATA._replace(ttl=0)  # must not be cached: caches share negative answers among clients (RFC 7871, 7.4)
WITH_RFC8482 = Reply(answer=('HINFO "RFC8482" ""',))
UNREADABLE = Reply(FORMERR, question=False)


def error(code: int) -> bytes:
    """Return an extended error without its text (RFC 8914)."""
    return option(EXTENDED_ERROR, struct.pack("!H", code))


# Queries

QUESTION = encoded(WEB) + b"\0\1\0\1"
RECORD = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4abcd"
BEHIND = RECORD[2:]  # a record but for its name
LABEL_63 = b"\x3f" + b"a" * 63


def raw(tail: bytes, *, flags: int = RD, counts: tuple[int, int, int, int] = (1, 0, 0, 0)) -> bytes:
    """Return a header with these flags and counts, and the octets after it."""
    return struct.pack("!6H", 0x1234, flags, *counts) + tail


def asking(name: bytes, tail: bytes = b"\0\1\0\1") -> bytes:
    """Return a query whose name is these octets."""
    return raw(name + tail)


def further(*records: bytes, counts: tuple[int, int, int, int] | None = None) -> bytes:
    """Return a query for WEB with further records, in the additional section unless *counts* say otherwise."""
    return raw(QUESTION + b"".join(records), counts=counts or (1, 0, 0, len(records)))


def record(name: bytes, rtype: int, data: bytes = b"", *, rclass: int = 1) -> bytes:
    return name + struct.pack("!HHIH", rtype, rclass, 0, len(data)) + data


TSIG = record(
    encoded("key"),
    250,
    encoded("hmac-sha256") + struct.pack("!HIHH", 0, 1, 300, 32) + bytes(32) + struct.pack("!HHH", 0x1234, 0, 0),
    rclass=255,
)
SOA_RECORD = record(b"\xc0\x0c", 6, bytes(22))
PADDED = opt(option(PADDING, bytes(1232 - 12 - len(QUESTION) - 11 - 4)))
