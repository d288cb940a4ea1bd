# SPDX-License-Identifier: Apache-2.0

"""Decides which pod CIDRs to believe: those that no pod and no endpoint contradicts, if most tell the truth.

An address contradicts the smallest pod CIDR around it if a pod or a ready kept endpoint has it on another known Node,
and confirms it if all of these are on its own. If that CIDR is contradicted, because of this or another address, the
next larger one is judged likewise. A network plugin that ignores pod CIDRs (Calico's own IPAM does) contradicts many:
once more are contradicted than confirmed, topodns believes none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple, Protocol

from locator.findings import ClusterCode
from locator.index import Relation
from locator.ip import Network, address_text, network_text
from locator.model import Finding, Location, Node
from locator.places.book import POD_CIDR, AddressBook, Place, shared_location
from locator.places.locations import Locations
from locator.places.prefix_table import PrefixTable

EVERY_ADDRESS = Network(b"", 0)  # the subject of a finding about all pod CIDRs together
# Contradicted CIDRs with a finding each, where none is believed: one plugin that ignores all is one cause.
MAX_NAMED = 10


class Evidence(NamedTuple):
    """Who has an address, as people call it, and the name of the node that it is on."""

    holder: str
    node: str


class Proofs(Protocol):
    """Says which pods and kept endpoints prove where an address is; a ``BookBuilder`` does."""

    def nodes_at(self, address: bytes) -> frozenset[str]:
        """Return the known Nodes that the running pod and the ready kept endpoints at an address are on."""

    def settled(self, addresses: Mapping[bytes, str | None]) -> dict[bytes, str]:
        """Return the node of those of some addresses that need no closer look: the only one of ``nodes_at``."""

    def evidence(self, address: bytes, owners: Container[str]) -> Evidence:
        """Return who has an address and is on a known Node not in *owners*; there is somebody."""

    def addresses_on(self, node: str) -> Iterator[bytes]:
        """Yield the addresses of the pods on a node."""

    def endpoint_addresses_in(self, network: Network) -> Iterator[bytes]:
        """Yield the addresses in a network that endpoints have."""


class PodCidrs:
    """The pod CIDRs of one cluster, kept up to date as nodes, pods and endpoints change.

    ``findings`` has the findings of each CIDR that is shared or contradicted, and of
    ``EVERY_ADDRESS`` if none is believed.
    ``distrusted`` is how many are not believed; a pod CIDR of two nodes counts twice.
    """

    def __init__(self, proofs: Proofs, locations: Locations, subnets: Collection[Network]) -> None:
        """Compare the pod CIDRs with *proofs*; the labels that nodes lack are those of the configured *subnets*."""
        self._proofs, self._locations, self._subnets = proofs, locations, subnets
        self._owners: dict[Network, dict[str, Location]] = {}
        self._owned: PrefixTable[Network] = PrefixTable()  # CIDRs that have owners, believed or not
        self._contradicted: Relation[bytes, Network] = Relation()  # CIDRs by the addresses that contradict them
        self._confirmed: set[Network] = set()  # by some address; another one may contradict them
        self._disbelieved = False  # all of them
        self._is_summed_up = False  # ``EVERY_ADDRESS`` has the only finding
        self._shares = 0  # of nodes in CIDRs, one for each node and CIDR
        self.distrusted = 0
        self._reassigned: set[Network] = set()  # their owners changed since the last review
        self._relocated: set[Network] = set()  # their owners' locations may have changed since
        self.findings: dict[Network, tuple[Finding, ...]] = {}

    def update_node(self, before: Node | None, after: Node | None, location: Location | None) -> None:
        """Record a change of a Node (None: it does not exist) and its new location."""
        old_cidrs = before.pod_cidrs if before is not None else ()
        new_cidrs = after.pod_cidrs if after is not None else ()
        for network in old_cidrs:
            if network not in new_cidrs and before is not None:
                self._shares -= self._owners[network].pop(before.name, None) is not None
                self._reassigned.add(network)
        for network in new_cidrs:
            assert after is not None and location is not None
            owners = self._owners.setdefault(network, {})
            self._shares += after.name not in owners
            (self._relocated if after.name in owners else self._reassigned).add(network)
            owners[after.name] = location

    def review(
        self, changed: Collection[bytes], settled: Mapping[bytes, str], before: AddressBook
    ) -> dict[Network, Place | None]:
        """Return the networks whose places may have changed, each with its place, None if no CIDR there is believed.

        These are pod CIDRs, and configured subnets within them. *changed* are the addresses whose holders changed since
        the last review, *settled* what ``BookBuilder.settled`` says of them. *before* is the book of that time.
        """
        if not (changed or self._reassigned or self._relocated):
            return {}
        self._owned = self._owned.with_changes(
            {network: network if self._owners[network] else None for network in self._reassigned}
        )
        reviewed = self._reassigned | self._relocated
        dirty: Collection[bytes] = changed
        if self._reassigned and len(before.places):
            known = dict.fromkeys(self._known_in(self._reassigned, before))
            settled = {**self._proofs.settled(known), **settled}
            dirty = {**known, **dict.fromkeys(changed)}
        while dirty:
            altered = self._recheck(dirty, settled)
            reviewed |= altered
            # Whether a CIDR is contradicted decides whether its addresses are compared with the next larger one.
            nested = {one for one in altered if len(self._owned.around(one.address, one.length)) > 1}
            known = dict.fromkeys(self._known_in(nested, before)) if nested else {}
            known |= {one: None for one in (changed if nested else ()) if nested.intersection(self._owned.around(one))}
            dirty, settled = known, {**self._proofs.settled(known), **settled}
        if self._contradicted:  # a finding names a pod or an endpoint, which may be another one now
            reviewed.update(*(self._contradicted.values_of(address) for address in changed))
        for network in [network for network in self._reassigned if not self._owners[network]]:
            del self._owners[network]
            self.findings.pop(network, None)
            self._confirmed.discard(network)
        self._reassigned, self._relocated = set(), set()
        reviewed |= self._judge_all()
        for network in reviewed:
            if network in self._owners:
                self._find(network)
        reviewed.discard(EVERY_ADDRESS)
        around = PrefixTable(dict.fromkeys(reviewed if self._subnets else (), True))
        within = {one for one in self._subnets if around.find(one.address, one.length)}
        return {network: self._place(network) for network in reviewed | within}

    def _known_in(self, networks: Iterable[Network], before: AddressBook) -> Iterable[bytes]:
        """Return the addresses in some networks that had a holder, or contradicted them, at the last review."""
        for network in networks:
            yield from (address for address, _ in before.places.within(network))
            yield from self._contradicted.keys_of(network)

    def _recheck(self, addresses: Iterable[bytes], settled: Mapping[bytes, str]) -> set[Network]:
        """Compare the holders of some addresses with the CIDRs around them; return those now judged differently."""
        altered: set[Network] = set()
        doubtful: set[Network] = set()
        owners, confirmed = self._owners, self._confirmed
        by_row: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for address in addresses:
            by_row[address[:-1]].append(address)
        for row in by_row.values():
            of_row = None if self._contradicted else self._owned.around_row(row[0])
            if of_row is not None and len(of_row) < 2:  # as nearly always
                if not of_row:
                    continue
                if owners[of_row[0]].keys() >= {*map(settled.get, row)}:
                    confirmed.add(of_row[0])
                    continue
            for address in row:
                nodes = frozenset((settled[address],)) if address in settled else self._proofs.nodes_at(address)
                around, before = self._owned.around(address), self._contradicted.values_of(address)
                after, confirming = self._judged(address, nodes, around)
                confirmed.update(confirming)
                doubtful.update(one for one in (*around, *before) if one not in confirming)
                if self._contradicted.set(address, after):
                    altered.update(before, after)
        for network in doubtful & confirmed:
            if not self._is_confirmed(network):
                confirmed.remove(network)
        return altered

    def _judged(
        self, address: bytes, nodes: frozenset[str], around: Iterable[Network]
    ) -> tuple[tuple[Network, ...], list[Network]]:
        """Return which of the CIDRs around an address it contradicts, and which it confirms unless others do."""
        contradicted: tuple[Network, ...] = ()
        confirming: list[Network] = []
        for network in around if nodes else ():
            if not nodes <= self._owners[network].keys():
                contradicted = (*contradicted, network)
                continue
            confirming.append(network)
            contradicting = self._contradicted.keys_of(network) if self._contradicted else ()
            if not contradicting or (len(contradicting) == 1 and address in contradicting):
                break
        return contradicted, confirming

    def _is_confirmed(self, network: Network) -> bool:
        """Whether some address confirms a CIDR, which has owners."""
        owners = self._owners.get(network, {})
        on_nodes = chain.from_iterable(map(self._proofs.addresses_on, owners))
        for address in chain(on_nodes, self._proofs.endpoint_addresses_in(network)):  # nearly always, the first does
            around = self._owned.around(address)
            if network in around and (nodes := self._proofs.nodes_at(address)) and nodes <= owners.keys():
                smaller = around[: around.index(network)]
                if all(self._contradicted.keys_of(one) for one in smaller):
                    return True
        return False

    def _judge_all(self) -> set[Network]:
        """Decide whether to believe any; return those whose places or findings may differ, or EVERY_ADDRESS."""
        contradicted = set(self._contradicted.values())
        confirmed = len(self._confirmed) - len(self._confirmed & contradicted)
        before = self._disbelieved, self._is_summed_up
        self._disbelieved = len(contradicted) > confirmed
        self._is_summed_up = self._disbelieved and len(contradicted) > MAX_NAMED
        self.distrusted = self._shares if self._disbelieved else sum(len(self._owners[one]) for one in contradicted)
        self.findings.pop(EVERY_ADDRESS, None)
        if self._is_summed_up or (self._disbelieved and len(contradicted) < len(self._owners)):
            # Without figures: they would change with each pod, and with them what the log says.
            message = (
                "no pod CIDR is trusted: pods or endpoints on other nodes contradict more of them than others confirm"
            )
            expected = "pod CIDRs that the network plugin follows, or --subnet for addresses that no object has"
            self.findings[EVERY_ADDRESS] = (_warning("", message, expected),)
        changed = {*self._owners} if before != (self._disbelieved, self._is_summed_up) else set[Network]()
        return changed | {EVERY_ADDRESS} if before[0] or self._disbelieved else changed

    def _find(self, network: Network) -> None:
        """Update the findings of a CIDR."""
        owners, contradicting = self._owners[network], self._contradicted.keys_of(network)
        self.findings.pop(network, None)
        names = sorted(owners)
        if self._is_summed_up:
            return
        if contradicting:
            address = min(contradicting)
            found = self._proofs.evidence(address, owners)
            message = (
                f"{network_text(network)} is not trusted: {found.holder} has {address_text(address)} but is on node "
                f"{found.node}"
            )
            expected = "a block that holds only this node's pods"
            self.findings[network] = tuple(_warning(name, message, expected) for name in names)
        elif len(names) > 1:
            shared = f"{network_text(network)} is shared by {', '.join(names)}"
            self.findings[network] = tuple(_warning(name, shared, "a block of its own") for name in names)

    def _place(self, network: Network) -> Place | None:
        """Return the place of the believed CIDR around a network, with the labels of the subnet around it."""
        if self._disbelieved:
            return None
        around = self._owned.around(network.address, network.length)
        cidr = next((one for one in around if not self._contradicted.keys_of(one)), None)
        if cidr is None or (cidr != network and network not in self._subnets):
            return None
        owners = self._owners[cidr]
        location = shared_location(
            self._locations.with_subnet_labels_in(owners[name], network) for name in sorted(owners)
        )
        if len(owners) > 1 and location.known:
            location = self._locations.shared(location.node, location.labels)
        return Place(location, POD_CIDR, f"pod CIDR {network_text(cidr)} of {', '.join(sorted(owners))}")


def _warning(node: str, message: str, expected: str) -> Finding:
    code, kind, field = ClusterCode.PodCidrDistrusted, "Node" if node else "", "spec.podCIDRs" if node else ""
    return code.finding(kind, "", node, field=field, message=message, expected=expected)
