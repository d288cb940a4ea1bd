"""Where clients and endpoints are, a second time: slow, simple, without any index.

Tests compare it with what topodns says. It reads objects as kubectl prints them, and shares no code with the packages.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
NEW_NAMES = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}

Item = Mapping[str, Any]


class Where(NamedTuple):
    """Where a client is: how it was located, the name of its node, its labels under their current names."""

    located_by: str
    node: str | None
    labels: Mapping[str, str]


UNKNOWN = Where("unknown", None, {})


class TwinMap:
    """Where addresses are."""

    def __init__(self, items: Sequence[Item], client_source: str, subnets: Mapping[str, Mapping[str, str]]) -> None:
        sources = client_source.split(",")
        self.pods = of_kind(items, "Pod") if "pods" in sources else []
        self.known_pods = set(map(key_of, self.pods))
        self.locators = of_kind(items, "PodLocator") if "podlocators" in sources else []
        self.nodes = {node["metadata"]["name"]: node for node in of_kind(items, "Node") if "nodes" in sources}
        self.slices = of_kind(items, "EndpointSlice")
        self.subnets = {ipaddress.ip_network(text): labels for text, labels in subnets.items()}
        self.trusted = self.trusted_blocks()

    def node_labels(self, name: str) -> dict[str, str]:
        return {HOSTNAME: name, **plain(self.nodes[name]["metadata"].get("labels", {}))}

    def locator_labels(self, key: tuple[str, str]) -> dict[str, str]:
        """Return what a pod's PodLocator says of its node, empty without one."""
        for locator in self.locators:
            if key_of(locator) == key:
                return {HOSTNAME: locator["nodeName"], **plain(locator["nodeLabels"])}
        return {}

    def pod_labels(self, pod: Item) -> dict[str, str]:
        name = pod["spec"]["nodeName"]
        if name in self.nodes:
            return self.node_labels(name)
        return self.locator_labels(key_of(pod)) or {HOSTNAME: name}

    def of_endpoint(self, namespace: str, endpoint: Item) -> Where:
        """Return where an endpoint is: by its node, else by its PodLocator, else by what the slice says itself."""
        name, pod = endpoint.get("nodeName"), (namespace, endpoint.get("targetRef", {}).get("name", ""))
        if name in self.nodes:
            return Where("endpoint", name, self.node_labels(name))
        for locator in self.locators:
            if key_of(locator) == pod:
                return Where("endpoint", locator["nodeName"], self.locator_labels(pod))
        labels = plain(endpoint.get("deprecatedTopology", {}))
        if endpoint.get("zone"):
            labels[ZONE] = endpoint["zone"]
        return Where("endpoint", name, {HOSTNAME: name, **labels} if name else labels)

    def locate(self, text: str) -> Where:
        """Return where an address is: the first match decides."""
        return next(self.matches(text), UNKNOWN)

    def matches(self, text: str) -> Iterator[Where]:
        running = [pod for pod in self.pods if pod["status"]["phase"] not in ("Succeeded", "Failed")]
        running = [pod for pod in running if text in [row["ip"] for row in pod["status"]["podIPs"]]]
        own = [pod for pod in running if not pod["spec"].get("hostNetwork")]
        for pod in sorted(own, key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True):
            yield Where("pod", pod["spec"]["nodeName"], self.pod_labels(pod))
        for locator in sorted(self.locators, key=key_of, reverse=True):
            if text in [row["ip"] for row in locator["ips"]] and key_of(locator) not in self.known_pods:
                name = locator["nodeName"]
                labels = self.node_labels(name) if name in self.nodes else self.locator_labels(key_of(locator))
                yield Where("podlocator", name, labels)
        for namespace, endpoint in self.endpoints():
            if text in endpoint["addresses"] and (where := self.of_endpoint(namespace, endpoint)).labels:
                yield where
        for name, node in self.nodes.items():
            if text in [row["address"] for row in node["status"]["addresses"]]:
                yield Where("node", name, self.node_labels(name))
        for pod in running:
            yield Where("node", pod["spec"]["nodeName"], self.pod_labels(pod))
        address = ipaddress.ip_address(text)
        for network in longest_first(self.trusted, address):
            yield self.within(network)
        for network in longest_first(self.subnets, address):
            yield Where("subnet", None, self.subnets[network])

    def within(self, network: Any) -> Where:
        """Return where a trusted pod CIDR is: on its node, or what its nodes share."""
        return shared(Where("podcidr", name, self.node_labels(name)) for name in self.owners(network))

    def agreed(self, network: Any) -> Where:
        """Return what everything known in a block agrees on.

        The trusted pod CIDRs around it and within it; known addresses in it that are in no pod CIDR; if there is
        neither, the configured subnets, likewise.
        """
        speaking = longest_first(self.trusted, network)[:1]
        speaking += [block for block in self.trusted if inside(block, network) and block != network]
        parts = list(map(self.within, speaking))
        for text in self.held():
            address = ipaddress.ip_address(text)
            if address in network and not longest_first(self.trusted, address):
                where = self.locate(text)
                parts += [where] if where.located_by not in ("subnet", "unknown") else []
        if not parts:
            speaking = longest_first(self.subnets, network)[:1]
            speaking += [subnet for subnet in self.subnets if inside(subnet, network) and subnet != network]
            parts = [Where("subnet", None, self.subnets[part]) for part in speaking]
        return shared(parts)

    def held(self) -> set[str]:
        """Return the addresses that some object has."""
        found = {row["ip"] for pod in self.pods for row in pod["status"]["podIPs"]}
        found |= {row["ip"] for locator in self.locators for row in locator["ips"]}
        found |= {row["address"] for node in self.nodes.values() for row in node["status"]["addresses"]}
        return found | {address for _, endpoint in self.endpoints() for address in endpoint["addresses"]}

    def endpoints(self) -> Iterator[tuple[str, Item]]:
        for endpoint_slice in self.slices:
            for endpoint in endpoint_slice["endpoints"]:
                yield endpoint_slice["metadata"]["namespace"], endpoint

    def owners(self, network: Any) -> list[str]:
        return [
            name
            for name, node in self.nodes.items()
            if network in map(ipaddress.ip_network, node["spec"].get("podCIDRs", ()))
        ]

    def trusted_blocks(self) -> list[Any]:
        """Return the nodes' pod CIDRs, except those that hold an endpoint on another node.

        Of several around an endpoint, only the smallest counts; the next one if that is not trusted.
        """
        texts = dict.fromkeys(text for node in self.nodes.values() for text in node["spec"].get("podCIDRs", ()))
        trusted = list(map(ipaddress.ip_network, texts))
        while True:
            wrong = set()
            for _, endpoint in self.endpoints():
                for address in map(ipaddress.ip_address, endpoint["addresses"]):
                    for network in longest_first(trusted, address)[:1]:
                        if endpoint.get("nodeName") and endpoint["nodeName"] not in self.owners(network):
                            wrong.add(network)
            if not wrong:
                return trusted
            trusted = [network for network in trusted if network not in wrong]


def shared(parts: Iterable[Where]) -> Where:
    """Return what several places have in common."""
    first, *rest = [*parts] or [UNKNOWN]
    node = first.node if all(part.node == first.node for part in rest) else None
    labels = {key: value for key, value in first.labels.items() if all(part.labels.get(key) == value for part in rest)}
    return Where(first.located_by, node, labels)


def plain(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels under their current names, which precede the old ones; a label without a value is none."""
    present = {key: value for key, value in labels.items() if value}
    renamed = {new: present[old] for old, new in NEW_NAMES.items() if old in present}
    return {**renamed, **{key: value for key, value in present.items() if key not in NEW_NAMES}}


def of_kind(items: Iterable[Item], kind: str) -> list[Item]:
    return [item for item in items if item["kind"] == kind]


def key_of(item: Item) -> tuple[str, str]:
    """Return an object's namespace and name."""
    return item["metadata"]["namespace"], item["metadata"]["name"]


def longest_first(networks: Iterable[Any], inner: Any) -> list[Any]:
    """Return the networks around an address or a block, the longest first."""
    return sorted((network for network in networks if inside(inner, network)), key=lambda network: -network.prefixlen)


def inside(inner: Any, outer: Any) -> bool:
    """Whether an address or a block lies in, or equals, a block."""
    if inner.version != outer.version:
        return False
    return inner.subnet_of(outer) if hasattr(inner, "prefixlen") else inner in outer
