"""Who claims which address, and who of them has it.

A pod on a network of its own or its PodLocator comes before an endpoint, that before a node's own
address, that before a pod on its node's network. The order in which things were learned decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct

from locator.model import Endpoint, EndpointSlice, Node, Pod, PodLocator
from locator.places.address_book import ENDPOINT, NODE, POD, POD_LOCATOR, Place
from locator.places.locations import Locations

T = TypeVar("T")


class Origin(Struct, frozen=True, gc=False):
    """The slice that an endpoint stands in, and in words whose endpoint it is."""

    namespace: str
    slice: str
    holder: str


class Claim(Struct, frozen=True, eq=False, gc=False):
    """An endpoint that has an address."""

    origin: Origin
    endpoint: Endpoint

    @property
    def rank(self) -> tuple[object, ...]:
        """What decides between endpoints of one address: the last has it."""
        each = self.endpoint
        return self.origin.slice, each.node or "", each.pod or "", sorted(each.word.items())


Claimants = dict[bytes, tuple[T, ...]]  # by the address that they claim


def _join(claimants: Claimants[T], addresses: Iterable[bytes], claimant: T, changed: dict[bytes, None]) -> None:
    for address in addresses:
        held = claimants.get(address)
        claimants[address] = (claimant,) if held is None else (*held, claimant)
        changed[address] = None


def _leave(claimants: Claimants[T], addresses: Iterable[bytes], claimant: T, changed: dict[bytes, None]) -> None:
    for address in addresses:
        changed[address] = None
        left = tuple(each for each in claimants.get(address, ()) if each is not claimant)
        if left:
            claimants[address] = left
        else:
            claimants.pop(address, None)


class AddressHolders:
    """The claims of one cluster, as they change.

    ``changed`` are the addresses to look at again, ``endpoints_changed`` those of which other
    endpoints stand in slices now, both in order (what is near in memory stays so); who has looked
    clears them. *pods* are the pods that tell where
    addresses are, *locators* the PodLocators, by key: one whose pod is known tells nothing more.
    """

    def __init__(self, locations: Locations, pods: Mapping[str, Pod], locators: Mapping[str, PodLocator]) -> None:
        self._locations, self._known_pods, self._known_locators = locations, pods, locators
        self._pods: Claimants[Pod] = {}
        self._locators: Claimants[PodLocator] = {}
        self._endpoints: Claimants[Claim] = {}
        self._nodes: Claimants[Node] = {}
        self._hosts: Claimants[Pod] = {}
        self._on: dict[str, list[Pod | PodLocator]] = {}  # by node, those who have an address there
        self.changed: dict[bytes, None] = {}
        self.endpoints_changed: dict[bytes, None] = {}

    def take_pod(self, before: Pod | None, after: Pod | None) -> bool:
        """Note that a pod is *after* now, None if it is gone; return whether an address is held by others now."""
        held = False
        if before is not None and not before.finished and before.addresses:
            _leave(self._hosts if before.host_network else self._pods, before.addresses, before, self.changed)
            self._leave_node(before)
            held = True
        if after is not None and not after.finished and after.addresses:
            _join(self._hosts if after.host_network else self._pods, after.addresses, after, self.changed)
            self._join_node(after)
            held = True
        if self._known_locators and (before is None or after is None):
            locator = self._known_locators.get((before or after).key)  # type: ignore[union-attr]
            if locator is not None:  # it begins, or ends, to be silent
                self.look_at(locator.addresses)
                held = True
        return held

    def take_locator(self, before: PodLocator | None, after: PodLocator | None) -> bool:
        """Note that a PodLocator is *after* now, None if it is gone; return whether an address is elsewhere now."""
        held = False
        if before is not None and before.addresses:
            _leave(self._locators, before.addresses, before, self.changed)
            self._leave_node(before)
            held = True
        if after is not None and after.addresses:
            _join(self._locators, after.addresses, after, self.changed)
            self._join_node(after)
            held = True
        pod = self._known_pods.get((before or after).key) if self._known_pods else None  # type: ignore[union-attr]
        if pod is not None:
            self.look_at(pod.addresses)
        return held or pod is not None

    def take_node(self, before: Node | None, after: Node | None) -> None:
        """Note that a node is *after* now, None if it is gone."""
        if before is not None:
            _leave(self._nodes, before.addresses, before, self.changed)
        if after is not None:
            _join(self._nodes, after.addresses, after, self.changed)

    def take_slice(self, key: str, before: EndpointSlice | None, after: EndpointSlice | None) -> None:
        """Note that a slice is *after* now, None if it is gone; endpoints that stayed are the same objects."""
        stayed: set[int] = set()
        if before is not None and after is not None and before.service == after.service:
            stayed = set(map(id, before.endpoints)) & set(map(id, after.endpoints))
        for endpoint in before.endpoints if before is not None else ():
            if id(endpoint) not in stayed:
                self._leave_endpoint(endpoint, key)
        if after is None:
            return
        origin = _origin(after)
        for endpoint in after.endpoints:
            if id(endpoint) not in stayed:
                _join(self._endpoints, endpoint.addresses, Claim(origin, endpoint), self.endpoints_changed)

    def _leave_endpoint(self, endpoint: Endpoint, key: str) -> None:
        for address in endpoint.addresses:
            for claim in self._endpoints.get(address, ()):
                if claim.endpoint is endpoint and claim.origin.slice == key:
                    _leave(self._endpoints, (address,), claim, self.endpoints_changed)

    def moved(self, node: str) -> None:
        """Note that the location of a node is another one, or known no more; of endpoints on it nothing is noted."""
        for each in self._on.get(node, ()):
            self.look_at(each.addresses)

    def look_at(self, addresses: Iterable[bytes]) -> None:
        """Note that these addresses are to be looked at again."""
        self.changed.update(dict.fromkeys(addresses))

    def _join_node(self, each: Pod | PodLocator) -> None:
        if each.node is not None:
            row = self._on.get(each.node)
            if row is None:
                self._on[each.node] = [each]
            else:
                row.append(each)

    def _leave_node(self, each: Pod | PodLocator) -> None:
        if each.node is not None:
            row = self._on[each.node]
            row[:] = [other for other in row if other is not each]
            if not row:
                del self._on[each.node]

    # What follows

    def place(self, address: bytes) -> Place | None:
        """Return where an address is by who has it, None if nobody has."""
        if pods := self._pods.get(address):
            pod = pods[0] if len(pods) == 1 else max(pods, key=_age)
            location, by_locator = self._locations.of_pod(pod)
            return Place(location, POD_LOCATOR if by_locator else POD, f"pod {pod.namespace}/{pod.name}")
        if self._locators and (locators := self._telling(address)):
            locator = max(locators, key=lambda each: each.key)
            return Place(self._locations.of_locator(locator), POD_LOCATOR, f"pod {locator.key}")
        if claims := self._endpoints.get(address):
            for claim in claims if len(claims) == 1 else sorted(claims, key=lambda each: each.rank, reverse=True):
                location = self._locations.of_endpoint(claim.origin.namespace, claim.endpoint)
                if location.labels:
                    return Place(location, ENDPOINT, claim.origin.holder)
        if nodes := self._nodes.get(address):
            node = max(nodes, key=lambda each: each.name)
            found = self._locations.of_node(node.name)
            assert found is not None
            return Place(found, NODE, f"node {node.name}")
        if hosts := self._hosts.get(address):  # its node may not list it
            pod = max(hosts, key=_age)
            return Place(self._locations.of_pod(pod)[0], NODE, f"node {pod.node}")
        return None

    def held_by_another(self, address: bytes, own: Collection[str | None]) -> bool:
        """Whether a running pod that is none of *own* (their keys) holds an address."""
        if pods := self._pods.get(address):
            return any(pod.key not in own for pod in pods)
        if locators := self._telling(address):
            return any(locator.key not in own for locator in locators)
        return any(
            claim.endpoint.ready and claim.endpoint.pod is not None and pod_behind(claim) not in own
            for claim in self._endpoints.get(address, ())
        )

    def endpoints_at(self, address: bytes) -> tuple[Claim, ...] | None:
        """Return the endpoints that have an address, in no order; None if there are none."""
        return self._endpoints.get(address)

    def _telling(self, address: bytes) -> list[PodLocator]:
        return [each for each in self._locators.get(address, ()) if each.key not in self._known_pods]


def pod_behind(claim: Claim) -> str | None:
    """Return the key of the pod that an endpoint is, None if it is none."""
    return None if claim.endpoint.pod is None else f"{claim.origin.namespace}/{claim.endpoint.pod}"


def _age(pod: Pod) -> tuple[str, str]:
    """The newest has an address; RFC 3339 in UTC sorts as text."""
    return pod.created, pod.key


def _origin(each: EndpointSlice) -> Origin:
    holder = f"endpoint of {each.service_key}" if each.service_key else f"endpoint in slice {each.key}"
    return Origin(each.namespace, each.key, holder)
