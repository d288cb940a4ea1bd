"""Who asks, and where: what a packet's source and what it says of its client come to.

Only a trusted forwarder is believed, and of what it says only the first of these that is there: a PROXY
header, the EDNS client option, EDNS client subnet. One that then names nobody asks for an unknown client.
"""

from __future__ import annotations

from dnsserver.message.wire import Edns
from locator.ip import plain_address
from locator.model import UNKNOWN
from locator.places.address_book import NOWHERE, AddressBook, Place

UNNAMED_CLIENT = Place(UNKNOWN, NOWHERE)  # of whom nothing is said
MAX_BLOCKS = 8192  # remembered client subnets shorter than a host: a /24 for each node of a large cluster fits


class Clients:
    """Where clients are by one address book after another.

    ``places`` has the book's places in one dictionary: what is looked up for each query. ``blocks``
    are the places of client subnets shorter than a host, by the option's content.
    """

    def __init__(self) -> None:
        self._book = AddressBook()
        self.places: dict[bytes, Place] = {}
        self.blocks: dict[bytes, Place] = {}

    def follow(self, book: AddressBook) -> None:
        """Locate clients by *book* from now on."""
        if book is not self._book:
            book.bring_up_to_date(self.places, self._book)
            self._book = book
            self.blocks.clear()

    def source(self, source: bytes) -> Place:
        """Return the place of a packet's source; of a trusted forwarder only that it is one."""
        return self.places.get(source) or self._book.source(source)

    def locate(self, address: bytes) -> Place:
        """Return the place of one address, which may be an IPv4-mapped one."""
        return self.places.get(address) or self._book.locate(plain_address(address))

    def place_of(self, source: bytes, edns: Edns | None, *, client: bytes | None, remember: bool) -> Place:
        """Return where the client is; ``UNNAMED_CLIENT`` where a forwarder that is believed does not say who it is.

        *client* is what a PROXY header says: empty where it names nobody, None without one. *remember*
        is whether what a block agrees on may come from memory, and stays there.
        """
        place = self.source(source)
        if not place.forwarder:
            return place
        if client is None and edns is not None:
            client = edns.option
        if client:
            return self.locate(client)
        subnet = edns.subnet if client is None and edns is not None else None
        network = subnet.network if subnet is not None else None
        if subnet is None or network is None:
            return UNNAMED_CLIENT
        if subnet.host:
            return self.locate(subnet.address)
        known = self.blocks.get(subnet.content) if remember else None
        if known is None:
            known = self._book.locate_network(network)
            if remember:
                self._keep(subnet.content, known)
        return known

    def _keep(self, content: bytes, place: Place) -> None:
        if len(self.blocks) >= MAX_BLOCKS:
            self.blocks.clear()
        self.blocks[content] = place
