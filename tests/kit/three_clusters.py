# SPDX-License-Identifier: Apache-2.0

"""Three clusters that export one Service to each other, and how a test changes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.kit.api_objects import (
    REGION,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    load_balancer_status,
    namespace,
    node,
    service,
    service_health,
)
from tests.kit.in_memory import NOW
from tests.oracle.twin_map import of_kind

NUMBERS = {"east": 1, "west": 2, "south": 3}
IN_EAST, IN_WEST = "10.1.0.200", "10.2.0.200"  # in the nodes' pod CIDRs

Clusters = dict[str, list[Item]]
Change = Callable[[Clusters], None]


def cluster(
    number: int, size: int = 2, *balancers: str, headless: bool = True, region: str | None = None, **fields: Any
) -> list[Item]:
    """Return a cluster with a node n1, in region r<number> if none is given, and an exported Service shop/web.

    All addresses have the cluster's number. The Service has *size* endpoints; the lower the number, the older it is.
    """
    ips = ("None",) if headless else (f"10.96.{number}.1",)
    web = service("web", cluster_ips=ips, annotations={"topodns.io/federated": "true"}, **fields)
    web["metadata"]["creationTimestamp"] = f"2024-01-0{number}T00:00:00Z"
    web["status"] = load_balancer_status(balancers)
    endpoints = [endpoint(f"10.{number}.0.{last}", nodeName="n1") for last in range(5, 5 + size)]
    labels = {ZONE: f"z{number}", REGION: region or f"r{number}"}
    return [
        namespace("shop"),
        node("n1", labels, cidrs=[f"10.{number}.0.0/16"], addresses=[f"192.168.{number}.1"]),
        web,
        endpoint_slice("web", 1, endpoints),
    ]


def three_clusters(*changes: Change) -> Clusters:
    """Return east and west in region r1, and south in r2: each with a cluster IP, an endpoint and a load balancer."""
    regions = {"east": "r1", "west": "r1", "south": "r2"}
    made = {
        name: cluster(number, 1, f"192.0.2.{number}", headless=False, region=regions[name])
        for name, number in NUMBERS.items()
    }
    for change in changes:
        change(made)
    return made


def web(names: str, *, keys: str | None = None, balancers: Sequence[str] | None = None, **spec: Any) -> Change:
    """Give the Service in some clusters these topology keys, load balancers, and further fields of its ``spec``."""

    def change(clusters: Clusters) -> None:
        for name in names.split():
            (found,) = of_kind(clusters[name], "Service")
            found["spec"] |= spec
            if keys is not None:
                found["metadata"]["annotations"]["topodns.io/topology-keys"] = keys
            if balancers is not None:
                found["status"] = load_balancer_status(balancers)

    return change


def endpoints(names: str, *rows: Item) -> Change:
    """Replace the endpoints."""

    def change(clusters: Clusters) -> None:
        for name in names.split():
            kept = [found for found in clusters[name] if found["kind"] != "EndpointSlice"]
            clusters[name] = [*kept, endpoint_slice("web", 1, rows)]

    return change


def votes(names: str, *against: str, renewed: float = NOW) -> Change:
    """Let the probers of some clusters vote against addresses."""

    def change(clusters: Clusters) -> None:
        for name in names.split():
            clusters[name].append(service_health("web", name, dict.fromkeys(against, False), renewed))

    return change
