# SPDX-License-Identifier: Apache-2.0

"""The JSON of Kubernetes objects as typed structs, which skip every field that topodns does not read.

To read one more field, add it here and convert it in ``conversion``. The controller has its own structs, in
``locator.podlocators.locators``.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field


class Struct(msgspec.Struct, omit_defaults=True):
    """Encoded again, it is the JSON that was read, without the fields that topodns does not read."""


class Meta(Struct):
    """The metadata of every object."""

    name: str | None = None
    namespace: str | None = None
    created: str | None = field(name="creationTimestamp", default=None)
    version: str | None = field(name="resourceVersion", default=None)


class LabelledMeta(Meta):
    """Metadata with labels."""

    labels: dict[str, str] | None = None


class AnnotatedMeta(LabelledMeta):
    """Metadata with labels and annotations."""

    annotations: dict[str, str] | None = None


class Namespace(Struct):
    """A Namespace."""

    metadata: LabelledMeta


class NodeSpec(Struct):
    """The spec of a Node: its pod CIDRs."""

    cidr: str | None = field(name="podCIDR", default=None)
    cidrs: list[str] | None = field(name="podCIDRs", default=None)


class NodeAddress(Struct):
    """An address of a Node and its type, such as ``InternalIP``."""

    type: str
    address: str


class NodeStatus(Struct):
    """The status of a Node: its addresses."""

    addresses: list[NodeAddress] | None = None


class Node(Struct):
    """A Node."""

    metadata: AnnotatedMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class IP(Struct):
    """One entry of a list of addresses."""

    ip: str | None = None


class PodSpec(Struct, rename="camel"):
    """The spec of a Pod: where it runs."""

    node_name: str | None = None
    host_network: bool | None = None


class PodStatus(Struct):
    """The status of a Pod: its phase and addresses."""

    phase: str | None = None
    ip: str | None = field(name="podIP", default=None)
    ips: list[IP] | None = field(name="podIPs", default=None)


class Pod(Struct):
    """A Pod."""

    metadata: Meta
    spec: PodSpec | None = None
    status: PodStatus | None = None


class ClientPod(Pod):
    """A Pod with its labels."""

    metadata: LabelledMeta


class Port(Struct):
    """A port of a Service or an EndpointSlice."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class ServiceSpec(Struct, rename="camel"):
    """The spec of a Service."""

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
    """An address or a host name of a load balancer."""

    ip: str | None = None
    hostname: str | None = None


class LoadBalancer(Struct):
    """The load balancer of a Service."""

    ingress: list[Ingress] | None = None


class ServiceStatus(Struct, rename="camel"):
    """The status of a Service: its load balancer."""

    load_balancer: LoadBalancer | None = None


class Service(Struct):
    """A Service."""

    metadata: AnnotatedMeta
    spec: ServiceSpec | None = None
    status: ServiceStatus | None = None


class ServiceExport(Struct):
    """A ServiceExport (KEP-1645)."""

    metadata: Meta


class ServiceImportSpec(Struct, rename="camel"):
    """The spec of a ServiceImport."""

    type: str | None = None
    ips: list[str] | None = None
    ports: list[Port] | None = None
    traffic_distribution: str | None = None


class SourceCluster(Struct):
    """A cluster that a ServiceImport was made from."""

    cluster: str | None = None


class ServiceImportStatus(Struct):
    """The status of a ServiceImport."""

    clusters: list[SourceCluster] | None = None


class ServiceImport(Struct):
    """A ServiceImport (KEP-1645)."""

    metadata: AnnotatedMeta
    spec: ServiceImportSpec | None = None
    status: ServiceImportStatus | None = None


class Conditions(Struct):
    """The conditions of an endpoint."""

    ready: bool | None = None
    terminating: bool | None = None


class Reference(Struct):
    """The object that an endpoint is, such as a Pod."""

    kind: str | None = None
    name: str | None = None
    namespace: str | None = None


class Named(Struct):
    """A reference by name alone."""

    name: str | None = None


class Hints(Struct, rename="camel"):
    """The hints of an endpoint: which nodes and zones it is for."""

    for_nodes: list[Named] | None = None
    for_zones: list[Named] | None = None


class Endpoint(Struct, rename="camel"):
    """An endpoint of an EndpointSlice."""

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
    """An EndpointSlice, v1 or v1beta1."""

    metadata: SliceMeta
    address_type: str | None = None
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


class EndpointAddress(Struct, rename="camel"):
    """An address in a subset of an Endpoints object."""

    ip: str | None = None
    hostname: str | None = None
    node_name: str | None = None
    target_ref: Reference | None = None


class EndpointSubset(Struct, rename="camel"):
    """Addresses of an Endpoints object that have the same ports."""

    addresses: list[EndpointAddress] | None = None
    not_ready_addresses: list[EndpointAddress] | None = None
    ports: list[Port] | None = None


class Capacity(Struct):
    """The annotation of an Endpoints object that had more than the 1,000 endpoints that Kubernetes 1.22 allows it."""

    over_capacity: str | None = field(name="endpoints.kubernetes.io/over-capacity", default=None)


class EndpointsMeta(Meta):
    """Metadata with the annotation about capacity."""

    annotations: Capacity | None = None


class Endpoints(Struct):
    """An Endpoints object: all endpoints of the Service of its name."""

    metadata: EndpointsMeta
    subsets: list[EndpointSubset] | None = None


class PodLocator(Struct, rename="camel"):
    """A PodLocator (KEP-536)."""

    metadata: Meta
    ips: list[IP] | None = None
    node_name: str | None = None
    node_labels: dict[str, str] | None = None


class Expression(Struct):
    """An expression of a label selector."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Struct, rename="camel"):
    """A label selector."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[Expression] | None = None


class Topology(Struct):
    """The topology key and mode of a ServicePolicy."""

    key: str | None = None
    mode: str | None = None


class ServicePolicySpec(Struct, rename="camel"):
    """The spec of a ServicePolicy."""

    service_selector: LabelSelector | None = None
    topology: Topology | None = None


class ServicePolicy(Struct):
    """A ServicePolicy."""

    metadata: Meta
    spec: ServicePolicySpec | None = None


class HealthService(Struct):
    """The Service that a ServiceHealth is about."""

    namespace: str | None = None
    name: str | None = None


class HealthEntry(Struct):
    """What a ServiceHealth says of one address."""

    address: str | None = None
    healthy: bool | None = None
    since: str | None = None
    message: str | None = None


class HealthStatus(Struct, rename="camel"):
    """The status of a ServiceHealth."""

    cluster: str | None = None
    service: HealthService | None = None
    entries: list[HealthEntry] | None = None
    renew_time: str | None = None


class ServiceHealth(Struct):
    """A ServiceHealth."""

    metadata: Meta
    status: HealthStatus | None = None
