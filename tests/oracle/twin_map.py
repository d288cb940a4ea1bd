# SPDX-License-Identifier: Apache-2.0

"""Where clients and endpoints are, a second time: slow, simple, without any index.

Tests compare it with what topodns says. It reads objects as kubectl prints them, and shares no code with the packages.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

CLUSTER = "topodns.io/cluster"
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
MANAGED_BY, CONTROLLER = "endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io"
NEW_NAMES = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}

Item = Mapping[str, Any]
# The same few texts are read again and again.
ip_address, ip_network = cache(ipaddress.ip_address), cache(ipaddress.ip_network)


class Where(NamedTuple):
    """Where a client is: how it was located, the name of its node, its labels under their current names.

    ``by_slice``: only an EndpointSlice says them.
    """

    located_by: str
    node: str | None
    labels: Mapping[str, str]
    by_slice: bool = False


UNKNOWN = Where("unknown", None, {})


class TwinMap:
    """Where addresses are."""

    def __init__(
        self,
        items: Sequence[Item],
        client_source: str,
        subnets: Mapping[str, Mapping[str, str]],
        lacking: Mapping[str, Mapping[str, str]] | None = None,
        *,
        cluster: str = "",
    ) -> None:
        """*lacking* are the subnets that say what nodes lack, if they are others than *subnets*.

        Every place that objects tell is in *cluster*, unless that is empty.
        """
        self.within_cluster = {CLUSTER: cluster} if cluster else {}
        sources = client_source.split(",")
        self.watches_pods = "pods" in sources
        self.pods = of_kind(items, "Pod") if self.watches_pods else []
        self.known_pods = {key_of(pod): pod for pod in self.pods}
        self.services = {key_of(service): service for service in of_kind(items, "Service")}
        self.locators = of_kind(items, "PodLocator") if "podlocators" in sources else []
        self.nodes = {node["metadata"]["name"]: node for node in of_kind(items, "Node") if "nodes" in sources}
        self.slices = of_kind(items, "EndpointSlice")
        self._kept = self.of_kept_slices()
        self._addresses: dict[object, dict[object, dict[str, None]]] = {}  # of the endpoints of like slices
        self.subnets = {ip_network(text): labels for text, labels in subnets.items()}
        told = subnets if lacking is None else lacking
        self.lacking = {ip_network(text): plain(labels) for text, labels in told.items()}
        self.trusted = self.trusted_blocks()

    def node_labels(self, name: str) -> dict[str, str]:
        return {HOSTNAME: name, **plain(self.nodes[name]["metadata"].get("labels", {})), **self.within_cluster}

    def locator_labels(self, key: tuple[str, str]) -> dict[str, str]:
        """Return what a pod's PodLocator says of its node, empty without one."""
        for locator in self.locators:
            if key_of(locator) == key:
                return {HOSTNAME: locator["nodeName"], **plain(locator["nodeLabels"]), **self.within_cluster}
        return {}

    def pod_labels(self, pod: Item) -> dict[str, str]:
        name = pod["spec"]["nodeName"]
        own = self.node_labels(name) if name in self.nodes else self.locator_labels(key_of(pod))
        return self.filled(own, addresses_of(pod)) or {HOSTNAME: name}

    def filled(self, labels: Mapping[str, str], texts: Sequence[str]) -> dict[str, str]:
        """Return a node's labels with those that it lacks: of the subnet of the first address that is in one."""
        told = [longest_first(self.lacking, ip_address(text))[:1] for text in texts] if labels else []
        found = [networks[0] for networks in told if networks]
        return {**(self.lacking[found[0]] if found else {}), **labels}

    def at_locator(self, located_by: str, locator: Item, texts: Sequence[str]) -> Where:
        """Return the node that a PodLocator names, with what the subnets around the addresses say beside it."""
        name = locator["nodeName"]
        own = self.node_labels(name) if name in self.nodes else self.locator_labels(key_of(locator))
        return Where(located_by, name, self.filled(own, texts))

    def of_endpoint(self, namespace: str, endpoint: Item) -> Where:
        """Return where an endpoint is: by its node or its pod's, else by what its slice says, else by its address."""
        where = self.told(namespace, endpoint)
        if says_where(where):
            return where
        found = next(filter(says_where, map(self.locate, endpoint["addresses"])), UNKNOWN)
        return Where(where.located_by, found.node, {**where.labels, **found.labels})

    def told(self, namespace: str, endpoint: Item) -> Where:
        """Return where an endpoint is by its node, its pod or the Node that it is, else by its slice."""
        found = self.on_node(namespace, endpoint)
        if found is not None:
            return found
        name = endpoint.get("nodeName")
        labels = {**plain(endpoint.get("deprecatedTopology", {})), **self.within_cluster}
        if endpoint.get("zone"):
            labels[ZONE] = endpoint["zone"]
        return Where("endpoint", name, {HOSTNAME: name, **labels} if name else labels, by_slice=True)

    def on_node(self, namespace: str, endpoint: Item) -> Where | None:
        """Return where an endpoint is by the node that an object says it is on, None if no object does."""
        name, target = endpoint.get("nodeName"), endpoint.get("targetRef", {})
        key = (target.get("namespace", namespace), target.get("name", ""))
        pod = self.known_pods.get(key) if target.get("kind") == "Pod" else None
        locators = [one for one in self.locators if key_of(one) == key] if target.get("kind") == "Pod" else []
        texts = endpoint["addresses"]
        if pod is not None and runs(pod) and texts[0] in addresses_of(pod):
            texts = addresses_of(pod)
        elif pod is None and locators and texts[0] in addresses_of(locators[0]):
            texts = addresses_of(locators[0])
        names = [name, target.get("name") if target.get("kind") == "Node" else None]
        names += [pod["spec"]["nodeName"]] if pod is not None else []
        for known in [known for known in names if known in self.nodes]:
            return Where("endpoint", known, self.filled(self.node_labels(known), texts))
        for locator in locators:
            return self.at_locator("endpoint", locator, texts)
        return None

    def locate(self, text: str) -> Where:
        """Return where an address is: the first match decides."""
        return next(self.matches(text), UNKNOWN)

    def pods_at(self, text: str) -> list[Item]:
        """Return the running pods with an address in a network of their own, the newest first."""
        own = [pod for pod in self.pods if runs(pod) and text in addresses_of(pod)]
        own = [pod for pod in own if not pod["spec"].get("hostNetwork")]
        return sorted(own, key=lambda pod: (pod["metadata"]["creationTimestamp"], key_of(pod)), reverse=True)

    def locators_at(self, text: str) -> list[Item]:
        """Return the PodLocators with an address whose pods are not known."""
        found = [one for one in self.locators if text in addresses_of(one) and key_of(one) not in self.known_pods]
        return sorted(found, key=key_of, reverse=True)

    def nodes_with(self, text: str) -> list[str]:
        return [
            name for name, node in self.nodes.items() if text in [row["address"] for row in node["status"]["addresses"]]
        ]

    def of_kept_slices(self) -> list[tuple[Item, Item]]:
        """Return the endpoints of slices that count for clients, each with its slice, the ones that decide first."""
        found = []
        for owned in self.slices:
            meta = owned["metadata"]
            service = self.services.get((meta["namespace"], meta["labels"].get("kubernetes.io/service-name")))
            if meta["labels"].get(MANAGED_BY) == CONTROLLER and service and service["spec"].get("selector"):
                for position, row in enumerate(owned["endpoints"]):
                    conditions = row.get("conditions", {})
                    order = (conditions.get("ready") is False, conditions.get("terminating") is True)
                    found.append(((*order, meta["namespace"], meta["name"], position), owned, row))
        return [(owned, row) for _, owned, row in sorted(found, key=lambda one: one[0])]

    def kept_at(self, text: str) -> list[tuple[str, Item]]:
        """Return the kept endpoints that have an address, each with its namespace, the one that decides first."""
        found = []
        for owned, row in [(owned, row) for owned, row in self._kept if text in row["addresses"]]:
            target, namespace = row.get("targetRef", {}), owned["metadata"]["namespace"]
            pod = self.known_pods.get((namespace, target.get("name", "")))
            if target.get("kind") != "Pod" or pod is None or self.has(pod, text):
                found.append((namespace, self.whole(owned, row)))
        return found

    def whole(self, owned: Item, row: Item) -> Item:
        """Return an endpoint of a kept slice with all addresses that its pod has in kept slices of the Service."""
        if not self.lacking or row.get("targetRef", {}).get("kind") != "Pod":
            return row  # without a subnet, nobody asks for the others
        labels, where = owned["metadata"]["labels"], owned["metadata"]["namespace"]
        group = (where, *sorted(labels.items()))
        if group not in self._addresses:
            beside = [one for one in self.slices if one["metadata"]["namespace"] == where]
            beside = [one for one in beside if one["metadata"]["labels"] == labels]
            known = self._addresses.setdefault(group, {})
            for other in [other for one in sorted(beside, key=key_of) for other in one["endpoints"]]:
                known.setdefault(identity(other, where), {}).update(dict.fromkeys(other["addresses"]))
        return {**row, "addresses": list(self._addresses[group][identity(row, where)])}

    def at_node(self, text: str) -> Sequence[str]:
        """Return the addresses of whoever has a Node's address: the newest pod, else the kept endpoint."""
        pods = [pod for pod in self.pods if runs(pod) and text in addresses_of(pod)]
        if pods:
            return addresses_of(max(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], key_of(pod))))
        return next((row["addresses"] for _, row in self.kept_at(text)), [text])

    def has(self, pod: Item, text: str) -> bool:
        """Whether a pod has an address, and no newer pod."""
        if not runs(pod) or text not in addresses_of(pod):
            return False
        return bool(pod["spec"].get("hostNetwork")) or self.pods_at(text)[0] is pod

    def matches(self, text: str) -> Iterator[Where]:
        for pod in self.pods_at(text):
            name = pod["spec"]["nodeName"]
            told = name not in self.nodes and self.locator_labels(key_of(pod))
            yield Where("podlocator" if told else "pod", name, self.pod_labels(pod))
        for locator in self.locators_at(text):
            yield self.at_locator("podlocator", locator, addresses_of(locator))
        for name in self.nodes_with(text):
            yield Where("node", name, self.filled(self.node_labels(name), self.at_node(text)))
        for pod in self.pods:
            if runs(pod) and pod["spec"].get("hostNetwork") and text in addresses_of(pod):
                yield Where("node", pod["spec"]["nodeName"], self.pod_labels(pod))
        kept = self.kept_at(text)
        for where in [self.on_node(*found) for found in kept]:
            if where is not None:
                yield where
        address = ip_address(text)
        for network in longest_first(self.trusted, address):
            yield self.within(network, [text])
        yield from filter(says_where, [self.told(*found) for found in kept])
        for network in longest_first(self.subnets, address):
            yield Where("subnet", None, self.subnets[network])

    def within(self, network: Any, texts: Sequence[str]) -> Where:
        """Return where an address in a trusted pod CIDR is: on its node, or what its nodes share."""
        nodes = self.owners(network)
        return shared(Where("podcidr", name, self.filled(self.node_labels(name), texts)) for name in nodes)

    def agreed(self, network: Any) -> Where:
        """Return what everything known in a block agrees on.

        The trusted pod CIDRs around it and within it, with what the subnets there say; known addresses in it that are
        in no pod CIDR; if there is neither, the configured subnets, likewise.
        """
        speaking = longest_first(self.trusted, network)[:1]
        speaking += [block for block in self.trusted if inside(block, network) and block != network]
        told = [subnet for subnet in self.lacking if inside(subnet, network) and longest_first(self.trusted, subnet)]
        parts = [self.part(block, network) for block in speaking] + [self.part(subnet, subnet) for subnet in told]
        for text in self.held():
            address = ip_address(text)
            if address in network and not longest_first(self.trusted, address):
                where = self.locate(text)
                parts += [where] if where.located_by not in ("subnet", "unknown") else []
        if not parts:
            speaking = longest_first(self.subnets, network)[:1]
            speaking += [subnet for subnet in self.subnets if inside(subnet, network) and subnet != network]
            parts = [Where("subnet", None, self.subnets[part]) for part in speaking]
        return shared(parts)

    def part(self, block: Any, network: Any) -> Where:
        """Return what the pod CIDR around a block says of the smaller of the two, with the subnet around that."""
        part = block if inside(block, network) else network
        around = longest_first(self.lacking, part)[:1]
        owners = self.owners(longest_first(self.trusted, block)[0])
        told = self.lacking[around[0]] if around else {}
        return shared(Where("podcidr", name, {**told, **self.node_labels(name)}) for name in owners)

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
            name for name, node in self.nodes.items() if network in map(ip_network, node["spec"].get("podCIDRs", ()))
        ]

    def proofs(self, text: str) -> set[str]:
        """Return the known nodes that the pod and the ready kept endpoints at an address are on."""
        pods, locators = self.pods_at(text)[:1], self.locators_at(text)[:1]
        names = {pod["spec"]["nodeName"] for pod in pods}
        if not pods and not self.nodes_with(text):
            names |= {locator["nodeName"] for locator in locators}
        for namespace, row in self.kept_at(text):
            where = self.on_node(namespace, row)
            if where is not None and row.get("conditions", {}).get("ready") is not False:
                names.add(str(where.node))
        return names & self.nodes.keys()

    def trusted_blocks(self) -> list[Any]:
        """Return the nodes' pod CIDRs, except those in which something is on another node; none if most are so.

        Of several around an address, only the smallest counts; the next one if that is not trusted.
        """
        texts = dict.fromkeys(text for node in self.nodes.values() for text in node["spec"].get("podCIDRs", ()))
        blocks = list(map(ip_network, texts))
        proofs = {ip_address(text): names for text in self.held() if (names := self.proofs(text))}
        trusted, owners = list(blocks), {block: set(self.owners(block)) for block in blocks}
        while True:
            wrong, right = set(), set()
            for address, names in proofs.items():
                for network in longest_first(trusted, address)[:1]:
                    (right if names <= owners[network] else wrong).add(network)
            if not wrong:
                return trusted if len(blocks) - len(trusted) <= len(right) else []
            trusted = [network for network in trusted if network not in wrong]


def runs(pod: Item) -> bool:
    return pod["status"]["phase"] not in ("Succeeded", "Failed")


def addresses_of(item: Item) -> list[str]:
    """Return the addresses of a Pod or a PodLocator, in their order."""
    rows = item["status"]["podIPs"] if item["kind"] == "Pod" else item["ips"]
    return [row["ip"] for row in rows]


def says_where(where: Where) -> bool:
    """Whether a place says more than in which of several clusters it is."""
    return bool(where.labels.keys() - {CLUSTER})


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


def identity(row: Item, where: str) -> tuple[object, ...]:
    """Return what rows of one Service's slices in a namespace have in common if they are one pod's endpoint."""
    target = row.get("targetRef", {})
    ready = row.get("conditions", {}).get("ready") is not False
    return target.get("kind"), target.get("name"), target.get("namespace", where), row.get("nodeName"), ready
