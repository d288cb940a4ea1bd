# SPDX-License-Identifier: Apache-2.0

"""Names: which exist, which do not, and their records, by the schema for DNS in Kubernetes (1.1.0)."""

from __future__ import annotations

import struct
from typing import Any
from unittest import mock

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.reversename
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dnsserver.message.records import Host, Opaque, Record
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.names import dashed_label, labels_of, parse_zone, pod_address, query_name_of
from dnsserver.programs.from_settings import authority_of
from dnsserver.responder import rendered as rendering
from dnsserver.responder.replies import AnsweredQuery
from dnsserver.tools.explain.explanation import ServiceExplained
from locator.ip import address_text, parse_address, plain_address
from locator.model import is_dns_label
from tests.kit.api_objects import (
    ZONE,
    endpoint,
    endpoint_slice,
    listed,
    namespace,
    node,
    pod,
    service,
    service_import,
)
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import NOW, CountedResponder, ask_in_memory, responder_of, settings_of, snapshot_of
from tests.kit.outside import said

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


def ask(
    responder: CountedResponder, name: str | dns.name.Name, rtype: str, client: str = "127.1.0.1", **more: Any
) -> dns.message.Message:
    query = dns.message.make_query(name, rtype, use_edns=0, payload=1232, **more)
    reply = ask_in_memory(responder, query, client)
    assert reply is not None
    return reply


def data(rrsets: list[Any]) -> list[str]:
    return sorted(f"{dns.rdatatype.to_text(rrset.rdtype)} {rdata}" for rrset in rrsets for rdata in rrset)


DB = "db.shop.svc.cluster.local"
ANSWERS = [
    # name, type, answers
    (DB, "A", ["A 10.0.0.1", "A 10.0.0.2"]),
    (DB, "AAAA", ["AAAA fd00::1"]),
    (f"db-0.{DB}", "A", ["A 10.0.0.1"]),
    (f"db-0.{DB}", "AAAA", ["AAAA fd00::1"]),
    (f"DB-0.{DB.upper()}", "A", ["A 10.0.0.1"]),
    (f"10-0-0-2.{DB}", "A", ["A 10.0.0.2"]),
    (f"_pg._tcp.{DB}", "SRV", [f"SRV 0 50 5432 10-0-0-2.{DB}.", f"SRV 0 50 5432 db-0.{DB}."]),
    (DB, "SRV", [f"SRV 0 25 {port} {target}.{DB}." for target in ("10-0-0-2", "db-0") for port in (5432, 9187)]),
    (f"db-0.{DB}", "SRV", [f"SRV 0 50 {port} db-0.{DB}." for port in (5432, 9187)]),
    ("api.shop.svc.cluster.local", "A", ["A 10.96.0.9"]),
    ("api.shop.svc.cluster.local", "AAAA", ["AAAA fd00:96::9"]),
    ("_https._tcp.api.shop.svc.cluster.local", "SRV", ["SRV 0 100 443 api.shop.svc.cluster.local."]),
    ("_dns._udp.api.shop.svc.cluster.local", "SRV", ["SRV 0 100 53 api.shop.svc.cluster.local."]),
    ("api.shop.svc.cluster.local", "SRV", [f"SRV 0 33 {port} api.shop.svc.cluster.local." for port in (443, 53, 7)]),
    ("cluster.local", "SOA", [f"SOA {SOA}"]),
    ("cluster.local", "NS", ["NS ns.dns.cluster.local."]),
    ("ns.dns.cluster.local", "A", ["A 192.0.2.53"]),
    ("ns.dns.cluster.local", "AAAA", ["AAAA 2001:db8::53"]),
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
    ("none.svc.cluster.local", "A", NXDOMAIN),
    ("lost.gone.svc.cluster.local", "TXT", NODATA),  # a Service's own name exists, whatever its namespace does
    ("gone.svc.cluster.local", "A", NODATA),  # no Namespace of the dump, but a name exists beneath it (RFC 8020)
    ("asleep.shop.svc.cluster.local", "A", NXDOMAIN),
    ("asleep.shop.svc.cluster.local", "SRV", NXDOMAIN),
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
    (f"_pg.tcp.{DB}", "SRV", NXDOMAIN),
    (f"_udp.{DB}", "A", NXDOMAIN),
    ("_none._tcp.api.shop.svc.cluster.local", "SRV", NXDOMAIN),
    ("none.cluster.local", "A", NXDOMAIN),
    ("shop.cluster.local", "A", NXDOMAIN),
    ("none.dns.cluster.local", "A", NXDOMAIN),
    ("none.ns.dns.cluster.local", "A", NXDOMAIN),
    ("9.9.9.10.in-addr.arpa", "PTR", NXDOMAIN),
    (DB, "TXT", NODATA),
    (DB, "MX", NODATA),
    (DB, "TYPE65280", NODATA),
    (f"10-0-0-2.{DB}", "AAAA", NODATA),
    (f"_pg._tcp.{DB}", "A", NODATA),
    (f"_tcp.{DB}", "SRV", NODATA),
    (f"_tcp.{DB}", "A", NODATA),
    ("_https._tcp.api.shop.svc.cluster.local", "A", NODATA),
    ("new.shop.svc.cluster.local", "A", NODATA),
    ("new.shop.svc.cluster.local", "AAAA", NODATA),
    ("new.shop.svc.cluster.local", "SRV", NODATA),
    ("api.shop.svc.cluster.local", "TXT", NODATA),
    ("shop.svc.cluster.local", "A", NODATA),
    ("empty.svc.cluster.local", "A", NODATA),
    ("svc.cluster.local", "A", NODATA),
    ("pod.cluster.local", "A", NODATA),
    ("dns.cluster.local", "A", NODATA),
    ("cluster.local", "A", NODATA),
    ("ns.dns.cluster.local", "TXT", NODATA),
]


@pytest.mark.parametrize(("name", "rtype", "rcode"), NEGATIVES, ids=[f"{row[0]}-{row[1]}" for row in NEGATIVES])
def test_negative(responder: CountedResponder, name: str, rtype: str, rcode: str) -> None:
    """A missing name or record: SOA with TTL and minimum (RFC 2308), and no extended error."""
    for case in (name, name.upper()):
        reply = ask(responder, case, rtype)
        assert (dns.rcode.to_text(reply.rcode()), reply.answer) == (rcode, [])
        (soa,) = reply.authority
        assert soa.ttl == soa[0].minimum == 5 and str(soa.name).lower() in ("cluster.local.", "in-addr.arpa.")
        assert reply.flags & dns.flags.AA
        assert not [option for option in reply.options if option.otype == dns.edns.OptionType.EDE]
        assert str(reply.question[0].name) == f"{case}."


@pytest.mark.parametrize("rtype", ["A", "AAAA", "SRV"])
def test_unmet(responder: CountedResponder, rtype: str) -> None:
    """An unmet hard constraint: NODATA with TTL and minimum 0, and an extended error that names key and value."""
    reply = ask(responder, "hard.shop.svc.cluster.local", rtype, "127.1.0.2")
    (soa,), (error,) = reply.authority, reply.options
    assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])
    assert soa.ttl == soa[0].minimum == 0
    assert isinstance(error, dns.edns.EDEOption)
    assert int(error.code) == 0 and "topology.kubernetes.io/zone=b" in str(error.text)


@pytest.mark.parametrize("name", ["example.com", "local", ".", "cluster.local.example", "xcluster.local", "arpa"])
def test_outside(responder: CountedResponder, name: str) -> None:
    """Names outside the served zones get REFUSED, not authoritative."""
    reply = ask(responder, name, "A")
    assert (reply.rcode(), reply.answer, reply.authority) == (dns.rcode.REFUSED, [], [])
    assert not reply.flags & dns.flags.AA


@pytest.mark.parametrize("rtype", ["AXFR", "IXFR"])
@pytest.mark.parametrize("name", ["cluster.local", DB])
def test_no_transfer(responder: CountedResponder, name: str, rtype: str) -> None:
    """Zone transfers get REFUSED."""
    assert ask(responder, name, rtype).rcode() == dns.rcode.REFUSED


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


@pytest.mark.parametrize("zone", ["cluster.local", "in-addr.arpa"])
def test_any_labels_mean_something(zone: str) -> None:
    """A name of any octets either is of some type or cannot exist."""
    zones = [parse_zone(zone)]
    for labels in ((b"\x00",), (b"\xff\xfe", b"svc"), (b"a.b", b"shop", b"svc"), (b"_", b"_", b"x", b"y", b"svc")):
        query_name = query_name_of((*labels, *labels_of(zone)), zones)
        assert query_name is not None and query_name.zone is zones[0]


WEB = "web.shop.svc.cluster.local"
TWO_PODS = """\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {topodns.io/topology-keys: "topology.kubernetes.io/zone,*"}}
spec: {clusterIP: None}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
ports: [{name: a, port: 80}]
endpoints: [{addresses: [10.0.0.1], hostname: web-0, targetRef: {kind: Pod, name: web-0}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {name: web-2, namespace: shop, labels: {kubernetes.io/service-name: web}}
ports: [{name: b, port: 81}]
endpoints: [{addresses: [10.0.0.1], hostname: web-1, targetRef: {kind: Pod, name: web-1}}]
"""


def test_pods_that_share_an_address_keep_their_names() -> None:
    """Two host-network pods of one node have two names and one address, which an answer holds once."""
    responder = responder_of(TWO_PODS)
    assert data(ask(responder, WEB, "A").answer) == ["A 10.0.0.1"]
    for number in (0, 1):
        assert data(ask(responder, f"web-{number}.{WEB}", "A").answer) == ["A 10.0.0.1"]
        expected = [f"SRV 0 100 {80 + number} web-{number}.{WEB}."]
        assert data(ask(responder, f"_{'ab'[number]}._tcp.{WEB}", "SRV").answer) == expected


@pytest.mark.parametrize(("keys", "scope"), [("topology.kubernetes.io/zone,*", 0), ("topology.kubernetes.io/zone", 32)])
def test_records_that_nobody_has_do_not_depend_on_the_client(keys: str, scope: int) -> None:
    """A soft Service without IPv6 has no AAAA for any client; for a hard one it may depend on the client."""
    responder = responder_of(TWO_PODS.replace("topology.kubernetes.io/zone,*", keys))
    subnet = dns.edns.ECSOption("192.0.2.1", 32)
    (echo,) = (
        option for option in ask(responder, WEB, "AAAA", options=[subnet]).options if option.otype == subnet.otype
    )
    assert echo.scopelen == scope


MULTICLUSTER = {"multicluster": "clusterset.local"}
REASONS = [
    # name, type, flags, reason
    ("example.org", "A", {}, "the name is outside the served zones: cluster.local"),
    ("cluster.local", "AXFR", {}, "zone transfers are not served"),
    ("out.lab.svc.cluster.local", "A", {}, "an alias of a name outside the served zones"),
    ("out.lab.svc.cluster.local", "A", {"upstream": "192.0.2.1"},
     "an alias of a name outside the served zones, which an upstream resolves"),
    ("out.lab.svc.cluster.local", "TYPE65280", {"upstream": "192.0.2.1"},
     "an alias of a name outside the served zones"),
    ("self.lab.svc.cluster.local", "A", {}, "the aliases form a loop, or are more than 8"),
    ("missing.lab.svc.cluster.local", "A", {},
     "an alias of a name that does not exist: "
     "topodns serves no Service lab/none; there are missing, number, out, self"),
    ("number.lab.svc.cluster.local", "A", {}, "the Service's externalName is not a domain name"),
    ("out.lab.svc.cluster.local", "CNAME", {}, "the Service is an alias"),
    ("1.0.0.10.in-addr.arpa", "PTR", {}, "a reverse name is never narrowed"),
    ("9.9.9.9.in-addr.arpa", "PTR", {}, "no Service and no endpoint has this address"),
    ("dbs.shop.svc.cluster.local", "A", {}, "topodns serves no Service shop/dbs, did you mean db?"),
    ("db.shopp.svc.cluster.local", "A", {}, "topodns serves no namespace shopp, did you mean shop?"),
    ("imported.shop.svc.clusterset.local", "A", MULTICLUSTER,
     "topodns serves no ServiceImport shop/imported, did you mean imported-db?"),
    ("imported-db.shop.svc.clusterset.local", "A", MULTICLUSTER, "the Service has no ready endpoint"),
    ("imported-db.shop.svc.cluster.local", "A", MULTICLUSTER,
     "topodns serves no Service shop/imported-db; there are api, asleep, db, hard, new"),
    ("dns-version.cluster.local", "TXT", {}, "the name belongs to no Service"),
    ("asleep.shop.svc.cluster.local", "A", {}, "the Service has no ready endpoint"),
    ("api.shop.svc.cluster.local", "A", {"ignore-empty-service": True},
     "the Service has no ready endpoint (--ignore-empty-service)"),
    (f"none.{DB}", "A", {}, "no ready endpoint of the Service has this name"),
    (f"db-0.{DB}", "A", {}, "an endpoint's own name is never narrowed"),
    ("api.shop.svc.cluster.local", "A", {}, "the Service is not headless"),
    (DB, "A", {}, "the Service has no constraint"),
    ("hard.shop.svc.cluster.local", "A", {}, "the endpoints nearest to the client"),
    ("hard.shop.svc.cluster.local", "TXT", {}, "this name has records of type A, AAAA and SRV alone"),
    (DB, "ANY", {}, "a question of type ANY gets one small record (RFC 8482)"),
    (f"a.pin._zone.{DB}", "A", {}, f"the endpoints with {ZONE}=a, which the name demands"),
    (f"z.pin._zone.{DB}", "A", {}, f"no ready endpoint has {ZONE}=z, which the name demands"),
    (f"z.prefer._zone.{DB}", "A", {}, f"every ready endpoint: none has {ZONE}=z, which the name prefers"),
]  # fmt: skip
ALIASES = "\n".join(
    ["---", "apiVersion: v1", "kind: ServiceList", "items:"]
    + [f"- {{metadata: {{name: {name}, namespace: lab}}, spec: {{type: ExternalName, externalName: {target}}}}}"
       for name, target in (("out", "example.org"), ("self", "self.lab.svc.cluster.local"),
                            ("missing", "none.lab.svc.cluster.local"), ("number", "192.0.2.1"))]
)  # fmt: skip
IMPORT = f"\n---\n{yaml.safe_dump(service_import('imported-db'))}"


@pytest.mark.parametrize(
    ("name", "rtype", "flags", "reason"), REASONS, ids=[f"{row[0]}-{row[1]}-{'-'.join(row[2])}" for row in REASONS]
)
def test_reason(name: str, rtype: str, flags: dict[str, Any], reason: str) -> None:
    """``explain`` gives the reason for the answer in a few words; ``test_reasons.py`` has all for no records."""
    snapshot = snapshot_of(CLUSTER + ALIASES + IMPORT, flags)
    assert explanation_of(snapshot, name, "127.1.0.1", rtype, flags={**FLAGS, **flags}).reason == reason


def test_aliases_are_followed_so_far_and_no_farther() -> None:
    """Up to eight aliases are followed; of a longer chain, the answer has those."""
    items = [f"- {{metadata: {{name: a{number}, namespace: lab}}, spec: {{type: ExternalName, "
             f"externalName: a{number + 1}.lab.svc.cluster.local}}}}" for number in range(9)]  # fmt: skip
    end = "- {metadata: {name: a9, namespace: lab}, spec: {clusterIP: 10.96.0.9}}"
    responder = responder_of("\n".join(["apiVersion: v1", "kind: ServiceList", "items:", *items, end]))
    whole = ask(responder, "a1.lab.svc.cluster.local", "A")
    assert data(whole.answer) == sorted(["A 10.96.0.9", *(f"CNAME a{n}.lab.svc.cluster.local." for n in range(2, 10))])
    cut = ask(responder, "a0.lab.svc.cluster.local", "A")
    assert data(cut.answer) == sorted(f"CNAME a{n}.lab.svc.cluster.local." for n in range(1, 10))
    assert (cut.rcode(), cut.authority) == (dns.rcode.NOERROR, [])


BETWEEN_ZONES = [
    # zones, name, rcode: a name between two zones exists (RFC 8020)
    (["cluster.local", "b.c.cluster.local"], "c.cluster.local", "NOERROR"),
    (["cluster.local", "b.c.cluster.local"], "d.cluster.local", "NXDOMAIN"),
    (["cluster.local", "x.none.svc.cluster.local"], "none.svc.cluster.local", "NOERROR"),
    (["cluster.local", "in-addr.arpa", "1.11.in-addr.arpa"], "11.in-addr.arpa", "NOERROR"),
    (["cluster.local", "in-addr.arpa", "1.11.in-addr.arpa"], "12.in-addr.arpa", "NXDOMAIN"),
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


LONG = "mydb-instance-1.abcdefghijkl.eu-central-1.rds.amazonaws.example"
OUT = f"apiVersion: v1\nkind: Service\nmetadata: {{name: out, namespace: lab}}\nspec: {{type: ExternalName, externalName: {LONG}}}\n"  # noqa: E501


def waiting_for(responder: CountedResponder, rtype: str) -> bytes | AnsweredQuery | None:
    query = dns.message.make_query("out.lab.svc.cluster.local", rtype)
    return responder.reply(query.to_wire(), bytes(4), responder.channel(bytes(4), "udp"))


@pytest.mark.parametrize("first", ["HTTPS", "TYPE97"])
def test_an_alias_waits_for_https_whatever_was_asked_before(first: str) -> None:
    """Types 65 and 97 differ like the case of a letter, which the answer cache folds: neither hides the other."""
    responder = responder_of(OUT, {"upstream": "192.0.2.1"})
    for rtype in (first, "HTTPS", "TYPE97", "HTTPS"):
        waiting = waiting_for(responder, rtype)
        assert isinstance(waiting, AnsweredQuery) and waiting.query.qtype == dns.rdatatype.from_text(rtype)


def test_names_behind_an_alias_are_compressed() -> None:
    """Records of the alias' target point to it: eight addresses fit 512 octets (RFC 1035, 4.1.4)."""
    responder = responder_of(OUT, {"upstream": "192.0.2.1"})
    waiting = waiting_for(responder, "A")
    assert isinstance(waiting, AnsweredQuery)
    assert (waiting.target, waiting.query.qtype) == (LONG, 1)
    far = f"far.{LONG.partition('.')[2]}"
    found = [Record(LONG, 5, 60, Host(far)), *(Record(far, 1, 60, Opaque(bytes((192, 0, 2, n)))) for n in range(8))]
    octets = responder.finished(waiting, said(found))
    assert isinstance(octets, bytes)
    reply = dns.message.from_wire(octets)
    assert not reply.flags & dns.flags.TC and len(octets) < 300
    assert data(reply.answer) == sorted([f"CNAME {LONG}.", f"CNAME {far}.", *(f"A 192.0.2.{n}" for n in range(8))])


def test_what_was_found_elsewhere_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same upstream records give the same answer, except for the rotation."""
    responder = responder_of(OUT, {"upstream": "192.0.2.1"})
    found = said([Record(LONG, 1, 60, Opaque(bytes((192, 0, 2, n)))) for n in range(3)])
    firsts, rendered = set(), mock.Mock(wraps=RenderedAnswer)
    monkeypatch.setattr(rendering, "RenderedAnswer", rendered)
    for _ in range(200):  # each begins with any of them, at random
        waiting = waiting_for(responder, "A")
        assert isinstance(waiting, AnsweredQuery)
        octets = responder.finished(waiting, found)
        assert isinstance(octets, bytes)
        firsts.add(str(dns.message.from_wire(octets).answer[1][0]))
    assert len(firsts) == 3
    assert rendered.call_count == 2  # the CNAME, and what it leads to


@pytest.mark.parametrize(("rtype", "waits"), [("A", True), ("AAAA", True), ("MX", True), ("HTTPS", True),
                                              ("TYPE65280", False), ("DNSKEY", False), ("CNAME", False)])  # fmt: skip
def test_only_common_types_are_looked_up_elsewhere(rtype: str, waits: bool) -> None:
    """Only common types cause upstream queries; other types get the CNAME."""
    responder = responder_of(OUT, {"upstream": "192.0.2.1"})
    assert isinstance(waiting_for(responder, rtype), AnsweredQuery) == waits
    found = data(ask(responder, "out.lab.svc.cluster.local", rtype).answer)
    assert found == ([] if waits else [f"CNAME {LONG}."])


def test_more_records_than_any_message_holds() -> None:
    """The reply has as many as fit, with TC, over TCP, too."""
    ports = ", ".join(f"{{name: p{number}, port: {number + 1}}}" for number in range(100))
    rows = ", ".join(f"{{addresses: [10.{n // 250}.{n % 250}.1]}}" for n in range(660))
    text = f"""\
apiVersion: v1
kind: Service
metadata: {{name: huge, namespace: shop}}
spec: {{clusterIP: None}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {{name: huge-1, namespace: shop, labels: {{kubernetes.io/service-name: huge}}}}
ports: [{ports}]
endpoints: [{rows}]
"""
    responder = responder_of(text)
    query = dns.message.make_query("huge.shop.svc.cluster.local", "SRV")
    for proto, most in (("tcp", 65535), ("udp", 512)):
        reply = ask_in_memory(responder, query, "127.1.0.1", proto=proto)
        assert reply is not None and reply.flags & dns.flags.TC
        assert most - 100 < len(reply.to_wire(max_size=65535)) + 100 and len(reply.answer[0]) > 5


# Names made of addresses

groups = st.sampled_from([0, 0, 0, 1, 0xAB, 0xFFFF, 0x2001])
six = st.lists(groups, min_size=8, max_size=8).map(lambda numbers: struct.pack("!8H", *numbers))
packed = st.one_of(six, st.binary(min_size=16, max_size=16), st.binary(min_size=4, max_size=4)).filter(
    lambda octets: plain_address(octets) == octets
)


@given(st.lists(packed, min_size=2, max_size=2, unique=True))
def test_an_address_and_its_label_mean_each_other(addresses: list[bytes]) -> None:
    """The label is one of a host name (RFC 1123, 2.1), leads back to the address, and is that of no other."""
    labels = [dashed_label(address) for address in addresses]
    assert len(set(labels)) == len(labels)
    for address, label in zip(addresses, labels, strict=True):
        assert is_dns_label(label)
        assert pod_address(label) == address


@given(st.lists(six.filter(lambda octets: plain_address(octets) == octets), min_size=1, max_size=4, unique=True))
def test_the_names_of_endpoints_lead_back(addresses: list[bytes]) -> None:
    """From SRV to the address, and from the address to the same name: of a Service, federated, and of pods."""
    texts = [address_text(address) for address in addresses]
    items = [
        namespace("shop"),
        node("a1", addresses=["127.1.0.1"]),
        service("web", annotations={"topodns.io/federated": "true"}),
        endpoint_slice("web", 1, [endpoint(text, nodeName="a1") for text in texts], family="IPv6"),
        *(pod(f"web-{number}", [text], "a1") for number, text in enumerate(texts)),
    ]
    responder = responder_of(listed(items), {"federation": ["fed.example"], "pods": "verified"})
    for name in ("web.shop.svc.cluster.local", "web.shop.fed.example"):
        targets = {row.split()[-1].rstrip(".") for row in data(ask(responder, name, "SRV").answer)}
        found = {target: data(ask(responder, target, "AAAA").answer) for target in targets}
        assert sorted(parse_address(row.split()[-1]) for (row,) in found.values()) == sorted(addresses)
        for target, rows in found.items():
            assert is_dns_label(target.partition(".")[0])
            if name.endswith("cluster.local"):
                reverse = dns.reversename.from_address(rows[0].split()[-1])
                assert data(ask(responder, reverse, "PTR").answer) == [f"PTR {target}."]
            of_pod = f"{target.partition('.')[0]}.shop.pod.cluster.local"
            assert data(ask(responder, of_pod, "AAAA").answer) == rows
