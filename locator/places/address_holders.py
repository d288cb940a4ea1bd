"""Decides which object holds an address, if several have it.

The first of these decides: a pod with its own network, the PodLocator of such a pod, an endpoint, a
Node that lists the address, a pod on its node's network. The order of updates makes no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec import Struct

from locator.index import Index
from locator.model import Endpoint, EndpointSlice, Node, Pod, PodLocator
from locator.places.address_book import ENDPOINT, NODE, POD, POD_LOCATOR, Place
from locator.places.locations import Locations


class Origin(Struct, frozen=True, gc=False):
    """The slice of an endpoint, and a description of the endpoint for people (``endpoint of shop/web``)."""

    namespace: str
    slice: str
    text: str


class EndpointHolder(Struct, frozen=True, eq=False, gc=False):
    """An endpoint of a slice, as a holder of its addresses."""

    origin: Origin
    endpoint: Endpoint

    @property
    def rank(self) -> tuple[object, ...]:
        """The order of the endpoints of one address; the last one decides."""
        endpoint = self.endpoint
        return self.origin.slice, endpoint.node or "", endpoint.pod or "", sorted(endpoint.slice_labels.items())

    @property
    def pod(self) -> str | None:
        """The key of the pod behind the endpoint, None if there is no pod."""
        return None if self.endpoint.pod is None else f"{self.origin.namespace}/{self.endpoint.pod}"


class ChangedAddresses(NamedTuple):
    """Addresses whose places may have changed, in the order of the changes: those close in memory stay together.

    ``endpoints`` have other endpoints than before, ``others`` changed for another reason.
    """

    others: dict[bytes, None]
    endpoints: dict[bytes, None]


class AddressHolders:
    """The holders of all addresses of one cluster, kept up to date object by object.

    A PodLocator holds addresses only while its pod is not known.
    """

    def __init__(self, locations: Locations) -> None:
        self._locations = locations
        self._pods: dict[str, Pod] = {}  # by key, those without an address included
        self._locators: dict[str, PodLocator] = {}
        self._pod_keys: Index[str, Pod] = Index(address=_pod_addresses, node=_pod_nodes)
        self._locator_keys: Index[str, PodLocator] = Index(address=_locator_addresses, node=_locator_nodes)
        self._node_names: Index[str, Node] = Index(address=_node_addresses)
        self._endpoints: Index[EndpointHolder, EndpointHolder] = Index(address=_endpoint_addresses)
        self._changed = ChangedAddresses({}, {})

    def pop_changed(self) -> ChangedAddresses:
        """Return the addresses that changed since the last call."""
        changed, self._changed = self._changed, ChangedAddresses({}, {})
        return changed

    def update_pod(self, key: str, before: Pod | None, after: Pod | None) -> bool:
        """Record a change of a pod (None: it does not exist); return whether a place may have changed."""
        self._pod_keys.move(key, before, after)
        if after is None:
            self._pods.pop(key, None)
        else:
            self._pods[key] = after
        changed = False
        for pod in (before, after):
            if pod is not None and pod.addresses and not pod.finished:
                self.mark_addresses(pod.addresses)
                changed = True
        if self._locators and (before is None or after is None):
            locator = self._locators.get(key)
            if locator is not None:  # it counts only without its pod
                self.mark_addresses(locator.addresses)
                changed = True
        return changed

    def update_locator(self, key: str, before: PodLocator | None, after: PodLocator | None) -> bool:
        """Record a change of a PodLocator (None: it does not exist); return whether a place may have changed."""
        self._locator_keys.move(key, before, after)
        if after is None:
            self._locators.pop(key, None)
        else:
            self._locators[key] = after
        changed = False
        for locator in (before, after, self._pods.get(key)):
            if locator is not None:
                self.mark_addresses(locator.addresses)
                changed |= bool(locator.addresses) or isinstance(locator, Pod)
        return changed

    def update_node(self, name: str, before: Node | None, after: Node | None) -> None:
        """Record a change of a Node (None: it does not exist)."""
        self._node_names.move(name, before, after)
        for node in (before, after):
            if node is not None:
                self.mark_addresses(node.addresses)

    def update_slice(self, key: str, before: EndpointSlice | None, after: EndpointSlice | None) -> None:
        """Record a change of a slice (None: it does not exist); unchanged endpoints must be the same objects."""
        unchanged: set[int] = set()
        if before is not None and after is not None and before.service == after.service:
            unchanged = set(map(id, before.endpoints)) & set(map(id, after.endpoints))
        for endpoint in before.endpoints if before is not None else ():
            if id(endpoint) not in unchanged:
                self._remove_endpoint(endpoint, key)
        if after is None:
            return
        origin = _origin(after)
        for endpoint in after.endpoints:
            if id(endpoint) not in unchanged:
                holder = EndpointHolder(origin, endpoint)
                self._endpoints.move(holder, None, holder)
                self._changed.endpoints.update(dict.fromkeys(endpoint.addresses))

    def _remove_endpoint(self, endpoint: Endpoint, slice_key: str) -> None:
        for holder in [*self._endpoints.keys("address", endpoint.addresses[0])] if endpoint.addresses else ():
            if holder.endpoint is endpoint and holder.origin.slice == slice_key:
                self._endpoints.move(holder, holder, None)
        self._changed.endpoints.update(dict.fromkeys(endpoint.addresses))

    def mark_node(self, node: str) -> None:
        """Note that the pods on a node may have other places; the caller marks those of the endpoints on it."""
        for key in self._pod_keys.keys("node", node):
            self.mark_addresses(self._pods[key].addresses)
        for key in self._locator_keys.keys("node", node):
            self.mark_addresses(self._locators[key].addresses)

    def mark_addresses(self, addresses: Iterable[bytes]) -> None:
        """Note that these addresses may have other places."""
        others = self._changed.others
        for address in addresses:
            others[address] = None

    def place(self, address: bytes) -> Place | None:
        """Return the place of an address by its holder, None if no object holds it."""
        keys = self._pod_keys.keys("address", address)
        if pods := [pod for key in keys if not (pod := self._pods[key]).host_network]:
            pod = pods[0] if len(pods) == 1 else max(pods, key=_age)
            location, by_locator = self._locations.of_pod(pod)
            return Place(location, POD_LOCATOR if by_locator else POD, f"pod {pod.namespace}/{pod.name}")
        if self._locators and (locators := self._locators_without_pod(address)):
            locator = self._locators[max(locators)]
            return Place(self._locations.of_locator(locator), POD_LOCATOR, f"pod {locator.key}")
        if endpoints := self._endpoints.keys("address", address):
            ranked = (
                sorted(endpoints, key=lambda holder: holder.rank, reverse=True) if len(endpoints) > 1 else endpoints
            )
            for holder in ranked:
                location = self._locations.of_endpoint(holder.origin.namespace, holder.endpoint)
                if location.labels:
                    return Place(location, ENDPOINT, holder.origin.text)
        if names := self._node_names.keys("address", address):
            name = max(names)
            node_location = self._locations.of_node(name)
            assert node_location is not None
            return Place(node_location, NODE, f"node {name}")
        if keys:  # pods on their node's network, at an address that the Node does not list
            pod = max((self._pods[key] for key in keys), key=_age)
            return Place(self._locations.of_pod(pod)[0], NODE, f"node {pod.node}")
        return None

    def held_by_another(self, address: bytes, own: Collection[str | None]) -> bool:
        """Whether a running pod whose key is not in *own* holds an address."""
        keys = self._pod_keys.keys("address", address)
        if pods := [key for key in keys if not self._pods[key].host_network]:
            return any(key not in own for key in pods)
        if locators := self._locators_without_pod(address):
            return any(key not in own for key in locators)
        return any(
            holder.endpoint.ready and holder.pod is not None and holder.pod not in own
            for holder in self._endpoints.keys("address", address)
        )

    def endpoints_at(self, address: bytes) -> tuple[EndpointHolder, ...] | None:
        """Return the endpoints that have an address, in no order; None if there are none."""
        return tuple(self._endpoints.keys("address", address)) or None

    def _locators_without_pod(self, address: bytes) -> list[str]:
        """Return the keys of the PodLocators that have an address and whose pods are not known."""
        return [key for key in self._locator_keys.keys("address", address) if key not in self._pods]


def _pod_addresses(pod: Pod) -> tuple[bytes, ...]:
    return () if pod.finished else pod.addresses


def _pod_nodes(pod: Pod) -> tuple[str, ...]:
    return () if pod.node is None or pod.finished or not pod.addresses else (pod.node,)


def _locator_addresses(locator: PodLocator) -> tuple[bytes, ...]:
    return locator.addresses


def _locator_nodes(locator: PodLocator) -> tuple[str, ...]:
    return () if locator.node is None or not locator.addresses else (locator.node,)


def _node_addresses(node: Node) -> tuple[bytes, ...]:
    return node.addresses


def _endpoint_addresses(holder: EndpointHolder) -> tuple[bytes, ...]:
    return holder.endpoint.addresses


def _age(pod: Pod) -> tuple[str, str]:
    """Return a key that sorts pods by age, the newest last (RFC 3339 times in UTC sort as text)."""
    return pod.created, pod.key


def _origin(endpoint_slice: EndpointSlice) -> Origin:
    service, key = endpoint_slice.service_key, endpoint_slice.key
    return Origin(endpoint_slice.namespace, key, f"endpoint of {service}" if service else f"endpoint in slice {key}")
