# SPDX-License-Identifier: Apache-2.0

"""Who asks for near endpoints gets them, or is told why not: by hints, for both address families, by labels."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import dns.message
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.tools.explain.explanation import Explanation
from locator.state.snapshot import Snapshot
from tests.kit import random_cluster
from tests.kit.api_objects import (
    HOSTNAME,
    OLD,
    REGION,
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    item,
    listed,
    node,
    pod,
    service,
)
from tests.kit.commands_in_process import Run
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import ask_in_memory, checked, responder_of, snapshot_of
from tests.kit.unshrunk import unshrunk
from tests.oracle.kube_proxy import endpoints_on
from tests.oracle.twin import Modes, Twin

SEEDS = st.integers(0, 100_000)
AUTO = {"service.kubernetes.io/topology-mode": "Auto"}
NODES = [
    node("a1", {ZONE: "a", REGION: "r"}, addresses=["10.8.0.1"]),
    node("b1", {ZONE: "b", REGION: "r"}, addresses=["10.8.0.2"]),
    node("bare", {ZONE: ""}, addresses=["10.8.0.3"]),
]


def explained(snapshot: Snapshot, name: str, client: str, qtype: str = "A") -> Explanation:
    return explanation_of(snapshot, name, client, qtype, candidates=True)


def for_zones(row: Item, *zones: str) -> Item:
    return {**row, "hints": {"forZones": [{"name": zone} for zone in zones]}}


# By kube-proxy's rule

SAID: tuple[dict[str, Any] | None, ...] = (
    None,
    {},
    {"forZones": [{"name": "a"}]},
    {"forZones": [{"name": "b"}, {"name": "z"}]},
    {"forNodes": [{"name": "a1"}]},
    {"forNodes": [{"name": "b1"}], "forZones": [{"name": "a"}]},
)


@pytest.mark.parametrize("first", range(len(SAID)))
def test_hints_count_as_for_kube_proxy(first: int) -> None:
    """Whatever two or three endpoints say, ready or not: a headless name has what kube-proxy would use on the node."""
    for second, third, ready in product(SAID, SAID[:4], (True, False)):
        rows = [
            endpoint(f"10.0.0.{number}", nodeName=NODES[number]["metadata"]["name"], ready=number < 2 or ready,
                     **({"hints": said} if said is not None else {}))
            for number, said in enumerate((SAID[first], second, third))
        ]  # fmt: skip
        part = endpoint_slice("web", 1, rows)
        snapshot = snapshot_of(listed([*NODES, service("web"), part]))
        for where in NODES:
            found = explained(snapshot, "web.shop.svc.cluster.local", where["status"]["addresses"][0]["address"])
            answers = {answer.data for answer in found.answers}
            assert (rows, answers) == (rows, endpoints_on(where, [part]))


# Empty labels


def with_empty_labels(items: list[Item], rng: random.Random) -> list[Item]:
    """Return a cluster with labels without a value where it has none: on nodes, in slices, hints and PodLocators."""
    later = copy.deepcopy(items)
    for found in later:
        if found["kind"] == "Node":
            add_empty(found["metadata"].setdefault("labels", {}), rng)
        elif found["kind"] == "PodLocator":
            add_empty(found["nodeLabels"], rng)
        elif found["kind"] == "EndpointSlice":
            found["metadata"]["labels"].setdefault("multicluster.kubernetes.io/source-cluster", "")
            for row in found["endpoints"]:
                if rng.randrange(2):
                    row.setdefault("zone", "")
                if "deprecatedTopology" in row:
                    add_empty(row["deprecatedTopology"], rng)
                for names in row.get("hints", {}).values():
                    names.append({"name": ""})
    return later


def add_empty(labels: dict[str, str], rng: random.Random) -> None:
    for key in (HOSTNAME, ZONE, REGION, "example.com/rack", *OLD.values(), "node-role.kubernetes.io/worker"):
        if rng.randrange(2):
            labels.setdefault(key, "")


@settings(unshrunk, max_examples=40)
@given(seed=SEEDS)
def test_a_label_without_a_value_is_no_label(seed: int) -> None:
    """A cluster with empty labels answers, explains and reports as the same cluster without them."""
    world, rng = random_cluster.world(seed), random.Random(seed)
    plain, padded = (listed(items) for items in (world.items, with_empty_labels(world.items, rng)))
    without, having = snapshot_of(plain), snapshot_of(padded)
    assert [str(one) for one in checked(plain)] == [str(one) for one in checked(padded)]
    for name in rng.sample(world.names, 6):
        for client in rng.sample(world.addresses, 4):
            assert explained(without, name, client) == explained(having, name, client)


# Both address families


ASKED: tuple[dict[str, Any], ...] = (
    {"keys": f"{HOSTNAME},{ZONE},*"},
    {"keys": f"{ZONE},{REGION},*", "least": "2"},
    {"keys": ZONE},
    {"field": [ZONE, "*"]},
    {"trafficDistribution": "PreferSameNode"},
    {"labels": {"app": "web"}},
    {},
)


def in_two_families(seed: int) -> list[Item]:
    """Return a Service whose pods have addresses of one family, or of both, some with hints in one slice."""
    rng = random.Random(seed)
    nodes = [node(f"n{n}", {ZONE: rng.choice("abc"), REGION: rng.choice("rs")}, addresses=[f"192.168.0.{n}"])
             for n in range(1, 5)]  # fmt: skip
    policy = item("ServicePolicy", "near", "shop", spec={
        "serviceSelector": {"matchLabels": {"app": "web"}},
        "topology": {"key": ZONE, "mode": rng.choice(("preferred", "preferred", "required"))}})  # fmt: skip
    rows: dict[str, list[Item]] = {"IPv4": [], "IPv6": []}
    hinted = rng.randrange(3) == 0
    for number in range(rng.randint(1, 5)):
        on = rng.choice(nodes)
        where = {"nodeName": on["metadata"]["name"], "targetRef": {"kind": "Pod", "name": f"web-{number}"}}
        families = rng.choice((("IPv4",), ("IPv6",), ("IPv4", "IPv6")))
        for family in families:
            row = endpoint(f"10.1.0.{number + 1}" if family == "IPv4" else f"fd00::{number + 1}", **where)
            if hinted and family == families[0]:
                row = for_zones(row, on["metadata"]["labels"][ZONE])
            rows[family].append(row)
    slices = [endpoint_slice("web", family, those, family=family) for family, those in rows.items() if those]
    return [*nodes, policy, service("web", **rng.choice(ASKED)), *slices]


@settings(unshrunk, max_examples=80)
@given(seed=SEEDS)
def test_a_soft_constraint_leaves_nobody_without_a_family(seed: int) -> None:
    """If a ready endpoint has an address of the family, A, or AAAA, has one unless the constraint is hard.

    The answer is of the one choice where that has the family. It is the same computed and remembered, for clients in
    any order, and explained.
    """
    items = in_two_families(seed)
    twin, snapshot, responder = Twin(items, Modes()), snapshot_of(listed(items)), responder_of(listed(items))
    rows = list(product(twin.headless(), ("192.168.0.1", "192.168.0.2", "192.168.0.3", random_cluster.UNKNOWN_CLIENT)))
    for key, client in (*rows, *rows[::-1]):
        name, ready = f"{key[1]}.{key[0]}.svc.cluster.local", twin.ready(key)
        given_to = twin.given(key, twin.map.locate(client))
        for version, qtype in ((4, "A"), (6, "AAAA")):
            reply = ask_in_memory(responder, dns.message.make_query(name, qtype), client, proto="tcp")
            assert reply is not None
            answers = {data.to_text() for rrset in reply.answer for data in rrset}
            assert answers == {one.data for one in explained(snapshot, name, client, qtype).answers}
            assert answers == {text for text in given_to.addresses if (":" in text) == (version == 6)}
            of_choice = {text for text in given_to.chosen if (":" in text) == (version == 6)}
            assert answers == of_choice or (answers and not of_choice)
            assert answers or twin.asked(key).hard or not any(row.of(version) for row in ready)


# Who asks in vain is told

ON = [endpoint(f"10.1.{number}.1", nodeName=on["metadata"]["name"]) for number, on in enumerate(NODES)]


SPLIT = [node("a1", {ZONE: "a", REGION: "r1"}), node("b1", {ZONE: "a", REGION: "r2"})]
TOLD = {
    "HintsIncomplete": [
        *NODES, service("web", trafficDistribution="PreferSameZone"),
        endpoint_slice("web", 1, [for_zones(ON[0], "a"), for_zones(ON[1], "b"), ON[2]])],
    "AutoWithoutHints": [*NODES, service("web", annotations=AUTO), endpoint_slice("web", 1, ON)],
    "HintsElsewhere": [
        *NODES, service("web", annotations=AUTO),
        endpoint_slice("web", 1, [for_zones(ON[0], "b"), for_zones(ON[1], "a")])],
    "TwinWithoutConstraint": [
        *NODES, service("web"), endpoint_slice("web", 1, ON),
        service("vip", cluster_ips=["10.96.0.9"], trafficDistribution="PreferClose"), endpoint_slice("vip", 1, ON)],
    "ConstraintWithoutEffect": [
        *NODES, service("web", trafficDistribution="PreferClose", publishNotReadyAddresses=True),
        endpoint_slice("web", 1, ON[:2])],
    "ZoneInTwoRegions": [*SPLIT, service("web", keys=f"{ZONE},*"), endpoint_slice("web", 1, ON[:2])],
    "EndpointsInOneDomain": [
        *NODES, service("web", trafficDistribution="PreferSameZone"),
        endpoint_slice("web", 1, [ON[0], endpoint("10.1.0.9", nodeName="a1")])],
    "SingleEndpoint": [*NODES, service("web", trafficDistribution="PreferSameNode"), endpoint_slice("web", 1, ON[:1])],
}  # fmt: skip


@pytest.fixture(params=TOLD)
def told(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    path = tmp_path / "cluster.json"
    clients = [pod("c-a", ["10.1.0.50"], "a1"), pod("c-b", ["10.1.1.50"], "b1")]
    path.write_text(listed([*TOLD[request.param], *clients]))
    return request.param, path


def test_told_by_each_command(topodns: Run, told: tuple[str, Path]) -> None:
    """``check``, ``explain`` and ``simulate`` name the cause, whatever source the nearness was asked from."""
    code, path = told
    found = topodns("check", "--snapshot", str(path), "-o", "json").json
    assert code in [finding["code"] for finding in found]
    asked = ("--snapshot", str(path), "-o", "json")
    explanation = topodns("explain", "web.shop", "--client", "node/a1", *asked).json
    if code == "ConstraintWithoutEffect":
        assert "publishes addresses that are not ready" in explanation["constraint"]["without_effect"]
    else:
        assert code in [finding["code"] for finding in explanation["findings"]]
        text = topodns("explain", "web.shop", "--client", "node/a1", "--snapshot", str(path)).out
        assert f"[{code}]" in " ".join(text.split())
    simulated = topodns("simulate", "--service", "shop/web", *asked).json
    codes = [finding["code"] for finding in simulated["findings"]]
    assert codes.count(code) == 1


def test_the_default_of_the_zone_is_a_constraint(topodns: Run, tmp_path: Path) -> None:
    """A name of a zone with default keys asks for near endpoints, so no command says that its twin alone does."""
    path, code = tmp_path / "cluster.json", "TwinWithoutConstraint"
    path.write_text(listed([*TOLD[code], pod("c-a", ["10.1.0.50"], "a1")]))
    zones = ("--zone", "cluster.local", "--zone", "own.example", "--default-topology-keys", f"own.example={ZONE},*")
    asked = ("--snapshot", str(path), "-o", "json", *zones)
    found = {
        zone: [
            finding["code"]
            for finding in topodns("explain", f"web.shop.svc.{zone}", "--client", "node/a1", *asked).json["findings"]
        ]
        for zone in ("cluster.local", "own.example")
    }
    assert found == {"cluster.local": [code], "own.example": []}
    alone = ("--snapshot", str(path), "-o", "json", "--zone", "own.example", *zones[4:])
    simulated = topodns("simulate", "--service", "shop/web", *alone).json
    assert code not in [finding["code"] for finding in simulated["findings"]]
    assert code not in topodns("check", *alone).out


def test_who_asks_in_vain_is_simulated(topodns: Run, tmp_path: Path) -> None:
    """A Service that asks only for what Kubernetes does not give is simulated, and its text says what was asked."""
    path = tmp_path / "cluster.json"
    path.write_text(listed([*TOLD["AutoWithoutHints"], pod("c-a", ["10.1.0.50"], "a1")]))
    ran = topodns("simulate", "--snapshot", str(path))
    assert "no constraint in effect: the Service's topology mode is Auto, and no ready endpoint has a hint" in ran.out
    assert ran.status == 0 and "[AutoWithoutHints]" in ran.out


def gains(topodns: Run, path: Path, items: list[Item]) -> list[str]:
    path.write_text(listed(items))
    found = topodns("simulate", "--snapshot", str(path), "-o", "json").json["findings"]
    return [finding["code"] for finding in found if finding["code"] in ("ChoosesNothing", "SavesNothing")]


def test_a_constraint_without_gain_is_told(topodns: Run, tmp_path: Path) -> None:
    """``simulate`` says that a constraint chooses nothing, or that it saves no traffic between zones."""
    clients = [pod("c-a", ["10.8.0.50"], "a1"), pod("c-b", ["10.8.0.51"], "b1")]
    path, nodes = tmp_path / "cluster.json", [*NODES[:2], node("c1", {ZONE: "c", REGION: "r"})]

    def web(rows: list[Item], **asked: Any) -> list[Item]:
        return [*nodes, *clients, service("web", **asked), endpoint_slice("web", 1, rows)]

    four = [endpoint(f"10.1.{number}.2", nodeName=on["metadata"]["name"]) for number, on in enumerate(NODES)]
    crossed = [for_zones(row, zone) for row, zone in zip((*ON[:2], *four[:2]), "baab", strict=True)]
    assert gains(topodns, path, web(crossed)) == ["SavesNothing"]
    assert gains(topodns, path, web([*ON[:2], *four[:2]], trafficDistribution="PreferSameZone")) == []
    far = [endpoint(f"10.1.9.{number}", nodeName="c1") for number in (1, 2)]
    assert gains(topodns, path, web(far, keys=f"{ZONE},*")) == ["ChoosesNothing"]
    assert gains(topodns, path, web(far, keys="*")) == ["ChoosesNothing"]
    assert gains(topodns, path, web(far[:1], keys=f"{ZONE},*")) == []


@pytest.mark.parametrize("family", ["four", "six", "both"])
def test_clients_are_simulated_with_the_families_that_they_have(topodns: Run, tmp_path: Path, family: str) -> None:
    """A pod with IPv4 alone gets what A gives it; one with both gets the one choice; one that gets nothing is unmet."""
    six = endpoint("fd00::1", nodeName="a1", targetRef={"kind": "Pod", "name": "m-0"})
    four = endpoint("10.9.0.2", nodeName="b1", targetRef={"kind": "Pod", "name": "m-1"})
    own = {"four": ["10.8.0.50"], "six": ["fd00:8::50"], "both": ["10.8.0.50", "fd00:8::50"]}[family]
    soft, hard = (service(name, keys=keys) for name, keys in (("soft", f"{ZONE},*"), ("hard", ZONE)))
    slices = [endpoint_slice(name, 6, [six], family="IPv6") for name in ("soft", "hard")]
    slices += [endpoint_slice(name, 4, [four]) for name in ("soft", "hard")]
    path = tmp_path / "cluster.json"
    path.write_text(listed([*NODES, soft, hard, *slices, pod("client", own, "a1")]))
    rows = topodns("simulate", "--snapshot", str(path), "-o", "json").json["services"]
    shares = {row["name"]: {one["pod"]: one["share"] for one in row["endpoints"]} for row in rows}
    unmet = {row["name"]: row["unmet_clients"] for row in rows}
    gets = {"m-0": 0.0, "m-1": 1.0} if family == "four" else {"m-0": 1.0, "m-1": 0.0}
    assert shares["soft"] == gets and unmet == {"soft": 0, "hard": int(family == "four")}


def test_hints_and_keys_lead_to_one_proposal(topodns: Run, tmp_path: Path) -> None:
    """``simulate`` proposes for hints what it proposes for the annotation that means the same."""
    where = [node(f"{zone}1", {ZONE: zone}) for zone in "abc"]
    rows = [endpoint("10.1.0.1", nodeName="a1")]
    rows += [endpoint(f"10.1.{number}.{host}", nodeName=f"{zone}1") for number, zone in ((1, "b"), (2, "c"))
             for host in (1, 2, 3)]  # fmt: skip
    clients = [pod(f"c-{zone}{n}", [f"10.2.{number}.{n}"], f"{zone}1") for number, zone in enumerate("abc")
               for n in range(10)]  # fmt: skip
    hinted = [for_zones(row, row["nodeName"][0]) for row in rows]
    for_nodes = [{**row, "hints": {**row["hints"], "forNodes": [{"name": row["nodeName"]}]}} for row in hinted]
    found = list(proposals(topodns, tmp_path, [
        (service("web"), hinted), (service("web", keys=f"{ZONE},*"), rows),
        (service("web"), for_nodes), (service("web", keys=f"{HOSTNAME},{ZONE},*"), rows),
    ], [*where, *clients]))  # fmt: skip
    assert found[0]["annotations"] == {TOPOLOGY_KEYS: f"{ZONE},*", "topodns.io/min-endpoints": "2"}
    for by_hints, by_keys in (found[:2], found[2:]):
        assert {**by_hints, "annotations": {}} == {**by_keys, "annotations": {}}


def proposals(topodns: Run, tmp_path: Path, cases: list[Any], others: list[Item]) -> Iterator[Any]:
    path = tmp_path / "cluster.json"
    for asked, rows in cases:
        path.write_text(listed([*others, asked, endpoint_slice("web", 1, rows)]))
        ran = topodns("simulate", "--snapshot", str(path), "-o", "json")
        (row,) = json.loads(ran.out)["services"]
        yield row["proposal"]
