# SPDX-License-Identifier: Apache-2.0

"""The hints that EndpointSlices should carry; tests/peers shows what kube-proxy makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml

from tests.kit.api_objects import (
    HOSTNAME,
    OLD,
    RACK,
    REGION,
    ZONE,
    endpoint,
    endpoint_slice,
    node,
    service,
    service_policy,
)
from tests.kit.hint_worlds import HINTED, admitted, nodes_of, rules_of, zones_of
from tests.kit.this_machine import ROOT

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
FOLDER = ROOT / "tests" / "scenarios"


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
    return zones_of(admitted(one, rules_of(cluster)))


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
        pytest.param({"keys": HOSTNAME}, [NOWHERE, NOWHERE, ["b"]], id="host-of-a-zone-with-one-node"),
        pytest.param({"keys": f"{HOSTNAME},{REGION}"}, [["a", "b"]] * 3, id="what-follows-the-host"),
        pytest.param({"keys": f"{HOSTNAME},*"}, [["a", "b", "c"]] * 3, id="all-follow-the-host"),
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
    required = service_policy("p", REGION, "required")
    assert hints_of(WEB, required, keys=ZONE) == [["a"], ["a"], ["b"]], "the policy does not select it"
    one = endpoint_slice("web", 0, WEB, labels=HINTED)
    for more, expected in (({}, [["a", "b"]] * 3), ({"publishNotReadyAddresses": True}, [["a"], ["a"], ["b"]])):
        asking = service("web", cluster_ips=CLUSTER_IP, labels=labels, **more)
        assert zones_of(admitted(one, rules_of([*NODES, asking, one, required]))) == expected


TWO_ON_A1 = [*WEB, on("a1", 4)]
STRAY = endpoint("10.0.0.5", zone="b")
OWN = [["a1"], ["a2"], ["b1"]]
BY_HOST = {"keys": f"{HOSTNAME},{ZONE},*"}


@pytest.mark.parametrize(
    ("endpoints", "asked", "expected"),
    [
        pytest.param(WEB, BY_HOST, OWN, id="soft"),
        pytest.param(WEB, {"keys": f"{HOSTNAME},*"}, OWN, id="all-follow"),
        pytest.param(WEB, {"keys": f"{HOSTNAME},{ZONE}"}, OWN, id="a-hard-key-follows"),
        pytest.param(WEB, {"field": [HOSTNAME, "*"]}, OWN, id="field"),
        pytest.param(WEB, {"keys": HOSTNAME}, [[]] * 3, id="hard-host"),
        pytest.param(WEB, {"keys": f"{ZONE},{HOSTNAME},*"}, [[]] * 3, id="not-first"),
        pytest.param(WEB, {"keys": f"{ZONE},*"}, [[]] * 3, id="no-host"),
        pytest.param(WEB, {}, [[]] * 3, id="no-constraint"),
        pytest.param(WEB, {"trafficDistribution": "PreferSameNode"}, [[]] * 3, id="not-trafficDistribution"),
        pytest.param([*WEB, on("gone", 4)], BY_HOST, [*OWN, ["gone"]], id="no-such-node"),
        pytest.param([*WEB, STRAY], BY_HOST, [*OWN, NOWHERE], id="on-no-node"),
        pytest.param([*WEB, on("no_name!", 4)], BY_HOST, [*OWN, NOWHERE], id="no-name-of-a-node"),
        pytest.param([STRAY], BY_HOST, [[]], id="all-on-no-node"),
        pytest.param([*WEB, on("a1", 4, ready=False)], BY_HOST, [*OWN, None], id="not-ready"),
        pytest.param(TWO_ON_A1, {**BY_HOST, "least": "2"}, [["a1"], NOWHERE, NOWHERE, ["a1"]], id="enough-on-one"),
        pytest.param(WEB, {**BY_HOST, "least": "2"}, [[]] * 3, id="enough-on-none"),
        pytest.param(WEB, {"keys": f"{HOSTNAME},{ZONE}", "least": "2"}, [NOWHERE, NOWHERE, ["b1"]],
                     id="hard-and-too-few-farther-on"),
        pytest.param(WEB, {"keys": f"{HOSTNAME},{RACK}", "least": "2"}, [["a1"], ["a2"], NOWHERE],
                     id="hard-and-racks-that-one-zone-shares"),
    ],
)  # fmt: skip
def test_nodes_of_each_constraint(endpoints: Sequence[Item], asked: Mapping[str, Any], expected: object) -> None:
    """Where the host name comes first, and the constraint goes on, each ready endpoint is for its own node."""
    one = endpoint_slice("web", 0, endpoints, labels=HINTED)
    cluster = [*NODES, service("web", cluster_ips=CLUSTER_IP, **asked), one]
    assert nodes_of(admitted(one, rules_of(cluster))) == expected


@pytest.mark.parametrize(
    ("mode", "more", "expected"),
    [("preferred", [], OWN), ("preferred", [ZONE], OWN), ("required", [], [[]] * 3), ("required", [ZONE], [[]] * 3)],
)
def test_nodes_by_policies(mode: str, more: Sequence[str], expected: object) -> None:
    """A policy that only prefers the host name goes on by itself."""
    one = endpoint_slice("web", 0, WEB, labels=HINTED)
    policies = [service_policy(f"p{number}", key, mode) for number, key in enumerate([HOSTNAME, *more])]
    cluster = [*NODES, service("web", cluster_ips=CLUSTER_IP, labels={"app": "web"}), *policies, one]
    assert nodes_of(admitted(one, rules_of(cluster))) == expected


def test_more_than_eight_nodes_are_no_obstacle() -> None:
    """The API server refuses more in one hint, and each is for one."""
    nodes = [node(f"n{number}", {ZONE: "a"}) for number in range(9)]
    one = endpoint_slice("web", 0, [on(f"n{number}", number, zone="a") for number in range(9)], labels=HINTED)
    after = admitted(one, rules_of([*nodes, service("web", cluster_ips=CLUSTER_IP, **BY_HOST), one]))
    assert nodes_of(after) == [[f"n{number}"] for number in range(9)]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        pytest.param(HINTED, True, id="ours"),
        pytest.param(GARDENER, True, id="gardener"),
        pytest.param({**HINTED, **GARDENER}, True, id="both"),
        pytest.param({**GARDENER, "topodns.io/hints": "false"}, True, id="one-of-two"),
        pytest.param({}, False, id="none"),
        pytest.param({"topodns.io/hints": "True"}, False, id="capital"),
        pytest.param({"topodns.io/hints": ""}, False, id="empty"),
        pytest.param({"topodns.io/hint": "true"}, False, id="another"),
    ],
)
def test_labels_that_opt_in(labels: Mapping[str, str], wanted: bool) -> None:
    assert hints_of(labels=labels) == ([["a"], ["a"], ["b"]] if wanted else [None] * 3)


BEFORE = [
    {"forZones": [{"name": "b"}]}, {"forNodes": [{"name": "a1"}]}, {"forZones": [{"name": "b"}, {"name": "a"}]},
    {"forZones": [{"name": "a"}], "forNodes": [{"name": "a1"}]}, {}, None,
    {"forNodes": [{"name": "b1"}], "forZones": [{"name": "a"}]},
]  # fmt: skip


@pytest.mark.parametrize("keys", [None, f"{HOSTNAME},{ZONE}"], ids=["no-constraint", "own-node"])
@pytest.mark.parametrize("ready", [True, False], ids=["ready", "not-ready"])
def test_whatever_was_there_before(ready: bool, keys: str | None) -> None:
    """Earlier hints, those for nodes among them, make no difference; endpoints that are not ready have none."""
    one = endpoint_slice("web", 0, [on("a1", 1, ready=ready, hints=before) for before in BEFORE], labels=HINTED)
    after = admitted(one, rules_of([*NODES, service("web", cluster_ips=CLUSTER_IP, keys=keys), one]))["endpoints"]
    hints = [each.get("hints") for each in after]
    wanted = {"forZones": [{"name": "a"}], **({"forNodes": [{"name": "a1"}]} if keys else {})}
    assert hints == [wanted] * len(BEFORE) if ready else not any(hints)


NO_ZONES: list[dict[str, Any]] = [{}, {"zone": ""}, {"zone": "no label value!"}]
LATE = [*NODES, node("c2", {ZONE: "c"}), node("bare")]  # the zone of c2 came after the slices


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param(None, ["c"], id="no-constraint"),
        pytest.param(ZONE, ["c"], id="zone"),
        pytest.param(REGION, NOWHERE, id="by-other-labels-of-the-node"),
    ],
)
def test_a_late_slice_is_where_its_node_is(keys: str | None, expected: list[str]) -> None:
    """The controller wrote the slice before the Node had its zone: DNS goes by the Node, and so do hints."""
    late = [endpoint(f"10.0.0.{9 + number}", nodeName="c2", **zone) for number, zone in enumerate(NO_ZONES)]
    assert hints_of([*WEB, *late], nodes=LATE, keys=keys)[-3:] == [expected] * 3


HOMELESS = [
    {"nodeName": "bare"}, {"deprecatedTopology": {ZONE: ""}}, *NO_ZONES,
    *({"nodeName": "lost", **row} for row in NO_ZONES),
]  # fmt: skip


@pytest.mark.parametrize("keys", [None, f"{ZONE},*", ZONE], ids=["no-constraint", "soft", "hard"])
def test_endpoints_without_zone_are_what_no_zone_gets(keys: str | None) -> None:
    """They have the hint for nowhere, or kube-proxy would ignore those of the others, which are as without them."""
    homeless = [endpoint(f"10.0.0.{9 + number}", **place) for number, place in enumerate(HOMELESS)]
    zoned = [on("a1", 1), on("b1", 3), on("c1", 4)]
    assert hints_of([*zoned, *homeless], keys=keys, nodes=LATE) == [["a"], ["b"], ["c"], *[NOWHERE] * len(HOMELESS)]
    six = [endpoint("fd00::9", nodeName="bare")]
    for family, labels, alone in (("IPv4", HINTED, homeless), ("IPv6", HINTED, six), ("IPv4", {}, homeless)):
        other = endpoint_slice("web", 1, alone, family=family, labels=labels)
        assert hints_of(zoned, other, keys=keys, nodes=LATE) == [["a"], ["b"], ["c"]]
        rules = rules_of([*LATE, service("web", keys=keys), endpoint_slice("web", 0, zoned, labels=HINTED), other])
        assert zones_of(admitted(other, rules)) == [NOWHERE if labels else None] * len(alone)


@pytest.mark.parametrize(
    "keys", [None, f"{ZONE},*", f"{REGION},*", f"{HOSTNAME},*"], ids=["no-constraint", "zone", "region", "own-node"]
)
def test_no_hints_where_nothing_ready_has_a_zone(keys: str | None) -> None:
    """There is nothing to say: kube-proxy takes all."""
    before = {"forZones": [{"name": "a"}], "forNodes": [{"name": "a1"}]}
    endpoints = [endpoint("10.0.0.1", nodeName="bare", hints=before), on("a1", 2, ready=False, hints=before)]
    assert hints_of(endpoints, nodes=LATE, keys=keys) == [None] * 2


def test_reported_slices() -> None:
    """kubernetes/kubernetes#123401 and #107927: a slice older than its Node's zone, and a pod that is not ready yet."""
    cluster = list(yaml.safe_load_all((FOLDER / "hints-late-and-starting.yaml").read_text()))[1:]
    late, starting = ([one for one in cluster if one["metadata"]["name"] == name] for name in ("late-1", "starting-1"))
    rules = rules_of(cluster)
    assert zones_of(admitted(late[0], rules)) == [["z-a"], ["z-b"], ["z-c"]]
    assert zones_of(admitted(starting[0], rules)) == [["z-a", "z-c"], ["z-b", "z-c"], None]


@pytest.mark.parametrize("keys", [None, f"{ZONE},*"], ids=["no-constraint", "soft"])
@pytest.mark.parametrize(
    ("where", "pods"), [("same-slice", False), ("same-slice", True), ("dying-first", True), ("dying-last", True)]
)
def test_an_address_is_where_the_living_endpoint_is(keys: str | None, where: str, pods: bool) -> None:
    """A pod that ends may still be published, although its address is another pod's by now: DNS goes by that one."""

    def on_pod(name: str, address: int, pod_name: str, **conditions: bool) -> Item:
        return on(name, address, targetRef={"kind": "Pod", "name": pod_name} if pods else None, conditions=conditions)

    dying = on_pod("a1", 9, "old", ready=True, terminating=True)
    living = [on_pod("b1", 9, "new", ready=True, terminating=False), on_pod("c1", 4, "web-4")]
    rows = [[dying, *living]] if where == "same-slice" else [[dying], living][:: 1 if where == "dying-first" else -1]
    slices = [endpoint_slice("web", number, part, labels=HINTED) for number, part in enumerate(rows)]
    rules = rules_of([*NODES, service("web", keys=keys, publishNotReadyAddresses=True), *slices])
    after = [admitted(one, rules) for one in slices]
    alone = endpoint_slice("web", 0, living, labels=HINTED)
    expected = admitted(alone, rules_of([*NODES, service("web", keys=keys, publishNotReadyAddresses=True), alone]))
    zones = {one["addresses"][0]: one["hints"] for part in after for one in part["endpoints"]}
    assert zones == {one["addresses"][0]: one["hints"] for one in expected["endpoints"]}
    assert len({str(one["hints"]) for part in after for one in part["endpoints"]}) == 2


def test_a_dead_pod_that_is_not_published_has_no_hints() -> None:
    ended = on("a1", 3, conditions={"ready": False, "terminating": True})
    assert hints_of([*WEB, ended], keys=ZONE) == [["a"], ["a"], ["b"], None]


def test_names_for_addresses_do_not_count() -> None:
    """Neither kube-proxy nor DNS reads a slice of domain names."""
    names = endpoint_slice("web", 1, [endpoint("example.org")], family="FQDN", labels=HINTED)
    assert hints_of(WEB, names) == [["a"], ["a"], ["b"]]
    assert zones_of(admitted(names, rules_of([*NODES, service("web"), names]))) == [None]


@pytest.mark.parametrize("keys", [f"{REGION},*", f"{HOSTNAME},{REGION}"])
@pytest.mark.parametrize(("count", "expected"), [(8, 8), (9, None)])
def test_at_most_eight_zones(count: int, expected: int | None, keys: str) -> None:
    """The API server refuses more in one hint, so no endpoint of the Service has hints then."""
    nodes = [node(f"z{number}", {ZONE: f"z{number}", REGION: "west"}) for number in range(count)]
    endpoints = [endpoint("10.0.0.1", nodeName="z0", zone="z0"), endpoint("10.0.0.2", nodeName="z1", zone="z1")]
    found = hints_of(endpoints, nodes=nodes, keys=keys)
    assert [hint and len(hint) for hint in found] == [expected] * 2
    assert hints_of(endpoints, nodes=nodes) == [["z0"], ["z1"]], "more zones in all are no obstacle"


def test_the_slice_says_which_zone_is_its_own_and_the_node_where_it_is() -> None:
    """If they disagree, the slice counts without a constraint, and the node's labels for one."""
    moved = [on("a1", 1, zone="b")]
    assert hints_of(moved) == [["b"]]
    assert hints_of(moved, keys=ZONE) == [["a"]]
    unknown = [endpoint("10.0.0.1", nodeName="gone", zone="b")]
    assert hints_of(unknown, keys=ZONE) == [["b"]], "no such node: the slice's word"


def test_a_slice_without_service_is_left_alone() -> None:
    """Its Service may be gone, or not have been seen yet: nobody knows what it asks for."""
    one = endpoint_slice("web", 0, [on("a1", 1, hints={"forZones": [{"name": "b"}]})], labels=HINTED)
    assert admitted(one, rules_of([*NODES, one])) == one
