# SPDX-License-Identifier: Apache-2.0

"""Makes the next address book from changed objects: who holds each address, and which pod CIDRs to believe.

The first of these holds an address: a pod with its own network, the PodLocator of such a pod, a Node that lists the
address, a pod on its node's network, a kept endpoint on a known Node; and where no pod CIDR is around the address, a
kept endpoint whose slice says where it is. The order of updates makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Set
from typing import NamedTuple
from weakref import WeakValueDictionary

from msgspec.structs import replace

from locator.index import Index
from locator.ip import Network
from locator.model import EndpointSlice, Finding, Location, Node, Pod, PodLocator, Service
from locator.places.book import ENDPOINT, NODE, POD, POD_LOCATOR, AddressBook, Place, same_place
from locator.places.forwarders import Forwarders
from locator.places.kept_endpoints import KeptEndpoints, endpoint_text
from locator.places.locations import Locations, has_labels
from locator.places.pod_cidrs import EVERY_ADDRESS, Evidence, PodCidrs
from locator.places.prefix_table import PrefixTable


class Held(NamedTuple):
    """Where an address is, the kind of object that says so, and what people call that object."""

    location: Location
    located_by: str
    holder: Pod | PodLocator | EndpointSlice | str | None  # the name of a Node, None if it is not known

    @property
    def text(self) -> str:
        """What people call the holder."""
        if isinstance(self.holder, Pod | PodLocator):
            return f"pod {self.holder.key}"
        return endpoint_text(self.holder) if isinstance(self.holder, EndpointSlice) else f"node {self.holder}"


class BookBuilder:
    """The holders of all addresses of one cluster, its pod CIDRs and trusted forwarders, kept up to date.

    *locations* has the known Pods. *slices* and *services* are the known objects by key, *pods_by_value* finds the
    Pods by their addresses and nodes; all are always up to date. A PodLocator holds addresses only while its pod is not
    known.
    """

    def __init__(
        self,
        locations: Locations,
        slices: Mapping[str, EndpointSlice],
        services: Mapping[str, Service],
        pods_by_value: Index[str, Pod],
        subnets: Collection[Network] = (),
    ) -> None:
        self._locations, self._pods = locations, locations.pods
        self._locators: dict[str, PodLocator] = {}
        self._pod_keys = pods_by_value
        self.locators: Index[str, PodLocator] = Index(address=_locator_addresses, node=_locator_nodes)
        """The PodLocators by their addresses and nodes."""
        self._node_names: Index[str, Node] = Index(address=_node_addresses)
        self._slices = slices
        self._endpoints = KeptEndpoints(
            *(locations.cluster, slices, services, self._pods, self._has_address), joins=bool(locations.subnets)
        )
        self._cidrs = PodCidrs(self, locations, subnets)
        self._forwarders = Forwarders()
        self._changed: dict[bytes, None] = {}  # other addresses than those of changed slices
        self._restored: AddressBook | None = None  # a saved book that has not been computed once more
        # One place for all addresses on a node: a large cluster has far more addresses than nodes.
        self._places: WeakValueDictionary[tuple[Location, str], Place] = WeakValueDictionary()

    @property
    def forwarders(self) -> Set[bytes]:
        """The addresses of the discovered forwarders that topodns trusts."""
        return self._forwarders.addresses

    @property
    def due(self) -> float | None:
        """When trust in the next leaving forwarder ends (seconds since 1970), None if none is leaving."""
        return self._forwarders.due

    def start_from(self, book: AddressBook, locations: Callable[[], Iterable[Location]]) -> AddressBook:
        """Take over the book of a saved snapshot, with all its *locations*; return the book to go on from.

        All addresses and pod CIDRs of the book are computed once more, in case that the objects are newer.
        """
        self._locations.start_from(locations)
        self._restored = book.with_holders(self)
        return self._restored

    # Taking changes in

    def update_pod(self, key: str, before: Pod | None, after: Pod | None) -> bool:
        """Record a change of a pod (None: it does not exist); return whether a place may have changed."""
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
        addresses = [address for pod in pods.values() if not pod.finished for address in pod.addresses]
        self.mark_addresses(addresses)
        return bool(addresses)

    def update_locator(self, key: str, before: PodLocator | None, after: PodLocator | None) -> bool:
        """Record a change of a PodLocator (None: it does not exist); return whether a place may have changed."""
        self._locations.update_locator(key, after)
        self.locators.move(key, before, after)
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

    def update_node(self, key: str, before: Node | None, after: Node | None) -> bool:
        """Record a change of a Node (None: it does not exist); return whether the location of the node changed.

        The caller then marks the addresses of the endpoints on it.
        """
        relocated = self._locations.update_node(key, after)
        self._node_names.move(key, before, after)
        for node in (before, after):
            if node is not None:
                self.mark_addresses(node.addresses)
        self._cidrs.update_node(before, after, self._locations.of_node(key))
        if relocated:
            self.mark_addresses(self.addresses_on(key))
        return relocated

    def update_slice(self, key: str, before: EndpointSlice | None) -> None:
        """Record a change of a slice, which was *before* (None: it did not exist)."""
        self._endpoints.update_slice(key, before)
        for known in (before, self._slices.get(key)) if self._locations.subnets else ():
            if known is not None and any(map(self._locations.may_lack_labels, known.endpoints.nodes)):
                self.mark_addresses(self._endpoints.addresses_beside(known))

    def mark_addresses(self, addresses: Iterable[bytes]) -> None:
        """Note that these addresses may have other places."""
        self._changed.update(dict.fromkeys(addresses))

    # Making books

    def book_after(
        self,
        before: AddressBook,
        now: float,
        dns_slices: Iterable[EndpointSlice] | None,
        report: Callable[[Network, tuple[Finding, ...]], None],
    ) -> AddressBook:
        """Return the address book for *now* (seconds since 1970); *before* itself if nothing differs.

        *dns_slices* are all slices of the DNS Services, None if they are unchanged. *report* gets the
        findings of each reviewed pod CIDR, and of ``EVERY_ADDRESS``, empty if it has none.
        """
        restored, self._restored = self._restored or AddressBook(), None
        self.mark_addresses(address for address, _ in restored.places.items())
        others, self._changed = self._changed, {}
        had_endpoints = self._endpoints.has_addresses
        addresses: dict[bytes, str | None] = {**dict.fromkeys(others), **self._endpoints.pop_changed()}
        settled = self.settled(addresses)
        reviewed = self._cidrs.review(addresses, settled, before)
        for network in (*reviewed, EVERY_ADDRESS):
            report(network, self._cidrs.findings.get(network, ()))
        reviewed = {**dict.fromkeys(restored.cidrs.changes_since(PrefixTable())), **reviewed}
        cidrs = {
            network: place for network, place in reviewed.items() if not same_place(place, before.cidrs.get(network))
        }
        trusted = self._forwarders.addresses
        if dns_slices is not None:
            self._forwarders.update_slices(dns_slices, now)
        self._forwarders.end_trust(now, self.held_by_another)
        trust_changed = trusted ^ self._forwarders.addresses
        if cidrs or self._cidrs.distrusted != before.distrusted_cidrs:
            book = before.with_changes({}, cidrs, distrusted_cidrs=self._cidrs.distrusted)
            trust_changed |= self._forwarders.addresses  # one without an object of its own is located by its block
            if had_endpoints:  # a CIDR that came or went decides whether what a slice says counts in it
                addresses.update(dict.fromkeys(self._stated_in(cidrs, before)))
        else:
            book = before
        addresses.update(dict.fromkeys(trust_changed))
        # Without Pods, or with subnets, to know the node of an address is not yet to know its place.
        on_nodes = settled if self._pods and not self._locations.subnets else {}
        places = self._changed_places(before, book, addresses, on_nodes)
        return book.with_changes(places, {}, distrusted_cidrs=book.distrusted_cidrs) if places else book

    def _stated_in(self, networks: Iterable[Network], before: AddressBook) -> Iterator[bytes]:
        """Yield the addresses in some networks that nothing but an endpoint may locate."""
        for network in networks:
            for address in self._endpoints.addresses_in(network):
                place = before.places.get(address)
                if place is None or place.located_by == ENDPOINT:
                    yield address

    def _changed_places(
        self, before: AddressBook, around: AddressBook, addresses: Collection[bytes], on_nodes: Mapping[bytes, str]
    ) -> dict[bytes, Place | None]:
        """Return those of some addresses with other places than *before*; None for one that no object holds now.

        *around* is the book with the pod CIDRs of now. *on_nodes* has the nodes of pods by address.
        """
        locations = ((node, self._locations.of_node(node)) for node in {*on_nodes.values()})
        on_node = {node: self._shared_place(location, POD) for node, location in locations if location is not None}
        places: dict[bytes, Place | None] = {
            address: on_node[on_nodes[address]] if address in on_nodes else self._place_at(address, around.cidrs)
            for address in addresses
        }
        trusted = self._forwarders.addresses
        for address in places if around.trusts_networks else trusted & places.keys():
            place = places[address]
            if address in trusted or (place is not None and around.trusts(address)):
                places[address] = replace(place or around.locate_by_block(address), forwarder=True)
        if not len(before.places):
            return {address: place for address, place in places.items() if place is not None}
        held = before.places.get
        return {address: place for address, place in places.items() if not same_place(place, held(address))}

    def _place_at(self, address: bytes, cidrs: PrefixTable[Place]) -> Place | None:
        """Return the place of an address by its holder, None if no object holds it."""
        held = self._held(address) or (None if cidrs.find(address) else self._stated_by_slice(address))
        return None if held is None else self._shared_place(held.location, held.located_by)

    def _shared_place(self, location: Location, located_by: str) -> Place:
        place = self._places.get((location, located_by))
        if place is None:
            place = self._places[location, located_by] = Place(location, located_by)
        return place

    # Who holds an address

    def holder(self, address: bytes) -> str:
        """Describe the object that holds an address now (``pod shop/web-0``), empty if none does.

        Another thread may call it while this one applies a change: then it may miss an object that is leaving.
        """
        try:
            held = self._held(address) or self._stated_by_slice(address)
        except KeyError:  # an index still has the key
            return ""
        return "" if held is None else held.text

    def overlooked(self, address: bytes) -> str:
        """Say which endpoint has an address and does not count, and what would make it; empty if there is none.

        Another thread may call it, as ``holder``.
        """
        try:
            return self._endpoints.overlooked(address)
        except KeyError:  # likewise
            return ""

    def _held(self, address: bytes) -> Held | None:
        """Return the holder of an address that decides before pod CIDRs do, None without one."""
        locations, keys = self._locations, [*self._pod_keys.keys("address", address)]
        if (pod := self._pod_among(keys)) is not None:
            return Held(*locations.of_pod(pod), pod)
        if (locator := self._locator_at(address)) is not None:
            return Held(locations.of_locator(locator), POD_LOCATOR, locator)
        if names := self._node_names.keys("address", address):
            name = max(names)
            if (node_location := locations.of_node(name)) is not None:
                return Held(
                    locations.with_subnet_labels(node_location, self._addresses_with(address, keys)), NODE, name
                )
        if keys:  # pods on their node's network, at an address that the Node does not list
            pod = max((self._pods[key] for key in keys), key=_age)
            return Held(locations.of_pod(pod)[0], NODE, pod.node)
        return self._endpoint_at(address)

    def _endpoint_at(self, address: bytes) -> Held | None:
        """Return the kept endpoint on a known Node that decides about an address."""
        locations = self._locations
        if not self._pods and not locations.subnets and (only := self._endpoints.only_node_at(address)) is not None:
            node, known = only  # so it is nearly always: no record is needed
            if (location := locations.of_node(node)) is not None:
                return Held(location, ENDPOINT, known)
        for found in self._endpoints.kept_at(address):
            namespace, endpoint = found.slice.namespace, found.endpoint
            if (node_location := locations.node_of_endpoint(namespace, endpoint)) is not None:
                if locations.may_lack_labels(node_location.node):
                    endpoint = replace(endpoint, addresses=self._endpoints.addresses_of(found))
                return Held(locations.of_endpoint(namespace, endpoint), ENDPOINT, found.slice)
        return None

    def _addresses_with(self, address: bytes, keys: Iterable[str]) -> tuple[bytes, ...]:
        """Return the addresses of whoever has a Node's *address*: a pod with one of the *keys*, or a kept endpoint."""
        if not self._locations.subnets:
            return (address,)
        if pods := [self._pods[key] for key in keys]:
            return max(pods, key=_age).addresses
        return next(map(self._endpoints.addresses_of, self._endpoints.kept_at(address)), (address,))

    def _stated_by_slice(self, address: bytes) -> Held | None:
        """Return the kept endpoint on a Node that is not known whose slice says where an address is."""
        for found in self._endpoints.kept_at(address):
            location = self._locations.of_endpoint(found.slice.namespace, found.endpoint)
            if has_labels(location):
                return Held(location, ENDPOINT, found.slice)
        return None

    def _pod_among(self, keys: Iterable[str]) -> Pod | None:
        """Return the newest of the pods with *keys* that have a network of their own."""
        pods = [pod for key in [*keys] if not (pod := self._pods[key]).host_network]
        return None if not pods else pods[0] if len(pods) == 1 else max(pods, key=_age)

    def _locator_at(self, address: bytes) -> PodLocator | None:
        """Return the PodLocator that holds an address, since its pod is not known."""
        if not self._locators or not (keys := self._locators_without_pod(address)):
            return None
        return self._locators[max(keys)]

    def _locators_without_pod(self, address: bytes) -> list[str]:
        return [key for key in [*self.locators.keys("address", address)] if key not in self._pods]

    def _has_address(self, pod: Pod, address: bytes) -> bool:
        """Whether a known pod has an address now: it has not finished, and no newer pod has it."""
        if pod.finished or address not in pod.addresses:
            return False
        return pod.host_network or self._pod_among(self._pod_keys.keys("address", address)) is pod

    def held_by_another(self, address: bytes, own: Collection[str | None]) -> bool:
        """Whether a running pod whose key is not in *own* holds an address."""
        keys = self._pod_keys.keys("address", address)
        if pods := [key for key in keys if not self._pods[key].host_network]:
            return any(key not in own for key in pods)
        if locators := self._locators_without_pod(address):
            return any(key not in own for key in locators)
        return any(
            found.endpoint.ready and found.pod is not None and found.pod not in own
            for found in self._endpoints.kept_at(address)
        )

    # What pods and endpoints prove about pod CIDRs

    def nodes_at(self, address: bytes) -> frozenset[str]:
        """Return the known Nodes that the running pod and the ready kept endpoints at an address are on."""
        return frozenset(found.node for found in self._evidence_at(address))

    def settled(self, addresses: Mapping[bytes, str | None]) -> dict[bytes, str]:
        """Return the node of those of some addresses that need no closer look: the only one of ``nodes_at``.

        The values of *addresses* are those of ``KeptEndpoints.pop_changed``.
        """
        pods: Mapping[str | None, Pod] = self._pods  # type: ignore[assignment]
        is_known, all_endpoints_on = self._locations.of_node, self._endpoints.all_on
        if not pods and not self._locators:
            return {address: node for address, node in addresses.items() if is_known(node) is not None and node}
        alone = map(pods.get, self._pod_keys.only_each("address", addresses))
        return {
            address: pod.node
            for (address, node), pod in zip(addresses.items(), alone, strict=True)
            if pod is not None
            and pod.node is not None
            and (pod.node == node or (node is None and all_endpoints_on(address, pod.node)))
            and not pod.host_network
            and is_known(pod.node) is not None
        }

    def evidence(self, address: bytes, owners: Container[str]) -> Evidence:
        """Return who has an address and is on a known Node not in *owners*; there is somebody."""
        return next(found for found in self._evidence_at(address) if found.node not in owners)

    def _evidence_at(self, address: bytes) -> Iterator[Evidence]:
        """Yield what is known to be where at an address: a pod, or its PodLocator, then the endpoints."""
        if (pod := self._pod_among(self._pod_keys.keys("address", address))) is not None:
            found = [(f"pod {pod.key}", pod.node)]
        elif (locator := self._locator_at(address)) is not None and not self._node_names.keys("address", address):
            found = [(f"pod {locator.key}", locator.node)]  # it has no Node's address: it is not on its node's network
        else:
            found = []
        for held in self._endpoints.kept_at(address):
            location = self._locations.node_of_endpoint(held.slice.namespace, held.endpoint)
            if held.endpoint.ready and location is not None:
                found.append((endpoint_text(held.slice), location.node))
        for holder, node in found:
            if node is not None and self._locations.of_node(node) is not None:
                yield Evidence(holder, node)

    def addresses_on(self, node: str) -> Iterator[bytes]:
        """Yield the addresses of the pods on a node, as Pods or PodLocators say."""
        for key in self._pod_keys.keys("node", node):
            yield from self._pods[key].addresses
        for key in self.locators.keys("node", node):
            yield from self._locators[key].addresses

    def slices_at(self, addresses: Iterable[bytes]) -> Iterator[str]:
        """Yield the keys of the slices with an endpoint at some addresses, as of the last book."""
        return self._endpoints.slices_at(addresses)

    def endpoint_addresses_in(self, network: Network) -> Iterator[bytes]:
        """Yield the addresses in a network that endpoints have."""
        return self._endpoints.addresses_in(network)


def _locator_addresses(locator: PodLocator) -> tuple[bytes, ...]:
    return locator.addresses


def _locator_nodes(locator: PodLocator) -> tuple[str, ...]:
    return () if locator.node is None or not locator.addresses else (locator.node,)


def _node_addresses(node: Node) -> tuple[bytes, ...]:
    return node.addresses


def _age(pod: Pod) -> tuple[str, str]:
    """Return a key that sorts pods by age, the newest last (RFC 3339 times in UTC sort as text)."""
    return pod.created, pod.key
