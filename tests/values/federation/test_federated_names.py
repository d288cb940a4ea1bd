# SPDX-License-Identifier: Apache-2.0

"""What a client gets for one name in three clusters, worked out by hand.

Each row is a change of ``tests/kit/three_clusters.py``, a client, and its answer: the selection in any order, and after
a bar the spares in their order. East is the own cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import dns.message
import dns.rcode
import dns.rdatatype
import pytest

from tests.kit.api_objects import (
    HOSTNAME,
    OLD,
    REGION,
    ZONE,
    Item,
    endpoint,
    imported_slice,
    item,
    node,
    pod,
)
from tests.kit.in_memory import ClustersInMemory, ask_in_memory, resolved
from tests.kit.three_clusters import IN_EAST, IN_SOUTH, IN_WEST, Change, added, endpoints, three_clusters, votes, web

CLUSTER = "topodns.io/cluster"
FEDERATED, PLAIN = "web.shop.fed.example", "web.shop.svc.cluster.local"
OUTSIDE, IN_R2, AS_WEST, ON_N1 = "203.0.113.9", "198.51.100.1", "198.51.101.1", "198.51.102.1"
FLAGS: dict[str, Any] = {
    "cluster-name": "east",
    "federation": ["fed.example"],
    "upstream": "off",
    "subnet": [
        f"198.51.100.0/24={REGION}=r2",
        f"198.51.101.0/24={CLUSTER}=west,{REGION}=r1",
        f"198.51.102.0/24={HOSTNAME}=n1",
    ],
}
FLAT = {"flat-network": ["east,west"]}
NOT_NOW = "NODATA that no cache keeps"  # since other clients get records
HEADLESS = {"clusterIP": "None", "clusterIPs": ["None"]}
NO_IP_YET = {"clusterIP": "", "clusterIPs": []}


def row(
    rule: str,
    client: str,
    answer: str,
    *changes: Change,
    flags: Mapping[str, Any] | None = None,
    hosts: Mapping[str, Sequence[str]] | None = None,
    name: str = FEDERATED,
    qtype: str = "A",
) -> Any:
    """Return a row of the table: what *flags* are like in a configuration file, and what *hosts* resolve to."""
    read = partial(clusters_of, changes, flags or {}, hosts or {})
    return pytest.param(read, name, qtype, client, answer, id=rule)


def clusters_of(
    changes: Sequence[Change], flags: Mapping[str, Any], hosts: Mapping[str, Sequence[str]]
) -> ClustersInMemory:
    clusters = three_clusters(*changes)
    return ClustersInMemory(clusters.pop("east"), clusters, {**FLAGS, **flags}, hosts=resolved(hosts))


def federated(names: str, value: str) -> Change:
    return web(names, annotations={"topodns.io/federated": value})


def exported(name: str, api: str) -> Change:
    return added(name, {**item("ServiceExport", "web", "shop"), "apiVersion": api})


def policy(key: str, mode: str, name: str = "policy") -> Change:
    """Add a policy for the Service in east."""
    spec = {"serviceSelector": {"matchLabels": {"app": "web"}}, "topology": {"key": key, "mode": mode}}
    return added("east", item("ServicePolicy", name, "shop", spec=spec))


def on_n1(*addresses: str, **fields: Any) -> list[Item]:
    return [endpoint(address, nodeName="n1", **fields) for address in addresses]


def second_node(labels: Mapping[str, str], *, ready: bool = True) -> Sequence[Change]:
    """Add a node to west, with an endpoint on it."""
    rows = *on_n1("10.2.0.5"), endpoint("10.2.0.6", nodeName="n2", ready=ready)
    return added("west", node("n2", labels)), endpoints("west", *rows)


def gone(clusters: dict[str, list[Item]]) -> None:
    del clusters["south"]


EVERYWHERE = "east west south"
NO_EXPORT = federated(EVERYWHERE, "false")
NOT_READY = endpoints(EVERYWHERE, *on_n1("10.1.0.5", ready=False))
EAST_NOT_READY = endpoints("east", endpoint("10.1.0.5", ready=False))
UNSAID = endpoints("east", endpoint("10.1.0.5", ready=None))
HINTS = [on_n1(f"10.1.0.{last}", hints={"forZones": [{"name": zone}]})[0] for last, zone in ((5, "z"), (6, "z1"))]
LABELLED = web("east", labels={"app": "web"})
TWO_IN_WEST = endpoints("west", *on_n1("10.2.0.10", "10.2.0.9"))
ALL_SOFT = web("east", keys="*")
LB = web("west", balancers=["lb.example"])
BY_REGION = {"federation-topology-keys": f"{REGION},*"}
STRAY = pod("p", ["10.9.0.77"], "n1")
NEITHER = "192.0.2.1 192.0.2.2 192.0.2.3"
DUAL_IP = web("east", clusterIPs=["10.96.1.1", "fd00::1"])
V6_IN_WEST = web("west", balancers=["192.0.2.2", "2001:db8::2"])
ONE_SPARE = {"federation-spares": 1}

ROWS = [
    # By who asks
    row("own-cluster-ip-first", IN_EAST, "10.96.1.1 | 192.0.2.2 192.0.2.3"),
    row("in-another-cluster", IN_SOUTH, "10.96.3.1 | 192.0.2.1 192.0.2.2"),
    row("in-no-cluster", IN_R2, "192.0.2.3 | 192.0.2.1 192.0.2.2"),
    row("unknown", OUTSIDE, "192.0.2.1 192.0.2.2 192.0.2.3"),
    row("counts-as-in-west", AS_WEST, "10.96.2.1 | 192.0.2.1 192.0.2.3"),
    row("node-address", "192.168.2.1", "10.96.2.1 | 192.0.2.1 192.0.2.3"),
    row("headless-here", IN_EAST, "10.1.0.5 | 192.0.2.2 192.0.2.3", web("east", **HEADLESS)),
    row("flat", IN_EAST, "10.96.1.1 | 10.2.0.5 192.0.2.3", flags=FLAT),
    row("flat-the-other-way", IN_WEST, "10.96.2.1 | 10.1.0.5 192.0.2.3", flags=FLAT),
    row("flat-with-others", IN_SOUTH, "10.96.3.1 | 192.0.2.1 192.0.2.2", flags=FLAT),
    row(
        "flat-not-through-another", IN_EAST, "10.96.1.1 | 10.2.0.5 192.0.2.3",
        flags={"flat-network": ["east,west", "west,south"]},
    ),
    row("no-load-balancer", IN_EAST, "10.96.1.1 | 192.0.2.3", web("west", balancers=())),
    row("no-cluster-ip-yet", IN_EAST, "192.0.2.2 | 192.0.2.3", web("east", **NO_IP_YET)),
    row(
        "host-name", IN_EAST, "10.96.1.1 | 192.0.2.9 192.0.2.88", LB,
        hosts={"lb.example": ["192.0.2.88", "2001:db8::8", "192.0.2.9"]},
    ),
    row("host-name-unresolved", IN_EAST, "10.96.1.1 | 192.0.2.3", LB),

    # Exported, or not
    row("exported-nowhere", IN_EAST, "NXDOMAIN", NO_EXPORT),
    row("annotation-not-true", IN_EAST, "NXDOMAIN", federated(EVERYWHERE, "True")),
    row("by-v1beta1", IN_EAST, "192.0.2.2", NO_EXPORT, exported("west", "multicluster.x-k8s.io/v1beta1")),
    row("by-v1alpha1", IN_EAST, "192.0.2.2", NO_EXPORT, exported("west", "multicluster.x-k8s.io/v1alpha1")),
    row("by-another-api", IN_EAST, "NXDOMAIN", NO_EXPORT, exported("west", "net.gke.io/v1")),
    row("by-both", IN_WEST, "10.96.2.1 | 192.0.2.1 192.0.2.3", exported("west", "multicluster.x-k8s.io/v1beta1")),
    row("elsewhere-only", IN_EAST, "192.0.2.2 | 192.0.2.3", federated("east", "false")),
    row("without-ready-endpoints", IN_EAST, "NXDOMAIN", NOT_READY),
    row("one-without-ready-endpoints", IN_EAST, "192.0.2.2 | 192.0.2.3", EAST_NOT_READY),
    row("ready-if-unsaid", IN_EAST, "10.1.0.5 | 192.0.2.2 192.0.2.3", web("east", **HEADLESS), UNSAID),
    row("nothing-for-outsiders", OUTSIDE, NOT_NOW, web(EVERYWHERE, balancers=())),
    row(
        "nothing-for-anybody", IN_WEST, "NXDOMAIN",
        federated("east south", "false"), web("west", balancers=(), **NO_IP_YET),
    ),
    row(
        "only-for-flat-neighbours", IN_WEST, NOT_NOW,
        federated("east south", "false"), web("west", balancers=(), **NO_IP_YET), flags=FLAT,
    ),

    # By constraints
    row("own-service-first", IN_SOUTH, "10.96.3.1", web("south", keys=CLUSTER), ALL_SOFT),
    row(
        "then-the-oldest", IN_R2, "192.0.2.3 | 192.0.2.2",
        web("south", keys=CLUSTER), web("west", keys=f"{REGION},*"), web("east", balancers=()),
    ),
    row(
        "oldest-that-has-one", IN_R2, "192.0.2.3",
        web("south", keys=REGION), web("east", trafficDistribution="PreferClose"),
    ),
    row(
        "not-of-one-that-is-not-exported", IN_EAST, "192.0.2.2 | 192.0.2.3",
        web("east", keys=REGION), federated("east", "false"),
    ),
    row("of-one-without-ready-endpoints", IN_EAST, NOT_NOW, web("east", keys=ZONE), EAST_NOT_READY),
    row("invalid-is-passed-over", IN_EAST, "10.96.1.1", web("east", keys=f"*,{ZONE}"), web("west", keys=CLUSTER)),
    row(
        "invalid-and-no-later-source", IN_EAST, "10.96.1.1 | 192.0.2.2 192.0.2.3",
        web("east", keys=f"*,{ZONE}", topologyKeys=[CLUSTER]),
    ),
    row("blank-says-nothing", IN_EAST, "10.96.1.1", web("east", keys=" ", topologyKeys=[CLUSTER])),
    row("external-traffic-policy", IN_EAST, "10.96.1.1", web("east", keys=CLUSTER, externalTrafficPolicy="Local")),
    row(
        "min-endpoints-do-not-count", IN_EAST, "10.96.1.1 | 192.0.2.3 192.0.2.2",
        web("east", keys=f"{CLUSTER},*", annotations={"topodns.io/min-endpoints": "2"}),
    ),
    row(
        "hints-do-not-count", IN_EAST, "10.1.0.5 10.1.0.6 | 192.0.2.2 192.0.2.3",
        web("east", **HEADLESS), endpoints("east", *HINTS),
    ),
    row("old-name-of-a-key", IN_R2, "192.0.2.3", web("east", keys=OLD[REGION])),
    row("policy-before-annotation", IN_EAST, "10.96.1.1", ALL_SOFT, LABELLED, policy(CLUSTER, "required")),
    row(
        "ignored-policy", IN_EAST, "10.96.1.1 192.0.2.2 192.0.2.3",
        ALL_SOFT, LABELLED, policy(CLUSTER, "ignored"),
    ),
    row(
        "policies-not-for-peers", IN_EAST, "10.96.1.1 192.0.2.2 192.0.2.3",
        ALL_SOFT, LABELLED, policy(CLUSTER, "required"), web("east", publishNotReadyAddresses=True),
    ),
    row(
        "preferred-policies-given-up-last-first", IN_EAST, "10.96.1.1 | 192.0.2.2 192.0.2.3",
        LABELLED, policy(REGION, "preferred", "1"), policy(CLUSTER, "preferred", "2"),
    ),
    row(
        "preferred-policy-that-narrows-nothing", IN_R2, "192.0.2.3 | 192.0.2.1 192.0.2.2",
        LABELLED, policy("no-such-label", "preferred", "1"), policy(REGION, "preferred", "2"),
    ),
    row(
        "required-and-preferred", IN_EAST, "10.96.1.1",
        LABELLED, policy(REGION, "required", "1"), policy(CLUSTER, "preferred", "2"),
    ),
    row("hard-and-nothing-near", IN_R2, NOT_NOW, web("east", keys=ZONE)),
    row("hard-and-unknown", OUTSIDE, NOT_NOW, web("east", keys=ZONE)),
    row(
        "hard-and-unknown-gets-all", OUTSIDE, "192.0.2.1 192.0.2.2 192.0.2.3",
        web("east", keys=ZONE), flags={"unknown-client": "all"},
    ),
    row(
        "by-the-settings", IN_EAST, "10.96.1.1 192.0.2.2 | 192.0.2.3",
        flags={"federation-topology-keys": f"{REGION},*"},
    ),

    # Selections and spares
    row("no-spares", IN_EAST, "10.96.1.1", flags={"federation-spares": 0}),
    row("one-spare", IN_EAST, "10.96.1.1 | 192.0.2.2", flags={"federation-spares": 1}),
    row("in-order-of-octets", IN_EAST, "10.96.1.1 | 10.2.0.9 10.2.0.10", TWO_IN_WEST, flags=FLAT),
    row(
        "no-spare-twice", IN_EAST, "10.96.1.1 | 192.0.2.3 192.0.2.4",
        web("west", balancers=["192.0.2.3"]), web("south", balancers=["192.0.2.3", "192.0.2.4"]),
        flags={"federation-spares": 3},
    ),
    row(
        "no-spare-that-was-selected", IN_R2, "192.0.2.3",
        web("west", balancers=["192.0.2.3"]), web("east", balancers=()),
    ),
    row(
        "hostname-in-one-cluster-only", IN_EAST, "10.1.0.5",
        web("east", **HEADLESS), flags={**FLAT, "federation-topology-keys": HOSTNAME},
    ),
    row(
        "hostname-of-a-client-in-no-cluster", ON_N1, "192.0.2.1 192.0.2.2 192.0.2.3",
        flags={"federation-topology-keys": f"{HOSTNAME},*"},
    ),
    row(
        "a-node-may-not-name-its-cluster", IN_EAST, "10.96.1.1 | 192.0.2.2 192.0.2.3",
        lambda clusters: clusters["west"][1]["metadata"]["labels"].update({CLUSTER: "east"}),
    ),
    row(
        "what-all-endpoints-share", IN_EAST, "10.96.1.1 192.0.2.2 | 192.0.2.3",
        *second_node({ZONE: "z", REGION: "r1"}), flags=BY_REGION,
    ),
    row(
        "what-not-all-endpoints-share", IN_EAST, "10.96.1.1 | 192.0.2.3 192.0.2.2",
        *second_node({ZONE: "z2", REGION: "r2"}), flags=BY_REGION,
    ),
    row(
        "unready-endpoints-need-not-share", IN_EAST, "10.96.1.1 192.0.2.2 | 192.0.2.3",
        *second_node({ZONE: "z", REGION: "r2"}, ready=False), flags=BY_REGION,
    ),
    row(
        "endpoint-without-any-place", IN_EAST, "10.1.0.5 | 192.0.2.2 192.0.2.3",
        web("east", **HEADLESS), endpoints("east", endpoint("10.1.0.5")),
    ),

    # Votes
    row("one-of-three", IN_R2, "192.0.2.3 | 192.0.2.1 192.0.2.2", votes("east", "192.0.2.3")),
    row("two-of-three", IN_R2, "192.0.2.1 192.0.2.2", votes("east west", "192.0.2.3")),
    row("healthy", IN_EAST, "10.96.1.1 | 192.0.2.2 192.0.2.3", votes(EVERYWHERE, healthy=["192.0.2.2"])),
    row("no-spare", IN_EAST, "10.96.1.1 | 192.0.2.3", votes("east south", "192.0.2.2")),
    row("own-cluster-ip-in-any-case", IN_SOUTH, "10.96.3.1 | 192.0.2.1 192.0.2.2", votes("east west", "192.0.2.3")),
    row("as-old-as-may-be", IN_EAST, "10.96.1.1 | 192.0.2.3", votes("east west", "192.0.2.2", age=30)),
    row(
        "too-old", IN_EAST, "10.96.1.1 | 192.0.2.2 192.0.2.3",
        votes("east", "192.0.2.2", age=31), votes("west", "192.0.2.2"),
    ),
    row("of-the-future", IN_EAST, "10.96.1.1 | 192.0.2.3", votes("east west", "192.0.2.2", age=-9)),
    row(
        "about-another-service", IN_EAST, "10.96.1.1 | 192.0.2.2 192.0.2.3",
        votes("east west", "192.0.2.2", service="db"),
    ),
    row("all-against-two", OUTSIDE, "192.0.2.2", votes(EVERYWHERE, "192.0.2.1", "192.0.2.3")),
    row(
        "all-against-all", IN_R2, "192.0.2.3 | 192.0.2.1 192.0.2.2",
        votes(EVERYWHERE, "192.0.2.1", "192.0.2.2", "192.0.2.3"),
    ),
    row(
        "all-that-a-hard-constraint-leaves", IN_R2, "192.0.2.3",
        votes("east west", "192.0.2.3"), web("east", keys=REGION),
    ),
    row(
        "by-host-name", IN_EAST, "10.96.1.1 | 192.0.2.2 192.0.2.3",
        web("west", balancers=["lb.example", "192.0.2.2"]), votes("east west", "lb.example"),
        hosts={"lb.example": ["192.0.2.88"]},
    ),
    row("half-is-no-majority", IN_EAST, "10.96.1.1 | 192.0.2.2", gone, votes("east", "192.0.2.2")),

    # Places
    row(
        "own-before-others", "10.1.0.77", "10.96.1.1 | 192.0.2.2 192.0.2.3",
        added("south", pod("p", ["10.1.0.77"], "n1")),
    ),
    row("two-others", "10.9.0.77", NEITHER, added("south west", STRAY)),
    row(
        "two-others-and-a-subnet", "10.9.0.77", NEITHER,
        added("south west", STRAY), flags={"subnet": [f"10.0.0.0/8={REGION}=r2"]},
    ),
    row(
        "one-other", "10.9.0.77", "10.96.3.1 | 192.0.2.1 192.0.2.2",
        added("south", STRAY), flags={"subnet": [f"10.0.0.0/8={REGION}=r1"]},
    ),
    row(
        "imported-slices-say-nothing", IN_SOUTH, "10.96.3.1 | 192.0.2.1 192.0.2.2",
        added("east", imported_slice("x", None, on_n1(IN_SOUTH))),
    ),

    # Families
    row("none-anywhere", IN_EAST, "NODATA", qtype="AAAA"),
    row("only-for-others", IN_EAST, NOT_NOW, V6_IN_WEST, qtype="AAAA"),
    row("of-both", IN_EAST, "fd00::1 | 2001:db8::2", DUAL_IP, V6_IN_WEST, qtype="AAAA"),
    row(
        "each-family-has-as-many-spares", IN_EAST, "10.96.1.1 | 192.0.2.3",
        DUAL_IP, web("west", balancers=["2001:db8::2"]), flags=ONE_SPARE,
    ),
    row("not-by-both-families", IN_EAST, "10.96.1.1 | 192.0.2.2", V6_IN_WEST, flags=ONE_SPARE),
    row(
        "targets-of-both", IN_EAST, "10.96.1.1 fd00::1 | 192.0.2.2 2001:db8::2",
        DUAL_IP, V6_IN_WEST, flags=ONE_SPARE, qtype="SRV",
    ),
    row(
        "enough-targets-of-one-family", IN_EAST, "10.96.1.1 fd00::1 | 192.0.2.3 2001:db8::3",
        DUAL_IP, web("west", balancers=()), web("south", balancers=["2001:db8::3", "2001:db8::4", "192.0.2.3"]),
        flags=ONE_SPARE, qtype="SRV",
    ),
    row(
        "one-target-of-both", IN_EAST, "10.96.1.1 fd00::1 | 192.0.2.88 2001:db8::88",
        DUAL_IP, LB, hosts={"lb.example": ["2001:db8::88", "192.0.2.88"]}, flags=ONE_SPARE, qtype="SRV",
    ),
    row(
        "endpoint-of-one-family", IN_EAST, "fd00:1::5",
        web("east", **HEADLESS), endpoints("east", *on_n1("fd00:1::5"), family="IPv6"),
        flags={"federation-topology-keys": ZONE}, qtype="AAAA",
    ),

    # Plain names: whichever cluster the client is in, they have the own cluster's endpoints only
    *(row(rule, client, answer, web(EVERYWHERE, **HEADLESS), *changes, name=PLAIN)
    for rule, client, answer, *changes in (
        ("plain-unconstrained", IN_WEST, "10.1.0.5"),
        ("plain-cluster-of-the-client", IN_EAST, "10.1.0.5", web("east", keys=CLUSTER)),
        ("plain-another-cluster", IN_WEST, NOT_NOW, web("east", keys=CLUSTER)),
        ("plain-another-cluster-in-the-region", IN_WEST, "10.1.0.5", web("east", keys=REGION)),
        ("plain-another-region", IN_SOUTH, NOT_NOW, web("east", keys=REGION)),
        ("plain-node-of-the-same-name", IN_WEST, NOT_NOW, web("east", keys=HOSTNAME)),
        ("plain-node-in-no-cluster", ON_N1, "10.1.0.5", web("east", keys=HOSTNAME)),
        ("plain-subnet-in-a-cluster", AS_WEST, NOT_NOW, web("east", keys=CLUSTER)),
        ("plain-nothing-ready", IN_EAST, "NXDOMAIN", NOT_READY),
    )),
]  # fmt: skip


def read(reply: dns.message.Message) -> str | list[str]:
    """Return the addresses in their order, or the reply that has none."""
    rcode = dns.rcode.to_text(reply.rcode())
    if not reply.answer:
        nodata = "NODATA" if reply.authority[0][0].minimum else NOT_NOW
        return nodata if rcode == "NOERROR" else rcode
    rows = [data for rrset in reply.answer for data in rrset]
    if rows[0].rdtype == dns.rdatatype.SRV:  # the address of a target is beside it; the nearest have priority 0
        assert [data.priority for data in rows] == sorted(data.priority for data in rows)
        beside = [(rrset.name, data) for rrset in reply.additional for data in rrset]
        rows = [data for target in rows for name, data in beside if name == target.target]
    return [data.address for data in rows]


@pytest.mark.parametrize(("clusters", "name", "qtype", "client", "answer"), ROWS)
def test_what_a_client_gets(
    clusters: Callable[[], ClustersInMemory], name: str, qtype: str, client: str, answer: str
) -> None:
    """The selection of what it can get, and spares of the tiers that follow; plain names have the own cluster's.

    The second answer is a remembered one.
    """
    responder = clusters().responder()
    selection, spares = (part.split() for part in answer.partition("|")[::2])
    for _ in range(2):
        reply = ask_in_memory(responder, dns.message.make_query(name, qtype, use_edns=0), client, proto="tcp")
        assert reply is not None
        found = read(reply)
        if isinstance(found, list):
            last = sorted(found[len(selection) :], key=lambda text: ":" in text)  # each family has its order
            assert (set(found[: len(selection)]), last) == (set(selection), spares)
        else:
            assert found == answer
