"""Kubernetes JSON to the model.

``RESOURCES`` has one row a kind: where it is, a typed struct, which skips what nobody reads, and how the model's
record is built from it. What cannot be read of an object becomes a ``Finding`` that names
object, field and what was expected; whatever stands beside it lives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from locator.api import schema
from locator.finding_codes import ClusterCode
from locator.ip import (
    Network,
    parse_address,
    parse_network,
)
from locator.labels import ABSENT, EXISTS, IN, NOT_IN, Requirement, Selector, requirement
from locator.model import (
    HOSTNAME,
    MAX_NAME,
    ZONE,
    Endpoint,
    EndpointSlice,
    Finding,
    Namespace,
    Node,
    Object,
    Pod,
    PodLocator,
    Port,
    Service,
    ServicePolicy,
    canonical_labels,
    is_dns_label,
)
from locator.topology.constraints import IGNORED, PREFIX, policy_error

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


T = TypeVar("T")


class Reading(list[Finding]):
    """What was found wrong while one object was read; all of it has one *code*."""

    def __init__(self, code: ClusterCode, kind: str, namespace: str, name: str) -> None:
        super().__init__()
        self._code = code
        self._object = (kind, namespace, name)

    def wrong(self, field: str, message: str, expected: str) -> None:
        """Note that *field* holds what it must not."""
        self.append(self._code.finding(*self._object, field=field, message=message, expected=expected))

    def try_parse(self, field: str, parse: Callable[[str], T], text: str, expected: str) -> T | None:
        """Return what *parse* makes of *text*, None where it raises ValueError, which is noted."""
        try:
            return parse(text)
        except ValueError as error:
            self.wrong(field, str(error), expected)
            return None

    def named(self, meta: schema.Meta) -> bool:
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


def _namespace(raw: schema.Namespace, found: Reading) -> Namespace | None:
    return Namespace(raw.metadata.name or "", raw.metadata.labels or {}) if found.named(raw.metadata) else None


def _node(raw: schema.Node, found: Reading) -> Node:
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
        pod_cidrs=_pod_cidrs(raw.spec or schema.NodeSpec(), annotations, found),
    )


def _pod_cidrs(spec: schema.NodeSpec, annotations: Mapping[str, str], found: Reading) -> tuple[Network, ...]:
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


def _pod(raw: schema.Pod, found: Reading) -> Pod:
    spec, status = raw.spec or schema.PodSpec(), raw.status or schema.PodStatus()
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


def _ports(ports: list[schema.Port] | None, field: str, found: Reading) -> tuple[Port, ...]:
    read = []
    for position, each in enumerate(ports or ()):
        if each.port is None:  # of an EndpointSlice: any port will do
            continue
        if 0 < each.port < 65536:
            read.append(Port((each.name or "").lower(), each.port, (each.protocol or "TCP").lower()))
        else:
            found.wrong(f"{field}[{position}].port", f"{each.port} is no port", "a number from 1 to 65535")
    return tuple(read)


def _service(raw: schema.Service, found: Reading) -> Service | None:
    if not found.named(raw.metadata):
        return None
    spec = raw.spec or schema.ServiceSpec()
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
        publishes_unready=bool(spec.publish_not_ready_addresses),
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


def _endpoint_slice(raw: schema.EndpointSlice, found: Reading) -> EndpointSlice:
    ports = _ports(raw.ports, "ports", found)
    endpoints = []
    named = raw.address_type != "FQDN"  # names are no addresses; nothing in DNS is made of such slices
    for position, each in enumerate((raw.endpoints or ()) if named else ()):
        addresses: list[bytes] = []
        for index, text in enumerate(each.addresses or ()):
            addresses += found.address(f"endpoints[{position}].addresses[{index}]", text)
        if not addresses:
            continue
        slice_labels = dict(each.deprecated_topology or each.topology or {})
        if each.zone:
            slice_labels[ZONE] = each.zone
        target = each.target_ref
        endpoints.append(
            Endpoint(
                addresses=tuple(dict.fromkeys(addresses)),
                ports=ports,
                hostname=_hostname(each.hostname, f"endpoints[{position}].hostname", found),
                node=each.node_name or slice_labels.get(HOSTNAME) or None,
                slice_labels=slice_labels,
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


def _pod_locator(raw: schema.PodLocator, found: Reading) -> PodLocator:
    addresses: list[bytes] = []
    for position, each in enumerate(raw.ips or ()):
        addresses += found.address(f"ips[{position}].ip", each.ip) if each.ip else ()
    return PodLocator(
        namespace=raw.metadata.namespace or "default",
        name=raw.metadata.name or "",
        addresses=tuple(dict.fromkeys(addresses)),
        node=raw.node_name or None,
        labels=canonical_labels(raw.node_labels or {}, node=raw.node_name or None),
    )


# The operators of a label selector as the API writes them.
OPERATORS = {"In": IN, "NotIn": NOT_IN, "Exists": EXISTS, "DoesNotExist": ABSENT}


def _service_policy(raw: schema.ServicePolicy, found: Reading) -> ServicePolicy | None:
    """Whom it speaks for must be plain; what it says is judged where it is heard, and noted here."""
    spec = raw.spec or schema.ServicePolicySpec()
    topology = spec.topology or schema.Topology()
    selector = _selector(spec.service_selector or schema.LabelSelector(), "spec.serviceSelector", found)
    policy = ServicePolicy(
        namespace=raw.metadata.namespace or "default",
        name=raw.metadata.name or "",
        created=raw.metadata.created or "",
        selector=selector or Selector(),
        topology_key=topology.key or "",
        mode=IGNORED if topology.mode is None else topology.mode,
    )
    if (error := policy_error(policy)) is not None:
        found.wrong(*error)
    return None if selector is None else policy


def _selector(raw: schema.LabelSelector, field: str, found: Reading) -> Selector | None:
    """Return whom a label selector selects; None where it is empty or cannot be read, which is noted."""
    requirements: list[Requirement] = []
    for key, value in (raw.match_labels or {}).items():
        requirements += _requirement(f"{field}.matchLabels", key, "In", [value], found)
    for position, each in enumerate(raw.match_expressions or ()):
        where = f"{field}.matchExpressions[{position}]"
        requirements += _requirement(where, each.key, each.operator, each.values or (), found)
    stated = len(raw.match_labels or ()) + len(raw.match_expressions or ())
    if not stated:
        found.wrong(field, "an empty selector, which would select every Service", "matchLabels or matchExpressions")
    return Selector(tuple(requirements)) if 0 < stated == len(requirements) else None


def _requirement(field: str, key: str, operator: str, values: Sequence[str], found: Reading) -> tuple[Requirement, ...]:
    """Return the requirement as one, none where it is none, which is noted."""
    if operator not in OPERATORS:
        found.wrong(f"{field}.operator", f"{operator!r} is no operator", ", ".join(OPERATORS))
        return ()
    expected = "a label selector as Kubernetes has them"
    made = found.try_parse(field, lambda text: requirement(text, OPERATORS[operator], values), key, expected)
    return () if made is None else (made,)


class Resource(NamedTuple):
    """How objects of a kind are read: where the API has them all, what reads the shape of their JSON, what is
    built from it.

    ``optional`` says that the API need not know the kind: its CRD may be installed later, or never. ``code`` is that
    of a field which breaks a rule.
    """

    name: str
    path: str
    decoder: Decoder[Any]
    build: Callable[[Any, Reading], Any]
    optional: bool = False
    code: ClusterCode = ClusterCode.UnreadableObject

    @property
    def group(self) -> str:
        """The API group, empty for the core's."""
        return self.path.split("/")[2] if self.path.startswith("/apis/") else ""


# Decoders are made here and not where they are used first: msgspec 0.22 crashes if two threads do that at once.
# The versions of a group are alike in what matters here.
RESOURCES: Mapping[type[Object], Resource] = {
    Namespace: Resource("Namespace", "/api/v1/namespaces", Decoder(schema.Namespace), _namespace),
    Node: Resource("Node", "/api/v1/nodes", Decoder(schema.Node), _node),
    Pod: Resource("Pod", "/api/v1/pods", Decoder(schema.Pod), _pod),
    PodLocator: Resource(
        "PodLocator", "/apis/topodns.io/v1alpha1/podlocators", Decoder(schema.PodLocator), _pod_locator
    ),
    Service: Resource("Service", "/api/v1/services", Decoder(schema.Service), _service),
    ServicePolicy: Resource(
        "ServicePolicy",
        "/apis/topodns.io/v1alpha1/servicepolicies",
        Decoder(schema.ServicePolicy),
        _service_policy,
        optional=True,
        code=ClusterCode.InvalidServicePolicy,
    ),
    EndpointSlice: Resource(
        "EndpointSlice", "/apis/discovery.k8s.io/v1/endpointslices", Decoder(schema.EndpointSlice), _endpoint_slice
    ),
}
READ: Mapping[tuple[str, str], Resource] = {(each.group, each.name): each for each in RESOURCES.values()}


class Decoded(NamedTuple):
    """One object as it was read: which it is, what was built from it, and what is wrong in it.

    ``built`` is None where the object cannot be used at all; a finding says why. ``version`` is its
    resourceVersion, ``triggered`` when what an EndpointSlice was made from changed (RFC 3339), empty if not known.
    """

    namespace: str
    name: str
    version: str
    built: Any
    findings: Sequence[Finding] = ()
    triggered: str = ""

    @property
    def key(self) -> str:
        """What tells the object from others of its kind."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def decode_untrusted(kind: Resource, raw: Raw | bytes, where: str = "") -> Decoded:
    """Read one object of a kind; *where* names it where it has no name. Never raises."""
    try:
        shaped = kind.decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a field of the wrong type, or no JSON
        message, path = error_words(error)
        namespace, name, version = _identity(bytes(raw))
        finding = ClusterCode.UnreadableObject.finding(
            kind.name, namespace, name or where, field=path, message=f"unreadable object: {message}"
        )
        return Decoded(namespace, name, version, None, [finding])
    meta: schema.Meta = shaped.metadata
    if not meta.name:
        finding = ClusterCode.UnreadableObject.finding(
            kind.name,
            meta.namespace or "",
            where,
            field="metadata.name",
            message="object without a name",
            expected="a name",
        )
        return Decoded(meta.namespace or "", "", meta.version or "", None, [finding])
    found = Reading(kind.code, kind.name, meta.namespace or "", meta.name)
    built = kind.build(shaped, found)
    triggered = ""
    if isinstance(meta, schema.SliceMeta) and meta.annotations is not None:
        triggered = meta.annotations.at or ""
    return Decoded(meta.namespace or "", meta.name, meta.version or "", built, found, triggered)


def error_words(error: Exception) -> tuple[str, str]:
    """Return what an error of msgspec says, and the path of the field it speaks of."""
    message, _, path = str(error).partition(" - at ")
    message = message.replace("`", "")
    if match := re.fullmatch(r"Expected (.+), got (.+)", message):
        message = f"{match[2]} found, expected {match[1].replace(' | null', '')}"
    return message, path.strip("`").removeprefix("$").removeprefix(".")


def _identity(raw: bytes) -> tuple[str, str, str]:
    """Return namespace, name and resourceVersion of an object that could not be read, as far as they can be."""
    try:
        meta = json.loads(raw.decode(errors="replace")).get("metadata")
    except (ValueError, AttributeError, RecursionError):  # such as a number of five thousand digits
        return "", "", ""
    if not isinstance(meta, dict):
        return "", "", ""
    return _printable(meta.get("namespace")), _printable(meta.get("name")), _printable(meta.get("resourceVersion"))


def _printable(value: object) -> str:
    """Return what stands as a name, whatever it is: half a surrogate pair cannot be printed."""
    return str(value or "").encode(errors="replace").decode()
