# SPDX-License-Identifier: Apache-2.0

"""Maps addresses to places: by pods, endpoints, nodes, pod CIDRs and configured subnets.

``AddressBook`` is immutable; a changed copy shares what stayed. However large the cluster, finding a
single address takes one or two dictionary look-ups, and finding the block around it one for each
prefix length in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Protocol

from msgspec import Struct

from locator.ip import Network, network_text
from locator.model import CLUSTER, UNKNOWN_LOCATION, Location, canonical_labels
from locator.places.address_map import AddressMap, AddressRow
from locator.places.prefix_table import PrefixTable

# The values of ``Place.located_by``.
POD = "pod"
POD_LOCATOR = "podlocator"
ENDPOINT = "endpoint"
NODE = "node"
POD_CIDR = "podcidr"
SUBNET = "subnet"
NOWHERE = "unknown"
LOCATED_BY = (POD, POD_LOCATOR, ENDPOINT, NODE, POD_CIDR, SUBNET, NOWHERE)

MIN_CACHED_PLACES = 8  # comparing fewer places is as fast as a look-up in the cache
MAX_AGREEMENTS = 65_536  # that one reader caches


class Place(Struct, frozen=True, eq=False, weakref=True):
    """The location of an address, and how topodns knows it.

    Many addresses share one place. ``located_by`` is one of the words above. ``block`` describes the pod CIDR or
    subnet that has the place, as people read it; empty if an object holds the address (``AddressBook.holder``).
    ``forwarder`` is true for a trusted forwarder: its queries come from other clients, so its own location says
    nothing about them.
    """

    location: Location
    located_by: str
    block: str = ""
    forwarder: bool = False


class Agreement(Struct, frozen=True, gc=False):
    """The lowest of some addresses, its place, and the location that the places of all of them share."""

    address: bytes
    place: Place
    location: Location


UNKNOWN_PLACE = Place(UNKNOWN_LOCATION, NOWHERE)
UNLOCATED_FORWARDER = Place(UNKNOWN_LOCATION, NOWHERE, forwarder=True)


def same_place(left: Place | None, right: Place | None) -> bool:
    """Whether two places are equal and have the very same location object."""
    if left is None or right is None:
        return left is right
    return (
        left.location is right.location
        and left.block == right.block
        and left.located_by == right.located_by
        and left.forwarder == right.forwarder
    )


Places = AddressMap[Place]
"""The places of the addresses that objects have."""


class Book(Protocol):
    """What a reader of an address book uses, whether it is of one cluster or of several."""

    @property
    def places(self) -> Places:
        """The places of the addresses that objects have."""

    @property
    def books(self) -> Sequence[AddressBook]:
        """The books that it reads: that of the own cluster, then those of others, always in the same order."""

    @property
    def distrusted_cidrs(self) -> int:
        """How many pod CIDRs topodns does not trust, once for each node."""

    def source(self, address: bytes) -> Place:
        """Return the place of a packet's source; ``forwarder`` says whether it asks on behalf of other clients."""

    def locate(self, address: bytes) -> Place:
        """Return the place of one address, ``UNKNOWN_PLACE`` if nothing locates it."""

    def locate_network(self, network: Network, cache: AgreementCache | None = None) -> Place:
        """Return the place that a whole block shares: a node, the labels in common, or ``UNKNOWN_PLACE``.

        *network* is never an IPv4-mapped one. A frequent caller passes the same *cache* to one book after the other.
        """

    def holder(self, network: Network) -> str:
        """Describe the object or block whose place ``locate_network`` returns, as people read it (``pod shop/web-0``).

        Empty if nothing locates the network. An object is the one that holds the address now: a place does not
        remember it, since an answer never depends on it.
        """

    def overlooked(self, network: Network) -> str:
        """Say which endpoint has an address that a pod CIDR, a subnet or nothing locates, and what would make it count.

        Empty if there is none, or if the network is no single address.
        """


class Holders(Protocol):
    """Describes who has an address at the moment of the call; a ``BookBuilder`` does."""

    def holder(self, address: bytes) -> str:
        """Describe the object that holds an address (``pod shop/web-0``), empty if none does."""

    def overlooked(self, address: bytes) -> str:
        """Say which endpoint has an address and does not count, and what would make it; empty if there is none."""


class AddressBook:
    """The places of all addresses of one cluster.

    The first match wins: an object that holds the address, the longest pod CIDR around it, the longest subnet.
    ``places`` has the addresses that a pod, PodLocator, kept endpoint or node holds, and the discovered forwarders.
    ``cidrs`` has the pod CIDRs, and the configured subnets within them that say what their nodes' labels lack.
    ``source`` and ``locate`` answer for every address, ``locate_network`` for a block.
    ``distrusted_cidrs`` counts the pod CIDRs that topodns does not trust, once for each node.
    ``subnets`` and ``forwarder_networks`` are the configured networks.
    """

    def __init__(
        self,
        *,
        subnets: Mapping[Network, Mapping[str, str]] | None = None,
        forwarders: Iterable[Network] = (),
        holders: Holders | None = None,
    ) -> None:
        """Start with the configured networks only: *subnets* with their labels, and those of trusted *forwarders*."""
        self.places = Places()
        self.cidrs: PrefixTable[Place] = PrefixTable()  # the trusted ones
        self.distrusted_cidrs = 0
        self.subnets = PrefixTable(
            {
                network: Place(
                    Location(None, canonical_labels(dict(labels))), SUBNET, f"subnet {network_text(network)}"
                )
                for network, labels in (subnets or {}).items()
            }
        )
        self.forwarder_networks = PrefixTable(dict.fromkeys(forwarders, True))
        self.trusts_networks = bool(self.forwarder_networks)
        self._holders = holders
        # A block is located by the trusted pod CIDRs in it, and by the located addresses that no such CIDR contains.
        self._outside_cidrs = Places()

    @property
    def books(self) -> tuple[AddressBook]:
        """This book alone."""
        return (self,)

    def with_changes(
        self,
        places: Mapping[bytes, Place | None],
        cidrs: Mapping[Network, Place | None],
        *,
        distrusted_cidrs: int = 0,
    ) -> AddressBook:
        """Return a copy with new places of some addresses and pod CIDRs; None removes one."""
        after = copy(self)
        after.places, after.cidrs = self.places.with_changes(places), self.cidrs.with_changes(cidrs)
        after.distrusted_cidrs = distrusted_cidrs
        # An added CIDR covers addresses that were outside of all CIDRs; a removed one may uncover some.
        toggled = [network for network in cidrs if (cidrs[network] is None) != (self.cidrs.get(network) is None)]
        within = [after.places.within(network) for network in toggled] if len(self.places) else []
        outside: dict[bytes, Place | None] = {}
        none_was_outside = not len(self._outside_cidrs)
        for address, around in after.cidrs.around_each(chain(places, *(map(itemgetter(0), items) for items in within))):
            if around and none_was_outside:
                continue
            place = None if around else places[address] if address in places else after.places.get(address)
            if place is not None and place.location.known:
                outside[address] = place
            elif self._outside_cidrs.get(address) is not None:
                outside[address] = None
        after._outside_cidrs = self._outside_cidrs.with_changes(outside)
        return after

    def saved_parts(self) -> dict[str, object]:
        """Return what of a book can be saved for another process: all but the holders."""
        return {**vars(self), "_holders": None}

    def with_holders(self, holders: Holders) -> AddressBook:
        """Return a copy with other holders."""
        after = copy(self)
        after._holders = holders
        return after

    def source(self, address: bytes) -> Place:
        """Return the place of a packet's source; ``forwarder`` says whether it asks on behalf of other clients."""
        place = self.places.get(address)
        if place is not None:
            return place
        return UNLOCATED_FORWARDER if self.trusts(address) else self.locate(address)

    def locate(self, address: bytes) -> Place:
        """Return the place of one address, ``UNKNOWN_PLACE`` if nothing locates it."""
        return self.places.get(address) or self.locate_by_block(address)

    def locate_by_block(self, address: bytes) -> Place:
        """Return the place of an address that no object holds: that of its pod CIDR or subnet, else unknown."""
        return self.cidrs.find(address) or self.subnets.find(address) or UNKNOWN_PLACE

    def find(self, address: bytes) -> Place | None:
        """Return the place of an address that an object or a trusted pod CIDR has, None if neither has."""
        return self.places.get(address) or self.cidrs.find(address)

    def locate_network(self, network: Network, cache: AgreementCache | None = None) -> Place:
        """Return the place that a whole block shares: a node, the labels in common, or ``UNKNOWN_PLACE``."""
        return self._located(network, AgreementCache() if cache is None else cache)[0]

    def locate_among_clusters(self, network: Network, cache: AgreementCache) -> Place:
        """Do as ``locate_network``, where it is worth something to know the cluster alone."""
        return self._located(network, cache, among_clusters=True)[0]

    def parts_within(self, network: Network) -> Iterator[tuple[Network, Place]]:
        """Yield what this cluster has of a block, with its place: pod CIDRs in it, and addresses outside of those."""
        yield from self.cidrs.within(network)
        for address, place in self._outside_cidrs.within(network):
            yield Network(address, 8 * len(address)), place

    def has_part_of(self, network: Network) -> bool:
        """Whether this cluster has a part of a block, or all of it."""
        around = self.cidrs.find(network.address, network.length)
        return around is not None or next(self.parts_within(network), None) is not None

    def holder(self, network: Network) -> str:
        """Describe the object or block whose place ``locate_network`` returns, empty if nothing locates it."""
        place, address = self._located(network, AgreementCache())
        return place.block or ("" if address is None or self._holders is None else self._holders.holder(address))

    def overlooked(self, network: Network) -> str:
        """Say which endpoint has an address and does not locate it, and what would make it count; empty if none has."""
        if not network.is_host or self._holders is None:
            return ""
        located_by = self.locate(network.address).located_by
        return self._holders.overlooked(network.address) if located_by in (POD_CIDR, SUBNET, NOWHERE) else ""

    def trusts(self, address: bytes) -> bool:
        """Whether an address is in a configured network of trusted forwarders."""
        return self.trusts_networks and self.forwarder_networks.find(address) is not None

    def _located(
        self, network: Network, cache: AgreementCache, *, among_clusters: bool = False
    ) -> tuple[Place, bytes | None]:
        """Return the place that a network shares, and the address from which it is, None if it is a block's."""
        if network.length == 8 * len(network.address):
            return self.locate(network.address), network.address
        if not network.length:  # all addresses together have no location
            return UNKNOWN_PLACE, None
        around = self.cidrs.find(network.address, network.length)
        agreements = [Agreement(cidr.address, place, place.location) for cidr, place in self.cidrs.within(network)]
        agreements += self._agreements_within(network, cache)
        if not agreements and around is None:  # no part of the cluster is in this block
            around = self.subnets.find(network.address, network.length)
            subnets = self.subnets.within(network)
            agreements = [Agreement(subnet.address, place, place.location) for subnet, place in subnets]
        if around is not None:
            first, lowest = around, None
        elif agreements:
            agreed = min(agreements, key=attrgetter("address"))
            first, lowest = agreed.place, agreed.address
        else:
            return UNKNOWN_PLACE, None
        location = shared_location(chain([first.location], map(attrgetter("location"), agreements)))
        if location is first.location:
            return first, lowest
        if not location.known and not (among_clusters and location.labels):
            return UNKNOWN_PLACE, None
        return Place(location, first.located_by, network_text(network)), None

    def _agreements_within(self, network: Network, cache: AgreementCache) -> Iterator[Agreement]:
        """Yield the agreements of the addresses in a block that are in no pod CIDR, row by row."""
        if network.length <= 8 * (len(network.address) - 1):
            yield from map(cache.of_row, self._outside_cidrs.rows_within(network))
        elif places := list(self._outside_cidrs.within(network)):
            yield agreement_of(places)


class AgreementCache:
    """The agreements of the rows of an ``AddressMap``, cached by a reader of address books.

    A cached agreement holds while its row is the same object, so most of them outlive the change from one book to the
    next.
    """

    def __init__(self) -> None:
        self._cached: dict[bytes, tuple[AddressRow[Place], Agreement]] = {}

    def of_row(self, row: AddressRow[Place]) -> Agreement:
        """Return the agreement of a row."""
        if len(row.octets) == 1:  # so is every row, if addresses of hosts are random (IPv6)
            return Agreement(row.head + row.octets, row.values[0], row.values[0].location)
        cached = self._cached.get(row.head)
        if cached is not None and cached[0] is row:
            return cached[1]
        agreement = agreement_of([*row.items()])
        if len(row.octets) >= MIN_CACHED_PLACES:
            self._cached[row.head] = row, agreement
            if len(self._cached) > MAX_AGREEMENTS:
                del self._cached[next(iter(self._cached))]
        return agreement


def agreement_of(places: Sequence[tuple[bytes, Place]]) -> Agreement:
    """Return the agreement of at least one address with its place."""
    ordered = sorted(places, key=itemgetter(0))
    address, place = ordered[0]
    return Agreement(address, place, shared_location(place.location for _, place in ordered))


def shared_location(locations: Iterable[Location]) -> Location:
    """Return the only location if all are one object, else their common node and labels, else ``UNKNOWN_LOCATION``.

    To have nothing but the cluster in common is not to be known. Locations on one node differ by what it lacks.
    """
    distinct = list({id(location): location for location in locations}.values())
    if len(distinct) == 1:
        return distinct[0]
    first = distinct[0] if distinct else UNKNOWN_LOCATION
    labels = {
        key: value
        for key, value in first.labels.items()
        if all(location.labels.get(key) == value for location in distinct)
    }
    if not labels:
        return UNKNOWN_LOCATION
    same_node = all((location.node, location.cluster) == (first.node, first.cluster) for location in distinct)
    return Location(first.node if same_node else None, labels, known=bool(labels.keys() - {CLUSTER}))
