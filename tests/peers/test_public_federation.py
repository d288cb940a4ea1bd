# SPDX-License-Identifier: Apache-2.0

"""A public zone of federated names: resolvers outside of all clusters in front of topodns, each with its own cache.

The clusters are the example's. Clients are loopback addresses, and ``--subnet`` says in which region they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import dns.rcode
import pytest

from dnsserver.tools.corefile.stub_blocks import stub_block
from tests.kit.forwarders import BIND, COREDNS, DNSDIST, POWERDNS, UNBOUND, Forwarder, at, running, started, where
from tests.kit.network_namespaces import loopback_with
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE

UNHURRIED = f"infra-cache-min-rtt: {PATIENCE * 1000:.0f}\n"  # so that unbound asks nothing twice on a busy machine

FOLDER = ROOT / "examples" / "clusters"
ZONE = "fed.example.com"
WEB = f"web.shop.{ZONE}"
EUROPE, CENTRAL, EAST = "203.0.113.1", "203.0.113.2", "203.0.113.3"  # load balancers
REGION = "topology.kubernetes.io/region"
NEAREST = {"127.7.0.1": [CENTRAL, EUROPE, EAST], "127.9.0.1": [EAST, EUROPE, CENTRAL]}  # then the spares, in order
ELSEWHERE = "127.8.0.1"
NAME_SERVER = "192.0.2.53"
ROUNDS = 4
FLAGS = {
    "zone": [],
    "cluster-name": "europe",
    "cluster": [f"{name}={FOLDER / name}.yaml" for name in ("us-central", "us-east")],
    "federation": ZONE,
    "subnet": [f"127.7.0.0/16={REGION}=us-central1", f"127.9.0.0/16={REGION}=us-east1"],
    "trusted-forwarder": "127.0.0.1/32",
    "ns-address": NAME_SERVER,
    "ttl": 60,
    "http": "127.0.0.1:0",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server that answers for federated names alone."""
    with serving(tmp_path_factory.mktemp("server"), FOLDER / "europe.yaml", flags=FLAGS) as running:
        yield running


@pytest.fixture(scope="module", params=[UNBOUND, DNSDIST, COREDNS])
def resolver(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Forwarder]:
    """Run each program with what ``topodns corefile --federation`` prints for it."""
    folder, extra = tmp_path_factory.mktemp("resolver"), UNHURRIED if request.param == UNBOUND else ""
    with running(request.param, folder, where(server), zones=(ZONE,), federated=True, extra=extra) as program:
        yield program


def ask(port: int, client: str, name: str, rtype: str = "A") -> list[str]:
    """Return the data of the records in the answer, in order."""
    place = {"port": port, "source": client, "timeout": PATIENCE, "ignore_unexpected": True}
    reply = dns.query.udp(dns.message.make_query(name, rtype), "127.0.0.1", **place)
    assert reply.rcode() == dns.rcode.NOERROR
    return [str(row) for rrset in reply.answer for row in rrset]


def answered(server: Server) -> float:
    """Return how many questions for Services have reached topodns."""
    return sum(number for key, number in server.metrics().items() if key[0] == "topodns_answers_total")


def test_each_client_has_its_nearest_first_and_the_spares_in_order(server: Server, resolver: Forwarder) -> None:
    """Also from a cache, which has each client's own answer. Elsewhere, nothing is nearer."""
    for client, expected in NEAREST.items():
        assert ask(resolver.port, client, WEB) == expected
    before = answered(server)
    for _ in range(ROUNDS):
        for client, expected in NEAREST.items():
            assert ask(resolver.port, client, WEB) == expected
    assert answered(server) - before == (0 if resolver.name != COREDNS else ROUNDS * len(NEAREST))
    assert {*ask(resolver.port, ELSEWHERE, WEB)} == {EUROPE, CENTRAL, EAST}


def test_powerdns_names_clients_and_shuffles_addresses(server: Server, tmp_path: Path) -> None:
    """Each client gets its own answer; the order is that of the priorities in SRV records alone."""
    with running(POWERDNS, tmp_path, where(server), zones=[ZONE], federated=True) as forwarder:
        for client, expected in (*NEAREST.items(), *NEAREST.items()):
            records = ask(forwarder.port, client, f"_http._tcp.{WEB}", "SRV")
            labels = [record.split()[3].partition(".")[0] for record in sorted(records, key=priority)]
            assert labels == [text.replace(".", "-") for text in expected]
            assert {*ask(forwarder.port, client, WEB)} == {*expected}


def priority(record: str) -> int:
    return int(record.split()[0])


# A delegation

PARENT, DELEGATED_TO, RESOLVER = "127.0.0.2", "127.0.0.53", "127.0.0.1"
PARENT_ZONE = f"""
$TTL 60
@ SOA ns hostmaster 1 7200 1800 86400 60
@ NS ns
ns A {PARENT}
{ZONE}. NS ns.dns.{ZONE}.
ns.dns.{ZONE}. A {DELEGATED_TO}
"""
PARENT_SERVER = f"""
options {{
directory "%s"; pid-file none; recursion no; dnssec-validation no; listen-on {{ {PARENT}; }}; listen-on-v6 {{ none; }};
}};
controls {{ }};
zone "example.com" {{ type primary; file "example.com"; }};
"""
RESOLVING = f"""
server:
interface: {RESOLVER}
username: ""
chroot: ""
directory: "%s"
pidfile: ""
use-syslog: no
do-daemonize: no
domain-insecure: "example.com"
access-control: 127.0.0.0/8 allow
{UNHURRIED}
remote-control:
control-enable: no
stub-zone:
name: "example.com"
stub-addr: {PARENT}
"""


def answers(address: str, name: str, port: int = 53) -> bool:
    try:
        query = dns.message.make_query(name, "SOA")
        return dns.query.udp(query, address, port=port, timeout=1).rcode() == dns.rcode.NOERROR
    except (dns.exception.DNSException, OSError):
        return False


def test_a_resolver_follows_the_delegation(tmp_path: Path) -> None:
    """From the parent zone to ``--ns-address``, at port 53. It needs what is printed, but no stub zone."""
    flags = {**FLAGS, "listen": [f"{DELEGATED_TO}:53"], "ns-address": DELEGATED_TO, "http": "off"}
    printed = stub_block(UNBOUND, [at(DELEGATED_TO, 53)], (), federation=[ZONE]).partition("stub-zone:")[0]
    (tmp_path / "example.com").write_text(PARENT_ZONE)
    with ExitStack() as stack:
        stack.enter_context(stack.enter_context(loopback_with(PARENT)).inside())
        stack.enter_context(serving(tmp_path, FOLDER / "europe.yaml", flags=flags))
        configuration = PARENT_SERVER % tmp_path
        stack.enter_context(started(BIND, tmp_path, configuration, lambda: answers(PARENT, "example.com")))
        configuration = RESOLVING % tmp_path + printed
        stack.enter_context(started(UNBOUND, tmp_path, configuration, lambda: answers(RESOLVER, ZONE)))
        for client, expected in (*NEAREST.items(), *NEAREST.items()):
            assert ask(53, client, WEB) == expected
