# SPDX-License-Identifier: Apache-2.0

"""The JSON of Kubernetes objects as typed structs, which skip every field that topodns does not read.

Each is called as in Kubernetes' API reference; one without an own kind is named for what it is a part of. To read one
more field, add it here and convert it in ``conversion``. The controller has its own structs, in
``locator/podlocators/locators.py``.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field


class Struct(msgspec.Struct, omit_defaults=True):
    """Encoded again, it is the JSON that was read, without the fields that topodns does not read."""


class Meta(Struct):
    name: str | None = None
    namespace: str | None = None
    created: str | None = field(name="creationTimestamp", default=None)
    version: str | None = field(name="resourceVersion", default=None)


class LabelledMeta(Meta):
    labels: dict[str, str] | None = None


class AnnotatedMeta(LabelledMeta):
    annotations: dict[str, str] | None = None


class Namespace(Struct):
    metadata: LabelledMeta


class NodeSpec(Struct):
    cidr: str | None = field(name="podCIDR", default=None)
    cidrs: list[str] | None = field(name="podCIDRs", default=None)


class NodeAddress(Struct):
    type: str
    address: str


class NodeStatus(Struct):
    addresses: list[NodeAddress] | None = None


class Node(Struct):
    metadata: AnnotatedMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class IP(Struct):
    ip: str | None = None


class PodSpec(Struct, rename="camel"):
    node_name: str | None = None
    host_network: bool | None = None


class PodStatus(Struct):
    phase: str | None = None
    ip: str | None = field(name="podIP", default=None)
    ips: list[IP] | None = field(name="podIPs", default=None)


class OwnerReference(Struct):
    kind: str | None = None
    name: str | None = None
    controller: bool | None = None


class PodMeta(Meta):
    owners: list[OwnerReference] | None = field(name="ownerReferences", default=None)


class LabelledPodMeta(PodMeta):
    labels: dict[str, str] | None = None


class Pod(Struct):
    metadata: PodMeta
    spec: PodSpec | None = None
    status: PodStatus | None = None


class ClientPod(Pod):
    metadata: LabelledPodMeta


class Port(Struct):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class ServiceSpec(Struct, rename="camel"):
    type: str | None = None
    selector: dict[str, Any] | None = None
    cluster_ip: str | None = field(name="clusterIP", default=None)
    cluster_ips: list[str] | None = field(name="clusterIPs", default=None)
    ports: list[Port] | None = None
    topology_keys: list[str] | None = None
    external_name: str | None = None
    external_traffic_policy: str | None = None
    health_check_node_port: int | None = None
    traffic_distribution: str | None = None
    publish_not_ready_addresses: bool | None = None


class Ingress(Struct):
    ip: str | None = None
    hostname: str | None = None


class LoadBalancer(Struct):
    ingress: list[Ingress] | None = None


class ServiceStatus(Struct, rename="camel"):
    load_balancer: LoadBalancer | None = None


class Service(Struct):
    metadata: AnnotatedMeta
    spec: ServiceSpec | None = None
    status: ServiceStatus | None = None


class ServiceExport(Struct):
    metadata: Meta


class ServiceImportSpec(Struct, rename="camel"):
    type: str | None = None
    ips: list[str] | None = None
    ports: list[Port] | None = None
    traffic_distribution: str | None = None


class SourceCluster(Struct):
    cluster: str | None = None


class ServiceImportStatus(Struct):
    clusters: list[SourceCluster] | None = None


class ServiceImport(Struct):
    metadata: AnnotatedMeta
    spec: ServiceImportSpec | None = None
    status: ServiceImportStatus | None = None


class Conditions(Struct):
    ready: bool | None = None
    terminating: bool | None = None


class Reference(Struct):
    kind: str | None = None
    name: str | None = None
    namespace: str | None = None


class Named(Struct):
    name: str | None = None


class Hints(Struct, rename="camel"):
    for_nodes: list[Named] | None = None
    for_zones: list[Named] | None = None


class Endpoint(Struct, rename="camel"):
    addresses: list[str] | None = None
    conditions: Conditions | None = None
    hostname: str | None = None
    node_name: str | None = None
    zone: str | None = None
    deprecated_topology: dict[str, str] | None = None
    topology: dict[str, str] | None = None
    target_ref: Reference | None = None
    hints: Hints | None = None


class Trigger(Struct):
    """The last-change-trigger-time (RFC 3339): when the change of a Pod or Service that led to this slice happened."""

    at: str | None = field(name="endpoints.kubernetes.io/last-change-trigger-time", default=None)


class SliceMeta(LabelledMeta):
    """Metadata with labels, the last-change-trigger-time, and the time of the deletion that waits for finalizers."""

    annotations: Trigger | None = None
    deleted: str | None = field(name="deletionTimestamp", default=None)


class EndpointSlice(Struct, rename="camel"):
    metadata: SliceMeta
    address_type: str | None = None
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


class EndpointAddress(Struct, rename="camel"):
    ip: str | None = None
    hostname: str | None = None
    node_name: str | None = None
    target_ref: Reference | None = None


class EndpointSubset(Struct, rename="camel"):
    addresses: list[EndpointAddress] | None = None
    not_ready_addresses: list[EndpointAddress] | None = None
    ports: list[Port] | None = None


class Capacity(Struct):
    """The annotation of an Endpoints object that had more than the 1,000 endpoints that Kubernetes 1.22 allows it."""

    over_capacity: str | None = field(name="endpoints.kubernetes.io/over-capacity", default=None)


class EndpointsMeta(Meta):
    annotations: Capacity | None = None


class Endpoints(Struct):
    metadata: EndpointsMeta
    subsets: list[EndpointSubset] | None = None


class PodLocator(Struct, rename="camel"):
    metadata: Meta
    ips: list[IP] | None = None
    node_name: str | None = None
    node_labels: dict[str, str] | None = None


class Expression(Struct):
    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Struct, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Expression] | None = None


class Topology(Struct):
    key: str | None = None
    mode: str | None = None


class ServicePolicySpec(Struct, rename="camel"):
    service_selector: LabelSelector | None = None
    topology: Topology | None = None


class ServicePolicy(Struct):
    metadata: Meta
    spec: ServicePolicySpec | None = None


class HealthService(Struct):
    namespace: str | None = None
    name: str | None = None


class HealthEntry(Struct):
    address: str | None = None
    healthy: bool | None = None
    since: str | None = None
    message: str | None = None


class HealthStatus(Struct, rename="camel"):
    cluster: str | None = None
    service: HealthService | None = None
    entries: list[HealthEntry] | None = None
    renew_time: str | None = None


class ServiceHealth(Struct):
    metadata: Meta
    status: HealthStatus | None = None
