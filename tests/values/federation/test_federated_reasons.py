# SPDX-License-Identifier: Apache-2.0

"""Why a client gets the entries of a federated name: what ``explain`` tells, and how long votes count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dnsserver.tools.explain.explanation import Explanation
from dnsserver.tools.explain.explanation_text import as_text
from locator.model import CLUSTER
from tests.kit.api_objects import HOSTNAME, REGION, ZONE, external, namespace, node, service_health
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import NOW, ClustersInMemory
from tests.kit.three_clusters import cluster

NAME = "web.shop.fed.example"
FLAGS: dict[str, Any] = {
    "cluster-name": "east", "federation": ["fed.example"], "upstream": "off",
    "subnet": ["198.51.100.0/24=topology.kubernetes.io/region=r2"],
}  # fmt: skip


def explained(clusters: ClustersInMemory, client: str) -> Explanation:
    """Return what ``explain --candidates`` tells about an A query."""
    return explanation_of(clusters.snapshot(), NAME, client, flags=clusters.flags, candidates=True)


def test_a_block_of_the_only_cluster_is_in_that_cluster() -> None:
    """Its nodes may have nothing else in common: clients in it reach the cluster IP, as beside other clusters."""
    items = [
        *cluster(1, 1, "203.0.113.1", headless=False),
        node("n2", {ZONE: "z9", REGION: "r9"}, cidrs=["10.2.0.0/16"]),
    ]
    for others in ({}, {"west": [namespace("shop")]}):
        found = explained(ClustersInMemory(items, others, FLAGS), "10.0.0.0/14")
        assert (found.client.labels, [answer.data for answer in found.answers]) == (
            {CLUSTER: "east"}, ["10.96.1.1"],
        )  # fmt: skip


# Votes of the clusters' probers


BALANCERS = {"east": "203.0.113.1", "west": "203.0.113.2", "south": "203.0.113.3"}


def voting(*against: str, down: tuple[str, ...] = ("203.0.113.2",), renewed: float = NOW) -> ClustersInMemory:
    """Return three clusters with a load balancer each; those *against* vote against some addresses."""
    made = {
        name: [
            *cluster(number, 1, address, headless=False),
            *([service_health("web", name, dict.fromkeys(down, False), renewed)] if name in against else []),
        ]
        for number, (name, address) in enumerate(BALANCERS.items(), start=1)
    }
    return ClustersInMemory(made["east"], {"west": made["west"], "south": made["south"]}, FLAGS)


def test_a_vote_ends() -> None:
    """It counts for 30 s after it was last seen to change, whatever the clock of its cluster says."""
    clusters = voting("east", "south", renewed=NOW - 20)
    before = clusters.clusters.publish(NOW, moment=100.0)
    assert clusters.clusters.due == pytest.approx(110.0)
    assert clusters.clusters.publish(NOW + 9, moment=109.0).federated is before.federated
    ended = clusters.clusters.publish(NOW + 11, moment=111.0)
    assert ended.federated is not before.federated
    assert not any(entry.down for member in ended.federated["shop/web"].members for entry in member.balancers)


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
    found = explained(voting("east", "south"), "192.0.2.1")
    (row,) = (row for row in found.candidates if row.cluster == "west")
    assert (row.chosen, row.why) == (False, "most clusters vote against it: east, south")
    assert msgspec.json.decode(msgspec.json.encode(row.votes)) == [
        {"cluster": "east", "vote": "unhealthy"},
        {"cluster": "west", "vote": "none"},
        {"cluster": "south", "vote": "unhealthy"},
    ]


# Why


NO_ADDRESS = "the client reaches only the load balancer of cluster west, and it has no address"
OUT_OF_REACH = [
    ("no-balancer", (), True, {}, "198.51.100.1", NO_ADDRESS),
    ("no-balancer-beside-a-flat-network", (), True, {"flat-network": ["west,south"]}, "10.1.0.99", NO_ADDRESS),
    ("unresolved", ("lb.example.com",), True, {}, "10.1.0.99",
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
    clusters = ClustersInMemory(
        cluster(1, 1, "203.0.113.1"), {"west": west, "south": cluster(3, 1, "203.0.113.3")}, {**FLAGS, **flags}
    )
    assert [row.why for row in explained(clusters, client).candidates if row.cluster == "west"] == [why]


def test_what_is_missing_beside_what_is_there() -> None:
    """A cluster without a ready endpoint has a row, too, and so has a host name that nothing resolves."""
    empty, unresolved = cluster(2, 0, "203.0.113.2"), cluster(3, 1, "203.0.113.3", "lb.example.com")
    clusters = ClustersInMemory(cluster(1, 1), {"west": empty, "south": unresolved}, FLAGS)
    found = explained(clusters, "10.1.0.99")
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
    found = explained(ClustersInMemory(cluster(1, 1), {"west": west}, FLAGS), "10.1.0.99")
    assert [row.why for row in found.candidates][1:] == [
        "an ExternalName Service in cluster west has no address to contribute"
    ]


def test_why_clusters_offer_nothing_without_endpoint_records() -> None:
    """Each has a row, although no endpoint of it has one."""
    others = {"west": cluster(2, 1), "south": cluster(3, 1, "203.0.113.3", headless=False)}
    flags = {**FLAGS, "no-endpoints": True, "flat-network": ["east,west"]}
    found = explained(ClustersInMemory(cluster(1, 1), others, flags), "10.1.0.99")
    why = {row.cluster: row.why for row in found.candidates if not row.chosen}
    assert why == dict.fromkeys(["east", "west"], "its endpoints have no records (--no-endpoints)")


def test_why_a_node_of_the_same_name_does_not_match() -> None:
    """It is in another cluster."""
    flags = {**FLAGS, "flat-network": ["east,west"]}
    own = [*cluster(1, 1, keys=HOSTNAME)[:2], node("n2", cidrs=["10.9.0.0/24"])]
    found = explained(ClustersInMemory(own, {"west": cluster(2, 1, keys=HOSTNAME)}, flags), "10.1.0.99")
    (row,) = found.candidates
    assert (row.chosen, row.why) == (False, f"{HOSTNAME} is n1, but in another cluster")


def test_a_service_that_nobody_can_reach() -> None:
    """It has a ready endpoint, but no address for anybody: the name does not exist."""
    web = cluster(1, 1, headless=False)
    web[2]["spec"] |= {"clusterIP": "", "clusterIPs": []}
    found = explained(ClustersInMemory(web, {"west": [namespace("shop")]}, FLAGS), "10.1.0.99")
    assert (found.rcode, found.reason) == (
        "NXDOMAIN", "no cluster exports a Service shop/web that has a ready endpoint and an address for anybody",
    )  # fmt: skip
