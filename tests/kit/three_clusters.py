# SPDX-License-Identifier: Apache-2.0

"""Three clusters that export one Service to each other, and how a test changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from tests.oracle.twin_map import of_kind

NUMBERS = {"east": 1, "west": 2, "south": 3}
IN_EAST, IN_WEST, IN_SOUTH = "10.1.0.200", "10.2.0.200", "10.3.0.200"  # in the nodes' pod CIDRs
NOW = 1_700_000_000  # when votes are written

Clusters = dict[str, list[Item]]
Change = Callable[[Clusters], None]


def cluster(
    number: int, size: int = 2, *balancers: str, headless: bool = True, region: str | None = None, **fields: Any
) -> list[Item]:
    """Return a cluster with a node n1, in region r<number> if none is given, and an exported Service shop/web.

    All addresses have the cluster's number. The Service has *size* endpoints; the lower the number, the older it is.
    """
    annotations = {"topodns.io/federated": "true", **fields.pop("annotations", {})}
    ips = ("None",) if headless else (f"10.96.{number}.1",)
    web = service("web", cluster_ips=ips, annotations=annotations, **fields)
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


def web(
    names: str,
    *,
    keys: str | None = None,
    balancers: Sequence[str] | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Change:
    """Change the Service in some clusters: *keys* are its topology keys, further fields go into its ``spec``."""

    def change(clusters: Clusters) -> None:
        for name in names.split():
            (found,) = of_kind(clusters[name], "Service")
            found["metadata"]["annotations"] |= annotations or {}
            found["metadata"]["labels"] |= labels or {}
            found["spec"] |= spec
            if keys is not None:
                found["metadata"]["annotations"]["topodns.io/topology-keys"] = keys
            if balancers is not None:
                found["status"] = load_balancer_status(balancers)

    return change


def endpoints(names: str, *rows: Item, family: str = "IPv4") -> Change:
    """Replace the endpoints of one family."""

    def change(clusters: Clusters) -> None:
        for name in names.split():
            kept = [found for found in clusters[name] if found.get("addressType") != family]
            clusters[name] = [*kept, endpoint_slice("web", family.lower(), rows, family=family)]

    return change


def added(names: str, *items: Item) -> Change:
    def change(clusters: Clusters) -> None:
        for name in names.split():
            clusters[name] += items

    return change


def votes(names: str, *against: str, healthy: Sequence[str] = (), age: int = 0, service: str = "web") -> Change:
    """Let the probers of some clusters vote: *against* are unhealthy, and *healthy* are not."""

    def change(clusters: Clusters) -> None:
        entries = {**dict.fromkeys(against, False), **dict.fromkeys(healthy, True)}
        for name in names.split():
            clusters[name].append(service_health(service, name, entries, NOW - age))

    return change
