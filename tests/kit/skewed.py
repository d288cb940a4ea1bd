# SPDX-License-Identifier: Apache-2.0

"""A small cluster with skew: zone a has most clients and one endpoint, zone b few and three, zone c clients alone."""

from __future__ import annotations

from collections.abc import Mapping

from tests.kit.api_objects import REGION, ZONE, Item, endpoint, endpoint_slice, namespace, node, pod, service

CLIENTS = {"a": 6, "b": 2, "c": 2}
ENDPOINTS = {"a": 1, "b": 3}


def skewed(
    keys: str | None = f"{ZONE},*",
    *,
    clients_in: Mapping[str, int] = CLIENTS,
    endpoints_in: Mapping[str, int] = ENDPOINTS,
    **fields: object,
) -> list[Item]:
    """Return the cluster; its Service shop/web has the topology *keys*, shop/plain none."""
    items = [namespace("shop"), namespace("other")]
    for number, (zone, clients) in enumerate(clients_in.items()):
        items.append(node(f"node-{zone}", {ZONE: zone, REGION: "r1" if zone in "ab" else "r2"}))
        for client in range(clients):
            app = {"app": "front", "tier": str(client % 2)}
            items.append(pod(f"client-{zone}{client}", [f"10.{number}.1.{client + 1}"], f"node-{zone}", labels=app))
    rows = []
    for number, (zone, ready) in enumerate(endpoints_in.items()):
        for position in range(ready):
            name, address = f"web-{zone}{position}", f"10.{number}.2.{position + 1}"
            items.append(pod(name, [address], f"node-{zone}", labels={"app": "web"}))
            rows.append(endpoint(address, nodeName=f"node-{zone}", targetRef={"kind": "Pod", "name": name}))
    return [
        *items,
        pod("done", ["10.0.9.9"], "node-a", phase="Succeeded"),
        pod("waiting", ["10.0.9.8"], "node-a", phase="Pending"),
        service("web", keys=keys, **fields),  # type: ignore[arg-type]
        endpoint_slice("web", 1, rows),
        service("plain"),
        endpoint_slice("plain", 1, rows[:2]),
        service("virtual", cluster_ips=("10.96.0.1",), keys=f"{ZONE},*"),
    ]


def balanced_if(**annotations: str) -> list[Item]:
    """Return the cluster with three nodes for the clients in zone a, so that some of them can go elsewhere.

    *annotations* are those of shop/web, beside its topology keys.
    """
    items = skewed(annotations=annotations)
    items += [node(f"node-a{number}", {ZONE: "a", REGION: "r1"}) for number in (1, 2)]
    for item in items:
        name = item["metadata"]["name"]
        if item["kind"] == "Pod" and name.startswith("client-a"):
            item["spec"]["nodeName"] = f"node-a{int(name[-1]) % 3}".replace("a0", "a")
    return items
