"""Who asks, and where: what a packet's source and what it says of its client come to.

Only a trusted forwarder is believed, and of what it says only the first of these that is there: a PROXY
header, the EDNS client option, EDNS client subnet. One that then names nobody asks for an unknown client.
"""

from __future__ import annotations

from dnsserver.metrics import Counts
from dnsserver.wire import Edns
from locator.addresses import NOWHERE, AddressBook, Place, address_text, plain_address
from locator.model import UNKNOWN

NAMELESS = Place(UNKNOWN, NOWHERE)  # of whom nothing is said
MAX_BLOCKS = 8192  # remembered client subnets shorter than a host: a /24 for each node of a large cluster fits


class Clients:
    """Where clients are by one address book after another.

    ``places`` has the book's places in one dictionary: what is looked up for each query. ``blocks``
    are the places of client subnets by family, lengths and address, as they stand in the option.
    """

    def __init__(self, counts: Counts) -> None:
        self._nameless = counts.nameless
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

    def place_of(self, source: bytes, client: bytes | None, edns: Edns | None) -> Place:
        """Return where the client is.

        *client* is what a PROXY header says: empty where it names nobody, None without one.
        """
        place = self.source(source)
        if not place.forwarder:
            return place
        if client is None and edns is not None:
            client = edns.option
        if client:
            return self.locate(client)
        network = edns.subnet.network if client is None and edns is not None and edns.subnet is not None else None
        if network is not None:
            return self._book.locate_network(network)
        self._nameless.note(address_text(source))  # unknown, never the forwarder's own place
        return NAMELESS

    def remember_block(self, option: bytes, source: bytes, place: Place) -> None:
        """Keep the place of a client subnet that names a client, if *source* is believed."""
        if place is NAMELESS or not self.source(source).forwarder:
            return
        if len(self.blocks) >= MAX_BLOCKS:
            self.blocks.clear()
        self.blocks[option] = place
