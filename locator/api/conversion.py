# SPDX-License-Identifier: Apache-2.0

"""Converts the typed JSON of ``schema`` to the records of ``locator.model``: one ``to_...`` function for each kind.

A field that breaks a rule becomes a finding in the *collector*; the rest of the object still counts. The functions
never raise. They return None for an object that is not usable at all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec.structs import asdict, replace

from locator.api import schema
from locator.api.finding_collector import FindingCollector
from locator.api.sharing import shared_labels, shared_ports, shared_text
from locator.endpoints import compact
from locator.findings import ClusterCode
from locator.ip import Network, address_text, is_address, parse_address, parse_network
from locator.labels import ABSENT, EXISTS, IN, NOT_IN, Requirement, Selector, requirement
from locator.model import (
    ENDPOINTS,
    HOSTNAME,
    IMPORTED,
    MANAGED_BY,
    MAX_NAME,
    SLICE_CONTROLLER,
    SOURCE_CLUSTER,
    ZONE,
    ClientPod,
    Endpoint,
    EndpointSlice,
    HealthEntry,
    Hints,
    Namespace,
    Node,
    Pod,
    PodLocator,
    Port,
    Service,
    ServiceExport,
    ServiceHealth,
    ServiceImport,
    ServicePolicy,
    canonical_labels,
    is_dns_label,
)
from locator.printable import quoted
from locator.times import parse_time
from locator.topology.annotations import PREFIXES
from locator.topology.constraints import IGNORED, MODE_ALIASES, MODES, SERVICE_ANNOTATIONS, policy_error

SERVICE_NAME = "kubernetes.io/service-name"
_DOMAIN_LABEL = re.compile(r"[-_a-z0-9]{1,63}", re.ASCII)  # unlike a host name's, it may hold underscores

# Network plugins annotate a Node with its other addresses, such as those of tunnels and health checks.
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
CIDR_ANNOTATIONS = {  # by bytes in an address; the first that a Node has replaces its spec.podCIDRs
    4: ("network.cilium.io/ipv4-pod-cidr", "io.cilium.network.ipv4-pod-cidr"),
    16: ("network.cilium.io/ipv6-pod-cidr", "io.cilium.network.ipv6-pod-cidr"),
}


def to_namespace(raw: schema.Namespace, collector: FindingCollector) -> Namespace | None:
    """Convert a Namespace; None if its name is not a DNS label."""
    if not collector.has_dns_names(raw.metadata):
        return None
    return Namespace(raw.metadata.name or "", raw.metadata.labels or {})


def to_node(raw: schema.Node, collector: FindingCollector) -> Node:
    """Convert a Node."""
    name, annotations = shared_text(raw.metadata.name or ""), raw.metadata.annotations or {}
    addresses: list[bytes] = []
    for position, address in enumerate((raw.status.addresses if raw.status else None) or ()):
        if address.type in ("InternalIP", "ExternalIP"):
            addresses += collector.address(f"status.addresses[{position}].address", address.address)
    for key in ADDRESS_ANNOTATIONS:
        if key in annotations:  # Calico appends the prefix length
            addresses += collector.address(f"metadata.annotations[{key}]", annotations[key].partition("/")[0])
    return Node(
        name=name,
        labels={key: shared_text(text) for key, text in canonical_labels(raw.metadata.labels or {}, node=name).items()},
        addresses=tuple(dict.fromkeys(addresses)),
        pod_cidrs=_pod_cidrs(raw.spec or schema.NodeSpec(), annotations, collector),
    )


def _pod_cidrs(
    spec: schema.NodeSpec, annotations: Mapping[str, str], collector: FindingCollector
) -> tuple[Network, ...]:
    expected = "a CIDR such as 10.244.1.0/24"
    texts = spec.cidrs or ([spec.cidr] if spec.cidr else [])
    stated = [
        network
        for position, text in enumerate(texts)
        if (network := collector.try_parse(f"spec.podCIDRs[{position}]", _lenient_network, text, expected))
    ]
    networks: list[Network] = []
    for size, keys in CIDR_ANNOTATIONS.items():
        key = next((key for key in keys if key in annotations), None)
        annotated = key and collector.try_parse(
            f"metadata.annotations[{key}]", _lenient_network, annotations[key], expected
        )
        networks += [annotated] if annotated else [network for network in stated if len(network.address) == size]
    return tuple(networks)


def _lenient_network(text: str) -> Network:
    return parse_network(text, strict=False)


def to_pod(raw: schema.Pod, collector: FindingCollector) -> Pod:
    """Convert a Pod."""
    spec, status = raw.spec or schema.PodSpec(), raw.status or schema.PodStatus()
    texts = [entry.ip or None for entry in status.ips or ()]
    addresses = collector.addresses(lambda position: f"status.podIPs[{position}].ip", texts)
    if status.ip and not status.ips:
        addresses = collector.address("status.podIP", status.ip)
    return Pod(
        namespace=shared_text(raw.metadata.namespace or "default"),
        name=raw.metadata.name or "",
        addresses=addresses,
        node=shared_text(spec.node_name) if spec.node_name else None,
        host_network=bool(spec.host_network),
        phase=shared_text(status.phase or ""),
        created=raw.metadata.created or "",
        owner=_owner(raw.metadata.owners or ()),
    )


def _owner(references: Sequence[schema.OwnerReference]) -> str:
    """Return kind and name of the controller that keeps an object, "" if none does."""
    for reference in references:
        if reference.controller and reference.kind and reference.name:
            return shared_text(f"{reference.kind}/{reference.name}")
    return ""


def to_client_pod(raw: schema.ClientPod, collector: FindingCollector, keys: Collection[str]) -> Pod:
    """Convert a Pod, with those of its labels that have some *keys*; a plain ``Pod`` if it has none of them."""
    pod = to_pod(raw, collector)
    labels = {key: shared_text(value) for key, value in (raw.metadata.labels or {}).items() if key in keys}
    return ClientPod(**asdict(pod), labels=labels) if labels else pod


def to_service_export(raw: schema.ServiceExport, collector: FindingCollector) -> ServiceExport:
    """Convert a ServiceExport."""
    del collector  # the Service that it names may be missing; that is found later
    return ServiceExport(shared_text(raw.metadata.namespace or "default"), raw.metadata.name or "")


def to_service_import(raw: schema.ServiceImport, collector: FindingCollector) -> ServiceImport | None:
    """Convert a ServiceImport; None if its name or namespace is not a DNS label."""
    if not collector.has_dns_names(raw.metadata):
        return None
    spec, addresses = raw.spec or schema.ServiceImportSpec(), list[bytes]()
    headless = spec.type == "Headless"
    if not headless and spec.type != "ClusterSetIP":
        collector.wrong("spec.type", f"{quoted(spec.type or '')} is no type", "ClusterSetIP or Headless")
    for position, text in enumerate(spec.ips or ()):
        addresses += collector.address(f"spec.ips[{position}]", text)
    return ServiceImport(
        namespace=shared_text(raw.metadata.namespace or "default"),
        name=raw.metadata.name or "",
        headless=headless,
        cluster_ips=() if headless else tuple(addresses),
        ports=_ports(spec.ports, "spec.ports", collector),
        traffic_distribution=spec.traffic_distribution or "",
        annotations=read_annotations(raw.metadata.annotations or {}),
        clusters=tuple(entry.cluster.lower() for entry in (raw.status and raw.status.clusters) or () if entry.cluster),
    )


def read_annotations(annotations: Mapping[str, str], others: Collection[str] = ()) -> dict[str, str]:
    """Return those of some annotations that are topodns' own, or look so, and *others*."""
    return {key: text for key, text in annotations.items() if key.startswith(PREFIXES) or key in others}


def _ports(ports: list[schema.Port] | None, field: str, collector: FindingCollector) -> tuple[Port, ...]:
    converted = []
    for position, port in enumerate(ports or ()):
        if port.port is None:  # an EndpointSlice without a port number means all ports
            continue
        if 0 < port.port < 65536:
            converted.append(_port(port.name or "", port.port, port.protocol or "TCP"))
        else:
            collector.wrong(f"{field}[{position}].port", f"{port.port} is no port", "a number from 1 to 65535")
    return shared_ports(tuple(converted))


@lru_cache(maxsize=1024)  # most Services have the ports of others
def _port(name: str, number: int, protocol: str) -> Port:
    return Port(name.lower(), number, protocol.lower())


def to_service(raw: schema.Service, collector: FindingCollector) -> Service | None:
    """Convert a Service; None if its name or namespace is not a DNS label."""
    if not collector.has_dns_names(raw.metadata):
        return None
    spec = raw.spec or schema.ServiceSpec()
    texts = spec.cluster_ips or ([spec.cluster_ip] if spec.cluster_ip else [])
    external = spec.type == "ExternalName"  # has no cluster IPs and no ports, whatever the fields say
    addresses: list[bytes] = []
    for position, text in enumerate(texts):
        if text not in ("None", ""):
            field = f"spec.clusterIPs[{position}]" if spec.cluster_ips else "spec.clusterIP"
            addresses += collector.address(field, text)
    return Service(
        namespace=shared_text(raw.metadata.namespace or "default"),
        name=raw.metadata.name or "",
        headless=not external and "None" in texts,
        cluster_ips=() if external else tuple(addresses),
        ports=() if external else _ports(spec.ports, "spec.ports", collector),
        external_traffic_policy=spec.external_traffic_policy or "",
        topology_keys=None if spec.topology_keys is None else tuple(spec.topology_keys),
        traffic_distribution=spec.traffic_distribution or "",
        created=raw.metadata.created or "",
        ingress=_ingress(raw.status, collector),
        health_check_port=spec.health_check_node_port or 0,
        alias=_alias(spec.external_name or "", collector) if external else None,
        publishes_unready=bool(spec.publish_not_ready_addresses),
        selects_pods=bool(spec.selector) and not external,
        labels=raw.metadata.labels or {},
        annotations=read_annotations(raw.metadata.annotations or {}, SERVICE_ANNOTATIONS),
    )


def _ingress(status: schema.ServiceStatus | None, collector: FindingCollector) -> tuple[str, ...]:
    """Return the addresses and host names of a load balancer, each once."""
    load_balancer = status.load_balancer if status is not None else None
    found: list[str] = []
    for position, entry in enumerate((load_balancer.ingress if load_balancer is not None else None) or ()):
        field = f"status.loadBalancer.ingress[{position}]"
        if entry.ip:
            found += map(address_text, collector.address(f"{field}.ip", entry.ip))
        elif entry.hostname:
            name = canonical_address(entry.hostname)  # as votes name it
            if _is_domain_name(name) and not is_address(name):
                found.append(name)
            else:
                collector.wrong(f"{field}.hostname", f"{quoted(entry.hostname)} is no domain name", "a domain name")
    return tuple(dict.fromkeys(found))


def _alias(text: str, collector: FindingCollector) -> str:
    """Return the target of an ExternalName Service in lower case, empty if it is an address or not a domain name."""
    name = text.lower().removesuffix(".")
    if is_address(name):
        return ""
    if _is_domain_name(name):
        return name
    collector.wrong("spec.externalName", f"{quoted(text)} is no domain name", "a domain name")
    return ""


def _is_domain_name(text: str) -> bool:
    return len(text) <= MAX_NAME and all(map(_DOMAIN_LABEL.fullmatch, text.split(".")))


def to_endpoint_slice(raw: schema.EndpointSlice, collector: FindingCollector) -> EndpointSlice:
    """Convert an EndpointSlice, without endpoints if its addresses are domain names."""
    ports = _ports(raw.ports, "ports", collector)
    given = raw.endpoints or () if raw.address_type != "FQDN" else ()
    shared: dict[Hints, Hints] = {}
    labels = raw.metadata.labels or {}
    imported = labels.get(IMPORTED) or None
    cluster = labels.get(SOURCE_CLUSTER) or (None if imported is None else "")
    namespace = shared_text(raw.metadata.namespace or "default")
    found = [
        to_endpoint(endpoint, position, ports, shared, collector, namespace) for position, endpoint in enumerate(given)
    ]
    endpoints = [endpoint for endpoint in found if endpoint is not None]
    if cluster is not None:
        endpoints = [replace(endpoint, cluster=shared_text(cluster.lower())) for endpoint in endpoints]
    return EndpointSlice(
        namespace=namespace,
        name=raw.metadata.name or "",
        service=labels.get(SERVICE_NAME) or None,
        endpoints=compact(endpoints),
        imported_service=imported,
        managed_by=shared_text(labels.get(MANAGED_BY) or ""),
        deleting=raw.metadata.deleted is not None,
    )


def to_endpoint(
    endpoint: schema.Endpoint,
    position: int,
    ports: tuple[Port, ...],
    shared: dict[Hints, Hints],
    collector: FindingCollector,
    namespace: str = "",
) -> Endpoint | None:
    """Convert the endpoint at *position* of a slice in *namespace* with IP addresses; None if it has none.

    *shared* keeps equal hints as one object: most endpoints of a slice have the hints of another.
    """
    addresses = collector.addresses(lambda index: f"endpoints[{position}].addresses[{index}]", endpoint.addresses or ())
    if not addresses:
        return None
    slice_labels = endpoint.deprecated_topology or endpoint.topology or {}
    if endpoint.zone:
        slice_labels[ZONE] = endpoint.zone
    hints = None if endpoint.hints is None else _hints(endpoint.hints)
    node = endpoint.node_name or slice_labels.get(HOSTNAME)
    conditions = endpoint.conditions or schema.Conditions()
    pod, target_node, pod_namespace = _target(endpoint.target_ref, namespace)
    return Endpoint(
        addresses=addresses if len(addresses) == 1 else tuple(dict.fromkeys(addresses)),
        ports=ports,
        hostname=_hostname(endpoint.hostname, f"endpoints[{position}].hostname", collector),
        node=shared_text(node) if node else None,
        slice_labels=shared_labels(slice_labels),
        ready=conditions.ready is not False,
        pod=pod,
        hints=None if hints is None else shared.setdefault(hints, hints),
        terminating=conditions.terminating is True,
        target_node=target_node,
        pod_namespace=pod_namespace,
    )


def to_endpoints(raw: schema.Endpoints, collector: FindingCollector) -> EndpointSlice:
    """Convert an Endpoints object to one slice of the Service of its name.

    Kubernetes' EndpointSliceMirroring controller makes the same endpoints of it.
    """
    endpoints: list[Endpoint] = []
    namespace, name = raw.metadata.namespace or "default", raw.metadata.name or ""
    for position, subset in enumerate(raw.subsets or ()):
        path = f"subsets[{position}]"
        ports = _ports(subset.ports, f"{path}.ports", collector)
        for field, addresses, ready in (
            ("addresses", subset.addresses, True),
            ("notReadyAddresses", subset.not_ready_addresses, False),
        ):
            endpoints += _subset(f"{path}.{field}", addresses, namespace, ports, collector, ready=ready)
    if raw.metadata.annotations is not None and raw.metadata.annotations.over_capacity == "truncated":
        collector.wrong("subsets", "some endpoints are missing", "all endpoints", code=ClusterCode.EndpointsTruncated)
    return EndpointSlice(namespace, name, name, compact(endpoints), kind=ENDPOINTS, managed_by=SLICE_CONTROLLER)


def _subset(
    path: str,
    addresses: Sequence[schema.EndpointAddress] | None,
    namespace: str,
    ports: tuple[Port, ...],
    collector: FindingCollector,
    *,
    ready: bool,
) -> Iterator[Endpoint]:
    """Yield an endpoint for each of some *addresses*, which are at *path* in an Endpoints object."""
    for position, stated in enumerate(addresses or ()):
        if address := collector.address(f"{path}[{position}].ip", stated.ip or ""):
            pod, target_node, pod_namespace = _target(stated.target_ref, namespace)
            yield Endpoint(
                addresses=address,
                ports=ports,
                hostname=_hostname(stated.hostname, f"{path}[{position}].hostname", collector),
                node=stated.node_name or None,
                ready=ready,
                pod=pod,
                target_node=target_node,
                pod_namespace=pod_namespace,
            )


def _target(target: schema.Reference | None, namespace: str) -> tuple[str | None, str | None, str | None]:
    """Return the Pod or the Node that an endpoint in *namespace* is, and the Pod's namespace if it is another one."""
    if target is None or not target.name or target.kind not in (None, "Pod", "Node"):
        return None, None, None
    if target.kind == "Node":
        return None, shared_text(target.name), None
    return target.name, None, target.namespace if target.namespace not in (None, "", namespace) else None


def _hints(raw: schema.Hints) -> Hints | None:
    nodes, zones = (
        tuple(entry.name for entry in names or () if entry.name) for names in (raw.for_nodes, raw.for_zones)
    )
    return Hints(nodes, zones) if nodes or zones else None


def _hostname(text: str | None, field: str, collector: FindingCollector) -> str | None:
    if text and not is_dns_label(text.lower()):
        collector.wrong(field, f"{quoted(text)} is no DNS label", "at most 63 letters, digits and hyphens")
        return None
    return text.lower() if text else None


def to_pod_locator(raw: schema.PodLocator, collector: FindingCollector) -> PodLocator:
    """Convert a PodLocator."""
    addresses: list[bytes] = []
    for position, entry in enumerate(raw.ips or ()):
        addresses += collector.address(f"ips[{position}].ip", entry.ip) if entry.ip else ()
    return PodLocator(
        namespace=shared_text(raw.metadata.namespace or "default"),
        name=raw.metadata.name or "",
        addresses=tuple(dict.fromkeys(addresses)),
        node=raw.node_name or None,
        labels=canonical_labels(raw.node_labels or {}, node=raw.node_name or None),
    )


OPERATORS = {  # of a label selector, as the API spells them
    "In": IN,
    "NotIn": NOT_IN,
    "Exists": EXISTS,
    "DoesNotExist": ABSENT,
}


def to_service_policy(raw: schema.ServicePolicy, collector: FindingCollector) -> ServicePolicy | None:
    """Convert a ServicePolicy; None if its selector is empty or invalid.

    A policy with an invalid key or mode is converted: it makes the constraint of every Service that it selects invalid.
    """
    spec = raw.spec or schema.ServicePolicySpec()
    topology = spec.topology or schema.Topology()
    selector = _selector(spec.service_selector or schema.LabelSelector(), "spec.serviceSelector", collector)
    policy = ServicePolicy(
        namespace=shared_text(raw.metadata.namespace or "default"),
        name=raw.metadata.name or "",
        created=raw.metadata.created or "",
        selector=selector or Selector(),
        topology_key=topology.key,
        mode=IGNORED if topology.mode is None else MODE_ALIASES.get(topology.mode, topology.mode),
    )
    if topology.mode is None:
        message, code = "policy without a mode: it is ignored", ClusterCode.PolicyWithoutMode
        collector.wrong("spec.topology.mode", message, ", ".join(MODES), code=code)
    if (error := policy_error(policy)) is not None:
        collector.wrong(*error)
    elif policy.topology_key is None and policy.mode != IGNORED:
        message, code = "policy without a key: it says nothing", ClusterCode.EmptyTopologyKeys
        collector.wrong("spec.topology.key", message, "a label key", code=code)
    return None if selector is None else policy


def _selector(raw: schema.LabelSelector, field: str, collector: FindingCollector) -> Selector | None:
    """Convert a label selector; add a finding and return None if it is empty or invalid."""
    requirements: list[Requirement] = []
    for key, value in (raw.match_labels or {}).items():
        requirements += _requirement(f"{field}.matchLabels", key, "In", [value], collector)
    for position, expression in enumerate(raw.match_expressions or ()):
        path = f"{field}.matchExpressions[{position}]"
        requirements += _requirement(path, expression.key, expression.operator, expression.values or (), collector)
    stated = len(raw.match_labels or ()) + len(raw.match_expressions or ())
    if not stated:
        collector.wrong(field, "an empty selector, which would select every Service", "matchLabels or matchExpressions")
    return Selector(tuple(requirements)) if 0 < stated == len(requirements) else None


def _requirement(
    field: str, key: str, operator: str, values: Sequence[str], collector: FindingCollector
) -> tuple[Requirement, ...]:
    """Return the requirement, or add a finding and return () if it is invalid."""
    if operator not in OPERATORS:
        collector.wrong(f"{field}.operator", f"{quoted(operator)} is no operator", ", ".join(OPERATORS))
        return ()
    expected = "a requirement that Kubernetes accepts"
    parsed = collector.try_parse(field, lambda text: requirement(text, OPERATORS[operator], values), key, expected)
    return () if parsed is None else (parsed,)


def to_service_health(raw: schema.ServiceHealth, collector: FindingCollector) -> ServiceHealth | None:
    """Convert a ServiceHealth; None if its name is not that of a Service. An entry that says nothing is left out.

    Any prober has written it, or somebody by hand.
    """
    name, status = raw.metadata.name or "", raw.status or schema.HealthStatus()
    service = service_of(name)
    if service is None:
        collector.wrong("metadata.name", f"{quoted(name)} is the name of no Service", "NAME.NAMESPACE of a Service")
        return None
    about = status.service
    if about is not None and f"{about.namespace}/{about.name}" != service:
        collector.wrong("status.service", f"{about.namespace}/{about.name} in {name}", "the Service of its name")
        return None
    renewed = status.renew_time or ""
    if renewed or status.entries:
        collector.try_parse("status.renewTime", parse_time, renewed, "a time in RFC 3339")
    entries: dict[str, HealthEntry] = {}
    for position, entry in enumerate(status.entries or ()):
        if not entry.address or entry.healthy is None:
            collector.wrong(f"status.entries[{position}]", "an entry without a vote", "an address, and healthy or not")
            continue
        address = canonical_address(entry.address)
        entries[address] = HealthEntry(address, entry.healthy, entry.since or "", entry.message or "")
    return ServiceHealth(
        name=name,
        service=service,
        entries=tuple(entries.values()),
        renewed=renewed,
        cluster=status.cluster or "",
        version=raw.metadata.version or "",
    )


def service_of(name: str) -> str | None:
    """Return the key of the Service that a ServiceHealth called *name* is about; None for any other name."""
    service, _, namespace = name.partition(".")
    return f"{namespace}/{service}" if is_dns_label(service) and is_dns_label(namespace) else None


def canonical_address(text: str) -> str:
    """Return the one text of an address that may have several: an IP address, or else a host name in lower case."""
    try:
        return address_text(parse_address(text))
    except ValueError:
        return text.lower().removesuffix(".")
