# SPDX-License-Identifier: Apache-2.0

"""Rows of the wire about EDNS: versions, flags, options, and client subnets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from locator.ip import parse_address
from tests.kit.dns_queries import CLIENT_OPTION, ecs, opt, option, query
from tests.kit.wire_cluster import (
    BADVERS,
    CH,
    COOKIE,
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
)


def edns() -> Iterator[Row]:
    # RFC 6891, 6.1.1 and 7: an OPT to those who sent one, errors included, and to nobody else
    for title, name, qtype, client, reply, options in [
        ("an answer", WEB, 1, IN_A, IN_ZONE_A, ()),
        ("NODATA", WEB, 65000, IN_A, NODATA, ()),
        ("NXDOMAIN", MISSING, 1, IN_A, NO_NAME, ()),
        ("REFUSED", "example.com", 1, IN_A, Reply(REFUSED), ()),
        ("an unmet constraint", WEB, 1, NOWHERE, UNMET, (error(0),)),  # RFC 8914: 0 (Other)
    ]:
        yield Row(f"dns: {title}", query(name, qtype), reply, client)
        yield Row(f"edns: {title}", query(name, qtype, edns=opt()), reply.edns(*options), client)
    yield Row("no OPT, FORMERR", query(WEB) + b"\0", Reply(FORMERR))
    yield Row("an OPT with an extended rcode", query(WEB, edns=opt(rcode=255)), IN_ZONE_A.edns())

    # RFC 6891, 6.1.3: BADVERS for a version above 0, no answer, version 0 in the reply, its options not read
    for title, wire in [
        ("edns1", query(WEB, edns=opt(version=1))),
        ("edns1opt", query(WEB, edns=opt(option(100), version=1))),
        ("edns1 with NSID", query(WEB, edns=opt(option(NSID), version=1))),
        ("edns1 with a broken option", query(WEB, edns=opt(b"\0\x08\0\1\0", version=1))),
        ("version 255", query(WEB, edns=opt(version=255))),
        ("BADVERS before the class", query(WEB, qclass=CH, edns=opt(version=1))),
        ("BADVERS before the zones", query("example.com", edns=opt(version=1))),
    ]:
        yield Row(title, wire, Reply(BADVERS).edns())
    yield Row("edns1 with DO", query(WEB, edns=opt(version=1, flags=0x8000)), Reply(BADVERS).edns(do=True))
    yield Row("FORMERR before BADVERS", query(WEB, edns=opt(version=1) + b"\0"), Reply(FORMERR).edns())

    # RFC 3225; RFC 6891, 6.1.4: DO is copied, unknown flags are ignored and not echoed
    for flags in (0x8000, 0x4000, 0x0080, 0x7FFF, 0xFFFF):
        do, title = flags >= 0x8000, "do" if flags == 0x8000 else f"ednsflags {flags:#06x}"
        yield Row(title, query(WEB, edns=opt(flags=flags)), IN_ZONE_A.edns(do=do))
        yield Row(f"{title}, REFUSED", query("example.com", edns=opt(flags=flags)), Reply(REFUSED).edns(do=do))
        yield Row(f"{title}, FORMERR", query(WEB, edns=opt(flags=flags) + b"\0"), Reply(FORMERR).edns(do=do))

    # RFC 6891, 6.1.2: unknown options are ignored and not echoed; they are whole, else FORMERR
    for code in (0, 1, 2, 4, 7, 9, COOKIE, KEEPALIVE, 12, 13, 14, EXTENDED_ERROR, 16, 18, 26946, 65000, 65002, 65535):
        for title, content in (("empty", b""), ("8 octets", b"12345678")):
            yield Row(f"ednsopt {code}, {title}", query(WEB, edns=opt(option(code, content))), IN_ZONE_A.edns())
    for size in (1, 7, 9, 16, 40, 41):  # RFC 7873, 5.2: a server that does not implement cookies ignores them
        yield Row(f"a cookie of {size}", query(WEB, edns=opt(option(COOKIE, b"c" * size))), IN_ZONE_A.edns())
    # RFC 7828, 3.2.1; RFC 7830: ignored
    yield Row("keepalive with a time", query(WEB, edns=opt(option(KEEPALIVE, b"\0\x64"))), IN_ZONE_A.edns())
    yield Row("padding to 1232 octets", query(WEB, edns=PADDED), IN_ZONE_A.edns())
    yield Row("unknown options twice", query(WEB, edns=opt(*[option(100, b"x")] * 3)), IN_ZONE_A.edns())
    for title, options in [
        ("an option cut off", b"\0\x0a\0\x09abc"),
        ("an option's head cut off", b"\0\x0a\0"),
        ("an option's code cut off", b"\0"),
        ("an option that says 65535 octets", b"\0\x0a\xff\xff"),
        ("an option cut off behind a good one", ecs(IN_A) + b"\0\x0a\0\1"),
        ("a known option cut off", b"\0\3\0\1"),
    ]:
        yield Row(title, query(WEB, edns=opt(options)), Reply(FORMERR).edns())


def options_together() -> Iterator[Row]:
    # RFC 5001: who asks for the server's name is told it
    name, asked, subnet, cookie = option(NSID, NAME), option(NSID), ecs(IN_A), option(COOKIE, b"12345678")
    by_subnet = IN_ZONE_A.edns(name, ecs(IN_A, scope=32))
    for title, wire, reply, client in [
        ("asked", query(WEB, edns=opt(asked)), IN_ZONE_A.edns(name), IN_A),
        ("asked with content", query(WEB, edns=opt(option(NSID, b"what"))), IN_ZONE_A.edns(name), IN_A),
        ("asked twice", query(WEB, edns=opt(asked, asked)), IN_ZONE_A.edns(name), IN_A),
        ("with DO", query(WEB, edns=opt(asked, flags=0x8000)), IN_ZONE_A.edns(name, do=True), IN_A),
        ("NXDOMAIN", query(MISSING, edns=opt(asked)), NO_NAME.edns(name), IN_A),
        ("NODATA", query(WEB, 65000, edns=opt(asked)), NODATA.edns(name), IN_A),
        ("REFUSED", query("example.com", edns=opt(asked)), Reply(REFUSED).edns(name), IN_A),
        ("ANY", query(WEB, "ANY", edns=opt(asked)), WITH_RFC8482.edns(name), IN_A),
        ("an unmet constraint", query(WEB, edns=opt(asked)), UNMET.edns(name, error(0)), NOWHERE),
        ("and a client subnet", query(WEB, edns=opt(asked, subnet)), by_subnet, FORWARDER),
        ("behind a client subnet", query(WEB, edns=opt(subnet, asked)), by_subnet, FORWARDER),
        ("a client subnet, unmet", query(WEB, edns=opt(asked, ecs(NOWHERE))),
         UNMET.edns(name, ecs(NOWHERE, scope=32), error(0)), FORWARDER),
        ("and a cookie", query(WEB, edns=opt(cookie, asked)), IN_ZONE_A.edns(name), IN_A),
        ("and a bad client subnet", query(WEB, edns=opt(asked, option(SUBNET))), Reply(FORMERR).edns(), IN_A),
    ]:  # fmt: skip
        yield Row(f"NSID: {title}", wire, reply, client)

    # RFC 6891, 6.1.2: options in any order; what is known is answered, the rest ignored
    for number, options in enumerate(((asked, subnet, cookie), (cookie, subnet, asked), (subnet, cookie, asked))):
        for host, reply in ((WEB, by_subnet), (FREE, FREE_A.edns(name, subnet))):
            yield Row(f"optlist, order {number}, {host}", query(host, edns=opt(*options)), reply, FORWARDER)
    # More than 32 options are FORMERR, whatever they say, so that no query costs much to read
    for number, reply in ((32, by_subnet), (33, Reply(FORMERR).edns())):
        many = query(WEB, edns=opt(*[option(100 + other) for other in range(number - 2)], subnet, asked))
        yield Row(f"{number} options", many, reply, FORWARDER)
    broken = query(WEB, edns=opt(*[option(100)] * 32, option(SUBNET)))
    yield Row("a bad client subnet behind 32 options", broken, Reply(FORMERR).edns())


ECHOED = {
    "an IPv4 host": "192.0.2.7",
    "an IPv6 host": "2001:db8::7",
    "a /24": "192.0.2.0/24",
    "a /25": "192.0.2.128/25",
    "a /1": "128.0.0.0/1",
    "a /56": "2001:db8::/56",
    "a /57": "2001:db8::/57",
    "IPv4 /0": "0.0.0.0/0",
    "IPv6 /0": "::/0",
    "an IPv4-mapped host": "::ffff:127.0.1.2",
    "an IPv6 host with the octets of a subnet of family 0": "800:400::",
}
MALFORMED = {
    "empty": b"",
    "family alone": b"\0\1",
    "three octets": b"\0\1\0",
    "an unknown family": b"\0\3\0\0",
    "an unknown family with an address": b"\0\3\x08\0\x0a",
    "family 65535": b"\xff\xff\0\0",
    "family 0 with a prefix": b"\0\0\x08\0\x0a",
    "family 0 with an address": b"\0\0\0\0\x0a",
    "family 0 with a scope": b"\0\0\0\x08",
    "IPv4 /33": b"\0\1\x21\0\xc0\0\2\7\0",
    "IPv4 /33 in four octets": b"\0\1\x21\0\xc0\0\2\7",
    "IPv6 /129": b"\0\2\x81\0" + bytes(17),
    "an address too short": b"\0\1\x20\0\xc0\0\2",
    "an address too long": b"\0\1\x18\0\xc0\0\2\0",
    "an address left out": b"\0\1\x18\0",
    "an address with /0": b"\0\1\0\0\0",
    "bits beyond the prefix": b"\0\1\x19\0\xc0\0\2\x01",
    "bits beyond a /31": b"\0\1\x1f\0\xc0\0\2\x01",
    "bits beyond an IPv6 prefix": b"\0\2\x39\0" + bytes(7) + b"\x01",
    "a scope": b"\0\1\x18\x18\xc0\0\2",
    "a scope with /0": b"\0\1\0\x01",
}


def client_subnet() -> Iterator[Row]:
    # RFC 7871, 7.2.1: echoed as it came, but for the scope: the prefix where the place mattered, whoever asked
    for title, text in ECHOED.items():
        mapped, no_client = "mapped" in title, "/0" in title
        sent, scoped = ecs(text), ecs(text, scope=ecs(text)[6])
        for client, place in ((IN_A, IN_ZONE_A), (NOWHERE, UNMET), (FORWARDER, IN_ZONE_B if mapped else UNMET)):
            unmet = (error(0),) if place is UNMET else ()
            told = (error(0),) if client != FORWARDER and not no_client else ()  # who is not trusted, as well
            for name, reply in [
                (WEB, place.edns(scoped, *unmet, *told)),
                (FREE, FREE_A.edns(sent, *told)),
                (MISSING, NO_NAME.edns(sent, *told)),
                (ZONE_NAME, NODATA.edns(sent, *told)),
                ("example.com", Reply(REFUSED).edns(sent)),
            ]:
                yield Row(f"{title} from {client}, {name}", query(name, edns=opt(sent)), reply, client)
        if not no_client:
            wire = query(f"soft.{SERVED}", edns=opt(sent))
            yield Row(f"{title}, soft", wire, Reply(answer=("A 10.244.2.3",)).edns(scoped), FORWARDER)
    for qtype in ("AAAA", "SRV"):
        wire, reply = query(WEB, qtype, edns=opt(ecs("192.0.2.7"))), UNMET.edns(ecs("192.0.2.7", scope=32), error(0))
        yield Row(f"the scope of an unmet {qtype}", wire, reply, FORWARDER)
    # RFC 7871, 7.1.2: family 0 names no client
    for client, name, reply in [
        (FORWARDER, WEB, UNMET.edns(ecs("0"), error(0))),
        (FORWARDER, FREE, FREE_A.edns(ecs("0"))),
        (IN_A, WEB, IN_ZONE_A.edns(ecs("0"))),
        (IN_A, FREE, FREE_A.edns(ecs("0"))),
    ]:
        yield Row(f"family 0 with /0 from {client}, {name}", query(name, edns=opt(ecs("0"))), reply, client)

    # RFC 7871, 7.1.1 and 7.3: malformed is FORMERR, with an OPT and without an echo, whoever asks and for what
    for title, content in MALFORMED.items():
        for name, client in ((WEB, FORWARDER), ("example.com", NOWHERE)):
            wire = query(name, edns=opt(option(SUBNET, content)))
            yield Row(f"client subnet: {title} from {client}, {name}", wire, Reply(FORMERR).edns(), client)
    for title, both in [
        ("of two clients", (ecs("192.0.2.7"), ecs("192.0.2.8"))),
        ("of one client", (ecs(IN_A), ecs(IN_A))),
        ("with another option between", (ecs(IN_A), option(COOKIE, bytes(8)), ecs("0"))),
        ("the second malformed", (ecs(IN_A), option(SUBNET))),
    ]:
        yield Row(f"two client subnets {title}", query(WEB, edns=opt(*both)), Reply(FORMERR).edns(), FORWARDER)


def client_option() -> Iterator[Row]:
    # The configured option names the client of a trusted forwarder; it is not echoed
    for text, reply in ((IN_A, IN_ZONE_A), (IN_B, IN_ZONE_B), ("fd00:1::1", IN_ZONE_A)):
        wire = query(WEB, edns=opt(option(CLIENT_OPTION, parse_address(text))))
        yield Row(f"the option names {text}", wire, reply.edns(), FORWARDER)
        yield Row(f"the option names {text}, untrusted", wire, UNMET.edns(error(0), error(0)), NOWHERE)
    wire = query(WEB, edns=opt(option(CLIENT_OPTION, b"12345")))
    yield Row("an option of 5 octets names nobody", wire, UNMET.edns(error(0)), FORWARDER)


ROWS: Sequence[Row] = [*edns(), *options_together(), *client_subnet(), *client_option()]
