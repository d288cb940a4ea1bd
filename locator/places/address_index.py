"""Where everything in one cluster is, as it changes: from objects to one address book after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from msgspec.structs import replace

from locator.ip import Network
from locator.model import EndpointSlice, Finding, Node, Pod, PodLocator
from locator.places.address_book import AddressBook, Place, same_place
from locator.places.address_holders import AddressHolders
from locator.places.forwarders import Forwarders
from locator.places.locations import Locations
from locator.places.pod_cidrs import PodCidrs


class AddressIndex:
    """Who claims addresses and blocks, whose word is believed, and who is trusted to ask for others.

    *pods* are the pods that tell where addresses are, *locators* the PodLocators, both by key.
    """

    def __init__(self, pods: Mapping[str, Pod], locators: Mapping[str, PodLocator]) -> None:
        self.locations = Locations()
        self._claims = AddressHolders(self.locations, pods, locators)
        self._cidrs = PodCidrs()
        self._forwarders = Forwarders()
        self.take_pod = self._claims.take_pod
        self.take_slice = self._claims.take_slice
        self.look_at = self._claims.look_at

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
        self._claims.take_node(before, after)
        self._cidrs.take_node(before, after, self.locations.of_node(key))
        if moved:
            self._claims.moved(key)
        return moved

    def take_locator(self, key: str, before: PodLocator | None, after: PodLocator | None) -> bool:
        """Note that a PodLocator is *after* now, None if it is gone; return whether an address is elsewhere now."""
        self.locations.take_locator(key, after)
        return self._claims.take_locator(before, after)

    def settle(
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
        settled = self._cidrs.settle({each: self._claims.endpoints_at(each) for each in self._claims.endpoints_changed})
        for network in settled:
            note(network, self._cidrs.findings.get(network, ()))
        cidrs = {network: place for network, place in settled.items() if not same_place(place, before.stated(network))}
        trusted = self._forwarders.addresses
        if forwarding is not None:
            self._forwarders.take_slices(forwarding, now)
        self._forwarders.settle(now, self._claims.held_by_another)
        turned = trusted ^ self._forwarders.addresses
        places = self._places(before, cidrs, turned)
        if not places and not cidrs and self._cidrs.distrusted == before.distrusted_cidrs:
            return before
        return before.changed(places, cidrs, distrusted_cidrs=self._cidrs.distrusted)

    def _places(
        self, before: AddressBook, cidrs: Mapping[Network, Place | None], turned: Iterable[bytes]
    ) -> dict[bytes, Place | None]:
        """Return the addresses that are elsewhere than *before*; *turned* are trusted now, or no more."""
        claims, forwarders = self._claims, self._forwarders.addresses
        changed = claims.changed | claims.endpoints_changed | dict.fromkeys(turned)
        claims.changed, claims.endpoints_changed = {}, {}
        around = before
        if cidrs and forwarders:  # one that nobody holds is where its block is
            changed |= dict.fromkeys(forwarders)
            around = before.changed({}, cidrs)
        held = before.places if len(before.places) else None
        places: dict[bytes, Place | None] = {}
        for address in changed:
            place = claims.place(address)
            if address in forwarders or (place is not None and around.trusting and around.trusts(address)):
                place = replace(place or around.unheld(address), forwarder=True)
            if held is None or not same_place(place, held.get(address)):
                places[address] = place
        return places
