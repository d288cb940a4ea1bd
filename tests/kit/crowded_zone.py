# SPDX-License-Identifier: Apache-2.0

"""A Service whose nearest endpoints have not room for all clients of their zone (``topodns.io/max-overload``)."""

from __future__ import annotations

from typing import Any

from locator.topology.annotations import MAX_OVERLOAD
from tests.kit.api_objects import (
    HOSTNAME,
    RACK,
    REGION,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    namespace,
    node,
    pod,
    service,
)

# Zone a has 8 of 12 clients and two of four endpoints. For the Service web, its nodes come in the order a4, a3, a2, a1.
# Each is named after its zone.
RACKS = {"a1": "1", "a2": "1", "a3": "2", "a4": "1", "b1": "2", "c1": "2"}
ADDRESSES = {name: f"127.1.0.{number}" for number, name in enumerate(RACKS, 1)}
MADE = ("a1", "a2", "b1", "c1")  # the nodes of endpoints


def crowded(*objects: Item, pods: int = 2, hints: bool = False, uneven: bool = False) -> list[Item]:
    """Return *objects*, the Service web among them, with endpoints in three zones, and *pods* on each node that ask.

    If these are *uneven*, most clients are on a1, where there is another endpoint, and none on a2.
    """
    on_node = {"a1": 6, "a2": 0, "b1": 3, "c1": 3} if uneven else {}
    nodes = [
        node(name, {HOSTNAME: name, RACK: rack, ZONE: name[0], REGION: "r2" if name == "c1" else "r1"},
             addresses=[ADDRESSES[name]])
        for name, rack in RACKS.items()
    ]  # fmt: skip
    asking = [
        pod(f"web-{name}-{number}", [f"10.9.{row}.{number}"], name, labels={"app": "front"})
        for row, name in enumerate(RACKS)
        for number in range(1, on_node.get(name, pods) + 1)
    ]
    endpoints = [
        endpoint(f"10.0.0.{number}", nodeName=name, **({"hints": {"forZones": [{"name": name[0]}]}} if hints else {}))
        for number, name in enumerate((*MADE, *(["a1"] if uneven else [])), 1)
    ]
    return [namespace("shop"), *nodes, *asking, *objects, endpoint_slice("web", 1, endpoints)]


def balanced(keys: str | None, most: str = "1.2", **more: Any) -> Item:
    """Return a headless Service of which an endpoint expects at most so many even shares of its clients."""
    annotations = {MAX_OVERLOAD: most, **more.pop("annotations", {})}
    return service("web", keys=keys, annotations=annotations, labels={"app": "web"}, **more)
