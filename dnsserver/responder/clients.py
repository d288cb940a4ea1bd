# SPDX-License-Identifier: Apache-2.0

"""Locates the client of a query, from the packet's source and from what a forwarder says in it.

topodns accepts a client's address only from a trusted forwarder, and takes the first of: a PROXY header,
the EDNS client option, EDNS client subnet. If that names no client, the client is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from dnsserver.message.wire import ClientSubnet, Edns
from locator.bounded_map import BoundedMap
from locator.ip import Network, host_network, plain_address
from locator.model import UNKNOWN, Location
from locator.places.address_book import (
    NODE,
    NOWHERE,
    AddressBook,
    Addresses,
    AgreementCache,
    Place,
    Places,
)

UNNAMED_CLIENT = Place(UNKNOWN, NOWHERE)  # a trusted forwarder did not name it
MAX_BLOCKS = 16_384  # client subnets shorter than a host: room for a /24 for each node of a large cluster
MAX_LABEL_SETS = 4096  # that the addresses of such subnets have in common


class Clients:
    """The places of clients, by the address book of the last snapshot.

    ``places`` has the book's places by address. ``blocks`` has the places of client subnets shorter than a host, by the
    option's content: a dictionary for the hot look-up, and always the same object.
    """

    def __init__(self) -> None:
        self._book: Addresses = AddressBook()
        self._agreed = AgreementCache()
        self._blocks: BoundedMap[bytes, Place] = BoundedMap(MAX_BLOCKS)
        self._shared: BoundedMap[frozenset[tuple[str, str]], Location] = BoundedMap(MAX_LABEL_SETS)
        self.places: Places = self._book.places
        self.blocks: Mapping[bytes, Place] = self._blocks.recent

    def follow(self, book: Addresses) -> None:
        """Locate clients by *book* from now on."""
        if book is not self._book:
            self._book, self.places = book, book.places
            self._blocks.clear()

    def source(self, source: bytes) -> Place:
        """Return the place of a packet's source. If its ``forwarder`` is true, the client is somebody else."""
        return self.places.get(source) or self._book.source(source)

    def asks_for_many(self, source: bytes) -> bool:
        """Whether *source*, which need not be a client, is a trusted forwarder or a node's own address."""
        place = self._book.source(source)
        return place.forwarder or place.located_by == NODE

    def locate(self, address: bytes) -> Place:
        """Return the place of a packed address, which may be IPv4-mapped."""
        return self.places.get(address) or self._book.locate(plain_address(address))

    def place_of(self, source: bytes, edns: Edns | None, *, header_client: bytes | None, remember: bool) -> Place:
        """Return the client's place, ``UNNAMED_CLIENT`` if a trusted forwarder does not name the client.

        *header_client* is the address in the PROXY header: empty if the header has none, None without a
        header. *remember* allows remembered places of blocks, and remembers new ones.
        """
        place = self.source(source)
        if not place.forwarder:
            return place
        network = _named(edns, header_client)
        if network is None:
            return UNNAMED_CLIENT
        if network.is_host:
            return self.locate(network.address)
        if not remember:
            return self._book.locate_network(network)
        assert edns is not None and edns.subnet is not None  # nothing else names a block
        return self._block(edns.subnet, network)

    def client_of(self, source: bytes, edns: Edns | None, *, header_client: bytes | None) -> Network | None:
        """Return the client that ``place_of`` locates, None if a trusted forwarder does not name it."""
        return _named(edns, header_client) if self.source(source).forwarder else host_network(plain_address(source))

    def named(self, source: bytes, edns: Edns | None, *, header_client: bytes | None) -> bytes:
        """Return the octets of the client that ``client_of`` returns: its packed address, or its block's as they came.

        They are empty for a client that a trusted forwarder does not name: all of those are one.
        """
        if not self.source(source).forwarder:
            return plain_address(source)
        if header_client is None and edns is not None:
            if edns.option is None:
                return plain_address(edns.subnet.address) if edns.subnet is not None else b""
            return plain_address(edns.option)
        return plain_address(header_client or b"")

    def _block(self, subnet: ClientSubnet, network: Network) -> Place:
        place = self._blocks.get(subnet.content)
        if place is None:
            place = self._blocks[subnet.content] = self._with_shared_location(
                self._book.locate_network(network, self._agreed)
            )
        return place

    def _with_shared_location(self, place: Place) -> Place:
        """Return *place*, with one location object for all blocks that have these labels and no node."""
        location = place.location
        if location.node is not None or not location.known:
            return place
        labels = frozenset(location.labels.items())
        shared = self._shared.get(labels)
        if shared is None:
            shared = self._shared[labels] = location
        return Place(shared, place.located_by, place.block, place.forwarder)


def _named(edns: Edns | None, header_client: bytes | None) -> Network | None:
    """Return the client that a forwarder names in a PROXY header, else in its option, else as a client subnet."""
    client = edns.option if header_client is None and edns is not None else header_client
    if client:
        return host_network(plain_address(client))
    subnet = edns.subnet if client is None and edns is not None else None
    return None if subnet is None else subnet.network
