# SPDX-License-Identifier: Apache-2.0

"""The wire as a table: each row is a rule, with the query in octets and the expected reply.

The rules are ours or an RFC's; the queries of ISC's EDNS compliance tester keep the names that they have there.
``test_wire.py`` sends each row to a responder with an empty cache and with a full one, over UDP and over TCP;
``tests/fuzz`` begins with all rows. An input that once harmed the server becomes a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.kit.dns_queries import QR, ecs, encoded, opt, option, query
from tests.kit.wire_cluster import (
    ANY,
    BADVERS,
    CH,
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
    NONE,
    NOTIMP,
    NOWHERE,
    NSID,
    PADDING,
    QUESTION,
    RECORD,
    REFUSED,
    SERVED,
    SERVFAIL,
    UNREADABLE,
    WEB,
    WITH_RFC8482,
    ZONE_NAME,
    Reply,
    Row,
    error,
    further,
    raw,
    record,
    refused,
)
from tests.kit.wire_edns_rows import client_option, client_subnet, edns, options_together
from tests.kit.wire_message_rows import counts, header, names, records, silence


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
    for limit, opt_record, label, count in EXACT:
        for more in (-1, 0, 1):
            name = (label[1:] if more < 0 else label + "x" * more) + f".{SERVED}"
            with_opt = () if opt_record else None
            full = Reply(answer=count, size=int(limit) + more, options=with_opt)
            cut = Reply(answer=count - 1, size=int(limit) + more - 16, tc=True, options=with_opt)
            yield Row(
                f"{int(limit) + more} octets where {limit} may be",
                rule,
                query(name, edns=opt_record),
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
