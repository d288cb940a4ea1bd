"""Decides which object holds an address, if several have it.

The first of these decides: a pod with its own network, the PodLocator of such a pod, an endpoint, a
Node that lists the address, a pod on its node's network. The order of updates makes no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple
from weakref import WeakValueDictionary

from locator.endpoints import (
    EndpointRows,
    all_addresses,
    clusters_of,
    differing_addresses,
    nodes_with,
    with_address,
)
from locator.index import Index
from locator.model import Endpoint, EndpointSlice, Location, Node, Pod, PodLocator
from locator.places.address_book import ENDPOINT, NODE, POD, POD_LOCATOR, Place
from locator.places.address_keys import AddressKeys, Move
from locator.places.locations import Locations, has_labels


class EndpointHolder(NamedTuple):
    """An endpoint of a slice, as a holder of its addresses."""

    slice: EndpointSlice
    endpoint: Endpoint

    @property
    def rank(self) -> tuple[object, ...]:
        """The order of the endpoints of one address; the last one decides."""
        endpoint = self.endpoint
        return self.slice.key, endpoint.node or "", endpoint.pod or "", sorted(endpoint.slice_labels.items())

    @property
    def pod(self) -> str | None:
        """The key of the pod behind the endpoint, None if there is no pod."""
        return None if self.endpoint.pod is None else f"{self.slice.namespace}/{self.endpoint.pod}"


Holder = Pod | PodLocator | EndpointSlice | str | None  # the name of a Node, None if it is not known


class ChangedAddresses(NamedTuple):
    """Addresses whose places may have changed, in the order of the changes: those close in memory stay together.

    ``endpoints`` have other endpoints than before, ``others`` changed for another reason. Of an address with one
    endpoint, ``endpoints`` may have the node; None says nothing. ``all_endpoints``: no slice was known before.
    """

    others: dict[bytes, None]
    endpoints: dict[bytes, str | None]
    all_endpoints: bool = False


class AddressHolders:
    """The holders of all addresses of one cluster, kept up to date object by object.

    *pods* and *slices* are the known ones by key, always up to date; without *pods* none locates an address.
    A PodLocator holds addresses only while its pod is not known. Endpoints that are in other clusters hold none.
    """

    def __init__(self, locations: Locations, pods: Mapping[str, Pod], slices: Mapping[str, EndpointSlice]) -> None:
        self._locations = locations
        self._pods, self._slices = pods, slices
        self._locators: dict[str, PodLocator] = {}
        self._pod_keys: Index[str, Pod] = Index(address=_pod_addresses, node=_pod_nodes)
        self._locator_keys: Index[str, PodLocator] = Index(address=_locator_addresses, node=_locator_nodes)
        self._node_names: Index[str, Node] = Index(address=_node_addresses)
        self.endpoint_addresses = AddressKeys()
        """The addresses of endpoints, with the keys of their slices, as of the last ``pop_changed``."""
        self._changed_slices: dict[str, EndpointSlice | None] = {}  # by key, as they were at that time
        self._changed = ChangedAddresses({}, {})
        # One place for all addresses on a node: a large cluster has far more addresses than nodes.
        self._places: WeakValueDictionary[tuple[Location, str], Place] = WeakValueDictionary()

    def pack(self) -> None:
        """Give memory back, see ``Packing.pack``."""
        for index in (self._pod_keys, self._locator_keys, self._node_names):
            index.pack()

    def pop_changed(self) -> ChangedAddresses:
        """Return the addresses that changed since the last call."""
        changed, self._changed = self._changed, ChangedAddresses({}, {})
        slices, self._changed_slices = self._changed_slices, {}
        first = not self.endpoint_addresses
        moves = self._moves(slices.items(), changed.endpoints, first=first)
        self.endpoint_addresses = self.endpoint_addresses.with_changes(moves)
        return changed._replace(all_endpoints=first)

    def _moves(
        self,
        changed_slices: Iterable[tuple[str, EndpointSlice | None]],
        changed: dict[bytes, str | None],
        *,
        first: bool,
    ) -> Iterator[Move]:
        """Yield which addresses changed slices have left and joined; add those with other endpoints to *changed*.

        *first* says that no slice was known before: then the node of an address can be told without a look at others.
        """
        for key, before in changed_slices:
            before, after = self._own(before), self._own(self._slices.get(key))
            had, has = (() if known is None else all_addresses(known.endpoints) for known in (before, after))
            differing: Iterable[bytes] = chain(had, has)
            if before is not None and after is not None:
                if before.service == after.service:  # otherwise all of them have another description
                    differing = differing_addresses(before.endpoints, after.endpoints)
                had, has = set(had).difference(has), set(has).difference(had)
            size = len(changed)
            rows = after.endpoints if first and before is None and after is not None else ()
            if isinstance(rows, EndpointRows):
                changed.update(zip(has, rows.nodes, strict=True))
            if not rows or len(changed) < size + len(rows):  # or another endpoint has one of the addresses
                changed.update(dict.fromkeys(differing))
            yield key, had, has

    def _own(self, known: EndpointSlice | None) -> EndpointSlice | None:
        """Return a slice, None if its endpoints are in another cluster: there they have their addresses."""
        own = None, self._locations.cluster
        return known if known is not None and all(name in own for name in clusters_of(known.endpoints)) else None

    def update_pod(self, key: str, before: Pod | None, after: Pod | None) -> bool:
        """Record a change of a pod (None: it does not exist); return whether a place may have changed."""
        self._pod_keys.move(key, before, after)
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

    def add_pods(self, pods: Mapping[str, Pod]) -> bool:
        """Record many pods that are new, by key; return whether a place may have changed. No PodLocator is known."""
        running = [(key, pod) for key, pod in pods.items() if pod.addresses and not pod.finished]
        self._pod_keys.join("address", ((address, key) for key, pod in running for address in pod.addresses))
        self._pod_keys.join("node", ((pod.node, key) for key, pod in running if pod.node is not None))
        self.mark_addresses([address for _, pod in running for address in pod.addresses])
        return bool(running)

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

    def update_slice(self, key: str, before: EndpointSlice | None) -> None:
        """Record a change of a slice, which was *before* (None: it did not exist)."""
        self._changed_slices.setdefault(key, before)

    def mark_node(self, node: str) -> None:
        """Note that the pods on a node may have other places; the caller marks those of the endpoints on it."""
        for key in self._pod_keys.keys("node", node):
            self.mark_addresses(self._pods[key].addresses)
        for key in self._locator_keys.keys("node", node):
            self.mark_addresses(self._locators[key].addresses)

    def mark_addresses(self, addresses: Iterable[bytes]) -> None:
        """Note that these addresses may have other places."""
        self._changed.others.update(dict.fromkeys(addresses))

    def places(self, addresses: Iterable[bytes]) -> Iterator[tuple[bytes, Place | None]]:
        """Yield some addresses, each with its place by its holder, None if no object holds it."""
        key_of, pods, location_of = self._pod_keys.only, self._pods, self._locations.of_node
        on_node: dict[str | None, Place] = {}
        for address in addresses:
            key = key_of("address", address)
            pod = None if key is None else pods[key]
            if pod is None or pod.host_network:
                yield address, self._place(self._held(address))
            elif (place := on_node.get(pod.node)) is not None:  # as nearly always: one pod, on a node that is known
                yield address, place
            elif (location := location_of(pod.node)) is not None:
                place = on_node[pod.node] = self._shared_place(location, POD)
                yield address, place
            else:
                yield address, self._place(self._held(address))

    def _place(self, held: tuple[Location, str, Holder] | None) -> Place | None:
        return None if held is None else self._shared_place(held[0], held[1])

    def _shared_place(self, location: Location, located_by: str) -> Place:
        place = self._places.get((location, located_by))
        if place is None:
            place = self._places[location, located_by] = Place(location, located_by)
        return place

    def holder(self, address: bytes) -> str:
        """Describe the object that holds an address (``pod shop/web-0``), empty if none does.

        Harmless while another thread applies a change; an object that is leaving may then be missing.
        """
        try:
            held = self._held(address)
        except KeyError:  # an index still has the key
            return ""
        return "" if held is None else _text(held[2])

    def _held(self, address: bytes) -> tuple[Location, str, Holder] | None:
        """Return the location of an address, the kind of object that gives it, and the holder; None without any."""
        keys = self._pod_keys.keys("address", address)
        if pods := [pod for key in keys if not (pod := self._pods[key]).host_network]:
            pod = pods[0] if len(pods) == 1 else max(pods, key=_age)
            location, by_locator = self._locations.of_pod(pod)
            return location, POD_LOCATOR if by_locator else POD, pod
        if self._locators and (locators := self._locators_without_pod(address)):
            locator = self._locators[max(locators)]
            return self._locations.of_locator(locator), POD_LOCATOR, locator
        if (only := self._only_slice(address)) is not None and len(nodes := nodes_with(only.endpoints, address)) == 1:
            node_location = self._locations.of_node(nodes[0])  # so it is nearly always
            if node_location is not None:
                return node_location, ENDPOINT, only
        if self.endpoint_addresses.of(address):
            for holder in sorted(self.endpoints_at(address), key=lambda holder: holder.rank, reverse=True):
                location = self._locations.of_endpoint(holder.slice.namespace, holder.endpoint)
                if has_labels(location):
                    return location, ENDPOINT, holder.slice
        if names := self._node_names.keys("address", address):
            name = max(names)
            if (node_location := self._locations.of_node(name)) is not None:
                return node_location, NODE, name
        if keys:  # pods on their node's network, at an address that the Node does not list
            pod = max((self._pods[key] for key in keys), key=_age)
            return self._locations.of_pod(pod)[0], NODE, pod.node
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
            for holder in self.endpoints_at(address)
        )

    def nodes_at(self, address: bytes) -> list[str | None]:
        """Return the node of each of the ``endpoints_at`` an address."""
        if (only := self._only_slice(address)) is not None:
            return nodes_with(only.endpoints, address)
        return [node for known in self._slices_at(address) for node in nodes_with(known.endpoints, address)]

    def endpoints_at(self, address: bytes) -> list[EndpointHolder]:
        """Return the endpoints that have an address, as of the last ``pop_changed``, in no order."""
        return [
            EndpointHolder(known, endpoint)
            for known in self._slices_at(address)
            for endpoint in with_address(known.endpoints, address)
        ]

    def _only_slice(self, address: bytes) -> EndpointSlice | None:
        """Return the one slice with an endpoint at an address, None if there is none, or more than one."""
        key = self.endpoint_addresses.only(address)
        return None if key is None else self._slices.get(key)

    def _slices_at(self, address: bytes) -> list[EndpointSlice]:
        """Return the slices with an endpoint at an address, without those that are gone since the last look."""
        keys = self.endpoint_addresses.of(address)
        return [known for key in keys if (known := self._slices.get(key)) is not None]

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


def _age(pod: Pod) -> tuple[str, str]:
    """Return a key that sorts pods by age, the newest last (RFC 3339 times in UTC sort as text)."""
    return pod.created, pod.key


def _text(holder: Holder) -> str:
    if isinstance(holder, Pod | PodLocator):
        return f"pod {holder.key}"
    return endpoint_text(holder) if isinstance(holder, EndpointSlice) else f"node {holder}"


def endpoint_text(endpoint_slice: EndpointSlice) -> str:
    """Return what people call an endpoint of a slice."""
    service = endpoint_slice.service_key
    return f"endpoint of {service}" if service else f"endpoint in slice {endpoint_slice.key}"
