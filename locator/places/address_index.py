"""Where everything in one cluster is, as it changes: from objects to one address book after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from msgspec.structs import replace

from locator.ip import Network
from locator.model import EndpointSlice, Finding, Node, PodLocator
from locator.places.address_book import AddressBook, Place, same_place
from locator.places.address_holders import AddressHolders, Changed
from locator.places.forwarders import Forwarders
from locator.places.locations import Locations
from locator.places.pod_cidrs import PodCidrs


class AddressIndex:
    """Who holds addresses and blocks, whose word on them is believed, and who is trusted to ask for others."""

    def __init__(self) -> None:
        self.locations = Locations()
        self._holders = AddressHolders(self.locations)
        self._cidrs = PodCidrs()
        self._forwarders = Forwarders()
        self.take_pod = self._holders.take_pod
        self.take_slice = self._holders.take_slice
        self.look_at = self._holders.look_at

    @property
    def forwarders(self) -> Set[bytes]:
        """The addresses of the cluster's own DNS that are trusted."""
        return self._forwarders.addresses

    @property
    def due(self) -> float | None:
        """When the next forwarder that left is trusted no more (seconds since 1970), None if none left."""
        return self._forwarders.due

    def take_node(self, key: str, before: Node | None, after: Node | None) -> bool:
        """Note that a node is *after* now, None if it is gone; return whether its location is another one."""
        moved = self.locations.take_node(key, after)
        self._holders.take_node(key, before, after)
        self._cidrs.take_node(before, after, self.locations.of_node(key))
        if moved:
            self._holders.moved(key)
        return moved

    def take_locator(self, key: str, before: PodLocator | None, after: PodLocator | None) -> bool:
        """Note that a PodLocator is *after* now, None if it is gone; return whether an address is elsewhere now."""
        self.locations.take_locator(key, after)
        return self._holders.take_locator(key, before, after)

    def book_after(
        self,
        before: AddressBook,
        now: float,
        forwarding: Iterable[EndpointSlice] | None,
        note: Callable[[Network, tuple[Finding, ...]], None],
    ) -> AddressBook:
        """Return the address book of what is known at *now*; the one *before* if that says the same.

        *forwarding* are the slices of the cluster's DNS, None if they are those of the last time;
        *note* is told what is wrong with a block, if anything is.
        """
        changed = self._holders.take_changed()
        reviewed = self._cidrs.review({address: self._holders.endpoints_at(address) for address in changed.endpoints})
        for network in reviewed:
            note(network, self._cidrs.findings.get(network, ()))
        cidrs = {
            network: place for network, place in reviewed.items() if not same_place(place, before.cidr_place(network))
        }
        trusted = self._forwarders.addresses
        if forwarding is not None:
            self._forwarders.take_slices(forwarding, now)
        self._forwarders.forget_gone(now, self._holders.held_by_another)
        turned = trusted ^ self._forwarders.addresses
        places = self._places(before, changed, cidrs, turned)
        if not places and not cidrs and self._cidrs.distrusted == before.distrusted_cidrs:
            return before
        return before.changed(places, cidrs, distrusted_cidrs=self._cidrs.distrusted)

    def _places(
        self, before: AddressBook, changed: Changed, cidrs: Mapping[Network, Place | None], turned: Iterable[bytes]
    ) -> dict[bytes, Place | None]:
        """Return the addresses that are elsewhere than *before*; *turned* are trusted now, or no more."""
        forwarders = self._forwarders.addresses
        addresses = changed.others | changed.endpoints | dict.fromkeys(turned)
        around = before
        if cidrs and forwarders:  # one that nobody holds is where its block is
            addresses |= dict.fromkeys(forwarders)
            around = before.changed({}, cidrs)
        held = before.places if len(before.places) else None
        places: dict[bytes, Place | None] = {}
        for address in addresses:
            place = self._holders.place(address)
            if address in forwarders or (place is not None and around.trusts_networks and around.trusts(address)):
                place = replace(place or around.locate_by_block(address), forwarder=True)
            if held is None or not same_place(place, held.get(address)):
                places[address] = place
        return places
