"""The wire: the order in which a query is judged, EDNS, the client subnet, truncation, compression."""

from __future__ import annotations

import struct
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import pytest

from dnsserver.app import authority_of, store_of
from dnsserver.metrics import Counts
from dnsserver.responder import Responder
from locator.addresses import parse_address
from locator.cluster import static
from tests import clusters
from tests.clusters import AD, CD, CLIENT_OPTION, FORWARDER, QR, RD, STRANGER, ZONE, ecs, encoded, opt, option, query
from tests.support import NOW, settings_of

WEB = "web.shop.svc.cluster.local"  # hard: one endpoint in zone a, two in zone b
FREE = "free.shop.svc.cluster.local"  # without a constraint
IN_A, IN_B, NOWHERE = "192.168.0.1", "192.168.0.2", STRANGER
SILENCE = None
FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 1, 2, 3, 4, 5, 16

CLUSTER = [
    clusters.namespace("shop"),
    clusters.namespace("kube-system"),
    clusters.node("node-a", {ZONE: "a"}, addresses=[IN_A, "fd00:1::1"], cidrs=["10.244.1.0/24", "fd00:244:1::/64"]),
    clusters.node("node-b", {ZONE: "b"}, addresses=[IN_B, "fd00:1::2"], cidrs=["10.244.2.0/24"]),
    clusters.service("web", keys=ZONE),
    clusters.endpoint_slice(
        "web",
        0,
        [
            clusters.endpoint("10.244.1.1", nodeName="node-a", hostname="web-0"),
            clusters.endpoint("10.244.2.1", nodeName="node-b", hostname="web-1"),
            clusters.endpoint("10.244.2.2", nodeName="node-b", hostname="web-2"),
        ],
    ),
    clusters.service("free"),
    clusters.endpoint_slice("free", 0, [clusters.endpoint("10.244.1.9"), clusters.endpoint("10.244.2.9")]),
    clusters.service("kube-dns", cluster_ips=["10.96.0.10"], where="kube-system"),
    clusters.endpoint_slice("kube-dns", 0, [clusters.endpoint(FORWARDER, nodeName="node-a")], where="kube-system"),
    *clusters.large("many", 250),
    *clusters.large("some", 20, net="10.251"),
]


class Asker:
    """A responder, asked with octets; what it answers is read by dnspython."""

    def __init__(self, items: Any = CLUSTER, *, synced: bool = True, **flags: Any) -> None:
        self._settings = settings_of({"client-option": CLIENT_OPTION, **flags})
        self._counts = Counts()
        self._store = store_of(self._settings)
        self._responder = Responder(authority_of(self._settings), self._counts, client_option=CLIENT_OPTION)
        if synced:
            self.publish(items)

    def publish(self, items: Any, *, now: int = NOW) -> None:
        static.apply(static.read([("cluster.json", clusters.listed(items).encode())]).objects, self._store)
        self._responder.publish(self._store.publish(now))

    def octets(self, wire: bytes, client: str = NOWHERE, *, proto: str = "udp") -> bytes | None:
        """Return the reply, and see that a second one, from memory, is of the same kind."""
        source = parse_address(client)
        channel = self._counts.channels[proto, 1 if len(source) == 4 else 2]
        reply, again = (self._responder.answer(wire, source, channel) for _ in range(2))
        if reply is None or again is None:
            assert reply is again is None
        else:
            assert (reply[:6], reply[8:10]) == (again[:6], again[8:10])
        return reply

    def __call__(self, wire: bytes, client: str = NOWHERE, *, proto: str = "udp") -> dns.message.Message:
        reply = self.octets(wire, client, proto=proto)
        assert reply is not None
        return dns.message.from_wire(reply)


@pytest.fixture(scope="module")
def ask() -> Asker:
    return Asker()


def option_of(reply: dns.message.Message, code: int) -> bytes | None:
    """Return the content of an option in a reply's OPT record, None where it has none."""
    found = [each.to_wire() for each in reply.options if each.otype == code]
    assert len(found) <= 1
    return found[0] if found else None


def answers(reply: dns.message.Message) -> set[str]:
    return {row.to_text() for rrset in reply.answer for row in rrset}


# The order of judgement

NAME = encoded(WEB)
QUESTION = NAME + b"\0\1\0\1"


def raw(tail: bytes, *, flags: int = RD, counts: tuple[int, int, int, int] = (1, 0, 0, 0)) -> bytes:
    return struct.pack("!6H", 0x1234, flags, *counts) + tail


RECORD = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4abcd"
JUDGED = [
    ("nothing at all", b"", SILENCE),
    ("eleven octets", raw(b"")[:11], SILENCE),
    ("a response", query(WEB, flags=QR), SILENCE),
    ("a response with an unknown opcode", query(WEB, flags=QR | 0x2800), SILENCE),
    ("a header alone", raw(b""), FORMERR),
    ("an opcode, and no question", raw(b"", flags=0x1000, counts=(0, 0, 0, 0)), NOTIMP),
    ("an opcode, and a broken question", raw(b"\xff", flags=0x2000), NOTIMP),
    ("an opcode, and BADVERS", query(WEB, flags=0x2800, edns=opt(version=1)), NOTIMP),
    ("an update outside the zones", query("example.com", flags=0x2800), NOTIMP),
    ("QDCOUNT 0", raw(b"", counts=(0, 0, 0, 0)), FORMERR),
    ("QDCOUNT 0 with an OPT", raw(opt(), counts=(0, 0, 0, 1)), FORMERR),
    ("QDCOUNT 2", raw(QUESTION + QUESTION, counts=(2, 0, 0, 0)), FORMERR),
    ("QDCOUNT 2 with one question", raw(QUESTION, counts=(2, 0, 0, 0)), FORMERR),
    ("a trailing octet", query(WEB) + b"\0", FORMERR),
    ("a trailing octet behind an OPT", query(WEB, edns=opt() + b"\0"), FORMERR),
    ("a question cut in its name", query(WEB)[:20], FORMERR),
    ("a question cut before its type", query(WEB)[:-4], FORMERR),
    ("a question cut in its class", query(WEB)[:-1], FORMERR),
    ("a label of 64", raw(b"\x40" + b"a" * 64 + b"\0\0\1\0\1"), FORMERR),
    ("a name of 256", raw((b"\x3f" + b"a" * 63) * 3 + b"\x3e" + b"a" * 62 + b"\0\0\1\0\1"), FORMERR),
    ("a name of 255, outside", raw((b"\x3f" + b"a" * 63) * 3 + b"\x3d" + b"a" * 61 + b"\0\0\1\0\1"), REFUSED),
    ("a pointer in the question", raw(b"\xc0\x0c\0\1\0\1"), FORMERR),
    ("ARCOUNT says more than there is", raw(QUESTION, counts=(1, 0, 0, 1)), FORMERR),
    ("ANCOUNT says more than there is", raw(QUESTION, counts=(1, 1, 0, 0)), FORMERR),
    ("a record cut in its data", raw(QUESTION + RECORD[:-1], counts=(1, 0, 0, 1)), FORMERR),
    ("a record cut in its head", raw(QUESTION + RECORD[:6], counts=(1, 0, 0, 1)), FORMERR),
    ("a record whose name points forward", raw(QUESTION + b"\xc0\xff" + RECORD[2:], counts=(1, 0, 0, 1)), FORMERR),
    ("a record whose name points to the header", raw(QUESTION + b"\xc0\2" + RECORD[2:], counts=(1, 0, 0, 1)), FORMERR),
    ("a record's label of 64", raw(QUESTION + b"\x40" + b"a" * 64 + b"\0" + RECORD[2:], counts=(1, 0, 0, 1)), FORMERR),
    (
        "a record's name of 256",
        raw(QUESTION + (b"\x3f" + b"a" * 63) * 3 + b"\x3e" + b"a" * 62 + b"\0" + RECORD[2:], counts=(1, 0, 0, 1)),
        FORMERR,
    ),
    ("a second OPT", raw(QUESTION + opt() + opt(), counts=(1, 0, 0, 2)), FORMERR),
    ("an OPT among the answers", raw(QUESTION + opt(), counts=(1, 1, 0, 0)), FORMERR),
    ("an OPT with a name", query(WEB, edns=opt(name=b"\1a\0")), FORMERR),
    ("an option cut off", query(WEB, edns=opt(b"\0\x0a\0\x09abc")), FORMERR),
    ("an option's head cut off", query(WEB, edns=opt(b"\0\x0a\0")), FORMERR),
    ("FORMERR before BADVERS", raw(QUESTION + opt(version=1) + opt(), counts=(1, 0, 0, 2)), FORMERR),
    ("BADVERS", query(WEB, edns=opt(version=1)), BADVERS),
    ("BADVERS before its options", query(WEB, edns=opt(b"\0\x08\0\1\0", version=1)), BADVERS),
    ("BADVERS before the class", query(WEB, qclass=3, edns=opt(version=255)), BADVERS),
    ("class CH", query(WEB, qclass=3), REFUSED),
    ("class ANY", query(WEB, qclass=255), REFUSED),
    ("class CH outside", query("version.bind", "TXT", qclass=3), REFUSED),
    ("outside the zones", query("example.com"), REFUSED),
    ("the root", query(""), REFUSED),
    ("above a zone", query("local"), REFUSED),
    ("a name that only ends like a zone", query("xcluster.local"), REFUSED),
    ("AXFR", query("cluster.local", "AXFR"), REFUSED),
    ("IXFR", query("cluster.local", 251), REFUSED),
    ("AXFR outside", query("example.com", "AXFR"), REFUSED),
    ("a further record that is no OPT", raw(QUESTION + RECORD, counts=(1, 0, 0, 1)), 0),
    ("an OPT behind a further record", raw(QUESTION + RECORD + opt(), counts=(1, 0, 0, 2)), 0),
    ("an OPT before a further record", raw(QUESTION + opt() + RECORD, counts=(1, 0, 0, 2)), 0),
    ("an unknown Service", query("nope.shop.svc.cluster.local"), NXDOMAIN),
    ("an impossible shape", query("a.b.c.d.e.svc.cluster.local"), NXDOMAIN),
    ("a type that nobody has", query(WEB, 65000), 0),
]


@pytest.mark.parametrize(("wire", "rcode"), [row[1:] for row in JUDGED], ids=[row[0] for row in JUDGED])
@pytest.mark.parametrize("proto", ["udp", "tcp"])
def test_queries_are_judged_in_order(ask: Asker, wire: bytes, rcode: int | None, proto: str) -> None:
    """Silence, NOTIMP, FORMERR, BADVERS, REFUSED, and only then an answer; flags to match."""
    reply = ask.octets(wire, IN_A, proto=proto)
    if rcode is SILENCE:
        assert reply is None
        return
    assert reply is not None
    flags, sent = int.from_bytes(reply[2:4]), int.from_bytes(wire[2:4])
    extended = reply[-6] if reply[10:12] == b"\0\1" and reply[-11:-8] == b"\0\0\x29" else 0
    assert (flags & 15) + (extended << 4) == rcode
    assert reply[:2] == wire[:2]
    assert flags & 0x7900 == sent & 0x7900
    assert bool(flags & 0x0400) == (rcode in (0, NXDOMAIN))
    if rcode not in (0, NXDOMAIN):
        assert reply[6:10] == bytes(4)


UNSYNCED = [
    ("answers", query(WEB, edns=opt()), SERVFAIL),
    ("outside the zones", query("example.com", edns=opt()), REFUSED),
    ("AXFR", query("cluster.local", "AXFR", edns=opt()), REFUSED),
    ("class", query(WEB, qclass=3, edns=opt()), REFUSED),
    ("broken", query(WEB, edns=opt() + b"\0"), FORMERR),
    ("BADVERS", query(WEB, edns=opt(version=1)), BADVERS),
]


@pytest.mark.parametrize(("wire", "rcode"), [row[1:] for row in UNSYNCED], ids=[row[0] for row in UNSYNCED])
def test_unsynced_is_servfail_but_last_in_the_order(wire: bytes, rcode: int) -> None:
    """Not knowing is not knowing nothing: SERVFAIL with extended error 14 "Not Ready"."""
    reply = Asker(synced=False)(wire)
    assert reply.rcode() == rcode
    ready = option_of(reply, 15)
    assert (ready is not None and ready[:2] == b"\0\x0e") == (rcode == SERVFAIL)
    assert not reply.flags & dns.flags.AA


def test_unsynced_without_edns_is_a_bare_servfail() -> None:
    """RFC 6891, 7: no OPT to those who sent none."""
    reply = Asker(synced=False)(query(WEB))
    assert reply.rcode() == SERVFAIL and reply.edns == -1


@pytest.mark.parametrize(
    "flags", [0, RD, CD, RD | CD, RD | AD, RD | 0x0080, RD | 0x0040, RD | 0x0200, RD | 0x0400, AD | CD]
)
@pytest.mark.parametrize("name", [WEB, "nope.shop.svc.cluster.local", "example.com"])
def test_rd_and_cd_are_copied_and_nothing_else(ask: Asker, name: str, flags: int) -> None:
    """RD and CD copied, RA=0, AD=0; what else a query sets is its own affair."""
    reply = ask(query(name, flags=flags), IN_A)
    others = reply.flags & ~(dns.flags.QR | dns.flags.AA) & 0xFFF0
    assert others == flags & (RD | CD)


# EDNS


def test_no_opt_to_those_who_sent_none(ask: Asker) -> None:
    """RFC 6891, 7: an OPT is sent only to those who sent one, errors included."""
    for wire in (query(WEB), query("example.com"), query(WEB) + b"\0", query("nope.shop.svc.cluster.local")):
        assert ask(wire, IN_A).edns == -1
        assert ask(wire, NOWHERE).edns == -1


READABLE_OPT = [
    ("an answer", query(WEB, edns=opt())),
    ("REFUSED", query("example.com", edns=opt())),
    ("NOTIMP", query(WEB, flags=0x1000, edns=opt())),
    ("NXDOMAIN", query("nope.shop.svc.cluster.local", edns=opt())),
    ("FORMERR behind it", query(WEB, edns=opt() + b"\0")),
    ("FORMERR by its option", query(WEB, edns=opt(b"\0\x08\0\1\0"))),
    ("FORMERR by a second one", raw(QUESTION + opt() + opt(), counts=(1, 0, 0, 2))),
    ("BADVERS", query(WEB, edns=opt(version=7))),
    ("with an extended rcode", query(WEB, edns=opt(rcode=255))),
]


@pytest.mark.parametrize("wire", [row[1] for row in READABLE_OPT], ids=[row[0] for row in READABLE_OPT])
def test_an_opt_to_those_who_sent_one(ask: Asker, wire: bytes) -> None:
    """RFC 6891, 6 and 7: errors included, of version 0, without what was not understood."""
    if wire[2] & 0x78:
        octets = ask.octets(wire, IN_A)
        assert octets is not None and octets[-11:] == opt()
        return
    reply = ask(wire, IN_A)
    assert reply.edns == 0 and reply.payload == 1232


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 700, 1231, 1232, 1233, 4096, 65535])
@pytest.mark.parametrize("qtype", ["A", "SRV"])
def test_udp_replies_fit_what_the_client_takes(ask: Asker, size: int, qtype: str) -> None:
    """The smaller of the client's size (at least 512) and 1232, used up as far as whole records go."""
    limit = min(max(size, 512), 1232)
    octets = ask.octets(query("many.shop.svc.cluster.local", qtype, edns=opt(size=size)))
    assert octets is not None
    reply = dns.message.from_wire(octets)
    assert reply.flags & dns.flags.TC and reply.edns == 0
    whole = ask.octets(query("many.shop.svc.cluster.local", qtype, edns=opt(size=size)), proto="tcp")
    assert whole is not None
    longest = 16 if qtype == "A" else 80
    assert limit - longest < len(octets) <= limit


def test_512_octets_without_edns(ask: Asker) -> None:
    """RFC 1035, 4.2.1."""
    octets = ask.octets(query("many.shop.svc.cluster.local"))
    assert octets is not None and 496 < len(octets) <= 512
    assert dns.message.from_wire(octets).flags & dns.flags.TC


@pytest.mark.parametrize("flags", [0, 0x8000, 0x7FFF, 0xFFFF], ids=hex)
@pytest.mark.parametrize("name", [WEB, "example.com"])
def test_do_is_copied_and_no_other_flag(ask: Asker, name: str, flags: int) -> None:
    """RFC 3225 and RFC 6891, 6.1.4: unknown flags are ignored and not echoed."""
    assert ask(query(name, edns=opt(flags=flags)), IN_A).ednsflags & 0xFFFF == flags & 0x8000


@pytest.mark.parametrize("code", [5, 10, 11, 12, 15, 65001, 65535])
def test_unknown_options_are_ignored_and_not_echoed(ask: Asker, code: int) -> None:
    """RFC 6891, 6.1.2."""
    reply = ask(query(WEB, edns=opt(option(code, b"12345678"), option(code))), IN_A)
    assert reply.rcode() == 0 and not reply.options and answers(reply) == {"10.244.1.1"}


# Client subnet

ECHOED = [
    ("an IPv4 host", "192.0.2.7"),
    ("an IPv6 host", "2001:db8::7"),
    ("a /24", "192.0.2.0/24"),
    ("a /25", "192.0.2.128/25"),
    ("a /1", "128.0.0.0/1"),
    ("a /56", "2001:db8::/56"),
    ("a /57", "2001:db8::/57"),
    ("IPv4 /0", "0.0.0.0/0"),
    ("IPv6 /0", "::/0"),
    ("an IPv4-mapped host", "::ffff:192.168.0.1"),
]


@pytest.mark.parametrize("text", [row[1] for row in ECHOED], ids=[row[0] for row in ECHOED])
@pytest.mark.parametrize("client", [FORWARDER, NOWHERE, IN_A, "fd00:1::1"])
@pytest.mark.parametrize(
    ("name", "dependent"),
    [
        (WEB, True),
        (FREE, False),
        ("nope.shop.svc.cluster.local", False),
        ("cluster.local", False),
        ("example.com", False),
    ],
    ids=["constrained", "free", "missing", "apex", "refused"],
)
def test_the_subnet_is_echoed_with_its_scope(ask: Asker, text: str, client: str, name: str, dependent: bool) -> None:
    """RFC 7871, 7.2.1: all as it came, but for the scope: the prefix where it mattered, whoever asked."""
    sent = ecs(text)[4:]
    echoed = option_of(ask(query(name, edns=opt(ecs(text))), client), 8)
    assert echoed == sent[:3] + (sent[2:3] if dependent else b"\0") + sent[4:]


def test_the_scope_is_told_of_unmet_and_empty_answers_too(ask: Asker) -> None:
    """RFC 7871, 7.2.1: another client would be answered otherwise."""
    for qtype in ("A", "AAAA", "SRV"):
        reply = ask(query(WEB, qtype, edns=opt(ecs("192.0.2.7"))), FORWARDER)
        assert not reply.answer
        assert option_of(reply, 8) == ecs("192.0.2.7", scope=32)[4:]


def test_family_0_with_0_is_fine(ask: Asker) -> None:
    """``dig +subnet=0``: no client is named, nobody is asked about; scope 0 is its source prefix."""
    for client in (FORWARDER, IN_A):
        for name in (WEB, FREE):
            octets = ask.octets(query(name, edns=opt(ecs("0"))), client)
            assert octets is not None and octets.count(ecs("0")) == 1 and octets[3] & 15 == 0


MALFORMED = [
    ("empty", b""),
    ("family alone", b"\0\1"),
    ("three octets", b"\0\1\0"),
    ("an unknown family", b"\0\3\0\0"),
    ("family 0 with a prefix", b"\0\0\x08\0\x0a"),
    ("family 0 with an address", b"\0\0\0\0\x0a"),
    ("IPv4 /33", b"\0\1\x21\0" + b"\xc0\0\2\7\0"),
    ("IPv6 /129", b"\0\2\x81\0" + bytes(17)),
    ("an address too short", b"\0\1\x20\0" + b"\xc0\0\2"),
    ("an address too long", b"\0\1\x18\0" + b"\xc0\0\2\0"),
    ("an address with /0", b"\0\1\0\0\0"),
    ("bits beyond the prefix", b"\0\1\x19\0" + b"\xc0\0\2\x01"),
    ("a scope", b"\0\1\x18\x18" + b"\xc0\0\2"),
]


@pytest.mark.parametrize("content", [row[1] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
@pytest.mark.parametrize("client", [FORWARDER, NOWHERE])
@pytest.mark.parametrize("name", [WEB, "example.com"])
def test_a_malformed_subnet_is_formerr(ask: Asker, content: bytes, client: str, name: str) -> None:
    """RFC 7871, 7.1.1: FORMERR, with an OPT and without an echo, whoever asks and for what."""
    reply = ask(query(name, edns=opt(option(8, content))), client)
    assert reply.rcode() == FORMERR and reply.edns == 0 and not reply.options
    assert reply.question[0].name == dns.name.from_text(name)


def test_two_subnets_are_formerr(ask: Asker) -> None:
    """Two of them name nobody, and a query that says so is malformed."""
    reply = ask(query(WEB, edns=opt(ecs("192.0.2.7"), ecs("192.0.2.8"))), FORWARDER)
    assert reply.rcode() == FORMERR and reply.edns == 0 and option_of(reply, 8) is None


def test_each_client_gets_its_own_address_back_even_where_the_reply_is_cut() -> None:
    """RFC 7871, 7.2.1: an unmet answer whose text does not fit still echoes this query's address, not another's."""
    rack, longest, where, port, zone = "example.com/" + "k" * 63, "v" * 63, "n" * 63, "q" * 15, "c" * 63 + ".local"
    ports = [(port, 80, "TCP")]
    items = [
        clusters.namespace(where),
        clusters.node("node-a", {ZONE: "z" * 63, rack: "z" * 63}, addresses=[IN_A, IN_B]),
        clusters.service(longest, keys=f"{ZONE},{rack}", where=where, ports=ports),
        clusters.endpoint_slice(longest, 0, [clusters.endpoint("10.0.0.1", zone="x")], where=where, ports=ports),
        clusters.service("kube-dns", cluster_ips=["10.96.0.10"], where="kube-system"),
        clusters.endpoint_slice("kube-dns", 0, [clusters.endpoint(FORWARDER)], where="kube-system"),
    ]
    ask = Asker(items, zone=[zone])
    for text in (IN_A, IN_B, IN_A):
        wire = query(f"_{port}._tcp.{longest}.{where}.svc.{zone}", "SRV", edns=opt(ecs(text), size=512))
        whole, cut = ask.octets(wire, FORWARDER, proto="tcp"), ask.octets(wire, FORWARDER)
        assert whole is not None and cut is not None
        assert len(cut) <= 512 < len(whole)
        assert ecs(text, scope=32) in whole
        assert ecs(text, scope=32) in cut


# Who asks


TOLD = [
    ("a forwarder names a pod's network", FORWARDER, [ecs("10.244.1.77")], {"10.244.1.1"}),
    ("a forwarder names a /24", FORWARDER, [ecs("10.244.2.0/24")], {"10.244.2.1", "10.244.2.2"}),
    ("a forwarder names nobody", FORWARDER, [], set()),
    ("a forwarder names /0", FORWARDER, [ecs("0.0.0.0/0")], set()),
    ("a forwarder names a stranger", FORWARDER, [ecs(NOWHERE)], set()),
    ("a stranger says that it is another", NOWHERE, [ecs(IN_A)], set()),
    ("a node says that it is another", IN_B, [ecs(IN_A)], {"10.244.2.1", "10.244.2.2"}),
    ("the option, 4 octets", FORWARDER, [option(CLIENT_OPTION, parse_address(IN_A))], {"10.244.1.1"}),
    ("the option, 16 octets", FORWARDER, [option(CLIENT_OPTION, parse_address("fd00:1::1"))], {"10.244.1.1"}),
    (
        "the option, IPv4 in 16 octets",
        FORWARDER,
        [option(CLIENT_OPTION, bytes(10) + b"\xff\xff" + parse_address(IN_A))],
        {"10.244.1.1"},
    ),
    (
        "the option before the subnet",
        FORWARDER,
        [ecs(IN_B), option(CLIENT_OPTION, parse_address(IN_A))],
        {"10.244.1.1"},
    ),
    ("the option from a stranger", NOWHERE, [option(CLIENT_OPTION, parse_address(IN_A))], set()),
    ("the option from a node", IN_B, [option(CLIENT_OPTION, parse_address(IN_A))], {"10.244.2.1", "10.244.2.2"}),
    ("another option with an address", FORWARDER, [option(CLIENT_OPTION + 1, parse_address(IN_A))], set()),
    ("two options name nobody", FORWARDER, [option(CLIENT_OPTION, parse_address(IN_A))] * 2, set()),
    ("an option of 5 octets names nobody", FORWARDER, [option(CLIENT_OPTION, b"12345")], set()),
]


@pytest.mark.parametrize(("client", "options", "expected"), [row[1:] for row in TOLD], ids=[row[0] for row in TOLD])
def test_only_trusted_forwarders_say_who_asks(
    ask: Asker, client: str, options: list[bytes], expected: set[str]
) -> None:
    """From a trusted forwarder what it says, option before subnet; from anyone else the source address."""
    wire = query(WEB, edns=opt(*options))
    assert answers(ask(wire, client)) == expected
    assert answers(ask(wire, client, proto="tcp")) == expected


# Names and types


@pytest.mark.parametrize("name", [WEB.upper(), "wEb.ShOp.SvC.cLuStEr.LoCaL", "web.shop.svc.cluster.LOCAL"])
def test_the_question_comes_back_in_its_case(ask: Asker, name: str) -> None:
    """0x20: echoed octet for octet; records compressed against it carry its case."""
    octets = ask.octets(query(name), IN_A)
    assert octets is not None
    assert octets[12 : 12 + len(encoded(name))] == encoded(name)
    assert answers(dns.message.from_wire(octets)) == {"10.244.1.1"}
    assert dns.message.from_wire(octets).answer[0].name.to_text() == f"{name}."


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("low", [65, 70, 90])
def test_types_that_fold_together_keep_their_question(low: int, first: int) -> None:
    """Types 65 to 90 look like 97 to 122 in another case: both are NODATA, each with its own question."""
    ask = Asker()
    for qtype in (low, low + 32) if first else (low + 32, low):
        for name in (WEB, FREE, "cluster.local"):
            reply = ask(query(name, qtype), IN_A)
            assert reply.question[0].rdtype == qtype
            assert reply.rcode() == 0 and not reply.answer and reply.authority


@pytest.mark.parametrize("qtype", [99, 65, 257, 65280])
def test_types_that_nobody_has_records_of_are_the_same_for_all(qtype: int) -> None:
    """Where no client gets records, none is told that its place is the reason, and caches may keep the answer."""
    ask = Asker()
    for client in (NOWHERE, IN_A, IN_B, NOWHERE):
        reply = ask(query(WEB, qtype, edns=opt()), client)
        assert option_of(reply, 15) is None
        assert reply.authority[0].ttl == 5


ODD_LABELS = [
    ("a NUL in a label", [b"w\0b", b"shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("a NUL, then a Service's name", [b"\0", b"web", b"shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("a label that looks like an end", [b"web\0\0\1\0\1", b"shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("a dot in a label", [b"web.shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("a zone in one label", [b"web", b"shop", b"svc", b"cluster.local"], REFUSED),
    ("octets beyond ASCII", [b"w\xe9b", b"shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("an underscore alone", [b"_", b"_", b"web", b"shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("a slash in a label", [b"shop/web", b"svc", b"cluster", b"local"], NXDOMAIN),
]


@pytest.mark.parametrize(("labels", "rcode"), [row[1:] for row in ODD_LABELS], ids=[row[0] for row in ODD_LABELS])
@pytest.mark.parametrize("qtype", ["A", "SRV", "ANY"])
@pytest.mark.parametrize("edns", [b"", opt(), opt(ecs("192.0.2.7"))], ids=["plain", "edns", "ecs"])
def test_odd_labels_are_names_like_any_other(labels: list[bytes], rcode: int, qtype: str, edns: bytes) -> None:
    """RFC 2181, 11: any octets make a label; asked before and after the names that they resemble."""
    ask = Asker()
    for name in (labels, WEB.encode().split(b"."), labels):
        reply = ask(query(name, qtype, edns=edns), IN_A)
        assert reply.rcode() == (rcode if name is labels else 0)
        assert reply.question[0].name.labels[:-1] == tuple(name)


# Truncation


def test_glue_goes_first_and_silently(ask: Asker) -> None:
    """Without room for the addresses, the SRV records alone, whole and without TC."""
    wire = query("some.shop.svc.cluster.local", "SRV", edns=opt(size=1232))
    cut, whole = ask(wire), ask(wire, proto="tcp")
    assert len(whole.additional) == 20
    octets = ask.octets(wire)
    assert octets is not None
    if not cut.flags & dns.flags.TC:
        assert not cut.additional and answers(cut) == answers(whole)


def test_whole_records_stay_with_tc_the_next_turn_first(ask: Asker) -> None:
    """RFC 2181, 9: as many whole records as fit, beginning with the one whose turn it is; TCP carries all."""
    name, seen = "many.shop.svc.cluster.local", []
    for _ in range(250):
        reply = ask(query(name, edns=opt()), "192.0.2.1")
        assert reply.flags & dns.flags.TC and not reply.authority and not reply.additional
        seen.append(next(iter(reply.answer[0])).to_text())
    whole = ask(query(name, edns=opt()), proto="tcp")
    assert not whole.flags & dns.flags.TC and len(answers(whole)) == 250
    assert len(set(seen)) == 125  # each asked twice by the helper: every other turn is seen


def test_a_large_answer_is_whole_over_tcp(ask: Asker) -> None:
    """RFC 7766, 3: TCP carries everything, glue too."""
    reply = ask(query("many.shop.svc.cluster.local", "SRV"), proto="tcp")
    assert not reply.flags & dns.flags.TC
    assert (len(answers(reply)), len(reply.additional)) == (250, 250)
    assert {row.weight for rrset in reply.answer for row in rrset} == {1}


# Compression


def test_owners_are_pointers_and_srv_targets_are_not(ask: Asker) -> None:
    """RFC 1035, 4.1.4 and RFC 2782: compression wherever it is allowed."""
    octets = ask.octets(query(WEB, "SRV"), IN_A)
    assert octets is not None
    at = 12 + len(encoded(WEB)) + 4
    assert octets[at : at + 2] == b"\xc0\x0c"
    length = int.from_bytes(octets[at + 10 : at + 12])
    data = octets[at + 12 : at + 12 + length]
    assert data == struct.pack("!HHH", 0, 100, 80) + encoded(f"web-0.{WEB}")
    assert octets[at + 12 + length :].startswith(b"\x05web-0\xc0\x0c")


def test_the_soa_is_compressed_against_the_question(ask: Asker) -> None:
    """RFC 1035, 4.1.4: its owner and both its names end in the zone that the question names."""
    name = "nope.shop.svc.cluster.local"
    octets = ask.octets(query(name), IN_A)
    assert octets is not None
    zone = struct.pack("!H", 0xC000 | 12 + len(encoded("nope.shop.svc")) - 1)
    assert octets[12 + len(encoded(name)) + 4 :].startswith(zone)
    assert b"\2ns\3dns" + zone in octets and b"\x0ahostmaster" + zone in octets


# What is patched into what is remembered


@pytest.mark.parametrize("name", [WEB, "nope.shop.svc.cluster.local", "cluster.local"])
@pytest.mark.parametrize("client", [IN_A, NOWHERE])
def test_the_serial_is_that_of_the_last_visible_change(name: str, client: str) -> None:
    """Also in an answer that is remembered of a Service which did not change itself."""
    ask = Asker()
    for now, items in ((NOW, CLUSTER), (NOW + 60, [*CLUSTER, clusters.service("new")]), (NOW + 90, CLUSTER)):
        ask.publish(items, now=now)
        for edns in (b"", opt(), opt(size=512)):
            reply = ask(query(name, "AAAA", edns=edns), client)
            assert reply.authority[0][0].serial == now
    ask.publish(CLUSTER, now=NOW + 999)  # nothing changed
    assert ask(query(name, "AAAA"), client).authority[0][0].serial == NOW + 90


def test_unmet_says_which_key_and_value(ask: Asker) -> None:
    """NODATA, TTL and minimum 0, extended error 0 with key and value; none without EDNS."""
    reply = ask(query(WEB, edns=opt(ecs("10.244.9.9"))), FORWARDER)
    soa = reply.authority[0]
    assert (reply.rcode(), soa.ttl, soa[0].minimum) == (0, 0, 0)
    error = option_of(reply, 15)
    assert error is not None and error[:2] == b"\0\0" and ZONE.encode() in error
    assert ask(query(WEB), NOWHERE).edns == -1


# What an object may hold that no name can


BAD_HOSTNAMES = [
    ("64 octets", "x" * 64),
    ("an empty label", "a..b"),
    ("beyond ASCII", "caf\u00e9"),
    ("a dot", "a.b"),
    ("a space", "a b"),
]


@pytest.mark.parametrize("hostname", [row[1] for row in BAD_HOSTNAMES], ids=[row[0] for row in BAD_HOSTNAMES])
@pytest.mark.parametrize("qtype", ["A", "SRV", "ANY"])
def test_a_hostname_that_is_no_label_harms_no_answer(hostname: str, qtype: str) -> None:
    """Issue 3, point 10: never an exception, and the good endpoints beside it are served."""
    rows = [clusters.endpoint("10.0.0.1", hostname=hostname), clusters.endpoint("10.0.0.2", hostname="good")]
    ask = Asker([clusters.namespace("shop"), clusters.service("web"), clusters.endpoint_slice("web", 0, rows)])
    reply = ask(query(WEB, qtype))
    assert reply.rcode() == 0 and reply.answer
    if qtype == "A":
        assert "10.0.0.2" in answers(reply)


def test_a_service_whose_names_are_too_long_harms_no_answer() -> None:
    """RFC 1035, 3.1: 255 octets; an SRV target that cannot exist is left out, the rest answered."""
    zone = ".".join(["z" * 63] * 3)
    items = [
        clusters.namespace("shop"),
        clusters.service("web"),
        clusters.endpoint_slice("web", 0, [clusters.endpoint("10.0.0.1", hostname="h" * 63)]),
    ]
    ask = Asker(items, zone=[zone])
    for qtype in ("A", "SRV", "ANY"):
        assert ask(query(f"web.shop.svc.{zone}", qtype)).rcode() == 0


@pytest.mark.parametrize("questions", [0, 2])
@pytest.mark.parametrize("opcode", [0, 4], ids=["query", "notify"])
def test_an_opt_is_answered_by_an_opt_whatever_the_count_of_questions(questions: int, opcode: int) -> None:
    """An OPT goes to those who sent a readable one, errors included; there is no question to repeat."""
    asked_for = query(WEB)[12:] * questions
    wire = b"\x12\x34" + bytes((opcode << 3, 0)) + bytes((0, questions, 0, 0, 0, 0, 0, 1)) + asked_for + opt()
    reply = Asker().octets(wire, IN_A)
    assert reply is not None
    assert (reply[:2], reply[3] & 15, reply[4:12]) == (b"\x12\x34", 4 if opcode else 1, b"\0\0\0\0\0\0\0\1")
    assert reply[12:15] == b"\0\0\x29"
