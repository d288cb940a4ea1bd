"""The hints that EndpointSlices should carry: what kube-proxy makes of them is what DNS answers."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any

import dns.message
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api_objects import (
    HOSTNAME,
    OLD,
    RACK,
    REGION,
    ZONE,
    endpoint,
    endpoint_slice,
    item,
    listed,
    namespace,
    node,
    pod,
    service,
)
from tests.hint_worlds import HINTED, admitted, store_of, zones_of
from tests.in_memory import ask_in_memory, responder_of
from tests.kube_proxy import endpoints_on

Item = dict[str, Any]
NOWHERE = ["none.topodns.io"]
GARDENER = {"endpoint-slice-hints.resources.gardener.cloud/consider": "true"}

# Two nodes in zone a with different racks, one in b, and c without endpoints.
NODES = [
    node("a1", {ZONE: "a", REGION: "west", RACK: "r1", HOSTNAME: "a1"}),
    node("a2", {ZONE: "a", REGION: "west", RACK: "r2", HOSTNAME: "a2"}),
    node("b1", {ZONE: "b", REGION: "west", RACK: "r1", HOSTNAME: "b1"}),
    node("c1", {ZONE: "c", REGION: "east", HOSTNAME: "c1"}),
]
CLUSTER_IP = ("10.96.0.9",)


def on(name: str, address: int, **fields: Any) -> Item:
    """Return an endpoint on a node of ``NODES``."""
    return endpoint(f"10.0.0.{address}", nodeName=name, **{"zone": name[0], **fields})


WEB = [on("a1", 1), on("a2", 2), on("b1", 3)]


def hints_of(
    endpoints: Sequence[Item] = WEB,
    *more: Item,
    labels: Mapping[str, str] = HINTED,
    nodes: Sequence[Item] = NODES,
    **asked: Any,
) -> list[list[str] | None]:
    """Return the zones of each endpoint of a slice after admission; *more* are further objects."""
    one = endpoint_slice("web", 0, endpoints, labels=labels)
    cluster = [*nodes, service("web", cluster_ips=CLUSTER_IP, **asked), one, *more]
    return zones_of(admitted(one, store_of(cluster)))


def policy(key: str, mode: str, name: str = "p") -> Item:
    selected = {"matchLabels": {"app": "web"}}
    return item(
        "ServicePolicy", name, "shop", spec={"serviceSelector": selected, "topology": {"key": key, "mode": mode}}
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({}, [["a"], ["a"], ["b"]], id="no-constraint"),
        pytest.param({"keys": "*,zone"}, [["a"], ["a"], ["b"]], id="invalid-constraint"),
        pytest.param({"keys": f"{ZONE},*"}, [["a", "c"], ["a", "c"], ["b", "c"]], id="soft-the-rest-gets-all"),
        pytest.param({"keys": ZONE}, [["a"], ["a"], ["b"]], id="hard"),
        pytest.param({"keys": REGION}, [["a", "b"]] * 3, id="region"),
        pytest.param({"keys": f"{REGION},*"}, [["a", "b", "c"]] * 3, id="all-zones"),
        pytest.param({"keys": OLD[ZONE]}, [["a"], ["a"], ["b"]], id="old-name"),
        pytest.param({"field": [ZONE]}, [["a"], ["a"], ["b"]], id="field"),
        pytest.param({"keys": RACK}, [["b"], NOWHERE, ["b"]], id="label-that-a-zone-shares-in-part"),
        pytest.param({"keys": f"{HOSTNAME},{REGION}"}, [["a"], ["a"], ["a", "b"]], id="host-of-a-zone-with-one-node"),
        pytest.param({"keys": "example.com/no"}, [NOWHERE] * 3, id="nobody-gets-anything"),
        pytest.param({"keys": f"{ZONE},{REGION}", "least": "2"}, [["a", "b"], ["a", "b"], ["b"]], id="min-endpoints"),
        pytest.param({"trafficDistribution": "PreferSameNode"}, [["a"], ["a"], ["b"]], id="not-trafficDistribution"),
        pytest.param({"keys": ZONE, "externalTrafficPolicy": "Local"}, [["a"], ["a"], ["b"]], id="contradiction"),
    ],
)
def test_zones_of_each_constraint(asked: Mapping[str, Any], expected: object) -> None:
    """An endpoint is for all zones whose clients the constraint gives it, or else for its own zone."""
    assert hints_of(**asked) == expected


def test_policies() -> None:
    """Policies count as in DNS: those that select the Service, but not for peers that must find each other."""
    labels = {"app": "web"}
    required = policy(REGION, "required")
    assert hints_of(WEB, required, keys=ZONE) == [["a"], ["a"], ["b"]], "the policy does not select it"
    one = endpoint_slice("web", 0, WEB, labels=HINTED)
    for more, expected in (({}, [["a", "b"]] * 3), ({"publishNotReadyAddresses": True}, [["a"], ["a"], ["b"]])):
        asking = service("web", cluster_ips=CLUSTER_IP, labels=labels, **more)
        assert zones_of(admitted(one, store_of([*NODES, asking, one, required]))) == expected


@pytest.mark.parametrize(
    "labels",
    [HINTED, GARDENER, {**HINTED, **GARDENER}, {**GARDENER, "topodns.io/hints": "false"}],
    ids=["ours", "gardener", "both", "one-of-two"],
)
def test_labels_that_opt_in(labels: Mapping[str, str]) -> None:
    assert hints_of(labels=labels) == [["a"], ["a"], ["b"]]


@pytest.mark.parametrize(
    "labels",
    [{}, {"topodns.io/hints": "True"}, {"topodns.io/hints": ""}, {"topodns.io/hint": "true"}],
    ids=["none", "capital", "empty", "another"],
)
def test_labels_that_do_not(labels: Mapping[str, str]) -> None:
    assert hints_of(labels=labels) == [None] * 3


@pytest.mark.parametrize(
    "before",
    [
        pytest.param({"forZones": [{"name": "b"}]}, id="another-zone"),
        pytest.param({"forNodes": [{"name": "a1"}]}, id="nodes"),
        pytest.param({"forZones": [{"name": "a"}], "forNodes": [{"name": "a1"}]}, id="zone-and-nodes"),
        pytest.param({"forZones": [{"name": "b"}, {"name": "a"}]}, id="more-zones"),
        pytest.param({}, id="empty"),
        pytest.param(None, id="null"),
    ],
)
@pytest.mark.parametrize("ready", [True, False], ids=["ready", "not-ready"])
def test_whatever_was_there_before(before: object, ready: bool) -> None:
    """Earlier hints, those for nodes among them, make no difference; endpoints that are not ready have none."""
    one = endpoint_slice("web", 0, [on("a1", 1, ready=ready, hints=before)], labels=HINTED)
    after = admitted(one, store_of([*NODES, service("web", cluster_ips=CLUSTER_IP), one]))["endpoints"][0].get("hints")
    assert after == {"forZones": [{"name": "a"}]} if ready else not after


@pytest.mark.parametrize("keys", [None, f"{ZONE},*"], ids=["no-constraint", "constraint"])
@pytest.mark.parametrize("ready", [True, False], ids=["ready", "not-ready"])
@pytest.mark.parametrize("zone", ["", None, "no label value!"], ids=["empty", "absent", "unspeakable"])
@pytest.mark.parametrize("where", ["same-slice", "another-slice", "another-family", "slice-without-label"])
def test_an_endpoint_without_zone_ends_all_hints(keys: str | None, ready: bool, zone: str | None, where: str) -> None:
    """Ready or not, wherever in the Service: kube-proxy would ignore the hints of its family."""
    family, address = ("IPv6", "fd00::9") if where == "another-family" else ("IPv4", "10.0.0.9")
    homeless = endpoint(address, ready=ready, nodeName="lost", **({} if zone is None else {"zone": zone}))
    labels = {} if where == "slice-without-label" else HINTED
    hinted = [on("a1", 1, hints={"forZones": [{"name": "a"}]}), on("b1", 3)]
    if where == "same-slice":
        assert hints_of([*hinted, homeless], keys=keys) == [None] * 3
    else:
        other = endpoint_slice("web", 1, [homeless], family=family, labels=labels)
        assert hints_of(hinted, other, keys=keys) == [None] * 2


def test_names_for_addresses_do_not_count() -> None:
    """Neither kube-proxy nor DNS reads a slice of domain names."""
    names = endpoint_slice("web", 1, [endpoint("example.org")], family="FQDN", labels=HINTED)
    assert hints_of(WEB, names) == [["a"], ["a"], ["b"]]
    assert zones_of(admitted(names, store_of([*NODES, service("web"), names]))) == [None]


@pytest.mark.parametrize(("count", "expected"), [(8, 8), (9, None)])
def test_at_most_eight_zones(count: int, expected: int | None) -> None:
    """The API server refuses more in one hint, so no endpoint of the Service has hints then."""
    nodes = [node(f"z{number}", {ZONE: f"z{number}", REGION: "west"}) for number in range(count)]
    endpoints = [endpoint("10.0.0.1", nodeName="z0", zone="z0"), endpoint("10.0.0.2", nodeName="z1", zone="z1")]
    found = hints_of(endpoints, nodes=nodes, keys=f"{REGION},*")
    assert [hint and len(hint) for hint in found] == [expected] * 2
    assert hints_of(endpoints, nodes=nodes) == [["z0"], ["z1"]], "more zones in all are no obstacle"


def test_the_slice_says_which_zone_is_its_own_and_the_node_where_it_is() -> None:
    """If they disagree, the slice counts without a constraint, and the node's labels for one."""
    moved = [on("a1", 1, zone="b")]
    assert hints_of(moved) == [["b"]]
    assert hints_of(moved, keys=ZONE) == [["a"]]
    unknown = [endpoint("10.0.0.1", nodeName="gone", zone="b")]
    assert hints_of(unknown, keys=ZONE) == [["b"]], "no such node: the slice's word"


def test_a_pod_in_both_families_counts_once() -> None:
    """As in DNS, where A and AAAA agree: two endpoints of one pod are not two endpoints."""
    target = {"kind": "Pod", "name": "web-0"}
    both = [endpoint_slice("web", number, [endpoint(address, nodeName="a1", zone="a", targetRef=target)],
                           family=family, labels=HINTED)
            for number, (family, address) in enumerate((("IPv4", "10.0.0.1"), ("IPv6", "fd00::1")))]  # fmt: skip
    far = endpoint_slice("web", 2, [on("b1", 3)], labels=HINTED)
    cluster = [*NODES, service("web", cluster_ips=CLUSTER_IP, keys=f"{ZONE},{REGION}", least="2"), *both, far]
    store = store_of(cluster)
    assert [zones_of(admitted(one, store)) for one in (*both, far)] == [[["a", "b"]]] * 3


def test_a_slice_without_service_is_left_alone() -> None:
    """Its Service may be gone, or not have been seen yet: nobody knows what it asks for."""
    one = endpoint_slice("web", 0, [on("a1", 1, hints={"forZones": [{"name": "b"}]})], labels=HINTED)
    assert admitted(one, store_of([*NODES, one])) == one


def test_large() -> None:
    """A thousand endpoints in ten slices, whose order makes no difference."""
    endpoints = [on(("a1", "a2", "b1")[number % 3], number % 250 + 1) for number in range(1000)]
    slices = [
        endpoint_slice("web", start, endpoints[start : start + 100], labels=HINTED) for start in range(0, 1000, 100)
    ]
    cluster = [*NODES, service("web", cluster_ips=CLUSTER_IP, keys=f"{ZONE},*"), *slices]
    found = [zones_of(admitted(one, store_of(cluster))) for one in slices]
    assert found == [zones_of(admitted(one, store_of(cluster[::-1]))) for one in slices]
    assert {tuple(zones or ()) for row in found for zones in row} == {("a", "c"), ("b", "c")}


# kube-proxy and DNS


class RandomCluster:
    """A cluster whose labels are the same on all nodes of a zone, and a Service with a constraint by such labels."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        zones = [f"z{number}" for number in range(rng.randint(1, 8))]
        shared = {zone: self.labels(zone) for zone in zones}
        self.nodes = [node(f"n{number}", shared[rng.choice(zones)]) for number in range(rng.randint(1, 10))]
        self.clients = [
            pod(f"client-{number}", [f"10.1.0.{number + 1}"], one["metadata"]["name"])
            for number, one in enumerate(self.nodes)
        ]
        asked = self.asked()
        # The same Service twice: by its name for DNS, by its cluster IP for kube-proxy.
        self.headless = service("web", labels={"app": "web"}, **asked)
        self.virtual = service("web", labels={"app": "web"}, cluster_ips=CLUSTER_IP, **asked)
        self.policies = [
            policy(self.key(), rng.choice(("required", "preferred", "preferred", "ignored")), f"p{number}")
            for number in range(rng.choice((0, 0, 1, 2)))
        ]
        endpoints = [self.endpoint(number) for number in range(rng.randint(1, 12))]
        cuts = sorted(rng.choices(range(len(endpoints) + 1), k=2))
        parts = (endpoints[: cuts[0]], endpoints[cuts[0] : cuts[1]], endpoints[cuts[1] :])
        self.slices = [endpoint_slice("web", number, part, labels=HINTED) for number, part in enumerate(parts)]

    def labels(self, zone: str) -> dict[str, str]:
        optional = {REGION: self.rng.choice("rs"), RACK: self.rng.choice("tuv"), "example.com/x": "1"}
        return {ZONE: zone, **{key: value for key, value in optional.items() if self.rng.random() < 0.8}}

    def key(self) -> str:
        return self.rng.choice((ZONE, ZONE, REGION, RACK, "example.com/x", OLD[ZONE]))

    def asked(self) -> dict[str, Any]:
        keys = list(dict.fromkeys(self.key() for _ in range(self.rng.randint(1, 3))))
        keys += ["*"] if self.rng.random() < 0.7 else []
        asked: dict[str, Any] = {"keys": ",".join(keys)}
        if self.rng.random() < 0.3:
            asked["least"] = str(self.rng.randint(1, 4))
        return asked

    def endpoint(self, number: int) -> Item:
        where = self.rng.choice(self.nodes)
        hints = ({}, {"forNodes": [{"name": "n0"}]}, {"forZones": [{"name": "z0"}]})
        return endpoint(
            f"10.2.0.{number + 1}",
            ready=self.rng.random() < 0.8,
            nodeName=where["metadata"]["name"],
            zone=where["metadata"]["labels"][ZONE],
            hints=copy.deepcopy(self.rng.choice(hints)),
        )


@settings(max_examples=300)
@given(st.integers(0, 10**9))
def test_kube_proxy_does_what_dns_answers(seed: int) -> None:
    """On each node, unless DNS has no answer for a hard constraint: kube-proxy then uses all endpoints."""
    world = RandomCluster(seed)
    store = store_of([*world.nodes, world.virtual, *world.policies, *world.slices])
    slices = [admitted(one, store) for one in world.slices]
    assert all(len(zones or ()) <= 8 for one in slices for zones in zones_of(one))
    responder = responder_of(
        listed([namespace("shop"), *world.nodes, *world.clients, world.headless, *world.policies, *world.slices])
    )
    everything = {one["addresses"][0] for part in slices for one in part["endpoints"] if one["conditions"]["ready"]}
    for where, client in zip(world.nodes, world.clients, strict=True):
        query = dns.message.make_query("web.shop.svc.cluster.local", "A")
        reply = ask_in_memory(responder, query, client["status"]["podIP"])
        assert reply is not None
        answered = {record.address for answer in reply.answer for record in answer}
        assert endpoints_on(where, slices) == (answered or everything)
