# SPDX-License-Identifier: Apache-2.0

"""The reason that ``explain`` gives for an answer without records is the one that decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from dnsserver.tools.explain.explanation import Explanation
from tests.kit.api_objects import (
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    external,
    imported_slice,
    namespace,
    node,
    pod,
    service,
    service_import,
)
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import ClustersInMemory

FLAGS: dict[str, Any] = {
    "cluster-name": "east",
    "federation": ["fed.example"],
    "multicluster": ["clusterset.local"],
    "ns-address": ["192.0.2.53"],
    "upstream": "off",
}
SVC, SET, FED = "shop.svc.cluster.local", "shop.svc.clusterset.local", "shop.fed.example"
CLIENT = "10.9.0.1"  # in zone a of east
PORTS = [("http", 80, "TCP")]
EXPORTED = {"topodns.io/federated": "true"}
# A zone whose names leave no room for the name of an endpoint.
LONG = ".".join(["z" * 63] * 3 + ["z" * 49])

OWN = [
    namespace("shop"),
    node("a1", {ZONE: "a"}),
    node("b1", {ZONE: "b"}),
    pod("client", [CLIENT], "a1"),
    service("db", ports=PORTS),
    endpoint_slice("db", 1, [endpoint("10.0.0.1", nodeName="a1", hostname="db-0"),
                             endpoint("10.0.0.3", nodeName="a1", hostname="db-9", ready=False)], ports=PORTS),
    endpoint_slice("db", 2, [endpoint("10.0.0.2", nodeName="b1", hostname="db-1")], ports=[("admin", 81, "TCP")]),
    service("near", keys=ZONE, ports=PORTS),
    endpoint_slice("near", 1, [endpoint("10.0.1.1", nodeName="a1")], ports=PORTS),
    endpoint_slice("near", 2, [endpoint("fd00::1", nodeName="b1")], family="IPv6", ports=[("admin", 81, "TCP")]),
    service("far", keys=ZONE),
    endpoint_slice("far", 1, [endpoint("10.0.2.1", nodeName="b1")]),
    service("asleep", ports=PORTS),
    endpoint_slice("asleep", 1, [endpoint("10.0.3.1", nodeName="a1", ready=False)], ports=PORTS),
    service("portless", ports=[]),
    endpoint_slice("portless", 1, [endpoint("10.0.4.1", nodeName="a1", hostname="p-0")], ports=[]),
    service("api", cluster_ips=("10.96.0.1",), ports=PORTS),
    service("bare-api", cluster_ips=("10.96.0.2",), ports=[]),
    service("rendered", cluster_ips=(), ports=PORTS),
    external("alias", f"db.{SVC}"),
    external("lost", f"gone.{SVC}"),
    external("to-none", f"rendered.{SVC}"),
    external("to-pod", "10-0-0-1.shop.pod.cluster.local"),
    external("loop", f"loop.{SVC}"),
    external("number", "192.0.2.1"),
    service_import("web", type="ClusterSetIP"),
    imported_slice("web", "west", [endpoint("10.2.0.5")]),
    service_import("store"),
    imported_slice("store", "west", [endpoint("10.2.0.6", hostname="s-0"),
                                     endpoint("10.2.0.7", hostname="s-1", ready=False)]),
    service("shared", ports=PORTS, annotations=EXPORTED),
    endpoint_slice("shared", 1, [endpoint("10.0.5.1", nodeName="a1", hostname="e-0")], ports=PORTS),
]  # fmt: skip
WEST = [
    namespace("shop"),
    node("n1", {ZONE: "w"}, cidrs=["10.2.0.0/16"]),
    service("shared", ports=PORTS, annotations=EXPORTED),
    endpoint_slice("shared", 1, [endpoint("10.2.0.9", nodeName="n1")], ports=PORTS),
]


class Row(NamedTuple):
    """A question whose answer has no records, a part of the reason, and what to change so that it has some."""

    name: str
    type: str
    reason: str
    fix: Mapping[str, Any]
    flags: Mapping[str, Any] = {}
    client: str = CLIENT


def beside(*items: Item) -> dict[str, Any]:
    return {"items": items}


VERIFIED, INSECURE = {"pods": "verified"}, {"pods": "insecure"}
IGNORED = {"ignore-empty-service": True}
READY = endpoint_slice("asleep", 1, [endpoint("10.0.3.1", nodeName="a1", hostname="z-0")], ports=PORTS)
SIX = endpoint_slice("db", 6, [endpoint("fd00::6", nodeName="a1", hostname="db-0")], family="IPv6")
ADDRESS_OF_WEB = service_import("web", ips=["10.97.0.1"])

ROWS = [
    # refused
    Row("example.org", "A", "outside the served zones", {"flags": {"zone": ["example.org"]}, "type": "SOA"}),
    Row("cluster.local", "AXFR", "zone transfers are not served", {"type": "SOA"}),
    # names that are no Service's
    Row("cluster.local", "A", "records of type SOA and NS alone", {"type": "NS"}),
    Row("svc.cluster.local", "A", "names exist beneath it", {"name": f"db.{SVC}"}),
    Row("shop.svc.cluster.local", "SRV", "names exist beneath it", {"name": f"db.{SVC}"}),
    Row("shops.svc.cluster.local", "A", "serves no namespace shops, did you mean shop?", {"name": f"db.{SVC}"}),
    Row("dns-version.cluster.local", "A", "records of type TXT alone", {"type": "TXT"}),
    Row("ns.dns.cluster.local", "TXT", "records of type A and AAAA alone", {"type": "A"}),
    Row("ns.dns.cluster.local", "AAAA", "the name server has no IPv6 address (--ns-address)",
        {"flags": {"ns-address": ["2001:db8::53"]}}),
    Row("a.b.c.d.cluster.local", "A", "no name in the zone cluster.local has this form", {"name": f"db.{SVC}"}),
    Row("c.cluster.local", "A", "names exist beneath it", {"name": "d.c.cluster.local", "type": "SOA"},
        {"zone": ["cluster.local", "d.c.cluster.local"]}),
    # pods
    Row("10-9-0-1.shop.pod.cluster.local", "A", "pods have no names (--pods disabled)", {"flags": VERIFIED}),
    Row("shop.pod.cluster.local", "A", "pods have no names (--pods disabled)",
        {"flags": VERIFIED, "name": "10-9-0-1.shop.pod.cluster.local"}),
    Row("shop.pod.cluster.local", "A", "names exist beneath it", {"name": "10-9-0-1.shop.pod.cluster.local"}, VERIFIED),
    Row("10-9-0-2.shop.pod.cluster.local", "A", "no running pod in namespace shop has this address (--pods verified)",
        {"flags": INSECURE}, VERIFIED),
    Row("10-9-0-1.none.pod.cluster.local", "A", "serves no namespace none", beside(namespace("none")), INSECURE),
    Row("client.shop.pod.cluster.local", "A", "client is no address with dashes",
        {"name": "10-9-0-1.shop.pod.cluster.local"}, INSECURE),
    Row("10-9-0-1.shop.pod.cluster.local", "AAAA", "the address in the name is no IPv6 address", {"type": "A"},
        VERIFIED),
    Row("10-9-0-1.shop.pod.cluster.local", "TXT", "records of type A and AAAA alone", {"type": "A"}, VERIFIED),
    # reverse names
    Row("1.0.0.10.in-addr.arpa", "A", "records of type PTR alone", {"type": "PTR"}),
    Row("0.0.10.in-addr.arpa", "PTR", "names exist beneath it", {"name": "1.0.0.10.in-addr.arpa"}),
    Row("9.0.0.10.in-addr.arpa", "PTR", "no Service and no endpoint has this address",
        beside(service("nine", cluster_ips=["10.0.0.9"]))),
    Row("9.11.in-addr.arpa", "PTR", "no Service and no endpoint has an address that begins so",
        {**beside(service("nine", cluster_ips=["11.9.0.9"])), "name": "9.0.9.11.in-addr.arpa"}),
    Row("x.in-addr.arpa", "PTR", "the name stands for no address", {"name": "1.0.0.10.in-addr.arpa"}),
    Row("1.0.0.10.in-addr.arpa", "PTR", "the names of this address are longer than a name can be",
        {"flags": {"zone": ["in-addr.arpa", "cluster.local"]}}, {"zone": ["in-addr.arpa", LONG]}),
    # a Service that is not there, or an alias
    Row(f"dbs.{SVC}", "A", "serves no Service shop/dbs, did you mean db?", {"name": f"db.{SVC}"}),
    Row(f"_http._tcp.dbs.{SVC}", "SRV", "serves no Service shop/dbs", {"name": f"_http._tcp.db.{SVC}"}),
    Row(f"number.{SVC}", "A", "externalName is not a domain name", beside(external("number", f"db.{SVC}"))),
    Row(f"lost.{SVC}", "A", "an alias of a name that does not exist: topodns serves no Service shop/gone",
        beside(service("gone", cluster_ips=["10.96.0.7"]))),
    Row(f"alias.{SVC}", "AAAA", "no ready endpoint has an IPv6 address", beside(SIX)),
    Row(f"to-none.{SVC}", "A", "no address is written in the Service (spec.clusterIP)",
        beside(service("rendered", cluster_ips=["10.96.0.7"]))),
    Row(f"to-pod.{SVC}", "AAAA", "the address in the name is no IPv6 address", {"type": "A"}, INSECURE),
    Row(f"_http._tcp.alias.{SVC}", "SRV", "the Service has no port http (TCP)", {"name": f"_http._tcp.db.{SVC}"}),
    Row(f"a.pin._zone.alias.{SVC}", "A", "only headless Services have zonal names", {"name": f"a.pin._zone.db.{SVC}"}),
    # a Service with a cluster IP
    Row(f"rendered.{SVC}", "A", "no address is written in the Service (spec.clusterIP)",
        beside(service("rendered", cluster_ips=["10.96.0.7"], ports=PORTS))),
    Row(f"rendered.{SVC}", "SRV", "no address is written in the Service (spec.clusterIP)",
        beside(service("rendered", cluster_ips=["10.96.0.7"], ports=PORTS))),
    Row(f"_http._tcp.rendered.{SVC}", "SRV", "no address is written in the Service (spec.clusterIP)",
        beside(service("rendered", cluster_ips=["10.96.0.7"], ports=PORTS))),
    Row(f"rendered.{SVC}", "TXT", "records of type A, AAAA and SRV alone",
        {**beside(service("rendered", cluster_ips=["10.96.0.7"])), "type": "A"}),
    Row(f"api.{SVC}", "AAAA", "the Service has no IPv6 address", beside(service("api", cluster_ips=["fd00:96::1"]))),
    Row(f"api.{SVC}", "MX", "records of type A, AAAA and SRV alone", {"type": "A"}),
    Row(f"bare-api.{SVC}", "SRV", "the Service has no port", beside(service("bare-api", cluster_ips=["10.96.0.2"]))),
    Row(f"_http._tcp.api.{SVC}", "A", "records of type SRV alone", {"type": "SRV"}),
    Row(f"_tcp.api.{SVC}", "SRV", "names exist beneath it", {"name": f"_http._tcp.api.{SVC}"}),
    Row(f"_grpc._tcp.api.{SVC}", "SRV", "the Service has no port grpc (TCP)", {"name": f"_http._tcp.api.{SVC}"}),
    Row(f"_http._udp.api.{SVC}", "SRV", "the Service has no port http (UDP)", {"name": f"_http._tcp.api.{SVC}"}),
    Row(f"_udp.api.{SVC}", "SRV", "no port with a name and the protocol UDP", {"name": f"_http._tcp.api.{SVC}"}),
    Row(f"api.{SVC}", "A", "the Service has no ready endpoint (--ignore-empty-service)",
        {"flags": {"ignore-empty-service": False}}, IGNORED),
    Row(f"_http._tcp.api.{SVC}", "SRV", "the Service has no ready endpoint (--ignore-empty-service)",
        {"flags": {"ignore-empty-service": False}}, IGNORED),
    Row(f"10-0-0-1.api.{SVC}", "A", "the Service has no ready endpoint",
        beside(endpoint_slice("api", 1, [endpoint("10.0.0.1")]))),
    Row(f"a.pin._zone.api.{SVC}", "A", "only headless Services have zonal names", {"name": f"a.pin._zone.db.{SVC}"}),
    # a headless Service
    Row(f"asleep.{SVC}", "A", "the Service has no ready endpoint", beside(READY)),
    Row(f"_http._tcp.asleep.{SVC}", "SRV", "the Service has no ready endpoint", beside(READY)),
    Row(f"_tcp.asleep.{SVC}", "SRV", "the Service has no ready endpoint",
        {**beside(READY), "name": f"_http._tcp.asleep.{SVC}"}),
    Row(f"z-0.asleep.{SVC}", "A", "the Service has no ready endpoint", beside(READY)),
    Row(f"a.pin._zone.asleep.{SVC}", "A", "the Service has no ready endpoint", beside(READY)),
    Row(f"db.{SVC}", "A", "endpoints have no records (--no-endpoints)",
        {"flags": {"no-endpoints": False}}, {"no-endpoints": True}),
    Row(f"db-0.db.{SVC}", "A", "endpoints have no records (--no-endpoints)",
        {"flags": {"no-endpoints": False}}, {"no-endpoints": True}),
    Row(f"db.{SVC}", "TXT", "records of type A, AAAA and SRV alone", {"type": "A"}),
    Row(f"db.{SVC}", "AAAA", "no ready endpoint has an IPv6 address", beside(SIX)),
    Row(f"portless.{SVC}", "SRV", "no ready endpoint has a port", {"name": f"db.{SVC}"}),
    Row(f"_grpc._tcp.db.{SVC}", "SRV", "the Service has no port grpc (TCP)", {"name": f"_http._tcp.db.{SVC}"}),
    Row(f"_http._tcp.db.{SVC}", "A", "records of type SRV alone", {"type": "SRV"}),
    Row(f"_tcp.db.{SVC}", "A", "names exist beneath it", {"name": f"_http._tcp.db.{SVC}", "type": "SRV"}),
    Row(f"near.{SVC}", "AAAA", "the endpoints nearest to the client: none of them has an IPv6 address",
        beside(service("near", ports=PORTS))),
    Row(f"_admin._tcp.near.{SVC}", "SRV",
        "the endpoints nearest to the client: none of them has the port admin (TCP)",
        beside(endpoint_slice("near", 1, [endpoint("10.0.1.1", nodeName="a1")], ports=[("admin", 81, "TCP")]))),
    Row(f"far.{SVC}", "A", "no ready endpoint is as near as the constraint demands", beside(service("far"))),
    Row(f"db.shop.svc.{LONG}", "SRV", "longer than a name can be",
        {"flags": {"zone": ["cluster.local"]}, "name": f"db.{SVC}"}, {"zone": [LONG]}),
    Row(f"db-7.db.{SVC}", "A", "no ready endpoint of the Service has this name", {"name": f"db-0.db.{SVC}"}),
    Row(f"db-9.db.{SVC}", "A", "the endpoint of this name is not ready",
        beside(endpoint_slice("db", 1, [endpoint("10.0.0.3", hostname="db-9")]))),
    Row(f"db-0.db.{SVC}", "AAAA", "the endpoint has no IPv6 address", beside(SIX)),
    Row(f"p-0.portless.{SVC}", "SRV", "the endpoint has no port", {"name": f"db-0.db.{SVC}"}),
    Row(f"db-0.db.{SVC}", "TXT", "records of type A, AAAA and SRV alone", {"type": "A"}),
    # zonal names
    Row(f"a.pin._zone.db.{SVC}", "A", "there are no zonal names (--zonal off)",
        {"flags": {"zonal": ZONE}}, {"zonal": "off"}),
    Row(f"_zone.db.{SVC}", "A", "names exist beneath it", {"name": f"a.pin._zone.db.{SVC}"}),
    Row(f"x.pin._zone.db.{SVC}", "A", f"no ready endpoint has {ZONE}=x, which the name demands",
        {"name": f"a.pin._zone.db.{SVC}"}),
    Row(f"a.pin._zone.db.{SVC}", "AAAA", f"with {ZONE}=a, which the name demands: none of them has an IPv6 address",
        beside(SIX)),
    Row(f"a.prefer._zone.db.{SVC}", "TXT", "records of type A, AAAA and SRV alone", {"type": "A"}),
    # multi-cluster Services
    Row(f"web.{SET}", "A", "no address is written in the ServiceImport (spec.ips)", beside(ADDRESS_OF_WEB)),
    Row(f"web.{SET}", "SRV", "no address is written in the ServiceImport (spec.ips)", beside(ADDRESS_OF_WEB)),
    Row(f"webs.{SET}", "A", "serves no ServiceImport shop/webs, did you mean web?",
        {"name": f"store.{SET}"}),
    Row(f"db.{SET}", "A", "serves no ServiceImport shop/db", {"name": f"store.{SET}"}),
    Row(f"west.store.{SET}", "A", "names exist beneath it", {"name": f"s-0.west.store.{SET}"}),
    Row(f"north.store.{SET}", "A", "or is in a cluster of this name",
        {**beside(imported_slice("store", "north", [endpoint("10.3.0.6", hostname="n-0")])),
         "name": f"n-0.north.store.{SET}"}),
    Row(f"s-0.north.store.{SET}", "A", "no ready endpoint of the Service has this name",
        {"name": f"s-0.west.store.{SET}"}),
    Row(f"s-1.west.store.{SET}", "A", "the endpoint of this name is not ready",
        beside(imported_slice("store", "west", [endpoint("10.2.0.7", hostname="s-1")]))),
    Row(f"s-0.west.store.{SET}", "AAAA", "the endpoint has no IPv6 address", {"type": "A"}),
    Row(f"store.{SET}", "AAAA", "no ready endpoint has an IPv6 address", {"type": "A"}),
    Row(f"a.pin._zone.store.{SET}", "A", "no name in the zone clusterset.local has this form",
        {"name": f"store.{SET}"}),
    # federated names
    Row("fed.example", "A", "records of type SOA and NS alone", {"type": "SOA"}),
    Row("shop.fed.example", "A", "names exist beneath it", {"name": f"shared.{FED}"}),
    Row("shops.fed.example", "A", "no cluster exports a Service in namespace shops that", {"name": f"shared.{FED}"}),
    Row(f"db.{FED}", "A", "no cluster exports a Service shop/db that has a ready endpoint",
        beside(service("db", ports=PORTS, annotations=EXPORTED))),
    Row(f"shared.{FED}", "TXT", "records of type A, AAAA and SRV alone", {"type": "A"}),
    Row(f"shared.{FED}", "AAAA", "the entries nearest to the client: none of them has an IPv6 address", {"type": "A"}),
    Row(f"shared.{FED}", "A", "nothing that the Service has can be reached by this client", {"client": CLIENT},
        client="203.0.113.1"),
    Row(f"_http._tcp.shared.{FED}", "A", "records of type SRV alone", {"type": "SRV"}),
    Row(f"_tcp.shared.{FED}", "A", "names exist beneath it", {"name": f"_http._tcp.shared.{FED}", "type": "SRV"}),
    Row(f"_grpc._tcp.shared.{FED}", "SRV", "no entry of the Service has a port grpc (TCP)",
        {"name": f"_http._tcp.shared.{FED}"}),
    Row(f"_udp.shared.{FED}", "SRV", "no entry of the Service has a port with a name and the protocol UDP",
        {"name": f"_http._tcp.shared.{FED}"}),
    Row(f"east.shared.{FED}", "A", "names exist beneath it", {"name": f"e-0.east.shared.{FED}"}),
    Row(f"north.shared.{FED}", "A", "no entry of the Service is in a cluster north",
        {"name": f"e-0.east.shared.{FED}"}),
    Row(f"e-1.east.shared.{FED}", "A", "no entry of the Service has this name", {"name": f"e-0.east.shared.{FED}"}),
    Row(f"e-0.east.shared.{FED}", "AAAA", "the entry has no IPv6 address", {"type": "A"}),
    Row(f"e-0.east.shared.{FED}", "TXT", "records of type A, AAAA and SRV alone", {"type": "A"}),
]  # fmt: skip


def explained(items: Sequence[Item], flags: Mapping[str, Any], name: str, rtype: str, client: str) -> Explanation:
    """Return what ``explain --candidates`` tells in the cluster east, beside the cluster west."""
    latest = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one for one in items}
    clusters = ClustersInMemory([*latest.values()], {"west": WEST}, {**FLAGS, **flags})
    return explanation_of(clusters.snapshot(), name, client, rtype, flags=clusters.flags, candidates=True)


@pytest.mark.parametrize("row", ROWS, ids=[f"{number}-{row.name[:60]}-{row.type}" for number, row in enumerate(ROWS)])
def test_without_records(row: Row) -> None:
    """The reason is told; and as soon as it does not hold any more, and nothing else has changed, there are records."""
    told = explained(OWN, row.flags, row.name, row.type, row.client)
    records = [answer for answer in told.answers if answer.type == row.type]
    assert (records, row.reason in told.reason) == ([], True), told.reason
    fix = row.fix
    asked = {"name": row.name, "rtype": row.type, "client": row.client}
    asked |= {{"type": "rtype"}.get(key, key): fix[key] for key in ("name", "type", "client") if key in fix}
    fixed = explained([*OWN, *fix.get("items", ())], {**row.flags, **fix.get("flags", {})}, **asked)
    assert fixed.rcode == "NOERROR"
    assert any(answer.type == asked["rtype"] for answer in fixed.answers), fixed.reason
    assert row.reason not in fixed.reason


NAMES = sorted({row.name for row in ROWS} | {row.fix["name"] for row in ROWS if "name" in row.fix})


@pytest.mark.parametrize("flags", [{}, VERIFIED, {"no-endpoints": True}], ids=["default", "pods", "no-endpoints"])
def test_no_reason_stands_for_both(flags: Mapping[str, Any]) -> None:
    """Whatever is asked: why there are records is never why there are none, and the other way round."""
    with_records, without = dict[str, str](), dict[str, str]()
    clusters = ClustersInMemory(OWN, {"west": WEST}, {**FLAGS, **flags})
    snapshot = clusters.snapshot()
    for name in NAMES:
        for rtype in ("A", "AAAA", "SRV", "PTR", "TXT", "NS", "SOA", "ANY"):
            told = explanation_of(snapshot, name, CLIENT, rtype, flags=clusters.flags)
            found = any(answer.type in (rtype, "HINFO") for answer in told.answers)
            (with_records if found else without)[told.reason] = f"{name} {rtype}"
    both = with_records.keys() & without.keys() - {"the Service is an alias"}  # of ANY, the CNAME is the answer
    assert not {reason: (with_records[reason], without[reason]) for reason in both}
