# SPDX-License-Identifier: Apache-2.0

"""Replies to federated names: what rotates, what does not, what is cut first, and how long they are remembered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import dns.flags
import dns.message
import pytest

from dnsserver import names
from dnsserver.answers import endpoint_names
from dnsserver.tools.explain.explanation_text import as_text
from locator.ip import parse_address
from tests.kit.api_objects import (
    HOSTNAME,
    IMPORTED_SERVICE_NAME,
    REGION,
    Item,
    endpoint,
    endpoint_slice,
    namespace,
    node,
    service,
)
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import (
    ClustersInMemory,
    CountedResponder,
    ask_in_memory,
    resolved,
    with_and_without_native,
)
from tests.kit.three_clusters import cluster

NAME = "web.shop.fed.example"
FLAGS: dict[str, Any] = {
    "cluster-name": "east", "federation": ["fed.example"], "upstream": "off",
    "subnet": ["198.51.100.0/24=topology.kubernetes.io/region=r2"],
}  # fmt: skip


def renamed(items: list[Item], name: str) -> list[Item]:
    """Return a cluster whose node n1 has another name."""
    return json.loads(json.dumps(items).replace('"n1"', f'"{name}"'))  # type: ignore[no-any-return]


def addresses(
    responder: CountedResponder, client: str, qtype: str = "A", *, edns: bool = True, proto: str = "udp"
) -> list[str]:
    reply = asked(responder, client, qtype, edns=edns, proto=proto)
    return [str(row) for rrset in reply.answer for row in rrset]


def asked(
    responder: CountedResponder,
    client: str,
    qtype: str = "A",
    *,
    name: str = NAME,
    edns: bool = True,
    proto: str = "udp",
) -> dns.message.Message:
    query = dns.message.make_query(name, qtype, use_edns=0 if edns else -1)
    reply = ask_in_memory(responder, query, client, proto=proto)
    assert reply is not None
    return reply


def responder_with(clusters: ClustersInMemory, *, native: bool | None = None) -> CountedResponder:
    responder = CountedResponder(clusters.flags, native=native)
    responder.publish(clusters.snapshot())
    return responder


@with_and_without_native
def test_only_the_selection_rotates(native: bool) -> None:
    """Each endpoint comes first about equally often; the spares follow in their order, and never come first."""
    clusters = ClustersInMemory(
        cluster(1, 4), {"west": cluster(2, 2, "203.0.113.2"), "south": cluster(3, 2, "203.0.113.3")}, FLAGS
    )
    responder, firsts = responder_with(clusters, native=native), Counter[str]()
    for _ in range(400):
        found = addresses(responder, "10.1.0.99")
        assert found[4:] == ["203.0.113.3", "203.0.113.2"]  # by the names of their clusters
        firsts[found[0]] += 1
    assert firsts.keys() == {f"10.1.0.{last}" for last in (5, 6, 7, 8)}
    assert max(abs(number - 100) for number in firsts.values()) < 50  # six standard deviations


@with_and_without_native
def test_spares_are_cut_before_the_selection(native: bool) -> None:
    """A reply that does not fit has TC, as much of the selection as fits, and spares only behind all of it."""
    west = {"west": cluster(2, 2, *(f"203.0.113.{last}" for last in range(1, 17)))}
    for size, count in ((27, 29), (28, 29), (29, 29), (30, 29)):  # 16 octets each; 512 have room for 29
        responder = responder_with(
            ClustersInMemory(cluster(1, size), west, {**FLAGS, "federation-spares": 16}), native=native
        )
        for _ in range(3):
            reply = asked(responder, "10.1.0.99", edns=False)
            found = [str(row) for rrset in reply.answer for row in rrset]
            assert (len(found), bool(reply.flags & dns.flags.TC)) == (count, True)
            own = [text for text in found if text.startswith("10.")]
            assert len(own) == min(size, count) and found[: len(own)] == own
            assert found[len(own) :] == sorted(found[len(own) :], key=parse_address)
        whole = addresses(responder, "10.1.0.99", edns=False, proto="tcp")
        assert len(whole) == size + 16


@with_and_without_native
def test_srv_records_keep_their_additional_records(native: bool) -> None:
    """Every target resolves to its one entry; if not all addresses fit, those of the nearest come first."""
    clusters = ClustersInMemory(cluster(1, 8), {"west": cluster(2, 2, "203.0.113.2", "2001:db8::2")}, FLAGS)
    responder = responder_with(clusters, native=native)
    for edns in (True, False):
        for _ in range(9):
            reply = asked(responder, "10.1.0.99", "SRV", edns=edns)
            rows = [row for rrset in reply.answer for row in rrset]
            assert [row.priority for row in rows[:8]] == [0] * 8
            additional = {str(rrset.name): [str(row) for row in rrset] for rrset in reply.additional}
            assert additional.keys() <= {str(row.target) for row in rows}
            if edns:
                assert [row.priority for row in rows[8:]] == [10, 20]
                assert additional.keys() == {str(row.target) for row in rows}
            for name, found in additional.items():
                label = name.partition(".")[0].replace("-", ":" if name.startswith("2") and "db8" in name else ".")
                assert found == [label]


@pytest.mark.parametrize(
    ("keys", "client", "expected"),
    [
        ("topodns.io/cluster", "10.1.0.99", ["10.96.1.1"]),
        ("topodns.io/cluster", "192.0.2.1", []),
        (REGION, "198.51.100.1", ["203.0.113.2"]),
        (f"{REGION},*", "198.51.100.1", ["203.0.113.2", "203.0.113.1"]),
    ],
    ids=["hard-here", "hard-nowhere", "hard-region", "soft-region"],
)
def test_hard_constraints_have_no_spares(keys: str, client: str, expected: list[str]) -> None:
    """Who insists on nearness gets nothing else; who gets nothing is told so, and no cache keeps it."""
    own = cluster(1, 2, "203.0.113.1", headless=False, keys=keys)
    clusters = ClustersInMemory(own, {"west": cluster(2, 2, "203.0.113.2", headless=False)}, FLAGS)
    reply = asked(clusters.responder(), client)
    assert [str(row) for rrset in reply.answer for row in rrset] == expected
    if not expected:
        assert reply.authority[0].ttl == 0 and "label topodns.io/cluster" in str(reply.options[0])


def test_elsewhere_without_a_load_balancer() -> None:
    """Entries, but none for this client: NODATA that no cache keeps, and the reason."""
    reply = asked(ClustersInMemory(cluster(1), {"west": cluster(2)}, FLAGS).responder(), "192.0.2.1")
    assert (reply.rcode(), reply.answer, reply.authority[0].ttl) == (0, [], 0)
    assert "no address of the Service can be reached" in str(reply.options[0])


def test_one_ttl_for_all_records() -> None:
    """Addresses of a host name come with their TTL; beside others, the lowest counts (RFC 2181, section 5.2)."""
    others = {"west": cluster(2, 1, "lb.example.com")}
    hosts = resolved({"lb.example.com": ["203.0.113.9"]}, ttl=3)
    responder = ClustersInMemory(cluster(1, 1), others, FLAGS, hosts=hosts).responder()
    assert [(rrset.ttl, len(rrset)) for rrset in asked(responder, "10.1.0.99").answer] == [(3, 2)]
    reply = asked(responder, "10.1.0.99", "SRV")
    assert [(row.ttl, str(row[0])) for row in (*reply.answer, *reply.additional) if row.rdtype == 1] == [
        (5, "10.1.0.5"), (3, "203.0.113.9"),
    ]  # fmt: skip
    hosts = resolved({"lb.example.com": ["203.0.113.9"]}, ttl=60)
    responder = ClustersInMemory(cluster(1, 1), others, FLAGS, hosts=hosts).responder()
    assert [rrset.ttl for rrset in asked(responder, "10.1.0.99").answer] == [5]
    assert [rrset.ttl for rrset in asked(responder, "198.51.100.1").answer] == [60]


@pytest.mark.parametrize("qtype", ["A", "SRV"])
@pytest.mark.parametrize("ttls", [(3, 60), (60, 3)], ids=["own-first", "other-first"])
def test_one_address_of_two_host_names(ttls: tuple[int, int], qtype: str) -> None:
    """An address that two host names have comes with the lower of their TTLs."""
    hosts = {
        **resolved({"a.lb": ["203.0.113.9"]}, ttl=ttls[0]),
        **resolved({"b.lb": ["203.0.113.9"]}, ttl=ttls[1]),
    }
    own, others = cluster(1, 1, "a.lb"), {"west": cluster(2, 1, "b.lb")}
    reply = asked(ClustersInMemory(own, others, FLAGS, hosts=hosts).responder(), "192.0.2.99", qtype)
    assert {rrset.ttl for rrset in (*reply.answer, *reply.additional)} == {3}


@with_and_without_native
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["known-first", "unknown-first"])
def test_who_has_no_cluster_shares_nothing_with_who_is_in_another(order: Sequence[int], native: bool) -> None:
    """The former match a node name in any cluster, the latter only in their own; whoever asks first."""
    subnet = f"192.0.2.0/24={HOSTNAME}=n1"
    web = cluster(2, 1, "203.0.113.2", keys=f"{HOSTNAME},*")
    north = renamed(cluster(4, 1, "203.0.113.4"), "n9")
    clusters = ClustersInMemory(
        [namespace("shop")], {"west": web, "north": north, "south": [node("n1", cidrs=["10.3.0.0/16"])]},
        {**FLAGS, "subnet": [subnet]},
    )  # fmt: skip
    expected = [("10.3.0.9", {"203.0.113.2", "203.0.113.4"}), ("192.0.2.1", {"203.0.113.2"})]
    responder = responder_with(clusters, native=native)
    for _ in range(8):
        for client, first in (expected[number] for number in order):
            assert addresses(responder, client)[0] in first
    firsts = {client: {addresses(responder, client)[0] for _ in range(8)} for client, _ in expected}
    assert firsts == dict(expected)


def of_one_hostname() -> ClustersInMemory:
    """Return clusters whose own one has two endpoints of the hostname ``web``, as pods of a Deployment may have it."""
    items = [*cluster(1, 1, keys=f"{HOSTNAME},*")[:3], node("n2", cidrs=["10.2.0.0/16"])]
    for number in (1, 2):
        items.append(
            endpoint_slice("web", number, [endpoint(f"10.{number}.0.5", nodeName=f"n{number}", hostname="web")])
        )
    west = renamed(cluster(3, 1), "n9")
    west[3]["endpoints"] = [endpoint("10.3.0.5", nodeName="n9", hostname="web")]
    return ClustersInMemory(items, {"west": west}, {**FLAGS, "flat-network": ["east,west"]})


@with_and_without_native
def test_a_hostname_of_several_pods_in_a_cluster_is_no_target(native: bool) -> None:
    """Each target is one entry, so its address names it; a hostname that one endpoint of a cluster has is its name."""
    responder = responder_with(of_one_hostname(), native=native)
    for _ in range(3):
        for near, far in ((1, 2), (2, 1)):
            reply = asked(responder, f"10.{near}.0.9", "SRV")
            targets = [f"10-{near}-0-5.east", f"10-{far}-0-5.east", "web.west"]
            assert [(row.priority, str(row.target)) for row in reply.answer[0]] == [
                (10 * number, f"{target}.{NAME}.") for number, target in enumerate(targets)
            ]
            assert [str(rrset[0]) for rrset in reply.additional] == [f"10.{near}.0.5", f"10.{far}.0.5", "10.3.0.5"]


def test_each_target_has_one_address() -> None:
    responder = of_one_hostname().responder()

    def of(name: str) -> list[str] | str:
        reply = asked(responder, "10.1.0.9", name=f"{name}.{NAME}")
        return [str(data) for data in reply.answer[0]] if reply.answer else dns.rcode.to_text(reply.rcode())

    assert [of(name) for name in ("10-1-0-5.east", "10-2-0-5.east", "web.east", "web.west", "10-3-0-5.west")] == [
        ["10.1.0.5"], ["10.2.0.5"], "NXDOMAIN", ["10.3.0.5"], "NXDOMAIN",
    ]  # fmt: skip


def test_a_hostname_that_reads_like_the_address_of_another_endpoint_is_no_target() -> None:
    """The address of that one has this name, if its own hostname is no target."""
    own = cluster(1, 1)
    own[3]["endpoints"] = [
        endpoint("10.1.0.5", nodeName="n1", hostname="web"),
        endpoint("10.1.0.6", nodeName="n1", hostname="web"),
        endpoint("10.1.0.7", nodeName="n1", hostname="10-1-0-5"),
    ]
    responder = ClustersInMemory(own, {"west": [namespace("shop")]}, FLAGS).responder()
    reply = asked(responder, "10.1.0.9", "SRV")
    assert {f"{rrset.name} {rrset[0]}" for rrset in reply.additional} == {
        f"10-1-0-{last}.east.{NAME}. 10.1.0.{last}" for last in (5, 6, 7)
    }
    (row,) = asked(responder, "10.1.0.9", name=f"10-1-0-5.east.{NAME}").answer[0]
    assert str(row) == "10.1.0.5"


def test_endpoints_in_a_cluster_that_nobody_names_have_no_names() -> None:
    """They were imported from somewhere, as their slice says. All others still have theirs."""
    own = cluster(1, 1)
    own[3]["metadata"]["labels"][IMPORTED_SERVICE_NAME] = "web"  # without the source-cluster
    clusters = ClustersInMemory(own, {"west": cluster(2, 1, "203.0.113.2")}, FLAGS)
    responder = clusters.responder()
    assert set(addresses(responder, "10.1.0.99")) == {"10.1.0.5", "203.0.113.2"}
    assert addresses(responder, "10.1.0.99", "SRV") == [f"0 100 80 203-0-113-2.west.{NAME}."]
    names = (f"203-0-113-2.west.{NAME}", f"10-1-0-5.east.{NAME}", f"west.{NAME}", f"east.{NAME}")
    rcodes = [dns.rcode.to_text(asked(responder, "10.1.0.99", name=name).rcode()) for name in names]
    assert rcodes == ["NOERROR", "NXDOMAIN", "NOERROR", "NXDOMAIN"]
    lines = as_text(
        explanation_of(clusters.snapshot(), NAME, "10.1.0.99", flags=clusters.flags, candidates=True)
    ).splitlines()
    assert "yes - endpoint - 10.1.0.5" in " ".join(lines[-2].split())


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
        assert asked(responder, "10.1.0.9", name=f"x{number}.east.{NAME}").rcode() == dns.rcode.NXDOMAIN
    assert looks <= 101


def test_a_spare_of_both_families_has_one_target() -> None:
    """Its name has all its addresses, and one priority."""
    west = renamed(cluster(2, 1), "n9")
    west[3]["endpoints"] = [
        endpoint("10.2.0.5", nodeName="n9", hostname="web-0", targetRef={"kind": "Pod", "name": "w"})
    ]
    six = endpoint_slice("web", 2, [{**west[3]["endpoints"][0], "addresses": ["fd00:2::5"]}], family="IPv6")
    flags = {**FLAGS, "flat-network": ["east,west"]}
    reply = asked(ClustersInMemory(cluster(1, 1), {"west": [*west, six]}, flags).responder(), "10.1.0.9", "SRV")
    assert [row.priority for row in reply.answer[0]] == [0, 10]
    assert [str(rrset[0]) for rrset in reply.additional] == ["10.1.0.5", "10.2.0.5", "fd00:2::5"]


@with_and_without_native
def test_a_change_elsewhere_forgets_nothing(native: bool) -> None:
    """An answer holds until a Service of its name changes; a change there is in the next one."""
    clusters = ClustersInMemory(cluster(1), {"west": cluster(2, 2, "203.0.113.2")}, FLAGS)
    responder = responder_with(clusters, native=native)
    assert sorted(addresses(responder, "10.1.0.99")) == ["10.1.0.5", "10.1.0.6", "203.0.113.2"]
    before, computed = clusters.snapshot(), responder.counts.computed
    clusters.take_in([*cluster(2, 2, "203.0.113.2"), service("other")], "west")
    responder.publish(clusters.snapshot())
    assert clusters.snapshot().federated is before.federated
    assert len(addresses(responder, "10.1.0.99")) == 3 and responder.counts.computed == computed
    clusters.take_in(cluster(2, 2, "203.0.113.7"), "west")
    responder.publish(clusters.snapshot())
    assert sorted(addresses(responder, "10.1.0.99")) == ["10.1.0.5", "10.1.0.6", "203.0.113.7"]


def test_a_cluster_that_is_lost_and_comes_back() -> None:
    """What it contributed goes, and its clients are unknown; then all is as before."""
    clusters = ClustersInMemory(cluster(1), {"west": cluster(2, 2, "203.0.113.2")}, FLAGS)
    kept, responder = clusters.snapshot(), clusters.responder()
    clusters.clusters.update("west", None)
    responder.publish(clusters.snapshot())
    assert sorted(addresses(responder, "10.1.0.99")) == ["10.1.0.5", "10.1.0.6"]
    assert asked(responder, "10.2.0.99").answer == []
    clusters.take_in(cluster(2, 2, "203.0.113.2"), "west")
    responder.publish(clusters.snapshot())
    assert sorted(addresses(responder, "10.2.0.99")) == ["10.2.0.5", "10.2.0.6"]
    assert clusters.snapshot().federated.keys() == kept.federated.keys()


def test_without_endpoint_records_load_balancers_are_where_their_endpoints_are() -> None:
    """With ``--no-endpoints`` clients in a region still get the load balancer there."""
    clusters = ClustersInMemory(
        cluster(1, 1, "203.0.113.1", headless=False, keys=f"{REGION},*"),
        {"west": cluster(2, 1, "203.0.113.2", headless=False)},
        {**FLAGS, "no-endpoints": True},
    )
    responder = clusters.responder()
    assert [addresses(responder, "198.51.100.1")[0] for _ in range(4)] == ["203.0.113.2"] * 4
    assert addresses(responder, "10.1.0.99")[0] == "10.96.1.1"


def test_a_namespace_exists_while_it_has_a_federated_service() -> None:
    """Its name has no records, and names beneath it (RFC 8020)."""
    clusters = ClustersInMemory([namespace("shop")], {"west": [namespace("shop")]}, FLAGS)
    responder = clusters.responder()

    def rcode() -> str:
        return dns.rcode.to_text(asked(responder, "10.1.0.9", name="shop.fed.example").rcode())

    found = [rcode()]
    for west in (cluster(2, 1), cluster(2, 0), [*cluster(2, 1)[:2], namespace("shop")]):
        clusters.take_in(west, "west")
        responder.publish(clusters.snapshot())
        found.append(rcode())
    assert found == ["NXDOMAIN", "NOERROR", "NXDOMAIN", "NXDOMAIN"]


@pytest.mark.parametrize(("client", "ttl"), [("10.1.0.9", 5), ("192.0.2.9", 0)], ids=["reached", "out-of-reach"])
def test_where_all_targets_are_too_long_nobody_gets_an_srv_record(client: str, ttl: int) -> None:
    """So the answer may be cached; but not where a client gets the error that nothing can be reached."""
    name = f"web.shop.{'.'.join(['z' * 58] * 4)}"
    flags = {**FLAGS, "federation": [name.removeprefix("web.shop.")]}
    responder = ClustersInMemory(cluster(1), {"west": cluster(2)}, flags).responder()
    assert asked(responder, "10.1.0.9", name=name).answer
    reply = asked(responder, client, "SRV", name=name)
    assert not reply.answer
    assert [rrset.ttl for rrset in reply.authority] == [ttl]
