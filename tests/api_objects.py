"""Objects of Kubernetes, as its API takes and prints them: the one place where tests and the benchmark make them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
RACK = "example.com/rack"
OLD = {ZONE: "failure-domain.beta.kubernetes.io/zone", REGION: "failure-domain.beta.kubernetes.io/region"}
TOPOLOGY_KEYS = "topodns.io/topology-keys"
MIN_ENDPOINTS = "topodns.io/min-endpoints"
SERVICE_NAME = "kubernetes.io/service-name"

Item = dict[str, Any]


def listed(items: Iterable[Item]) -> str:
    """Return objects as ``kubectl get ... -o json`` prints them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})


def namespace(name: str) -> Item:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def node(
    name: str, labels: Mapping[str, str], *, cidrs: Sequence[str] = (), addresses: Sequence[str] = (), **more: Any
) -> Item:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels), **more},
        "spec": {"podCIDRs": list(cidrs)} if cidrs else {},
        "status": {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]},
    }


def pod(name: str, addresses: Sequence[str], node: str | None, **more: Any) -> Item:
    """Return a running pod in ``shop``; *more* may say ``phase``, ``host_network`` and ``created``."""
    spec: Item = {"nodeName": node} if node else {}
    if more.get("host_network"):
        spec["hostNetwork"] = True
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "creationTimestamp": more.get("created", "2024-01-01T00:00:00Z"),
        },
        "spec": spec,
        "status": {"phase": more.get("phase", "Running"), "podIPs": [{"ip": address} for address in addresses]},
    }


def service(
    name: str,
    *,
    keys: str | None = None,
    field: Sequence[str] | None = None,
    least: str | None = None,
    cluster_ips: Sequence[str] = ("None",),
    ports: Sequence[tuple[str, int, str]] = (("main", 80, "TCP"),),
    where: str = "shop",
) -> Item:
    """Return a Service, headless unless it has addresses; *keys* is its annotation, *field* spec.topologyKeys."""
    annotations = {TOPOLOGY_KEYS: keys, MIN_ENDPOINTS: least}
    spec: Item = {
        "clusterIP": cluster_ips[0],
        "clusterIPs": list(cluster_ips),
        "ports": [{"name": name, "port": port, "protocol": protocol} for name, port, protocol in ports],
    }
    if field is not None:
        spec["topologyKeys"] = list(field)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": where,
            "annotations": {key: text for key, text in annotations.items() if text is not None},
        },
        "spec": spec,
    }


def external(name: str, target: str, *, where: str = "shop") -> Item:
    """Return a Service of type ExternalName."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": where},
        "spec": {"type": "ExternalName", "externalName": target},
    }


def endpoint(*addresses: str, **more: Any) -> Item:
    """Return an endpoint; *more* are fields of the API, and ``ready``."""
    ready = more.pop("ready", True)
    return {"addresses": list(addresses), "conditions": {"ready": ready} if ready is not None else {}, **more}


def endpoint_slice(
    owner: str,
    number: int,
    endpoints: Sequence[Item],
    *,
    family: str = "IPv4",
    ports: Sequence[tuple[str, int, str]] = (("main", 80, "TCP"),),
    version: str = "v1",
    where: str = "shop",
) -> Item:
    return {
        "apiVersion": f"discovery.k8s.io/{version}",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{owner}-{number}", "namespace": where, "labels": {SERVICE_NAME: owner}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": name, "port": port, "protocol": protocol} for name, port, protocol in ports],
    }


def large(name: str, count: int, *, keys: str | None = None, net: str = "10.250") -> list[Item]:
    """Return a headless Service with *count* endpoints at ``10.250.x.y``, in slices of a hundred."""
    rows = [endpoint(f"{net}.{number // 250}.{number % 250 + 1}") for number in range(count)]
    slices = [endpoint_slice(name, start, rows[start : start + 100]) for start in range(0, count, 100)]
    return [service(name, keys=keys), *slices]
