"""Makes the next address book from changed objects. (It is no ``Index``.)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from msgspec.structs import replace

from locator.ip import Network
from locator.model import EndpointSlice, Finding, Node, PodLocator
from locator.places.address_book import AddressBook, Place, same_place
from locator.places.address_holders import AddressHolders, ChangedAddresses
from locator.places.forwarders import Forwarders
from locator.places.locations import Locations
from locator.places.pod_cidrs import PodCidrs


class AddressIndex:
    """The address holders, pod CIDRs and trusted forwarders of one cluster, kept up to date object by object."""

    def __init__(self) -> None:
        self.locations = Locations()
        self._holders = AddressHolders(self.locations)
        self._cidrs = PodCidrs()
        self._forwarders = Forwarders()
        self.update_pod = self._holders.update_pod
        self.update_slice = self._holders.update_slice
        self.mark_addresses = self._holders.mark_addresses

    @property
    def forwarders(self) -> Set[bytes]:
        """The addresses of the discovered forwarders that topodns trusts."""
        return self._forwarders.addresses

    @property
    def due(self) -> float | None:
        """When trust in the next leaving forwarder ends (seconds since 1970), None if none is leaving."""
        return self._forwarders.due

    def update_node(self, key: str, before: Node | None, after: Node | None) -> bool:
        """Record a change of a Node (None: it does not exist); return whether the location of the node changed."""
        relocated = self.locations.update_node(key, after)
        self._holders.update_node(key, before, after)
        self._cidrs.update_node(before, after, self.locations.of_node(key))
        if relocated:
            self._holders.mark_node(key)
        return relocated

    def update_locator(self, key: str, before: PodLocator | None, after: PodLocator | None) -> bool:
        """Record a change of a PodLocator (None: it does not exist); return whether a place may have changed."""
        self.locations.update_locator(key, after)
        return self._holders.update_locator(key, before, after)

    def book_after(
        self,
        before: AddressBook,
        now: float,
        dns_slices: Iterable[EndpointSlice] | None,
        report: Callable[[Network, tuple[Finding, ...]], None],
    ) -> AddressBook:
        """Return the address book for *now* (seconds since 1970); *before* itself if nothing differs.

        *dns_slices* are all slices of the DNS Services, None if they are unchanged. *report* gets the
        findings of each reviewed pod CIDR, empty if it has none.
        """
        changed = self._holders.pop_changed()
        reviewed = self._cidrs.review({address: self._holders.endpoints_at(address) for address in changed.endpoints})
        for network in reviewed:
            report(network, self._cidrs.findings.get(network, ()))
        cidrs = {
            network: place for network, place in reviewed.items() if not same_place(place, before.cidr_place(network))
        }
        trusted = self._forwarders.addresses
        if dns_slices is not None:
            self._forwarders.update_slices(dns_slices, now)
        self._forwarders.end_trust(now, self._holders.held_by_another)
        trust_changed = trusted ^ self._forwarders.addresses
        places = self._places(before, changed, cidrs, trust_changed)
        if not places and not cidrs and self._cidrs.distrusted == before.distrusted_cidrs:
            return before
        return before.with_changes(places, cidrs, distrusted_cidrs=self._cidrs.distrusted)

    def _places(
        self,
        before: AddressBook,
        changed: ChangedAddresses,
        cidrs: Mapping[Network, Place | None],
        trust_changed: Iterable[bytes],
    ) -> dict[bytes, Place | None]:
        """Return the addresses with other places than *before*; None for one that no object holds now."""
        forwarders = self._forwarders.addresses
        addresses = changed.others | changed.endpoints | dict.fromkeys(trust_changed)
        around = before
        if cidrs and forwarders:  # a forwarder without an object of its own is located by its block
            addresses |= dict.fromkeys(forwarders)
            around = before.with_changes({}, cidrs)
        held = before.places if len(before.places) else None
        places: dict[bytes, Place | None] = {}
        for address in addresses:
            place = self._holders.place(address)
            if address in forwarders or (place is not None and around.trusts_networks and around.trusts(address)):
                place = replace(place or around.locate_by_block(address), forwarder=True)
            if held is None or not same_place(place, held.get(address)):
                places[address] = place
        return places
