# SPDX-License-Identifier: Apache-2.0

"""A real HAProxy finds its servers by topodns: they stay as long as the endpoints do, whatever a UDP reply holds.

HAProxy takes the servers of a truncated SRV reply for all there are, and asks by TCP only where its configuration says
so. The cluster does not change here: so no server may change, either.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import dns.flags
import dns.message
import dns.query
import pytest

from tests.kit.api_objects import Item, endpoint, endpoint_slice, listed, namespace, service
from tests.kit.programs import Daemon
from tests.kit.this_machine import needs_tool
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE

PORTS = (("grpc", 9000, "TCP"),)
SERVERS = 320  # HAProxy's slots: more than endpoints
RESOLUTIONS = 12  # in which the servers must stay the same


def headless(name: str, net: int, count: int) -> list[Item]:
    """Return a Service with *count* endpoints that have host names, in slices of a hundred."""
    rows = [endpoint(f"10.{net}.{row // 250}.{row % 250 + 1}", hostname=f"{name}-{row}") for row in range(count)]
    slices = [endpoint_slice(name, row, rows[row : row + 100], ports=PORTS) for row in range(0, count, 100)]
    return [service(name, ports=PORTS), *slices]


CLUSTER = [namespace("shop"), *headless("thirty", 60, 30), *headless("many", 61, 250)]


@pytest.fixture(scope="module", params=["on", "off"], ids=["native", "python"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run topodns, with native code if it is installed, and without."""
    flags = {"native": "off"} if request.param == "off" else {}
    with serving(tmp_path_factory.mktemp("topodns"), listed(CLUSTER), flags=flags) as server:
        yield server


class Balancer(NamedTuple):
    """A running HAProxy, which tells of itself at its socket."""

    daemon: Daemon
    path: Path

    def says(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(str(self.path))
            sock.sendall(f"{command}\n".encode())
            said = b""
            while octets := sock.recv(65536):
                said += octets
        return said.decode()

    def servers(self) -> frozenset[str]:
        """Return the names of the servers that it has found addresses of; or these addresses if all have one name."""
        rows = [line.split() for line in self.says("show servers state web").splitlines()]
        columns = next(row[1:] for row in rows if row[:1] == ["#"])
        named = [dict(zip(columns, row, strict=True)) for row in rows if len(row) == len(columns) and row[0] != "#"]
        found = {row["srv_addr"]: row["srv_fqdn"] for row in named if row["srv_addr"] not in ("-", "0.0.0.0")}
        names = frozenset(found.values())
        return names if len(names) > 1 else frozenset(found)

    def resolved(self) -> int:
        """Return how many replies it has made use of."""
        (number,) = re.findall(r"^\s+valid:\s+(\d+)$", self.says("show resolvers topodns"), re.MULTILINE)
        return int(number)

    def truncated(self) -> int:
        """Return how many replies it has refused because they were truncated."""
        (number,) = re.findall(r"^\s+truncated:\s+(\d+)$", self.says("show resolvers topodns"), re.MULTILINE)
        return int(number)


@contextmanager
def balancing(folder: Path, server: Server, name: str, *, proto: str = "", size: int = 1232) -> Iterator[Balancer]:
    """Run HAProxy with the servers that *name* has, asked by *proto* (UDP, or ``tcp@``)."""
    program, config, path = needs_tool("haproxy"), folder / "haproxy.cfg", folder / "haproxy.sock"
    config.write_text(f"""
global
    stats socket {path}
defaults
    timeout connect 1s
    timeout client 1s
    timeout server 1s
resolvers topodns
    nameserver dns {proto}{server.host}:{server.port}
    accepted_payload_size {size}
    resolve_retries 3
    timeout resolve 20ms
    timeout retry 500ms
    hold valid 20ms
backend web
    server-template web {SERVERS} {name} resolvers topodns resolve-prefer ipv4 init-addr none
""")
    daemon = Daemon.start((program, "-db", "-f", str(config)), folder, name="haproxy")
    try:
        daemon.until(path.exists)
        yield Balancer(daemon, path)
    finally:
        daemon.end()


def answered(server: Server, name: str, *, tcp: bool, size: int) -> tuple[frozenset[str], bool]:
    """Return what topodns answers to a client at HAProxy's address, the targets or addresses; and whether it has TC."""
    name, _, port = name.partition(":")
    query = dns.message.make_query(name, "A" if port else "SRV", use_edns=0, payload=size)
    ask = dns.query.tcp if tcp else dns.query.udp
    reply = ask(query, server.host, port=server.port, timeout=PATIENCE)
    rows = [row for rrset in reply.answer for row in rrset]
    found = frozenset(str(row if port else row.target).rstrip(".") for row in rows)
    return found, bool(reply.flags & dns.flags.TC)


def assert_steady(balancer: Balancer, expected: frozenset[str]) -> None:
    """HAProxy finds the *expected* servers, and after that it has them, and no others, however often it asks."""
    balancer.daemon.until(lambda: balancer.servers() == expected)
    for _ in range(RESOLUTIONS):
        before = balancer.resolved()
        balancer.daemon.until(lambda before=before: balancer.resolved() > before)
        assert balancer.servers() == expected


FOUND: Sequence[tuple[str, str, str, int, int | None]] = [
    # id, what is asked, "tcp@" or nothing, accepted_payload_size, how many servers; None if the reply is truncated
    ("SRV, truncated at 512", "_grpc._tcp.thirty.shop.svc.cluster.local", "", 512, None),
    ("SRV, truncated at 1232", "_grpc._tcp.many.shop.svc.cluster.local", "", 1232, None),
    ("SRV, truncated although 8192 are accepted", "_grpc._tcp.many.shop.svc.cluster.local", "", 8192, None),
    ("SRV, whole", "_grpc._tcp.thirty.shop.svc.cluster.local", "tcp@", 65535, 30),
    ("SRV of many, whole", "_grpc._tcp.many.shop.svc.cluster.local", "tcp@", 65535, 250),
    ("A, whole", "thirty.shop.svc.cluster.local:80", "", 1232, 30),
    ("A of many, whole", "many.shop.svc.cluster.local:80", "tcp@", 65535, 250),
]


@pytest.mark.parametrize(("name", "proto", "size", "count"), [row[1:] for row in FOUND], ids=[row[0] for row in FOUND])
def test_servers_stay_while_the_cluster_does(
    server: Server, tmp_path: Path, name: str, proto: str, size: int, count: int | None
) -> None:
    """However often HAProxy asks, it finds the same; with ``tcp@`` it finds all."""
    expected, truncated = answered(server, name, tcp=bool(proto), size=size)
    assert truncated == (count is None) and len(expected) == (count or len(expected))
    with balancing(tmp_path, server, name, proto=proto, size=size) as balancer:
        assert_steady(balancer, expected)


def test_larger_datagrams_help(tmp_path: Path) -> None:
    """HAProxy refuses a truncated A reply; ``--max-udp-size`` and ``accepted_payload_size`` make it whole."""
    name = "many.shop.svc.cluster.local:80"
    for flags, finds in (({}, False), ({"max-udp-size": 4096}, True)):
        folder = tmp_path / str(finds)
        folder.mkdir()
        with (
            serving(folder, listed(CLUSTER), flags=flags) as server,
            balancing(folder, server, name, size=8192) as balancer,
        ):
            expected, truncated = answered(server, name, tcp=False, size=8192)
            assert truncated != finds
            if finds:
                assert len(expected) == 250
                assert_steady(balancer, expected)
            else:
                balancer.daemon.until(lambda: balancer.truncated() > 2)
                assert not balancer.servers()
