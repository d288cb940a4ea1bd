# SPDX-License-Identifier: Apache-2.0

"""What the demo adds to the example cluster: most clients in one zone, and two Services that feel it.

Both have two endpoints in each zone, and prefer the client's zone. ``sessions`` is balanced
(``topodns.io/max-overload``), and ``catalog`` is not: its endpoints in zone a are overloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Item = dict[str, Any]

KEYS = {"topodns.io/topology-keys": "topology.kubernetes.io/zone,*"}
SERVICES = {"catalog": KEYS, "sessions": {**KEYS, "topodns.io/max-overload": "1.5"}}
# Pods that ask, by node, beside those of the example: 60 of 100 in zone a. The number is that of the node's pod CIDR.
CROWD = {
    ("node-a1", 1): 13, ("node-a2", 2): 13, ("node-a3", 3): 13, ("node-a4", 4): 13,
    ("node-b1", 5): 3, ("node-b2", 6): 3, ("node-b3", 7): 3, ("node-b4", 8): 3,
    ("node-c1", 9): 4, ("node-c2", 10): 4, ("node-c3", 11): 4,
}  # fmt: skip
ENDPOINTS = {
    "eu-west-a": (("node-a1", 1), ("node-a3", 3)),
    "eu-west-b": (("node-b1", 5), ("node-b3", 7)),
    "eu-west-c": (("node-c1", 9), ("node-c2", 10)),
}


def crowd() -> Iterator[Item]:
    """Yield the objects, which have other names and addresses than those of the example."""
    for (node, network), pods in CROWD.items():
        for number in range(pods):
            yield _pod(f"web-{node.removeprefix('node-')}-{number}", "web", node, f"10.244.{network}.{100 + number}")
    for position, name in enumerate(SERVICES):
        metadata = {"namespace": "shop", "name": name, "annotations": SERVICES[name]}
        ports = [{"name": name, "port": 8080}]
        spec = {"clusterIP": "None", "clusterIPs": ["None"], "selector": {"app": name}, "ports": ports}
        yield {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
        endpoints = []
        for zone, nodes in ENDPOINTS.items():
            for node, network in nodes:
                pod, address = f"{name}-{len(endpoints)}", f"10.244.{network}.{80 + position}"
                yield _pod(pod, name, node, address)
                endpoints.append(_endpoint(pod, address, node, zone))
        yield {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "shop",
                "name": f"{name}-7k2vp",
                "labels": {
                    "kubernetes.io/service-name": name,
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
            },
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": endpoints,
        }


def _pod(name: str, app: str, node: str, address: str) -> Item:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "labels": {"app": app}},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }


def _endpoint(pod: str, address: str, node: str, zone: str) -> Item:
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": node,
        "zone": zone,
        "targetRef": {"kind": "Pod", "namespace": "shop", "name": pod},
    }
