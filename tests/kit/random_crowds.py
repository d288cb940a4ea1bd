# SPDX-License-Identifier: Apache-2.0

"""Pods that are many on some nodes and few on others: added to a cluster, and a random cluster made for them.

In the latter the endpoints of one Service have too few or too many clients near them. Every client is a pod on a known
node, and most zones have more or fewer clients than their part of the endpoints.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.kit.api_objects import (
    HOSTNAME,
    RACK,
    REGION,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    item,
    node,
    pod,
    pod_locator,
    service,
)

KEY = ("shop", "web")  # the Service
OPTED_IN = "topo.local"  # the DNS zone with default keys
OVERLOADS = ("1.1", "1.2", "1.25", "1.5", "1.5", "2", "3.0", "10")
CLIENTS = ("shop", "shop/app=web", "jobs", "shop/app!=web,tier; jobs", "shop/app in (web, db)", "jobs/!tier; shop/tier")
INVALID_OVERLOADS, INVALID_CLIENTS = ("1", "11", "2x", ""), ("shop;", "Shop", "shop/app in web", "")
PHASES = (*["Running"] * 10, "Pending", "Succeeded")
APPS, NAMESPACES = ("web", "db", "cache"), ("shop", "shop", "shop", "jobs")
SOFT = (f"{ZONE},*", f"{ZONE},*", f"{HOSTNAME},{ZONE},*", f"{RACK},{ZONE},{REGION},*", f"{RACK},*")
HARD = (ZONE, f"{HOSTNAME},{ZONE}", f"{ZONE},{REGION}")


class Crowd(NamedTuple):
    """A cluster, and the addresses of its running pods."""

    items: list[Item]
    addresses: list[str]


def add_crowd(items: list[Item], rng: random.Random) -> list[str]:
    """Add pods to the nodes of a cluster, some with a PodLocator, and balance to Services; return a few addresses."""
    addresses = list[str]()
    for said in [found for found in items if found["kind"] == "Service"]:
        add_balance(said["metadata"].setdefault("annotations", {}), rng)
    for on in [found for found in items if found["kind"] == "Node"]:
        name, labels = on["metadata"]["name"], on["metadata"]["labels"]
        for number in range(len(addresses), len(addresses) + rng.choice((0, 0, 1, 2, 9))):
            own = [f"10.251.0.{number + 1}", f"fd00:251::{number + 1:x}"][: rng.randint(1, 2)]
            who, where = f"crowd-{number}", rng.choice(NAMESPACES)
            items.insert(
                rng.randrange(len(items)),
                pod(who, own, name, where=where, labels=pod_labels(rng), phase=rng.choice(PHASES)),
            )
            if rng.randrange(2):
                found = pod_locator(who, where, own, nodeName=name, nodeLabels=dict(labels))
                items.insert(rng.randrange(len(items)), found)
            addresses.append(own[0])
    return rng.sample(addresses, min(4, len(addresses)))


def add_balance(annotations: dict[str, str], rng: random.Random) -> None:
    """Let a Service ask for balance, or no longer; most of what it says is valid."""
    for name, texts, percent in (
        ("topodns.io/max-overload", (*OVERLOADS, *INVALID_OVERLOADS[: rng.randrange(5)]), 50),
        ("topodns.io/clients", (*CLIENTS, "nobody", *INVALID_CLIENTS[: rng.randrange(5)]), 25),
    ):
        annotations.pop(name, None)
        if rng.randrange(100) < percent:
            annotations[name] = rng.choice(texts)


def pod_labels(rng: random.Random) -> dict[str, str]:
    return {"app": rng.choice(APPS), **({"tier": rng.choice("12")} if rng.randrange(2) else {})}


def crowd(seed: int, *, keys: Sequence[str] = (), **said: Any) -> Crowd:
    """Return a cluster; its Service says one of *keys*, or asks for nearness by any source, and *said* in any case."""
    rng = random.Random(seed)
    zones = rng.sample("abcd", rng.randint(1, 4))
    count = rng.randint(2, 14)
    nodes = [_node(rng, number, zones) for number in range(count)]
    rows = [_row(rng, number, rng.choice(nodes)) for number in range(rng.choice((1, 2, 3, 4, 6, 6, 9, 12)))]
    asked: dict[str, Any] = {"annotations": {"topodns.io/max-overload": rng.choice(OVERLOADS)}}
    if rng.randrange(3) == 0:
        asked["annotations"]["topodns.io/clients"] = rng.choice(CLIENTS)
    policies = []
    if keys:
        asked["keys"] = rng.choice(keys)
    else:
        source = rng.choice(("annotation", "field", "policies", "policies", "distribution", "hints", "default"))
        asked |= _source(rng, source, rows)
        policies = _policies(rng) if source == "policies" else []
    own = [pod(f"web-{number}", row["addresses"], row["nodeName"]) for number, row in enumerate(rows)]
    crowded = _pods(rng, nodes, zones)
    slices = [endpoint_slice("web", number, rows[number::2]) for number in range(2)]
    labels = {on["metadata"]["name"]: on["metadata"]["labels"] for on in nodes}
    locators = [_locator(found, labels[found["spec"]["nodeName"]]) for found in (*own, *crowded)]
    items = [*nodes, service("web", **{**asked, **said}), *policies, *slices, *own, *crowded, *locators]
    rng.shuffle(items)
    running = [found for found in (*own, *crowded) if found["status"]["phase"] == "Running"]
    return Crowd(items, [found["status"]["podIPs"][0]["ip"] for found in running])


def _node(rng: random.Random, number: int, zones: Sequence[str]) -> Item:
    labels = {ZONE: rng.choice(zones), RACK: rng.choice("123"), REGION: rng.choice(("r1", "r2"))}
    if rng.randrange(12) == 0:
        del labels[ZONE]
    return node(f"node-{number}", labels, addresses=[f"192.168.0.{number + 1}"])


def _locator(of: Item, labels: dict[str, str]) -> Item:
    addresses = [row["ip"] for row in of["status"]["podIPs"]]
    where = of["metadata"]["namespace"]
    return pod_locator(of["metadata"]["name"], where, addresses, nodeName=of["spec"]["nodeName"], nodeLabels=labels)


def _row(rng: random.Random, number: int, on: Item) -> Item:
    labels = on["metadata"]["labels"]
    where = {"nodeName": on["metadata"]["name"], **({"zone": labels[ZONE]} if ZONE in labels else {})}
    target = {"kind": "Pod", "name": f"web-{number}"}
    return endpoint(f"10.250.0.{number + 1}", ready=rng.randrange(12) > 0, targetRef=target, **where)


def _source(rng: random.Random, source: str, rows: Sequence[Item]) -> dict[str, Any]:
    """Return what a Service says; hints are added to its endpoints, and policies select it by its label."""
    keys = rng.choice((*SOFT, *SOFT, *HARD))
    least = {"least": rng.choice(("2", "3"))} if rng.randrange(4) == 0 else {}
    if source == "annotation":
        return {"keys": keys, **least}
    if source == "field":
        return {"field": keys.split(","), **least}
    if source == "policies":
        return {"labels": {"app": "web"}, **least}
    if source == "distribution":
        return {"trafficDistribution": rng.choice(("PreferClose", "PreferSameZone", "PreferSameNode")), **least}
    if source == "hints":
        for_nodes, lie = rng.randrange(2) == 0, rng.randrange(5) == 0
        for row in rows:
            row["hints"] = {"forZones": [{"name": "a" if lie else row.get("zone", "a")}]}
            row["hints"] |= {"forNodes": [{"name": row["nodeName"]}]} if for_nodes else {}
    return least


def _policies(rng: random.Random) -> list[Item]:
    made = []
    for number, key in enumerate(rng.sample((HOSTNAME, RACK, ZONE, REGION), rng.randint(1, 3))):
        topology = {"key": key, "mode": rng.choice(("preferred", "preferred", "preferred", "required"))}
        selector = {"matchLabels": {"app": "web"}}
        made.append(
            item("ServicePolicy", f"p{number}", "shop", spec={"serviceSelector": selector, "topology": topology})
        )
        made[-1]["metadata"]["creationTimestamp"] = f"2024-01-0{number + 1}T00:00:00Z"
    return made


def _pods(rng: random.Random, nodes: Sequence[Item], zones: Sequence[str]) -> list[Item]:
    weights = {zone: rng.choice((1, 2, 6, 20)) for zone in zones}
    made: list[Item] = []
    for on in nodes:
        for _ in range(rng.randint(0, weights.get(on["metadata"]["labels"].get(ZONE), 2))):
            labels, phase = pod_labels(rng), rng.choice(PHASES)
            address = f"10.251.{len(made) // 200}.{len(made) % 200 + 1}"
            where = rng.choice(NAMESPACES)
            made.append(
                pod(f"c-{len(made)}", [address], on["metadata"]["name"], where=where, labels=labels, phase=phase)
            )
    return made
