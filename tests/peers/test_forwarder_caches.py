# SPDX-License-Identifier: Apache-2.0

"""Caches between clients and topodns: which ones keep the answers of clients apart, and which mix them up.

Each client asks the real program from its own address on loopback.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import dns.edns
import dns.message
import dns.query
import dns.rcode
import pytest

from dnsserver.tools.corefile.stub_blocks import ECS_RULE
from tests.kit import forwarders
from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, listed, namespace, node, pod, service
from tests.kit.files import replace_file
from tests.kit.forwarders import (
    BIND,
    COREDNS,
    DNSDIST,
    DNSDIST_PROXY,
    DNSMASQ,
    NODELOCAL,
    POWERDNS,
    UNBOUND,
    Forwarder,
    where,
)
from tests.kit.this_machine import ROOT, free_port
from tests.kit.topodns_process import Server, reload, serving
from tests.kit.waiting import PATIENCE, until

# Who asks, and in which zone that is. Zone c has no endpoint.
IN_A, IN_B, IN_C, NOWHERE = "127.1.0.10", "127.1.1.10", "127.1.2.10", "127.9.9.9"
ELSEWHERE = "-"
CLIENTS = {IN_A: "a", IN_B: "b", IN_C: "c", NOWHERE: ELSEWHERE}
FORWARDER, FORWARDERS_ZONE = "127.0.0.1", "a"

SOFT, HARD, FREE = "soft", "hard", "free"  # the zone and then any; the zone alone; no constraint
KEYS = {SOFT: f"{ZONE},*", HARD: ZONE, FREE: None}
SERVED = "ab"  # the zones with an endpoint
LONG = 3600  # a TTL that no test outlives


def _services(served: str) -> Iterator[Item]:
    for name, keys in KEYS.items():
        yield service(name, keys=keys)
        for family, form in (("IPv4", "10.9.0.{}"), ("IPv6", "fd09::{}")):
            rows = [
                endpoint(form.format(number), nodeName=f"{zone}1")
                for number, zone in enumerate(SERVED, 1)
                if zone in served
            ]
            yield endpoint_slice(name, int(family[-1]), rows, family=family)


def cluster(served: str = SERVED) -> str:
    """Return the cluster as text, with endpoints in these zones."""
    places = [node(f"{zone}1", {ZONE: zone}, addresses=[FORWARDER] * (zone == FORWARDERS_ZONE)) for zone in "abc"]
    clients = [pod(f"client-{zone}", [address], f"{zone}1") for address, zone in CLIENTS.items() if zone != ELSEWHERE]
    return listed([namespace("shop"), *places, *clients, *_services(served)])


def own(name: str, zone: str, rtype: str = "A") -> str:
    """Return the right answer for a client in a zone, or elsewhere: the zone of each record."""
    farther = SERVED if name == SOFT else ""
    chosen = SERVED if name == FREE else zone if zone in SERVED else farther
    return "".join(each * (2 if rtype == "SRV" else 1) for each in chosen)


def replied(port: int, client: str, name: str, rtype: str = "A", *, names: str = "") -> dns.message.Message:
    """Ask from a client's address; with EDNS client subnet if it *names* a client."""
    options = [dns.edns.ECSOption(names, 32)] if names else None
    query = dns.message.make_query(f"{name}.shop.svc.cluster.local", rtype, options=options)
    return dns.query.udp(query, FORWARDER, port=port, source=client, timeout=PATIENCE, ignore_unexpected=True)


def told(port: int, client: str, name: str, rtype: str = "A", *, names: str = "") -> str:
    """Return the answer that a client gets at a port, as ``own`` does."""
    reply = replied(port, client, name, rtype, names=names)
    assert reply.rcode() == dns.rcode.NOERROR
    rows = [row for rrset in reply.answer for row in rrset]
    texts = [str(row.target).partition(".")[0] if rtype == "SRV" else str(row) for row in rows]
    return "".join(sorted(SERVED[int(text[-1]) - 1] for text in texts))


def computed(server: Server) -> int:
    """Return how many questions for Services have reached topodns."""
    samples = re.findall(r"^topodns_answers_total\{.*\} (\S+)$", server.get("/metrics")[1], re.MULTILINE)
    return round(sum(map(float, samples)))


class Setup(NamedTuple):
    """A forwarder's configuration, with *extra* lines, and with *other* texts in place of printed ones."""

    kind: str
    extra: str = ""
    other: Mapping[str, str] = {}

    @contextmanager
    def running(self, folder: Path, server: Server) -> Iterator[Forwarder]:
        folder.mkdir(exist_ok=True)
        to = where(server)
        with forwarders.running(self.kind, folder, to, extra=self.extra, other=self.other) as forwarder:
            yield forwarder


# So that nothing is asked twice, or given up, because a machine is busy.
UNHURRIED = f"infra-cache-min-rtt: {PATIENCE * 1000:.0f}\n"
STEADY = f"setUDPTimeout({PATIENCE:.0f})\ngetServer(0):setUp()\n"

CACHE = "cache\n"
NO_MINIMUM = "cache {\n success 9984 30 0\n denial 9984 30 0\n}\n"
DISABLED = "cache {\n disable success cluster.local\n disable denial cluster.local\n}\n"
PACKET_CACHE = 'getPool(""):setCache(newPacketCache(10000))\n'
SETUPS = {
    "CoreDNS": Setup(COREDNS),
    "CoreDNS, cache in the stub block": Setup(COREDNS, CACHE),
    "CoreDNS, cache there with minimum 0": Setup(COREDNS, NO_MINIMUM),
    "CoreDNS, cache there with disable": Setup(COREDNS, DISABLED),
    "NodeLocal DNSCache": Setup(NODELOCAL),
    "dnsmasq": Setup(DNSMASQ),
    "dnsmasq without add-subnet": Setup(DNSMASQ, other={"add-subnet=32,128\n": ""}),
    "unbound": Setup(UNBOUND, UNHURRIED),
    "unbound without subnetcache": Setup(UNBOUND, UNHURRIED, other={"subnetcache ": ""}),
    "unbound without send-client-subnet": Setup(UNBOUND, UNHURRIED, other={f"send-client-subnet: {FORWARDER}\n": "\n"}),
    "dnsdist": Setup(DNSDIST, STEADY),
    "dnsdist with zero scope": Setup(DNSDIST, STEADY, other={"disableZeroScope=true, ": ""}),
    "dnsdist, PROXY protocol": Setup(DNSDIST_PROXY, STEADY),
    "dnsdist, PROXY protocol, packet cache": Setup(DNSDIST_PROXY, STEADY + PACKET_CACHE),
    "PowerDNS Recursor": Setup(POWERDNS),
    "PowerDNS Recursor without minimum-ttl-override": Setup(POWERDNS, other={"minimum-ttl-override=0\n": ""}),
    "BIND": Setup(BIND),
}


# What is kept for whom

# What the one who asks second is told: its own; what the first was told; like the first, what is for the forwarder's
# node; like the first, what is for a client whom nobody knows.
APART, MIXED, NODE, UNKNOWN = "kept apart", "mixed", "the node's", "unknown"

# The setup, the TTLs that we give; then what the second is told: of two zones, the first unmet, the second unmet.
# The page has the same table.
ROWS = [
    ("CoreDNS", (0, 5), APART, APART, APART),
    ("CoreDNS, cache in the stub block", (0, 5), MIXED, MIXED, MIXED),
    ("CoreDNS, cache there with minimum 0", (0,), APART, APART, APART),
    ("CoreDNS, cache there with minimum 0", (5,), MIXED, APART, MIXED),
    ("CoreDNS, cache there with disable", (0, 5), APART, APART, APART),
    ("NodeLocal DNSCache", (0, 5), NODE, NODE, NODE),
    ("dnsmasq", (0, 5), APART, APART, APART),
    ("dnsmasq without add-subnet", (0, 5), UNKNOWN, UNKNOWN, UNKNOWN),
    ("unbound", (0, 5), APART, APART, APART),
    ("unbound without subnetcache", (0, 5), UNKNOWN, UNKNOWN, UNKNOWN),
    ("unbound without send-client-subnet", (0, 5), UNKNOWN, UNKNOWN, UNKNOWN),
    ("dnsdist", (0, 5), APART, APART, APART),
    ("dnsdist, PROXY protocol", (0, 5), APART, APART, APART),
    ("dnsdist, PROXY protocol, packet cache", (0,), APART, APART, APART),
    ("dnsdist, PROXY protocol, packet cache", (5,), MIXED, APART, MIXED),
    ("PowerDNS Recursor", (0, 5), APART, APART, APART),
    ("PowerDNS Recursor without minimum-ttl-override", (0, 5), APART, MIXED, APART),
    ("BIND", (0, 5), UNKNOWN, UNKNOWN, UNKNOWN),
]
# Who asks first, who second, and for what: types of their own, so that no pair meets what is kept for another.
PAIRS = ((IN_A, IN_B, SOFT, "A"), (NOWHERE, IN_B, HARD, "AAAA"), (IN_B, NOWHERE, HARD, "SRV"))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int, bool], Server]]:
    """Return a function that returns a server with a TTL, which trusts the forwarder or not."""
    running: dict[tuple[int, bool], Server] = {}
    with ExitStack() as stack:

        def server(ttl: int, trusted: bool) -> Server:
            key = (ttl, trusted)
            if key not in running:
                trust = {"proxy-protocol": True, "trusted-forwarder": [f"{FORWARDER}/32"] if trusted else []}
                flags = {"ttl": ttl, "http": "127.0.0.1:0", **trust}
                running[key] = stack.enter_context(serving(tmp_path_factory.mktemp("server"), cluster(), flags=flags))
            return running[key]

        yield server


@pytest.mark.parametrize(
    ("setup", "ttl", "words"),
    [(setup, ttl, words) for setup, ttls, *words in ROWS for ttl in ttls],
    ids=[f"{setup}, {ttl} s" for setup, ttls, *_ in ROWS for ttl in ttls],
)
def test_cache_between_two_clients(
    servers: Callable[[int, bool], Server], tmp_path: Path, setup: str, ttl: int, words: Sequence[str]
) -> None:
    """What a client gets if another client has asked right before, by the words of the table."""
    server = servers(ttl, SETUPS[setup].kind != NODELOCAL)
    with SETUPS[setup].running(tmp_path / "forwarder", server) as forwarder:
        for (one, other, name, rtype), word in zip(PAIRS, words, strict=True):
            firsts, seconds = own(name, CLIENTS[one], rtype), own(name, CLIENTS[other], rtype)
            nodes, unknowns = own(name, FORWARDERS_ZONE, rtype), own(name, ELSEWHERE, rtype)
            expected = {
                APART: (firsts, seconds),
                MIXED: (firsts, firsts),
                NODE: (nodes, nodes),
                UNKNOWN: (unknowns, unknowns),
            }[word]
            asked = partial(_pair, forwarder.port, one, other, name, rtype)
            if word == MIXED:  # as long as the first one's is kept: on a slow machine it may have gone
                until(lambda asked=asked, expected=expected: asked() == expected, f"{name} {rtype}, mixed")
            else:
                assert asked() == expected


def _pair(port: int, one: str, other: str, name: str, rtype: str) -> tuple[str, str]:
    return told(port, one, name, rtype), told(port, other, name, rtype)


def test_page_has_the_same_table() -> None:
    """``docs/forwarders.md`` shows the table of these tests."""
    text = (ROOT / "docs" / "forwarders.md").read_text().replace("`", "")
    table = text.partition("| forwarder | --ttl |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert cells == [[setup, ", ".join(map(str, ttls)), *words] for setup, ttls, *words in ROWS]


@pytest.mark.parametrize(
    ("setup", "seconds"),
    [
        ("CoreDNS", 0),
        ("CoreDNS, cache there with minimum 0", 0),
        ("CoreDNS, cache in the stub block", 5),
        ("CoreDNS, cache there with disable", 5),
    ],
)
def test_ttl_behind_the_cache_of_coredns(
    servers: Callable[[int, bool], Server], tmp_path: Path, setup: str, seconds: int
) -> None:
    """CoreDNS's ``cache`` in the stub block raises TTL 0 to five seconds, cached or not."""
    with SETUPS[setup].running(tmp_path / "forwarder", servers(0, True)) as forwarder:
        (found,) = replied(forwarder.port, IN_A, SOFT).answer
        (soa,) = replied(forwarder.port, NOWHERE, HARD).authority
        assert (found.ttl, soa.ttl, soa[0].minimum) == (seconds, seconds, 0)


def test_cache_in_another_block(servers: Callable[[int, bool], Server], tmp_path: Path) -> None:
    """CoreDNS's ``cache`` in another server block does no harm."""
    port, server = free_port(), servers(5, True)
    block = f".:{port} {{\nbind {FORWARDER}\ncache\nforward . {where(server)}\n}}\n"
    beside = Setup(COREDNS, other={"\n}\n": f"\n}}\n{block}"})
    with beside.running(tmp_path / "forwarder", server) as forwarder:
        for client, zone in CLIENTS.items():
            assert told(forwarder.port, client, SOFT) == own(SOFT, zone)


def test_cache_behind_the_one_that_names_clients(servers: Callable[[int, bool], Server], tmp_path: Path) -> None:
    """A CoreDNS that caches what another CoreDNS named mixes clients up, too."""
    behind = Setup(COREDNS, CACHE, other={f"{ECS_RULE}\n": "\n"})
    with (
        behind.running(tmp_path / "behind", servers(5, True)) as cache,
        forwarders.running(COREDNS, tmp_path, cache.at) as forwarder,
    ):
        pair = (forwarder.port, IN_A, IN_B, SOFT, "A")
        until(lambda: _pair(*pair) == (own(SOFT, "a"),) * 2, "mixed")


@pytest.mark.parametrize(
    "setup", ["CoreDNS, cache in the stub block", "NodeLocal DNSCache", "unbound", "dnsdist", "PowerDNS Recursor"]
)
def test_a_change_arrives_when_the_ttl_ends(tmp_path: Path, setup: str) -> None:
    """A cache that has kept an answer asks again after that; until then it may tell what was."""
    trusted = [] if SETUPS[setup].kind == NODELOCAL else [f"{FORWARDER}/32"]
    with (
        serving(tmp_path, cluster(), flags={"ttl": 1, "trusted-forwarder": trusted}) as server,
        SETUPS[setup].running(tmp_path / "forwarder", server) as forwarder,
    ):
        asked = partial(told, forwarder.port, IN_A, SOFT)
        assert asked() == "a"
        replace_file(tmp_path / "cluster.yaml", cluster("b"))
        reload(server)
        until(lambda: asked() == "b", "the endpoint that is left")


# Scopes

# How often all together ask what does not depend on them; as we print it, dnsdist does not look at a scope of 0.
SHARING = [("unbound", 1), ("dnsdist", len(CLIENTS)), ("dnsdist with zero scope", 1)]


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "untrusted"])
@pytest.mark.parametrize(("setup", "for_all"), SHARING)
def test_what_a_cache_shares(
    servers: Callable[[int, bool], Server], tmp_path: Path, setup: str, for_all: int, trusted: bool
) -> None:
    """An answer that depends on the client is cached for it alone; others for all (scope 0).

    A forwarder without trust gets what is near to itself, with a scope by which it caches for that client alone.
    """
    server = servers(LONG, trusted)
    with SETUPS[setup].running(tmp_path / "forwarder", server) as forwarder:
        for name, times in ((FREE, for_all), (SOFT, len(CLIENTS))):
            before = computed(server)
            for client, zone in (*CLIENTS.items(), *CLIENTS.items()):
                assert told(forwarder.port, client, name) == own(name, zone if trusted else FORWARDERS_ZONE)
            assert computed(server) - before == times


@pytest.mark.parametrize(("setup", "zone"), [("dnsdist", "a"), ("dnsdist with zero scope", "b")])
def test_client_that_names_another(
    servers: Callable[[int, bool], Server], tmp_path: Path, setup: str, zone: str
) -> None:
    """dnsdist with zero scope looks into its cache before it overrides the client's own ECS."""
    with SETUPS[setup].running(tmp_path / "forwarder", servers(LONG, True)) as forwarder:
        assert told(forwarder.port, IN_B, SOFT, names=IN_B) == own(SOFT, "b")
        assert told(forwarder.port, IN_A, SOFT, names=IN_B) == own(SOFT, zone)
