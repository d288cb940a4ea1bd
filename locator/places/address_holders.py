"""Who holds which address, and who counts where several do.

A pod on a network of its own or its PodLocator comes before an endpoint, that before a node's own
address, that before a pod on its node's network. The order in which things were learned decides nothing.
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
    """The slice that an endpoint stands in, and in words whose endpoint it is."""

    namespace: str
    slice: str
    words: str


class EndpointHolder(Struct, frozen=True, eq=False, gc=False):
    """An endpoint, which holds its addresses."""

    origin: Origin
    endpoint: Endpoint

    @property
    def rank(self) -> tuple[object, ...]:
        """What decides between endpoints of one address: the last counts."""
        endpoint = self.endpoint
        return self.origin.slice, endpoint.node or "", endpoint.pod or "", sorted(endpoint.slice_labels.items())

    @property
    def pod(self) -> str | None:
        """The key of the pod that it is, None if it is none."""
        return None if self.endpoint.pod is None else f"{self.origin.namespace}/{self.endpoint.pod}"


class Changed(NamedTuple):
    """Addresses to look at again, in order: what is near in memory stays so.

    ``endpoints`` are those of which other endpoints stand in slices now, ``others`` the rest.
    """

    others: dict[bytes, None]
    endpoints: dict[bytes, None]


class AddressHolders:
    """All who hold addresses in one cluster, as they change.

    A PodLocator whose pod is known tells nothing more than the pod does.
    """

    def __init__(self, locations: Locations) -> None:
        self._locations = locations
        self._pods: dict[str, Pod] = {}  # by key, whether they hold an address or not
        self._locators: dict[str, PodLocator] = {}
        self._pod_keys: Index[str, Pod] = Index(address=_pod_addresses, node=_pod_nodes)
        self._locator_keys: Index[str, PodLocator] = Index(address=_locator_addresses, node=_locator_nodes)
        self._node_names: Index[str, Node] = Index(address=_node_addresses)
        self._endpoints: Index[EndpointHolder, EndpointHolder] = Index(address=_endpoint_addresses)
        self._changed = Changed({}, {})

    def take_changed(self) -> Changed:
        """Hand over the addresses to look at again, and forget them."""
        changed, self._changed = self._changed, Changed({}, {})
        return changed

    def take_pod(self, key: str, before: Pod | None, after: Pod | None) -> bool:
        """Note that a pod is *after* now, None if it is gone; return whether an address is held by others now."""
        self._pod_keys.move(key, before, after)
        if after is None:
            self._pods.pop(key, None)
        else:
            self._pods[key] = after
        held = False
        for pod in (before, after):
            if pod is not None and pod.addresses and not pod.finished:
                self.look_at(pod.addresses)
                held = True
        if self._locators and (before is None or after is None):
            locator = self._locators.get(key)
            if locator is not None:  # it begins, or ends, to be silent
                self.look_at(locator.addresses)
                held = True
        return held

    def take_locator(self, key: str, before: PodLocator | None, after: PodLocator | None) -> bool:
        """Note that a PodLocator is *after* now, None if it is gone; return whether an address is elsewhere now."""
        self._locator_keys.move(key, before, after)
        if after is None:
            self._locators.pop(key, None)
        else:
            self._locators[key] = after
        held = False
        for locator in (before, after, self._pods.get(key)):
            if locator is not None:
                self.look_at(locator.addresses)
                held |= bool(locator.addresses) or isinstance(locator, Pod)
        return held

    def take_node(self, name: str, before: Node | None, after: Node | None) -> None:
        """Note that a node is *after* now, None if it is gone."""
        self._node_names.move(name, before, after)
        for node in (before, after):
            if node is not None:
                self.look_at(node.addresses)

    def take_slice(self, key: str, before: EndpointSlice | None, after: EndpointSlice | None) -> None:
        """Note that a slice is *after* now, None if it is gone; endpoints that stayed are the same objects."""
        stayed: set[int] = set()
        if before is not None and after is not None and before.service == after.service:
            stayed = set(map(id, before.endpoints)) & set(map(id, after.endpoints))
        for endpoint in before.endpoints if before is not None else ():
            if id(endpoint) not in stayed:
                self._leave(endpoint, key)
        if after is None:
            return
        origin = _origin(after)
        for endpoint in after.endpoints:
            if id(endpoint) not in stayed:
                holder = EndpointHolder(origin, endpoint)
                self._endpoints.move(holder, None, holder)
                self._changed.endpoints.update(dict.fromkeys(endpoint.addresses))

    def _leave(self, endpoint: Endpoint, key: str) -> None:
        for holder in [*self._endpoints.keys("address", endpoint.addresses[0])] if endpoint.addresses else ():
            if holder.endpoint is endpoint and holder.origin.slice == key:
                self._endpoints.move(holder, holder, None)
        self._changed.endpoints.update(dict.fromkeys(endpoint.addresses))

    def moved(self, node: str) -> None:
        """Note that the location of a node is another one, or known no more; of endpoints on it nothing is noted."""
        for key in self._pod_keys.keys("node", node):
            self.look_at(self._pods[key].addresses)
        for key in self._locator_keys.keys("node", node):
            self.look_at(self._locators[key].addresses)

    def look_at(self, addresses: Iterable[bytes]) -> None:
        """Note that these addresses are to be looked at again."""
        others = self._changed.others
        for address in addresses:
            others[address] = None

    # What follows

    def place(self, address: bytes) -> Place | None:
        """Return where an address is by who counts there, None if nobody holds it."""
        keys = self._pod_keys.keys("address", address)
        if pods := [pod for key in keys if not (pod := self._pods[key]).host_network]:
            pod = pods[0] if len(pods) == 1 else max(pods, key=_age)
            location, by_locator = self._locations.of_pod(pod)
            return Place(location, POD_LOCATOR if by_locator else POD, f"pod {pod.namespace}/{pod.name}")
        if self._locators and (telling := self._telling(address)):
            locator = self._locators[max(telling)]
            return Place(self._locations.of_locator(locator), POD_LOCATOR, f"pod {locator.key}")
        if endpoints := self._endpoints.keys("address", address):
            ranked = (
                sorted(endpoints, key=lambda holder: holder.rank, reverse=True) if len(endpoints) > 1 else endpoints
            )
            for holder in ranked:
                location = self._locations.of_endpoint(holder.origin.namespace, holder.endpoint)
                if location.labels:
                    return Place(location, ENDPOINT, holder.origin.words)
        if names := self._node_names.keys("address", address):
            name = max(names)
            found = self._locations.of_node(name)
            assert found is not None
            return Place(found, NODE, f"node {name}")
        if keys:  # pods on their node's network; the node may not list the address
            pod = max((self._pods[key] for key in keys), key=_age)
            return Place(self._locations.of_pod(pod)[0], NODE, f"node {pod.node}")
        return None

    def held_by_another(self, address: bytes, own: Collection[str | None]) -> bool:
        """Whether a running pod that is none of *own* (their keys) holds an address."""
        keys = self._pod_keys.keys("address", address)
        if alone := [key for key in keys if not self._pods[key].host_network]:
            return any(key not in own for key in alone)
        if telling := self._telling(address):
            return any(key not in own for key in telling)
        return any(
            holder.endpoint.ready and holder.pod is not None and holder.pod not in own
            for holder in self._endpoints.keys("address", address)
        )

    def endpoints_at(self, address: bytes) -> tuple[EndpointHolder, ...] | None:
        """Return the endpoints that hold an address, in no order; None if there are none."""
        return tuple(self._endpoints.keys("address", address)) or None

    def _telling(self, address: bytes) -> list[str]:
        """Return the keys of the PodLocators that tell of an address what no pod does."""
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
    """The newest counts; RFC 3339 in UTC sorts as text."""
    return pod.created, pod.key


def _origin(each: EndpointSlice) -> Origin:
    words = f"endpoint of {each.service_key}" if each.service_key else f"endpoint in slice {each.key}"
    return Origin(each.namespace, each.key, words)
