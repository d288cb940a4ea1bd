# SPDX-License-Identifier: Apache-2.0

"""Federated names: some rules by hand, what rotates and what is cut, how long answers and votes hold, and why.

Which addresses clients get in any clusters is in ``test_every_cluster.py``, and in the scenarios.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import msgspec
import pytest

from dnsserver import names
from dnsserver.answers import endpoint_names
from dnsserver.answers.choosing import IN_SRV_ALONE
from dnsserver.tools.explain.explanation import Explanation
from dnsserver.tools.explain.explanation_text import as_text
from locator.ip import parse_address
from locator.model import CLUSTER
from tests.kit.api_objects import (
    HOSTNAME,
    IMPORTED_SERVICE_NAME,
    REGION,
    ZONE,
    endpoint,
    external,
    namespace,
    node,
    service,
    service_health,
)
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import (
    NOW,
    ClustersInMemory,
    CountedResponder,
    ask_in_memory,
    resolved,
    with_and_without_native,
)
from tests.kit.three_clusters import Change, cluster, endpoints, three_clusters, votes, web

NAME = "web.shop.fed.example"
FLAGS: dict[str, Any] = {
    "cluster-name": "east", "federation": ["fed.example"], "upstream": "off",
    "subnet": ["198.51.100.0/24=topology.kubernetes.io/region=r2"],
}  # fmt: skip
FLAT = {**FLAGS, "flat-network": ["east,west"]}
NO_EDNS = -1
IN_EAST, IN_R2, ELSEWHERE = "10.1.0.99", "198.51.100.1", "192.0.2.1"


def asked(
    responder: CountedResponder, client: str, qtype: str = "A", *, name: str = NAME, edns: int = 0, proto: str = "udp"
) -> dns.message.Message:
    query = dns.message.make_query(name, qtype, use_edns=edns)
    reply = ask_in_memory(responder, query, client, proto=proto)
    assert reply is not None
    return reply


def data(reply: dns.message.Message) -> list[str]:
    return [str(row) for rrset in reply.answer for row in rrset]


EVERYWHERE, BALANCERS = "east west south", ("192.0.2.1", "192.0.2.2", "192.0.2.3")
IN_WEST = "10.2.0.99"
HEADLESS = {"clusterIP": "None", "clusterIPs": ["None"]}
TWO_IN_WEST = endpoints("west", *(endpoint(f"10.2.0.{last}", nodeName="n1") for last in (10, 9)))
ALIKE = web("west", balancers=["192.0.2.3"])
ROWS: list[tuple[str, str, str, list[Change], dict[str, Any]]] = [
    # rule, client, the selection and after a bar the spares, what differs from three alike clusters, flags
    ("flat-the-other-way", IN_WEST, "10.96.2.1 | 10.1.0.5 192.0.2.3", [], {"flat-network": ["east,west"]}),
    ("flat-not-through-another", IN_EAST, "10.96.1.1 | 10.2.0.5 192.0.2.3", [],
     {"flat-network": ["east,west", "west,south"]}),
    ("invalid-is-passed-over", IN_EAST, "10.96.1.1", [web("east", keys=f"*,{ZONE}"), web("west", keys=CLUSTER)], {}),
    ("traffic-distribution-does-not-count", IN_EAST, "10.96.1.1 | 192.0.2.2 192.0.2.3",
     [web("east", trafficDistribution="PreferClose")], {}),
    ("local-traffic-is-no-obstacle", IN_EAST, "10.96.1.1",
     [web("east", keys=CLUSTER, externalTrafficPolicy="Local")], {}),
    ("hostname-in-one-cluster-only", IN_EAST, "10.1.0.5", [web("east", **HEADLESS)],
     {"flat-network": ["east,west"], "federation-topology-keys": HOSTNAME}),
    ("spares-in-order-of-octets", IN_EAST, "10.96.1.1 | 10.2.0.9 10.2.0.10", [TWO_IN_WEST],
     {"flat-network": ["east,west"]}),
    ("no-spare-twice", IN_EAST, "10.96.1.1 | 192.0.2.3 192.0.2.4",
     [ALIKE, web("south", balancers=["192.0.2.3", "192.0.2.4"])], {"federation-spares": 2}),
    ("no-spare-that-was-selected", IN_R2, "192.0.2.3", [ALIKE, web("east", balancers=())], {}),
    ("all-against-all", IN_R2, "192.0.2.3 | 192.0.2.1 192.0.2.2", [votes(EVERYWHERE, *BALANCERS)], {}),
    ("all-that-a-hard-constraint-leaves", IN_R2, "192.0.2.3",
     [votes("east west", "192.0.2.3"), web("east", keys=REGION)], {}),
]  # fmt: skip


@pytest.mark.parametrize(("rtype", "begins"), [("SOA", "ns.dns.{0}. hostmaster.{0}. "), ("NS", "ns.dns.{0}.")])
def test_the_apex(rtype: str, begins: str) -> None:
    """What a delegation needs to be whole."""
    clusters = three_clusters()
    responder = ClustersInMemory(clusters.pop("east"), clusters, FLAGS).responder()
    (found,) = data(asked(responder, IN_EAST, rtype, name="fed.example"))
    assert found.startswith(begins.format("fed.example"))


@pytest.mark.parametrize(
    ("client", "answer", "changes", "flags"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_rules(client: str, answer: str, changes: list[Change], flags: dict[str, Any]) -> None:
    """What random clusters seldom show."""
    clusters = three_clusters(*changes)
    responder = ClustersInMemory(clusters.pop("east"), clusters, {**FLAGS, **flags}).responder()
    selection, spares = (part.split() for part in answer.partition("|")[::2])
    found = data(asked(responder, client))
    assert (sorted(found[: len(selection)]), found[len(selection) :]) == (selection, spares)


def responder_with(clusters: ClustersInMemory, *, native: bool) -> CountedResponder:
    responder = CountedResponder(clusters.flags, native=native)
    responder.publish(clusters.snapshot())
    return responder


@with_and_without_native
def test_only_the_selection_rotates(native: bool) -> None:
    """Each endpoint comes first; the spares follow in their order, and never come first."""
    others = {"west": cluster(2, 2, "203.0.113.2"), "south": cluster(3, 2, "203.0.113.3")}
    responder = responder_with(ClustersInMemory(cluster(1, 4), others, FLAGS), native=native)
    found = [data(asked(responder, IN_EAST)) for _ in range(60)]
    assert {tuple(row[4:]) for row in found} == {("203.0.113.3", "203.0.113.2")}  # by the names of their clusters
    assert {row[0] for row in found} == {f"10.1.0.{last}" for last in (5, 6, 7, 8)}


@with_and_without_native
@pytest.mark.parametrize("size", [28, 29, 30])
def test_spares_are_cut_before_the_selection(size: int, native: bool) -> None:
    """A reply that does not fit has TC, as much of the selection as fits, and spares only behind all of it."""
    west = cluster(2, 2, *(f"203.0.113.{last}" for last in range(1, 17)))
    flags = {**FLAGS, "federation-spares": 16}
    responder = responder_with(ClustersInMemory(cluster(1, size), {"west": west}, flags), native=native)
    for _ in range(3):
        reply = asked(responder, IN_EAST, edns=NO_EDNS)
        found = data(reply)
        assert (len(found), bool(reply.flags & dns.flags.TC)) == (29, True)  # 16 octets each; 512 have room for 29
        own = [text for text in found if text.startswith("10.")]
        assert len(own) == min(size, 29) and found[: len(own)] == own
        assert found[len(own) :] == sorted(found[len(own) :], key=parse_address)
    assert len(data(asked(responder, IN_EAST, edns=NO_EDNS, proto="tcp"))) == size + 16


def test_one_ttl_for_all_records() -> None:
    """Addresses of a host name come with their TTL; beside others, the lowest counts (RFC 2181, section 5.2)."""
    others = {"west": cluster(2, 1, "lb.example.com")}
    hosts = resolved({"lb.example.com": ["203.0.113.9"]}, ttl=3)
    responder = ClustersInMemory(cluster(1, 1), others, FLAGS, hosts=hosts).responder()
    assert [(rrset.ttl, len(rrset)) for rrset in asked(responder, IN_EAST).answer] == [(3, 2)]
    reply = asked(responder, IN_EAST, "SRV")
    assert [(row.ttl, str(row[0])) for row in (*reply.answer, *reply.additional) if row.rdtype == 1] == [
        (5, "10.1.0.5"), (3, "203.0.113.9"),
    ]  # fmt: skip
    hosts = resolved({"lb.example.com": ["203.0.113.9"]}, ttl=60)
    responder = ClustersInMemory(cluster(1, 1), others, FLAGS, hosts=hosts).responder()
    assert [rrset.ttl for client in (IN_EAST, IN_R2) for rrset in asked(responder, client).answer] == [5, 60]


@pytest.mark.parametrize("qtype", ["A", "SRV"])
@pytest.mark.parametrize("ttls", [(3, 60), (60, 3)], ids=["own-first", "other-first"])
def test_one_address_of_two_host_names(ttls: tuple[int, int], qtype: str) -> None:
    """An address that two host names have comes with the lower of their TTLs."""
    hosts = {
        name: found for name, ttl in zip(("a.lb", "b.lb"), ttls, strict=True)
        for found in resolved({name: ["203.0.113.9"]}, ttl=ttl).values()
    }  # fmt: skip
    clusters = ClustersInMemory(cluster(1, 1, "a.lb"), {"west": cluster(2, 1, "b.lb")}, FLAGS, hosts=hosts)
    reply = asked(clusters.responder(), ELSEWHERE, qtype)
    assert {rrset.ttl for rrset in (*reply.answer, *reply.additional)} == {3}


def test_a_hostname_that_reads_like_the_address_of_another_endpoint_is_no_target() -> None:
    """The address of that one has this name, if its own hostname is no target, because two pods have it."""
    own, hostnames = cluster(1, 1), ("web", "web", "10-1-0-5")
    own[3]["endpoints"] = [
        endpoint(f"10.1.0.{last}", nodeName="n1", hostname=hostname) for last, hostname in enumerate(hostnames, 5)
    ]
    responder = ClustersInMemory(own, {"west": [namespace("shop")]}, FLAGS).responder()
    reply = asked(responder, IN_EAST, "SRV")
    assert {f"{rrset.name} {rrset[0]}" for rrset in reply.additional} == {
        f"10-1-0-{last}.east.{NAME}. 10.1.0.{last}" for last in (5, 6, 7)
    }
    assert data(asked(responder, IN_EAST, name=f"10-1-0-5.east.{NAME}")) == ["10.1.0.5"]
    assert asked(responder, IN_EAST, name=f"web.east.{NAME}").rcode() == dns.rcode.NXDOMAIN


def test_endpoints_in_a_cluster_that_nobody_names_have_no_names() -> None:
    """They were imported from somewhere, as their slice says. All others still have theirs."""
    own = cluster(1, 1)
    own[3]["metadata"]["labels"][IMPORTED_SERVICE_NAME] = "web"  # without the source-cluster
    clusters = ClustersInMemory(own, {"west": cluster(2, 1, "203.0.113.2")}, FLAGS)
    responder = clusters.responder()
    assert set(data(asked(responder, IN_EAST))) == {"10.1.0.5", "203.0.113.2"}
    assert data(asked(responder, IN_EAST, "SRV")) == [f"0 100 80 203-0-113-2.west.{NAME}."]
    labels = ("203-0-113-2.west", "10-1-0-5.east", "west", "east")
    rcodes = [asked(responder, IN_EAST, name=f"{label}.{NAME}").rcode().name for label in labels]
    assert rcodes == ["NOERROR", "NXDOMAIN", "NOERROR", "NXDOMAIN"]
    assert "yes - endpoint - 10.1.0.5" in " ".join(as_text(explained(clusters, IN_EAST)).split())


def test_names_that_do_not_exist_cost_no_look_at_all_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can ask for any number of them."""
    looks, label = 0, names.endpoint_label

    def counted(*arguments: Any, **options: Any) -> str:
        nonlocal looks
        looks += 1
        return label(*arguments, **options)

    responder = ClustersInMemory(cluster(1, 100), {"west": cluster(2, 1)}, FLAGS).responder()
    monkeypatch.setattr(endpoint_names, "endpoint_label", counted)
    for number in range(50):
        assert asked(responder, IN_EAST, name=f"x{number}.east.{NAME}").rcode() == dns.rcode.NXDOMAIN
    assert looks <= 101


def test_a_change_elsewhere_forgets_nothing() -> None:
    """An answer holds until a Service of its name changes; a change there is in the next one."""
    clusters = ClustersInMemory(cluster(1), {"west": cluster(2, 2, "203.0.113.2")}, FLAGS)
    responder = clusters.responder()
    assert sorted(data(asked(responder, IN_EAST))) == ["10.1.0.5", "10.1.0.6", "203.0.113.2"]
    before, computed = clusters.snapshot(), responder.counts.computed
    clusters.take_in([*cluster(2, 2, "203.0.113.2"), service("other")], "west")
    responder.publish(clusters.snapshot())
    assert clusters.snapshot().federated is before.federated
    assert len(data(asked(responder, IN_EAST))) == 3 and responder.counts.computed == computed
    clusters.take_in(cluster(2, 2, "203.0.113.7"), "west")
    responder.publish(clusters.snapshot())
    assert sorted(data(asked(responder, IN_EAST))) == ["10.1.0.5", "10.1.0.6", "203.0.113.7"]


def test_without_endpoint_records_load_balancers_are_where_their_endpoints_are() -> None:
    """With ``--no-endpoints`` clients in a region still get the load balancer there."""
    own = cluster(1, 1, "203.0.113.1", headless=False, keys=f"{REGION},*")
    west = cluster(2, 1, "203.0.113.2", headless=False)
    responder = ClustersInMemory(own, {"west": west}, {**FLAGS, "no-endpoints": True}).responder()
    assert [data(asked(responder, IN_R2))[0] for _ in range(4)] == ["203.0.113.2"] * 4
    assert data(asked(responder, IN_EAST))[0] == "10.96.1.1"


@pytest.mark.parametrize(("client", "ttl"), [("10.1.0.9", 5), ("192.0.2.9", 0)], ids=["reached", "out-of-reach"])
def test_where_all_targets_are_too_long_nobody_gets_an_srv_record(client: str, ttl: int) -> None:
    """So the answer may be cached; but not where a client gets the error that nothing can be reached."""
    zone = ".".join(["z" * 58] * 4)
    responder = ClustersInMemory(cluster(1), {"west": cluster(2)}, {**FLAGS, "federation": [zone]}).responder()
    assert asked(responder, IN_EAST, name=f"web.shop.{zone}").answer
    reply = asked(responder, client, "SRV", name=f"web.shop.{zone}")
    assert not reply.answer
    assert [rrset.ttl for rrset in reply.authority] == [ttl]


def test_a_server_for_federated_names_alone() -> None:
    """With no ``zone``, names of the own cluster are refused like any other."""
    responder = ClustersInMemory(cluster(1), {"west": cluster(2)}, {**FLAGS, "zone": []}).responder()
    names = (NAME, "web.shop.svc.cluster.local", "example", "5.0.1.10.in-addr.arpa")
    rcodes = [asked(responder, IN_EAST, name=name).rcode().name for name in names]
    assert rcodes == ["NOERROR", "REFUSED", "REFUSED", "REFUSED"]


# Votes of the clusters' probers


def voting(*against: str) -> ClustersInMemory:
    """Return three clusters with a load balancer each; those *against* vote against that of west."""
    made = {
        name: [
            *cluster(number, 1, f"203.0.113.{number}", headless=False),
            *[service_health("web", name, {"203.0.113.2": False}, NOW)] * (name in against),
        ]
        for number, name in enumerate(("east", "west", "south"), start=1)
    }
    return ClustersInMemory(made.pop("east"), made, FLAGS)


def test_a_renewal_changes_nothing() -> None:
    """Votes are renewed every few seconds: answers and their serial stay."""
    clusters = voting("east", "south")
    before = clusters.snapshot()
    renewed = service_health("web", "south", {"203.0.113.2": False}, NOW + 7)
    clusters.take_in([*cluster(3, 1, "203.0.113.3", headless=False), renewed], "south")
    after = clusters.snapshot(now=NOW + 7)
    assert (after.federated is before.federated, after.serial) == (True, before.serial)


def test_explain_shows_the_votes() -> None:
    """What each cluster says, and that most are against it."""
    found = explained(voting("east", "south"), ELSEWHERE)
    (row,) = (row for row in found.candidates if row.cluster == "west")
    assert (row.chosen, row.why) == (False, "most clusters vote against it: east, south")
    assert msgspec.json.decode(msgspec.json.encode(row.votes)) == [
        {"cluster": "east", "vote": "unhealthy"},
        {"cluster": "west", "vote": "none"},
        {"cluster": "south", "vote": "unhealthy"},
    ]


# Why


def explained(clusters: ClustersInMemory, client: str) -> Explanation:
    """Return what ``explain --candidates`` tells about an A query."""
    return explanation_of(clusters.snapshot(), NAME, client, flags=clusters.flags, candidates=True)


NO_ADDRESS = "the client reaches only the load balancer of cluster west, and it has no address"
OUT_OF_REACH = [
    ("no-balancer", (), True, {}, IN_R2, NO_ADDRESS),
    ("no-balancer-beside-a-flat-network", (), True, {"flat-network": ["west,south"]}, IN_EAST, NO_ADDRESS),
    ("unresolved", ("lb.example.com",), True, {}, IN_EAST,
     "the client reaches only the load balancer of cluster west, and nothing resolves lb.example.com"),
    ("no-cluster-ip", ("203.0.113.2",), False, {}, "10.2.0.99",
     "the Service has no cluster IP in cluster west"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("balancers", "headless", "flags", "client", "why"),
    [row[1:] for row in OUT_OF_REACH],
    ids=[row[0] for row in OUT_OF_REACH],
)
def test_why_a_cluster_offers_nothing(
    balancers: Sequence[str], headless: bool, flags: dict[str, Any], client: str, why: str
) -> None:
    """``explain`` tells what is missing: a load balancer, its address, or a cluster IP."""
    west = cluster(2, 1, *balancers, headless=headless)
    if not headless:
        west[2]["spec"] |= {"clusterIP": "", "clusterIPs": []}
    others = {"west": west, "south": cluster(3, 1, "203.0.113.3")}
    found = explained(ClustersInMemory(cluster(1, 1, "203.0.113.1"), others, {**FLAGS, **flags}), client)
    assert [row.why for row in found.candidates if row.cluster == "west"] == [why]


@pytest.mark.parametrize(
    ("balancers", "given", "reason"),
    [
        ((), [], IN_SRV_ALONE),
        (("203.0.113.2",), ["203.0.113.2"], "every entry: none is nearer, and the constraint allows any"),
    ],
    ids=["no-balancer", "balancer"],
)
def test_why_pods_that_listen_elsewhere_are_in_no_address_record(
    balancers: Sequence[str], given: list[str], reason: str
) -> None:
    """In a flat network, ``explain`` lists the pods, and says that SRV has them."""
    west = cluster(2, 1, *balancers, headless=False, ports=[("main", 8080, "TCP")])
    clusters = ClustersInMemory(cluster(1, 0), {"west": west}, FLAT)
    found = explained(clusters, IN_EAST)
    why = {address: row.why for row in found.candidates for address in row.addresses}
    assert (why["10.2.0.5"], [row.data for row in found.answers]) == (IN_SRV_ALONE, given)
    assert found.reason == reason
    assert data(asked(clusters.responder(), IN_EAST, "SRV")) == [f"0 100 80 10-2-0-5.west.{NAME}."]


def test_what_is_missing_beside_what_is_there() -> None:
    """A cluster without a ready endpoint has a row, too, and so has a host name that nothing resolves."""
    empty, unresolved = cluster(2, 0, "203.0.113.2"), cluster(3, 1, "203.0.113.3", "lb.example.com")
    found = explained(ClustersInMemory(cluster(1, 1), {"west": empty, "south": unresolved}, FLAGS), IN_EAST)
    rows = [(row.cluster, row.kind, row.addresses, row.ready, row.why) for row in found.candidates]
    assert rows[2:] == [
        ("south", "load balancer", (), True, "nothing resolves lb.example.com"),
        ("west", "endpoint", (), False, "no endpoint of the Service is ready in cluster west"),
    ]
    assert [" ".join(line.split()) for line in as_text(found).splitlines()[-2:]] == [
        "no south load balancer - - - - - nothing resolves lb.example.com",
        "no west endpoint - - - - - no endpoint of the Service is ready in cluster west",
    ]


def test_an_alias_contributes_nothing() -> None:
    west = [namespace("shop"), external("web", "db.example")]
    west[1]["metadata"]["annotations"] = {"topodns.io/federated": "true"}
    found = explained(ClustersInMemory(cluster(1, 1), {"west": west}, FLAGS), IN_EAST)
    assert [row.why for row in found.candidates][1:] == [
        "an ExternalName Service in cluster west has no address to contribute"
    ]


def test_why_clusters_offer_nothing_without_endpoint_records() -> None:
    """Each has a row, although no endpoint of it has one."""
    others = {"west": cluster(2, 1), "south": cluster(3, 1, "203.0.113.3", headless=False)}
    found = explained(ClustersInMemory(cluster(1, 1), others, {**FLAT, "no-endpoints": True}), IN_EAST)
    why = {row.cluster: row.why for row in found.candidates if not row.chosen}
    assert why == dict.fromkeys(["east", "west"], "its endpoints have no records (--no-endpoints)")


def test_why_a_node_of_the_same_name_does_not_match() -> None:
    """It is in another cluster."""
    own = [*cluster(1, 1, keys=HOSTNAME)[:2], node("n2", cidrs=["10.9.0.0/24"])]
    found = explained(ClustersInMemory(own, {"west": cluster(2, 1, keys=HOSTNAME)}, FLAT), IN_EAST)
    (row,) = found.candidates
    assert (row.chosen, row.why) == (False, f"{HOSTNAME} is n1, but in another cluster")
