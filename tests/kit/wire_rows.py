# SPDX-License-Identifier: Apache-2.0

"""The wire as a table: each row is a query in octets with the expected reply, under its rule: ours, or an RFC's.

The queries of ISC's EDNS compliance tester keep the names that they have there. ``test_wire.py`` sends each row to a
responder with an empty cache and with a full one, over UDP and over TCP; ``tests/fuzz`` begins with all rows. An input
that once harmed the server becomes a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.kit import wire_edns_rows, wire_message_rows
from tests.kit.dns_queries import QR, ecs, encoded, opt, option, query
from tests.kit.wire_cluster import (
    BADVERS,
    CH,
    EVERYBODY,
    EXACT,
    FIFTY,
    FORMERR,
    FORWARDER,
    FREE,
    IN_A,
    IN_B,
    IN_ZONE_A,
    IN_ZONE_B,
    MANY,
    MISSING,
    NAME,
    NO_NAME,
    NODATA,
    NOTIMP,
    NOWHERE,
    NSID,
    PADDING,
    QUESTION,
    RECORD,
    REFUSED,
    SERVED,
    SERVFAIL,
    SOA_RECORD,
    UNREADABLE,
    WEB,
    WITH_RFC8482,
    ZONE_NAME,
    Reply,
    Row,
    error,
    further,
    raw,
)

SOA = "SOA ns.dns.cluster.local. hostmaster.cluster.local."
CNAME = Reply(answer=("CNAME www.example.com.",))
TYPES: Sequence[Row] = [
    # A name that exists has records of a type or has none: NODATA, whatever the type and the place
    #     MD  MX  TXT SIG OPT DS  RRSIG DNSKEY SVCB HTTPS SPF MAILB MAILA CAA
    *[Row(f"TYPE{qtype} of a Service", query(WEB, qtype), NODATA) for qtype in (
        0, 3, 15, 16, 24, 41, 43, 46, 48, 64, 65, 99, 128, 249, 250, 253, 254, 257, 1000, 65535)],
    *[row for qtype in (1, 28, 43, 46, 48, 51, 1000) for row in (
        Row(f"TYPE{qtype} of the apex", query(ZONE_NAME, qtype, edns=opt()), NODATA.edns()),
        Row(f"TYPE{qtype} of no name", query(MISSING, qtype, edns=opt()), NO_NAME.edns()))],  # RFC 2308, 2.1
    Row("what nobody has is the same for all", query(WEB, 1000, edns=opt()), NODATA.edns(), NOWHERE),
    Row("AAAA where there is A", query(FIFTY, "AAAA"), NODATA),
    # Schema 1.1.0: NXDOMAIN
    Row("a Service without endpoints", query(f"empty.{SERVED}"), NO_NAME),
    Row("an impossible shape", query("a.b.c.d.e.svc.cluster.local"), NO_NAME),
    # RFC 8020: names exist beneath it: NODATA
    *[Row(f"between: {name}", query(name), NODATA)
      for name in ("svc.cluster.local", "pod.cluster.local", "dns.cluster.local", SERVED, f"_tcp.{WEB}")],
    # RFC 8482, 4.2: HINFO for names that exist; the CNAME where there is one
    *[Row(f"ANY: {name}", query(name, "ANY", edns=opt()), WITH_RFC8482.edns()) for name in (
        WEB, FREE, MANY, ZONE_NAME, "svc.cluster.local", f"web-0.{WEB}", f"_main._tcp.{WEB}", f"api.{SERVED}")],
    Row("ANY for a client that has nothing", query(WEB, "ANY", edns=opt()), WITH_RFC8482.edns(), NOWHERE),
    Row("ANY of no name", query(MISSING, "ANY"), NO_NAME),
    Row("ANY outside", query("example.com", "ANY"), Reply(REFUSED)),
    Row("ANY of an ExternalName", query(f"outside.{SERVED}", "ANY"), CNAME),
    # RFC 5936, RFC 1995: zone transfers are REFUSED
    *[Row(f"AXFR of {name}", query(name, "AXFR"), Reply(REFUSED)) for name in (ZONE_NAME, WEB, MISSING, "example.com")],
    Row("AXFR, EDNS", query(ZONE_NAME, "AXFR", edns=opt()), Reply(REFUSED).edns()),
    Row("IXFR", query(ZONE_NAME, 251), Reply(REFUSED)),
    Row("IXFR from a serial", raw(encoded(ZONE_NAME) + b"\0\xfb\0\1" + SOA_RECORD, counts=(1, 0, 1, 0)),
        Reply(REFUSED)),
    # RFC 1035, 3.2.4: classes other than IN (NONE and ANY are 254 and 255) are REFUSED
    *[row for qclass in (0, 2, CH, 4, 254, 255, 65535) for row in (
        Row(f"class {qclass}", query(WEB, qclass=qclass), Reply(REFUSED)),
        Row(f"class {qclass}, EDNS", query(WEB, "SRV", qclass=qclass, edns=opt()), Reply(REFUSED).edns()))],
    Row("version.bind CH", query("version.bind", "TXT", qclass=CH), Reply(REFUSED)),
    Row("class CH and AXFR", query(ZONE_NAME, "AXFR", qclass=CH), Reply(REFUSED)),
    Row("FORMERR before the class", query(WEB, qclass=CH) + b"\0", Reply(FORMERR)),
    # RFC 1035, 3.3.13 and 3.3.11; RFC 2782; Schema 1.1.0, 2.2; RFC 1035, 3.5
    Row("the SOA", query(ZONE_NAME, "SOA"), Reply(answer=(SOA,))),
    Row("the NS, with its address", query(ZONE_NAME, "NS"),
        Reply(answer=("NS ns.dns.cluster.local.",), additional=("A 192.0.2.53",))),
    Row("SRV with its addresses", query(WEB, "SRV"),
        Reply(answer=(f"SRV 0 100 80 web-0.{WEB}.",), additional=("A 10.244.1.1",))),
    Row("SRV of a port", query(f"_main._tcp.{WEB}", "SRV", edns=opt()),
        Reply(answer=(f"SRV 0 50 80 web-1.{WEB}.", f"SRV 0 50 80 web-2.{WEB}."),
              additional=("A 10.244.2.1", "A 10.244.2.2")).edns(), IN_B),
    Row("the version", query(f"dns-version.{ZONE_NAME}", "TXT"), Reply(answer=('TXT "1.1.0"',), ttl=28800)),
    Row("PTR", query("20.0.96.10.in-addr.arpa", 12), Reply(answer=(f"PTR api.{SERVED}.",))),
    # A zonal name carries its own constraint, which does not depend on the client
    *[Row(f"zonal: {name}", query(f"{name}.{WEB}", edns=opt(ecs("192.0.2.7"))),
          reply.edns(ecs("192.0.2.7"), error(0)), client) for name, client, reply in (
        ("a.pin._zone", NOWHERE, IN_ZONE_A), ("b.pin._zone", IN_A, IN_ZONE_B), ("z.pin._zone", IN_A, NODATA),
        ("b.prefer._zone", IN_A, IN_ZONE_B), ("z.prefer._zone", NOWHERE, EVERYBODY),
        ("_zone", IN_A, NODATA), ("pin._zone", IN_A, NODATA))],
    # RFC 1034, 3.6.2: a CNAME is followed within the zone, and stands alone at its end. RFC 2308, 2.1; RFC 6604
    Row("a CNAME into the zone", query(f"inside.{SERVED}"),
        Reply(answer=(f"CNAME {FREE}.", "A 10.244.1.9", "A 10.244.2.9"))),
    Row("a CNAME out of the zone", query(f"outside.{SERVED}"), CNAME),
    Row("a CNAME to no name", query(f"dangling.{SERVED}"), NO_NAME._replace(answer=(f"CNAME {MISSING}.",))),
]  # fmt: skip


def sizes() -> Iterator[Row]:
    # RFC 6891, 6.2.5; RFC 2181, 9: the smaller of the client's size (at least 512) and 1232, in whole records
    for size in (0, 1, 511, 512, 513, 700, 1231, 1232, 1233, 4096, 65535):
        limit = min(max(size, 512), 1232)
        fit, title = (limit - len(query(MANY)) - 11) // 16, "edns@512" if size == 512 else f"size {size}"
        cut = Reply(answer=fit, tc=True, size=len(query(MANY)) + 11 + 16 * fit).edns()
        yield Row(title, query(MANY, edns=opt(size=size)), cut, tcp=Reply(answer=250).edns())
        yield Row(f"{title}, small", query(WEB, edns=opt(size=size)), IN_ZONE_A.edns())
        answers = min(50, (limit - len(query(FIFTY)) - 11) // 16)
        reply = Reply(answer=answers, tc=answers < 50).edns()
        yield Row(f"{title}, fifty", query(FIFTY, edns=opt(size=size)), reply, tcp=Reply(answer=50).edns())
    # RFC 1035, 4.2.1: 512 octets without EDNS. RFC 7766, 3: TCP carries everything, whatever the size
    cut = Reply(answer=(512 - len(query(MANY))) // 16, tc=True)
    yield Row("size without EDNS", query(MANY), cut, tcp=Reply(answer=250))
    srv = query(FIFTY, "SRV", edns=opt(size=512))
    yield Row("edns@512tcp", srv, Reply(answer=50, additional=50).edns(), only="tcp")
    yield Row("ednstcp", query(WEB, edns=opt()), IN_ZONE_A.edns(), only="tcp")

    # RFC 2181, 9: TC only where a record does not fit; one octet decides, with whichever options
    whole, nsid = len(query(FIFTY)) + 11 + 50 * 16, option(NSID, NAME)
    for title, client, asked, options in [
        ("no option", IN_A, (), ()),
        ("a client subnet", FORWARDER, (ecs("2001:db8::/57"),), (ecs("2001:db8::/57"),)),
        ("NSID", IN_A, (option(NSID),), (nsid,)),
    ]:
        size = whole + sum(map(len, options))
        full = Reply(answer=50, size=size).edns(*options)
        for less in (-1, 0, 1):
            reply = full._replace(answer=49, tc=True, size=size - 16) if less > 0 else full
            wire = query(FIFTY, edns=opt(*asked, size=size - less))
            yield Row(f"exactly with {title}, less {less}", wire, reply, client, tcp=full)
    # Whoever is not trusted is told so where there is room.
    told, subnet = Reply(answer=50).edns(ecs("192.0.2.7"), error(0)), ecs("192.0.2.7")
    wire, reply = query(FIFTY, edns=opt(subnet, size=whole + len(subnet))), Reply(answer=50).edns(subnet)
    yield Row("exactly with an ignored client subnet", wire, reply._replace(size=whole + len(subnet)), tcp=told)
    for limit, opt_record, label, count in EXACT:
        for more in (-1, 0, 1):
            name = (label[1:] if more < 0 else label + "x" * more) + f".{SERVED}"
            full = Reply(answer=count, size=int(limit) + more, options=() if opt_record else None)
            cut = full._replace(answer=count - 1, size=int(limit) + more - 16, tc=True) if more > 0 else full
            yield Row(f"{int(limit) + more} octets where {limit} may be", query(name, edns=opt_record), cut, tcp=full)
    cut = Reply(answer=28, tc=True).edns()  # the CNAME, then what fits
    yield Row("cut behind an alias", query(f"crowd.{SERVED}", edns=opt(size=512)), cut, tcp=Reply(answer=251).edns())

    # RFC 1035, 4.2.2: a query may have 65,535 octets
    longest = query(WEB, edns=opt(option(PADDING, bytes(65535 - len(query(WEB)) - 11 - 4))))
    yield Row("a query of 65535 octets", longest, IN_ZONE_A.edns(), only="tcp")
    # More than 16 records are FORMERR, and not read, so that no query costs much to read
    for number, reply in ((16, IN_ZONE_A.edns()), (17, Reply(FORMERR)), (4000, Reply(FORMERR))):
        yield Row(f"a query with {number} records", further(opt(), *[RECORD] * (number - 1)), reply, only="tcp")
    yield Row("17 records in three sections", further(*[RECORD] * 6, counts=(1, 6, 6, 5)), Reply(FORMERR))
    options = query(WEB, edns=opt(*[option(100)] * 16_000))
    yield Row("a query with 16000 options", options, Reply(FORMERR).edns(), only="tcp")
    questions = raw(QUESTION * 1500, counts=(1500, 0, 0, 0))
    yield Row("a query with 1500 questions", questions, UNREADABLE, only="tcp")


ROWS: Sequence[Row] = [*wire_message_rows.ROWS, *TYPES, *wire_edns_rows.ROWS, *sizes()]

# Before the first snapshot: SERVFAIL, Not Ready (RFC 8914, 4.15), last in the order
NOT_READY = error(14)
UNSYNCED: Sequence[Row] = [
    Row("an answer", query(WEB, edns=opt()), Reply(SERVFAIL).edns(NOT_READY)),
    Row("an answer, without EDNS", query(WEB), Reply(SERVFAIL)),
    Row("ANY", query(WEB, "ANY", edns=opt()), Reply(SERVFAIL).edns(NOT_READY)),
    Row("the apex", query(ZONE_NAME, "SOA", edns=opt()), Reply(SERVFAIL).edns(NOT_READY)),
    Row("no name", query(MISSING, edns=opt()), Reply(SERVFAIL).edns(NOT_READY)),
    Row("with NSID", query(WEB, edns=opt(option(NSID))), Reply(SERVFAIL).edns(option(NSID, NAME), NOT_READY)),
    Row("with a client subnet", query(WEB, edns=opt(ecs(IN_A))), Reply(SERVFAIL).edns(ecs(IN_A), NOT_READY)),
    Row("outside the zones", query("example.com", edns=opt()), Reply(REFUSED).edns()),
    Row("AXFR", query(ZONE_NAME, "AXFR", edns=opt()), Reply(REFUSED).edns()),
    Row("class", query(WEB, qclass=CH, edns=opt()), Reply(REFUSED).edns()),
    Row("an opcode", query(WEB, flags=0x2800, edns=opt()), Reply(NOTIMP).edns()),
    Row("broken", query(WEB, edns=opt() + b"\0"), Reply(FORMERR).edns()),
    Row("BADVERS", query(WEB, edns=opt(version=1)), Reply(BADVERS).edns()),
    Row("a response", query(WEB, flags=QR), None),
]
