# SPDX-License-Identifier: Apache-2.0

"""Carriers of a client's address: for a trusted forwarder the first one present counts, for other sources none."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import dns.edns
import dns.message
import pytest

from dnsserver.answers.resolution import resolve
from dnsserver.metrics.counters import (
    MAX_SOURCES,
    OTHER,
    WARN_SECONDS,
    SourceCounter,
)
from dnsserver.metrics.server import (
    ServerMetrics,
    Summed,
)
from dnsserver.names import labels_of, query_name_of
from dnsserver.programs.from_settings import authority_of
from dnsserver.responder.clients import MAX_BLOCKS
from dnsserver.responder.responder import Responder
from locator.ip import parse_network
from tests.kit import api_objects
from tests.kit.api_objects import REGION, ZONE
from tests.kit.dns_queries import CLIENT_OPTION, ecs, framed, opt, option, query
from tests.kit.in_memory import CountedResponder, responder_of, settings_of, snapshot_of
from tests.kit.proxy_headers import LOCAL, UNIX_DGRAM, UNSPEC, both_ends, proxied, proxy_header
from tests.kit.random_queries import Asked, replied
from tests.kit.replies import assert_same, parsed
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE

# A node with an endpoint in each of five zones: of three carriers' clients, an untrusted client and a forwarder.
BY_PROXY, BY_OPTION, BY_ECS = "127.1.0.1", "127.1.0.2", "127.1.0.3"
UNTRUSTED, FORWARDER, SECOND = "127.1.0.4", "127.0.0.53", "127.0.0.54"
UNKNOWN = "127.9.9.9"
AT = {BY_PROXY: "a", BY_OPTION: "b", BY_ECS: "c", UNTRUSTED: "d", FORWARDER: "e"}
WEB, FREE = "web.shop.svc.cluster.local", "free.shop.svc.cluster.local"


def endpoints(owner: str) -> api_objects.Item:
    rows = [api_objects.endpoint(f"10.9.0.{number}", nodeName=zone) for number, zone in enumerate("abcde", 1)]
    return api_objects.endpoint_slice(owner, 0, rows)


CLUSTER = api_objects.listed(
    [
        api_objects.namespace("shop"),
        *[api_objects.node(zone, {ZONE: zone}, addresses=[address]) for address, zone in AT.items()],
        api_objects.node("six", {ZONE: "a"}, addresses=["fd00::1"]),
        api_objects.service("web", keys=ZONE),
        api_objects.service("free"),
        endpoints("web"),
        endpoints("free"),
        api_objects.service("kube-dns", cluster_ips=["10.96.0.10"], where="kube-system"),
        api_objects.endpoint_slice("kube-dns", 0, [api_objects.endpoint(FORWARDER, nodeName="e")], where="kube-system"),
    ]
)
FLAGS = {"client-option": CLIENT_OPTION, "proxy-protocol": True, "trusted-forwarder": [f"{SECOND}/32"]}


def remembering(flags: Mapping[str, Any]) -> CountedResponder:
    """Return a responder that has cached the answers of every zone."""
    responder = responder_of(CLUSTER, flags)
    for address, zone in AT.items():
        for name in (WEB, FREE) if address != FORWARDER else ():
            assert zone in zones_in(replied(responder, Asked(query(name, edns=opt()), address, "udp")))
    for channel in responder.counts.channels.values():
        channel.counts.clear()
    return responder


def zones_in(reply: bytes | None) -> str:
    """Return the zones of the endpoints in a reply, one letter each; ``?`` for no endpoint, ``!`` for an error."""
    message = parsed(reply)
    if message.rcode() != 0:
        return "!"
    found = {int(row.to_text().rpartition(".")[2]) for rrset in message.answer for row in rrset}
    return "".join("abcde"[number - 1] for number in sorted(found)) or "?"


def subnets_in(reply: bytes | None) -> list[tuple[str, int, int]]:
    """Return each client subnet in a reply: address, source prefix length and scope prefix length."""
    return [(option.address, option.srclen, option.scopelen) for option in parsed(reply).options
            if isinstance(option, dns.edns.ECSOption)]  # fmt: skip


# The carriers of a query from a forwarder, and the zone in which its client must be: with both carriers enabled,
# without the PROXY protocol, without the option, and with ECS alone. ``?`` is an unknown client, ``!`` an unreadable
# query. From an untrusted source, the source's own zone counts.
ORDER = """
PROXY option ECS    both  no-proxy  no-option  neither
-     -      -      ?     ?         ?          ?
-     -      c      c     c         c          c
-     b      -      b     b         ?          ?
-     b      c      b     b         c          c
a     -      -      a     !         a          !
a     -      c      a     !         a          !
a     b      -      a     !         a          !
a     b      c      a     !         a          !
"""
SWITCHES = {
    "both": {},
    "no-proxy": {"proxy-protocol": False},
    "no-option": {"client-option": "off"},
    "neither": {"proxy-protocol": False, "client-option": "off"},
}


class Sent(NamedTuple):
    """A combination of carriers, and the zone in which topodns must place the client."""

    id: str
    header: bytes
    options: tuple[bytes, ...]
    expected: str
    switches: str

    def asked(self, source: str, proto: str, name: str = WEB) -> Asked:
        return Asked(query(name, edns=opt(*self.options)), source, proto, self.header)


def packed(address: str) -> bytes:
    return socket.inet_aton(address)


def combinations() -> Iterator[Sent]:
    head, *rows = [line.split() for line in ORDER.strip().splitlines()]
    for by_proxy, by_option, by_ecs, *expected in rows:
        header = proxied(BY_PROXY) if by_proxy == "a" else b""
        options = [option(CLIENT_OPTION, packed(BY_OPTION))] * (by_option == "b") + [ecs(BY_ECS)] * (by_ecs == "c")
        present = "".join((by_proxy, by_option, by_ecs)).replace("-", "") or "nothing"
        for switches, each in zip(head[3:], expected, strict=True):
            yield Sent(f"{present}-{switches}", header, tuple(options), each, switches)


COMBINATIONS = list(combinations())
each_combination = pytest.mark.parametrize("sent", COMBINATIONS, ids=[combination.id for combination in COMBINATIONS])


@pytest.mark.parametrize("source", [FORWARDER, SECOND, UNTRUSTED, UNKNOWN])
@each_combination
def test_order_and_trust(sent: Sent, source: str) -> None:
    """From a trusted forwarder: the PROXY header, then the option, then ECS, if enabled; else the source.

    Computed and cached replies are alike; over TCP for valid headers.
    """
    responder = remembering({**FLAGS, **SWITCHES[sent.switches]})
    trusted, by_ecs, asked = source in (FORWARDER, SECOND), ecs(BY_ECS) in sent.options, 0
    expected = sent.expected if trusted else "!" if sent.header else AT.get(source, "?")
    for proto in ("udp",) if expected == "!" else ("udp", "tcp"):
        each, free = sent.asked(source, proto), sent.asked(source, proto, FREE)
        computed = replied(responder, each, compute=True)
        assert_answered(computed, expected, by_ecs, scope=32)  # since it depends on who asks, whoever does
        asked += 1
        for _ in range(3):
            reply = replied(responder, each)
            assert_answered(reply, expected, by_ecs, scope=32)
            assert_same(reply, computed, computed)
            assert_answered(replied(responder, free), "!" if expected == "!" else "abcde", by_ecs, scope=0)
            asked += 2
            unknown = trusted and expected == "?"
            assert responder.counts.unnamed_clients.numbers == ({source: asked} if unknown else {})


def assert_answered(reply: bytes | None, expected: str, by_ecs: bool, *, scope: int) -> None:
    """The reply has the endpoints of these zones, and the client subnet of the query with the right scope."""
    assert zones_in(reply) == expected
    assert subnets_in(reply) == ([(BY_ECS, 32, scope)] if by_ecs and expected != "!" else [])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with every carrier enabled."""
    with serving(tmp_path_factory.mktemp("carriers"), CLUSTER, flags={**FLAGS, "http": "127.0.0.1:0"}) as server:
        yield server
    assert not any("Traceback" in line for line in server.lines)


def exchanged(server: Server, asked: Asked) -> bytes:
    """Send a query, with its PROXY header, from its source over a real socket; return the reply."""
    kind = socket.SOCK_DGRAM if asked.proto == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.settimeout(PATIENCE)
        sock.bind((asked.source, 0))
        sock.connect((server.host, server.port))
        if asked.proto == "udp":
            sock.send(asked.header + asked.wire)
            return sock.recv(4096)
        sock.sendall(asked.header + framed(asked.wire))
        with sock.makefile("rb") as file:
            return file.read(int.from_bytes(file.read(2)))


@pytest.mark.parametrize("proto", ["udp", "tcp"])
@pytest.mark.parametrize("source", [FORWARDER, UNTRUSTED])
@pytest.mark.parametrize(
    "sent",
    [combination for combination in COMBINATIONS if combination.switches == "both"],
    ids=lambda combination: combination.id,
)
def test_order_and_trust_by_sockets(server: Server, sent: Sent, source: str, proto: str) -> None:
    """A real server gives the same answers, twice."""
    if source == UNTRUSTED and sent.header and proto == "tcp":
        return  # a message of 3,338 octets that never ends
    own = "!" if sent.header else AT[UNTRUSTED]
    for _ in range(2):
        reply = exchanged(server, sent.asked(source, proto))
        assert zones_in(reply) == (sent.expected if source == FORWARDER else own)


# What names nobody, though it is there; beside it stands what would have named somebody.
SIZES = (0, 1, 3, 5, 8, 15, 17, 32)
UNNAMED_CLIENT: list[tuple[str, bytes, tuple[bytes, ...] | None]] = [
    ("nothing", b"", ()),
    ("no-edns", b"", None),
    ("local", proxy_header(command=LOCAL), (ecs(BY_ECS),)),
    ("local-with-addresses", proxy_header(both_ends(BY_PROXY), command=LOCAL), (ecs(BY_ECS),)),
    ("local-and-option", proxy_header(command=LOCAL), (option(CLIENT_OPTION, packed(BY_OPTION)),)),
    ("local-without-edns", proxy_header(command=LOCAL), None),
    ("unspec", proxy_header(family=UNSPEC), (ecs(BY_ECS),)),
    ("unspec-and-option", proxy_header(family=UNSPEC), (option(CLIENT_OPTION, packed(BY_OPTION)), ecs(BY_ECS))),
    ("unix", proxy_header(bytes(216), family=UNIX_DGRAM), (ecs(BY_ECS),)),
    *[(f"option-of-{size}", b"", (option(CLIENT_OPTION, b"\x7f" * size), ecs(BY_ECS))) for size in SIZES],
    *[(f"option-of-{size}-behind-ecs", b"", (ecs(BY_ECS), option(CLIENT_OPTION, b"\x7f" * size))) for size in SIZES],
    ("option-twice", b"", (option(CLIENT_OPTION, packed(BY_OPTION)),) * 2),
    ("option-twice-around-ecs", b"",
     (option(CLIENT_OPTION, packed(BY_OPTION)), ecs(BY_ECS), option(CLIENT_OPTION, packed(UNTRUSTED)))),
    ("option-twice-one-unusable", b"", (option(CLIENT_OPTION), option(CLIENT_OPTION, packed(BY_OPTION)), ecs(BY_ECS))),
    ("ecs-0", b"", (ecs("0.0.0.0/0"),)),
    ("ecs-0-of-ipv6", b"", (ecs("::/0"),)),
    ("ecs-0-of-no-family", b"", (ecs("0"),)),
    ("ecs-of-all-ipv4-mapped", b"", (ecs("::ffff:0.0.0.0/96"),)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("header", "options"), [row[1:] for row in UNNAMED_CLIENT], ids=[row[0] for row in UNNAMED_CLIENT]
)
def test_who_names_nobody_is_unknown(header: bytes, options: tuple[bytes, ...] | None) -> None:
    """If the first carrier names nobody, the client is unknown: no later carrier and no forwarder's place counts.

    Each such query is counted for its forwarder.
    """
    responder = remembering(FLAGS)
    wire = query(WEB, edns=opt(*options) if options is not None else b"")
    sent = [option for option in options or () if option[:2] == b"\0\x08" and option != ecs("0")]
    number = 0
    for proto in ("udp", "tcp"):
        for compute in (False, True, False):
            for source in (FORWARDER, FORWARDER, SECOND):
                number += 1
                reply = replied(responder, Asked(wire, source, proto, header), compute=compute)
                assert zones_in(reply) == "?"
                assert [scope for _, source, scope in subnets_in(reply)] == [each[6] for each in sent]
            assert responder.counts.unnamed_clients.numbers == {FORWARDER: number // 3 * 2, SECOND: number // 3}
    assert Summed(responder.counts).located == {("unknown",): number}
    known = replied(responder, Asked(query(WEB, edns=opt(ecs(BY_ECS))), FORWARDER, "udp"))
    assert zones_in(known) == "c"  # as a carrier that names somebody is believed at once


@pytest.mark.parametrize(
    ("header", "options"),
    [(proxied(UNKNOWN), (ecs(BY_ECS),)), (proxied("0.0.0.0"), (ecs(BY_ECS),)), (proxied("::"), ()),
     (b"", (option(CLIENT_OPTION, packed(UNKNOWN)), ecs(BY_ECS))), (b"", (option(CLIENT_OPTION, bytes(16)),)),
     (b"", (ecs(UNKNOWN),)), (b"", (ecs("203.0.113.0/24"),))],
    ids=["proxy", "proxy-0.0.0.0", "proxy-::", "option", "option-::", "ecs", "ecs-24"],
)  # fmt: skip
def test_a_client_that_nobody_knows_was_named_all_the_same(header: bytes, options: tuple[bytes, ...]) -> None:
    """An unknown address is an unknown client; the forwarder named it, so it is not counted."""
    responder = remembering(FLAGS)
    for _ in range(3):
        assert zones_in(replied(responder, Asked(query(WEB, edns=opt(*options)), FORWARDER, "udp", header))) == "?"
    assert responder.counts.unnamed_clients.numbers == {}


@pytest.mark.parametrize(
    ("header", "options"),
    [(proxied("fd00::1"), ()), (b"", (option(CLIENT_OPTION, bytes.fromhex("fd" + "00" * 14 + "01")),)),
     (b"", (ecs("fd00::1"),)), (proxied(f"::ffff:{BY_PROXY}"), ()),
     (b"", (option(CLIENT_OPTION, bytes(10) + b"\xff\xff" + packed(BY_PROXY)),)),
     (b"", (ecs(f"::ffff:{BY_PROXY}"),)), (b"", (ecs(f"::ffff:{BY_PROXY}/127"),))],
    ids=["proxy", "option", "ecs", "proxy-mapped", "option-mapped", "ecs-mapped", "ecs-mapped-127"],
)  # fmt: skip
def test_clients_by_ipv6(header: bytes, options: tuple[bytes, ...]) -> None:
    """Every carrier names clients of either family; an IPv4-mapped address is IPv4 and is echoed as it was sent."""
    responder = responder_of(CLUSTER, FLAGS)
    each = Asked(query(WEB, edns=opt(*options)), FORWARDER, "udp", header)
    for compute in (False, False, True):
        reply = replied(responder, each, compute=compute)
        assert reply is not None and zones_in(reply) == "a"
        for sent in options:
            if sent[:2] == b"\0\x08":  # with the source prefix as its scope, where 0 was
                assert sent[:7] + sent[6:7] + sent[8:] in reply


def test_a_pod_behind_a_forwarder_cannot_move_itself() -> None:
    """A pod's own option, which CoreDNS passes on, names nobody: neither beside CoreDNS's nor without the flag."""
    wire = query(WEB, edns=opt(option(CLIENT_OPTION, packed(BY_OPTION)), ecs(BY_ECS)))
    assert zones_in(replied(responder_of(CLUSTER, {}), Asked(wire, FORWARDER, "udp"))) == "c"
    other = query(WEB, edns=opt(option(CLIENT_OPTION + 1, packed(BY_OPTION)), ecs(BY_ECS)))
    assert zones_in(replied(responder_of(CLUSTER, FLAGS), Asked(other, FORWARDER, "udp"))) == "c"


@pytest.mark.parametrize(
    "carrier",
    [ecs(BY_ECS), ecs(f"{BY_ECS}/24"), option(CLIENT_OPTION, packed(BY_ECS))],
    ids=["ecs", "ecs-24", "option"],
)
def test_nothing_of_a_forwarder_is_remembered_for_others(carrier: bytes) -> None:
    """A forwarder and others get their own answers to the same octets, in any order and after trust has changed."""
    responder = remembering(FLAGS)
    wire = query(WEB, edns=opt(carrier))
    by_forwarder = "?" if carrier == ecs(f"{BY_ECS}/24") else "c"  # the block holds nodes of four zones
    for _ in range(2):
        for source, expected in ((FORWARDER, by_forwarder), (UNTRUSTED, "d"), (UNKNOWN, "?"), (BY_PROXY, "a")):
            assert zones_in(replied(responder, Asked(wire, source, "udp"))) == expected
    responder.publish(snapshot_of(CLUSTER, {**FLAGS, "forwarder-service": "off"}))
    assert zones_in(replied(responder, Asked(wire, FORWARDER, "udp"))) == "e"
    responder.publish(snapshot_of(CLUSTER, {**FLAGS, "trusted-forwarder": ["127.1.0.4/32"]}))
    assert zones_in(replied(responder, Asked(wire, UNTRUSTED, "udp"))) == by_forwarder


# Blocks of clients

REGIONS = {"a": "north", "b": "north", "c": "south"}
BLOCKS = api_objects.listed(
    [
        api_objects.namespace("shop"),
        *[
            api_objects.node(f"{zone}{number}", {ZONE: zone, REGION: REGIONS[zone]}, cidrs=cidrs)
            for zone, number, cidrs in (
                ("a", 1, ["10.1.0.0/24", "fd00:1::/64"]),
                ("a", 2, ["10.1.1.0/24", "fd00:1:0:1::/64"]),
                ("b", 1, ["10.1.2.0/24", "fd00:1:0:100::/64"]),
                ("c", 1, ["10.2.0.0/24", "fd00:2::/64"]),
                ("c", 2, []),
            )
        ],
        api_objects.pod("outside", ["10.3.0.7", "fd00:3::7"], "c2"),
        api_objects.service("web", keys=f"{api_objects.HOSTNAME},{ZONE},{REGION}"),
        api_objects.endpoint_slice(
            "web",
            0,
            [
                api_objects.endpoint(f"10.9.0.{number}", nodeName=node)
                for number, node in enumerate(("a1", "a2", "b1", "c1", "c2"), 1)
            ],
        ),
    ]
)
# A block, and whose endpoints it gets: one node's, those of a zone or a region, or none.
AGREED = [
    ("10.1.0.0/24", "a1"), ("10.1.0.0/25", "a1"), ("10.1.0.128/25", "a1"), ("10.1.0.4/31", "a1"), ("10.1.1.0/24", "a2"),
    ("10.1.0.0/23", "zone a"), ("10.1.2.0/23", "b1"), ("10.1.0.0/22", "region north"), ("10.1.0.0/16", "region north"),
    ("10.0.0.0/8", "nobody"), ("10.2.0.0/16", "c1"), ("10.2.0.0/15", "region south"), ("10.3.0.0/24", "c2"),
    ("10.3.0.0/25", "c2"), ("10.3.0.0/16", "c2"), ("10.3.0.8/29", "nobody"), ("10.3.0.0/29", "c2"),
    ("0.0.0.0/1", "nobody"), ("128.0.0.0/1", "nobody"), ("0.0.0.0/0", "nobody"), ("10.4.0.0/16", "nobody"),
    ("fd00:1::/64", "a1"), ("fd00:1::/65", "a1"), ("fd00:1::/63", "zone a"), ("fd00:1::/56", "zone a"),
    ("fd00:1::/48", "region north"), ("fd00:2::/48", "c1"), ("fd00:3::/56", "c2"), ("fd00:3::/64", "c2"),
    ("fd00:2::/31", "region south"), ("fd00::/16", "nobody"), ("::/0", "nobody"), ("fd00:4::/64", "nobody"),
    ("::ffff:10.1.0.0/120", "a1"), ("::ffff:10.1.0.0/119", "zone a"), ("::ffff:10.1.0.1/128", "a1"),
    ("::ffff:10.1.0.0/112", "region north"), ("::ffff:0.0.0.0/96", "nobody"), ("::/80", "nobody"),
]  # fmt: skip
GETS = {
    "a1": {1}, "a2": {2}, "b1": {3}, "c1": {4}, "c2": {5}, "zone a": {1, 2}, "region north": {1, 2, 3},
    "region south": {4, 5}, "nobody": set(),
}  # fmt: skip


def block_query(block: str, *more: bytes) -> bytes:
    return query(WEB, edns=opt(ecs(block), *more))


def numbers_in(reply: bytes | None) -> set[int]:
    return {int(row.to_text().rpartition(".")[2]) for rrset in parsed(reply).answer for row in rrset}


@pytest.mark.parametrize(("block", "where"), AGREED, ids=[block for block, _ in AGREED])
def test_a_block_has_what_all_of_it_agrees_on(block: str, where: str) -> None:
    """Computed and cached replies are the same, with the source prefix length as the scope."""
    flags = {"trusted-forwarder": [f"{FORWARDER}/32"]}
    responder = responder_of(BLOCKS, flags)
    assert_agreed(responder, block, GETS[where])
    snapshot = snapshot_of(BLOCKS, flags)
    book, network = snapshot.addresses, parse_network(block)
    if network.length and book.locate_network(network).location.known:
        authority = authority_of(settings_of(flags))
        query_name = query_name_of(labels_of(WEB), authority.zones)
        assert query_name is not None
        decision = resolve(query_name, 1, snapshot, book.locate_network(network).location, authority)
        assert {record.data.packed[3] for record in decision.answers} == GETS[where]


def assert_agreed(responder: Responder, block: str, expected: set[int]) -> None:
    network = dns.edns.ECSOption(*block.split("/")[:1], int(block.partition("/")[2]))
    for proto in ("udp", "tcp"):
        for wire in (block_query(block), block_query(block), block_query(block, option(12, b"123"))):
            each = Asked(wire, FORWARDER, proto)
            reply, computed = replied(responder, each), replied(responder, each, compute=True)
            assert numbers_in(reply) == expected
            assert_same(reply, computed, replied(responder, each._replace(proto="tcp"), compute=True))
            for sent in parsed(reply).options:
                if isinstance(sent, dns.edns.ECSOption):
                    assert (sent.srclen, sent.scopelen, sent.family) == (network.srclen, network.srclen, network.family)


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("block", ["10.1.0.0/24", "10.1.0.0/25", "fd00:1::/64", "::ffff:10.1.0.0/120"])
def test_a_block_beside_another_carrier(block: str, first: int) -> None:
    """In any order: the place of a client subnet counts only if no other carrier is there."""
    responder = responder_of(BLOCKS, {**FLAGS, "trusted-forwarder": [f"{FORWARDER}/32"]})
    plain, by_option = block_query(block), block_query(block, option(CLIENT_OPTION, packed("10.2.0.9")))
    for source in ("10.1.0.9", "10.1.1.9", "10.2.0.9"):  # the answers for all of their places are remembered
        replied(responder, Asked(query(WEB, edns=opt()), source, "udp"))
    rows = [
        (plain, b"", {1}),
        (plain, proxied("10.2.0.9"), {4}),
        (plain, proxy_header(command=LOCAL), set()),
        (by_option, b"", {4}),
        (by_option, proxied("10.1.1.9"), {2}),
    ]
    for compute in (False, False, True, False):
        for wire, header, expected in (*rows[first:], *rows[:first]):
            reply = replied(responder, Asked(wire, FORWARDER, "udp", header), compute=compute)
            assert numbers_in(reply) == expected
            ((_, sent, scope),) = subnets_in(reply)
            assert sent == scope == int(block.partition("/")[2])
        assert numbers_in(replied(responder, Asked(plain, "10.2.0.9", "udp"), compute=compute)) == {4}


@pytest.mark.parametrize("block", ["10.1.0.0/25", "10.1.0.0/23", "10.1.0.0/17", "10.1.0.0/31", "fd00:1::/57"])
def test_bits_beyond_the_prefix_are_a_fault_whatever_is_remembered(block: str) -> None:
    """RFC 7871, 7.1.1: FORMERR, even if valid queries of this form were cached before."""
    responder = responder_of(BLOCKS, {"trusted-forwarder": [f"{FORWARDER}/32"]})
    good = block_query(block)
    for _ in range(2):
        for source in (FORWARDER, "10.1.0.9"):
            assert zones_in(replied(responder, Asked(good, source, "udp"))) != "!"
            assert parsed(replied(responder, Asked(good[:-1] + b"\1", source, "udp"))).rcode() == 1


def test_a_block_that_is_remembered_follows_the_cluster() -> None:
    """After nodes and pods change, the next query for the subnet gets the new answer."""
    flags = {"trusted-forwarder": [f"{FORWARDER}/32"]}
    responder = responder_of(BLOCKS, flags)

    def cluster(zone: str, cidr: str) -> str:
        items = [item for item in json.loads(BLOCKS)["items"] if item["metadata"]["name"] != "a2"]
        return api_objects.listed([*items, api_objects.node("a2", {ZONE: zone, REGION: "north"}, cidrs=[cidr])])

    for text, expected in (
        (BLOCKS, {1, 2}),
        (cluster("b", "10.1.1.0/24"), {1, 2, 3}),
        (cluster("a", "10.1.1.0/25"), {1, 2}),
        (cluster("a", "10.7.0.0/24"), {1}),
        (BLOCKS, {1, 2}),
    ):
        responder.publish(snapshot_of(text, flags))
        assert_agreed(responder, "10.1.0.0/23", expected)
        assert_agreed(responder, "::ffff:10.1.0.0/119", expected)


def test_a_flood_of_blocks_is_forgotten() -> None:
    """However many subnets a forwarder names, the cache is bounded and answers are right."""
    responder = responder_of(BLOCKS, {"trusted-forwarder": [f"{FORWARDER}/32"]})
    for number in range(3 * MAX_BLOCKS):
        block = f"10.{64 + number // 256}.{number % 256}.0/24"
        assert numbers_in_octets(replied(responder, Asked(block_query(block), FORWARDER, "udp"))) == 0
    assert_agreed(responder, "10.1.0.0/24", {1})


def numbers_in_octets(reply: bytes | None) -> int:
    """Return how many answers a reply says it has."""
    assert reply is not None
    return int.from_bytes(reply[6:8])


# Who is told of it

NOTED = [
    ("nobody", [(0.0, "", "")]),
    ("once", [(0.0, "x", "x"), (1.0, "", "")]),
    ("again-within-the-hour", [(0.0, "x", "x"), (1.0, "x", ""), (WARN_SECONDS - 1, "xx", "")]),
    ("again-after-an-hour", [(0.0, "x", "x"), (10.0, "x", ""), (WARN_SECONDS, "", "x"), (WARN_SECONDS + 1, "x", "")]),
    ("not-again-after-an-hour", [(0.0, "xxx", "x"), (WARN_SECONDS, "", ""), (2 * WARN_SECONDS, "", "")]),
    ("again-much-later", [(0.0, "x", "x"), (9 * WARN_SECONDS, "", ""), (9 * WARN_SECONDS + 1, "x", "x")]),
    ("hour-after-hour", [(number * WARN_SECONDS, "x", "x") for number in range(5)]),
    ("the-hour-begins-when-it-is-told", [(0.0, "x", "x"), (5000.0, "x", "x"), (7200.0, "x", ""), (8600.0, "", "x")]),
    ("each-for-itself", [(0.0, "x", "x"), (1800.0, "y", "y"), (3600.0, "xy", "x"), (5400.0, "", "y")]),
    ("two-at-once", [(0.0, "xyx", "xy"), (3600.0, "y", "y")]),
    ("late-after-the-start", [(1e9, "x", "x"), (1e9 + 1, "x", "")]),
]


@pytest.mark.parametrize("steps", [row[1] for row in NOTED], ids=[row[0] for row in NOTED])
def test_each_forwarder_is_told_of_once_an_hour(steps: list[tuple[float, str, str]]) -> None:
    """A forwarder is logged at most once an hour, and only if it named no client again since."""
    unnamed_clients = SourceCounter()
    for now, noted, told in steps:
        for forwarder in noted:
            unnamed_clients.note(forwarder)
        assert "".join(unnamed_clients.due(now)) == told, now
        assert unnamed_clients.due(now) == []


@pytest.mark.parametrize("rtype", ["SOA", "NS", "A"])
def test_health_checks_name_nobody_and_do_no_harm(rtype: str) -> None:
    """Queries for a zone's own name are not counted: dnsdist sends one each second, for no client."""
    responder = remembering(FLAGS)
    for name, number in (("cluster.local", 0), (WEB, 1)):
        for compute in (False, True):
            assert replied(responder, Asked(query(name, rtype), FORWARDER, "udp"), compute=compute) is not None
        assert responder.counts.unnamed_clients.numbers == ({FORWARDER: 2} if number else {})


def test_forwarders_without_end_are_counted_together() -> None:
    """The number of labels is bounded, and known sources keep theirs; the log names the others, too."""
    unnamed_clients = SourceCounter()
    for number in range(MAX_SOURCES + 500):
        for _ in range(2):
            unnamed_clients.note(str(number))
    unnamed_clients.note("0")
    assert len(unnamed_clients.numbers) == MAX_SOURCES + 1
    assert (unnamed_clients.numbers["0"], unnamed_clients.numbers["1"], unnamed_clients.numbers[OTHER]) == (3, 2, 1000)
    assert set(unnamed_clients.due(0.0)) == {str(number) for number in range(MAX_SOURCES + 500)}


def test_a_metric_counts_by_forwarder() -> None:
    """The label is the forwarder's address, as people write it."""
    responder = responder_of(CLUSTER, {**FLAGS, "trusted-forwarder": [f"{SECOND}/32", "fd00::53/128"]})
    for source, number in ((FORWARDER, 3), (SECOND, 2), ("fd00::53", 1), (UNTRUSTED, 4)):
        for _ in range(number):
            replied(responder, Asked(query(WEB), source, "udp"))
    (metric,) = [
        each for each in ServerMetrics(responder.counts).collect() if each.name == "topodns_forwarded_without_client"
    ]
    found = {sample.labels["forwarder"]: sample.value for sample in metric.samples}
    assert found == {FORWARDER: 3, SECOND: 2, "fd00::53": 1}


def test_a_server_says_which_forwarder_to_fix_and_how(tmp_path: Path) -> None:
    """The log has one line for each forwarder, with the line for its Corefile; the metric counts all queries."""
    with serving(tmp_path, CLUSTER, flags={**FLAGS, "http": "127.0.0.1:0"}) as server:

        def lines(forwarder: str) -> list[str]:
            return [line for line in server.lines if f"forwarder {forwarder} " in line]

        exchanged(server, Asked(query(WEB), FORWARDER, "udp"))
        server.wait_for(f"forwarder {FORWARDER} names no client")
        exchanged(server, Asked(query(WEB), FORWARDER, "udp"))
        exchanged(server, Asked(query(WEB), SECOND, "tcp", proxy_header(command=LOCAL)))
        exchanged(server, Asked(query(WEB), UNTRUSTED, "udp"))
        server.wait_for(f"forwarder {SECOND} names no client")  # the look that saw it saw all
        assert [len(lines(each)) for each in (FORWARDER, SECOND, UNTRUSTED)] == [1, 1, 0]
        assert "rewrite edns0 subnet set 32 128 revert" in lines(FORWARDER)[0]
        metrics = server.metrics()
        assert metrics["topodns_forwarded_without_client_total", FORWARDER] == 2
        assert metrics["topodns_forwarded_without_client_total", SECOND] == 1


def test_a_server_that_trusts_everybody_says_so_and_serves(tmp_path: Path) -> None:
    """Any source may then name any client; a source that names none is an unknown client."""
    flags = {**FLAGS, "trusted-forwarder": ["0.0.0.0/0", "::/0"]}
    with serving(tmp_path, CLUSTER, flags=flags) as server:
        for source in (UNTRUSTED, UNKNOWN):
            assert zones_in(exchanged(server, Asked(query(WEB, edns=opt(ecs(BY_ECS))), source, "udp"))) == "c"
            assert zones_in(exchanged(server, Asked(query(WEB), source, "tcp", proxied(BY_PROXY)))) == "a"
            assert zones_in(exchanged(server, Asked(query(WEB), source, "udp"))) == "?"
        for block in ("0.0.0.0/0", "::/0"):
            assert [line for line in server.lines if "WARNING" in line and f"{block} trusts every sender" in line]
