"""Makes the next address book from changed objects. (It is no ``Index``.)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from msgspec.structs import replace

from locator.ip import Network
from locator.model import EndpointSlice, Finding, Location, Node, Pod, PodLocator
from locator.places.address_book import AddressBook, Place, same_place
from locator.places.address_holders import AddressHolders
from locator.places.address_map import PrefixTable
from locator.places.forwarders import Forwarders
from locator.places.locations import Locations
from locator.places.pod_cidrs import PodCidrs


class AddressIndex:
    """The address holders, pod CIDRs and trusted forwarders of one cluster, kept up to date object by object."""

    def __init__(self, pods: Mapping[str, Pod], slices: Mapping[str, EndpointSlice], cluster: str) -> None:
        """See ``AddressHolders``; *cluster* is the name of the cluster."""
        self.locations = Locations(cluster)
        self._holders = AddressHolders(self.locations, pods, slices)
        self._cidrs = PodCidrs(self._holders)
        self._forwarders = Forwarders()
        self._kept: AddressBook | None = None  # a kept book that has not been computed once more
        self.update_pod = self._holders.update_pod
        self.add_pods = self._holders.add_pods
        self.update_slice = self._holders.update_slice
        self.mark_addresses = self._holders.mark_addresses
        self.holder = self._holders.holder
        self.pack = self._holders.pack

    @property
    def forwarders(self) -> Set[bytes]:
        """The addresses of the discovered forwarders that topodns trusts."""
        return self._forwarders.addresses

    @property
    def due(self) -> float | None:
        """When trust in the next leaving forwarder ends (seconds since 1970), None if none is leaving."""
        return self._forwarders.due

    def start_from(self, book: AddressBook, locations: Callable[[], Iterable[Location]]) -> AddressBook:
        """Take over the book of a kept snapshot, with all its *locations*; return the book to go on from.

        All addresses and pod CIDRs of the book are computed once more, in case that the objects are newer.
        """
        self.locations.start_from(locations)
        self._kept = book.with_holders(self.holder)
        return self._kept

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
        kept, self._kept = self._kept or AddressBook(), None
        self.mark_addresses(address for address, _ in kept.places.items())
        changed = self._holders.pop_changed()
        reviewed = self._cidrs.review(changed.endpoints, all_changed=changed.all_endpoints)
        for network in reviewed:
            report(network, self._cidrs.findings.get(network, ()))
        reviewed = {**dict.fromkeys(kept.cidrs.changes_since(PrefixTable())), **reviewed}
        cidrs = {
            network: place for network, place in reviewed.items() if not same_place(place, before.cidr_place(network))
        }
        trusted = self._forwarders.addresses
        if dns_slices is not None:
            self._forwarders.update_slices(dns_slices, now)
        self._forwarders.end_trust(now, self._holders.held_by_another)
        trust_changed = trusted ^ self._forwarders.addresses
        if cidrs or self._cidrs.distrusted != before.distrusted_cidrs:
            book = before.with_changes({}, cidrs, distrusted_cidrs=self._cidrs.distrusted)
            trust_changed |= self._forwarders.addresses  # one without an object of its own is located by its block
        else:
            book = before
        addresses = {**changed.others, **changed.endpoints, **dict.fromkeys(trust_changed)}
        places = self._places(before, book, addresses)
        return book.with_changes(places, {}, distrusted_cidrs=book.distrusted_cidrs) if places else book

    def _places(
        self, before: AddressBook, around: AddressBook, addresses: Iterable[bytes]
    ) -> dict[bytes, Place | None]:
        """Return those of some addresses with other places than *before*; None for one that no object holds now.

        *around* is the book with the pod CIDRs of now.
        """
        forwarders, trusts_networks = self._forwarders.addresses, around.trusts_networks
        held = before.places if len(before.places) else None
        places: dict[bytes, Place | None] = {}
        for address, place in self._holders.places(addresses):
            if address in forwarders or (place is not None and trusts_networks and around.trusts(address)):
                place = replace(place or around.locate_by_block(address), forwarder=True)
            if held is None or not same_place(place, held.get(address)):
                places[address] = place
        return places
