"""The JSON of Kubernetes' objects, as far as anybody reads it: typed structs, which skip all else.

With ``decoding`` and ``controlled`` the only modules that spell the API's field names.
"""

from __future__ import annotations

from msgspec import Struct, field


class Meta(Struct):
    """What every object says of itself."""

    name: str | None = None
    namespace: str | None = None
    created: str | None = field(name="creationTimestamp", default=None)
    version: str | None = field(name="resourceVersion", default=None)


class LabelledMeta(Meta):
    """With labels."""

    labels: dict[str, str] | None = None


class AnnotatedMeta(LabelledMeta):
    """With labels and annotations."""

    annotations: dict[str, str] | None = None


class Namespace(Struct):
    """A Namespace."""

    metadata: LabelledMeta


class NodeSpec(Struct):
    """The blocks of a node's pods."""

    cidr: str | None = field(name="podCIDR", default=None)
    cidrs: list[str] | None = field(name="podCIDRs", default=None)


class NodeAddress(Struct):
    """An address of a node, and what kind of one."""

    type: str
    address: str


class NodeStatus(Struct):
    """A node's addresses."""

    addresses: list[NodeAddress] | None = None


class Node(Struct):
    """A Node."""

    metadata: AnnotatedMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class IP(Struct):
    """One address of several."""

    ip: str | None = None


class PodSpec(Struct, rename="camel"):
    """Where a pod is to be."""

    node_name: str | None = None
    host_network: bool | None = None


class PodStatus(Struct):
    """How far a pod is, and its addresses."""

    phase: str | None = None
    ip: str | None = field(name="podIP", default=None)
    ips: list[IP] | None = field(name="podIPs", default=None)


class Pod(Struct):
    """A Pod."""

    metadata: Meta
    spec: PodSpec | None = None
    status: PodStatus | None = None


class Port(Struct):
    """A port of a Service or of a slice."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class ServiceSpec(Struct, rename="camel"):
    """How a Service is reached, and what it asks for."""

    type: str | None = None
    cluster_ip: str | None = field(name="clusterIP", default=None)
    cluster_ips: list[str] | None = field(name="clusterIPs", default=None)
    ports: list[Port] | None = None
    topology_keys: list[str] | None = None
    external_name: str | None = None
    external_traffic_policy: str | None = None
    publish_not_ready_addresses: bool | None = None


class Service(Struct):
    """A Service."""

    metadata: AnnotatedMeta
    spec: ServiceSpec | None = None


class Conditions(Struct):
    """Whether an endpoint is ready."""

    ready: bool | None = None


class Reference(Struct):
    """What stands behind an endpoint."""

    kind: str | None = None
    name: str | None = None


class Endpoint(Struct, rename="camel"):
    """One endpoint of a slice."""

    addresses: list[str] | None = None
    conditions: Conditions | None = None
    hostname: str | None = None
    node_name: str | None = None
    zone: str | None = None
    deprecated_topology: dict[str, str] | None = None
    topology: dict[str, str] | None = None
    target_ref: Reference | None = None


class Trigger(Struct):
    """When what a slice was made from changed last, as Kubernetes' own controller notes it (RFC 3339)."""

    at: str | None = field(name="endpoints.kubernetes.io/last-change-trigger-time", default=None)


class SliceMeta(LabelledMeta):
    """With labels, and when it was triggered."""

    annotations: Trigger | None = None


class EndpointSlice(Struct, rename="camel"):
    """An EndpointSlice, v1 or v1beta1."""

    metadata: SliceMeta
    address_type: str | None = None
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


class PodLocator(Struct, rename="camel"):
    """A PodLocator, as it should be."""

    metadata: Meta
    ips: list[IP] | None = None
    node_name: str | None = None
    node_labels: dict[str, str] | None = None


class Expression(Struct):
    """One expression of a label selector."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Struct, rename="camel"):
    """A label selector."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[Expression] | None = None


class Topology(Struct):
    """What a policy asks for."""

    key: str | None = None
    mode: str | None = None


class ServicePolicySpec(Struct, rename="camel"):
    """Whom a policy speaks for, and what it asks."""

    service_selector: LabelSelector | None = None
    topology: Topology | None = None


class ServicePolicy(Struct):
    """A ServicePolicy."""

    metadata: Meta
    spec: ServicePolicySpec | None = None
