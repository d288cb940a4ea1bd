"""Kubernetes JSON to the model: the only module that spells the API's field names.

``READ`` has one row a kind: a typed struct, which skips what nobody reads, and how the model's
record is built from it. What cannot be read of an object becomes a ``Finding`` that names
object, field and what was expected; whatever stands beside it lives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct, field

from locator.addresses import parse_address, parse_network
from locator.constraints import PREFIX
from locator.model import (
    ERROR,
    HOSTNAME,
    MAX_NAME,
    ZONE,
    Endpoint,
    EndpointSlice,
    Finding,
    Namespace,
    Network,
    Node,
    Object,
    Pod,
    Port,
    Service,
    canonical_labels,
    is_dns_label,
)

SERVICE_NAME = "kubernetes.io/service-name"
_LABEL_OF_A_NAME = re.compile(r"[-_a-z0-9]{1,63}", re.ASCII)  # of any domain name, so with underscores, too

# Where the network plugins note a node's other addresses: tunnels, health checks, the host's side.
ADDRESS_ANNOTATIONS = (
    "projectcalico.org/IPv4Address",
    "projectcalico.org/IPv6Address",
    "projectcalico.org/IPv4IPIPTunnelAddr",
    "projectcalico.org/IPv4VXLANTunnelAddr",
    "projectcalico.org/IPv6VXLANTunnelAddr",
    "projectcalico.org/IPv4WireguardInterfaceAddr",
    "projectcalico.org/IPv6WireguardInterfaceAddr",
    "flannel.alpha.coreos.com/public-ip",
    "flannel.alpha.coreos.com/public-ipv6",
    "network.cilium.io/ipv4-cilium-host",
    "network.cilium.io/ipv6-cilium-host",
    "network.cilium.io/ipv4-health-ip",
    "network.cilium.io/ipv6-health-ip",
    "network.cilium.io/ipv4-Ingress-ip",
    "network.cilium.io/ipv6-Ingress-ip",
    "io.cilium.network.ipv4-cilium-host",
    "io.cilium.network.ipv6-cilium-host",
    "io.cilium.network.ipv4-health-ip",
    "io.cilium.network.ipv6-health-ip",
)
CIDR_ANNOTATIONS = {  # by bytes in an address; the first that is there stands in place of spec.podCIDRs
    4: ("network.cilium.io/ipv4-pod-cidr", "io.cilium.network.ipv4-pod-cidr"),
    16: ("network.cilium.io/ipv6-pod-cidr", "io.cilium.network.ipv6-pod-cidr"),
}


class _Meta(Struct):
    name: str | None = None
    namespace: str | None = None
    created: str | None = field(name="creationTimestamp", default=None)


class _AnnotatedMeta(_Meta):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _LabelledMeta(_Meta):
    labels: dict[str, str] | None = None


class _Namespace(Struct):
    metadata: _LabelledMeta


class _NodeSpec(Struct):
    cidr: str | None = field(name="podCIDR", default=None)
    cidrs: list[str] | None = field(name="podCIDRs", default=None)


class _NodeAddress(Struct):
    type: str
    address: str


class _NodeStatus(Struct):
    addresses: list[_NodeAddress] | None = None


class _Node(Struct):
    metadata: _AnnotatedMeta
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _IP(Struct):
    ip: str | None = None


class _PodSpec(Struct, rename="camel"):
    node_name: str | None = None
    host_network: bool | None = None


class _PodStatus(Struct):
    phase: str | None = None
    ip: str | None = field(name="podIP", default=None)
    ips: list[_IP] | None = field(name="podIPs", default=None)


class _Pod(Struct):
    metadata: _Meta
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _Port(Struct):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class _ServiceSpec(Struct, rename="camel"):
    type: str | None = None
    cluster_ip: str | None = field(name="clusterIP", default=None)
    cluster_ips: list[str] | None = field(name="clusterIPs", default=None)
    ports: list[_Port] | None = None
    topology_keys: list[str] | None = None
    external_name: str | None = None
    external_traffic_policy: str | None = None


class _Service(Struct):
    metadata: _AnnotatedMeta
    spec: _ServiceSpec | None = None


class _Conditions(Struct):
    ready: bool | None = None


class _Reference(Struct):
    kind: str | None = None
    name: str | None = None


class _Endpoint(Struct, rename="camel"):
    addresses: list[str] | None = None
    conditions: _Conditions | None = None
    hostname: str | None = None
    node_name: str | None = None
    zone: str | None = None
    deprecated_topology: dict[str, str] | None = None
    topology: dict[str, str] | None = None
    target_ref: _Reference | None = None


class _EndpointSlice(Struct, rename="camel"):
    metadata: _LabelledMeta
    address_type: str | None = None
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


T = TypeVar("T")


class Reading(list[Finding]):
    """What was found wrong while one object was read."""

    def __init__(self, kind: str, namespace: str, name: str) -> None:
        super().__init__()
        self._object = (kind, namespace, name)

    def wrong(self, field: str, message: str, expected: str) -> None:
        """Note that *field* holds what it must not."""
        self.append(Finding(ERROR, *self._object, field, message, expected))

    def try_parse(self, field: str, parse: Callable[[str], T], text: str, expected: str) -> T | None:
        """Return what *parse* makes of *text*, None where it raises ValueError, which is noted."""
        try:
            return parse(text)
        except ValueError as error:
            self.wrong(field, str(error), expected)
            return None

    def named(self, meta: _Meta) -> bool:
        """Whether name and namespace of an object can be labels of a domain name; what cannot is noted."""
        expected = "at most 63 lower-case letters, digits and hyphens"
        for where, text in (("metadata.name", meta.name or ""), ("metadata.namespace", meta.namespace or "default")):
            if not is_dns_label(text):
                self.wrong(where, f"{text!r} is no DNS label", expected)
                return False
        return True

    def address(self, field: str, text: str) -> tuple[bytes, ...]:
        """Return the address that *text* is, none where it is none, which is noted."""
        found = self.try_parse(field, parse_address, text, "an IPv4 or IPv6 address")
        return () if found is None else (found,)


def _namespace(raw: _Namespace, found: Reading) -> Namespace | None:
    return Namespace(raw.metadata.name or "", raw.metadata.labels or {}) if found.named(raw.metadata) else None


def _node(raw: _Node, found: Reading) -> Node:
    name, annotations = raw.metadata.name or "", raw.metadata.annotations or {}
    addresses: list[bytes] = []
    for position, each in enumerate((raw.status.addresses if raw.status else None) or ()):
        if each.type in ("InternalIP", "ExternalIP"):
            addresses += found.address(f"status.addresses[{position}].address", each.address)
    for key in ADDRESS_ANNOTATIONS:
        if key in annotations:  # Calico writes its own with a prefix length
            addresses += found.address(f"metadata.annotations[{key}]", annotations[key].partition("/")[0])
    return Node(
        name=name,
        labels=canonical_labels(raw.metadata.labels or {}, node=name),
        addresses=tuple(dict.fromkeys(addresses)),
        pod_cidrs=_pod_cidrs(raw.spec or _NodeSpec(), annotations, found),
    )


def _pod_cidrs(spec: _NodeSpec, annotations: Mapping[str, str], found: Reading) -> tuple[Network, ...]:
    expected = "an address block such as 10.244.1.0/24"
    texts = spec.cidrs or ([spec.cidr] if spec.cidr else [])
    stated = [
        network
        for position, text in enumerate(texts)
        if (network := found.try_parse(f"spec.podCIDRs[{position}]", _lenient_network, text, expected))
    ]
    networks: list[Network] = []
    for size, keys in CIDR_ANNOTATIONS.items():
        key = next((key for key in keys if key in annotations), None)
        noted = key and found.try_parse(f"metadata.annotations[{key}]", _lenient_network, annotations[key], expected)
        networks += [noted] if noted else [network for network in stated if len(network.address) == size]
    return tuple(networks)


def _lenient_network(text: str) -> Network:
    return parse_network(text, strict=False)


def _pod(raw: _Pod, found: Reading) -> Pod:
    spec, status = raw.spec or _PodSpec(), raw.status or _PodStatus()
    finished = status.phase in ("Succeeded", "Failed")
    addresses: list[bytes] = []
    for position, each in enumerate(status.ips or ()):
        addresses += found.address(f"status.podIPs[{position}].ip", each.ip) if each.ip else ()
    if status.ip and not status.ips:
        addresses += found.address("status.podIP", status.ip)
    return Pod(
        namespace=raw.metadata.namespace or "default",
        name=raw.metadata.name or "",
        addresses=tuple(addresses),
        node=spec.node_name or None,
        host_network=bool(spec.host_network),
        finished=finished,
        created=raw.metadata.created or "",
    )


def _ports(ports: list[_Port] | None, field: str, found: Reading) -> tuple[Port, ...]:
    read = []
    for position, each in enumerate(ports or ()):
        if each.port is None:  # of an EndpointSlice: any port will do
            continue
        if 0 < each.port < 65536:
            read.append(Port((each.name or "").lower(), each.port, (each.protocol or "TCP").lower()))
        else:
            found.wrong(f"{field}[{position}].port", f"{each.port} is no port", "a number from 1 to 65535")
    return tuple(read)


def _service(raw: _Service, found: Reading) -> Service | None:
    if not found.named(raw.metadata):
        return None
    spec = raw.spec or _ServiceSpec()
    texts = spec.cluster_ips or ([spec.cluster_ip] if spec.cluster_ip else [])
    external = spec.type == "ExternalName"  # it has no address, whatever stands there
    addresses: list[bytes] = []
    for position, text in enumerate(texts):
        if text not in ("None", ""):
            field_name = f"spec.clusterIPs[{position}]" if spec.cluster_ips else "spec.clusterIP"
            addresses += found.address(field_name, text)
    return Service(
        namespace=raw.metadata.namespace or "default",
        name=raw.metadata.name or "",
        headless=not external and "None" in texts,
        cluster_ips=() if external else tuple(addresses),
        ports=() if external else _ports(spec.ports, "spec.ports", found),
        external_traffic_policy=spec.external_traffic_policy or "",
        topology_keys=None if spec.topology_keys is None else tuple(spec.topology_keys),
        alias=_alias(spec.external_name or "", found) if external else None,
        labels=raw.metadata.labels or {},
        annotations={key: text for key, text in (raw.metadata.annotations or {}).items() if key.startswith(PREFIX)},
    )


def _alias(text: str, found: Reading) -> str:
    """Return the name that an ExternalName Service stands for, empty where it stands for an address or nothing."""
    name = text.lower().removesuffix(".")
    if _is_address(name):
        return ""
    if len(name) <= MAX_NAME and all(map(_LABEL_OF_A_NAME.fullmatch, name.split("."))):
        return name
    found.wrong("spec.externalName", f"{text!r} is no domain name", "a domain name")
    return ""


def _is_address(text: str) -> bool:
    try:
        parse_address(text)
    except ValueError:
        return False
    return True


def _endpoint_slice(raw: _EndpointSlice, found: Reading) -> EndpointSlice:
    ports = _ports(raw.ports, "ports", found)
    endpoints = []
    named = raw.address_type != "FQDN"  # names are no addresses; nothing in DNS is made of such slices
    for position, each in enumerate((raw.endpoints or ()) if named else ()):
        addresses: list[bytes] = []
        for index, text in enumerate(each.addresses or ()):
            addresses += found.address(f"endpoints[{position}].addresses[{index}]", text)
        if not addresses:
            continue
        word = dict(each.deprecated_topology or each.topology or {})
        if each.zone:
            word[ZONE] = each.zone
        target = each.target_ref
        endpoints.append(
            Endpoint(
                addresses=tuple(dict.fromkeys(addresses)),
                ports=ports,
                hostname=_hostname(each.hostname, f"endpoints[{position}].hostname", found),
                node=each.node_name or word.get(HOSTNAME) or None,
                word=word,
                ready=each.conditions is None or each.conditions.ready is not False,
                pod=target.name if target is not None and target.kind in (None, "Pod") else None,
            )
        )
    return EndpointSlice(
        namespace=raw.metadata.namespace or "default",
        name=raw.metadata.name or "",
        service=(raw.metadata.labels or {}).get(SERVICE_NAME) or None,
        endpoints=tuple(endpoints),
    )


def _hostname(text: str | None, field: str, found: Reading) -> str | None:
    if text and not is_dns_label(text.lower()):
        found.wrong(field, f"{text!r} is no DNS label", "at most 63 letters, digits and hyphens")
        return None
    return text.lower() if text else None


class Kind(NamedTuple):
    """How objects of a kind are read: the shape of their JSON, and what is built from it."""

    shape: type[Any]
    build: Callable[[Any, Reading], Object | None]


# (API group, kind) -> how it is read; the versions of a group are alike in what matters here.
READ: Mapping[tuple[str, str], Kind] = {
    ("", "Namespace"): Kind(_Namespace, _namespace),
    ("", "Node"): Kind(_Node, _node),
    ("", "Pod"): Kind(_Pod, _pod),
    ("", "Service"): Kind(_Service, _service),
    ("discovery.k8s.io", "EndpointSlice"): Kind(_EndpointSlice, _endpoint_slice),
}
