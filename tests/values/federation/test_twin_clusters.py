# SPDX-License-Identifier: Apache-2.0

"""What several clusters give a client, in cases worked out by hand: ``tests/oracle/twin_clusters.py`` is held to them.

The cases are changes of ``tests/kit/three_clusters.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.kit.api_objects import HOSTNAME, OLD, REGION, ZONE, endpoint, endpoint_slice, pod
from tests.kit.cluster_changes import changed
from tests.kit.cluster_worlds import Case, Question, case_of, questions
from tests.kit.three_clusters import (
    AS_WEST,
    IN_EAST,
    IN_R2,
    IN_SOUTH,
    IN_WEST,
    ON_N1,
    OUTSIDE,
    added,
    balanced,
    endpoints,
    exported,
    headless,
    labelled,
    noted,
    policy,
    specified,
    two_nodes,
    votes,
    without,
    world,
)
from tests.oracle.twin import Modes
from tests.oracle.twin_clusters import (
    ANSWER,
    FEDERATION,
    NODATA,
    NXDOMAIN,
    PLAIN,
    UNKEPT,
    ClusterWorld,
    Expected,
    TwinClusters,
)
from tests.oracle.twin_map import CLUSTER
from tests.oracle.twin_places import IMPORTED

WEB, WEB_HERE = f"web.shop.{FEDERATION}", f"web.shop.svc.{PLAIN}"


def answer(selection: str, *spares: str) -> Expected:
    """Return an answer of one family."""
    family = 6 if ":" in selection else 4
    return Expected(ANSWER, frozenset(selection.split()), {family: spares})


NO_EXPORT = noted("east west south", federated=None)
NOT_READY = endpoints("east west south", endpoint("10.1.0.5", ready=False, nodeName="n1"))
FLAT = {"flat": [frozenset(("east", "west"))]}
V6 = "2001:db8::"

BY_WHO_ASKS = {
    "own-cluster-ip-first": (world(), IN_EAST, answer("10.96.0.1", "192.0.2.2", "192.0.2.3")),
    "in-another-cluster": (world(), IN_SOUTH, answer("10.96.0.3", "192.0.2.1", "192.0.2.2")),
    "in-no-cluster": (world(), IN_R2, answer("192.0.2.3", "192.0.2.1", "192.0.2.2")),
    "unknown": (world(), OUTSIDE, answer("192.0.2.1 192.0.2.2 192.0.2.3")),
    "counts-as-in-west": (world(), AS_WEST, answer("10.96.0.2", "192.0.2.1", "192.0.2.3")),
    "node-address": (world(), "192.168.2.1", answer("10.96.0.2", "192.0.2.1", "192.0.2.3")),
    "headless-here": (world(headless("east")), IN_EAST, answer("10.1.0.5", "192.0.2.2", "192.0.2.3")),
    "headless-there": (world(headless("west")), IN_EAST, answer("10.96.0.1", "192.0.2.2", "192.0.2.3")),
    "flat": (world(**FLAT), IN_EAST, answer("10.96.0.1", "10.2.0.5", "192.0.2.3")),
    "flat-the-other-way": (world(**FLAT), IN_WEST, answer("10.96.0.2", "10.1.0.5", "192.0.2.3")),
    "flat-with-others": (world(**FLAT), IN_SOUTH, answer("10.96.0.3", "192.0.2.1", "192.0.2.2")),
    "flat-not-through-another": (
        world(flat=[frozenset(("east", "west")), frozenset(("west", "south"))]),
        IN_EAST,
        answer("10.96.0.1", "10.2.0.5", "192.0.2.3"),
    ),
    "no-load-balancer": (world(balanced("west")), IN_EAST, answer("10.96.0.1", "192.0.2.3")),
    "no-cluster-ip-yet": (
        world(specified("east", clusterIP="", clusterIPs=[])), IN_EAST, answer("192.0.2.2", "192.0.2.3"),
    ),
    "host-name": (
        world(balanced("west", "lb.example"), hosts={"lb.example": ["192.0.2.88", f"{V6}8", "192.0.2.9"]}),
        IN_EAST,
        answer("10.96.0.1", "192.0.2.9", "192.0.2.88"),
    ),
    "host-name-unresolved": (world(balanced("west", "lb.example")), IN_EAST, answer("10.96.0.1", "192.0.2.3")),
}  # fmt: skip

EXPORTED = {
    "nowhere": (world(NO_EXPORT), IN_EAST, Expected(NXDOMAIN)),
    "annotation-not-true": (world(noted("east west south", federated="True")), IN_EAST, Expected(NXDOMAIN)),
    "by-v1beta1": (world(NO_EXPORT, exported("west")), IN_EAST, answer("192.0.2.2")),
    "by-v1alpha1": (world(NO_EXPORT, exported("west", "multicluster.x-k8s.io/v1alpha1")), IN_EAST, answer("192.0.2.2")),
    "by-another-api": (world(NO_EXPORT, exported("west", "net.gke.io/v1")), IN_EAST, Expected(NXDOMAIN)),
    "by-both": (world(exported("west")), IN_WEST, answer("10.96.0.2", "192.0.2.1", "192.0.2.3")),
    "elsewhere-only": (world(noted("east", federated=None)), IN_EAST, answer("192.0.2.2", "192.0.2.3")),
    "without-ready-endpoints": (world(NOT_READY), IN_EAST, Expected(NXDOMAIN)),
    "one-without-ready-endpoints": (
        world(endpoints("east", endpoint("10.1.0.5", ready=False))), IN_EAST, answer("192.0.2.2", "192.0.2.3"),
    ),
    "ready-if-unsaid": (
        world(endpoints("east", endpoint("10.1.0.5", ready=None))),
        IN_EAST,
        answer("10.96.0.1", "192.0.2.2", "192.0.2.3"),
    ),
    "nothing-for-outsiders": (
        world(balanced("east"), balanced("west"), balanced("south")), OUTSIDE, Expected(UNKEPT),
    ),
    "nothing-for-anybody": (
        world(
            noted("east south", federated=None), specified("west", clusterIP="", clusterIPs=[]), balanced("west")
        ),
        IN_WEST,
        Expected(NXDOMAIN),
    ),
    "only-for-flat-neighbours": (
        world(
            noted("east south", federated=None),
            specified("west", clusterIP="", clusterIPs=[]),
            balanced("west"),
            **FLAT,
        ),
        IN_WEST,
        Expected(UNKEPT),
    ),
}  # fmt: skip

R2_HARD = {"topology_keys": REGION}
CONSTRAINTS = {
    "own-service-first": (
        world(noted("south", topology_keys=CLUSTER), noted("east", topology_keys="*")),
        IN_SOUTH,
        answer("10.96.0.3"),
    ),
    "then-the-oldest": (
        world(noted("south", topology_keys=CLUSTER), noted("west", topology_keys=f"{REGION},*"), balanced("east")),
        IN_R2,
        answer("192.0.2.3", "192.0.2.2"),
    ),
    "oldest-that-has-one": (
        world(noted("south", topology_keys=REGION), specified("east", trafficDistribution="PreferClose")),
        IN_R2,
        answer("192.0.2.3"),
    ),
    "not-of-one-that-is-not-exported": (
        world(noted("east", topology_keys=REGION, federated=None)), IN_EAST, answer("192.0.2.2", "192.0.2.3"),
    ),
    "of-one-without-ready-endpoints": (
        world(noted("east", topology_keys=ZONE), endpoints("east", endpoint("10.1.0.5", ready=False))),
        IN_EAST,
        Expected(UNKEPT),
    ),
    "invalid-is-passed-over": (
        world(noted("east", topology_keys=f"*,{ZONE}"), noted("west", topology_keys=CLUSTER)),
        IN_EAST,
        answer("10.96.0.1"),
    ),
    "invalid-and-no-later-source": (
        world(noted("east", topology_keys=f"*,{ZONE}"), specified("east", topologyKeys=[CLUSTER])),
        IN_EAST,
        answer("10.96.0.1", "192.0.2.2", "192.0.2.3"),
    ),
    "blank-says-nothing": (
        world(noted("east", topology_keys=" "), specified("east", topologyKeys=[CLUSTER])),
        IN_EAST,
        answer("10.96.0.1"),
    ),
    "with-external-traffic-policy": (
        world(noted("east", topology_keys=CLUSTER), specified("east", externalTrafficPolicy="Local")),
        IN_EAST,
        answer("10.96.0.1"),
    ),
    "min-endpoints-do-not-count": (
        world(noted("east", topology_keys=f"{CLUSTER},*", min_endpoints="2")),
        IN_EAST,
        answer("10.96.0.1", "192.0.2.3", "192.0.2.2"),
    ),
    "hints-do-not-count": (
        world(
            headless("east"),
            endpoints(
                "east",
                endpoint("10.1.0.5", nodeName="n1", hints={"forZones": [{"name": "z"}]}),
                endpoint("10.1.0.6", nodeName="n1", hints={"forZones": [{"name": "a"}]}),
            ),
        ),
        IN_EAST,
        answer("10.1.0.5 10.1.0.6", "192.0.2.2", "192.0.2.3"),
    ),
    "old-name-of-a-key": (
        world(noted("east", topology_keys=OLD[REGION])), IN_R2, answer("192.0.2.3"),
    ),
    "policy-before-annotation": (
        world(noted("east", topology_keys="*"), policy("east", CLUSTER, "required")), IN_EAST, answer("10.96.0.1"),
    ),
    "ignored-policy": (
        world(noted("east", topology_keys="*"), policy("east", CLUSTER, "ignored")),
        IN_EAST,
        answer("10.96.0.1 192.0.2.2 192.0.2.3"),
    ),
    "policies-not-for-peers": (
        world(
            noted("east", topology_keys="*"),
            policy("east", CLUSTER, "required"),
            specified("east", publishNotReadyAddresses=True),
        ),
        IN_EAST,
        answer("10.96.0.1 192.0.2.2 192.0.2.3"),
    ),
    "preferred-policies-given-up-last-first": (
        world(policy("east", REGION, "preferred", "1"), policy("east", CLUSTER, "preferred", "2")),
        IN_EAST,
        answer("10.96.0.1", "192.0.2.2", "192.0.2.3"),
    ),
    "preferred-policy-that-narrows-nothing": (
        world(policy("east", "no-such-label", "preferred", "1"), policy("east", REGION, "preferred", "2")),
        IN_R2,
        answer("192.0.2.3", "192.0.2.1", "192.0.2.2"),
    ),
    "required-and-preferred": (
        world(policy("east", REGION, "required", "1"), policy("east", CLUSTER, "preferred", "2")),
        IN_EAST,
        answer("10.96.0.1"),
    ),
    "hard-and-nothing-near": (world(noted("east", topology_keys=ZONE)), IN_R2, Expected(UNKEPT)),
    "hard-and-unknown": (world(noted("east", topology_keys=ZONE)), OUTSIDE, Expected(UNKEPT)),
    "hard-and-unknown-gets-all": (
        world(noted("east", topology_keys=ZONE), modes=Modes(unknown_client="all")),
        OUTSIDE,
        answer("192.0.2.1 192.0.2.2 192.0.2.3"),
    ),
    "by-the-settings": (
        world(keys=f"{REGION},*"), IN_EAST, answer("10.96.0.1 192.0.2.2", "192.0.2.3"),
    ),
}  # fmt: skip

TWO_IN_WEST = endpoints("west", endpoint("10.2.0.10", nodeName="n1"), endpoint("10.2.0.9", nodeName="n1"))
SELECTIONS = {
    "no-spares": (world(spares=0), IN_EAST, answer("10.96.0.1")),
    "one-spare": (world(spares=1), IN_EAST, answer("10.96.0.1", "192.0.2.2")),
    "in-order-of-bytes": (
        world(TWO_IN_WEST, **FLAT), IN_EAST, answer("10.96.0.1", "10.2.0.9", "10.2.0.10"),
    ),
    "no-spare-twice": (
        world(balanced("west", "192.0.2.3"), balanced("south", "192.0.2.3", "192.0.2.4"), spares=3),
        IN_EAST,
        answer("10.96.0.1", "192.0.2.3", "192.0.2.4"),
    ),
    "no-spare-that-was-selected": (
        world(balanced("west", "192.0.2.3"), balanced("east")), IN_R2, answer("192.0.2.3"),
    ),
    "hostname-in-one-cluster-only": (
        world(headless("east"), keys=HOSTNAME, **FLAT), IN_EAST, answer("10.1.0.5"),
    ),
    "hostname-of-a-client-in-no-cluster": (
        world(keys=f"{HOSTNAME},*"), ON_N1, answer("192.0.2.1 192.0.2.2 192.0.2.3"),
    ),
    "a-node-may-not-name-its-cluster": (
        world(labelled("west", {CLUSTER: "east"})), IN_EAST, answer("10.96.0.1", "192.0.2.2", "192.0.2.3"),
    ),
    "what-all-endpoints-share": (
        world(two_nodes("west", {ZONE: "z", REGION: "r1"}), keys=f"{REGION},*"),
        IN_EAST,
        answer("10.96.0.1 192.0.2.2", "192.0.2.3"),
    ),
    "what-not-all-endpoints-share": (
        world(two_nodes("west", {ZONE: "b", REGION: "r2"}), keys=f"{REGION},*"),
        IN_EAST,
        answer("10.96.0.1", "192.0.2.3", "192.0.2.2"),
    ),
    "unready-endpoints-need-not-share": (
        world(two_nodes("west", {ZONE: "z", REGION: "r2"}, ready=False), keys=f"{REGION},*"),
        IN_EAST,
        answer("10.96.0.1 192.0.2.2", "192.0.2.3"),
    ),
    "endpoint-without-any-place": (
        world(headless("east"), endpoints("east", endpoint("10.1.0.5"))),
        IN_EAST,
        answer("10.1.0.5", "192.0.2.2", "192.0.2.3"),
    ),
}  # fmt: skip

VOTES = {
    "one-of-three": (world(votes("east", "192.0.2.3")), IN_R2, answer("192.0.2.3", "192.0.2.1", "192.0.2.2")),
    "two-of-three": (world(votes("east west", "192.0.2.3")), IN_R2, answer("192.0.2.1 192.0.2.2")),
    "healthy": (
        world(votes("east west south", healthy="192.0.2.2")), IN_EAST, answer("10.96.0.1", "192.0.2.2", "192.0.2.3"),
    ),
    "no-spare": (world(votes("east south", "192.0.2.2")), IN_EAST, answer("10.96.0.1", "192.0.2.3")),
    "as-old-as-may-be": (
        world(votes("east west", "192.0.2.2", age=30)), IN_EAST, answer("10.96.0.1", "192.0.2.3"),
    ),
    "too-old": (
        world(votes("east", "192.0.2.2", age=31), votes("west", "192.0.2.2")),
        IN_EAST,
        answer("10.96.0.1", "192.0.2.2", "192.0.2.3"),
    ),
    "of-the-future": (world(votes("east west", "192.0.2.2", age=-9)), IN_EAST, answer("10.96.0.1", "192.0.2.3")),
    "about-another-service": (
        world(votes("east west", "192.0.2.2", service="db")), IN_EAST, answer("10.96.0.1", "192.0.2.2", "192.0.2.3"),
    ),
    "all-against-all": (
        world(votes("east west south", "192.0.2.1", "192.0.2.2", "192.0.2.3")),
        IN_R2,
        answer("192.0.2.3", "192.0.2.1", "192.0.2.2"),
    ),
    "all-that-a-hard-constraint-leaves": (
        world(votes("east west", "192.0.2.3"), noted("east", topology_keys=REGION)), IN_R2, answer("192.0.2.3"),
    ),
    "by-host-name": (
        world(
            balanced("west", "lb.example", "192.0.2.2"),
            votes("east west", "lb.example"),
            hosts={"lb.example": ["192.0.2.88"]},
        ),
        IN_EAST,
        answer("10.96.0.1", "192.0.2.2", "192.0.2.3"),
    ),
    "half-is-no-majority": (
        world(without("south"), votes("east", "192.0.2.2")),
        IN_EAST,
        answer("10.96.0.1", "192.0.2.2"),
    ),
}  # fmt: skip

ALSO_AT_1 = added("south", pod("p", ["10.1.0.77"], "n1"))
PLACES = {
    "own-before-others": (world(ALSO_AT_1), "10.1.0.77", answer("10.96.0.1", "192.0.2.2", "192.0.2.3")),
    "two-others": (
        world(added("south west", pod("p", ["10.9.0.77"], "n1"))), "10.9.0.77", answer("192.0.2.1 192.0.2.2 192.0.2.3"),
    ),
    "two-others-and-a-subnet": (
        world(
            added("south west", pod("p", ["10.9.0.77"], "n1")), modes=Modes(subnets={"10.0.0.0/8": {REGION: "r2"}})
        ),
        "10.9.0.77",
        answer("192.0.2.1 192.0.2.2 192.0.2.3"),
    ),
    "one-other": (
        world(added("south", pod("p", ["10.9.0.77"], "n1")), modes=Modes(subnets={"10.0.0.0/8": {REGION: "r1"}})),
        "10.9.0.77",
        answer("10.96.0.3", "192.0.2.1", "192.0.2.2"),
    ),
    "imported-slices-say-nothing": (
        world(
            added(
                "east",
                {
                    **endpoint_slice("x", 0, [endpoint("10.3.0.200", nodeName="n1")]),
                    "metadata": {"namespace": "shop", "name": "x", "labels": {IMPORTED: "web"}},
                },
            )
        ),
        IN_SOUTH,
        answer("10.96.0.3", "192.0.2.1", "192.0.2.2"),
    ),
}  # fmt: skip

TABLES = {**BY_WHO_ASKS, **EXPORTED, **CONSTRAINTS, **SELECTIONS, **VOTES, **PLACES}


@pytest.mark.parametrize(("judged", "client", "expected"), TABLES.values(), ids=TABLES)
def test_what_a_federated_name_gives(judged: ClusterWorld, client: str, expected: Expected) -> None:
    """The selection of what a client can get, and spares of the tiers that follow."""
    assert TwinClusters(judged).expected(WEB, "A", client) == expected


EAST_IP, WEST_IP, SOUTH_IP = "10.96.0.1", "192.0.2.2", "192.0.2.3"
V6_IN_WEST = balanced("west", "192.0.2.2", "2001:db8::2")
V6_IN_SOUTH_ONLY = world(balanced("south", "2001:db8::3"))
DUAL_IP = specified("east", clusterIPs=["10.96.0.1", "fd00::1"])
DUAL_HOST = {"lb.example": ["2001:db8::88", "192.0.2.88"]}
FAMILIES = {
    "none-anywhere": (world(), "AAAA", Expected(NODATA)),
    "only-for-others": (world(V6_IN_WEST), "AAAA", Expected(UNKEPT)),
    "none-anywhere-and-none-for-this-client": (
        world(noted("east", topology_keys="no-such-label")), "AAAA", Expected(NODATA),
    ),
    "of-both": (
        world(DUAL_IP, V6_IN_WEST), "AAAA", Expected(ANSWER, frozenset(("fd00::1",)), {6: ("2001:db8::2",)}),
    ),
    "each-family-has-as-many-spares": (
        world(DUAL_IP, balanced("west", "2001:db8::2"), spares=1), "A", answer(EAST_IP, SOUTH_IP),
    ),
    "not-by-both-families": (world(V6_IN_WEST, spares=1), "A", answer(EAST_IP, WEST_IP)),
    "targets-of-both": (
        world(DUAL_IP, V6_IN_WEST, spares=1),
        "SRV",
        Expected(ANSWER, frozenset((EAST_IP, "fd00::1")), {4: (WEST_IP,), 6: ("2001:db8::2",)}),
    ),
    "enough-targets-of-one-family": (
        world(DUAL_IP, balanced("west"), balanced("south", "2001:db8::3", "2001:db8::4", "192.0.2.3"), spares=1),
        "SRV",
        Expected(ANSWER, frozenset((EAST_IP, "fd00::1")), {4: (SOUTH_IP,), 6: ("2001:db8::3",)}),
    ),
    "one-target-of-both": (
        world(DUAL_IP, balanced("west", "lb.example"), spares=1, hosts=DUAL_HOST),
        "SRV",
        Expected(ANSWER, frozenset((EAST_IP, "fd00::1")), {4: ("192.0.2.88",), 6: ("2001:db8::88",)}),
    ),
    "endpoint-of-one-family": (
        world(
            headless("east"),
            endpoints("east", endpoint("fd00:1::5", nodeName="n1"), family="IPv6"),
            keys=ZONE,
        ),
        "AAAA",
        Expected(ANSWER, frozenset(("fd00:1::5",)), {6: ()}),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("judged", "qtype", "expected"), FAMILIES.values(), ids=FAMILIES)
def test_what_each_type_gives(judged: ClusterWorld, qtype: str, expected: Expected) -> None:
    """One choice is made for both families; spares are counted for each."""
    assert TwinClusters(judged).expected(WEB, qtype, IN_EAST) == expected


HEADLESS = headless("east west south")
HERE = answer("10.1.0.5")._replace(spares={})
HERE_ONLY = {
    "unconstrained": (world(HEADLESS), IN_WEST, HERE),
    "cluster-of-the-client": (world(HEADLESS, noted("east", topology_keys=CLUSTER)), IN_EAST, HERE),
    "another-cluster": (world(HEADLESS, noted("east", topology_keys=CLUSTER)), IN_WEST, Expected(UNKEPT)),
    "another-cluster-in-the-region": (world(HEADLESS, noted("east", topology_keys=REGION)), IN_WEST, HERE),
    "another-region": (world(HEADLESS, noted("east", topology_keys=REGION)), IN_SOUTH, Expected(UNKEPT)),
    "node-of-the-same-name": (world(HEADLESS, noted("east", topology_keys=HOSTNAME)), IN_WEST, Expected(UNKEPT)),
    "node-in-no-cluster": (world(HEADLESS, noted("east", topology_keys=HOSTNAME)), ON_N1, HERE),
    "subnet-in-a-cluster": (world(HEADLESS, noted("east", topology_keys=CLUSTER)), AS_WEST, Expected(UNKEPT)),
    "nothing-ready": (world(HEADLESS, NOT_READY), IN_EAST, Expected(NXDOMAIN)),
}


@pytest.mark.parametrize(("judged", "client", "expected"), HERE_ONLY.values(), ids=HERE_ONLY)
def test_what_a_plain_name_gives(judged: ClusterWorld, client: str, expected: Expected) -> None:
    """Plain names have the own cluster's endpoints only, whichever cluster the client is in."""
    assert TwinClusters(judged).expected(WEB_HERE, "A", client) == expected


def traits_of(case: Case, question: Question, twin: TwinClusters) -> Iterator[str]:
    """Yield what is reached when a client asks for a federated name."""
    client, expected = question.client, twin.expected(*question)
    key, where = ("shop", question.name.split(".")[-5]), twin.places.locate(client)
    having = [name for name in case.world.clusters if twin.places.has(name, client)]
    yield f"in {min(2, len(having))} clusters" + (" and the own" if case.world.own in having else "")
    yield f"located by {where.located_by}" + (", in a cluster" if CLUSTER in where.labels else "")
    asked = twin.constraint(key, client)
    yield f"asked by {asked.source}" + (", hard" if asked.hard else ", narrowing" if asked.preferred else "")
    yield f"{question.qtype}: {expected.kind}" + (" and spares" if any(expected.spares.values()) else "")
    selection = twin.tiers(key, client)[0]
    out = [entry for entry in twin.entries(key, where.labels.get(CLUSTER)) if twin.voted_out(key, entry)]
    if selection and out:
        yield "voted out" if selection[0] not in out else "all voted out"
    for entry in selection:
        away = "" if entry.cluster == where.labels.get(CLUSTER) else " elsewhere"
        hosted = entry.voted_on in case.world.hosts
        yield f"host name{away}" if hosted else f"balancer{away}" if entry.voted_on else f"endpoint or cluster IP{away}"


def test_the_random_clusters_reach_every_rule() -> None:
    """Each way to be located, to ask, to be offered and to be voted out is there for many clients."""
    seen: Counter[str] = Counter()
    for seed in range(100):
        case = case_of(seed)
        twin = TwinClusters(case.world)
        for question in questions(case, 20):
            if question.name.endswith(FEDERATION):
                seen.update(traits_of(case, question, twin))
    places = ("pod", "endpoint", "node", "podcidr", "podlocator", "subnet")
    reached = {f"located by {place}, in a cluster" for place in places} | {"located by subnet", "located by unknown"}
    reached |= {"in 0 clusters", "in 1 clusters", "in 2 clusters"}
    reached |= {"in 1 clusters and the own", "in 2 clusters and the own"}
    reached |= {f"asked by {source}{hard}" for source in ("annotation", "field", "settings") for hard in ("", ", hard")}
    reached |= {"asked by policy, hard", "asked by policy, narrowing", "voted out", "all voted out", "AAAA: NODATA"}
    outcomes = (ANSWER, f"{ANSWER} and spares", UNKEPT, NXDOMAIN)
    reached |= {f"{qtype}: {outcome}" for qtype in ("A", "AAAA", "SRV") for outcome in outcomes}
    reached |= {
        "endpoint or cluster IP",
        "endpoint or cluster IP elsewhere",
        "balancer elsewhere",
        "host name elsewhere",
    }
    assert reached - {what for what, count in seen.items() if count >= 10} == set()


def test_changes_of_the_random_clusters_are_seen_by_clients() -> None:
    """In many worlds, some client gets something else after a few changes."""
    seen = 0
    for seed in range(20):
        case = case_of(seed)
        asked = [question for question in questions(case, 40) if question.name.endswith(FEDERATION)]
        before = TwinClusters(case.world)
        for change in range(3):
            case = changed(case, 10 * seed + change)
        after = TwinClusters(case.world)
        seen += any(before.expected(*question) != after.expected(*question) for question in asked)
    assert seen >= 5
