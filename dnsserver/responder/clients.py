# SPDX-License-Identifier: Apache-2.0

"""Says who the client of a query is, and where: from the packet's source, and from what a forwarder says in it.

topodns accepts a client's address only from a trusted forwarder, and takes the first of: a PROXY header,
the EDNS client option, EDNS client subnet. If that names no client, the client is unknown.
"""

from __future__ import annotations

from cachetools import LRUCache
from msgspec import Struct

from dnsserver.message.query import ClientSubnet, Query
from locator.ip import Network, plain_address
from locator.model import UNKNOWN_LOCATION, Location
from locator.places.book import (
    NODE,
    NOWHERE,
    AddressBook,
    AgreementCache,
    Book,
    Place,
)

UNNAMED_CLIENT = Place(UNKNOWN_LOCATION, NOWHERE)  # a trusted forwarder did not name it
MAX_BLOCKS = 16_384  # client subnets shorter than a host: room for a /24 for each node of a large cluster
MAX_LABEL_SETS = 4096  # that the addresses of such subnets have in common


class LocatedClient(Struct, frozen=True, gc=False):
    """The client of a query, and its place by an address ``book``.

    ``address`` and ``length`` are its address, or the block that a forwarder names, as a ``Network`` has them. If a
    trusted forwarder names nobody, they are empty and 0, and the place is ``UNNAMED_CLIENT``. ``octets`` is the packed
    address, or the octets of the block as they came. ``forwarded``: a trusted forwarder sent the query.
    """

    place: Place
    address: bytes
    length: int
    octets: bytes
    book: Book
    forwarded: bool

    @property
    def is_host(self) -> bool:
        """Whether it is a whole address."""
        return self.length > 0 and self.length == 8 * len(self.address)

    @property
    def network(self) -> Network | None:
        """The address or block, None if nobody is named."""
        return Network(self.address, self.length) if self.length else None


class Clients:
    """The places of clients, by the address book of the last snapshot."""

    def __init__(self) -> None:
        self._book: Book = AddressBook()
        self._agreed = AgreementCache()
        self._blocks: LRUCache[Network, Place] = LRUCache(MAX_BLOCKS)
        self._shared: LRUCache[frozenset[tuple[str, str]], Location] = LRUCache(MAX_LABEL_SETS)

    def follow(self, book: Book) -> None:
        """Locate clients by *book* from now on."""
        if book is not self._book:
            self._book = book
            self._blocks.clear()

    def source(self, source: bytes) -> Place:
        """Return the place of a packet's source. If its ``forwarder`` is true, the client is somebody else."""
        return self._book.source(source)

    def asks_for_many(self, source: bytes) -> bool:
        """Whether *source*, which need not be a client, is a trusted forwarder or a node's own address."""
        place = self._book.source(source)
        return place.forwarder or place.located_by == NODE

    def client_of(self, query: Query, source: bytes) -> LocatedClient:
        """Return the client of a query that came from *source*, a packed address that is not IPv4-mapped."""
        book = self._book
        place = book.source(source)
        if not place.forwarder:
            return LocatedClient(place, source, 8 * len(source), source, book, False)
        named, edns = query.header_client, query.edns
        if named is None and edns is not None:
            named, subnet = edns.option, edns.subnet
            if named is None and subnet is not None:
                if not subnet.is_host:
                    return self._at(subnet)
                named = subnet.address
        if not named:
            return LocatedClient(UNNAMED_CLIENT, b"", 0, b"", book, True)
        address = plain_address(named)
        return LocatedClient(book.locate(address), address, 8 * len(address), address, book, True)

    def _at(self, subnet: ClientSubnet) -> LocatedClient:
        """Return the client that a forwarder names by a subnet shorter than a host."""
        network, octets = subnet.network, subnet.address
        if network is None:
            return LocatedClient(UNNAMED_CLIENT, b"", 0, octets, self._book, True)
        return LocatedClient(self._block(network), *network, octets, self._book, True)

    def _block(self, network: Network) -> Place:
        place = self._blocks.get(network)
        if place is None:
            located = self._book.locate_network(network, self._agreed)
            place = self._blocks[network] = self._with_shared_location(located)
        return place

    def _with_shared_location(self, place: Place) -> Place:
        """Return *place*, with one location object for all blocks that have these labels and no node."""
        location = place.location
        if location.node is not None or not location.known:
            return place
        shared = self._shared.setdefault(frozenset(location.labels.items()), location)
        return Place(shared, place.located_by, place.block, place.forwarder)
