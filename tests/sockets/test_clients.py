# SPDX-License-Identifier: Apache-2.0

"""Who the client of a query is: for a trusted forwarder what it says first, for any other source the source itself."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from functools import cache
from ipaddress import ip_address
from typing import NamedTuple

import pytest

from tests.kit import api_objects
from tests.kit.api_objects import HOSTNAME, REGION, ZONE, endpoint
from tests.kit.dns_queries import CLIENT_OPTION, ecs, framed, opt, option, query
from tests.kit.in_memory import CountedResponder, responder_of, snapshot_of
from tests.kit.proxy_headers import LOCAL, UNIX_DGRAM, UNSPEC, both_ends, proxied, proxy_header
from tests.kit.random_queries import Asked, replied
from tests.kit.replies import assert_same, options_of, parts_of
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE

# Each node has one endpoint of each Service; a client on it gets that one of WEB, and all of FREE.
ON_NODES = {
    "proxy": ["127.1.0.1", "fd00::1"],
    "option": ["127.1.0.2"],
    "subnet": ["127.1.0.3"],
    "other": ["127.1.0.4", "fd00::4"],
    "forwarder": ["127.0.0.53"],
}
BLOCKS = {
    "a1": ["10.1.0.0/24", "fd00:1::/64"],
    "a2": ["10.1.1.0/24", "fd00:1:0:1::/64"],
    "b1": ["10.1.2.0/24", "fd00:1:0:100::/64"],
    "c1": ["10.2.0.0/24", "fd00:2::/64"],
    "c2": [],
}
NODES = (*ON_NODES, *BLOCKS)
BY_PROXY, BY_OPTION, BY_SUBNET = "127.1.0.1", "127.1.0.2", "127.1.0.3"
OTHER, UNKNOWN = "127.1.0.4", "127.9.9.9"
FORWARDER, SECOND, BY_IPV6 = "127.0.0.53", "127.0.0.54", "fd00::53"  # the first is discovered; the others are nowhere
TRUSTED, UNTRUSTED = (FORWARDER, SECOND, BY_IPV6), {OTHER: "other", "fd00::4": "other", UNKNOWN: ""}
WEB, FREE = "web.shop.svc.cluster.local", "free.shop.svc.cluster.local"
FLAGS = {
    "client-option": CLIENT_OPTION,
    "proxy-protocol": True,
    "trusted-forwarder": [f"{SECOND}/32", f"{BY_IPV6}/128"],
}
ROWS = [endpoint(f"10.9.0.{number}", nodeName=name) for number, name in enumerate(NODES)]


CLUSTER = api_objects.listed(
    [
        api_objects.namespace("shop"),
        *[api_objects.node(name, {ZONE: name}, addresses=addresses) for name, addresses in ON_NODES.items()],
        *[
            api_objects.node(name, {ZONE: name[0], REGION: "south" if name[0] == "c" else "north"}, cidrs=cidrs)
            for name, cidrs in BLOCKS.items()
        ],
        api_objects.pod("outside", ["10.3.0.7", "fd00:3::7"], "c2"),
        api_objects.service("web", keys=f"{HOSTNAME},{ZONE},{REGION}"),
        api_objects.endpoint_slice("web", 0, ROWS),
        api_objects.service("free"),
        api_objects.endpoint_slice("free", 0, ROWS),
        api_objects.service("kube-dns", cluster_ips=["10.96.0.10"], where="kube-system"),
        api_objects.endpoint_slice("kube-dns", 0, [endpoint(FORWARDER, nodeName="forwarder")], where="kube-system"),
    ]
)

# What names the client of a trusted forwarder: with both carriers enabled, without the PROXY protocol, without the
# option, and with a client subnet alone. ``-`` is nobody, ``!`` an unreadable query.
ORDER = """
PROXY option subnet   both     no-proxy  no-option  neither
-     -      -        -        -         -          -
-     -      subnet   subnet   subnet    subnet     subnet
-     option -        option   option    -          -
-     option subnet   option   option    subnet     subnet
proxy -      -        proxy    !         proxy      !
proxy -      subnet   proxy    !         proxy      !
proxy option -        proxy    !         proxy      !
proxy option subnet   proxy    !         proxy      !
"""
SWITCHES = {
    "both": {},
    "no-proxy": {"proxy-protocol": False},
    "no-option": {"client-option": "off"},
    "neither": {"proxy-protocol": False, "client-option": "off"},
}


class Sent(NamedTuple):
    """What a query says about its client, and what it is believed to say.

    ``client`` has the nodes whose endpoints WEB has for the client that a trusted forwarder names so. It is empty for
    a client that topodns does not know, ``-`` if nobody is named, ``!`` if the query cannot be read. Any other source
    is itself the client; it is told so if ``names`` is true.
    """

    id: str
    client: str
    header: bytes = b""
    options: tuple[bytes, ...] | None = ()  # None: no EDNS
    names: bool = False
    switches: str = "both"

    def asked(self, source: str, proto: str, name: str = WEB) -> Asked:
        edns = b"" if self.options is None else opt(*self.options)
        return Asked(query(name, edns=edns), source, proto, self.header)

    def expected(self, source: str) -> str:
        """Return what ``client`` is for a query from *source*."""
        if source in TRUSTED or self.client == "!":
            return self.client
        return "!" if self.header else UNTRUSTED[source]


def named(address: str) -> bytes:
    return option(CLIENT_OPTION, ip_address(address).packed)


def combinations() -> Iterator[Sent]:
    head, *lines = [line.split() for line in ORDER.strip().splitlines()]
    for by_proxy, by_option, by_subnet, *clients in lines:
        header = proxied(BY_PROXY) if by_proxy == "proxy" else b""
        options = (*[named(BY_OPTION)] * (by_option != "-"), *[ecs(BY_SUBNET)] * (by_subnet != "-"))
        present = "+".join(name for name in (by_proxy, by_option, by_subnet) if name != "-") or "nothing"
        for switches, client in zip(head[3:], clients, strict=True):
            names = by_subnet != "-" or (by_option != "-" and "client-option" not in SWITCHES[switches])
            yield Sent(f"{present}, {switches}", client, header, options, names, switches)


def option_of(size: int) -> bytes:
    return option(CLIENT_OPTION, b"\x7f" * size)


MAPPED = f"::ffff:{BY_PROXY}"
SENT = [
    *combinations(),
    # The first carrier names nobody: no later one counts, nor where the forwarder is.
    Sent("no EDNS", "-", options=None),
    Sent("LOCAL", "-", proxy_header(command=LOCAL), (ecs(BY_SUBNET),)),
    Sent("LOCAL with addresses", "-", proxy_header(both_ends(BY_PROXY), command=LOCAL), (ecs(BY_SUBNET),)),
    Sent("LOCAL, an option", "-", proxy_header(command=LOCAL), (named(BY_OPTION),)),
    Sent("LOCAL, no EDNS", "-", proxy_header(command=LOCAL), None),
    Sent("LOCAL, a block", "-", proxy_header(command=LOCAL), (ecs("10.1.0.0/24"),)),
    Sent("UNSPEC", "-", proxy_header(family=UNSPEC), (named(BY_OPTION), ecs(BY_SUBNET))),
    Sent("UNIX", "-", proxy_header(bytes(216), family=UNIX_DGRAM), (ecs(BY_SUBNET),)),
    *[Sent(f"option of {size}", "-", options=(option_of(size), ecs(BY_SUBNET)), names=True)
      for size in (0, 1, 3, 5, 8, 15, 17, 32)],
    Sent("option of 5, alone", "-", options=(option_of(5),)),
    Sent("option of 5 behind a subnet", "-", options=(ecs(BY_SUBNET), option_of(5)), names=True),
    Sent("option twice", "-", options=(named(BY_OPTION),) * 2),
    Sent("option twice, one empty", "-", options=(option_of(0), named(BY_OPTION), ecs(BY_SUBNET)), names=True),
    Sent("option twice around a subnet", "-", options=(named(BY_OPTION), ecs(BY_SUBNET), named(OTHER)), names=True),
    # RFC 7871, 7.1.2: a source prefix of 0 names nobody.
    Sent("/0", "-", options=(ecs("0.0.0.0/0"),)),
    Sent("/0 of IPv6", "-", options=(ecs("::/0"),)),
    Sent("/0 of no family", "-", options=(ecs("0"),)),
    Sent("/0 as mapped IPv6", "-", options=(ecs("::ffff:0.0.0.0/96"),), names=True),
    Sent("/0 beside an option", "option", options=(named(BY_OPTION), ecs("0.0.0.0/0")), names=True),
    # Somebody is named whom topodns does not know.
    Sent("unknown by header", "", proxied(UNKNOWN), (ecs(BY_SUBNET),)),
    Sent("0.0.0.0 by header", "", proxied("0.0.0.0"), (ecs(BY_SUBNET),)),
    Sent(":: by header", "", proxied("::")),
    Sent("unknown by option", "", options=(named(UNKNOWN), ecs(BY_SUBNET)), names=True),
    Sent(":: by option", "", options=(named("::"),), names=True),
    Sent("unknown by subnet", "", options=(ecs(UNKNOWN),), names=True),
    Sent("unknown block", "", options=(ecs("203.0.113.0/24"),), names=True),
    # Either family, and IPv4 as IPv6.
    Sent("IPv6 by header", "proxy", proxied("fd00::1")),
    Sent("IPv6 by option", "proxy", options=(named("fd00::1"),), names=True),
    Sent("IPv6 by subnet", "proxy", options=(ecs("fd00::1"),), names=True),
    Sent("mapped by header", "proxy", proxied(MAPPED)),
    Sent("mapped by option", "proxy", options=(named(MAPPED),), names=True),
    Sent("mapped by subnet", "proxy", options=(ecs(MAPPED),), names=True),
    Sent("mapped by /127", "proxy", options=(ecs(f"{MAPPED}/127"),), names=True),
    # A pod's own option, which CoreDNS passes on, moves nobody: the number of ours differs.
    Sent("another option", "-", options=(option(CLIENT_OPTION + 1, named(BY_OPTION)[4:]),)),
    Sent("another option and a subnet", "subnet", names=True,
         options=(option(CLIENT_OPTION + 1, named(BY_OPTION)[4:]), ecs(BY_SUBNET))),
    Sent("a cookie and a subnet", "subnet", options=(option(10, b"12345678"), ecs(BY_SUBNET)), names=True),
    # A source that names itself names somebody all the same.
    Sent("another node", "other", options=(ecs(OTHER),), names=True),
    # A block beside other carriers: in any order, its place counts only if no other carrier is there.
    *[Sent(f"{block}{'' if not more else ' and more'}", client, header, (ecs(block), *more), names=True)
      for block in ("10.1.0.0/24", "10.1.0.0/25", "fd00:1::/64", "::ffff:10.1.0.0/120")
      for client, header, more in (("a1", b"", ()), ("c1", b"", (named("10.2.0.9"),)))],
    Sent("a block and a header", "c1", proxied("10.2.0.9"), (ecs("10.1.0.0/24"),)),
    Sent("a block, an option and a header", "a2", proxied("10.1.1.9"), (ecs("10.1.0.0/25"), named("10.2.0.9"))),
    # RFC 7871, 7.1.1: bits beyond the prefix are a fault, even if the valid query was remembered.
    *[Sent(f"bits beyond {block}", "!", options=(ecs(block)[:-1] + b"\1",))
      for block in ("10.1.0.0/25", "10.1.0.0/23", "10.1.0.0/17", "10.1.0.0/31", "fd00:1::/57")],
    # What all of a block agrees on.
    *[Sent(f"agreed on {block}", client, options=(ecs(block),), names=True) for block, client in (
        ("10.1.0.128/25", "a1"), ("10.1.0.4/31", "a1"), ("10.1.1.0/24", "a2"), ("10.1.0.0/23", "a1 a2"),
        ("10.1.2.0/23", "b1"), ("10.1.0.0/22", "a1 a2 b1"), ("10.1.0.0/17", "a1 a2 b1"), ("10.0.0.0/8", ""),
        ("10.2.0.0/16", "c1"), ("10.2.0.0/15", "c1 c2"), ("10.3.0.0/24", "c2"), ("10.3.0.8/29", ""),
        ("10.3.0.0/29", "c2"), ("0.0.0.0/1", ""), ("128.0.0.0/1", ""), ("10.4.0.0/16", ""), ("fd00:1::/65", "a1"),
        ("fd00:1::/63", "a1 a2"), ("fd00:1::/57", "a1 a2"), ("fd00:1::/48", "a1 a2 b1"), ("fd00:2::/48", "c1"),
        ("fd00:3::/56", "c2"), ("fd00:2::/31", "c1 c2"), ("fd00::/16", ""), ("fd00:4::/64", ""), ("::/80", ""),
        ("::ffff:10.1.0.0/119", "a1 a2"), ("::ffff:10.1.0.0/112", "a1 a2 b1"), ("::ffff:10.1.0.1/128", "a1"),
    )],
]  # fmt: skip


@cache
def responder_with(switches: str) -> CountedResponder:
    """Return a responder that remembers the answers to all that is sent with these switches."""
    responder = responder_of(CLUSTER, {**FLAGS, **SWITCHES[switches]})
    for sent, source in itertools.product(SENT, (*TRUSTED, *UNTRUSTED)):
        if sent.switches == switches:
            replied(responder, sent.asked(source, "udp"))
    return responder


def noted(responder: CountedResponder) -> dict[str, dict[str, int]]:
    """Return the numbers of queries by source that named nobody, and of those whose client was ignored."""
    counts = responder.counts
    return {"nobody": dict(counts.unnamed_clients.numbers), "ignored": dict(counts.ignored_clients.numbers)}


def assert_given(reply: bytes | None, sent: Sent, source: str, name: str) -> None:
    """A reply has the endpoints of the right nodes, each subnet with its scope, and the errors of RFC 8914."""
    assert reply is not None
    expected, nodes = sent.expected(source), nodes_in(reply)
    if expected == "!":
        assert reply[3] & 15 and not nodes
        return
    unlocated = expected in ("", "-")
    assert nodes == (set(NODES) if name == FREE else set() if unlocated else set(expected.split()))
    found = options_of(reply)
    scoped = name == WEB  # its answer depends on who asks, whoever does
    assert [each for each in found if each[:2] == b"\0\x08"] == [
        each[:7] + each[6 : 6 + scoped].rjust(1, b"\0") + each[8:] for each in sent.options or () if each[1] == 8
    ]
    errors = [each[6:].decode() for each in found if each[:2] == b"\0\x0f" and each[4:6] == b"\0\0"]
    if unlocated and scoped and sent.options is not None:  # the answer's own error comes first
        assert "no label" in errors.pop(0)
    ignored = source in UNTRUSTED and sent.names
    assert errors == [f"client subnet ignored: {source} is no trusted forwarder"] * ignored


def nodes_in(reply: bytes) -> set[str]:
    return {NODES[record[-1]] for record in parts_of(reply).answers}


@pytest.mark.parametrize("sent", SENT, ids=[sent.id for sent in SENT])
def test_who_is_the_client(sent: Sent) -> None:
    """From each source, by UDP and by TCP; remembered and computed replies are alike.

    A forwarder that names nobody is counted, and so is any other source that names a client.
    """
    responder = responder_with(sent.switches)
    for source in (*TRUSTED, *UNTRUSTED):
        before, number = noted(responder), 0
        for proto in ("udp",) if sent.expected(source) == "!" and sent.header else ("udp", "tcp"):
            for name in (WEB, FREE):
                asked = sent.asked(source, proto, name)
                computed = replied(responder, asked, compute=True)
                for reply in (computed, replied(responder, asked), replied(responder, asked)):
                    assert_given(reply, sent, source, name)
                    assert_same(reply, computed, computed)
                    number += 1
        expected = sent.expected(source)
        which = (expected == "-") * "nobody" or (source in UNTRUSTED and sent.names and not sent.header) * "ignored"
        if which and expected != "!":
            before[which][source] = before[which].get(source, 0) + number
        assert noted(responder) == before


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with every carrier enabled."""
    with serving(tmp_path_factory.mktemp("clients"), CLUSTER, flags=FLAGS) as server:
        yield server
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.parametrize("proto", ["udp", "tcp"])
@pytest.mark.parametrize("source", [FORWARDER, OTHER])
def test_who_is_the_client_by_sockets(server: Server, source: str, proto: str) -> None:
    """A real server gives the same answers, twice."""
    for sent in SENT * 2:
        if sent.switches == "both" and not (proto == "tcp" and sent.header and source == OTHER):
            assert_given(exchanged(server, sent.asked(source, proto)), sent, source, WEB)


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


def test_a_block_that_is_remembered_follows_the_cluster() -> None:
    """After a node's pod CIDR changes, the next query for the subnet gets the new answer."""
    responder, moved = responder_of(CLUSTER, FLAGS), CLUSTER.replace("10.1.1.0/24", "10.7.0.0/24")
    for text, nodes in ((CLUSTER, {"a1", "a2"}), (moved, {"a1"}), (CLUSTER, {"a1", "a2"})):
        responder.publish(snapshot_of(text, FLAGS))
        for block in ("10.1.0.0/23", "::ffff:10.1.0.0/119") * 2:
            assert nodes_in(replied(responder, Asked(query(WEB, edns=opt(ecs(block))), FORWARDER, "udp"))) == nodes


def test_where_everybody_is_trusted_any_source_may_name_any_client() -> None:
    """A source that names none is an unknown client."""
    responder = responder_of(CLUSTER, {**FLAGS, "trusted-forwarder": ["0.0.0.0/0", "::/0"]})
    for source in (OTHER, UNKNOWN, "fd00::4"):
        for options, header, nodes in (
            ((ecs(BY_SUBNET),), b"", {"subnet"}),
            ((), proxied(BY_PROXY), {"proxy"}),
            ((), b"", set()),
        ):
            asked = Asked(query(WEB, edns=opt(*options)), source, "udp", header)
            assert nodes_in(replied(responder, asked)) == nodes
