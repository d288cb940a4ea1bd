# SPDX-License-Identifier: Apache-2.0

"""Real forwarders between clients and topodns, one row of a table each: every client gets its own place's answer.

A client asks a program, the program asks topodns, and the client gets what ``explain`` says for it. Clients are
loopback addresses that pods and nodes of the snapshot hold; IPv6 clients have a network of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.query
import dns.rcode
import dns.rdatatype
import pytest

from locator.ip import parse_address
from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, listed, namespace, node, pod, service
from tests.kit.explanations import explanation_of
from tests.kit.forwarders import (
    BIND,
    CLIENT_OPTION,
    COREDNS,
    COREDNS_OPTION,
    COREDNS_PROXIED,
    DNSDIST,
    DNSDIST_PROXY,
    DNSDIST_PROXY_TCP,
    DNSMASQ,
    NODELOCAL,
    POWERDNS,
    UNBOUND,
    at,
    running,
)
from tests.kit.in_memory import snapshot_of
from tests.kit.network_namespaces import Loopback, loopback_with
from tests.kit.this_machine import has_ipv6, lacking
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE

HERE = ("127.0.0.1", "fd00::1")  # where programs run: a node's address, too
WHO = ("a", "b", "c", "nowhere")  # clients, by their zone
OTHERS = {"a": "b", "b": "c", "c": "nowhere", "nowhere": "a"}  # whom each would rather be
LOCATED = {"a": "pod", "b": "podcidr", "c": "node", "nowhere": "unknown"}
IPV4 = {"a": "127.1.1.1", "b": "127.1.2.1", "c": "127.1.3.1", "nowhere": "127.1.9.1"}
IPV6 = {"a": "fd00:1:1::1", "b": "fd00:1:2::1", "c": "fd00:1:3::1", "nowhere": "fd00:1:9::1"}

SERVED = "shop.svc.cluster.local"
LARGE = 45  # endpoints in a zone fill more than 512 octets, of two zones more than 1232; BIND takes 100 at most


def _service(name: str, keys: str | None, zones: str) -> list[dict[str, Any]]:
    """Return a dual-stack headless Service with an endpoint for each letter of *zones*."""
    slices = []
    for family, net in (("IPv4", "10.9.{}.{}"), ("IPv6", "fd00:9:{}::{}")):
        rows = [
            endpoint(net.format(ord(zone), number), nodeName=f"node-{zone}", hostname=f"{name}-{number}")
            for number, zone in enumerate(zones, 1)
        ]
        slices.append(endpoint_slice(name, len(slices), rows, family=family))
    return [service(name, keys=keys), *slices]


CLUSTER = listed(
    [
        namespace("shop"),
        node("node-a", {ZONE: "a"}),
        node("node-b", {ZONE: "b"}, cidrs=("127.1.2.0/24", "fd00:1:2::/64")),
        node("node-c", {ZONE: "c"}, addresses=(IPV4["c"], IPV6["c"])),
        node("node-d", {ZONE: "d"}, addresses=HERE),
        pod("client", [IPV4["a"], IPV6["a"]], "node-a"),
        *_service("soft", f"{ZONE},*", "abbd"),  # none for c
        *_service("hard", ZONE, "abbccd"),
        *_service("counted", ZONE, "abd"),  # asked for once
        *_service("free", None, "ab"),
        *_service("many", f"{ZONE},*", "ab" * LARGE),
    ]
)
QUESTIONS = [
    *product((f"soft.{SERVED}", f"hard.{SERVED}", f"free.{SERVED}"), ("A", "AAAA", "SRV")),
    *product((f"_main._tcp.soft.{SERVED}", f"_main._tcp.hard.{SERVED}"), ("SRV",)),
    (f"hard-1.hard.{SERVED}", "A"),
    (f"none.{SERVED}", "A"),
]
LONG = [*product((f"many.{SERVED}",), ("A", "AAAA"))]


class Stage(NamedTuple):
    """Where programs listen, where they are asked, and by which clients."""

    name: str
    listen: str
    asked: str
    clients: Mapping[str, str]


BY_IPV4 = Stage("IPv4", HERE[0], HERE[0], IPV4)
BY_IPV6 = Stage("IPv6", HERE[1], HERE[1], IPV6)
MAPPED = Stage("IPv4 to a socket of IPv6", "::", HERE[0], IPV4)

DIRECT = "no forwarder"
TRUSTING = {"trusted-forwarder": [f"{HERE[0]}/32", f"{HERE[1]}/128"]}
BELIEVING = {**TRUSTING, "client-option": CLIENT_OPTION}
PROXIED = {**TRUSTING, "proxy-protocol": True}

ITSELF, NODE, NOBODY = "the client itself", "the node that the program runs on", "nobody"
ECS, OPTION = "ecs", "option"  # what a client may say of itself


class Row(NamedTuple):
    """Programs, from the one that clients ask to the one that asks topodns, and whose place the answers are for.

    ``believed`` is what clients can claim to be because of the first program; ``more`` are lines for a program.
    """

    kinds: Sequence[str]
    flags: Mapping[str, Any]
    client: str = ITSELF
    stages: Sequence[Stage] = (BY_IPV4, BY_IPV6)
    believed: Sequence[str] = ()
    more: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        return " before ".join(self.kinds)


ROWS = [
    Row([DIRECT], {}, stages=(BY_IPV4, BY_IPV6, MAPPED)),
    Row([COREDNS], TRUSTING, stages=(BY_IPV4, BY_IPV6, MAPPED)),
    Row([COREDNS_OPTION], BELIEVING, stages=(BY_IPV4, BY_IPV6, MAPPED)),
    Row([NODELOCAL], {}, NODE),
    Row([NODELOCAL, COREDNS], TRUSTING, NODE),
    Row([DNSMASQ], TRUSTING),
    Row([UNBOUND], TRUSTING, believed=(ECS,)),
    Row([DNSDIST], TRUSTING),
    Row([DNSDIST, COREDNS], TRUSTING, NODE),
    Row([DNSDIST_PROXY], PROXIED),
    Row([DNSDIST_PROXY_TCP], PROXIED),
    # CoreDNS drops a LOCAL header, which dnsdist's health checks have. It names IPv4 as mapped into IPv6.
    Row([DNSDIST_PROXY, COREDNS_PROXIED], TRUSTING, more={DNSDIST_PROXY: "getServer(0):setUp()"}),
    Row([POWERDNS], TRUSTING),
    Row([BIND], TRUSTING, NOBODY),
]


class Chain(NamedTuple):
    """A running row: the server, and the port of the program that clients ask."""

    row: Row
    stage: Stage
    server: Server
    port: int

    def ask(
        self, who: str, question: tuple[str, str], *, tcp: bool, options: Sequence[dns.edns.Option] | None = None
    ) -> dns.message.Message:
        """Ask as a client, without EDNS if *options* is None; over TCP after a truncated reply."""
        query = dns.message.make_query(*question, use_edns=-1 if options is None else 0, options=options)
        place = {"port": self.port, "source": self.stage.clients[who], "timeout": PATIENCE}
        if tcp:
            return dns.query.tcp(query, self.stage.asked, **place)
        return dns.query.udp_with_fallback(query, self.stage.asked, **place, ignore_unexpected=True)[0]

    def expected(self, who: str, question: tuple[str, str]) -> Answer:
        """Return the expected answer to a client's question."""
        client = {ITSELF: self.stage.clients[who], NODE: self.stage.asked, NOBODY: self.stage.clients["nowhere"]}
        return explained(client[self.row.client], question)


class Answer(NamedTuple):
    """The content of a reply: the rcode, and type and data of each record."""

    rcode: str
    records: frozenset[tuple[str, str]]


@cache
def explained(client: str, question: tuple[str, str]) -> Answer:
    """Return what ``explain`` says for a client."""
    name, qtype = question
    said = explanation_of(snapshot_of(CLUSTER), name, client, qtype)
    return Answer(said.rcode, frozenset((record.type, record.data) for record in said.answers))


def answered(reply: dns.message.Message) -> Answer:
    records = ((dns.rdatatype.to_text(rrset.rdtype), row.to_text()) for rrset in reply.answer for row in rrset)
    return Answer(dns.rcode.to_text(reply.rcode()), frozenset(records))


Start = Callable[[Stage, Mapping[str, Any]], Server]


@pytest.fixture(scope="module")
def inside() -> Iterator[Callable[[Stage], Any]]:
    """Return the network of a stage; that of IPv6 is made once."""
    with ExitStack() as stack:
        networks: list[Loopback] = []

        def entered(stage: Stage) -> Any:
            if stage is not BY_IPV6:
                return nullcontext()
            if not networks:
                networks.append(stack.enter_context(loopback_with(HERE[1], *IPV6.values())))
            return networks[0].inside()

        yield entered


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Return a function that starts a server with some flags, or returns the one that runs."""
    with ExitStack() as stack:
        servers: dict[str, Server] = {}

        def start(stage: Stage, flags: Mapping[str, Any]) -> Server:
            key = repr((stage, flags))
            if key not in servers:
                host = f"[{stage.listen}]" if ":" in stage.listen else stage.listen
                own = {"listen": [f"{host}:0"], "http": f"[{HERE[1]}]:0" if stage is BY_IPV6 else f"{HERE[0]}:0"}
                folder = tmp_path_factory.mktemp("server")
                servers[key] = stack.enter_context(serving(folder, CLUSTER, flags={**own, **flags}))
            return servers[key]

        yield start


def _id(case: tuple[Row, Stage]) -> str:
    return f"{case[0].name}, {case[1].name}"


@pytest.fixture(scope="module", params=[(row, stage) for row in ROWS for stage in row.stages], ids=_id)
def chain(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    inside: Callable[[Stage], Any],
    started: Start,
) -> Iterator[Chain]:
    """Run each row of the table; a test must enter its network."""
    row, stage = request.param
    if stage is not BY_IPV4 and not has_ipv6():
        lacking("there is no IPv6 here")
    folder = tmp_path_factory.mktemp("programs")
    with ExitStack() as stack:
        with inside(stage):
            server = started(stage, row.flags)
            port = server.port
            for kind in reversed(row.kinds):
                if kind == DIRECT:
                    continue
                to = at(stage.asked, port)
                extra = row.more.get(kind, "")
                port = stack.enter_context(running(kind, folder, to, address=stage.listen, extra=extra)).port
        yield Chain(row, stage, server, port)


@pytest.fixture(autouse=True)
def _in_its_network(chain: Chain, inside: Callable[[Stage], Any]) -> Iterator[None]:
    with inside(chain.stage):
        yield


@pytest.mark.parametrize("edns", [False, True], ids=["plain", "edns"])
@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
def test_each_client_gets_what_explain_says(chain: Chain, tcp: bool, edns: bool) -> None:
    """Over UDP and TCP, with EDNS and without: the program accepts topodns' reply and forwards it whole."""
    wrong = []
    for question, who in product([*QUESTIONS, *LONG], WHO):
        got = answered(chain.ask(who, question, tcp=tcp, options=[] if edns else None))
        if got != (expected := chain.expected(who, question)):
            wrong.append((who, question, got, expected))
    assert not wrong


def test_who_asks_for_validation_gets_an_answer(chain: Chain) -> None:
    """Nobody has signed the zone, which is no reason to refuse it."""
    for flags in ({"flags": dns.flags.RD | dns.flags.AD}, {"want_dnssec": True}):
        query = dns.message.make_query(f"free.{SERVED}", "A", **flags)
        source = chain.stage.clients["a"]
        got = dns.query.tcp(query, chain.stage.asked, port=chain.port, source=source, timeout=PATIENCE)
        assert answered(got) == chain.expected("a", (f"free.{SERVED}", "A"))


def _lie(kind: str, named: str) -> list[dns.edns.Option]:
    """Return the options by which a client claims another's address."""
    address = parse_address(named)
    if kind == ECS:
        return [dns.edns.ECSOption(named, 8 * len(address))]
    return [dns.edns.GenericOption(CLIENT_OPTION, address)]


@pytest.mark.parametrize("lie", [ECS, OPTION])
@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
def test_no_client_can_move_itself(chain: Chain, tcp: bool, lie: str) -> None:
    """A client that names another gets its own answer, unless the table says otherwise."""
    wrong = []
    for who, other in OTHERS.items():
        options = _lie(lie, chain.stage.clients[other])
        for question in QUESTIONS:
            got = answered(chain.ask(who, question, tcp=tcp, options=options))
            expected = chain.expected(other if lie in chain.row.believed else who, question)
            if got != expected:
                wrong.append((who, question, got, expected))
    assert not wrong


def test_counted_by_who_was_named(chain: Chain) -> None:
    """The metrics count how clients are located; a forwarder that names nobody is counted by address."""
    was = chain.server.metrics()
    for who in WHO:
        question = (f"counted.{SERVED}", "A")
        assert answered(chain.ask(who, question, tcp=False)) == chain.expected(who, question)
    now = chain.server.metrics()

    def moved(name: str) -> set[str]:
        return {key[1] for key, number in now.items() if key[0] == name and number > was.get(key, 0)}

    expected = {ITSELF: set(LOCATED.values()), NODE: {"node"}, NOBODY: {"unknown"}}[chain.row.client]
    assert moved("topodns_clients_total") == expected
    assert moved("topodns_forwarded_without_client_total") == (
        {chain.stage.asked} if chain.row.client == NOBODY else set()
    )
    if chain.row.client == NOBODY:
        line = f"forwarder {chain.stage.asked} names no client"
        chain.server.wait_for(re.escape(line))
        said = [each for each in chain.server.lines if line in each]
        assert len(said) == 1 and "rewrite edns0 subnet set 32 128 revert" in said[0]
