# SPDX-License-Identifier: Apache-2.0

"""The PROXY protocol, version 2, before a datagram, and over the sockets of a real server."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import dns.message
import pytest

from dnsserver.net.udp import QUERY_SIZE
from tests.kit import api_objects
from tests.kit.dns_queries import ecs, framed, opt, option, query
from tests.kit.in_memory import CountedResponder
from tests.kit.proxy_headers import LOCAL, PROXY_SIGNATURE, both_ends, proxied, proxy_header, tlv
from tests.kit.random_queries import Asked, replied
from tests.kit.this_machine import has_ipv6, lacking
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE
from tests.kit.wire_cluster import CLUSTER, FLAGS, FORWARDER, FREE, IN_A, IN_B, NOWHERE, WEB

IN_A_6 = "fd00:1::1"
ZONE_A, ZONE_B = {"10.244.1.1"}, {"10.244.2.1", "10.244.2.2"}
NOBODY: set[str] = set()  # what an unknown client gets of a Service that insists on nearness
PROXIED = {**FLAGS, "proxy-protocol": True}
TEXT = api_objects.listed(CLUSTER)
V4 = both_ends(IN_A)
BY_ECS = query(WEB, edns=opt(ecs(IN_B)))
WRONG = proxy_header(V4, family=0x41)  # unreadable as soon as it stands there
LOST = proxied(IN_A, tlv(4, b"abc")[:-1])  # a TLV that its end shows to be cut off


def answers(reply: bytes | None) -> set[str]:
    assert reply is not None
    return {row.to_text() for rrset in dns.message.from_wire(reply).answer for row in rrset}


# Before a datagram

SILENCE, NOT_DNS, DROPPED = "silence", "no header, and no query", "a malformed header"


def padded(size: int) -> bytes:
    """Return a query of this size."""
    return query(WEB, edns=opt(option(12, bytes(size - len(query(WEB)) - 11 - 4))))


# What is sent, from where, and what comes back: addresses, an error since it is neither, or nothing. Who the client is
# in other cases, test_clients.py says.
DATAGRAMS: dict[str, tuple[bytes, str, set[str] | str]] = {
    "in-zone-a": (proxied(IN_A) + query(WEB), FORWARDER, ZONE_A),
    "client-by-tcp": (proxied(IN_A, stream=True) + query(WEB), FORWARDER, ZONE_A),
    "pod-cidr": (proxied("10.244.2.77") + query(WEB), FORWARDER, ZONE_B),
    "tlvs": (proxied(IN_A, tlv(4) + tlv(3, b"crc!") + tlv(0xEE, bytes(300))) + query(WEB), FORWARDER, ZONE_A),
    "without-a-header": (query(WEB), FORWARDER, NOBODY),
    "as-long-as-a-query-may-be": (proxied(IN_A_6) + padded(1232), FORWARDER, ZONE_A),
    "as-long-as-is-received": (proxied(IN_A) + padded(QUERY_SIZE - 28), FORWARDER, ZONE_A),
    "two-headers": (proxied(IN_A) + proxied(IN_B) + query(WEB), FORWARDER, NOT_DNS),
    "nothing-behind-it": (proxied(IN_A), FORWARDER, SILENCE),
    "a-response-behind-it": (proxied(IN_A) + query(WEB, flags=0x8000), FORWARDER, SILENCE),
    "eleven-octets-behind-it": (proxied(IN_A) + query(WEB)[:11], FORWARDER, SILENCE),
    "a-part-of-the-signature": (PROXY_SIGNATURE[:11], FORWARDER, SILENCE),
    "an-untrusted-sources": (proxied(IN_A) + query(WEB), IN_B, NOT_DNS),
    "an-untrusted-sources-malformed": (WRONG + query(WEB), IN_B, NOT_DNS),
    "an-untrusted-sources-signature": (PROXY_SIGNATURE, IN_B, NOT_DNS),
    "unknown-family": (WRONG + query(WEB), FORWARDER, DROPPED),
    "cut-tlv": (LOST + query(WEB), FORWARDER, DROPPED),
    "signature-alone": (PROXY_SIGNATURE, FORWARDER, DROPPED),
    "not-whole": (proxied(IN_A)[:-1], FORWARDER, DROPPED),
    "longer-than-the-datagram": (proxy_header(V4, size=500) + query(WEB), FORWARDER, DROPPED),
}


def assert_reply(reply: bytes | None, expected: set[str] | str) -> None:
    if expected in (SILENCE, DROPPED):
        assert reply is None
    elif expected == NOT_DNS:
        assert reply is not None and reply[3] & 15 in (1, 4) and reply[6:12] == bytes(6)
    else:
        assert answers(reply) == expected


def test_datagrams(server: Server) -> None:
    """Each gets the same again, and the next query after one that was dropped is answered; drops are counted."""
    before = server.metrics()
    for wire, source, expected in (*DATAGRAMS.values(), *DATAGRAMS.values()):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((source, 0))
            sock.settimeout(PATIENCE)
            sock.connect((server.host, server.port))
            sock.send(wire)
            assert_reply(None if expected in (SILENCE, DROPPED) else sock.recv(4096), expected)
            sock.send(query(FREE, number=77))
            assert sock.recv(4096)[:2] == (77).to_bytes(2)
    after, all_expected = server.metrics(), [row[-1] for row in DATAGRAMS.values()] * 2
    for key, number in (
        (("topodns_silent_total",), all_expected.count(SILENCE) + all_expected.count(DROPPED)),
        (("topodns_malformed_proxy_headers_total", "udp"), all_expected.count(DROPPED)),
        (("topodns_malformed_proxy_headers_total", "tcp"), 0),
    ):
        assert after.get(key, 0) - before.get(key, 0) == number


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that reads headers, by both families if there are two, shared by tests."""
    listen = ["[::]:0"] if has_ipv6() else ["127.0.0.1:0"]
    flags = {**PROXIED, "listen": listen, "trusted-forwarder": ["::1/128", "127.0.0.1/32"], "http": "127.0.0.1:0"}
    with serving(tmp_path_factory.mktemp("proxied"), TEXT, flags=flags) as server:
        server.host = "127.0.0.1"
        yield server
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.parametrize("source", [FORWARDER, IN_B, NOWHERE])
def test_before_the_first_snapshot_everybody_gets_servfail(source: str) -> None:
    """Nobody is known to be untrusted yet: SERVFAIL goes to the query after the header."""
    responder = CountedResponder(PROXIED)
    for header in (proxied(IN_A), proxy_header(command=LOCAL), b""):
        for compute in (False, True):
            wire = query(WEB, number=7, edns=opt())
            reply = replied(responder, Asked(wire, source, "udp", header), compute=compute)
            assert (reply[:2], reply[3] & 15, reply[12 : len(wire) - 11]) == (b"\0\7", 2, wire[12:-11])
    assert replied(responder, Asked(query(WEB), source, "udp", WRONG)) is None
    assert responder.counts.malformed_headers == {"udp": 1}
    assert_reply(replied(CountedResponder(FLAGS), Asked(query(WEB), source, "udp", proxied(IN_A))), NOT_DNS)


@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
@pytest.mark.parametrize("source", ["::1", "127.0.0.1"], ids=["ipv6", "ipv4-mapped"])
def test_a_forwarder_by_ipv6(server: Server, source: str, tcp: bool) -> None:
    """On a dual-stack listener, forwarders and clients may be of either family."""
    if not has_ipv6():
        lacking("there is no IPv6 here")
    for client, expected in ((IN_A_6, ZONE_A), (IN_B, ZONE_B), (f"::ffff:{IN_B}", ZONE_B), (NOWHERE, NOBODY)):
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect((source, server.port))
            wire = query(WEB, edns=opt())
            sock.sendall(proxied(client) + (framed(wire) if tcp else wire))
            with sock.makefile("rb") as file:
                reply = file.read(int.from_bytes(file.read(2))) if tcp else sock.recv(4096)
        assert answers(reply) == expected


def test_headers_over_real_connections(server: Server) -> None:
    """A real process reads headers in pieces, and counts a malformed one."""
    before = server.metrics()

    def exchanged(*pieces: bytes, replies: int = 1) -> list[bytes]:
        with socket.create_connection((server.host, server.port), PATIENCE, (FORWARDER, 0)) as sock:
            for piece in pieces:
                sock.sendall(piece)
            with sock.makefile("rb") as file:
                return [file.read(int.from_bytes(file.read(2))) for _ in range(replies)]

    wire = framed(query(WEB))
    assert [answers(each) for each in exchanged(proxied(IN_B), wire, wire, replies=2)] == [ZONE_B] * 2
    assert answers(exchanged(*(struct.pack("B", octet) for octet in proxied(IN_A_6) + wire))[0]) == ZONE_A
    assert exchanged(WRONG) == [b""]
    after, key = server.metrics(), ("topodns_malformed_proxy_headers_total", "tcp")
    assert after[key] - before.get(key, 0) == 1
