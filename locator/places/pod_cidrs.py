"""Which blocks of pod addresses are believed to be their nodes': those that no endpoint shows to lie elsewhere.

An endpoint speaks for the longest block around it. Where that one is not believed, it speaks for
the next around that, which may lie as well.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from locator.finding_codes import ClusterCode
from locator.index import Index
from locator.ip import (
    Network,
    address_text,
    network_text,
)
from locator.model import Finding, Location, Node
from locator.places.address_book import (
    POD_CIDR,
    Place,
    shared_location,
)
from locator.places.address_holders import EndpointHolder
from locator.places.address_map import AddressMap, PrefixTable

Endpoints = tuple[EndpointHolder, ...]  # those that hold an address


class PodCidrs:
    """The pod CIDRs of one cluster, as nodes and endpoints change.

    ``findings`` tells by block what is wrong with it.
    """

    def __init__(self) -> None:
        self._owners: dict[Network, dict[str, Location]] = {}
        self._owned: PrefixTable[Network] = PrefixTable()  # blocks that have owners, believed or not
        self._endpoints: AddressMap[Endpoints] = AddressMap()
        self._lies: dict[bytes, tuple[Network, ...]] = {}  # the blocks that the endpoints at an address show to lie
        self._witnesses: Index[bytes, tuple[Network, ...]] = Index(network=tuple)  # the other way round
        self._touched: set[Network] = set()  # of other owners than at the last review
        self._moved: set[Network] = set()  # of owners in other places
        self.findings: dict[Network, tuple[Finding, ...]] = {}

    def take_node(self, before: Node | None, after: Node | None, location: Location | None) -> None:
        """Note that a node is *after* now, None if it is gone, and where it is."""
        left = before.pod_cidrs if before is not None else ()
        joined = after.pod_cidrs if after is not None else ()
        for network in left:
            if network not in joined and before is not None:
                self._owners[network].pop(before.name, None)
                self._touched.add(network)
        for network in joined:
            assert after is not None and location is not None
            owners = self._owners.setdefault(network, {})
            (self._moved if after.name in owners else self._touched).add(network)
            owners[after.name] = location

    def review(self, changed: Mapping[bytes, Endpoints | None]) -> dict[Network, Place | None]:
        """Return the blocks about which something else may be believed now, each with its place, None if it is not.

        *changed* tells the endpoints at those addresses where there are others than at the last review.
        """
        self._endpoints = self._endpoints.changed(changed)
        self._owned = self._owned.changed(
            {network: network if self._owners[network] else None for network in self._touched}
        )
        reviewed = self._touched | self._moved
        dirty = dict.fromkeys(changed)
        for network in self._touched:
            dirty.update(dict.fromkeys(self._speaking_in(network)))
        while dirty:
            altered = self._judge(dirty, changed)
            reviewed |= altered
            dirty = {
                address: None
                for network in altered
                if len(self._owned.around(network.address, network.length)) > 1  # one around it may lie now
                for address in self._speaking_in(network)
            }
        if self._lies:  # who shows it may be another endpoint of the same address
            reviewed.update(*(self._lies.get(address, ()) for address in changed))
        self._touched, self._moved = set(), set()
        return {network: self._believed(network) for network in reviewed}

    @property
    def distrusted(self) -> int:
        """How many nodes' blocks are not believed; one of two nodes counts twice."""
        return sum(len(self._owners[network]) for network in self._witnesses.values("network"))

    def _speaking_in(self, network: Network) -> Iterator[bytes]:
        return (address for address, _ in self._endpoints.within(network))

    def _judge(self, addresses: Iterable[bytes], changed: Mapping[bytes, Endpoints | None]) -> set[Network]:
        """Find out which blocks the endpoints at some addresses show to lie; return those for which that is news."""
        altered: set[Network] = set()
        for address, around in self._owned.around_each(addresses):
            endpoints = changed.get(address) or self._endpoints.get(address) if around else None
            before = self._lies.get(address, ())
            after = self._shown_to_lie(address, endpoints, around) if endpoints else ()
            if before == after:
                continue
            self._witnesses.move(address, before, after)
            if after:
                self._lies[address] = after
            else:
                del self._lies[address]
            altered.update(before, after)
        return altered

    def _shown_to_lie(self, address: bytes, endpoints: Endpoints, around: Iterable[Network]) -> tuple[Network, ...]:
        lies: tuple[Network, ...] = ()
        for network in around:
            owners = self._owners[network]
            for holder in endpoints:
                if holder.endpoint.node not in owners and holder.endpoint.node is not None:
                    lies = (*lies, network)
                    break
            else:
                against = self._witnesses.keys("network", network) if self._lies else ()
                if not against or (len(against) == 1 and address in against):
                    break
        return lies

    def _believed(self, network: Network) -> Place | None:
        """Return the place of a block, None if it is nobody's or is not believed; and note what is wrong with it."""
        owners, against = self._owners[network], self._witnesses.keys("network", network)
        self.findings.pop(network, None)
        if not owners:
            del self._owners[network]
            return None
        names = sorted(owners)
        if against:
            address = min(against)
            elsewhere = [holder for holder in self._endpoints.get(address) or () if _is_elsewhere(holder, owners)]
            witness = min(elsewhere, key=lambda holder: holder.rank)
            where = f"has {address_text(address)} but is on node {witness.endpoint.node}"
            lie = f"is not believed: {witness.origin.words} {where}"
            self.findings[network] = tuple(
                _warning(name, f"{network_text(network)} {lie}", "a block that holds only this node's pods")
                for name in names
            )
            return None
        listed = ", ".join(names)
        if len(names) > 1:
            shared = f"{network_text(network)} is shared by {listed}"
            self.findings[network] = tuple(_warning(name, shared, "a block of its own") for name in names)
        location = shared_location(owners[name] for name in names)
        return Place(location, POD_CIDR, f"pod CIDR {network_text(network)} of {listed}")


def _is_elsewhere(holder: EndpointHolder, owners: Container[str]) -> bool:
    """Whether an endpoint is on a node that is none of *owners*."""
    return holder.endpoint.node is not None and holder.endpoint.node not in owners


def _warning(node: str, message: str, expected: str) -> Finding:
    code = ClusterCode.PodCidrDistrusted
    return code.finding("Node", "", node, field="spec.podCIDRs", message=message, expected=expected)
