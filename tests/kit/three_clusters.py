# SPDX-License-Identifier: Apache-2.0

"""Three clusters on one page, and changes to them: cases of federated names are made from these.

East is the own cluster. Its nodes and those of west are in one region, those of south in another. Every cluster has a
node ``n1``, pods in a network of its own, and an exported Service ``web`` with a cluster IP, an endpoint and a load
balancer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.kit.api_objects import HOSTNAME, REGION, ZONE, Item, endpoint, endpoint_slice, item, node, service
from tests.oracle.twin import Modes
from tests.oracle.twin_clusters import ClusterWorld
from tests.oracle.twin_map import CLUSTER, of_kind

IN_EAST, IN_WEST, IN_SOUTH = "10.1.0.200", "10.2.0.200", "10.3.0.200"  # in the nodes' pod CIDRs
OUTSIDE, IN_R2, AS_WEST, ON_N1 = "203.0.113.9", "198.51.100.1", "198.51.101.1", "198.51.102.1"
SUBNETS = {
    "198.51.100.0/24": {REGION: "r2"},
    "198.51.101.0/24": {CLUSTER: "west", REGION: "r1"},
    "198.51.102.0/24": {HOSTNAME: "n1"},
}
NUMBERS = {"east": 1, "west": 2, "south": 3}
ZONES = {"east": "a", "west": "b", "south": "c"}
REGIONS = {"east": "r1", "west": "r1", "south": "r2"}

Change = Callable[[dict[str, list[Item]]], None]


def site(name: str) -> list[Item]:
    """Return a cluster: its numbers stand in its addresses, and the earlier ones have the older Service."""
    number = NUMBERS[name]
    labels = {ZONE: ZONES[name], REGION: REGIONS[name]}
    web = service("web", cluster_ips=[f"10.96.0.{number}"], annotations={"topodns.io/federated": "true"})
    web["metadata"]["creationTimestamp"] = f"2024-01-0{number}T00:00:00Z"
    web["status"] = {"loadBalancer": {"ingress": [{"ip": f"192.0.2.{number}"}]}}
    rows = [endpoint(f"10.{number}.0.5", nodeName="n1")]
    return [
        node("n1", labels, cidrs=[f"10.{number}.0.0/24"], addresses=[f"192.168.{number}.1"]),
        web,
        endpoint_slice("web", 0, rows),
    ]


def world(*changes: Change, **settings: Any) -> ClusterWorld:
    clusters = {name: copy.deepcopy(site(name)) for name in NUMBERS}
    for change in changes:
        change(clusters)
    settings.setdefault("modes", Modes(subnets=SUBNETS))
    return ClusterWorld(clusters, "east", **settings)


# How a cluster differs from the one above


def of(clusters: Mapping[str, Sequence[Item]], names: str, kind: str) -> Iterator[Item]:
    for name in names.split():
        yield from of_kind(clusters[name], kind)


def headless(names: str) -> Change:
    def change(clusters: dict[str, list[Item]]) -> None:
        for web in of(clusters, names, "Service"):
            web["spec"] |= {"clusterIP": "None", "clusterIPs": ["None"]}

    return change


def noted(names: str, **annotations: str | None) -> Change:
    """Annotate with ``topodns.io/...``; ``None`` takes an annotation away."""

    def change(clusters: dict[str, list[Item]]) -> None:
        for web in of(clusters, names, "Service"):
            notes = web["metadata"]["annotations"]
            notes |= {f"topodns.io/{name.replace('_', '-')}": value for name, value in annotations.items()}
            web["metadata"]["annotations"] = {name: value for name, value in notes.items() if value is not None}

    return change


def specified(names: str, **fields: Any) -> Change:
    def change(clusters: dict[str, list[Item]]) -> None:
        for web in of(clusters, names, "Service"):
            web["spec"] |= fields

    return change


def balanced(name: str, *ingress: str) -> Change:
    """Give the Service load balancers with these addresses or host names."""

    def change(clusters: dict[str, list[Item]]) -> None:
        for web in of(clusters, name, "Service"):
            kinds = ["hostname" if text.endswith("example") else "ip" for text in ingress]
            web["status"]["loadBalancer"] = {
                "ingress": [{kind: text} for kind, text in zip(kinds, ingress, strict=True)]
            }

    return change


def endpoints(names: str, *rows: Item, family: str = "IPv4") -> Change:
    """Replace the endpoints of one family."""

    def change(clusters: dict[str, list[Item]]) -> None:
        for name in names.split():
            kept = [item for item in clusters[name] if item["kind"] != "EndpointSlice" or item["addressType"] != family]
            clusters[name] = [*kept, endpoint_slice("web", family.lower(), rows, family=family)]

    return change


def added(names: str, *items: Item) -> Change:
    def change(clusters: dict[str, list[Item]]) -> None:
        for name in names.split():
            clusters[name] += copy.deepcopy(items)

    return change


def exported(names: str, api: str = "multicluster.x-k8s.io/v1beta1") -> Change:
    return added(names, {**item("ServiceExport", "web", "shop"), "apiVersion": api})


def policy(names: str, key: str, mode: str, name: str = "policy") -> Change:
    def change(clusters: dict[str, list[Item]]) -> None:
        for web in of(clusters, names, "Service"):
            web["metadata"]["labels"] = {"app": "web"}

        made = item("ServicePolicy", name, "shop", spec={"serviceSelector": {"matchLabels": {"app": "web"}}})
        made["spec"]["topology"] = {"key": key, "mode": mode}
        added(names, made)(clusters)

    return change


def votes(names: str, *against: str, healthy: str | None = None, age: int = 0, service: str = "web") -> Change:
    """Let the probers of some clusters vote: *against* are unhealthy, and *healthy* is not."""
    entries = [{"address": text, "healthy": False} for text in against]
    entries += [{"address": healthy, "healthy": True}] if healthy else []

    def change(clusters: dict[str, list[Item]]) -> None:
        for name in names.split():
            moment = 1_700_000_000 - age
            status = {
                "cluster": name,
                "service": {"namespace": "shop", "name": service},
                "entries": entries,
                "renewTime": f"2023-11-14T22:{moment // 60 % 60:02}:{moment % 60:02}.000000Z",
            }
            clusters[name].append(item("ServiceHealth", f"{service}.shop", status=status))

    return change


def labelled(name: str, labels: Mapping[str, str]) -> Change:
    def change(clusters: dict[str, list[Item]]) -> None:
        for found in of(clusters, name, "Node"):
            found["metadata"]["labels"] |= labels

    return change


def two_nodes(name: str, labels: Mapping[str, str], *, ready: bool = True) -> Change:
    """Add a node ``n2`` with an endpoint to a cluster that keeps the one on ``n1``."""
    first, second = (f"10.{NUMBERS[name]}.0.{last}" for last in (5, 6))

    def change(clusters: dict[str, list[Item]]) -> None:
        added(name, node("n2", labels))(clusters)
        endpoints(name, endpoint(first, nodeName="n1"), endpoint(second, nodeName="n2", ready=ready))(clusters)

    return change


def without(name: str) -> Change:
    """Take a whole cluster away."""

    def change(clusters: dict[str, list[Item]]) -> None:
        del clusters[name]

    return change
