# SPDX-License-Identifier: Apache-2.0

"""What random Services ask for, by every source at once, and how that changes.

The functions take a ``random.Random``, so that one seed always makes the same. Most of what they make is valid.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.kit.api_objects import HOSTNAME, OLD, RACK, REGION, TOPOLOGY_KEYS, ZONE, Item, item, pod_locator

KEYS = (HOSTNAME, RACK, ZONE, REGION)
INVALID = ("*,a", f"{ZONE},{ZONE}", "-bad-", ",", f"{ZONE},,*", ",".join(f"k{number}" for number in range(17)))
DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode", "PreferSameZone", "PreferSameNode", "PreferFar")
AWARE, MODE = "service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"
APPS = ("web", "db")  # values of the label that policies select by
# How many percent of a Service's endpoints have hints for zones, and for nodes.
HINTED = (*[(0, 0)] * 5, (100, 0), (0, 100), (100, 100), (70, 70), (100, 60))


def chance(rng: random.Random, percent: int) -> bool:
    return rng.randrange(100) < percent


def keys(rng: random.Random) -> list[str]:
    """Return valid keys, hard or soft, some by their old names, rarely one by both."""
    drawn = rng.sample(KEYS, rng.choice((0, 1, 2, 2, 3)))
    drawn = [OLD[key] if key in OLD and chance(rng, 20) else key for key in drawn]
    if ZONE in drawn and chance(rng, 10):
        drawn.append(OLD[ZONE])
    return drawn + ["*"] * (not drawn or chance(rng, 40))


def annotation(rng: random.Random) -> str:
    """Return a value of the annotation for topology keys: mostly valid, some with spaces, blank or invalid."""
    if chance(rng, 20):
        return rng.choice(("", "  ", *INVALID))
    return rng.choice((",", ",", " , ")).join(keys(rng))


def declarations(rng: random.Random) -> dict[str, Any]:
    """Return arguments of ``api_objects.service``: what a Service says by its own annotations, labels and fields.

    Some Services declare nothing, so that later sources decide.
    """
    early = chance(rng, 60)
    asked: dict[str, Any] = {
        "labels": {"app": rng.choice(APPS)} if early and chance(rng, 80) else {},
        "annotations": {},
    }
    if early and chance(rng, 50):
        asked["keys"] = annotation(rng)
    if early and chance(rng, 45):
        asked["field"] = keys(rng) if chance(rng, 85) else rng.choice(([], ["*", ZONE], [ZONE, ZONE]))
    if chance(rng, 40):
        asked["least"] = rng.choice(("2", "02", " 3 ", "0", "x", "-1", "1000000000"))
    if chance(rng, 50):
        asked["trafficDistribution"] = rng.choice(DISTRIBUTIONS)
    for name in (AWARE, MODE):
        if chance(rng, 25):
            asked["annotations"][name] = rng.choice(("Auto", "auto", "Disabled", "AUTO", ""))
    if chance(rng, 12):
        asked["publishNotReadyAddresses"] = True
    if chance(rng, 6):
        asked["externalTrafficPolicy"] = "Local"
    return asked


def policies(rng: random.Random) -> list[Item]:
    """Return ServicePolicies: mostly of the Services' namespace, many of one age, in some clusters invalid ones."""
    invalid = chance(rng, 15)
    return [policy(rng, f"policy-{number}", invalid=invalid) for number in range(rng.choice((0, 1, 2, 4, 6)))]


def policy(rng: random.Random, name: str, *, invalid: bool) -> Item:
    operator, values = rng.choice(
        (("In", APPS[:1]), ("In", APPS), ("NotIn", APPS), ("Exists", ()), ("DoesNotExist", ()))
    )
    expression = {"key": "app", "operator": operator, **({"values": [*values]} if values else {})}
    selector = {"matchLabels": {"app": rng.choice(APPS)}} if chance(rng, 60) else {"matchExpressions": [expression]}
    if invalid and chance(rng, 20):
        selector = rng.choice(({}, {"matchExpressions": [{"key": "app", "operator": "Equals"}]}))
    key = rng.choice((*KEYS, *OLD.values())) if not invalid or chance(rng, 85) else rng.choice(("*", "a b", ""))
    mode = rng.choice(("required", "Required", *["preferred", "Preferred"] * 5, "ignored", "Ignored", None, None))
    topology = {"key": key, "mode": mode if not invalid or chance(rng, 90) else "REQUIRED"}
    if mode is None:
        del topology["mode"]
    where = "shop" if chance(rng, 90) else "kube-system"
    made = item("ServicePolicy", name, where, spec={"serviceSelector": selector, "topology": topology})
    made["metadata"]["creationTimestamp"] = f"2024-01-0{rng.choice((1, 1, 2, 3))}T00:00:00Z"
    return made


def locator(rng: random.Random, name: str, addresses: Sequence[str], on: str, labels: dict[str, str]) -> Item:
    """Return the PodLocator of a pod on a node with *labels*; some are out of date, or have few labels."""
    told = {key: value for key, value in labels.items() if chance(rng, 90)}
    if chance(rng, 10):
        told[ZONE] = rng.choice("abc")
    return pod_locator(name, "shop", addresses, nodeName=on, nodeLabels=told)


def set_hints(rng: random.Random, entry: Item, percents: tuple[int, int], nodes: int) -> None:
    """Give an endpoint hints for zones, for nodes or none; some name a zone or a node where nobody is."""
    entry.pop("hints", None)
    zones = rng.sample("abcz", rng.choice((1, 1, 2))) if chance(rng, percents[0]) else []
    names = rng.sample(range(nodes + 1), rng.choice((1, 1, 2))) if chance(rng, percents[1]) else []
    if zones or names or chance(rng, 10):
        entry["hints"] = {
            **({"forZones": [{"name": zone} for zone in zones]} if zones or chance(rng, 20) else {}),
            **({"forNodes": [{"name": f"node-{number}"} for number in names]} if names else {}),
        }


def change(rng: random.Random, changed: Item) -> None:
    """Change what a Service, an EndpointSlice or a ServicePolicy says."""
    meta = changed["metadata"]
    if changed["kind"] == "Service":
        said = declarations(rng)
        if chance(rng, 50):
            meta["annotations"][TOPOLOGY_KEYS] = annotation(rng)
        else:
            meta["annotations"].pop(TOPOLOGY_KEYS, None)
        meta["annotations"] |= said["annotations"]
        meta["labels"] = said["labels"]
        changed["spec"].pop("trafficDistribution", None)
        changed["spec"] |= {name: said[name] for name in ("trafficDistribution",) if name in said}
    elif changed["kind"] == "EndpointSlice":
        percents, more = rng.choice(HINTED), chance(rng, 50)
        for entry in changed["endpoints"]:
            set_hints(rng, entry, percents, 6)
            if more and chance(rng, 30):
                entry["conditions"] = {"ready": rng.choice((True, False))}
    elif changed["kind"] == "ServicePolicy":
        changed["spec"] = policy(rng, meta["name"], invalid=chance(rng, 10))["spec"]
