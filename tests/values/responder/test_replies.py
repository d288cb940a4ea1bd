# SPDX-License-Identifier: Apache-2.0

"""Replies as octets: rules over several queries, or over several records, which are no rows of the wire's table."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import dns.flags
import dns.message
import pytest

from dnsserver.message.query import read_query
from tests.kit import in_memory
from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, listed, namespace, node, service
from tests.kit.dns_queries import ecs, encoded, opt, option, query
from tests.kit.in_memory import CountedResponder
from tests.kit.random_queries import Asked, replied
from tests.kit.replies import assert_sound, parsed, parts_of
from tests.kit.wire_cluster import CLUSTER, FLAGS, FORWARDER, FREE, IN_A, IN_B, MANY, NOWHERE, PADDING, SERVED, WEB


def responder_of(items: list[Item], **flags: Any) -> CountedResponder:
    return in_memory.responder_of(listed(items), {**FLAGS, **flags})


@pytest.fixture(scope="module")
def responder() -> CountedResponder:
    return responder_of(CLUSTER)


def octets(responder: CountedResponder, wire: bytes, client: str = NOWHERE, proto: str = "udp") -> bytes:
    reply = replied(responder, Asked(wire, client, proto))
    assert isinstance(reply, bytes)
    return reply


def ask(responder: CountedResponder, wire: bytes, client: str = NOWHERE, proto: str = "udp") -> dns.message.Message:
    return parsed(octets(responder, wire, client, proto))


# Sizes


def test_a_large_answer_is_whole_over_tcp(responder: CountedResponder) -> None:
    """RFC 7766, 3: TCP carries all answers, and the addresses that stay where a pointer reaches."""
    reply = ask(responder, query(MANY, "SRV"), proto="tcp")
    assert not reply.flags & dns.flags.TC
    assert sum(map(len, reply.answer)) == 250 and 0 < len(reply.additional) < 100
    assert {row.weight for rrset in reply.answer for row in rrset} == {1}


def test_every_option_fits_beside_the_longest_question() -> None:
    """RFC 6891, 7; RFC 8914: an error's text is left out first, and the rest fits 512 octets."""
    label, where, zone = "a" * 63, "n" * 63, f"{'c' * 51}.{'b' * 63}.local"
    items = [namespace(where), service(label, keys=ZONE, where=where)]
    items.append(endpoint_slice(label, 0, [endpoint("10.0.0.1", zone="x")], where=where))
    responder, name = responder_of(items, zone=[zone], nsid="s" * 128), f"{label}.{where}.svc.{zone}"
    assert len(encoded(name)) == 255
    for qtype in ("A", "SRV", "ANY", "TXT", "AXFR"):
        wire = query(name, qtype, edns=opt(option(3), ecs("2001:db8::7"), size=512))
        reply = octets(responder, wire)
        assert_sound(Asked(wire, NOWHERE, "udp"), reply, limit=512)
        assert b"s" * 128 in reply and ecs("2001:db8::7")[8:] in reply


def test_each_client_gets_its_own_address_back_even_where_the_reply_is_cut() -> None:
    """RFC 7871, 7.2.1: an unmet answer without its text echoes the subnet of its own query."""
    rack, longest, where, port, zone = "example.com/" + "k" * 63, "v" * 63, "n" * 63, "q" * 15, "c" * 63 + ".local"
    ports = [(port, 80, "TCP")]
    items = [
        namespace(where),
        node("node-a", {ZONE: "z" * 63, rack: "z" * 63}, addresses=[IN_A, IN_B]),
        service(longest, keys=f"{ZONE},{rack}", where=where, ports=ports),
        endpoint_slice(longest, 0, [endpoint("10.0.0.1", zone="x")], where=where, ports=ports),
    ]
    responder = responder_of(items, zone=[zone], **{"trusted-forwarder": f"{FORWARDER}/32"})
    for text in (IN_A, IN_B, IN_A):
        wire = query(f"_{port}._tcp.{longest}.{where}.svc.{zone}", "SRV", edns=opt(ecs(text), size=512))
        whole, cut = (octets(responder, wire, FORWARDER, proto) for proto in ("tcp", "udp"))
        assert len(cut) <= 512 < len(whole)
        assert ecs(text, scope=32) in whole
        assert ecs(text, scope=32) in cut


# Names and types


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("low", [65, 70, 90])
def test_types_that_fold_together_keep_their_question(low: int, first: int) -> None:
    """Types 65 to 90 and 97 to 122 differ like letters' case: each keeps its own question."""
    responder = responder_of(CLUSTER)
    for qtype in (low, low + 32) if first else (low + 32, low):
        for name in (WEB, FREE, "cluster.local") * 2:
            reply = ask(responder, query(name, qtype), IN_A)
            assert reply.question[0].rdtype == qtype
            assert reply.rcode() == 0 and not reply.answer and reply.authority


# Compression


def test_owners_are_pointers_and_srv_targets_are_not(responder: CountedResponder) -> None:
    """RFC 1035, 4.1.4 and RFC 2782: names are compressed wherever that is allowed."""
    reply = octets(responder, query(WEB, "SRV"), IN_A)
    at = 12 + len(encoded(WEB)) + 4
    assert reply[at : at + 2] == b"\xc0\x0c"
    length = int.from_bytes(reply[at + 10 : at + 12])
    data = reply[at + 12 : at + 12 + length]
    assert data == struct.pack("!HHH", 0, 100, 80) + encoded(f"web-0.{WEB}")
    assert reply[at + 12 + length :].startswith(b"\x05web-0\xc0\x0c")


def test_an_owner_points_to_its_target_where_room_is_scarce(responder: CountedResponder) -> None:
    """RFC 2782 forbids compressing a target, not pointing to it."""
    reply = octets(responder, query(f"ten.{SERVED}", "SRV", edns=opt(size=700)))
    first = 12 + len(encoded(f"ten.{SERVED}")) + 4
    target = first + 12 + 6  # behind owner, type, class, TTL and length; priority, weight and port
    name = dns.message.from_wire(reply, one_rr_per_rrset=True).answer[0][0].target
    assert reply[target:].startswith(name.to_wire())
    assert parts_of(reply).rest[0].startswith(struct.pack("!HH", 0xC000 | target, 1))


def test_the_soa_is_compressed_against_the_question(responder: CountedResponder) -> None:
    """RFC 1035, 4.1.4: its owner and both its names end in the question's zone."""
    name = "nope.shop.svc.cluster.local"
    reply = octets(responder, query(name), IN_A)
    zone = struct.pack("!H", 0xC000 | 12 + len(encoded("nope.shop.svc")) - 1)
    assert reply[12 + len(encoded(name)) + 4 :].startswith(zone)
    assert b"\2ns\3dns" + zone in reply and b"\x0ahostmaster" + zone in reply


# What an object may hold that no name can


@pytest.mark.parametrize(
    "hostname", ["x" * 64, "a..b", "caf\u00e9", "a.b", "a b"], ids=["64 octets", "empty", "no ASCII", "dot", "space"]
)
def test_a_hostname_that_is_no_label_harms_no_answer(hostname: str) -> None:
    """RFC 1035, 3.1: no exception, and the other endpoints are answered."""
    rows = [endpoint("10.0.0.1", hostname=hostname), endpoint("10.0.0.2", hostname="good")]
    responder = responder_of([namespace("shop"), service("web"), endpoint_slice("web", 0, rows)])
    for qtype in ("A", "SRV", "ANY"):
        reply = ask(responder, query(WEB, qtype))
        assert reply.rcode() == 0 and reply.answer
        assert qtype != "A" or "10.0.0.2" in {row.address for rrset in reply.answer for row in rrset}


def test_a_service_whose_names_are_too_long_harms_no_answer() -> None:
    """RFC 1035, 3.1: 255 octets; an SRV target that is longer is left out, the rest answered."""
    zone = ".".join(["z" * 63] * 3)
    rows = [endpoint("10.0.0.1", hostname="h" * 63)]
    items = [namespace("shop"), service("web"), endpoint_slice("web", 0, rows)]
    responder = responder_of(items, zone=[zone])
    for qtype in ("A", "SRV", "ANY"):
        assert ask(responder, query(f"web.shop.svc.{zone}", qtype)).rcode() == 0
    responder = responder_of([service("w" * 63, cluster_ips=("10.0.0.1",)), *items], zone=[zone, "in-addr.arpa"])
    assert ask(responder, query("1.0.0.10.in-addr.arpa", "PTR")).rcode() == 3


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
