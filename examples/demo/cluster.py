# SPDX-License-Identifier: Apache-2.0

"""The example cluster as a dump that changes: a zone loses its endpoints, a pod becomes ready."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from examples.demo.day import ZONES, Client

EXAMPLE = Path(__file__).parents[1] / "cluster.yaml"
ZONE = "topology.kubernetes.io/zone"
SERVICE = "kubernetes.io/service-name"

Item = dict[str, Any]


def example() -> list[Item]:
    """Return the objects of the example cluster."""
    items: list[Item] = yaml.load(EXAMPLE.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["items"]
    return items


def changed(items: Sequence[Item], *, lost: Collection[str] = (), ready: Collection[str] = ()) -> list[Item]:
    """Return the objects of a cluster in which the pods *ready* are ready, and no endpoint of the zones *lost* is."""
    after = copy.deepcopy(list(items))
    for _, endpoint in _endpoints(after):
        if endpoint.get("zone") in lost:
            endpoint["conditions"] |= {"ready": False, "serving": False}
        elif endpoint.get("targetRef", {}).get("name") in ready:
            endpoint["conditions"] |= {"ready": True, "serving": True}
    return after


def ready_by_zone(items: Sequence[Item]) -> dict[str, int]:
    """Return how many endpoints of each zone are ready. A pod with two addresses is one endpoint of its Service."""
    ready = {
        (service, endpoint["targetRef"]["name"], endpoint["zone"])
        for service, endpoint in _endpoints(items)
        if endpoint["conditions"]["ready"] and "zone" in endpoint
    }
    counts = Counter(zone for _, _, zone in ready)
    return {zone: counts[zone] for zone in ZONES}


def clients(items: Sequence[Item]) -> list[Client]:
    """Return the pods that run in ``shop``, and their zones."""
    zones = {item["metadata"]["name"]: item["metadata"]["labels"].get(ZONE) for item in items if item["kind"] == "Node"}
    return [
        Client(item["status"]["podIP"], zones[item["spec"]["nodeName"]])
        for item in items
        if item["kind"] == "Pod" and item["metadata"]["namespace"] == "shop" and item["status"]["phase"] == "Running"
    ]


def write(items: Sequence[Item], path: Path) -> None:
    """Write a dump all at once: nobody reads half of it."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("w") as file:
        dump = {"apiVersion": "v1", "kind": "List", "items": list(items)}
        yaml.dump(dump, file, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))
    os.replace(unfinished, path)


def _endpoints(items: Sequence[Item]) -> Iterator[tuple[str, Item]]:
    """Yield each endpoint of all slices, with the name of its Service."""
    for item in items:
        if item["kind"] == "EndpointSlice":
            for endpoint in item["endpoints"]:
                yield item["metadata"]["labels"][SERVICE], endpoint
