# SPDX-License-Identifier: Apache-2.0

"""The wire as a table: each row is a rule, with the query in octets and the expected reply.

The rules are ours or an RFC's; the queries of ISC's EDNS compliance tester keep the names that they have there.
``test_wire.py`` sends each row to a responder with an empty cache and with a full one, over UDP and over TCP;
``tests/fuzz`` begins with all rows. An input that once harmed the server becomes a row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from locator.ip import parse_address
from tests.kit import api_objects
from tests.kit.api_objects import ZONE, external
from tests.kit.dns_queries import AD, CD, CLIENT_OPTION, QR, RD, TC, ecs, encoded, opt, option, query

AA, RA, Z = 0x0400, 0x0080, 0x0040
FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 1, 2, 3, 4, 5, 16
NSID, SUBNET, EXPIRE, COOKIE, KEEPALIVE, PADDING, EXTENDED_ERROR = 3, 8, 9, 10, 11, 12, 15
CH, NONE, ANY = 3, 254, 255  # classes

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
    """A rule; ``reply`` is None for silence, ``tcp`` the reply over TCP if it differs.

    ``only`` is the transport if the row is for one alone.
    """

    id: str
    rule: str
    wire: bytes
    reply: Reply | None
    client: str = IN_A
    tcp: Reply | None = None
    only: str = ""

    def expected(self, proto: str) -> Reply | None:
        return self.tcp if self.tcp is not None and proto == "tcp" else self.reply


IN_ZONE_A = Reply(answer=("A 10.244.1.1",))
IN_ZONE_B = Reply(answer=("A 10.244.2.1", "A 10.244.2.2"))
FREE_A = Reply(answer=("A 10.244.1.9", "A 10.244.2.9"))
NODATA = Reply(authority=("SOA ns.dns.cluster.local. hostmaster.cluster.local.",))
NO_NAME = NODATA._replace(rcode=NXDOMAIN)
UNMET = NODATA._replace(ttl=0)  # must not be cached: caches share negative answers among clients (RFC 7871, 7.4)
WITH_RFC8482 = Reply(answer=('HINFO "RFC8482" ""',))
UNREADABLE = Reply(FORMERR, question=False)


def refused(rcode: int) -> Reply:
    return Reply(rcode)


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
PADDED = opt(option(PADDING, bytes(1232 - 12 - len(QUESTION) - 11 - 4)))


def silence() -> Iterator[Row]:
    rule = "RFC 1035, 4.1.1: no reply to what is no query"
    for length in range(12):
        yield Row(f"{length} octets", rule, query(WEB)[:length], None)
    for name, wire in [
        ("a response", query(WEB, flags=QR)),
        ("a response with an OPT", query(WEB, flags=QR | AA, edns=opt())),
        ("a response that is broken", raw(b"\xff", flags=QR)),
        ("a response with another opcode", query(WEB, flags=QR | 0x2800)),
        ("a response: REFUSED", query(WEB, flags=QR | REFUSED)),
    ]:
        yield Row(name, rule, wire, None)


def header() -> Iterator[Row]:
    rule = "RFC 1035, 4.1.1; RFC 6895, 2: RD and CD are copied and no other flag, whatever a query sets"
    flags = (0, RD, CD, RD | CD, RD | AD, RD | RA, RD | Z, RD | TC, RD | AA, AD | CD, AA | TC | RD | RA | Z | AD | CD)
    for name, wire, reply in [
        ("an answer", WEB, IN_ZONE_A),
        ("NXDOMAIN", MISSING, NO_NAME),
        ("REFUSED", "example.com", refused(REFUSED)),
    ]:
        for flag in flags:
            yield Row(f"flags {flag:#06x}, {name}", rule, query(wire, flags=flag), reply)
        yield Row(f"RCODE 15, {name}", rule, query(wire, flags=RD | 15), reply)
    yield Row("ID 0", "RFC 1035, 4.1.1: copied", query(WEB, number=0), IN_ZONE_A)
    yield Row("ID 65535", "RFC 1035, 4.1.1: copied", query(WEB, number=65535), IN_ZONE_A)

    rule = "RFC 1035, 4.1.1; RFC 6895, 2.2: NOTIMP for every opcode but QUERY, before anything else is judged"
    for opcode in range(1, 16):
        yield Row(f"opcode {opcode}", rule, query(WEB, flags=opcode << 11), refused(NOTIMP))
        yield Row(f"opcode {opcode}, EDNS", rule, query(WEB, flags=opcode << 11, edns=opt()), refused(NOTIMP).edns())
    soa = record(b"\xc0\x0c", 6, b"\0\0" + bytes(20))
    every_flag = AA | TC | RD | RA | Z | AD | CD
    for name, wire, reply in [
        ("opcode 15 with every flag", query(WEB, flags=0x7800 | every_flag), refused(NOTIMP)),
        (
            "NOTIFY with a SOA",
            raw(encoded(ZONE_NAME) + b"\0\6\0\1" + soa, flags=0x2400, counts=(1, 1, 0, 0)),
            refused(NOTIMP),
        ),
        (
            "UPDATE that adds a record",
            raw(encoded(ZONE_NAME) + b"\0\6\0\1" + RECORD, flags=0x2800, counts=(1, 0, 1, 0)),
            refused(NOTIMP),
        ),
        ("UPDATE outside the zones", query("example.com", 6, flags=0x2800), refused(NOTIMP)),
        ("an opcode without a question", raw(b"", flags=0x1000, counts=(0, 0, 0, 0)), Reply(NOTIMP, question=False)),
        ("an opcode, and a broken question", raw(b"\xff", flags=0x2000), Reply(NOTIMP, question=False)),
        ("an opcode, and trailing octets", query(WEB, flags=0x1000) + b"\0", refused(NOTIMP)),
        (
            "an opcode, and two questions",
            raw(QUESTION * 2, flags=0x2000, counts=(2, 0, 0, 0)),
            Reply(NOTIMP, question=False),
        ),
        ("an opcode before BADVERS", query(WEB, flags=0x2800, edns=opt(version=1)), refused(NOTIMP).edns()),
        ("an opcode before the class", query(WEB, flags=0x7800, qclass=CH), refused(NOTIMP)),
    ]:
        yield Row(name, rule, wire, reply)


def counts() -> Iterator[Row]:
    rule = "RFC 9619: a query has one question"
    for number in (0, 2, 3, 65535):
        for written in (0, 1, 2):
            if number != written or number != 1:
                wire = raw(QUESTION * written, counts=(number, 0, 0, 0))
                yield Row(f"QDCOUNT {number}, {written} written", rule, wire, UNREADABLE)
    yield Row("QDCOUNT 1, 0 written", rule, raw(b""), UNREADABLE)
    yield Row("QDCOUNT 1, 2 written", rule, raw(QUESTION * 2), refused(FORMERR))
    for number in (0, 2):
        wire = raw(QUESTION * number + opt(), counts=(number, 0, 0, 1))
        yield Row(f"QDCOUNT {number} with an OPT", "RFC 6891, 7: errors included", wire, UNREADABLE.edns())

        wire = raw(QUESTION * number + opt(), flags=0x2000, counts=(number, 0, 0, 1))
        yield Row(f"an opcode, QDCOUNT {number}, an OPT", "RFC 6891, 7", wire, Reply(NOTIMP, question=False).edns())

    rule = "RFC 1035, 4.1.1: the counts are true"
    for at, section in enumerate(("ANCOUNT", "NSCOUNT", "ARCOUNT"), 1):
        for number, written in ((1, 0), (2, 1), (65535, 1), (0, 1), (1, 2)):
            said = tuple(number if place == at else 1 if place == 0 else 0 for place in range(4))
            wire = raw(QUESTION + RECORD * written, counts=said)  # type: ignore[arg-type]
            yield Row(f"{section} {number}, {written} written", rule, wire, refused(FORMERR))
        said = tuple(1 if place in (0, at) else 0 for place in range(4))
        wire = raw(QUESTION + RECORD, counts=said)  # type: ignore[arg-type]
        yield Row(f"{section} 1, 1 written", f"{rule}; records that nobody needs are ignored", wire, IN_ZONE_A)

    rule = "Nothing stands behind the last record"
    yield Row("a trailing octet", rule, query(WEB) + b"\0", refused(FORMERR))
    yield Row("a trailing octet behind an OPT", rule, query(WEB, edns=opt() + b"\0"), refused(FORMERR).edns())
    yield Row(
        "a trailing octet behind a client subnet",
        rule,
        query(WEB, edns=opt(ecs(IN_A)) + b"\0"),
        refused(FORMERR).edns(ecs(IN_A)),
    )
    yield Row("a query, twice", rule, query(WEB) * 2, refused(FORMERR))


def names() -> Iterator[Row]:
    rule = "RFC 1035, 3.1 and 4.1.4: a name is whole, of labels of 63 octets and 255 octets in all"
    for name, wire in [
        ("a header alone", raw(b"")),
        ("a question cut in its name", query(WEB)[:20]),
        ("a question without its end", query(WEB)[:-5]),
        ("a question cut before its type", query(WEB)[:-4]),
        ("a question cut in its class", query(WEB)[:-1]),
        ("a label of 64", asking(b"\x40" + b"a" * 64 + b"\0")),
        ("a label of 127", asking(b"\x7f" + b"a" * 127 + b"\0")),
        ("a label of type 0x80", asking(b"\x80" + b"a" * 128 + b"\0")),
        ("a label of type 0xbf", asking(b"\xbf" + b"a" * 191 + b"\0")),
        ("a bit-string label (RFC 2673)", asking(b"\x41\x08\xff\0")),
        ("a name of 256", asking(LABEL_63 * 3 + b"\x3e" + b"a" * 62 + b"\0")),
        ("a name of 256 in the zone", asking(LABEL_63 * 3 + b"\x30" + b"a" * 48 + encoded(ZONE_NAME))),
        ("a name of 1000", asking(LABEL_63 * 15 + b"\x26" + b"a" * 38 + b"\0")),
        ("a name of 256 in short labels", asking(b"\1a" * 127 + b"\1\0" + b"\0")),
        ("a pointer to itself", asking(b"\xc0\x0c")),
        ("a pointer into the header", asking(b"\xc0\x00")),
        ("a pointer to a zero in the header", asking(b"\xc0\x06")),
        ("a pointer forward", asking(b"\xc0\x20")),
        ("a pointer behind the end", asking(b"\xff\xff")),
        ("a pointer back in the question", asking(b"\3web\xc0\x0c")),
        ("half a pointer", raw(b"\3web\xc0")),
        ("two pointers round about", asking(b"\xc0\x0e\xc0\x0c")),
    ]:
        yield Row(name, rule, wire, UNREADABLE)
    for name, wire, reply in [
        ("a label of 63", query(f"{'a' * 63}.{SERVED}"), NO_NAME),
        ("a name of 255, outside", asking(LABEL_63 * 3 + b"\x3d" + b"a" * 61 + b"\0"), refused(REFUSED)),
        ("a name of 255 in the zone", asking(LABEL_63 * 3 + b"\x2f" + b"a" * 47 + encoded(ZONE_NAME)), NO_NAME),
        ("a name of 255 in short labels", asking(b"\1a" * 120 + encoded(ZONE_NAME)), NO_NAME),
    ]:
        yield Row(name, rule, wire, reply)

    rule = "RFC 2181, 11: any octets make a label"
    cluster = [b"shop", b"svc", b"cluster", b"local"]
    odd: list[tuple[str, list[bytes], Reply]] = [
        ("a NUL in a label", [b"w\0b", *cluster], NO_NAME),
        ("a NUL, then a Service's name", [b"\0", b"web", *cluster], NO_NAME),
        ("a label that looks like an end", [b"web\0\0\1\0\1", *cluster], NO_NAME),
        ("a label that looks like a Service's name", [encoded(WEB), *cluster], NO_NAME),
        ("a dot in a label", [b"web.shop", *cluster[1:]], NO_NAME),
        ("a dot for a label", [b".", *cluster], NO_NAME),
        ("a zone in one label", [b"web", b"shop", b"svc", b"cluster.local"], refused(REFUSED)),
        ("octets beyond ASCII", [b"w\xe9b", *cluster], NO_NAME),
        ("UTF-8", ["wéb".encode(), *cluster], NO_NAME),
        ("octets that are no text", [b"\xff\xfe\x80", *cluster], NO_NAME),
        ("an underscore alone", [b"_", b"_", b"web", *cluster], NO_NAME),
        ("a slash in a label", [b"shop/web", *cluster[1:]], NO_NAME),
        ("a backslash in a label", [b"we\\098", *cluster], NO_NAME),
        ("a blank in a label", [b"web ", *cluster], NO_NAME),
        ("an asterisk", [b"*", *cluster], NO_NAME),
        ("an empty label's look", [b"\0", *cluster], NO_NAME),
    ]
    for name, labels, reply in odd:
        for form, edns, more in (("plain", b"", None), ("EDNS", opt(), ())):
            for qtype in ("A", "SRV", "ANY"):
                wire = query(labels, qtype, edns=edns)
                yield Row(f"{name}, {qtype}, {form}", rule, wire, reply._replace(options=more))

    everybody = Reply(answer=IN_ZONE_A.answer + IN_ZONE_B.answer)  # type: ignore[operator]
    for shown, value in [
        ("beyond ASCII", [b"\xf7"]),
        ("a NUL", [b"\0"]),
        ("a dot and a blank", [b"a", b".", b" "]),
        ("the longest", [b"\xff" * 63]),
        ("like a port's, and the end of a question", [b"_main", b"_tcp", b"\xf7Eb", b"\0\1\1b"]),
    ]:
        for qtype, reply in (("A", everybody), ("SRV", Reply(answer=3, additional=3)), ("ANY", WITH_RFC8482)):
            wire = query([*value, b"prefer", b"_zone", b"web", *cluster], qtype, edns=opt())
            yield Row(f"zonal value: {shown}, {qtype}", rule, wire, reply.edns())
        wire = query([*value, b"pin", b"_zone", b"web", *cluster], edns=opt())
        yield Row(f"zonal value: {shown}, pinned", rule, wire, NODATA.edns())

    rule = "RFC 4343; RFC 1035, 2.3.3: names compare case-insensitively, and the question comes back as it was"
    for each in (WEB.upper(), "wEb.ShOp.SvC.cLuStEr.LoCaL", "web.shop.svc.cluster.LOCAL"):
        yield Row(f"case: {each}", rule, query(each), IN_ZONE_A)
        yield Row(f"case: {each}, EDNS", rule, query(each, edns=opt()), IN_ZONE_A.edns())
    yield Row("case: NXDOMAIN", rule, query("NOPE.sHoP.svc.CLUSTER.local"), NO_NAME)
    yield Row("case: not beyond ASCII", rule, query([b"\xc3\x89", *cluster]), NO_NAME)

    rule = "Outside the served zones: REFUSED"
    for each in ("example.com", "", "local", "xcluster.local", "cluster.local.example.com", "com", "cluster"):
        yield Row(f"outside: {each or 'the root'}", rule, query(each), refused(REFUSED))
        yield Row(
            f"outside: {each or 'the root'}, EDNS", rule, query(each, "AAAA", edns=opt()), refused(REFUSED).edns()
        )
    yield Row(
        "the root's NS, as a priming query",
        rule,
        query("", "NS", flags=0, edns=opt(size=4096)),
        refused(REFUSED).edns(),
    )


def records() -> Iterator[Row]:
    rule = "RFC 1035, 4.1.4: a record's name is whole, and pointers point back"
    long = LABEL_63 * 3
    for name, owner, reply in [
        ("a pointer to the question", b"\xc0\x0c", IN_ZONE_A),
        ("a pointer into the question", b"\xc0\x10", IN_ZONE_A),
        ("labels, then a pointer", b"\1a\xc0\x0c", IN_ZONE_A),
        ("the root", b"\0", IN_ZONE_A),
        ("a name of 255", long + b"\x3d" + b"a" * 61 + b"\0", IN_ZONE_A),
        ("a pointer to itself", struct.pack("!H", 0xC000 | 12 + len(QUESTION)), refused(FORMERR)),
        ("a pointer forward", b"\xc0\xff", refused(FORMERR)),
        ("a pointer behind the end", b"\xff\xff", refused(FORMERR)),
        ("a pointer to the header", b"\xc0\2", refused(FORMERR)),
        ("a pointer to the header's last octet", b"\xc0\x0b", refused(FORMERR)),
        ("a label of 64", b"\x40" + b"a" * 64 + b"\0", refused(FORMERR)),
        ("a label of type 0x80", b"\x80" + b"a" * 128 + b"\0", refused(FORMERR)),
        ("a name of 256", long + b"\x3e" + b"a" * 62 + b"\0", refused(FORMERR)),
    ]:
        yield Row(f"a record's name: {name}", rule, further(owner + BEHIND), reply)
    rule = "RFC 1035, 4.1.3: a record is whole"
    for cut in (1, 2, 3, 10, 11, len(RECORD) - 1):
        yield Row(f"a record of {cut} octets", rule, further(RECORD[:cut]), refused(FORMERR))
    yield Row("a record that says 65535 octets", rule, further(RECORD[:10] + b"\xff\xffabcd"), refused(FORMERR))
    yield Row("a record without data", rule, further(record(b"\0", 1)), IN_ZONE_A)

    rule = "RFC 6891, 6.1.1: an OPT anywhere in the additional section; whatever stands beside it is ignored"
    yield Row("a record, then an OPT", rule, further(RECORD, opt()), IN_ZONE_A.edns())
    yield Row("an OPT, then a record", rule, further(opt(), RECORD), IN_ZONE_A.edns())
    yield Row(
        "an OPT between records",
        rule,
        further(RECORD, opt(ecs(IN_B)), RECORD),
        IN_ZONE_A.edns(ecs(IN_B, scope=32), error(0)),
    )
    yield Row(
        "an OPT, and records in each section",
        rule,
        further(RECORD, RECORD, opt(), counts=(1, 1, 1, 1)),
        IN_ZONE_A.edns(),
    )
    rule = "RFC 8945: we hold no key; the record is one that we do not know, and is ignored"
    yield Row("TSIG at the end", rule, further(TSIG), IN_ZONE_A)
    yield Row("TSIG behind an OPT", rule, further(opt(), TSIG), IN_ZONE_A.edns())
    yield Row("SIG(0) at the end", "RFC 2931: the same", further(record(b"\0", 24, bytes(18) + b"\0")), IN_ZONE_A)

    rule = "RFC 6891, 6.1.1: one OPT, at the root, in the additional section"
    pointer_to_root = struct.pack("!H", 0xC000 | 12 + len(encoded(WEB)) - 1)
    for name, wire, reply in [
        ("two OPTs", further(opt(), opt()), refused(FORMERR).edns()),
        ("two OPTs and a record between", further(opt(), RECORD, opt()), refused(FORMERR).edns()),
        ("two OPTs before BADVERS", further(opt(version=1), opt()), refused(FORMERR).edns()),
        ("an OPT with a name", further(opt(name=b"\1a\0")), refused(FORMERR)),
        ("an OPT with the question's name", further(opt(name=b"\xc0\x0c")), refused(FORMERR)),
        ("an OPT whose name points to the root", further(opt(name=pointer_to_root)), refused(FORMERR)),
        ("an OPT among the answers", further(opt(), counts=(1, 1, 0, 0)), refused(FORMERR)),
        ("an OPT in the authority section", further(opt(), counts=(1, 0, 1, 0)), refused(FORMERR)),
        ("an OPT among the answers and a right one", further(opt(), opt(), counts=(1, 1, 0, 1)), refused(FORMERR)),
        ("an OPT that is cut", further(opt()[:-1]), refused(FORMERR)),
        ("an OPT whose length is too long", further(opt()[:-2] + b"\0\1"), refused(FORMERR)),
    ]:
        yield Row(name, rule, wire, reply)


def types() -> Iterator[Row]:
    rule = "A name that exists has records of a type or has none: NODATA, whatever the type"
    #        MD MF  NULL WKS  MX  AFSDB SIG KEY NAPTR DNAME OPT DS RRSIG DNSKEY SVCB HTTPS SPF MAILB MAILA CAA
    for qtype in (
        0, 3, 4, 10, 11, 15, 16, 18, 24, 25, 35, 39, 41, 43, 46, 47, 48, 52, 64, 65, 99, 128, 249, 250,
        253, 254, 257, 666, 1000, 32768, 65280, 65535
    ):  # fmt: skip
        yield Row(f"TYPE{qtype} of a Service", rule, query(WEB, qtype), NODATA)
    for qtype in (1, 28, 43, 46, 48, 51, 666, 1000):
        yield Row(f"TYPE{qtype} of the apex", rule, query(ZONE_NAME, qtype, edns=opt()), NODATA.edns())
        yield Row(f"TYPE{qtype} of no name", "RFC 2308, 2.1", query(MISSING, qtype, edns=opt()), NO_NAME.edns())
    yield Row(
        "what nobody has is the same for all",
        f"{rule}; a place is no reason for it",
        query(WEB, 1000, edns=opt()),
        NODATA.edns(),
        NOWHERE,
    )
    yield Row("AAAA where there is A", rule, query("fifty." + SERVED, "AAAA"), NODATA)
    yield Row("a Service without endpoints", "Schema 1.1.0: NXDOMAIN", query(f"empty.{SERVED}"), NO_NAME)
    yield Row("an impossible shape", "Schema 1.1.0: NXDOMAIN", query("a.b.c.d.e.svc.cluster.local"), NO_NAME)
    for each in ("svc.cluster.local", "pod.cluster.local", "dns.cluster.local", SERVED, f"_tcp.{WEB}"):
        yield Row(f"between: {each}", "RFC 8020: names exist beneath it: NODATA", query(each), NODATA)

    rule = "RFC 8482, 4.2: HINFO for names that exist"
    for each in (WEB, FREE, MANY, ZONE_NAME, "svc.cluster.local", f"web-0.{WEB}", f"_main._tcp.{WEB}", f"api.{SERVED}"):
        yield Row(f"ANY: {each}", rule, query(each, "ANY", edns=opt()), WITH_RFC8482.edns())
    yield Row("ANY for a client that has nothing", rule, query(WEB, "ANY", edns=opt()), WITH_RFC8482.edns(), NOWHERE)
    yield Row("ANY of no name", rule, query(MISSING, "ANY"), NO_NAME)
    yield Row("ANY outside", rule, query("example.com", "ANY"), refused(REFUSED))
    cname = Reply(answer=("CNAME www.example.com.",))
    yield Row("ANY of an ExternalName", "The CNAME where there is one", query(f"outside.{SERVED}", "ANY"), cname)

    rule = "RFC 5936, RFC 1995: zone transfers are REFUSED"
    soa = record(b"\xc0\x0c", 6, b"\0\0" + bytes(20))
    for name, wire in [
        ("AXFR", query(ZONE_NAME, "AXFR")),
        ("AXFR of a Service", query(WEB, "AXFR")),
        ("AXFR of no name", query(MISSING, "AXFR")),
        ("AXFR outside", query("example.com", "AXFR")),
        ("IXFR", query(ZONE_NAME, 251)),
        ("IXFR from a serial", raw(encoded(ZONE_NAME) + b"\0\xfb\0\1" + soa, counts=(1, 0, 1, 0))),
    ]:
        yield Row(name, rule, wire, refused(REFUSED))
    yield Row("AXFR, EDNS", rule, query(ZONE_NAME, "AXFR", edns=opt()), refused(REFUSED).edns())

    rule = "RFC 1035, 3.2.4: classes other than IN are REFUSED"
    for qclass in (0, 2, CH, 4, NONE, ANY, 65535):
        yield Row(f"class {qclass}", rule, query(WEB, qclass=qclass), refused(REFUSED))
        yield Row(f"class {qclass}, EDNS", rule, query(WEB, "SRV", qclass=qclass, edns=opt()), refused(REFUSED).edns())
    yield Row("version.bind CH", rule, query("version.bind", "TXT", qclass=CH), refused(REFUSED))
    yield Row("class CH and AXFR", rule, query(ZONE_NAME, "AXFR", qclass=CH), refused(REFUSED))
    yield Row("FORMERR before the class", rule, query(WEB, qclass=CH) + b"\0", refused(FORMERR))

    soa_name = "SOA ns.dns.cluster.local. hostmaster.cluster.local."
    yield Row("the SOA", "RFC 1035, 3.3.13", query(ZONE_NAME, "SOA"), Reply(answer=(soa_name,)))
    yield Row(
        "the NS",
        "RFC 1035, 3.3.11, with its address",
        query(ZONE_NAME, "NS"),
        Reply(answer=("NS ns.dns.cluster.local.",), additional=("A 192.0.2.53",)),
    )
    yield Row(
        "SRV with its addresses",
        "RFC 2782",
        query(WEB, "SRV"),
        Reply(answer=(f"SRV 0 100 80 web-0.{WEB}.",), additional=("A 10.244.1.1",)),
    )
    yield Row(
        "SRV of a port",
        "RFC 2782",
        query(f"_main._tcp.{WEB}", "SRV", edns=opt()),
        Reply(
            answer=(f"SRV 0 50 80 web-1.{WEB}.", f"SRV 0 50 80 web-2.{WEB}."),
            additional=("A 10.244.2.1", "A 10.244.2.2"),
        ).edns(),
        IN_B,
    )
    version = Reply(answer=('TXT "1.1.0"',), ttl=28800)
    yield Row("the version", "Schema 1.1.0, 2.2", query(f"dns-version.{ZONE_NAME}", "TXT"), version)
    for name, client, reply in [
        (f"a.pin._zone.{WEB}", NOWHERE, IN_ZONE_A),
        (f"b.pin._zone.{WEB}", IN_A, IN_ZONE_B),
        (f"z.pin._zone.{WEB}", IN_A, NODATA),
        (f"b.prefer._zone.{WEB}", IN_A, IN_ZONE_B),
        (f"z.prefer._zone.{WEB}", NOWHERE, Reply(answer=IN_ZONE_A.answer + IN_ZONE_B.answer)),  # type: ignore[operator]
        (f"_zone.{WEB}", IN_A, NODATA),
        (f"pin._zone.{WEB}", IN_A, NODATA),
    ]:
        subnet = ecs("192.0.2.7")
        rule = "A zonal name carries its own constraint, which does not depend on the client"
        yield Row(f"zonal: {name}", rule, query(name, edns=opt(subnet)), reply.edns(subnet, error(0)), client)
    yield Row("PTR", "RFC 1035, 3.5", query("20.0.96.10.in-addr.arpa", 12), Reply(answer=(f"PTR api.{SERVED}.",)))
    inside = Reply(answer=(f"CNAME {FREE}.", "A 10.244.1.9", "A 10.244.2.9"))
    yield Row(
        "a CNAME into the zone", "RFC 1034, 3.6.2: followed in the same answer", query(f"inside.{SERVED}"), inside
    )
    yield Row("a CNAME out of the zone", "RFC 1034, 3.6.2: alone", query(f"outside.{SERVED}"), cname)
    yield Row(
        "a CNAME to no name",
        "RFC 2308, 2.1; RFC 6604: NXDOMAIN",
        query(f"dangling.{SERVED}"),
        NO_NAME._replace(answer=(f"CNAME {MISSING}.",)),
    )


def edns() -> Iterator[Row]:
    rule = "RFC 6891, 6.1.1 and 7: an OPT to those who sent one, errors included, and to nobody else"
    for name, wire, client, reply, options in [
        ("an answer", query(WEB), IN_A, IN_ZONE_A, ()),
        ("NODATA", query(WEB, 65000), IN_A, NODATA, ()),
        ("NXDOMAIN", query(MISSING), IN_A, NO_NAME, ()),
        ("REFUSED", query("example.com"), IN_A, refused(REFUSED), ()),
        ("an unmet constraint", query(WEB), NOWHERE, UNMET, (error(0),)),
    ]:
        yield Row(f"dns: {name}", rule, wire, reply, client)
        wire = wire[:11] + b"\1" + wire[12:] + opt()
        yield Row(f"edns: {name}", rule, wire, reply.edns(*options), client)
    yield Row("no OPT, FORMERR", rule, query(WEB) + b"\0", refused(FORMERR))
    yield Row("an OPT with an extended rcode", rule, query(WEB, edns=opt(rcode=255)), IN_ZONE_A.edns())

    rule = "RFC 6891, 6.1.3: BADVERS for a version above 0, no answer, version 0 in the reply, its options not read"
    badvers = refused(BADVERS)
    for name, wire, reply in [
        ("edns1", query(WEB, edns=opt(version=1)), badvers.edns()),
        ("edns1opt", query(WEB, edns=opt(option(100), version=1)), badvers.edns()),
        ("edns1 with NSID", query(WEB, edns=opt(option(NSID), version=1)), badvers.edns()),
        ("edns1 with a broken option", query(WEB, edns=opt(b"\0\x08\0\1\0", version=1)), badvers.edns()),
        ("edns1 with DO", query(WEB, edns=opt(version=1, flags=0x8000)), badvers.edns(do=True)),
        ("version 255", query(WEB, edns=opt(version=255)), badvers.edns()),
        ("BADVERS before the class", query(WEB, qclass=CH, edns=opt(version=1)), badvers.edns()),
        ("BADVERS before the zones", query("example.com", edns=opt(version=1)), badvers.edns()),
        ("FORMERR before BADVERS", query(WEB, edns=opt(version=1) + b"\0"), refused(FORMERR).edns()),
    ]:
        yield Row(name, rule, wire, reply)

    rule = "RFC 3225; RFC 6891, 6.1.4: DO is copied, unknown flags are ignored and not echoed"
    for flags in (0x8000, 0x4000, 0x0080, 0x7FFF, 0xFFFF):
        do = flags >= 0x8000
        name = "do" if flags == 0x8000 else f"ednsflags {flags:#06x}"
        yield Row(name, rule, query(WEB, edns=opt(flags=flags)), IN_ZONE_A.edns(do=do))
        yield Row(f"{name}, REFUSED", rule, query("example.com", edns=opt(flags=flags)), refused(REFUSED).edns(do=do))
        yield Row(f"{name}, FORMERR", rule, query(WEB, edns=opt(flags=flags) + b"\0"), refused(FORMERR).edns(do=do))

    rule = "RFC 6891, 6.1.2: unknown options are ignored and not echoed"
    for code in (
        0, 1, 2, 4, 5, 6, 7, EXPIRE, COOKIE, KEEPALIVE, PADDING, 13, 14, EXTENDED_ERROR, 16, 17, 18, 19,
        20292, 26946, 65000, 65002, 65535
    ):  # fmt: skip
        for form, content in (("empty", b""), ("8 octets", b"12345678")):
            yield Row(f"ednsopt {code}, {form}", rule, query(WEB, edns=opt(option(code, content))), IN_ZONE_A.edns())
    cookies = "RFC 7873, 5.2: a server that does not implement cookies ignores them"
    for size in (1, 7, 8, 9, 15, 16, 40, 41):
        yield Row(f"a cookie of {size}", cookies, query(WEB, edns=opt(option(COOKIE, b"c" * size))), IN_ZONE_A.edns())
    keepalive = "RFC 7828, 3.2.1: ignored"
    yield Row("keepalive with a time", keepalive, query(WEB, edns=opt(option(KEEPALIVE, b"\0\x64"))), IN_ZONE_A.edns())
    yield Row("padding to 1232 octets", "RFC 7830: ignored", query(WEB, edns=PADDED), IN_ZONE_A.edns())
    yield Row("unknown options twice", rule, query(WEB, edns=opt(*[option(100, b"x")] * 3)), IN_ZONE_A.edns())
    for name, options in [
        ("an option cut off", b"\0\x0a\0\x09abc"),
        ("an option's head cut off", b"\0\x0a\0"),
        ("an option's code cut off", b"\0"),
        ("an option that says 65535 octets", b"\0\x0a\xff\xff"),
        ("an option cut off behind a good one", ecs(IN_A) + b"\0\x0a\0\1"),
        ("a known option cut off", b"\0\3\0\1"),
    ]:
        rule = "RFC 6891, 6.1.2: options are whole, else FORMERR, with an OPT, since one was there"
        yield Row(name, rule, query(WEB, edns=opt(options)), refused(FORMERR).edns())


def options_together() -> Iterator[Row]:
    rule = "RFC 5001: who asks for the server's name is told it"
    name = option(NSID, NAME)
    asked = option(NSID)
    subnet, cookie = ecs(IN_A), option(COOKIE, b"12345678")
    for title, wire, reply, client in [
        ("asked", query(WEB, edns=opt(asked)), IN_ZONE_A.edns(name), IN_A),
        ("asked with content", query(WEB, edns=opt(option(NSID, b"what"))), IN_ZONE_A.edns(name), IN_A),
        ("asked twice", query(WEB, edns=opt(asked, asked)), IN_ZONE_A.edns(name), IN_A),
        ("not asked", query(WEB, edns=opt()), IN_ZONE_A.edns(), IN_A),
        ("with DO", query(WEB, edns=opt(asked, flags=0x8000)), IN_ZONE_A.edns(name, do=True), IN_A),
        ("NXDOMAIN", query(MISSING, edns=opt(asked)), NO_NAME.edns(name), IN_A),
        ("NODATA", query(WEB, 65000, edns=opt(asked)), NODATA.edns(name), IN_A),
        ("REFUSED", query("example.com", edns=opt(asked)), refused(REFUSED).edns(name), IN_A),
        ("ANY", query(WEB, "ANY", edns=opt(asked)), WITH_RFC8482.edns(name), IN_A),
        ("an unmet constraint", query(WEB, edns=opt(asked)), UNMET.edns(name, error(0)), NOWHERE),
        (
            "and a client subnet",
            query(WEB, edns=opt(asked, subnet)),
            IN_ZONE_A.edns(name, ecs(IN_A, scope=32)),
            FORWARDER,
        ),
        (
            "behind a client subnet",
            query(WEB, edns=opt(subnet, asked)),
            IN_ZONE_A.edns(name, ecs(IN_A, scope=32)),
            FORWARDER,
        ),
        (
            "a client subnet, unmet",
            query(WEB, edns=opt(asked, ecs(NOWHERE))),
            UNMET.edns(name, ecs(NOWHERE, scope=32), error(0)),
            FORWARDER,
        ),
        ("and a cookie", query(WEB, edns=opt(cookie, asked)), IN_ZONE_A.edns(name), IN_A),
        ("and a bad client subnet", query(WEB, edns=opt(asked, option(SUBNET))), refused(FORMERR).edns(), IN_A),
    ]:
        yield Row(f"NSID: {title}", rule, wire, reply, client)

    rule = "RFC 6891, 6.1.2: options in any order; what is known is answered, the rest ignored"
    expire = option(EXPIRE)
    for number, each in enumerate(
        ((asked, subnet, cookie, expire), (expire, cookie, subnet, asked), (cookie, asked, expire, subnet))
    ):
        reply = IN_ZONE_A.edns(name, ecs(IN_A, scope=32))
        yield Row(f"optlist, order {number}", rule, query(WEB, edns=opt(*each)), reply, FORWARDER)
        yield Row(
            f"optlist, order {number}, free", rule, query(FREE, edns=opt(*each)), FREE_A.edns(name, subnet), FORWARDER
        )
    rule = "more than 32 options are FORMERR, whatever they say, so that no query costs much to read"
    for number, reply in ((32, IN_ZONE_A.edns(name, ecs(IN_A, scope=32))), (33, refused(FORMERR).edns())):
        many = query(WEB, edns=opt(*[option(100 + other) for other in range(number - 2)], subnet, asked))
        yield Row(f"{number} options", rule, many, reply, FORWARDER)
    broken = query(WEB, edns=opt(*[option(100)] * 32, option(SUBNET)))
    yield Row("a bad client subnet behind 32 options", rule, broken, refused(FORMERR).edns())
    yield Row(
        "extended error: unmet", "RFC 8914: 0 (Other)", query(WEB, "SRV", edns=opt()), UNMET.edns(error(0)), NOWHERE
    )
    yield Row("extended error: not without EDNS", "RFC 8914, 2", query(WEB, "SRV"), UNMET, NOWHERE)


ECHOED = [
    ("an IPv4 host", "192.0.2.7"),
    ("an IPv6 host", "2001:db8::7"),
    ("a /24", "192.0.2.0/24"),
    ("a /25", "192.0.2.128/25"),
    ("a /1", "128.0.0.0/1"),
    ("a /31", "192.0.2.6/31"),
    ("a /56", "2001:db8::/56"),
    ("a /57", "2001:db8::/57"),
    ("IPv4 /0", "0.0.0.0/0"),
    ("IPv6 /0", "::/0"),
    ("an IPv4-mapped host", "::ffff:127.0.1.2"),
    ("an IPv6 host with the octets of a subnet of family 0", "800:400::"),
]
MALFORMED = [
    ("empty", b""),
    ("family alone", b"\0\1"),
    ("three octets", b"\0\1\0"),
    ("an unknown family", b"\0\3\0\0"),
    ("an unknown family with an address", b"\0\3\x08\0\x0a"),
    ("family 65535", b"\xff\xff\0\0"),
    ("family 0 with a prefix", b"\0\0\x08\0\x0a"),
    ("family 0 with an address", b"\0\0\0\0\x0a"),
    ("family 0 with a scope", b"\0\0\0\x08"),
    ("IPv4 /33", b"\0\1\x21\0" + b"\xc0\0\2\7\0"),
    ("IPv4 /33 in four octets", b"\0\1\x21\0" + b"\xc0\0\2\7"),
    ("IPv4 /255", b"\0\1\xff\0" + bytes(32)),
    ("IPv6 /129", b"\0\2\x81\0" + bytes(17)),
    ("an address too short", b"\0\1\x20\0" + b"\xc0\0\2"),
    ("an address too long", b"\0\1\x18\0" + b"\xc0\0\2\0"),
    ("an address left out", b"\0\1\x18\0"),
    ("an address with /0", b"\0\1\0\0\0"),
    ("bits beyond the prefix", b"\0\1\x19\0" + b"\xc0\0\2\x01"),
    ("bits beyond a /31", b"\0\1\x1f\0" + b"\xc0\0\2\x01"),
    ("bits beyond an IPv6 prefix", b"\0\2\x39\0" + bytes(7) + b"\x01"),
    ("a scope", b"\0\1\x18\x18" + b"\xc0\0\2"),
    ("a scope with /0", b"\0\1\0\x01"),
]


def client_subnet() -> Iterator[Row]:
    rule = "RFC 7871, 7.2.1: echoed as it came, but for the scope: the prefix where the place mattered, whoever asked"
    for title, text in ECHOED:
        mapped, no_client = "mapped" in title, "/0" in title
        for client, place in ((IN_A, IN_ZONE_A), (NOWHERE, UNMET), (FORWARDER, IN_ZONE_B if mapped else UNMET)):
            source = ecs(text)[6]
            sent, scoped = ecs(text), ecs(text, scope=source)
            unmet = (error(0),) if place is UNMET else ()
            told = (error(0),) if client != FORWARDER and not no_client else ()  # who is not trusted, as well
            for name, reply in [
                (WEB, place.edns(scoped, *unmet, *told)),
                (FREE, FREE_A.edns(sent, *told)),
                (MISSING, NO_NAME.edns(sent, *told)),
                (ZONE_NAME, NODATA.edns(sent, *told)),
                ("example.com", refused(REFUSED).edns(sent)),
            ]:
                yield Row(f"{title} from {client}, {name}", rule, query(name, edns=opt(ecs(text))), reply, client)
        if not no_client:
            wire = query(f"soft.{SERVED}", edns=opt(ecs(text)))
            reply = Reply(answer=("A 10.244.2.3",)).edns(ecs(text, scope=ecs(text)[6]))
            yield Row(f"{title}, soft", rule, wire, reply, FORWARDER)
    for qtype in ("A", "AAAA", "SRV"):
        wire, reply = query(WEB, qtype, edns=opt(ecs("192.0.2.7"))), UNMET.edns(ecs("192.0.2.7", scope=32), error(0))
        yield Row(f"the scope of an unmet {qtype}", rule, wire, reply, FORWARDER)
    for client in (FORWARDER, IN_A):
        for name in (WEB, FREE):
            reply = FREE_A if name == FREE else IN_ZONE_A if client == IN_A else UNMET
            wanted = reply.edns(ecs("0"), *((error(0),) if reply is UNMET else ()))
            wire = query(name, edns=opt(ecs("0")))
            yield Row(
                f"family 0 with /0 from {client}, {name}", "RFC 7871, 7.1.2: names no client", wire, wanted, client
            )

    rule = "RFC 7871, 7.1.1 and 7.3: malformed is FORMERR, with an OPT and without an echo, whoever asks and for what"
    for title, content in MALFORMED:
        for name in (WEB, "example.com"):
            for client in (FORWARDER, NOWHERE):
                wire = query(name, edns=opt(option(SUBNET, content)))
                yield Row(f"client subnet: {title} from {client}, {name}", rule, wire, refused(FORMERR).edns(), client)
    for title, both in [
        ("of two clients", (ecs("192.0.2.7"), ecs("192.0.2.8"))),
        ("of one client", (ecs(IN_A), ecs(IN_A))),
        ("with another option between", (ecs(IN_A), option(COOKIE, bytes(8)), ecs("0"))),
        ("the second malformed", (ecs(IN_A), option(SUBNET))),
    ]:
        yield Row(f"two client subnets {title}", rule, query(WEB, edns=opt(*both)), refused(FORMERR).edns(), FORWARDER)


def client_option() -> Iterator[Row]:
    rule = "The configured option names the client of a trusted forwarder; it is not echoed"
    for text, reply in ((IN_A, IN_ZONE_A), (IN_B, IN_ZONE_B), ("fd00:1::1", IN_ZONE_A)):
        wire = query(WEB, edns=opt(option(CLIENT_OPTION, parse_address(text))))
        yield Row(f"the option names {text}", rule, wire, reply.edns(), FORWARDER)
        yield Row(f"the option names {text}, untrusted", rule, wire, UNMET.edns(error(0), error(0)), NOWHERE)
    wire = query(WEB, edns=opt(option(CLIENT_OPTION, b"12345")))
    yield Row("an option of 5 octets names nobody", rule, wire, UNMET.edns(error(0)), FORWARDER)


def sizes() -> Iterator[Row]:
    rule = "RFC 6891, 6.2.5; RFC 2181, 9: the smaller of the client's size (at least 512) and 1232, in whole records"
    for size in (0, 1, 511, 512, 513, 700, 1231, 1232, 1233, 4096, 65535):
        limit = min(max(size, 512), 1232)
        fit = (limit - len(query(MANY)) - 11) // 16
        name = "edns@512" if size == 512 else f"size {size}"
        cut = Reply(answer=fit, tc=True, size=len(query(MANY)) + 11 + 16 * fit).edns()
        yield Row(name, rule, query(MANY, edns=opt(size=size)), cut, tcp=Reply(answer=250).edns())
        yield Row(f"{name}, small", rule, query(WEB, edns=opt(size=size)), IN_ZONE_A.edns())
        wire, answers = query(FIFTY, edns=opt(size=size)), min(50, (limit - len(query(FIFTY)) - 11) // 16)
        reply = Reply(answer=answers, tc=answers < 50).edns()
        yield Row(f"{name}, fifty", rule, wire, reply, tcp=Reply(answer=50).edns())
    fit = (512 - len(query(MANY))) // 16
    yield Row(
        "size without EDNS",
        "RFC 1035, 4.2.1: 512 octets",
        query(MANY),
        Reply(answer=fit, tc=True),
        tcp=Reply(answer=250),
    )
    yield Row(
        "edns@512tcp",
        "RFC 7766, 3: TCP carries everything, whatever the size",
        query(FIFTY, "SRV", edns=opt(size=512)),
        Reply(answer=50, additional=50).edns(),
        only="tcp",
    )
    yield Row("ednstcp", "RFC 6891, 7", query(WEB, edns=opt()), IN_ZONE_A.edns(), only="tcp")

    rule = "RFC 2181, 9: TC only where a record does not fit; one octet decides"
    whole = len(query(FIFTY)) + 11 + 50 * 16
    for less in (-1, 0, 1):
        wire, full = query(FIFTY, edns=opt(size=whole - less)), Reply(answer=50, size=whole).edns()
        cut = Reply(answer=49, tc=True, size=whole - 16).edns()
        yield Row(f"exactly {whole}, and a size of {whole - less}", rule, wire, cut if less > 0 else full, tcp=full)
        for client, subnet in ((IN_A, ecs("192.0.2.7")), (FORWARDER, ecs("2001:db8::/57"))):
            more = len(subnet)
            wire = query(FIFTY, edns=opt(subnet, size=whole + more - less))
            options = (subnet,)
            reply = (cut if less > 0 else full)._replace(options=options, size=whole + more - 16 * (less > 0))
            tcp = full._replace(options=options, size=whole + more)
            if client != FORWARDER:  # who is not trusted is told so where there is room
                tcp = full._replace(options=(*options, error(0)), size=None)
            yield Row(
                f"exactly {whole + more} with a client subnet, and a size of {whole + more - less}",
                rule,
                wire,
                reply,
                client,
                tcp=tcp,
            )
        wire = query(FIFTY, edns=opt(option(NSID), size=whole + 4 + len(NAME) - less))
        options = (option(NSID, NAME),)
        reply = (cut if less > 0 else full)._replace(options=options, size=None)
        yield Row(f"exactly with NSID, less {less}", rule, wire, reply, tcp=full._replace(options=options, size=None))
    for less in (-1, 0, 1):
        part = len(query(MANY)) + 11 + 40 * 16
        cut = Reply(answer=39 if less > 0 else 40, tc=True).edns()
        wire = query(MANY, edns=opt(size=part - less))
        yield Row(f"exactly 40 of 250, less {less}", rule, wire, cut, tcp=Reply(answer=250).edns())
    for limit, edns, label, count in EXACT:
        for more in (-1, 0, 1):
            name = (label[1:] if more < 0 else label + "x" * more) + f".{SERVED}"
            with_opt = () if edns else None
            full = Reply(answer=count, size=int(limit) + more, options=with_opt)
            cut = Reply(answer=count - 1, size=int(limit) + more - 16, tc=True, options=with_opt)
            yield Row(
                f"{int(limit) + more} octets where {limit} may be",
                rule,
                query(name, edns=edns),
                cut if more > 0 else full,
                tcp=full,
            )
    whole, cut = Reply(answer=251).edns(), Reply(answer=28, tc=True).edns()
    rule = "RFC 2181, 9: the CNAME, then what fits"
    yield Row("cut behind an alias", rule, query(f"crowd.{SERVED}", edns=opt(size=512)), cut, tcp=whole)
    longest = query(WEB, edns=opt(option(PADDING, bytes(65535 - len(query(WEB)) - 11 - 4))))
    yield Row("a query of 65535 octets", "RFC 1035, 4.2.2", longest, IN_ZONE_A.edns(), only="tcp")
    rule = "more than 16 records are FORMERR, and not read, so that no query costs much to read"
    for number, reply in ((16, IN_ZONE_A.edns()), (17, refused(FORMERR)), (4000, refused(FORMERR))):
        crowded = further(opt(), *[RECORD] * (number - 1))
        yield Row(f"a query with {number} records", rule, crowded, reply, only="tcp")
    full = further(*[RECORD] * 6, counts=(1, 6, 6, 5))
    yield Row("17 records in three sections", rule, full, refused(FORMERR))
    options = query(WEB, edns=opt(*[option(100)] * 16_000))
    yield Row("a query with 16000 options", rule, options, refused(FORMERR).edns(), only="tcp")
    questions = raw(QUESTION * 1500, counts=(1500, 0, 0, 0))
    yield Row("a query with 1500 questions", rule, questions, UNREADABLE, only="tcp")


ROWS: Sequence[Row] = [
    row
    for section in (
        silence,
        header,
        counts,
        names,
        records,
        types,
        edns,
        options_together,
        client_subnet,
        client_option,
        sizes,
    )
    for row in section()
]

# Before the first snapshot.
UNSYNCED: Sequence[Row] = [
    Row(
        name, "Not knowing is not knowing nothing: SERVFAIL, Not Ready (RFC 8914, 4.15), last in the order", wire, reply
    )
    for name, wire, reply in [
        ("an answer", query(WEB, edns=opt()), refused(SERVFAIL).edns(error(14))),
        ("an answer, without EDNS", query(WEB), refused(SERVFAIL)),
        ("ANY", query(WEB, "ANY", edns=opt()), refused(SERVFAIL).edns(error(14))),
        ("the apex", query(ZONE_NAME, "SOA", edns=opt()), refused(SERVFAIL).edns(error(14))),
        ("no name", query(MISSING, edns=opt()), refused(SERVFAIL).edns(error(14))),
        ("with NSID", query(WEB, edns=opt(option(NSID))), refused(SERVFAIL).edns(option(NSID, NAME), error(14))),
        ("with a client subnet", query(WEB, edns=opt(ecs(IN_A))), refused(SERVFAIL).edns(ecs(IN_A), error(14))),
        ("outside the zones", query("example.com", edns=opt()), refused(REFUSED).edns()),
        ("AXFR", query(ZONE_NAME, "AXFR", edns=opt()), refused(REFUSED).edns()),
        ("class", query(WEB, qclass=CH, edns=opt()), refused(REFUSED).edns()),
        ("an opcode", query(WEB, flags=0x2800, edns=opt()), refused(NOTIMP).edns()),
        ("broken", query(WEB, edns=opt() + b"\0"), refused(FORMERR).edns()),
        ("BADVERS", query(WEB, edns=opt(version=1)), refused(BADVERS).edns()),
        ("a response", query(WEB, flags=QR), None),
    ]
]
