# SPDX-License-Identifier: Apache-2.0

"""kube-proxy's own code makes of the webhook's hints what DNS answers."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import dns.message
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.api_objects import (
    HOSTNAME,
    OLD,
    RACK,
    REGION,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    listed,
    namespace,
    node,
    pod,
    service,
    service_policy,
)
from tests.kit.hint_worlds import HINTED, admitted, rules_of
from tests.kit.in_memory import CountedResponder, ask_in_memory, responder_of
from tests.oracle.kube_proxy import KubeProxy, kube_proxy

CLUSTER_IPS = ("10.96.0.9", "fd00:96::9")


@pytest.fixture(scope="module")
def proxy() -> Iterator[KubeProxy]:
    with kube_proxy() as running:
        yield running


class RandomCluster:
    """A cluster, and a Service whose constraint names labels that nodes of a zone share, or do not.

    Some nodes have no zone; some slices lack the zone of a node, or name a node that is not there.
    """

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        zones = [f"z{number}" for number in range(rng.randint(1, 8))]
        shared = {zone: self.labels(zone) for zone in zones}
        self.nodes = [
            node(f"n{number}", self.of_node(shared[rng.choice(zones)])) for number in range(rng.randint(1, 12))
        ]
        keys = list(dict.fromkeys(self.key() for _ in range(rng.randint(1, 3))))
        keys = [HOSTNAME, *(key for key in keys if key != HOSTNAME)] if rng.random() < 0.4 else keys
        keys += ["*"] if rng.random() < 0.7 else []
        self.least = str(rng.randint(1, 4)) if rng.random() < 0.3 else None
        policies = [
            (f"p{number}", self.key(), rng.choice(("required", "preferred", "preferred", "ignored")))
            for number in range(rng.choice((0, 0, 1, 2)))
        ]
        self.policies = [service_policy(*policy) for policy in policies]
        in_effect = sorted((mode != "required", name, key) for name, key, mode in policies if mode != "ignored")
        if in_effect:
            keys = [key for _, _, key in in_effect]
        self.soft = all(preferred for preferred, _, _ in in_effect) if in_effect else keys[-1] == "*"
        self.own_node_first = keys[0] == HOSTNAME and (self.soft if in_effect else len(keys) > 1)
        # The same Service twice: by its name for DNS, by its cluster IPs for kube-proxy.
        asked: dict[str, Any] = {"labels": {"app": "web"}, "keys": ",".join(keys), "least": self.least}
        self.headless = service("web", **asked)
        self.virtual = service("web", cluster_ips=CLUSTER_IPS, ipFamilies=["IPv4", "IPv6"], **asked)
        four, six = self.endpoints()
        cuts = sorted(rng.choices(range(len(four) + 1), k=2))
        parts = (four[: cuts[0]], four[cuts[0] : cuts[1]], four[cuts[1] :])
        self.four = [endpoint_slice("web", number, part, labels=HINTED) for number, part in enumerate(parts)]
        self.six = [endpoint_slice("web", 9, six, family="IPv6", labels=HINTED)] if six else []
        self.slices = [*self.four, *self.six]

    def of_node(self, labels: dict[str, str]) -> dict[str, str]:
        """Return the labels of a node: those of its zone, mostly."""
        labels = {key: text for key, text in labels.items() if key != ZONE or self.rng.random() < 0.8}
        return {**labels, **({RACK: self.rng.choice("tuv")} if self.rng.random() < 0.2 else {})}

    def labels(self, zone: str) -> dict[str, str]:
        optional = {REGION: self.rng.choice("rs"), RACK: self.rng.choice("tuv"), "example.com/x": "1"}
        return {ZONE: zone, **{key: value for key, value in optional.items() if self.rng.random() < 0.8}}

    def key(self) -> str:
        return self.rng.choice((ZONE, ZONE, REGION, RACK, "example.com/x", OLD[ZONE], HOSTNAME))

    def endpoints(self) -> tuple[list[Item], list[Item]]:
        """Return the endpoints of both families; some pods are in both.

        Only one has endpoints where DNS may go on to another node for one family alone, which hints cannot say.
        """
        four, six = [], []
        is_simple = not self.own_node_first or (self.soft and self.least is None)
        two_families = is_simple and self.rng.random() < 0.5
        for number in range(self.rng.randint(1, 12)):
            made = self.endpoint(number)
            sides = self.rng.choice(("4", "6", "46")) if two_families else "4"
            four += [{**made, "addresses": [f"10.2.0.{number + 1}"]}] if "4" in sides else []
            six += [{**made, "addresses": [f"fd00::{number + 1}"]}] if "6" in sides else []
        return four, six

    def endpoint(self, number: int) -> Item:
        where = self.rng.choice([*self.nodes, node("gone", {ZONE: "z0"})])
        zone = where["metadata"]["labels"].get(ZONE) if self.rng.random() < 0.7 else self.rng.choice(("", None))
        hints = ({}, {"forNodes": [{"name": "n0"}]}, {"forZones": [{"name": "z0"}]})
        ready = self.rng.random() < 0.8
        ending = not ready and self.rng.random() < 0.5
        return endpoint(
            conditions={"ready": ready, "serving": ready or self.rng.random() < 0.5, "terminating": ending},
            nodeName=where["metadata"]["name"],
            targetRef={"kind": "Pod", "name": f"web-{number}"},
            hints=copy.deepcopy(self.rng.choice(hints)),
            **({} if zone is None else {"zone": zone}),
        )

    def clients(self) -> list[Item]:
        """Return a client for each node, by which hints are made, on a node with no label but those that count.

        These are what all nodes of the zone share, and the host name where it comes first.
        """
        made = []
        for number, one in enumerate(self.nodes):
            name, labels = one["metadata"]["name"], one["metadata"]["labels"]
            in_zone = [
                {HOSTNAME: other["metadata"]["name"], **other["metadata"]["labels"]}.items()
                for other in self.nodes
                if ZONE in labels and other["metadata"]["labels"].get(ZONE) == labels[ZONE]
            ]
            shared = dict(reduce(lambda some, more: some & more, in_zone)) if in_zone else {}
            own = {HOSTNAME: name} if self.own_node_first else {}
            made += [node(f"like-{name}", {**shared, **own}), pod(f"at-{name}", [client_of(number)], f"like-{name}")]
        return made


def client_of(number: int) -> str:
    return f"10.1.0.{number + 1}"


def usable_in(slices: Sequence[Item]) -> set[str]:
    """Return the ready addresses; without any, those that end and still serve."""
    found = [one for part in slices for one in part["endpoints"]]
    ready = {one["addresses"][0] for one in found if one["conditions"]["ready"]}
    ending = (one for one in found if one["conditions"]["serving"] and one["conditions"]["terminating"])
    return ready or {one["addresses"][0] for one in ending}


def check_hints(slices: Sequence[Item]) -> bool:
    """Check what all hints have in common; return whether there are any."""
    found = [
        (one["conditions"]["ready"], one.get("hints") or {})
        for part in slices
        for one in part["endpoints"]
    ]  # fmt: skip
    assert not any(hints for ready, hints in found if not ready)
    for field, least in (("forZones", 1), ("forNodes", 0)):
        counts = {len(hints.get(field, ())) for ready, hints in found if ready}
        assert counts <= {0} or (least <= min(counts) and max(counts) <= 8), "some have hints, and others none"
    nodes = {bool(hints.get("forNodes")) for ready, hints in found if ready}
    assert len(nodes) <= 1
    return any(hints for _, hints in found)


@settings(max_examples=200)
@given(seed=st.integers(0, 10**9))
def test_it_uses_what_dns_answers(proxy: KubeProxy, seed: int) -> None:
    """On each node; but where a hard constraint leaves DNS no answer, kube-proxy uses all endpoints.

    It does so, too, on nodes without a zone, unless an endpoint is on the node and the host name comes first.
    Where a soft constraint leaves a client no address of a family, the choice is made again among those of that family.
    """
    world = RandomCluster(seed)
    rules = rules_of([*world.nodes, world.virtual, *world.policies, *world.slices])
    slices = [admitted(one, rules) for one in world.slices]
    if not check_hints(slices):
        zones = {one["metadata"]["name"]: one["metadata"]["labels"].get(ZONE) for one in world.nodes}
        ready = [one for part in slices for one in part["endpoints"] if one["conditions"]["ready"]]
        assert not any(one.get("zone") or zones.get(one["nodeName"]) for one in ready)
        return
    used = proxy.used(world.virtual, slices, world.nodes)
    others = [namespace("shop"), *world.nodes, *world.clients(), world.headless, *world.policies]
    both = responder_of(listed([*others, *world.slices]))
    for family, rtype, own in (("IPv4", "A", world.four), ("IPv6", "AAAA", world.six)):
        everything = usable_in(own)
        alone = responder_of(listed([*others, *own])) if world.six else both
        for number, where in enumerate(world.nodes):
            answered = addresses_of(both, rtype, client_of(number))
            if not answered and world.soft:
                answered = addresses_of(alone, rtype, client_of(number))
            assert {*used[where["metadata"]["name"]][family]} == (answered or everything), where


def addresses_of(responder: CountedResponder, rtype: str, client: str) -> set[str]:
    """Return the addresses that the Service's name has for a client."""
    reply = ask_in_memory(responder, dns.message.make_query("web.shop.svc.cluster.local", rtype), client)
    assert reply is not None
    return {record.address for answer in reply.answer for record in answer}


NODES = [node(name, {ZONE: name[0]}) for name in ("a1", "a2", "b1", "c1")]


@pytest.mark.parametrize("keys", [None, f"{ZONE},*", f"{HOSTNAME},{ZONE},*"], ids=["no-constraint", "zone", "own-node"])
@pytest.mark.parametrize("where", ["same-slice", "dying-first", "dying-last"])
def test_an_address_that_is_used_again(proxy: KubeProxy, keys: str | None, where: str) -> None:
    """A pod that ends may still be published, although its address is another pod's by now: that one counts."""

    def on_node(name: str, address: int, *, terminating: bool = False) -> Item:
        conditions = {"ready": True, "serving": True, "terminating": terminating}
        return endpoint(f"10.0.0.{address}", nodeName=name, zone=name[0], conditions=conditions)

    dying, living = on_node("a1", 9, terminating=True), [on_node("b1", 9), on_node("c1", 4)]
    rows = [[dying, *living]] if where == "same-slice" else [[dying], living][:: 1 if where == "dying-first" else -1]
    asking = service("web", cluster_ips=CLUSTER_IPS[:1], ipFamilies=["IPv4"], keys=keys, publishNotReadyAddresses=True)
    used = []
    for parts in (rows, [living]):
        slices = [endpoint_slice("web", number, part, labels=HINTED) for number, part in enumerate(parts)]
        rules = rules_of([*NODES, asking, *slices])
        used.append(proxy.used(asking, [admitted(one, rules) for one in slices], NODES))
    assert used[0] == used[1]
    assert used[0]["b1"]["IPv4"] == ["10.0.0.9"]
    assert used[0]["a1"]["IPv4"] == ["10.0.0.4", "10.0.0.9"]


SERVING = {"ready": False, "serving": True, "terminating": True}
FOR = {name: {"forNodes": [{"name": name}], "forZones": [{"name": name[0]}]} for name in ("a1", "a2", "b1")}


@pytest.mark.parametrize(
    ("endpoints", "more", "expected"),
    [
        pytest.param(["a1", "a2", "b1"], {}, ["1", "2", "3", "123"], id="own-node-then-all"),
        pytest.param(["a1", "b1"], {}, ["1", "1", "2", "12"], id="own-node-then-zone"),
        pytest.param(["a1", "b1", None], {}, ["123"] * 4, id="one-without-any"),
        pytest.param(["a1", "b1"], {"internalTrafficPolicy": "Local"}, ["1", "", "2", "9"], id="local-alone"),
        pytest.param(["a1", "b1"], {"trafficDistribution": "PreferSameZone"}, ["1", "1", "2", "12"], id="no-field"),
    ],
)  # fmt: skip
def test_what_docs_say_of_it(
    proxy: KubeProxy, endpoints: Sequence[str | None], more: dict[str, Any], expected: Sequence[str]
) -> None:
    """``docs/hints.md``: hints for nodes before those for zones, and neither where a ready endpoint has none."""
    made = [
        endpoint(f"10.0.0.{number}", nodeName=on or "b1", **({"hints": FOR[on]} if on else {}))
        for number, on in enumerate(endpoints, 1)
    ]
    made.append(endpoint("10.0.0.9", nodeName="c1", conditions=SERVING))
    asking = service("web", cluster_ips=CLUSTER_IPS[:1], ipFamilies=["IPv4"], **more)
    used = proxy.used(asking, [endpoint_slice("web", 0, made)], NODES)
    assert ["".join(text[-1] for text in used[one["metadata"]["name"]]["IPv4"]) for one in NODES] == expected
