# SPDX-License-Identifier: Apache-2.0

"""Names: which exist, which do not, and their records, by the schema for DNS in Kubernetes (1.1.0)."""

from __future__ import annotations

from typing import Any

import dns.edns
import dns.flags
import dns.name
import dns.rcode
import pytest

from dnsserver.programs.from_settings import authority_of
from dnsserver.tools.explain.explanation import ServiceExplained
from tests.kit.api_objects import TOPOLOGY_KEYS, ZONE
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import NOW, CountedResponder, ask, responder_of, settings_of, snapshot_of
from tests.kit.replies import data

CLUSTER = """
apiVersion: v1
kind: NamespaceList
items:
- {metadata: {name: shop}}
- {metadata: {name: empty}}
---
apiVersion: v1
kind: NodeList
items:
- {metadata: {name: a1, labels: {topology.kubernetes.io/zone: a}}, status: {addresses: [{type: InternalIP, address: 127.1.0.1}]}}
- {metadata: {name: b1, labels: {topology.kubernetes.io/zone: b}}, status: {addresses: [{type: InternalIP, address: 127.1.0.2}]}}
---
apiVersion: v1
kind: ServiceList
items:
- {metadata: {name: db, namespace: shop}, spec: {clusterIP: None, ports: [{name: pg, port: 5432}, {name: metrics, port: 9187}]}}
- {metadata: {name: hard, namespace: shop, annotations: {topodns.io/topology-keys: topology.kubernetes.io/zone}}, spec: {clusterIP: None}}
- {metadata: {name: asleep, namespace: shop}, spec: {clusterIP: None, ports: [{name: pg, port: 5432}]}}
- {metadata: {name: api, namespace: shop}, spec: {clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9, "fd00:96::9"], ports: [{name: https, port: 443}, {name: dns, port: 53, protocol: UDP}, {port: 7}]}}
- {metadata: {name: new, namespace: shop}, spec: {ports: [{name: https, port: 443}]}}
- {metadata: {name: lost, namespace: gone}, spec: {clusterIP: 10.96.0.8}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSliceList
items:
- addressType: IPv4
  metadata: {name: db-4, namespace: shop, labels: {kubernetes.io/service-name: db}}
  ports: [{name: pg, port: 5432, protocol: TCP}, {name: metrics, port: 9187, protocol: TCP}]
  endpoints:
  - {addresses: [10.0.0.1], hostname: db-0, nodeName: a1, targetRef: {kind: Pod, name: db-0}}
  - {addresses: [10.0.0.2], nodeName: b1, targetRef: {kind: Pod, name: db-x}}
  - {addresses: [10.0.0.3], hostname: db-2, nodeName: b1, conditions: {ready: false}}
- addressType: IPv6
  metadata: {name: db-6, namespace: shop, labels: {kubernetes.io/service-name: db}}
  ports: [{name: pg, port: 5432, protocol: TCP}, {name: metrics, port: 9187, protocol: TCP}]
  endpoints:
  - {addresses: ["fd00::1"], hostname: db-0, nodeName: a1, targetRef: {kind: Pod, name: db-0}}
- addressType: IPv4
  metadata: {name: hard-1, namespace: shop, labels: {kubernetes.io/service-name: hard}}
  endpoints: [{addresses: [10.0.1.1], nodeName: a1}]
- addressType: IPv4
  metadata: {name: asleep-1, namespace: shop, labels: {kubernetes.io/service-name: asleep}}
  ports: [{name: pg, port: 5432}]
  endpoints: [{addresses: [10.0.2.1], hostname: z-0, nodeName: a1, conditions: {ready: false}}]
"""  # noqa: E501
FLAGS: dict[str, Any] = {"ns-address": ["192.0.2.53", "2001:db8::53"], "listen": ["0.0.0.0:53"]}
SOA = f"ns.dns.cluster.local. hostmaster.cluster.local. {NOW} 7200 1800 86400 5"


@pytest.fixture(scope="module")
def responder() -> CountedResponder:
    return responder_of(CLUSTER, FLAGS)


DB = "db.shop.svc.cluster.local"
ANSWERS = [
    # name, type, answers
    (DB, "A", ["A 10.0.0.1", "A 10.0.0.2"]),
    (DB, "AAAA", ["AAAA fd00::1"]),
    (f"db-0.{DB}", "A", ["A 10.0.0.1"]),
    (f"db-0.{DB}", "AAAA", ["AAAA fd00::1"]),
    (f"10-0-0-2.{DB}", "A", ["A 10.0.0.2"]),
    (f"_pg._tcp.{DB}", "SRV", [f"SRV 0 50 5432 10-0-0-2.{DB}.", f"SRV 0 50 5432 db-0.{DB}."]),
    (DB, "SRV", [f"SRV 0 25 {port} {target}.{DB}." for target in ("10-0-0-2", "db-0") for port in (5432, 9187)]),
    (f"db-0.{DB}", "SRV", [f"SRV 0 50 {port} db-0.{DB}." for port in (5432, 9187)]),
    ("api.shop.svc.cluster.local", "A", ["A 10.96.0.9"]),
    ("api.shop.svc.cluster.local", "AAAA", ["AAAA fd00:96::9"]),
    ("_https._tcp.api.shop.svc.cluster.local", "SRV", ["SRV 0 100 443 api.shop.svc.cluster.local."]),
    ("api.shop.svc.cluster.local", "SRV", [f"SRV 0 33 {port} api.shop.svc.cluster.local." for port in (443, 53, 7)]),
    ("cluster.local", "SOA", [f"SOA {SOA}"]),
    ("cluster.local", "NS", ["NS ns.dns.cluster.local."]),
    ("ns.dns.cluster.local", "A", ["A 192.0.2.53"]),
    ("in-addr.arpa", "SOA", [f"SOA ns.dns.in-addr.arpa. hostmaster.in-addr.arpa. {NOW} 7200 1800 86400 5"]),
    (DB, "ANY", ['HINFO "RFC8482" ""']),
]


@pytest.mark.parametrize(("name", "rtype", "expected"), ANSWERS, ids=[f"{row[0]}-{row[1]}" for row in ANSWERS])
def test_answer(responder: CountedResponder, name: str, rtype: str, expected: list[str]) -> None:
    """A record that exists: NOERROR, authoritative, TTL 5, owner in the letters of the question."""
    reply = ask(responder, name, rtype)
    assert (reply.rcode(), data(reply.answer)) == (dns.rcode.NOERROR, sorted(expected))
    assert reply.flags & dns.flags.AA and not reply.flags & (dns.flags.RA | dns.flags.TC)
    assert {rrset.ttl for rrset in (*reply.answer, *reply.additional)} == {5}
    assert not reply.authority
    assert {rrset.name for rrset in reply.answer} == {reply.question[0].name}


NXDOMAIN, NODATA, REFUSED = "NXDOMAIN", "NOERROR", "REFUSED"
NEGATIVES = [
    # name, type, rcode
    ("none.shop.svc.cluster.local", "A", NXDOMAIN),
    ("db.none.svc.cluster.local", "A", NXDOMAIN),
    ("lost.gone.svc.cluster.local", "TXT", NODATA),  # a Service's own name exists, whatever its namespace does
    ("gone.svc.cluster.local", "A", NODATA),  # no Namespace of the dump, but a name exists beneath it (RFC 8020)
    ("asleep.shop.svc.cluster.local", "A", NXDOMAIN),
    ("_pg._tcp.asleep.shop.svc.cluster.local", "SRV", NXDOMAIN),
    ("z-0.asleep.shop.svc.cluster.local", "A", NXDOMAIN),
    (f"db-2.{DB}", "A", NXDOMAIN),
    (f"none.{DB}", "A", NXDOMAIN),
    (f"10-0-0-1.{DB}", "A", NXDOMAIN),
    (f"10-0-0-3.{DB}", "A", NXDOMAIN),
    (f"a.b.c.d.{DB}", "A", NXDOMAIN),
    (f"_none._tcp.{DB}", "SRV", NXDOMAIN),
    (f"_pg._udp.{DB}", "SRV", NXDOMAIN),
    (f"pg.tcp.{DB}", "SRV", NXDOMAIN),
    (f"_udp.{DB}", "A", NXDOMAIN),
    ("_none._tcp.api.shop.svc.cluster.local", "SRV", NXDOMAIN),
    ("none.cluster.local", "A", NXDOMAIN),
    ("none.ns.dns.cluster.local", "A", NXDOMAIN),
    ("9.9.9.10.in-addr.arpa", "PTR", NXDOMAIN),
    (DB, "TXT", NODATA),
    (DB, "TYPE65280", NODATA),
    (f"10-0-0-2.{DB}", "AAAA", NODATA),
    (f"_pg._tcp.{DB}", "A", NODATA),
    (f"_tcp.{DB}", "SRV", NODATA),
    ("_https._tcp.api.shop.svc.cluster.local", "A", NODATA),
    ("new.shop.svc.cluster.local", "A", NODATA),
    ("new.shop.svc.cluster.local", "SRV", NODATA),
    ("shop.svc.cluster.local", "A", NODATA),
    ("svc.cluster.local", "A", NODATA),
    ("pod.cluster.local", "A", NODATA),
    ("dns.cluster.local", "A", NODATA),
    ("cluster.local", "A", NODATA),
    ("ns.dns.cluster.local", "TXT", NODATA),
]


@pytest.mark.parametrize(("name", "rtype", "rcode"), NEGATIVES, ids=[f"{row[0]}-{row[1]}" for row in NEGATIVES])
def test_negative(responder: CountedResponder, name: str, rtype: str, rcode: str) -> None:
    """A missing name or record: SOA with TTL and minimum (RFC 2308), and no extended error."""
    reply = ask(responder, name.upper(), rtype)
    assert (dns.rcode.to_text(reply.rcode()), reply.answer) == (rcode, [])
    (soa,) = reply.authority
    assert soa.ttl == soa[0].minimum == 5 and str(soa.name).lower() in ("cluster.local.", "in-addr.arpa.")
    assert reply.flags & dns.flags.AA
    assert not [option for option in reply.options if option.otype == dns.edns.OptionType.EDE]
    assert str(reply.question[0].name) == f"{name.upper()}."


@pytest.mark.parametrize("name", ["example.com", "local", ".", "cluster.local.example", "xcluster.local", "arpa"])
def test_outside(responder: CountedResponder, name: str) -> None:
    """Names outside the served zones get REFUSED, not authoritative."""
    reply = ask(responder, name, "A")
    assert (reply.rcode(), reply.answer, reply.authority) == (dns.rcode.REFUSED, [], [])
    assert not reply.flags & dns.flags.AA


@pytest.mark.parametrize("rtype", ["AXFR", "IXFR"])
def test_no_transfer(responder: CountedResponder, rtype: str) -> None:
    """Zone transfers get REFUSED."""
    assert ask(responder, "cluster.local", rtype).rcode() == dns.rcode.REFUSED


def test_not_ready() -> None:
    """Before the first snapshot, names in the zones get SERVFAIL "Not Ready"; other queries are refused as usual."""
    empty = CountedResponder()
    reply = ask(empty, DB, "A")
    (error,) = reply.options
    assert isinstance(error, dns.edns.EDEOption)
    assert (reply.rcode(), int(error.code), reply.authority) == (dns.rcode.SERVFAIL, 14, [])
    assert ask(empty, "example.com", "A").rcode() == dns.rcode.REFUSED
    assert ask(empty, DB, "AXFR").rcode() == dns.rcode.REFUSED


def test_additional_records(responder: CountedResponder) -> None:
    """SRV and NS replies have the addresses of their targets."""
    srv = ask(responder, f"_pg._tcp.{DB}", "SRV")
    assert {(str(rrset.name), text) for rrset in srv.additional for text in data([rrset])} == {
        (f"db-0.{DB}.", "A 10.0.0.1"),
        (f"db-0.{DB}.", "AAAA fd00::1"),
        (f"10-0-0-2.{DB}.", "A 10.0.0.2"),
    }
    assert data(ask(responder, "cluster.local", "NS").additional) == ["A 192.0.2.53", "AAAA 2001:db8::53"]
    api = ask(responder, "_https._tcp.api.shop.svc.cluster.local", "SRV")
    assert data(api.additional) == ["A 10.96.0.9", "AAAA fd00:96::9"]


def test_namespaces_by_what_is_in_them() -> None:
    """In a dump without Namespaces, a namespace exists if it has any object."""
    without = "---".join(part for part in CLUSTER.split("---") if "kind: NamespaceList" not in part)
    assert without != CLUSTER
    responder = responder_of(without)
    assert ask(responder, "gone.svc.cluster.local", "A").rcode() == dns.rcode.NOERROR
    assert ask(responder, "empty.svc.cluster.local", "A").rcode() == dns.rcode.NXDOMAIN


def test_zones_of_ones_own() -> None:
    """``--zone`` replaces the default; the longest zone around a name counts; all have the same TTL."""
    responder = responder_of(CLUSTER, {"zone": ["topo.local", "Sub.Topo.Local."], "ttl": 0})
    for zone in ("topo.local", "sub.topo.local"):
        reply = ask(responder, f"db.shop.svc.{zone}", "SRV")
        assert {str(rdata.target).partition(".svc.")[2] for rdata in reply.answer[0]} == {f"{zone}."}
        assert reply.answer[0].ttl == 0
        assert str(ask(responder, f"none.{zone}", "A").authority[0].name) == f"{zone}."
    assert ask(responder, DB, "A").rcode() == dns.rcode.REFUSED


def test_name_servers_are_the_listen_addresses() -> None:
    """Without ``--ns-address``, NS records have the listen addresses, except wildcards."""
    settings = settings_of({"listen": ["127.0.0.7:53", "[::]:53", "0.0.0.0:53", "[2001:db8::7]:53"]})
    assert authority_of(settings).addresses == (bytes((127, 0, 0, 7)), bytes.fromhex("20010db8" + "0" * 23 + "7"))


REASONS = [
    # name, type, flags, reason
    ("out.lab.svc.cluster.local", "A", {}, "an alias of a name outside the served zones"),
    ("out.lab.svc.cluster.local", "A", {"upstream": "192.0.2.1"},
     "an alias of a name outside the served zones, which an upstream resolves"),
    ("out.lab.svc.cluster.local", "TYPE65280", {"upstream": "192.0.2.1"},
     "an alias of a name outside the served zones"),
    ("self.lab.svc.cluster.local", "A", {}, "the aliases form a loop, or are more than 8"),
    ("1.0.0.10.in-addr.arpa", "PTR", {}, "a reverse name is never narrowed"),
    ("dns-version.cluster.local", "TXT", {}, "the name belongs to no Service"),
    (f"db-0.{DB}", "A", {}, "an endpoint's own name is never narrowed"),
    ("api.shop.svc.cluster.local", "A", {}, "the Service is not headless, so kube-proxy chooses"),
    ("near.lab.svc.cluster.local", "A", {},
     "the Service is not headless, so kube-proxy chooses: near the client with the label topodns.io/hints: \"true\" "
     "(topodns webhook) or spec.trafficDistribution, else anywhere"),
    (DB, "A", {}, "the Service has no constraint"),
    ("hard.shop.svc.cluster.local", "A", {}, "the endpoints nearest to the client"),
    (DB, "ANY", {}, "a question of type ANY gets one small record (RFC 8482)"),
    (f"a.pin._zone.{DB}", "A", {}, f"the endpoints with {ZONE}=a, which the name demands"),
    (f"z.prefer._zone.{DB}", "A", {}, f"every ready endpoint: none has {ZONE}=z, which the name prefers"),
]  # fmt: skip
ALIASES = "\n".join(
    ["---", "apiVersion: v1", "kind: ServiceList", "items:"]
    + [f"- {{metadata: {{name: {name}, namespace: lab}}, spec: {{type: ExternalName, externalName: {target}}}}}"
       for name, target in (("out", "example.org"), ("self", "self.lab.svc.cluster.local"),
                            ("number", "192.0.2.1"))]
)  # fmt: skip
NEAR = f"""
- metadata: {{name: near, namespace: lab, annotations: {{{TOPOLOGY_KEYS}: {ZONE}}}}}
  spec: {{clusterIP: 10.96.0.8}}
"""


@pytest.mark.parametrize(
    ("name", "rtype", "flags", "reason"), REASONS, ids=[f"{row[0]}-{row[1]}-{'-'.join(row[2])}" for row in REASONS]
)
def test_reason(name: str, rtype: str, flags: dict[str, Any], reason: str) -> None:
    """``explain`` says in a few words why there are records; ``test_reasons.py`` has why there are none."""
    snapshot = snapshot_of(CLUSTER + ALIASES + NEAR, flags)
    assert explanation_of(snapshot, name, "127.1.0.1", rtype, flags={**FLAGS, **flags}).reason == reason


BETWEEN_ZONES = [
    # zones, name, rcode: a name between two zones exists (RFC 8020)
    (["cluster.local", "b.c.cluster.local"], "c.cluster.local", "NOERROR"),
    (["cluster.local", "b.c.cluster.local"], "d.cluster.local", "NXDOMAIN"),
    (["cluster.local", "x.none.svc.cluster.local"], "none.svc.cluster.local", "NOERROR"),
    (["cluster.local", "in-addr.arpa", "1.11.in-addr.arpa"], "11.in-addr.arpa", "NOERROR"),
]


@pytest.mark.parametrize(("zones", "name", "rcode"), BETWEEN_ZONES, ids=[row[1] for row in BETWEEN_ZONES])
def test_between_zones(zones: list[str], name: str, rcode: str) -> None:
    """If a zone lies within another one, the names between them exist; otherwise resolvers would not find it."""
    reply = ask(responder_of(CLUSTER, {"zone": zones}), name, "A")
    assert dns.rcode.to_text(reply.rcode()) == rcode


def test_dots_and_colons_within_a_label_part_nothing() -> None:
    """A label with a dot in it is one label."""
    responder = responder_of(CLUSTER, {"pods": "insecure"})
    for label, rest, rcode in (
        (b"10.0.0.1", "shop.pod.cluster.local", dns.rcode.NXDOMAIN),
        (b"fd00::1", "shop.pod.cluster.local", dns.rcode.NXDOMAIN),
        (b"fd00:-1", "shop.pod.cluster.local", dns.rcode.NXDOMAIN),
        (b"db-0.db", "shop.svc.cluster.local", dns.rcode.NXDOMAIN),
    ):
        name = dns.name.Name((label, *dns.name.from_text(rest).labels))
        assert ask(responder, name, "A").rcode() == rcode, label
    two = CLUSTER.replace("zone: a}", "zone: a.x}")
    pinned = dns.name.Name((b"a.x", *dns.name.from_text(f"pin._zone.{DB}").labels))
    assert ask(responder_of(two), pinned, "A").answer == []
    assert data(ask(responder_of(two), f"a.x.pin._zone.{DB}", "A").answer) == ["A 10.0.0.1"]


def test_no_endpoints_is_not_empty() -> None:
    """With ``--no-endpoints``, a Service with endpoints still exists."""
    text = f"""\
apiVersion: v1
kind: Service
metadata: {{name: api, namespace: shop}}
spec: {{clusterIP: 10.96.0.9}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {{name: api-1, namespace: shop, labels: {{kubernetes.io/service-name: api}}}}
endpoints: [{{addresses: [10.0.0.1]}}]
{ALIASES}"""
    responder = responder_of(text, {"no-endpoints": True, "ignore-empty-service": True})
    assert data(ask(responder, "api.shop.svc.cluster.local", "A").answer) == ["A 10.96.0.9"]


def test_an_alias_of_what_is_no_service_is_still_a_services() -> None:
    """If the chain does not end at a Service, ``explain`` names the one that was asked for."""
    alias = "---\n{apiVersion: v1, kind: Service, metadata: {name: here, namespace: lab}, spec: {type: ExternalName, externalName: dns-version.cluster.local}}"  # noqa: E501
    snapshot = snapshot_of(CLUSTER + alias)
    explained = explanation_of(snapshot, "here.lab.svc.cluster.local", "127.1.0.1", "TXT", flags=FLAGS)
    assert explained.service == ServiceExplained("lab", "here")
    assert [answer.data for answer in explained.answers] == ["dns-version.cluster.local.", '"1.1.0"']
