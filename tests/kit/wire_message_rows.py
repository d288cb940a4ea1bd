# SPDX-License-Identifier: Apache-2.0

"""Rows of the wire about messages: headers, counts, names, records that nobody needs."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tests.kit.dns_queries import AD, CD, QR, RD, TC, ecs, encoded, opt, query
from tests.kit.wire_cluster import (
    AA,
    BEHIND,
    CH,
    FORMERR,
    IN_A,
    IN_B,
    IN_ZONE_A,
    IN_ZONE_B,
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
    refused,
)


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
