"""Decides which pod CIDRs to trust: those that no endpoint contradicts.

An endpoint contradicts the smallest pod CIDR around its address if it runs on another node. If that
CIDR is not trusted, because of this or another endpoint, the next larger one is checked likewise.
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
from locator.places.address_holders import AddressHolders, EndpointHolder, endpoint_text
from locator.places.address_map import PrefixTable


class PodCidrs:
    """The pod CIDRs of one cluster, kept up to date as nodes and endpoints change.

    ``findings`` has the findings of each block that is shared or not trusted.
    """

    def __init__(self, holders: AddressHolders) -> None:
        """Compare the pod CIDRs with the endpoints of *holders*."""
        self._holders = holders
        self._owners: dict[Network, dict[str, Location]] = {}
        self._owned: PrefixTable[Network] = PrefixTable()  # blocks that have owners, trusted or not
        self._contradicted: dict[bytes, tuple[Network, ...]] = {}  # by the address of the endpoints
        self._contradicting: Index[bytes, tuple[Network, ...]] = Index(network=tuple)  # those addresses, by block
        self._reassigned: set[Network] = set()  # their owners changed since the last review
        self._relocated: set[Network] = set()  # their owners' locations may have changed since
        self.findings: dict[Network, tuple[Finding, ...]] = {}

    def update_node(self, before: Node | None, after: Node | None, location: Location | None) -> None:
        """Record a change of a Node (None: it does not exist) and its new location."""
        old_cidrs = before.pod_cidrs if before is not None else ()
        new_cidrs = after.pod_cidrs if after is not None else ()
        for network in old_cidrs:
            if network not in new_cidrs and before is not None:
                self._owners[network].pop(before.name, None)
                self._reassigned.add(network)
        for network in new_cidrs:
            assert after is not None and location is not None
            owners = self._owners.setdefault(network, {})
            (self._relocated if after.name in owners else self._reassigned).add(network)
            owners[after.name] = location

    def review(self, changed: Mapping[bytes, str | None], *, all_changed: bool) -> dict[Network, Place | None]:
        """Return the blocks whose places may have changed, each with its place, None if it is not trusted.

        *changed* are the addresses whose endpoints changed since the last review, with the node of the only endpoint,
        or None if it has to be looked up. *all_changed* says that these are the addresses of all endpoints.
        """
        self._owned = self._owned.with_changes(
            {network: network if self._owners[network] else None for network in self._reassigned}
        )
        reviewed = self._reassigned | self._relocated
        dirty = dict.fromkeys(changed)
        for network in () if all_changed else self._reassigned:
            dirty.update(dict.fromkeys(self._endpoint_addresses_in(network)))
        while dirty:
            altered = self._recheck(dirty, changed)
            reviewed |= altered
            # Whether a block is trusted decides whether its endpoints are compared with the next larger one.
            dirty = {
                address: None
                for network in altered
                if len(self._owned.around(network.address, network.length)) > 1
                for address in self._endpoint_addresses_in(network)
            }
        if self._contradicted:  # a finding names an endpoint, which may be another one now
            reviewed.update(*(self._contradicted.get(address, ()) for address in changed))
        self._reassigned, self._relocated = set(), set()
        return {network: self._trusted_place(network) for network in reviewed}

    @property
    def distrusted(self) -> int:
        """How many pod CIDRs are not trusted; a pod CIDR of two nodes counts twice."""
        return sum(len(self._owners[network]) for network in self._contradicting.values("network"))

    def _endpoint_addresses_in(self, network: Network) -> Iterator[bytes]:
        return self._holders.endpoint_addresses.within(network)

    def _recheck(self, addresses: Iterable[bytes], nodes: Mapping[bytes, str | None]) -> set[Network]:
        """Compare the endpoints of some addresses with the blocks around them; return the blocks affected."""
        altered: set[Network] = set()
        for address, around in self._owned.around_each(addresses):
            node = nodes.get(address)
            if not self._contradicted and (not around or node in self._owners[around[0]]):
                continue  # as nearly always: no endpoint contradicts a block, and neither does this one
            before = self._contradicted.get(address, ())
            found = self._holders.nodes_at(address) if node is None else [node]
            after = self._contradicted_by(address, found, around) if found and around else ()
            if before == after:
                continue
            self._contradicting.move(address, before, after)
            if after:
                self._contradicted[address] = after
            else:
                del self._contradicted[address]
            altered.update(before, after)
        return altered

    def _contradicted_by(
        self, address: bytes, nodes: Iterable[str | None], around: Iterable[Network]
    ) -> tuple[Network, ...]:
        contradicted: tuple[Network, ...] = ()
        for network in around:
            owners = self._owners[network]
            for node in nodes:
                if node not in owners and node is not None:
                    contradicted = (*contradicted, network)
                    break
            else:
                contradicting = self._contradicting.keys("network", network) if self._contradicted else ()
                if not contradicting or (len(contradicting) == 1 and address in contradicting):
                    break
        return contradicted

    def _trusted_place(self, network: Network) -> Place | None:
        """Return the place of a block, None without owners or trust; update its findings."""
        owners, contradicting = self._owners[network], self._contradicting.keys("network", network)
        self.findings.pop(network, None)
        if not owners:
            del self._owners[network]
            return None
        names = sorted(owners)
        if contradicting:
            address = min(contradicting)
            elsewhere = [holder for holder in self._holders.endpoints_at(address) if _is_elsewhere(holder, owners)]
            first = min(elsewhere, key=lambda holder: holder.rank)
            endpoint = f"{endpoint_text(first.slice)} has {address_text(address)} but is on node {first.endpoint.node}"
            message = f"{network_text(network)} is not trusted: {endpoint}"
            self.findings[network] = tuple(
                _warning(name, message, "a block that holds only this node's pods") for name in names
            )
            return None
        listed = ", ".join(names)
        if len(names) > 1:
            shared = f"{network_text(network)} is shared by {listed}"
            self.findings[network] = tuple(_warning(name, shared, "a block of its own") for name in names)
        location = shared_location(owners[name] for name in names)
        return Place(location, POD_CIDR, f"pod CIDR {network_text(network)} of {listed}")


def _is_elsewhere(holder: EndpointHolder, owners: Container[str]) -> bool:
    """Whether an endpoint is on a node that is not in *owners*."""
    return holder.endpoint.node is not None and holder.endpoint.node not in owners


def _warning(node: str, message: str, expected: str) -> Finding:
    code = ClusterCode.PodCidrDistrusted
    return code.finding("Node", "", node, field="spec.podCIDRs", message=message, expected=expected)
