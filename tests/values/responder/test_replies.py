# SPDX-License-Identifier: Apache-2.0

"""Replies as octets: rules over several queries, or over several records, which are no rows of the wire's table."""

from __future__ import annotations

import struct
import tracemalloc
from collections import Counter
from typing import Any

import dns.message
import dns.name
import dns.rdata
import pytest

from dnsserver.message.query import read_query
from dnsserver.programs.from_settings import store_of
from locator.ip import parse_address
from tests.kit import api_objects
from tests.kit.api_objects import ZONE, Item
from tests.kit.dns_queries import ecs, encoded, opt, option, query
from tests.kit.in_memory import NOW, CountedResponder, dump_of, settings_of, take_in
from tests.kit.random_queries import Asked
from tests.kit.replies import assert_sound, parts_of
from tests.kit.wire_cluster import CLUSTER, FLAGS, FORWARDER, FREE, IN_A, IN_B, MANY, NOWHERE, SERVED, WEB
from tests.kit.wire_edns_rows import ECHOED

PADDING = 12  # RFC 7830


class Asker:
    """A responder that is asked with octets; dnspython reads its replies."""

    def __init__(self, items: list[Item] = CLUSTER, *, synced: bool = True, **flags: Any) -> None:
        self.responder = CountedResponder({**FLAGS, **flags})
        self.counts = self.responder.counts
        self.store = store_of(settings_of({**FLAGS, **flags}))
        if synced:
            self.publish(items)

    def publish(self, items: list[Item], *, now: int = NOW) -> None:
        take_in(self.store, dump_of(api_objects.listed(items)).objects)
        self.responder.publish(self.store.publish(now))

    def octets(self, wire: bytes, client: str = NOWHERE, *, proto: str = "udp", compute: bool = False) -> bytes | None:
        source = parse_address(client)
        channel = self.responder.channel(source, proto)
        reply = (self.responder.computed if compute else self.responder.reply)(wire, source, channel)
        assert reply is None or isinstance(reply, bytes)  # none waits for anybody else
        return reply

    def __call__(self, wire: bytes, client: str = NOWHERE, *, proto: str = "udp") -> dns.message.Message:
        """Return the reply as dnspython reads it; check that a second, cached one is of the same kind."""
        reply, again = (self.octets(wire, client, proto=proto) for _ in range(2))
        assert reply is not None and again is not None
        assert (reply[:6], reply[8:10]) == (again[:6], again[8:10])
        return dns.message.from_wire(reply)


@pytest.fixture(scope="module")
def ask() -> Asker:
    return Asker()


def option_of(reply: dns.message.Message, code: int) -> bytes | None:
    """Return the content of an option in a reply's OPT record, None without it."""
    found = [option.to_wire() for option in reply.options if option.otype == code]
    assert len(found) <= 1
    return found[0] if found else None


def answers(reply: dns.message.Message) -> set[str]:
    return {row.to_text() for rrset in reply.answer for row in rrset}


# Sizes


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 700, 1231, 1232, 1233, 4096, 65535])
def test_srv_replies_use_up_what_the_client_takes(ask: Asker, size: int) -> None:
    """RFC 2181, 9: not one more whole record would fit."""
    limit = min(max(size, 512), 1232)
    octets = ask.octets(query(MANY, "SRV", edns=opt(size=size)))
    assert octets is not None
    longest = max(map(len, parts_of(octets).answers))
    assert octets[2] & 0x02 and limit - longest < len(octets) <= limit


def test_additional_records_go_first_and_silently() -> None:
    """Addresses that do not fit are left out one by one, without TC; then whole SRV records, with TC."""
    name = f"ten.{SERVED}"

    def sized(size: int) -> tuple[int, int, int, bool]:
        reply = Asker().octets(query(name, "SRV", edns=opt(size=size)))
        assert reply is not None
        answer, additional = struct.unpack("!H2xH", reply[6:12])
        return len(reply), answer, additional - 1, bool(reply[2] & 0x02)

    whole = sized(1232)
    assert 512 + 10 * 16 < whole[0] < 1232 and whole[1:] == (10, 10, False)
    assert sized(whole[0]) == sized(whole[0] + 1) == whole
    shorter = sized(whole[0] - 1)  # their owners point to the SRV targets
    assert shorter[0] < whole[0] and shorter[1:] == whole[1:]
    for left in range(10, -1, -1):
        some = (shorter[0] - 16 * (10 - left), 10, left, False)
        assert sized(some[0]) == sized(some[0] + 1) == some
        if left:
            assert sized(some[0] - 1)[2:] == (left - 1, False)
    cut = sized(some[0] - 1)
    assert cut[0] < some[0] - 40 and cut[1:] == (9, 0, True)


@pytest.mark.parametrize(
    ("wire", "count"),
    [(query(f"inside.{SERVED}", edns=opt()), 2), (query(f"ten.{SERVED}", "SRV", edns=opt(size=700)), 10)],
    ids=["behind an alias", "with room for half of the additional records"],
)
def test_every_response_begins_with_another_record(wire: bytes, count: int) -> None:
    """Each record that a reply holds comes first about equally often, in truncated replies, too."""
    ask, firsts, even = Asker(), Counter[bytes](), 50
    for _ in range(even * count):
        octets = ask.octets(wire)
        assert octets is not None
        firsts[parts_of(octets).answers[-count]] += 1
    assert len(firsts) == count and max(abs(number - even) for number in firsts.values()) < 6 * even**0.5


def test_a_large_answer_is_whole_over_tcp(ask: Asker) -> None:
    """RFC 7766, 3: TCP carries all answers, and the addresses that stay where a pointer reaches."""
    reply = ask(query(MANY, "SRV"), proto="tcp")
    assert not reply.flags & dns.flags.TC
    assert len(answers(reply)) == 250 and 0 < len(reply.additional) < 100
    assert {row.weight for rrset in reply.answer for row in rrset} == {1}


# Client subnet


@pytest.mark.parametrize(("name", "endpoints"), [(WEB, {"10.244.1.1"}), (FREE, {"10.244.1.9", "10.244.2.9"})])
def test_a_client_of_ipv6_gets_its_subnet_back(ask: Asker, name: str, endpoints: set[str]) -> None:
    """RFC 7871, 7.2.1: its subnet is echoed, and its own place counts."""
    for _, text in ECHOED:
        sent = ecs(text)[4:]
        reply = ask(query(name, edns=opt(ecs(text))), "fd00:1::1")
        assert option_of(reply, 8) == sent[:3] + (sent[2:3] if name == WEB else b"\0") + sent[4:]
        assert answers(reply) == endpoints


def test_every_option_fits_beside_the_longest_question() -> None:
    """RFC 6891, 7; RFC 8914: an error's text is left out first, and the rest fits 512 octets."""
    label, zone = "a" * 63, f"{'c' * 51}.{'b' * 63}.local"
    name = f"{label}.{'n' * 63}.svc.{zone}"
    items = [api_objects.namespace("n" * 63), api_objects.service(label, keys=ZONE, where="n" * 63)]
    rows = [api_objects.endpoint("10.0.0.1", zone="x")]
    items.append(api_objects.endpoint_slice(label, 0, rows, where="n" * 63))
    ask = Asker(items, zone=[zone], nsid="s" * 128)
    assert len(encoded(name)) == 255
    for qtype in ("A", "SRV", "ANY", "TXT", "AXFR"):
        wire = query(name, qtype, edns=opt(option(3), ecs("2001:db8::7"), size=512))
        reply = ask.octets(wire)
        assert_sound(Asked(wire, NOWHERE, "udp"), reply, limit=512)
        assert reply is not None and b"s" * 128 in reply and ecs("2001:db8::7")[8:] in reply


def test_each_client_gets_its_own_address_back_even_where_the_reply_is_cut() -> None:
    """RFC 7871, 7.2.1: an unmet answer without its text echoes the subnet of its own query."""
    rack, longest, where, port, zone = "example.com/" + "k" * 63, "v" * 63, "n" * 63, "q" * 15, "c" * 63 + ".local"
    ports = [(port, 80, "TCP")]
    items = [
        api_objects.namespace(where),
        api_objects.node("node-a", {ZONE: "z" * 63, rack: "z" * 63}, addresses=[IN_A, IN_B]),
        api_objects.service(longest, keys=f"{ZONE},{rack}", where=where, ports=ports),
        api_objects.endpoint_slice(longest, 0, [api_objects.endpoint("10.0.0.1", zone="x")], where=where, ports=ports),
        api_objects.service("kube-dns", cluster_ips=["10.96.0.10"], where="kube-system"),
        api_objects.endpoint_slice("kube-dns", 0, [api_objects.endpoint(FORWARDER)], where="kube-system"),
    ]
    ask = Asker(items, zone=[zone])
    for text in (IN_A, IN_B, IN_A):
        wire = query(f"_{port}._tcp.{longest}.{where}.svc.{zone}", "SRV", edns=opt(ecs(text), size=512))
        whole, cut = ask.octets(wire, FORWARDER, proto="tcp"), ask.octets(wire, FORWARDER)
        assert whole is not None and cut is not None
        assert len(cut) <= 512 < len(whole)
        assert ecs(text, scope=32) in whole
        assert ecs(text, scope=32) in cut


# Names and types


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("low", [65, 70, 90])
def test_types_that_fold_together_keep_their_question(low: int, first: int) -> None:
    """Types 65 to 90 and 97 to 122 differ like letters' case: each keeps its own question."""
    ask = Asker()
    for qtype in (low, low + 32) if first else (low + 32, low):
        for name in (WEB, FREE, "cluster.local"):
            reply = ask(query(name, qtype), IN_A)
            assert reply.question[0].rdtype == qtype
            assert reply.rcode() == 0 and not reply.answer and reply.authority


# Compression


def test_owners_are_pointers_and_srv_targets_are_not(ask: Asker) -> None:
    """RFC 1035, 4.1.4 and RFC 2782: names are compressed wherever that is allowed."""
    octets = ask.octets(query(WEB, "SRV"), IN_A)
    assert octets is not None
    at = 12 + len(encoded(WEB)) + 4
    assert octets[at : at + 2] == b"\xc0\x0c"
    length = int.from_bytes(octets[at + 10 : at + 12])
    data = octets[at + 12 : at + 12 + length]
    assert data == struct.pack("!HHH", 0, 100, 80) + encoded(f"web-0.{WEB}")
    assert octets[at + 12 + length :].startswith(b"\x05web-0\xc0\x0c")


def test_an_owner_points_to_its_target_where_room_is_scarce(ask: Asker) -> None:
    """RFC 2782 forbids compressing a target, not pointing to it."""
    octets = ask.octets(query(f"ten.{SERVED}", "SRV", edns=opt(size=700)))
    assert octets is not None
    first = 12 + len(encoded(f"ten.{SERVED}")) + 4
    target = first + 12 + 6  # behind owner, type, class, TTL and length; priority, weight and port
    name = dns.message.from_wire(octets, one_rr_per_rrset=True).answer[0][0].target
    assert octets[target:].startswith(name.to_wire())
    assert parts_of(octets).rest[0].startswith(struct.pack("!HH", 0xC000 | target, 1))


def test_the_soa_is_compressed_against_the_question(ask: Asker) -> None:
    """RFC 1035, 4.1.4: its owner and both its names end in the question's zone."""
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
    """In cached answers of unchanged Services, too."""
    ask = Asker()
    for now, items in ((NOW, CLUSTER), (NOW + 60, [*CLUSTER, api_objects.service("new")]), (NOW + 90, CLUSTER)):
        ask.publish(items, now=now)
        for edns in (b"", opt(), opt(size=512)):
            reply = ask(query(name, "AAAA", edns=edns), client)
            assert reply.authority[0][0].serial == now
    ask.publish(CLUSTER, now=NOW + 999)  # nothing changed
    assert ask(query(name, "AAAA"), client).authority[0][0].serial == NOW + 90


def test_unmet_says_which_key_and_value(ask: Asker) -> None:
    """NODATA, TTL and minimum 0, extended error 0 with key and value; no error without EDNS."""
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
    """RFC 1035, 3.1: no exception, and the other endpoints are answered."""
    rows = [api_objects.endpoint("10.0.0.1", hostname=hostname), api_objects.endpoint("10.0.0.2", hostname="good")]
    ask = Asker([api_objects.namespace("shop"), api_objects.service("web"), api_objects.endpoint_slice("web", 0, rows)])
    reply = ask(query(WEB, qtype))
    assert reply.rcode() == 0 and reply.answer
    if qtype == "A":
        assert "10.0.0.2" in answers(reply)


def test_a_service_whose_names_are_too_long_harms_no_answer() -> None:
    """RFC 1035, 3.1: 255 octets; an SRV target that is longer is left out, the rest answered."""
    zone = ".".join(["z" * 63] * 3)
    items = [
        api_objects.namespace("shop"),
        api_objects.service("web"),
        api_objects.endpoint_slice("web", 0, [api_objects.endpoint("10.0.0.1", hostname="h" * 63)]),
    ]
    ask = Asker(items, zone=[zone])
    for qtype in ("A", "SRV", "ANY"):
        assert ask(query(f"web.shop.svc.{zone}", qtype)).rcode() == 0
    reverse = [api_objects.service("w" * 63, cluster_ips=("10.0.0.1",)), *items]
    ask = Asker(reverse, zone=[zone, "in-addr.arpa"])
    assert ask(query("1.0.0.10.in-addr.arpa", "PTR")).rcode() == 3


def test_nothing_stays_of_large_options() -> None:
    """Padding may have 64 KiB over TCP: a client that sends thousands of different ones takes no memory."""
    tracemalloc.start()
    try:
        for number in range(100):
            read = read_query(query(WEB, edns=opt(option(PADDING, number.to_bytes(2) * 30_000))))
            assert read is not None and not read.rcode
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
