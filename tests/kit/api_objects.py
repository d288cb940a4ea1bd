# SPDX-License-Identifier: Apache-2.0

"""Kubernetes objects as JSON, as the API takes and prints them. Tests and the benchmark make theirs here.

A real API server accepts each object: pods have a container, and a status such as a kubelet reports. A caller may pass
further fields under their API names; they go into the object's ``spec``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
RACK = "example.com/rack"
OLD = {ZONE: "failure-domain.beta.kubernetes.io/zone", REGION: "failure-domain.beta.kubernetes.io/region"}
TOPOLOGY_KEYS = "topodns.io/topology-keys"
MIN_ENDPOINTS = "topodns.io/min-endpoints"
MAX_OVERLOAD = "topodns.io/max-overload"
CLIENTS = "topodns.io/clients"
SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
SLICE_CONTROLLER = "endpointslice-controller.k8s.io"
IMPORTED_SERVICE_NAME = "multicluster.kubernetes.io/service-name"  # KEP-1645, as the next
SOURCE_CLUSTER = "multicluster.kubernetes.io/source-cluster"

CREATED = "2024-01-01T00:00:00Z"  # a real API server replaces this time by its own

Item = dict[str, Any]
Port = tuple[str | None, int | None, str]  # name, number, protocol; None is left out
MAIN: Sequence[Port] = (("main", 80, "TCP"),)

# Kinds outside the core API group (v1).
VERSIONS = {
    "ClusterRole": "rbac.authorization.k8s.io/v1",
    "ClusterRoleBinding": "rbac.authorization.k8s.io/v1",
    "Deployment": "apps/v1",
    "DNSEndpoint": "externaldns.k8s.io/v1alpha1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "PodLocator": "topodns.io/v1alpha1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "ServicePolicy": "topodns.io/v1alpha1",
    "ServiceHealth": "topodns.io/v1alpha1",
    "ServiceExport": "multicluster.x-k8s.io/v1beta1",
    "ServiceImport": "multicluster.x-k8s.io/v1beta1",
}


def item(
    kind: str,
    name: str,
    where: str | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **fields: Any,
) -> Item:
    """Return an object of any kind, in the namespace *where* unless that is None; *fields* are its other fields."""
    metadata: Item = {"name": name}
    if where is not None:
        metadata["namespace"] = where
    if labels is not None:
        metadata["labels"] = dict(labels)
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": VERSIONS.get(kind, "v1"), "kind": kind, "metadata": metadata, **fields}


def topodns_annotations(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return annotations ``topodns.io/...`` by their names without that; ``_`` stands for ``-``."""
    return {f"topodns.io/{name.replace('_', '-')}": value for name, value in named.items()}


def listed(items: Iterable[Item]) -> str:
    """Return the objects as ``kubectl get ... -o json`` prints them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})


def namespace(name: str, labels: Mapping[str, str] | None = None) -> Item:
    return item("Namespace", name, labels=labels)


def node(
    name: str,
    labels: Mapping[str, str] | None = None,
    *,
    cidrs: Sequence[str] = (),
    addresses: Sequence[str] = (),
    annotations: Mapping[str, str] | None = None,
) -> Item:
    return item(
        "Node",
        name,
        labels=labels or {},
        annotations=annotations,
        spec={"podCIDRs": list(cidrs)} if cidrs else {},
        status={"addresses": [{"type": "InternalIP", "address": address} for address in addresses]},
    )


def zone_nodes(prefix: str, zones: Sequence[str], *, each: int = 1) -> list[Item]:
    """Return *each* nodes in every zone, such as ``prefix-a1``."""
    return [node(f"{prefix}-{zone}{number + 1}", {ZONE: zone}) for zone in zones for number in range(each)]


def pod(
    name: str,
    addresses: Sequence[str],
    on: str | None,
    *,
    where: str = "shop",
    labels: Mapping[str, str] | None = None,
    phase: str = "Running",
    ready: bool = True,
    created: str = CREATED,
    **spec: Any,
) -> Item:
    """Return a pod on the node *on*, or on none, with the status that a kubelet would report."""
    scheduled = {"nodeName": on} if on else {}
    pod = item(
        "Pod",
        name,
        where,
        labels=labels or {},
        spec={**scheduled, "containers": [{"name": "main", "image": "none"}], **spec},
        status={
            "phase": phase,
            **({"podIP": addresses[0]} if addresses else {}),
            "podIPs": [{"ip": address} for address in addresses],
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    )
    pod["metadata"]["creationTimestamp"] = created
    return pod


def deployment(
    name: str,
    *,
    where: str,
    labels: Mapping[str, str],
    replicas: int = 1,
    on: Mapping[str, str] | None = None,
    **spec: Any,
) -> Item:
    """Return a Deployment of pods with these labels, on nodes with the labels *on*; *spec* are its other fields."""
    pods = {"containers": [{"name": "main", "image": "none"}], "nodeSelector": dict(on or {})}
    template = {"metadata": {"labels": dict(labels)}, "spec": pods}
    whole = {"replicas": replicas, "selector": {"matchLabels": dict(labels)}, "template": template, **spec}
    return item("Deployment", name, where, labels=labels, spec=whole)


def service(
    name: str,
    *,
    where: str = "shop",
    keys: str | None = None,
    field: Sequence[str] | None = None,
    least: str | None = None,
    cluster_ips: Sequence[str] = ("None",),
    ports: Sequence[Port] = MAIN,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    selects: bool = False,
    **spec: Any,
) -> Item:
    """Return a Service, headless unless *cluster_ips* says otherwise; if it *selects*, with a selector.

    *keys* and *least* are the values of topodns' annotations, *field* is ``spec.topologyKeys``. With an empty
    *cluster_ips*, a real API server assigns addresses.
    """
    ours = {TOPOLOGY_KEYS: keys, MIN_ENDPOINTS: least}
    addresses = {"clusterIP": cluster_ips[0], "clusterIPs": list(cluster_ips)} if cluster_ips else {}
    return item(
        "Service",
        name,
        where,
        labels=labels or {},
        annotations={**{key: text for key, text in ours.items() if text is not None}, **(annotations or {})},
        spec={
            **addresses,
            **({"selector": {"app": name}} if selects else {}),
            "ports": _ports(ports),
            **({"topologyKeys": list(field)} if field is not None else {}),
            **spec,
        },
    )


def load_balancer_status(addresses: Iterable[str]) -> Item:
    """Return the status of a Service with these IP addresses or host names of load balancers."""
    return {"loadBalancer": {"ingress": [{"hostname" if text[-1].isalpha() else "ip": text} for text in addresses]}}


def external(name: str, target: str, *, where: str = "shop") -> Item:
    """Return a Service of type ExternalName."""
    return item("Service", name, where, annotations={}, spec={"type": "ExternalName", "externalName": target})


def endpoint(*addresses: str, ready: bool | None = True, **fields: Any) -> Item:
    """Return an endpoint of an EndpointSlice; *fields* are named as in the API, such as ``nodeName``."""
    return {"addresses": list(addresses), "conditions": {"ready": ready} if ready is not None else {}, **fields}


def endpoint_slice(
    owner: str,
    number: int | str,
    endpoints: Sequence[Item],
    *,
    where: str = "shop",
    family: str = "IPv4",
    ports: Sequence[Port] = MAIN,
    labels: Mapping[str, str] | None = None,
    version: str = "v1",
    by: str | None = None,
) -> Item:
    """Return an EndpointSlice of the Service *owner*, kept *by* a controller; *number* makes its name unique.

    A real controller removes what it does not keep itself, so *by* is for clusters without one.
    """
    endpoint_slice = item(
        "EndpointSlice",
        f"{owner}-{number}",
        where,
        labels={SERVICE_NAME: owner, **({} if by is None else {MANAGED_BY: by}), **(labels or {})},
        addressType=family,
        endpoints=list(endpoints),
        ports=_ports(ports),
    )
    return {**endpoint_slice, "apiVersion": f"discovery.k8s.io/{version}"}


def service_import(
    name: str,
    *,
    where: str = "shop",
    keys: str | None = None,
    ips: Sequence[str] = (),
    ports: Sequence[Port] = MAIN,
    clusters: Sequence[str] | None = None,
    **spec: Any,
) -> Item:
    """Return a ServiceImport (KEP-1645), headless unless it has *ips*; *keys* are as in ``service``.

    *clusters* are those of its status, which is left out if they are None.
    """
    return item(
        "ServiceImport",
        name,
        where,
        annotations={TOPOLOGY_KEYS: keys} if keys is not None else {},
        **({} if clusters is None else {"status": {"clusters": [{"cluster": cluster} for cluster in clusters]}}),
        spec={
            "type": "ClusterSetIP" if ips else "Headless",
            **({"ips": list(ips)} if ips else {}),
            "ports": _ports(ports),
            **spec,
        },
    )


def imported_slice(
    owner: str,
    cluster: str | None,
    endpoints: Sequence[Item],
    number: int = 1,
    *,
    labels: Mapping[str, str] | None = None,
    **more: Any,
) -> Item:
    """Return a slice that was imported from *cluster*, None if it does not say; *more* is as in ``endpoint_slice``."""
    imported = endpoint_slice(owner, f"{cluster or 'unknown'}-{number}".lower(), endpoints, **more)
    source = {} if cluster is None else {SOURCE_CLUSTER: cluster}
    imported["metadata"]["labels"] = {IMPORTED_SERVICE_NAME: owner, **source, **(labels or {})}
    return imported


def large(name: str, count: int, *, net: str = "10.250") -> list[Item]:
    """Return a headless Service with *count* endpoints at ``10.250.x.y``, in slices of a hundred."""
    endpoints = [endpoint(f"{net}.{number // 250}.{number % 250 + 1}") for number in range(count)]
    slices = [endpoint_slice(name, start, endpoints[start : start + 100]) for start in range(0, count, 100)]
    return [service(name), *slices]


def endpoints(name: str, *subsets: Item, where: str = "shop", annotations: Mapping[str, str] | None = None) -> Item:
    """Return an Endpoints object, the kind before EndpointSlices; *subsets* are written as in the API."""
    return item("Endpoints", name, where, annotations=annotations, subsets=list(subsets))


def pod_locator(name: str, where: str, addresses: Sequence[str], **fields: Any) -> Item:
    """Return a PodLocator; *fields* are ``nodeName`` and ``nodeLabels``."""
    return item("PodLocator", name, where, ips=[{"ip": address} for address in addresses], **fields)


def service_policy(
    name: str, key: str | None, mode: str | None = "Required", *, where: str = "shop", app: str = "web"
) -> Item:
    """Return a ServicePolicy for the Services with the label *app*; without ``topology`` if that would be empty."""
    topology = {name: text for name, text in (("key", key), ("mode", mode)) if text is not None}
    spec = {"serviceSelector": {"matchLabels": {"app": app}}, "topology": topology}
    return item("ServicePolicy", name, where, spec={field: value for field, value in spec.items() if value})


def service_health(name: str, cluster: str, votes: Mapping[str, bool], renewed: float) -> Item:
    """Return the ServiceHealth of ``shop/NAME`` as the prober of *cluster* writes it: who is healthy, by address."""
    entries = [{"address": address, "healthy": healthy} for address, healthy in votes.items()]
    told = {"cluster": cluster, "service": {"namespace": "shop", "name": name}, "entries": entries}
    moment = datetime.fromtimestamp(renewed, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return item("ServiceHealth", f"{name}.shop", status={**told, "renewTime": moment})


def _ports(ports: Sequence[Port]) -> list[Item]:
    return [
        {
            **({"name": name} if name is not None else {}),
            **({"port": number} if number is not None else {}),
            "protocol": protocol,
        }
        for name, number, protocol in ports
    ]
