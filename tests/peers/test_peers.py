# SPDX-License-Identifier: Apache-2.0

"""Other programs: dig and kdig ask topodns, unbound resolves through it, dnsperf asks at full speed."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import dns.edns
import dns.message
import dns.query
import dns.rcode
import pytest

from tests.kit import api_objects
from tests.kit.api_objects import external
from tests.kit.dns_queries import CLIENT_OPTION
from tests.kit.forwarders import UNBOUND, started
from tests.kit.in_memory import HAS_NATIVE
from tests.kit.this_machine import ROOT, free_port, needs_tool
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE
from tests.kit.wire_cluster import CLUSTER as WIRE_CLUSTER
from tests.kit.wire_cluster import FLAGS, FORWARDER, FREE, IN_A, IN_B, MANY, MISSING, NOWHERE, SERVED, WEB

RELOADS = 3

CLUSTER = """\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: None}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
endpoints:
- {addresses: [10.0.0.1]}
- {addresses: [10.0.0.2]}
"""


@pytest.mark.parametrize(("proto", "times"), [("udp", 40000), ("tcp", 10000)], ids=["udp", "tcp"])
def test_dnsperf_loses_nothing_while_snapshots_are_swapped(
    serve: Callable[..., Server], tmp_path: Path, proto: str, times: int
) -> None:
    """A new snapshot costs no query under load, and over TCP no connection."""
    dnsperf = needs_tool("dnsperf")
    server = serve(CLUSTER)
    (tmp_path / "queries").write_text("web.shop.svc.cluster.local A\nweb.shop.svc.cluster.local AAAA\n")
    to = ["-s", server.host, "-p", str(server.port), "-m", proto, "-c", "20", "-t", f"{PATIENCE:.0f}"]  # late, not lost
    load = subprocess.Popen(
        [dnsperf, *to, "-d", str(tmp_path / "queries"), "-n", str(times)],
        stdout=subprocess.PIPE,
        text=True,
    )
    for _ in range(RELOADS):
        seen = len(server.lines)
        server.send(signal.SIGHUP)
        server.wait_for("snapshot read again", after=seen)
    printed, _ = load.communicate(timeout=3 * PATIENCE)
    assert re.search(rf"Queries sent: +{2 * times}\b", printed), printed
    assert re.search(r"Queries lost: +0 ", printed), printed
    assert re.search(rf"Response codes: +NOERROR {2 * times} \(100.00%\)\n", printed), printed
    if proto == "tcp":
        assert re.search(r"Reconnections: +0\n", printed), printed


@pytest.mark.slow
def test_benchmark_measures_every_server_at_every_rate() -> None:
    """``make bench`` checks replies while it measures: a wrong reply of any server, unbound included, ends it."""
    needs_tool("unbound")
    needs_tool("go")
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "offering", "--seconds", "0.2", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20 * PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    costs = ran.stdout[ran.stdout.index("| CPU µs/query") : ran.stdout.index("| p50, p99")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in costs.splitlines() if ": ≤" not in line]
    titles = ["unbound", "CoreDNS, file", "topodns", "topodns, forwarded", "topodns on [::]"]
    assert [row[0] for row in rows if row][2:] == titles + ["topodns --native off"] * HAS_NATIVE, ran.stdout
    assert {len(row) for row in rows if row} == {7}, ran.stdout


# Tools that ask


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two loopback addresses as nodes, and one as a forwarder."""
    cluster = api_objects.listed(
        [*WIRE_CLUSTER, external("neighbour", f"free.{SERVED.replace('cluster.local', 'other.test')}")]
    )
    with serving(tmp_path_factory.mktemp("peers"), cluster, flags=FLAGS) as server:
        yield server


# What is asked, by what and from where, and what is printed: lines that must and lines that must not be there. Each
# row has octets that a program reads by code of its own: sections, types of records, options, flags, a cut.
PRINTED = [
    ("dig", IN_A, f"{WEB} +aaflag +adflag +cdflag +raflag +tcflag +zflag", ["flags: qr aa rd cd;"],
     ["must be zero", "MBZ"]),
    ("dig", IN_A, f"{WEB} +noedns", ["ADDITIONAL: 0", r"A\t10\.244\.1\.1$"], ["EDNS"]),
    ("dig", IN_A, f"{WEB} +cookie +expire +keepalive +padding=128 +nsid +subnet=192.0.2.7 +ednsopt=100:beef",
     [r'NSID: [0-9a-f ]+\("server-1"\)', "CLIENT-SUBNET: 192.0.2.7/32/32"],
     ["COOKIE", "EXPIRE", "KEEPALIVE", "PAD", "OPT=100"]),
    ("dig", IN_A, f"{WEB} +subnet=2001:db8::/56", ["CLIENT-SUBNET: 2001:db8::/56/56"], []),
    ("dig", IN_A, f"{WEB} +subnet=0", ["CLIENT-SUBNET: 0.0.0.0/0/0", "status: NOERROR"], []),
    ("dig", FORWARDER, f"{WEB} +ednsopt={CLIENT_OPTION}:7f000102", [r"10\.244\.2\.1"], [str(CLIENT_OPTION)]),
    ("dig", IN_A, f"{WEB} +ednsopt=8:0001200000", ["status: FORMERR", "EDNS: version: 0"], ["CLIENT-SUBNET"]),
    ("dig", IN_A, f"{WEB} +dnssec +ednsflags=0x4080", ["flags: do; udp: 1232"], ["MBZ"]),
    ("dig", IN_A, f"{WEB} +edns=1 +noednsneg", ["status: BADVERS", "ANSWER: 0", "EDNS: version: 0"], []),
    ("dig", IN_A, f"{WEB} +edns=1 +ednsneg", ["status: NOERROR", r"10\.244\.1\.1"], []),
    ("dig", NOWHERE, f"{WEB}", [r"EDE: 0 \(Other\): \(.*topology.kubernetes.io/zone", "ANSWER: 0"], []),
    ("dig", IN_A, f"{MANY} +ignore +bufsize=512", ["flags: qr aa tc rd;", "ANSWER: 28,"], []),
    ("dig", IN_A, f"{MANY} +bufsize=512", ["ANSWER: 250,", r"\(TCP\)"], []),
    ("dig", IN_A, f"{WEB} {FREE} +tcp +keepopen", [r"10\.244\.1\.1", r"10\.244\.2\.9"], []),
    ("dig", IN_A, f"{WEB} ANY", [r'HINFO\t"RFC8482" ""'], []),
    ("dig", IN_A, "-x fd00:244:1::9", [rf"PTR\s+fd00-244-1--9\.{FREE}\.$"], []),
    ("dig", IN_A, "-x 10.9.9.9", ["status: NXDOMAIN", r"in-addr\.arpa\.\t+5\tIN\tSOA"], []),
    ("dig", IN_B, f"_main._tcp.{WEB} SRV", [rf"SRV\t0 50 80 web-[12]\.{WEB}\.$", "ADDITIONAL: 3"], []),
    ("dig", IN_A, f"inside.{SERVED}", [rf"CNAME\t{FREE}\.$", r"A\t10\.244\.1\.9$", "ANSWER: 3,"], []),
    ("dig", IN_A, f"dangling.{SERVED}", ["status: NXDOMAIN", "CNAME", "SOA"], []),
    ("dig", IN_A, "dns-version.cluster.local TXT", [r'28800\s+IN\s+TXT\s+"1\.1\.0"$'], []),
    ("dig", IN_A, "cluster.local AXFR", ["; Transfer failed."], []),
    ("dig", IN_A, f"{WEB} +opcode=15", ["opcode: RESERVED15, status: NOTIMP"], []),
    ("dig", IN_A, "+header-only", ["status: FORMERR", "QUERY: 0"], []),
    ("kdig", FORWARDER, f"{WEB} +subnet={IN_B} +nsid +ednsopt=100:beef +padding=128 +tcp",
     [f"CLIENT-SUBNET: {IN_B}/32/32", '"server-1"', r"10\.244\.2\.1", r"\(TCP\)"], []),
    ("kdig", NOWHERE, f"{WEB} +edns", [r"EDE: 0 \(Other\): '.*topology.kubernetes.io/zone"], []),
    ("kdig", IN_A, f"{WEB} +edns=1", ["status: BADVERS", "Version: 0;"], []),
    ("kdig", IN_A, f"{MANY} +bufsize=512 +ignore", ["Flags: qr aa tc rd;", "ANSWER: 28;"], []),
    ("kdig", IN_A, f"{WEB} SRV", [rf"SRV\t0 100 80 web-0\.{WEB}\.$", "ADDITIONAL: 1"], []),
    ("kdig", IN_A, f"inside.{SERVED}", [rf"CNAME\t{FREE}\.$", r"A\t10\.244\.1\.9$"], []),
]  # fmt: skip
FAULTS = {
    "dig": "malformed|bad packet|extra bytes|mismatch|BADCOOKIE",
    "kdig": ";; (WARNING: (?!truncated)|ERROR)|malformed",
}


@pytest.mark.parametrize(
    ("tool", "source", "arguments", "printed", "missing"), PRINTED, ids=[f"{row[0]} {row[2]}" for row in PRINTED]
)
def test_tools_read_our_replies(
    server: Server, tool: str, source: str, arguments: str, printed: list[str], missing: list[str]
) -> None:
    """BIND's dig and Knot's kdig print what the reply should hold, without warnings."""
    opening = "+nocmd " if tool == "dig" else ""
    output = told(needs_tool(tool), f"{opening}@{server.host} -p {server.port} -b {source} {arguments}")
    for pattern in printed:
        assert re.search(pattern, output, re.MULTILINE), (pattern, output)
    for pattern in [*missing, FAULTS[tool]]:
        assert not re.search(pattern, output), (pattern, output)


def told(program: str, arguments: str) -> str:
    """Run a program to its end; return what it printed."""
    ran = subprocess.run(
        [program, *arguments.split()],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("flags", "told"), [({}, [socket.gethostname().encode()]), ({"nsid": "off"}, [])], ids=["by default", "off"]
)
def test_who_asks_is_told_which_server_answers(
    serve: Callable[..., Server], flags: dict[str, str], told: list[bytes]
) -> None:
    """RFC 5001: without ``--nsid``, NSID is the host's name; ``off`` disables it."""
    query = dns.message.make_query(WEB, "A", options=[dns.edns.NSIDOption(b"")])
    assert [option.to_wire() for option in serve(CLUSTER, flags=flags).ask(query).options] == told


# Unbound before us

CONFIGURATION = """\
server:
  verbosity: 4
  interface: 127.0.0.1@{port}
  outgoing-interface: {source}
  username: ""
  chroot: ""
  directory: "{folder}"
  pidfile: ""
  use-syslog: no
  do-daemonize: no
  num-threads: 1
  module-config: "iterator"
  do-not-query-localhost: no
  qname-minimisation: yes
  qname-minimisation-strict: {strict}
  use-caps-for-id: yes
  harden-below-nxdomain: yes
  harden-short-bufsize: yes
  unblock-lan-zones: yes
  insecure-lan-zones: yes
  local-zone: "test." nodefault
  rrset-roundrobin: no
remote-control:
  control-enable: no
{zones}
"""


class Resolved(NamedTuple):
    """The result of resolving a name."""

    rcode: str
    data: set[str] | int = set()


# Parents before children: what is learnt of a name must not hide the names beneath it (RFC 8020, RFC 9156).
THROUGH = [
    ("cluster.local", "A", Resolved("NOERROR")),
    ("svc.cluster.local", "A", Resolved("NOERROR")),
    (SERVED, "A", Resolved("NOERROR")),
    ("nobody.svc.cluster.local", "A", Resolved("NXDOMAIN")),
    (f"web.{SERVED}".replace("shop", "nobody"), "A", Resolved("NXDOMAIN")),
    (MISSING, "A", Resolved("NXDOMAIN")),
    (f"a.{MISSING}", "SRV", Resolved("NXDOMAIN")),
    (WEB, "A", Resolved("NOERROR", {"10.244.1.1"})),
    (WEB, "AAAA", Resolved("NOERROR")),
    (WEB, "TXT", Resolved("NOERROR")),
    (WEB, "SRV", Resolved("NOERROR", {f"0 100 80 web-0.{WEB}."})),
    (f"_tcp.{WEB}", "A", Resolved("NOERROR")),
    (f"_tcp.{WEB}", "SRV", Resolved("NOERROR")),
    (f"_udp.{WEB}", "SRV", Resolved("NXDOMAIN")),
    (f"_main._tcp.{WEB}", "SRV", Resolved("NOERROR", {f"0 100 80 web-0.{WEB}."})),
    (f"_main._tcp.{WEB}", "A", Resolved("NOERROR")),
    (f"_nope._tcp.{WEB}", "SRV", Resolved("NXDOMAIN")),
    (f"web-1.{WEB}", "A", Resolved("NOERROR", {"10.244.2.1"})),
    (FREE, "A", Resolved("NOERROR", {"10.244.1.9", "10.244.2.9"})),
    (FREE, "AAAA", Resolved("NOERROR", {"fd00:244:1::9"})),
    (f"10-244-1-9.{FREE}", "A", Resolved("NOERROR", {"10.244.1.9"})),
    (f"empty.{SERVED}", "A", Resolved("NXDOMAIN")),
    (f"api.{SERVED}", "A", Resolved("NOERROR", {"10.96.0.20"})),
    (f"api.{SERVED}", "SRV", Resolved("NOERROR", {f"0 100 443 api.{SERVED}."})),
    (f"_https._tcp.api.{SERVED}", "SRV", Resolved("NOERROR", {f"0 100 443 api.{SERVED}."})),
    (f"_zone.{WEB}", "A", Resolved("NOERROR")),
    (f"pin._zone.{WEB}", "A", Resolved("NOERROR")),
    (f"a.pin._zone.{WEB}", "A", Resolved("NOERROR", {"10.244.1.1"})),
    (f"b.pin._zone.{WEB}", "A", Resolved("NOERROR", {"10.244.2.1", "10.244.2.2"})),
    (f"z.pin._zone.{WEB}", "A", Resolved("NOERROR")),
    (f"b.prefer._zone.{WEB}", "A", Resolved("NOERROR", {"10.244.2.1", "10.244.2.2"})),
    (f"z.prefer._zone.{WEB}", "A", Resolved("NOERROR", {"10.244.1.1", "10.244.2.1", "10.244.2.2"})),
    (f"inside.{SERVED}", "A", Resolved("NOERROR", {f"{FREE}.", "10.244.1.9", "10.244.2.9"})),
    (f"inside.{SERVED}", "AAAA", Resolved("NOERROR", {f"{FREE}.", "fd00:244:1::9"})),
    (f"inside.{SERVED}", "CNAME", Resolved("NOERROR", {f"{FREE}."})),
    (f"neighbour.{SERVED}", "A", Resolved("NOERROR", {"free.shop.svc.other.test.", "10.244.1.9", "10.244.2.9"})),
    (f"dangling.{SERVED}", "A", Resolved("NXDOMAIN", {f"{MISSING}."})),
    ("dns-version.cluster.local", "TXT", Resolved("NOERROR", {'"1.1.0"'})),
    ("dns.cluster.local", "A", Resolved("NOERROR")),
    ("ns.dns.cluster.local", "A", Resolved("NOERROR", {"192.0.2.53"})),
    (MANY, "A", Resolved("NOERROR", 250)),
    (MANY, "SRV", Resolved("NOERROR", 250)),
    ("10.in-addr.arpa", "PTR", Resolved("NOERROR")),
    ("244.10.in-addr.arpa", "PTR", Resolved("NOERROR")),
    ("1.244.10.in-addr.arpa", "PTR", Resolved("NOERROR")),
    ("1.1.244.10.in-addr.arpa", "PTR", Resolved("NOERROR", {f"web-0.{WEB}."})),
    ("20.0.96.10.in-addr.arpa", "PTR", Resolved("NOERROR", {f"api.{SERVED}."})),
    ("9.9.9.10.in-addr.arpa", "PTR", Resolved("NXDOMAIN")),
]


@pytest.mark.parametrize("kind", ["stub", "forward"])
def test_every_name_resolves_through_unbound(server: Server, tmp_path: Path, kind: str) -> None:
    """With minimised names (RFC 9156), mixed case (0x20) and NXDOMAIN cut (RFC 8020), twice.

    Replies keep the case, and empty non-terminals exist, so unbound needs no fallback.
    """
    port, strict = free_port(), "yes" if kind == "stub" else "no"
    with ExitStack() as stack:
        other = stack.enter_context(
            serving(tmp_path, api_objects.listed(WIRE_CLUSTER), flags={**FLAGS, "zone": ["other.test"]})
        )
        servers = {"cluster.local": server, "10.in-addr.arpa": server, "other.test": other}
        zones = "\n".join(
            f"{kind}-zone:\n  name: {zone}\n  {kind}-addr: {asked.host}@{asked.port}" for zone, asked in servers.items()
        )
        text = CONFIGURATION.format(port=port, folder=tmp_path, source=IN_A, zones=zones, strict=strict)
        log = tmp_path / "unbound.log"
        stack.enter_context(started(UNBOUND, tmp_path, text, lambda: "start of service" in log.read_text("latin-1")))
        for name, qtype, expected in [*THROUGH, *reversed(THROUGH)]:
            reply, _ = dns.query.udp_with_fallback(
                dns.message.make_query(name, qtype), "127.0.0.1", port=port, timeout=PATIENCE
            )
            data = {row.to_text() for rrset in reply.answer for row in rrset}
            shown = len(data) if isinstance(expected.data, int) else data
            assert (dns.rcode.to_text(reply.rcode()), shown) == expected, (name, qtype, reply.to_text())
        said = log.read_text("latin-1")
        assert "info: response for " in said
        assert "apsforid" not in said and "lame" not in said.lower()
