# SPDX-License-Identifier: Apache-2.0

"""Rows of the wire about messages: headers, counts, names, records that nobody needs."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from tests.kit.dns_queries import AD, CD, QR, RD, TC, ecs, encoded, opt, query
from tests.kit.wire_cluster import (
    AA,
    BEHIND,
    CH,
    EVERYBODY,
    FORMERR,
    IN_A,
    IN_B,
    IN_ZONE_A,
    LABEL_63,
    MISSING,
    NO_NAME,
    NODATA,
    NOTIMP,
    QUESTION,
    RA,
    RECORD,
    REFUSED,
    SERVED,
    SOA_RECORD,
    TSIG,
    UNREADABLE,
    WEB,
    WITH_RFC8482,
    ZONE_NAME,
    Reply,
    Row,
    Z,
    asking,
    error,
    further,
    raw,
    record,
)

# RFC 1035, 4.1.1: no reply to what is no query
SILENCE: Sequence[Row] = [
    *[Row(f"{length} octets", query(WEB)[:length], None) for length in range(12)],
    Row("a response", query(WEB, flags=QR), None),
    Row("a response with an OPT", query(WEB, flags=QR | AA, edns=opt()), None),
    Row("a response that is broken", raw(b"\xff", flags=QR), None),
    Row("a response with another opcode", query(WEB, flags=QR | 0x2800), None),
    Row("a response: REFUSED", query(WEB, flags=QR | REFUSED), None),
]

# RFC 1035, 4.1.1; RFC 6895, 2: ID, RD and CD are copied and no other flag, whatever a query sets
EVERY_FLAG = AA | TC | RD | RA | Z | AD | CD
FLAGS: Sequence[Row] = [
    *[Row(f"flags {flags:#06x}, {title}", query(name, flags=flags), reply)
      for title, name, reply in (("an answer", WEB, IN_ZONE_A), ("NXDOMAIN", MISSING, NO_NAME),
                                 ("REFUSED", "example.com", Reply(REFUSED)))
      for flags in (0, RD, CD, RD | CD, RD | AD, RD | RA, RD | Z, RD | TC, RD | AA, AD | CD, EVERY_FLAG, RD | 15)],
    Row("ID 0", query(WEB, number=0), IN_ZONE_A),
    Row("ID 65535", query(WEB, number=65535), IN_ZONE_A),
]  # fmt: skip

# RFC 1035, 4.1.1; RFC 6895, 2.2: NOTIMP for every opcode but QUERY, before anything else is judged
NO_QUESTION = Reply(NOTIMP, question=False)
OPCODES: Sequence[Row] = [
    *[Row(f"opcode {opcode}", query(WEB, flags=opcode << 11), Reply(NOTIMP)) for opcode in range(1, 16)],
    *[Row(f"opcode {opcode}, EDNS", query(WEB, flags=opcode << 11, edns=opt()), Reply(NOTIMP).edns())
      for opcode in (1, 2, 15)],
    Row("opcode 15 with every flag", query(WEB, flags=0x7800 | EVERY_FLAG), Reply(NOTIMP)),
    Row("NOTIFY with a SOA", raw(encoded(ZONE_NAME) + b"\0\6\0\1" + SOA_RECORD, flags=0x2400, counts=(1, 1, 0, 0)),
        Reply(NOTIMP)),
    Row("UPDATE that adds a record", raw(encoded(ZONE_NAME) + b"\0\6\0\1" + RECORD, flags=0x2800, counts=(1, 0, 1, 0)),
        Reply(NOTIMP)),
    Row("UPDATE outside the zones", query("example.com", 6, flags=0x2800), Reply(NOTIMP)),
    Row("an opcode without a question", raw(b"", flags=0x1000, counts=(0, 0, 0, 0)), NO_QUESTION),
    Row("an opcode, and a broken question", raw(b"\xff", flags=0x2000), NO_QUESTION),
    Row("an opcode, and trailing octets", query(WEB, flags=0x1000) + b"\0", Reply(NOTIMP)),
    Row("an opcode, and two questions", raw(QUESTION * 2, flags=0x2000, counts=(2, 0, 0, 0)), NO_QUESTION),
    Row("an opcode before BADVERS", query(WEB, flags=0x2800, edns=opt(version=1)), Reply(NOTIMP).edns()),
    Row("an opcode before the class", query(WEB, flags=0x7800, qclass=CH), Reply(NOTIMP)),
]  # fmt: skip


def counts() -> Iterator[Row]:
    # RFC 9619: a query has one question
    for number in (0, 2, 3, 65535):
        for written in (0, 1, 2):
            wire = raw(QUESTION * written, counts=(number, 0, 0, 0))
            yield Row(f"QDCOUNT {number}, {written} written", wire, UNREADABLE)
    yield Row("QDCOUNT 1, 0 written", raw(b""), UNREADABLE)
    yield Row("QDCOUNT 1, 2 written", raw(QUESTION * 2), Reply(FORMERR))
    for number in (0, 2):  # RFC 6891, 7: an OPT in errors, too
        wire = raw(QUESTION * number + opt(), counts=(number, 0, 0, 1))
        yield Row(f"QDCOUNT {number} with an OPT", wire, UNREADABLE.edns())
        wire = raw(QUESTION * number + opt(), flags=0x2000, counts=(number, 0, 0, 1))
        yield Row(f"an opcode, QDCOUNT {number}, an OPT", wire, NO_QUESTION.edns())
    # RFC 1035, 4.1.1: the counts are true; records that nobody needs are ignored
    for at, section in enumerate(("ANCOUNT", "NSCOUNT", "ARCOUNT")):
        for number, written in ((1, 1), (1, 0), (2, 1), (65535, 1), (0, 1), (1, 2)):
            said = [1, 0, 0, 0]
            said[at + 1] = number
            wire = raw(QUESTION + RECORD * written, counts=tuple(said))  # type: ignore[arg-type]
            reply = IN_ZONE_A if (number, written) == (1, 1) else Reply(FORMERR)
            yield Row(f"{section} {number}, {written} written", wire, reply)
    # Nothing stands behind the last record
    yield Row("a trailing octet", query(WEB) + b"\0", Reply(FORMERR))
    yield Row("a trailing octet behind an OPT", query(WEB, edns=opt() + b"\0"), Reply(FORMERR).edns())
    wire = query(WEB, edns=opt(ecs(IN_A)) + b"\0")
    yield Row("a trailing octet behind a client subnet", wire, Reply(FORMERR).edns(ecs(IN_A)))
    yield Row("a query, twice", query(WEB) * 2, Reply(FORMERR))


def names() -> Iterator[Row]:
    # RFC 1035, 3.1 and 4.1.4: a name is whole, of labels of 63 octets and 255 octets in all
    for title, wire in [
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
        yield Row(title, wire, UNREADABLE)
    yield Row("a label of 63", query(f"{'a' * 63}.{SERVED}"), NO_NAME)
    yield Row("a name of 255, outside", asking(LABEL_63 * 3 + b"\x3d" + b"a" * 61 + b"\0"), Reply(REFUSED))
    yield Row("a name of 255 in the zone", asking(LABEL_63 * 3 + b"\x2f" + b"a" * 47 + encoded(ZONE_NAME)), NO_NAME)
    yield Row("a name of 255 in short labels", asking(b"\1a" * 120 + encoded(ZONE_NAME)), NO_NAME)

    # RFC 2181, 11: any octets make a label
    cluster = [b"shop", b"svc", b"cluster", b"local"]
    for title, labels in [
        ("a NUL in a label", [b"w\0b", *cluster]),
        ("a NUL, then a Service's name", [b"\0", b"web", *cluster]),
        ("a label that looks like an end", [b"web\0\0\1\0\1", *cluster]),
        ("a label that looks like a Service's name", [encoded(WEB), *cluster]),
        ("a dot in a label", [b"web.shop", *cluster[1:]]),
        ("a dot for a label", [b".", *cluster]),
        ("octets beyond ASCII", [b"w\xe9b", *cluster]),
        ("UTF-8", ["wéb".encode(), *cluster]),
        ("octets that are no text", [b"\xff\xfe\x80", *cluster]),
        ("an underscore alone", [b"_", b"_", b"web", *cluster]),
        ("a slash in a label", [b"shop/web", *cluster[1:]]),
        ("a backslash in a label", [b"we\\098", *cluster]),
        ("a blank in a label", [b"web ", *cluster]),
        ("an asterisk", [b"*", *cluster]),
        ("case: not beyond ASCII", [b"\xc3\x89", *cluster]),
    ]:
        for qtype in ("A", "SRV", "ANY"):
            yield Row(f"{title}, {qtype}", query(labels, qtype, edns=opt()), NO_NAME.edns())
    yield Row("a zone in one label", query([b"web", b"shop", b"svc", b"cluster.local"]), Reply(REFUSED))
    for title, value in [
        ("beyond ASCII", [b"\xf7"]),
        ("a NUL", [b"\0"]),
        ("a dot and a blank", [b"a", b".", b" "]),
        ("the longest", [b"\xff" * 63]),
        ("like a port's, and the end of a question", [b"_main", b"_tcp", b"\xf7Eb", b"\0\1\1b"]),
    ]:
        for qtype, reply in (("A", EVERYBODY), ("SRV", Reply(answer=3, additional=3)), ("ANY", WITH_RFC8482)):
            wire = query([*value, b"prefer", b"_zone", b"web", *cluster], qtype, edns=opt())
            yield Row(f"zonal value: {title}, {qtype}", wire, reply.edns())
        wire = query([*value, b"pin", b"_zone", b"web", *cluster], edns=opt())
        yield Row(f"zonal value: {title}, pinned", wire, NODATA.edns())

    # RFC 4343; RFC 1035, 2.3.3: names compare case-insensitively, and the question comes back as it was
    for name in (WEB.upper(), "wEb.ShOp.SvC.cLuStEr.LoCaL", "web.shop.svc.cluster.LOCAL"):
        yield Row(f"case: {name}", query(name), IN_ZONE_A)
        yield Row(f"case: {name}, EDNS", query(name, edns=opt()), IN_ZONE_A.edns())
    yield Row("case: NXDOMAIN", query("NOPE.sHoP.svc.CLUSTER.local"), NO_NAME)

    # Outside the served zones: REFUSED
    for name in ("example.com", "", "local", "xcluster.local", "cluster.local.example.com", "com", "cluster"):
        yield Row(f"outside: {name or 'the root'}", query(name), Reply(REFUSED))
        yield Row(f"outside: {name or 'the root'}, EDNS", query(name, "AAAA", edns=opt()), Reply(REFUSED).edns())
    wire = query("", "NS", flags=0, edns=opt(size=4096))
    yield Row("the root's NS, as a priming query", wire, Reply(REFUSED).edns())


def records() -> Iterator[Row]:
    # RFC 1035, 4.1.4: a record's name is whole, and pointers point back
    long = LABEL_63 * 3
    for title, owner, reply in [
        ("a pointer to the question", b"\xc0\x0c", IN_ZONE_A),
        ("a pointer into the question", b"\xc0\x10", IN_ZONE_A),
        ("labels, then a pointer", b"\1a\xc0\x0c", IN_ZONE_A),
        ("the root", b"\0", IN_ZONE_A),
        ("a name of 255", long + b"\x3d" + b"a" * 61 + b"\0", IN_ZONE_A),
        ("a pointer to itself", struct.pack("!H", 0xC000 | 12 + len(QUESTION)), Reply(FORMERR)),
        ("a pointer forward", b"\xc0\xff", Reply(FORMERR)),
        ("a pointer behind the end", b"\xff\xff", Reply(FORMERR)),
        ("a pointer to the header", b"\xc0\2", Reply(FORMERR)),
        ("a pointer to the header's last octet", b"\xc0\x0b", Reply(FORMERR)),
        ("a label of 64", b"\x40" + b"a" * 64 + b"\0", Reply(FORMERR)),
        ("a label of type 0x80", b"\x80" + b"a" * 128 + b"\0", Reply(FORMERR)),
        ("a name of 256", long + b"\x3e" + b"a" * 62 + b"\0", Reply(FORMERR)),
    ]:
        yield Row(f"a record's name: {title}", further(owner + BEHIND), reply)
    # RFC 1035, 4.1.3: a record is whole
    for cut in (1, 2, 3, 10, 11, len(RECORD) - 1):
        yield Row(f"a record of {cut} octets", further(RECORD[:cut]), Reply(FORMERR))
    yield Row("a record that says 65535 octets", further(RECORD[:10] + b"\xff\xffabcd"), Reply(FORMERR))
    yield Row("a record without data", further(record(b"\0", 1)), IN_ZONE_A)

    # RFC 6891, 6.1.1: an OPT anywhere in the additional section; whatever stands beside it is ignored
    yield Row("a record, then an OPT", further(RECORD, opt()), IN_ZONE_A.edns())
    wire = further(RECORD, opt(ecs(IN_B)), RECORD)
    yield Row("an OPT between records", wire, IN_ZONE_A.edns(ecs(IN_B, scope=32), error(0)))
    wire = further(RECORD, RECORD, opt(), counts=(1, 1, 1, 1))
    yield Row("an OPT, and records in each section", wire, IN_ZONE_A.edns())
    # RFC 8945: we hold no key; the record is one that we do not know, and is ignored. RFC 2931: the same
    yield Row("TSIG at the end", further(TSIG), IN_ZONE_A)
    yield Row("TSIG behind an OPT", further(opt(), TSIG), IN_ZONE_A.edns())
    yield Row("SIG(0) at the end", further(record(b"\0", 24, bytes(18) + b"\0")), IN_ZONE_A)

    # RFC 6891, 6.1.1: one OPT, at the root, in the additional section
    pointer_to_root = struct.pack("!H", 0xC000 | 12 + len(encoded(WEB)) - 1)
    for title, wire, reply in [
        ("two OPTs", further(opt(), opt()), Reply(FORMERR).edns()),
        ("two OPTs and a record between", further(opt(), RECORD, opt()), Reply(FORMERR).edns()),
        ("two OPTs before BADVERS", further(opt(version=1), opt()), Reply(FORMERR).edns()),
        ("an OPT with a name", further(opt(name=b"\1a\0")), Reply(FORMERR)),
        ("an OPT with the question's name", further(opt(name=b"\xc0\x0c")), Reply(FORMERR)),
        ("an OPT whose name points to the root", further(opt(name=pointer_to_root)), Reply(FORMERR)),
        ("an OPT among the answers", further(opt(), counts=(1, 1, 0, 0)), Reply(FORMERR)),
        ("an OPT in the authority section", further(opt(), counts=(1, 0, 1, 0)), Reply(FORMERR)),
        ("an OPT among the answers and a right one", further(opt(), opt(), counts=(1, 1, 0, 1)), Reply(FORMERR)),
        ("an OPT that is cut", further(opt()[:-1]), Reply(FORMERR)),
        ("an OPT whose length is too long", further(opt()[:-2] + b"\0\1"), Reply(FORMERR)),
    ]:
        yield Row(title, wire, reply)


ROWS: Sequence[Row] = [*SILENCE, *FLAGS, *OPCODES, *counts(), *names(), *records()]
