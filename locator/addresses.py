"""Which location an address has: pods, node addresses, pod CIDRs, configured subnets.

``AddressBook`` is immutable; a changed cluster makes a new one. Exact addresses are one
dictionary look-up whatever their number, blocks one look-up for each prefix length in use.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from cachetools import LRUCache
from msgspec import Struct

from locator.model import UNKNOWN, WARNING, Endpoint, Finding, Location, Network, Node, Pod, canonical_labels

POD = "pod"
ENDPOINT = "endpoint"
NODE = "node"
POD_CIDR = "podcidr"
SUBNET = "subnet"
NOWHERE = "unknown"

MAX_PREFIXES = 4096  # remembered client subnets: a /24 for each node of a large cluster fits

T = TypeVar("T")


def parse_address(text: str) -> bytes:
    """Return an address as 4 or 16 bytes; IPv4-mapped IPv6 is IPv4. Raises ValueError.

    One with an interface (``fe80::1%eth0``) is none: it would be lost.
    """
    try:
        if "%" in text:
            raise ValueError
        return plain_address(ipaddress.ip_address(text).packed)
    except ValueError:
        raise ValueError(f"{text!r} is no IP address") from None


def plain_address(packed: bytes) -> bytes:
    """Return the 4 bytes of an IPv4-mapped IPv6 address, and any other address as it is."""
    if len(packed) == 16 and packed.startswith(b"\0\0\0\0\0\0\0\0\0\0\xff\xff"):
        return packed[12:]
    return packed


def parse_network(text: str, *, strict: bool = True) -> Network:
    """Return an address block; *strict* refuses host bits. Raises ValueError."""
    try:
        block = ipaddress.ip_network(text, strict=strict)
    except ValueError as error:
        if "host bits" in str(error):
            raise ValueError(f"{text!r} has host bits set") from None
        raise ValueError(f"{text!r} is no CIDR") from None
    return plain_network(Network(block.network_address.packed, block.prefixlen))


def parse_client(text: str) -> Network:
    """Return an address as a block as long as it, or a block; host bits are passed over. Raises ValueError."""
    if "/" in text:
        return parse_network(text, strict=False)
    address = parse_address(text)
    return Network(address, 8 * len(address))


def plain_network(network: Network) -> Network:
    """Return the IPv4 form of a block of IPv4-mapped addresses, and any other as it is."""
    address = plain_address(network.address)
    if len(address) == 4 and len(network.address) == 16 and network.length >= 96:
        return Network(address, network.length - 96)
    return network


def address_text(address: bytes) -> str:
    """Return an address as people write it."""
    return str(ipaddress.ip_address(address))


def network_text(network: Network) -> str:
    """Return a block as people write it."""
    return f"{address_text(network.address)}/{network.length}"


class PrefixTable(Generic[T]):
    """Longest-prefix match over address blocks of both families."""

    def __init__(self, entries: Mapping[Network, T]) -> None:
        lengths: dict[int, dict[int, dict[int, T]]] = {4: {}, 16: {}}
        for network, value in entries.items():
            bits = 8 * len(network.address)
            bucket = lengths[len(network.address)].setdefault(bits - network.length, {})
            bucket[int.from_bytes(network.address) >> (bits - network.length)] = value
        self._tables = {size: sorted(by_shift.items()) for size, by_shift in lengths.items()}

    def find(self, address: bytes, length: int | None = None) -> T | None:
        """Return what stands at the longest block around *address* (or around its first *length* bits)."""
        number = int.from_bytes(address)
        least = 0 if length is None else 8 * len(address) - length
        for shift, table in self._tables[len(address)]:
            if shift >= least and (found := table.get(number >> shift)) is not None:
                return found
        return None


class Place(Struct, frozen=True, eq=False, gc=False):
    """What the address book says of one address: its location, and by what it was located.

    ``holder`` names the object that has the address, for people. ``forwarder`` is true where
    queries from this address are asked on behalf of others, and so say nothing of the asker.
    """

    location: Location
    located_by: str
    holder: str = ""
    forwarder: bool = False


STRANGER = Place(UNKNOWN, NOWHERE)
FORWARDER = Place(UNKNOWN, NOWHERE, forwarder=True)


class AddressBook:
    """Where every address of one cluster is (first match wins).

    ``places`` maps packed addresses that are held by something known; ``source`` and
    ``locate`` answer for every address, ``locate_network`` for a block.
    """

    def __init__(
        self,
        *,
        nodes: Mapping[str, tuple[Node, Location]],
        pods: Iterable[Pod] = (),
        endpoints: Iterable[tuple[Endpoint, str, Location]] = (),
        subnets: Mapping[Network, Mapping[str, str]] | None = None,
        forwarders: Iterable[Network] = (),
        forwarder_addresses: Iterable[bytes] = (),
    ) -> None:
        """Endpoints come with the text that names them and their location; forwarders are trusted."""
        self.findings: list[Finding] = []
        self._trusted = PrefixTable(dict.fromkeys(forwarders, True))
        self.distrusted_cidrs = 0

        endpoints = list(endpoints)
        self._cidrs = self._believed_cidrs(nodes, endpoints)
        self._cidr_table = PrefixTable(self._cidrs)
        self._subnets = {
            network: Place(Location(None, canonical_labels(dict(labels))), SUBNET, f"subnet {network_text(network)}")
            for network, labels in (subnets or {}).items()
        }
        self._subnet_table = PrefixTable(self._subnets)

        self.places = self._held(nodes, pods, endpoints)
        for address in forwarder_addresses:
            self._mark_forwarder(address)
        for address in [address for address in self.places if self._trusted.find(address)]:
            self._mark_forwarder(address)
        self._witnesses = self._sorted_witnesses()
        self._networks: LRUCache[Network, Place] = LRUCache(MAX_PREFIXES)

    def source(self, address: bytes) -> Place:
        """Return the place of a packet's source; of a trusted forwarder only that it is one."""
        place = self.places.get(address)
        if place is not None:
            return place
        return FORWARDER if self._trusted.find(address) else self.locate(address)

    def locate(self, address: bytes) -> Place:
        """Return the place of one address, ``STRANGER`` if nobody knows it."""
        return (
            self.places.get(address) or self._cidr_table.find(address) or self._subnet_table.find(address) or STRANGER
        )

    def locate_network(self, network: Network) -> Place:
        """Return the place that all of a block agrees on: a node, shared labels, or ``STRANGER``."""
        network = plain_network(network)
        if network.length == 8 * len(network.address):
            return self.locate(network.address)
        place = self._networks.get(network)
        if place is None:
            self._networks[network] = place = self._agreed(network)
        return place

    def _mark_forwarder(self, address: bytes) -> None:
        held = self.places.get(address)
        if held is None:
            held = self._cidr_table.find(address) or self._subnet_table.find(address) or STRANGER
        self.places[address] = Place(held.location, held.located_by, held.holder, forwarder=True)

    def _held(
        self,
        nodes: Mapping[str, tuple[Node, Location]],
        pods: Iterable[Pod],
        endpoints: Iterable[tuple[Endpoint, str, Location]],
    ) -> dict[bytes, Place]:
        """Weakest claim first: each later one overwrites."""
        places: dict[bytes, Place] = {}
        own: dict[bytes, tuple[str, Place]] = {}
        for pod in pods:
            if pod.finished or not pod.addresses:
                continue
            _, location = nodes.get(pod.node or "", (None, None))
            if location is None:
                location = Location(pod.node, canonical_labels({}, node=pod.node))
            if pod.host_network:  # its address is its node's, which may not list it
                for address in pod.addresses:
                    places[address] = Place(location, NODE, f"node {pod.node}")
                continue
            place = Place(location, POD, f"pod {pod.key}")
            for address in pod.addresses:
                # RFC 3339 in UTC sorts as text; on reuse the newest pod has the address.
                if address not in own or own[address][0] < pod.created:
                    own[address] = (pod.created, place)
        for node, location in nodes.values():
            place = Place(location, NODE, f"node {node.name}")
            for address in node.addresses:
                places[address] = place
        for endpoint, holder, location in endpoints:
            if location.labels:
                place = Place(location, ENDPOINT, holder)
                for address in endpoint.addresses:
                    places[address] = place
        for address, (_, place) in own.items():
            places[address] = place
        return places

    def _believed_cidrs(
        self, nodes: Mapping[str, tuple[Node, Location]], endpoints: Iterable[tuple[Endpoint, str, Location]]
    ) -> dict[Network, Place]:
        """Pod CIDRs, less those that an endpoint on another node shows to be untrue."""
        owners: dict[Network, list[tuple[Node, Location]]] = {}
        for node, location in nodes.values():
            for network in dict.fromkeys(node.pod_cidrs):
                owners.setdefault(network, []).append((node, location))
        while liars := self._liars(owners, endpoints):  # without a block, the one around it may be shown to lie
            for network, (holder, witness, elsewhere) in liars.items():
                for node, _ in owners.pop(network):
                    self.distrusted_cidrs += 1
                    self._warn(
                        node,
                        f"{network_text(network)} is not believed: {holder} has {witness} but is on node {elsewhere}",
                        "a block that holds only this node's pods",
                    )
        believed = {}
        for network, by in owners.items():
            if len(by) > 1:
                others = ", ".join(node.name for node, _ in by)
                for node, _ in by:
                    self._warn(node, f"{network_text(network)} is shared by {others}", "a block of its own")
            holder = f"pod CIDR {network_text(network)} of {', '.join(node.name for node, _ in by)}"
            believed[network] = Place(shared_location(location for _, location in by), POD_CIDR, holder)
        return believed

    @staticmethod
    def _liars(
        owners: Mapping[Network, list[tuple[Node, Location]]], endpoints: Iterable[tuple[Endpoint, str, Location]]
    ) -> dict[Network, tuple[str, str, str]]:
        """Return the blocks that hold an endpoint of another node, each with that endpoint, its address and node."""
        claims = PrefixTable({network: (network, {node.name for node, _ in by}) for network, by in owners.items()})
        liars: dict[Network, tuple[str, str, str]] = {}
        for endpoint, holder, _ in endpoints:
            if endpoint.node is None:
                continue
            for address in endpoint.addresses:
                claim = claims.find(address)
                if claim is not None and endpoint.node not in claim[1]:
                    liars.setdefault(claim[0], (holder, address_text(address), endpoint.node))
        return liars

    def _warn(self, node: Node, message: str, expected: str) -> None:
        self.findings.append(Finding(WARNING, "Node", "", node.name, "spec.podCIDRs", message, expected))

    def _sorted_witnesses(self) -> dict[int, list[tuple[int, Place]]]:
        """Known addresses by family, in order, that speak for a block: those no believed CIDR speaks for."""
        rows: dict[int, list[tuple[int, Place]]] = {4: [], 16: []}
        for address, place in self.places.items():
            if place.location.known and self._cidr_table.find(address) is None:
                rows[len(address)].append((int.from_bytes(address), place))
        for network, place in self._cidrs.items():
            rows[len(network.address)].append((int.from_bytes(network.address), place))
        for row in rows.values():
            row.sort(key=lambda witness: witness[0])
        return rows

    def _agreed(self, network: Network) -> Place:
        first = int.from_bytes(network.address)
        last = first | ((1 << (8 * len(network.address) - network.length)) - 1)
        row = self._witnesses[len(network.address)]
        start = bisect_left(row, first, key=lambda witness: witness[0])
        stop = bisect_left(row, last + 1, key=lambda witness: witness[0])
        around = self._cidr_table.find(network.address, network.length)
        witnesses = [place for _, place in row[start:stop]]
        if not witnesses and around is None:  # nothing of the cluster is there
            around = self._subnet_table.find(network.address, network.length)
            witnesses = [
                place
                for subnet, place in self._subnets.items()
                if len(subnet.address) == len(network.address) and first <= int.from_bytes(subnet.address) <= last
            ]
        if around is not None:
            witnesses.insert(0, around)
        if not witnesses:
            return STRANGER
        location = shared_location(place.location for place in witnesses)
        if location is witnesses[0].location:
            return witnesses[0]
        return Place(location, witnesses[0].located_by, network_text(network)) if location.known else STRANGER


def shared_location(locations: Iterable[Location]) -> Location:
    """Return what all locations agree on: one of them, the labels they share, or ``UNKNOWN``."""
    distinct = list({id(location): location for location in locations}.values())
    if len(distinct) == 1:
        return distinct[0]
    labels = dict(distinct[0].labels) if distinct else {}
    for location in distinct[1:]:
        labels = {key: value for key, value in labels.items() if location.labels.get(key) == value}
        if not labels:
            return UNKNOWN
    return Location(None, labels) if labels else UNKNOWN
