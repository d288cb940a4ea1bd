# SPDX-License-Identifier: Apache-2.0

"""Caches between clients and topodns: which ones keep the answers of clients apart, and which mix them up.

Each client asks the real program from its own address on loopback.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import dns.edns
import dns.message
import dns.query
import dns.rcode
import pytest

from dnsserver.tools.corefile.stub_blocks import ECS_RULE
from tests.kit import forwarders
from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, listed, namespace, node, pod, service
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

# Who asks, and in which zone that is. Zone c has an endpoint in every other version of the cluster only.
IN_A, IN_B, IN_C, NOWHERE = "127.1.0.10", "127.1.1.10", "127.1.2.10", "127.9.9.9"
NEAR_A, NEAR_B = "127.1.3.10", "127.1.3.20"  # one /24, and nothing that all of it agrees on
ELSEWHERE = "-"
CLIENTS = {IN_A: "a", IN_B: "b", IN_C: "c", NOWHERE: ELSEWHERE}
FORWARDER, FORWARDERS_ZONE = "127.0.0.1", "a"

SOFT, HARD, FREE = "soft", "hard", "free"  # the zone and then any; the zone alone; no constraint
KEYS = {SOFT: f"{ZONE},*", HARD: ZONE, FREE: None}
TYPES = ("A", "AAAA", "SRV")

LONG = 3600  # a TTL that no test outlives
ROUNDING = 1.0  # seconds that an answer may live beyond its TTL: caches count whole ones
CHANGES = 3  # of the cluster, each after every answer was kept, and has expired

WantedLocator = tuple[str, ...]  # the endpoints of an answer, each as its zone and the version of the cluster: "a3"


def version(number: int) -> str:
    """Return a version of the cluster: same clients, other endpoints."""
    places = {"a1": ("a", [FORWARDER]), "b1": ("b", []), "c1": ("c", [])}
    holders = {IN_A: "a1", IN_B: "b1", IN_C: "c1", NEAR_A: "a1", NEAR_B: "b1"}
    items = [namespace("shop")]
    items += [node(name, {ZONE: zone}, addresses=own) for name, (zone, own) in places.items()]
    items += [pod(f"client-{count}", [address], on) for count, (address, on) in enumerate(holders.items())]
    for name, keys in KEYS.items():
        items.append(service(name, keys=keys))
        for family, form in (("IPv4", "10.9.{}.{}"), ("IPv6", "fd09::{}:{}")):
            rows = [
                endpoint(form.format(number, "abc".index(zone) + 1), nodeName=f"{zone}1") for zone in _served(number)
            ]
            items.append(endpoint_slice(name, int(family[-1]), rows, family=family))
    return listed(items)


def _served(number: int) -> str:
    return "ab" if number % 2 else "abc"


def own(name: str, zone: str, rtype: str = "A", *, number: int = 1) -> WantedLocator:
    """Return the right answer for a client in a zone, or elsewhere, in a version of the cluster."""
    zones = _served(number)
    farther = zones if name == SOFT else ""
    chosen = zones if name == FREE else zone if zone in zones else farther
    return tuple(f"{each}{number}" for each in chosen for _ in range(2 if rtype == "SRV" else 1))


def replied(port: int, client: str, name: str, rtype: str = "A", *, names: str = "") -> dns.message.Message:
    """Ask from a client's address; with EDNS client subnet if it *names* a client."""
    options = [dns.edns.ECSOption(names, 32)] if names else None
    query = dns.message.make_query(f"{name}.shop.svc.cluster.local", rtype, options=options)
    return dns.query.udp(query, FORWARDER, port=port, source=client, timeout=PATIENCE, ignore_unexpected=True)


def told(port: int, client: str, name: str, rtype: str = "A", *, names: str = "") -> WantedLocator:
    """Return the answer that a client gets at a port."""
    reply = replied(port, client, name, rtype, names=names)
    assert reply.rcode() == dns.rcode.NOERROR
    rows = [row for rrset in reply.answer for row in rrset]
    return tuple(sorted(_endpoint(str(row.target).partition(".")[0] if rtype == "SRV" else str(row)) for row in rows))


def _endpoint(text: str) -> str:
    """Return an endpoint by its address, or by the name made from that."""
    found = re.search(r"(\d+)[.:-](\d)$", text)
    assert found is not None
    return "abc"[int(found[2]) - 1] + found[1]


def computed(server: Server) -> int:
    """Return how many questions for Services have reached topodns."""
    samples = re.findall(r"^topodns_answers_total\{.*\} (\S+)$", server.get("/metrics")[1], re.MULTILINE)
    return round(sum(map(float, samples)))


@contextmanager
def started(folder: Path, *, ttl: int, trusted: bool = True) -> Iterator[Server]:
    """Run a server, which trusts the forwarder if *trusted*."""
    flags = {
        "ttl": ttl,
        "http": "127.0.0.1:0",
        "proxy-protocol": True,
        "trusted-forwarder": [f"{FORWARDER}/32"] if trusted else [],
    }
    with serving(folder, version(1), flags=flags) as server:
        yield server


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


# Caches that know clients


class Everybody:
    """All clients, which ask for everything in turns.

    ``asked`` counts their questions, ``kept`` those that a cache answered, ``expired`` those that it had to forward
    again; ``number`` is the cluster's version.
    """

    def __init__(self, server: Server, port: int, snapshot: Path, *, ttl: int) -> None:
        self._server, self._port, self._snapshot, self._ttl = server, port, snapshot, ttl
        self._changed = time.monotonic()
        self._kept: Counter[tuple[str, ...]] = Counter()
        self._expired: Counter[tuple[str, ...]] = Counter()
        self._known: set[tuple[str, ...]] = set()
        self.asked = self.kept = self.expired = 0
        self.number = 1
        self.wrong: list[str] = []

    def change(self) -> None:
        """Serve the next version of the cluster."""
        self.number += 1
        replace_file(self._snapshot, version(self.number))
        reload(self._server)
        self._changed = time.monotonic()
        self._kept.clear()
        self._expired.clear()

    def ask(self) -> bool:
        """Ask for everything twice; return whether each answer was cached, and expired, since the last change."""
        began = time.monotonic()
        for name, rtype, client in product(KEYS, TYPES, (*CLIENTS, *CLIENTS)):
            self._ask(name, rtype, client)
        wanted = {
            _shared(name, rtype, client)
            for name, rtype, (client, zone) in product(KEYS, TYPES, CLIENTS.items())
            if own(name, zone, number=self.number)
        }
        return wanted <= self._kept.keys() & self._expired.keys() and began > self._changed + self._ttl + ROUNDING

    def _ask(self, name: str, rtype: str, client: str) -> None:
        zone, before, sent = CLIENTS[client], computed(self._server), time.monotonic()
        found = told(self._port, client, name, rtype)
        self.asked += 1
        old = own(name, zone, rtype, number=self.number - 1)
        may_be_old = sent <= self._changed + (self._ttl if old else 0) + ROUNDING
        if found != own(name, zone, rtype, number=self.number) and not (may_be_old and found == old):
            self.wrong.append(f"{name} {rtype} for {client} in version {self.number}: {found}")
        key = _shared(name, rtype, client)
        if computed(self._server) == before:
            self.kept += 1
            self._kept[key] += 1
        elif found and key in self._known:
            self.expired += 1
            self._expired[key] += 1
        self._known.add(key)


def _shared(name: str, rtype: str, client: str) -> tuple[str, ...]:
    """Return a question, with its client if the answer depends on the client."""
    return (name, rtype) if name == FREE else (name, rtype, client)


@pytest.mark.parametrize("setup", ["unbound", "dnsdist"])
def test_cache_keyed_by_client(setup: str, tmp_path: Path) -> None:
    """Each client gets its own answer, from the cache too, and a change once the TTL ends.

    An empty answer to a client whose constraint is unmet is for that client alone, and is not cached.
    """
    with started(tmp_path, ttl=1) as server, SETUPS[setup].running(tmp_path / "forwarder", server) as forwarder:
        everybody = Everybody(server, forwarder.port, tmp_path / "cluster.yaml", ttl=1)
        for _ in range(CHANGES):
            everybody.change()
            until(lambda: everybody.ask() or everybody.wrong, "everything kept and expired", within=3 * PATIENCE)
            assert everybody.wrong == []


# All caches

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
                folder = tmp_path_factory.mktemp("server")
                running[key] = stack.enter_context(started(folder, ttl=ttl, trusted=trusted))
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


def _pair(port: int, one: str, other: str, name: str, rtype: str) -> tuple[WantedLocator, WantedLocator]:
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


def test_cache_in_front_of_another_forwarder(servers: Callable[[int, bool], Server], tmp_path: Path) -> None:
    """A forwarder names the program that asks it, so all clients of a cache in front are where that program is."""
    with (
        SETUPS["CoreDNS"].running(tmp_path / "forwarder", servers(5, True)) as behind,
        forwarders.running(NODELOCAL, tmp_path, behind.at) as forwarder,
    ):
        for client in CLIENTS:
            assert told(forwarder.port, client, SOFT) == own(SOFT, FORWARDERS_ZONE)


def test_cache_behind_the_one_that_names_clients(servers: Callable[[int, bool], Server], tmp_path: Path) -> None:
    """A CoreDNS that caches what another CoreDNS named mixes clients up, too."""
    behind = Setup(COREDNS, CACHE, other={f"{ECS_RULE}\n": "\n"})
    with (
        behind.running(tmp_path / "behind", servers(5, True)) as cache,
        forwarders.running(COREDNS, tmp_path, cache.at) as forwarder,
    ):
        pair = (forwarder.port, IN_A, IN_B, SOFT, "A")
        until(lambda: _pair(*pair) == (own(SOFT, "a"),) * 2, "mixed")


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


@pytest.mark.parametrize(
    ("trusted", "client", "name", "scope"),
    [
        (True, f"{IN_A}/32", SOFT, 32),
        (True, "127.1.3.0/24", SOFT, 24),
        (True, f"{NOWHERE}/32", HARD, 32),
        (True, "0.0.0.0/0", HARD, 0),
        (True, f"{IN_A}/32", FREE, 0),
        (False, f"{IN_B}/32", SOFT, 32),
        (False, "127.1.3.0/24", HARD, 24),
        (False, f"{IN_A}/32", FREE, 0),
    ],
)
def test_scope(servers: Callable[[int, bool], Server], trusted: bool, client: str, name: str, scope: int) -> None:
    """The scope is the source prefix length if the answer depends on the client's place, for any source."""
    address, _, length = client.partition("/")
    subnet = dns.edns.ECSOption(address, int(length))
    query = dns.message.make_query(f"{name}.shop.svc.cluster.local", "A", use_edns=0, options=[subnet])
    (found,) = (
        option for option in servers(LONG, trusted).ask(query).options if isinstance(option, dns.edns.ECSOption)
    )
    assert (found.address, found.srclen, found.scopelen) == (address, int(length), scope)


def test_subnets_shorter_than_a_host(servers: Callable[[int, bool], Server], tmp_path: Path) -> None:
    """Clients of one /24 get what its labels agree on, and a cache keeps them apart from others."""
    short = Setup(UNBOUND, UNHURRIED, other={"max-client-subnet-ipv4: 32": "max-client-subnet-ipv4: 24"})
    alone = {IN_A: "a", IN_B: "b", NEAR_A: ELSEWHERE, NEAR_B: ELSEWHERE}
    server = servers(LONG, True)
    with short.running(tmp_path / "forwarder", server) as forwarder:
        before = computed(server)
        for client, zone in (*alone.items(), *alone.items()):
            assert told(forwarder.port, client, SOFT) == own(SOFT, zone)
        assert computed(server) - before == len(alone) - 1
        for client, zone in alone.items():
            assert told(forwarder.port, client, HARD) == own(HARD, zone)
