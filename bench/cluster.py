"""The cluster and the records that are asked for: small arithmetic, so that every part of the benchmark agrees.

Service *n* has one endpoint in each zone. Client pods are spread evenly over the nodes, each within its node's pod
CIDR, and the nodes over the zones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ZONES = 3
NODES = 5_000
SERVICES = 1_000
CLIENTS = 150_000
NAMESPACE = "bench"
ORIGIN = f"{NAMESPACE}.svc.cluster.local."
TTL = 5

Object = dict[str, Any]


class ClientPod(NamedTuple):
    """A pod that asks: its address, and the zone of its node."""

    address: str
    zone: int


def pod_cidr(node: int) -> str:
    """Return what is common to the addresses of a node's pod CIDR, a /24."""
    return f"10.{64 + node // 256}.{node % 256}"


# They ask for themselves: the load generator sends from their addresses, two in each zone.
DIRECT = tuple(ClientPod(f"127.1.0.{node + 1}", node % ZONES) for node in range(2 * ZONES))
# A trusted forwarder asks for these; one on each node, then another on each, and so on.
FORWARDED = tuple(
    ClientPod(f"{pod_cidr(node)}.{turn + 2}", node % ZONES) for turn in range(CLIENTS // NODES) for node in range(NODES)
)


def service_name(service: int) -> str:
    """Return the absolute name of a Service."""
    return f"service-{service:04}.{ORIGIN}"


def endpoint_address(service: int, zone: int) -> str:
    """Return the address of a Service's endpoint in a zone."""
    return f"10.{10 + zone}.{service // 250}.{service % 250 + 1}"


def dump(path: Path, *, pod_cidrs: bool = True) -> None:
    """Write the cluster as ``kubectl get -o json`` prints it, as far as topodns reads it.

    Without *pod_cidrs* the pods alone say where the blocks around them are, as where Calico gives out addresses.
    """
    with path.open("w") as file:  # object by object: all of them would take a gigabyte
        separator = '{"apiVersion": "v1", "kind": "List", "items": [\n'
        for each in _objects(pod_cidrs):
            file.write(separator + json.dumps(each))
            separator = ",\n"
        file.write("\n]}\n")


def static_records() -> Iterator[str]:
    """Yield the same records, each a line of a zone file."""
    for service in range(SERVICES):
        for zone in range(ZONES):
            yield f"{service_name(service)} {TTL} IN A {endpoint_address(service, zone)}"


def _objects(pod_cidrs: bool) -> Iterator[Object]:
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    for node in range(NODES):
        labels = {"kubernetes.io/hostname": _node(node), "topology.kubernetes.io/zone": f"zone-{node % ZONES}"}
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": _node(node), "labels": labels},
            "spec": {"podCIDRs": [f"{pod_cidr(node)}.0/24"] if pod_cidrs else []},
            "status": {"addresses": [{"type": "InternalIP", "address": f"172.16.{node // 256}.{node % 256}"}]},
        }
    for number, pod in enumerate(DIRECT):
        yield _pod(f"direct-{number}", pod.address, number)
    for number, pod in enumerate(FORWARDED):
        yield _pod(f"client-{number:06}", pod.address, number % NODES)
    for service in range(SERVICES):
        yield from _service(service)


def _node(node: int) -> str:
    return f"node-{node:04}"


def _pod(name: str, address: str, node: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"nodeName": _node(node)},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }


def _service(service: int) -> Sequence[Object]:
    name = service_name(service).partition(".")[0]
    annotations = {"topodns.io/topology-keys": "topology.kubernetes.io/zone,*"}
    metadata = {"namespace": NAMESPACE, "name": name, "annotations": annotations}
    ports = [{"name": "http", "port": 8080, "protocol": "TCP"}]
    endpoints = [
        {"addresses": [endpoint_address(service, zone)], "conditions": {"ready": True}, "nodeName": _node(zone)}
        for zone in range(ZONES)
    ]
    labels = {"kubernetes.io/service-name": name}
    return (
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "None", "ports": ports}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"namespace": NAMESPACE, "name": f"{name}-1", "labels": labels},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": ports,
        },
    )
