# SPDX-License-Identifier: Apache-2.0

"""Locates nodes, pods and endpoints: by the Node's labels, else the PodLocator's, else the object's own fields.

What a node's labels lack, the configured subnet around the address says: virtual nodes have no zone of their own.
Equal locations are the same object, because readers cache by the identity of a location.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from weakref import WeakValueDictionary

from locator.endpoints import SliceEndpoints
from locator.ip import Network
from locator.model import (
    CLUSTER,
    OWN_CLUSTER,
    Endpoint,
    Location,
    Node,
    Pod,
    PodLocator,
    canonical_labels,
    in_cluster,
    object_key,
)
from locator.places.book import POD, POD_LOCATOR
from locator.places.prefix_table import PrefixTable
from locator.topology.cells import slot


class LabelKeys:
    """The label keys that nodes carry, as some sets of labels say, kept up to date set by set."""

    def __init__(self) -> None:
        self._carriers: Counter[str] = Counter()  # the number of sets, by key
        self._carried: frozenset[str] | None = frozenset()  # None: not computed since a key came or went

    @property
    def carried(self) -> frozenset[str]:
        """The keys that at least one set has; the same object until they change."""
        if self._carried is None:
            self._carried = frozenset(self._carriers.keys() - {CLUSTER})  # topodns adds that one itself
        return self._carried

    def move(self, before: Mapping[str, str] | None, after: Mapping[str, str] | None) -> None:
        """Replace one set of labels; None: there is none."""
        had, has = (frozenset() if labels is None else labels.keys() for labels in (before, after))
        if had == has:
            return
        known = len(self._carriers)
        self._carriers.update(has)
        if len(self._carriers) != known:
            self._carried = None
        for key in had:
            self._carriers[key] -= 1
            if not self._carriers[key]:
                del self._carriers[key]
                self._carried = None


class Locations:
    """The locations of the known Nodes of a *cluster*, and of the objects on nodes that are not known.

    The labels of Nodes and PodLocators have the name of the cluster already (``in_cluster``). *pods* are the known Pods
    by key, always up to date, if they locate anything. *subnets* has the labels of the configured networks. Unless it
    *reads_nodes*, a PodLocator's word for its node counts as that node. Locations *have_slots* in the own cluster.
    """

    def __init__(
        self,
        cluster: str = OWN_CLUSTER,
        pods: Mapping[str, Pod] | None = None,
        subnets: Mapping[Network, Mapping[str, str]] | None = None,
        *,
        reads_nodes: bool = True,
        have_slots: bool = True,
    ) -> None:
        self.cluster = cluster
        self.pods: Mapping[str, Pod] = {} if pods is None else pods
        self.reads_nodes, self._have_slots = reads_nodes, have_slots
        self.subnets = PrefixTable(
            {network: canonical_labels(dict(labels)) for network, labels in (subnets or {}).items()}
        )
        self._subnet_keys = frozenset(key for _, labels in self.subnets.items() for key in labels)
        self.keys = LabelKeys()
        """The label keys of the known Nodes and PodLocators."""
        self._nodes: dict[str, Location] = {}
        self._locators: dict[str, PodLocator] = {}
        # Locations that no Node object alone tells, for as long as anybody has them.
        self._shared: WeakValueDictionary[tuple[str | None, frozenset[tuple[str, str]], int | None], Location] = (
            WeakValueDictionary()
        )
        self._saved: Callable[[], dict[object, list[Location]]] = dict  # returns those of a saved snapshot, likewise

    def start_from(self, saved: Callable[[], Iterable[Location]]) -> None:
        """Take over the locations of a saved snapshot, which *saved* returns: equal ones are to be the same objects."""
        self._saved = cache(partial(_by_key, saved))

    def forget_saved(self) -> None:
        """Forget the locations of the saved snapshot: everything that it had is known now."""
        self._saved = dict

    def update_node(self, name: str, node: Node | None) -> bool:
        """Record a Node, None if it is deleted; return whether the location of the node changed."""
        before = self._nodes.get(name)
        if before is not None and node is not None and before.labels == node.labels:
            return False
        after = self._made(name, node.labels, self._slot_of(name)) if node is not None else None
        self.keys.move(before.labels if before is not None else None, after.labels if after is not None else None)
        if after is None:
            return self._nodes.pop(name, None) is not None
        self._nodes[name] = after
        return True

    def update_locator(self, key: str, locator: PodLocator | None) -> None:
        """Record a PodLocator, None if it is deleted."""
        before = self._locators.get(key)
        self.keys.move(before.labels if before is not None else None, locator.labels if locator is not None else None)
        if locator is None:
            self._locators.pop(key, None)
        else:
            self._locators[key] = locator

    def node_names(self) -> Collection[str]:
        """Return the names of the known Nodes."""
        return self._nodes.keys()

    def of_node_name(self, name: str | None) -> Location:
        """Return the location of a node; one that is not known has no label but its name."""
        return self.of_node(name) or self._by_own_fields(name, {}, self.cluster)

    def of_node(self, name: str | None) -> Location | None:
        """Return the location of a node, None if no such Node is known."""
        return None if name is None else self._nodes.get(name)

    def of_pod(self, pod: Pod) -> tuple[Location, str]:
        """Return the location of a pod, and what tells it: ``POD``, or ``POD_LOCATOR`` for the PodLocator alone."""
        if (location := self.of_node(pod.node)) is not None:
            return self.with_subnet_labels(location, pod.addresses), POD
        if (location := self._by_locator(pod)) is not None:
            return self.with_subnet_labels(location, pod.addresses), POD_LOCATOR
        return self._by_own_fields(pod.node, {}, self.cluster), POD

    def _by_locator(self, pod: Pod) -> Location | None:
        locator = self._locators.get(pod.key)
        if locator is None or locator.node != pod.node or not locator.labels:
            return None
        return self.by_locator(locator)

    def of_locator(self, locator: PodLocator) -> Location:
        """Return the location of the pod that a PodLocator describes."""
        return self.with_subnet_labels(self.node_of_locator(locator), locator.addresses)

    def node_of_locator(self, locator: PodLocator) -> Location:
        """Return the location of the node of the pod that a PodLocator describes."""
        return self.of_node(locator.node) or self.by_locator(locator)

    def by_locator(self, locator: PodLocator) -> Location:
        """Return the location of the node of a PodLocator, as that tells it where no Node is known."""
        known = None if self.reads_nodes or locator.node is None else self._slot_of(locator.node)
        return self.shared(locator.node, locator.labels, known)

    def of_endpoint(self, namespace: str, endpoint: Endpoint) -> Location:
        """Return the location of an endpoint of a slice in *namespace*, as objects and the slice itself tell it.

        If nothing says where it is, or only that it is in another cluster, that is all its labels say (``has_labels``).
        """
        if endpoint.cluster not in (None, self.cluster):
            return self._by_own_fields(endpoint.node, endpoint.slice_labels, endpoint.cluster or "")
        node = self.node_of_endpoint(namespace, endpoint)
        if node is not None:
            return self._with_subnet_labels_for(endpoint.pod_key(namespace), node, endpoint.addresses)
        return self._by_own_fields(endpoint.node, endpoint.slice_labels, self.cluster)

    def node_of_endpoint(self, namespace: str, endpoint: Endpoint) -> Location | None:
        """Return the location of the node that an endpoint is on, None if no object of this cluster tells.

        ``nodeName`` tells it, else what ``targetRef`` names: a Pod, or its PodLocator, or a Node.
        """
        if endpoint.cluster not in (None, self.cluster):
            return None
        if endpoint.node is not None and (location := self._nodes.get(endpoint.node)) is not None:
            return location
        if endpoint.target_node is not None:
            return self._nodes.get(endpoint.target_node)
        if endpoint.pod is None or not (self.pods or self._locators):
            return None
        key = object_key(endpoint.pod_namespace or namespace, endpoint.pod)
        pod = self.pods.get(key)
        if pod is not None and (location := self.of_node(pod.node) or self._by_locator(pod)) is not None:
            return location
        locator = self._locators.get(key)
        if locator is not None and (self.of_node(locator.node) is not None or locator.labels):
            return self.node_of_locator(locator)
        return None

    def of_endpoints_on_nodes(self, namespace: str, endpoints: SliceEndpoints) -> list[Location] | None:
        """Return what ``of_endpoint`` returns for each, None if one of them is on no known Node.

        It is faster, and nearly all endpoints are so.
        """
        if any(cluster not in (None, self.cluster) for cluster in endpoints.clusters):
            return None
        location_of: Callable[[str | None], Location | None] = self._nodes.get  # type: ignore[assignment]
        found = [location for location in map(location_of, endpoints.nodes) if location is not None]
        if len(found) < len(endpoints):
            return None
        if not self.subnets:
            return found
        keys, addresses = endpoints.pod_keys(namespace), endpoints.addresses_of_each()
        return list(map(self._with_subnet_labels_for, keys, found, addresses))

    def _with_subnet_labels_for(self, pod_key: str | None, location: Location, addresses: Sequence[bytes]) -> Location:
        """Do as ``with_subnet_labels`` for an endpoint, whose pod may have more addresses than its slice says."""
        if not self.subnets:
            return location
        pod = None if pod_key is None else self.pods.get(pod_key) or self._locators.get(pod_key)
        is_of_pod = pod is not None and not (isinstance(pod, Pod) and pod.finished) and addresses[0] in pod.addresses
        return self.with_subnet_labels(location, pod.addresses if pod is not None and is_of_pod else addresses)

    def may_lack_labels(self, node: str | None) -> bool:
        """Whether a subnet may say a label that a node lacks; a node that is not known may lack any."""
        location = self.of_node(node)
        return bool(self.subnets) and (location is None or not self._subnet_keys <= location.labels.keys())

    def with_subnet_labels(self, location: Location, addresses: Iterable[bytes]) -> Location:
        """Return a node's location with the labels that it lacks: those of the subnet of the first address in one."""
        if not self.subnets:
            return location
        labels = next(filter(None, map(self.subnets.find, addresses)), None)
        return location if labels is None else self._with_labels(location, labels)

    def with_subnet_labels_in(self, location: Location, network: Network) -> Location:
        """Return what ``with_subnet_labels`` returns for each address of a network in which no smaller subnet is."""
        labels = self.subnets.find(network.address, network.length)
        return location if labels is None else self._with_labels(location, labels)

    def _with_labels(self, location: Location, labels: dict[str, str]) -> Location:
        if labels.keys() <= location.labels.keys():
            return location
        return self.shared(location.node, {**labels, **location.labels})

    def in_own_cluster(self, location: Location) -> Location:
        """Return the location of something of this cluster that is at the place of an address."""
        labels = location.labels
        return location if CLUSTER in labels else self.shared(location.node, in_cluster(labels, self.cluster))

    def _by_own_fields(self, node: str | None, labels: dict[str, str], cluster: str) -> Location:
        """Return the location of an object by what it says itself; the *cluster* is empty if it is not known."""
        canonical = canonical_labels(labels, node=node)
        return self.shared(node, in_cluster(canonical, cluster) if cluster else canonical)

    def shared(self, node: str | None, labels: dict[str, str], slot: int | None = None) -> Location:
        """Return the one location object for this node name, these labels and this slot."""
        key = node, frozenset(labels.items()), slot
        location = self._shared.get(key)
        if location is None:
            location = self._shared[key] = self._made(node, labels, slot)
        return location

    def _slot_of(self, node: str) -> int | None:
        return slot(node) if self._have_slots else None

    def _made(self, node: str | None, labels: dict[str, str], slot: int | None) -> Location:
        saved = self._saved().get(_key(node, labels), ())
        same = (one for one in saved if one.labels == labels and one.known and one.slot == slot)
        return next(same, None) or Location(node, labels, slot=slot)


def has_labels(location: Location) -> bool:
    """Whether a location has any label besides the cluster."""
    return len(location.labels) > (CLUSTER in location.labels)


def _by_key(saved: Callable[[], Iterable[Location]]) -> dict[object, list[Location]]:
    by_key: dict[object, list[Location]] = {}
    for location in {id(location): location for location in saved()}.values():
        by_key.setdefault(_key(location.node, location.labels), []).append(location)
    return by_key


def _key(node: str | None, labels: dict[str, str]) -> object:
    return node if node is not None else frozenset(labels.items())
