# SPDX-License-Identifier: Apache-2.0

"""Other programs: dig, kdig and dnspython ask topodns, unbound resolves through it, dnsperf asks at full speed."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import dns.edns
import dns.exception
import dns.message
import dns.query
import dns.rcode
import dns.resolver
import pytest

from tests.kit import api_objects
from tests.kit.api_objects import external
from tests.kit.dns_queries import CLIENT_OPTION
from tests.kit.in_memory import HAS_NATIVE
from tests.kit.programs import Daemon
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


# What is asked, and what is printed: from where, arguments, lines that must and lines that must not be there.
DIG = [
    ("plain", IN_A, f"{WEB}",
     ["status: NOERROR", "flags: qr aa rd;", r"EDNS: version: 0, flags:; udp: 1232", r"A\t10\.244\.1\.1$"], ["COOKIE"]),
    ("no recursion", IN_A, f"{WEB} +norec", ["flags: qr aa;"], ["recursion requested"]),
    ("every flag", IN_A, f"{WEB} +aaflag +adflag +cdflag +raflag +tcflag +zflag", ["flags: qr aa rd cd;"],
     ["must be zero", "MBZ"]),
    ("no EDNS", IN_A, f"{WEB} +noedns", ["ADDITIONAL: 0", "10\\.244\\.1\\.1"], ["EDNS"]),
    ("NSID", IN_A, f"{WEB} +nsid", [r'NSID: [0-9a-f ]+\("server-1"\)'], []),
    ("NSID by TCP", IN_A, f"{WEB} +nsid +tcp", [r'NSID: [0-9a-f ]+\("server-1"\)', r"\(TCP\)"], []),
    ("client subnet of a host", IN_A, f"{WEB} +subnet=192.0.2.7", ["CLIENT-SUBNET: 192.0.2.7/32/32"], []),
    ("client subnet of a network", IN_A, f"{WEB} +subnet=192.0.2.0/24", ["CLIENT-SUBNET: 192.0.2.0/24/24"], []),
    ("client subnet of IPv6", IN_A, f"{WEB} +subnet=2001:db8::/56", ["CLIENT-SUBNET: 2001:db8::/56/56"], []),
    ("client subnet without effect", IN_A, f"{FREE} +subnet=192.0.2.0/24", ["CLIENT-SUBNET: 192.0.2.0/24/0"], []),
    ("client subnet 0", IN_A, f"{WEB} +subnet=0", ["CLIENT-SUBNET: 0.0.0.0/0/0", "status: NOERROR"], []),
    ("client subnet of a forwarder", FORWARDER, f"{WEB} +subnet={IN_B}",
     [r"10\.244\.2\.1", f"CLIENT-SUBNET: {IN_B}/32/32"], []),
    ("client option of a forwarder", FORWARDER, f"{WEB} +ednsopt={CLIENT_OPTION}:7f000102", [r"10\.244\.2\.1"],
     [str(CLIENT_OPTION)]),
    ("unknown option", IN_A, f"{WEB} +ednsopt=100:beef", ["status: NOERROR"], ["OPT=100"]),
    ("client subnet that is malformed", IN_A, f"{WEB} +ednsopt=8:0001200000",
     ["status: FORMERR", "EDNS: version: 0"], ["CLIENT-SUBNET"]),
    ("every option", IN_A, f"{WEB} +cookie +expire +keepalive +padding=128 +nsid +subnet=192.0.2.7",
     ["NSID", "CLIENT-SUBNET"], ["COOKIE", "EXPIRE", "KEEPALIVE", "PAD"]),
    ("DO", IN_A, f"{WEB} +dnssec", ["flags: do; udp: 1232"], []),
    ("unknown EDNS flags", IN_A, f"{WEB} +ednsflags=0x4080", ["flags:; udp: 1232"], ["MBZ"]),
    ("EDNS 1", IN_A, f"{WEB} +edns=1 +noednsneg", ["status: BADVERS", "ANSWER: 0", "EDNS: version: 0"], []),
    ("EDNS 1, then 0", IN_A, f"{WEB} +edns=1 +ednsneg", ["status: NOERROR", r"10\.244\.1\.1"], []),
    ("extended error", NOWHERE, f"{WEB}", [r"EDE: 0 \(Other\): \(.*topology.kubernetes.io/zone", "ANSWER: 0"], []),
    ("cut", IN_A, f"{MANY} +ignore +bufsize=512", ["flags: qr aa tc rd;", "ANSWER: 28,"], []),
    ("cut, then by TCP", IN_A, f"{MANY} +bufsize=512", ["ANSWER: 250,", r"\(TCP\)"], []),
    ("cut without EDNS", IN_A, f"{MANY} +ignore +noedns", ["flags: qr aa tc rd;", "ANSWER: 29,"], []),
    ("two on a connection", IN_A, f"{WEB} {FREE} +tcp +keepopen", [r"10\.244\.1\.1", r"10\.244\.2\.9"], []),
    ("ANY", IN_A, f"{WEB} ANY", [r'HINFO\t"RFC8482" ""'], []),
    ("ANY by UDP", IN_A, f"{WEB} ANY +notcp", [r'HINFO\t"RFC8482" ""', r"\(UDP\)"], []),
    ("PTR of a Service", IN_A, "-x 10.96.0.20", [rf"PTR\tapi\.{SERVED}\.$"], []),
    ("PTR of an endpoint", IN_A, "-x 10.244.1.1", [rf"PTR\tweb-0\.{WEB}\.$"], []),
    ("PTR of an IPv6 endpoint", IN_A, "-x fd00:244:1::9", [rf"PTR\s+fd00-244-1--9\.{FREE}\.$"], []),
    ("PTR of nobody", IN_A, "-x 10.9.9.9", ["status: NXDOMAIN", r"in-addr\.arpa\.\t+5\tIN\tSOA"], []),
    ("SRV", IN_B, f"_main._tcp.{WEB} SRV", [rf"SRV\t0 50 80 web-[12]\.{WEB}\.$", "ADDITIONAL: 3"], []),
    ("ExternalName", IN_A, f"inside.{SERVED}", [rf"CNAME\t{FREE}\.$", r"A\t10\.244\.1\.9$", "ANSWER: 3,"], []),
    ("ExternalName outside", IN_A, f"outside.{SERVED} AAAA", [r"CNAME\twww\.example\.com\.$", "ANSWER: 1,"], []),
    ("ExternalName to nobody", IN_A, f"dangling.{SERVED}", ["status: NXDOMAIN", "CNAME", "SOA"], []),
    ("zonal, pinned", NOWHERE, f"b.pin._zone.{WEB}", [r"10\.244\.2\.[12]", "ANSWER: 2,"], []),
    ("zonal, preferred", NOWHERE, f"z.prefer._zone.{WEB}", ["ANSWER: 3,"], []),
    ("version", IN_A, "dns-version.cluster.local TXT", [r'28800\s+IN\s+TXT\s+"1\.1\.0"$'], []),
    ("SOA", IN_A, "cluster.local SOA",
     [r"SOA\tns\.dns\.cluster\.local\. hostmaster\.cluster\.local\. \d+ 7200 1800 86400 5$"], []),
    ("unknown type", IN_A, f"{WEB} TYPE1000", ["status: NOERROR", "ANSWER: 0, AUTHORITY: 1,"], []),
    ("class", IN_A, "version.bind TXT CH", ["status: REFUSED"], []),
    ("outside", IN_A, "www.example.com", ["status: REFUSED", "flags: qr rd;"], []),
    ("AXFR", IN_A, "cluster.local AXFR", ["; Transfer failed."], []),
    ("NOTIFY", IN_A, f"{WEB} +opcode=NOTIFY", ["opcode: NOTIFY, status: NOTIMP"], []),
    ("opcode 15", IN_A, f"{WEB} +opcode=15", ["opcode: RESERVED15, status: NOTIMP"], []),
    ("a header only", IN_A, "+header-only", ["status: FORMERR", "QUERY: 0"], []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "arguments", "printed", "missing"), [row[1:] for row in DIG], ids=[row[0] for row in DIG]
)
def test_dig_reads_our_replies(
    server: Server, source: str, arguments: str, printed: list[str], missing: list[str]
) -> None:
    """BIND's dig prints what the reply should hold, without warnings."""
    output = told(needs_tool("dig"), f"+nocmd @{server.host} -p {server.port} -b {source} {arguments}")
    for pattern in printed:
        assert re.search(pattern, output, re.MULTILINE), (pattern, output)
    for pattern in [*missing, "malformed", "bad packet", "extra bytes", "mismatch", "BADCOOKIE"]:
        assert not re.search(pattern, output), (pattern, output)


KDIG = [
    ("plain", IN_A, f"{WEB}", [r"A\t10\.244\.1\.1$", "Flags: qr aa rd;"]),
    ("NSID", IN_A, f"{WEB} +nsid", [r'NSID: [0-9A-F]+ "server-1"']),
    ("client subnet", IN_A, f"{WEB} +subnet=192.0.2.0/24", ["CLIENT-SUBNET: 192.0.2.0/24/24"]),
    ("client subnet, NSID and others", FORWARDER, f"{WEB} +subnet={IN_B} +nsid +ednsopt=100:beef +padding=128 +tcp",
     [f"CLIENT-SUBNET: {IN_B}/32/32", '"server-1"', r"10\.244\.2\.1", r"\(TCP\)"]),
    ("extended error", NOWHERE, f"{WEB} +edns", [r"EDE: 0 \(Other\): '.*topology.kubernetes.io/zone"]),
    ("EDNS 1", IN_A, f"{WEB} +edns=1", ["status: BADVERS", "Version: 0;"]),
    ("cut", IN_A, f"{MANY} +bufsize=512 +ignore", ["Flags: qr aa tc rd;", "ANSWER: 28;"]),
    ("cut, then by TCP", IN_A, f"{MANY} +noedns", ["ANSWER: 250;", r"\(TCP\)"]),
    ("ANY", IN_A, f"{WEB} ANY", [r'HINFO\t"RFC8482" ""']),
    ("PTR", IN_A, "-x 10.96.0.20", [rf"PTR\tapi\.{SERVED}\.$"]),
    ("SRV", IN_A, f"{WEB} SRV", [rf"SRV\t0 100 80 web-0\.{WEB}\.$", "ADDITIONAL: 1"]),
    ("ExternalName", IN_A, f"inside.{SERVED}", [rf"CNAME\t{FREE}\.$", r"A\t10\.244\.1\.9$"]),
    ("outside", IN_A, "www.example.com", ["status: REFUSED"]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "arguments", "printed"), [row[1:] for row in KDIG], ids=[row[0] for row in KDIG])
def test_kdig_reads_our_replies(server: Server, source: str, arguments: str, printed: list[str]) -> None:
    """Knot's kdig prints the same."""
    output = told(needs_tool("kdig"), f"@{server.host} -p {server.port} -b {source} {arguments}")
    for pattern in printed:
        assert re.search(pattern, output, re.MULTILINE), (pattern, output)
    assert not re.search(";; (WARNING: (?!truncated)|ERROR)|malformed", output), output


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


NAMED_BY = [({}, socket.gethostname().encode()), ({"nsid": "here"}, b"here"), ({"nsid": "off"}, None)]


@pytest.mark.parametrize(("flags", "expected"), NAMED_BY, ids=["by default", "given", "off"])
def test_who_asks_is_told_which_server_answers(
    serve: Callable[..., Server], flags: dict[str, str], expected: bytes | None
) -> None:
    """RFC 5001: NSID is ``--nsid``, or the host's name; ``off`` disables it."""
    server = serve(CLUSTER, flags=flags)
    query = dns.message.make_query(WEB, "A", options=[dns.edns.NSIDOption(b"")])
    for tcp in (False, True):
        told = [option.to_wire() for option in server.ask(query, tcp=tcp).options]
        assert told == ([] if expected is None else [expected])


def test_dnspython_resolves_through_us(server: Server) -> None:
    """dnspython's resolver falls back to TCP, follows CNAMEs, and finds names of addresses."""
    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers, resolver.port, resolver.lifetime = [server.host], server.port, PATIENCE

    def found(name: str, qtype: str = "A") -> set[str]:
        return {row.to_text() for row in resolver.resolve(name, qtype, source=IN_A)}

    assert found(WEB) == {"10.244.1.1"}
    assert found(FREE, "AAAA") == {"fd00:244:1::9"}
    assert len(found(MANY)) == 250
    assert found(f"_main._tcp.{WEB}", "SRV") == {f"0 100 80 web-0.{WEB}."}
    assert found(f"inside.{SERVED}") == found(FREE) == {"10.244.1.9", "10.244.2.9"}
    assert resolver.canonical_name(f"inside.{SERVED}").to_text() == f"{FREE}."
    assert [row.to_text() for row in resolver.resolve_address("10.96.0.20")] == [f"api.{SERVED}."]
    with pytest.raises(dns.resolver.NXDOMAIN):
        found(MISSING)
    with pytest.raises(dns.resolver.NoAnswer):
        found(SERVED)


# Unbound before us

UNBOUND = """\
server:
  verbosity: 4
  interface: 127.0.0.1@{port}
  outgoing-interface: {source}
  access-control: 127.0.0.0/8 allow
  username: ""
  chroot: ""
  directory: "{folder}"
  pidfile: ""
  use-syslog: no
  do-daemonize: no
  num-threads: 1
  module-config: "{modules} iterator"
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
{more}
remote-control:
  control-enable: no
{zones}
"""


@contextmanager
def unbound(
    folder: Path,
    servers: dict[str, Server],
    *,
    kind: str,
    source: str = IN_A,
    modules: str = "",
    more: str = "",
) -> Iterator[tuple[int, Daemon]]:
    """Run unbound, which asks each zone's server from *source*; return its port."""
    port = free_port()
    zones = "\n".join(
        f"{kind}-zone:\n  name: {zone}\n  {kind}-addr: {server.host}@{server.port}" for zone, server in servers.items()
    )
    strict = "yes" if kind == "stub" else "no"
    (folder / "unbound.conf").write_text(
        UNBOUND.format(port=port, folder=folder, source=source, modules=modules, more=more, zones=zones, strict=strict)
    )
    daemon = Daemon.start([needs_tool("unbound"), "-d", "-c", str(folder / "unbound.conf")], folder, name="unbound")
    try:
        daemon.until(lambda: "start of service" in daemon.printed.read_text(errors="replace"))
        yield port, daemon
    finally:
        daemon.end()


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
    needs_tool("unbound")
    with ExitStack() as stack:
        other = stack.enter_context(
            serving(tmp_path, api_objects.listed(WIRE_CLUSTER), flags={**FLAGS, "zone": ["other.test"]})
        )
        zones = {"cluster.local": server, "10.in-addr.arpa": server, "other.test": other}
        port, daemon = stack.enter_context(unbound(tmp_path, zones, kind=kind))
        for name, qtype, expected in [*THROUGH, *reversed(THROUGH)]:
            reply, _ = dns.query.udp_with_fallback(
                dns.message.make_query(name, qtype), "127.0.0.1", port=port, timeout=PATIENCE
            )
            data = {row.to_text() for rrset in reply.answer for row in rrset}
            shown = len(data) if isinstance(expected.data, int) else data
            assert (dns.rcode.to_text(reply.rcode()), shown) == expected, (name, qtype, reply.to_text())
        log = daemon.printed.read_text(errors="replace")
        assert "info: response for " in log
        assert "apsforid" not in log and "lame" not in log.lower()


def test_unbound_keeps_an_answer_for_each_client(server: Server, tmp_path: Path) -> None:
    """RFC 7871, 7.3.1: unbound names its clients; each gets its own answer, from the cache, too."""
    needs_tool("unbound")
    more = "  send-client-subnet: 127.0.0.1\n  client-subnet-always-forward: yes\n  max-client-subnet-ipv4: 32"
    with unbound(
        tmp_path, {"cluster.local": server}, kind="stub", source=FORWARDER, modules="subnetcache", more=more
    ) as (port, _):
        for _ in range(3):
            for client, expected in (
                (IN_A, {"10.244.1.1"}),
                (IN_B, {"10.244.2.1", "10.244.2.2"}),
                (NOWHERE, set()),
            ):
                reply = dns.query.udp(
                    dns.message.make_query(WEB, "A"), "127.0.0.1", port=port, source=client, timeout=PATIENCE
                )
                assert {row.to_text() for rrset in reply.answer for row in rrset} == expected
                assert reply.rcode() == dns.rcode.NOERROR
