# SPDX-License-Identifier: Apache-2.0

"""Rows of the wire about EDNS: versions, flags, options, and client subnets."""

from __future__ import annotations

from collections.abc import Iterator

from locator.ip import parse_address
from tests.kit.dns_queries import CLIENT_OPTION, ecs, opt, option, query
from tests.kit.wire_cluster import (
    BADVERS,
    CH,
    COOKIE,
    EXPIRE,
    EXTENDED_ERROR,
    FORMERR,
    FORWARDER,
    FREE,
    FREE_A,
    IN_A,
    IN_B,
    IN_ZONE_A,
    IN_ZONE_B,
    KEEPALIVE,
    MISSING,
    NAME,
    NO_NAME,
    NODATA,
    NOWHERE,
    NSID,
    PADDED,
    PADDING,
    REFUSED,
    SERVED,
    SUBNET,
    UNMET,
    WEB,
    WITH_RFC8482,
    ZONE_NAME,
    Reply,
    Row,
    error,
    refused,
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
