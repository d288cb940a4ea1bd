# SPDX-License-Identifier: Apache-2.0

"""The address books of several clusters, read as one.

An address belongs to the own cluster if an object or a trusted pod CIDR there has it, else to the one other cluster
that has it. If several others have it, nobody can tell whose it is: it is unknown. Configured subnets come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from locator.ip import Network, network_text
from locator.model import Location
from locator.places.book import (
    SUBNET,
    UNKNOWN_PLACE,
    AddressBook,
    AgreementCache,
    Place,
    shared_location,
)


class JoinedBook:
    """The places of all addresses of the *own* cluster and of *others*, which are always in the same order.

    ``places`` are those of the own cluster.
    """

    def __init__(self, own: AddressBook, others: Sequence[AddressBook]) -> None:
        self._own, self._others = own, tuple(others)
        self.books = (own, *others)
        self.places = own.places
        self.distrusted_cidrs = own.distrusted_cidrs

    def source(self, address: bytes) -> Place:
        """Return the place of a packet's source; ``forwarder`` says whether it asks on behalf of other clients."""
        place = self.places.get(address)
        if place is not None:
            return place
        return self._own.source(address) if self._own.trusts(address) else self.locate(address)

    def locate(self, address: bytes) -> Place:
        """Return the place of one address, ``UNKNOWN_PLACE`` if nothing locates it, or two clusters do."""
        place = self._own.find(address)
        if place is not None:
            return place
        found = [place for book in self._others if (place := book.find(address)) is not None]
        if not found:
            return self._own.locate(address)  # a configured subnet may have it
        return found[0] if len(found) == 1 else UNKNOWN_PLACE

    def locate_network(self, network: Network, cache: AgreementCache | None = None) -> Place:
        """Return the place that a whole block shares: a node, the labels in common, or ``UNKNOWN_PLACE``."""
        if network.length == 8 * len(network.address):
            return self.locate(network.address)
        if not network.length:
            return UNKNOWN_PLACE
        books = [book for book in (self._own, *self._others) if book.has_part_of(network)]
        if len(books) == 1:
            return _known(books[0].locate_among_clusters(network, AgreementCache() if cache is None else cache))
        if not books or self._own.cidrs.find(network.address, network.length) is not None:
            return self._own.locate_network(network, cache)
        parts = list(self._parts_of(network))
        if not parts:
            return UNKNOWN_PLACE
        location = shared_location(place.location for _, place in parts)
        _, first = min(parts, key=lambda part: part[0].address)
        return _known(Place(location, first.located_by, network_text(network)))

    def holder(self, network: Network) -> str:
        """Describe the object or block whose place ``locate_network`` returns, empty if nothing locates it."""
        if self._own.has_part_of(network) or self._own.find(network.address) is not None:
            return self._own.holder(network)
        holding = [book for book in self._others if book.has_part_of(network)]
        if not holding:
            return self._own.holder(network)
        return holding[0].holder(network) if len(holding) == 1 else ""

    def overlooked(self, network: Network) -> str:
        """Say which endpoint of the own cluster has an address and does not locate it, and what would make it count."""
        place = self.locate(network.address)
        is_elsewhere = self._own.find(network.address) is None and place.location.known and place.located_by != SUBNET
        return "" if is_elsewhere else self._own.overlooked(network)

    def _parts_of(self, network: Network) -> Iterator[tuple[Network, Place]]:
        """Yield the parts of a block that some cluster has, those of others only where the own has them not.

        If pod CIDRs of several others have all of it, it is unknown like each address in it.
        """
        around = [book.cidrs.find(network.address, network.length) for book in self._others]
        yield from [(network, place) for place in around if place is not None and around.count(None) == len(around) - 1]
        for book in self._others:
            for part, place in book.parts_within(network):
                if self._own.cidrs.find(part.address, part.length) is None and not (
                    part.length == 8 * len(part.address) and self._own.places.get(part.address)
                ):
                    yield part, place
        yield from self._own.parts_within(network)


def _known(place: Place) -> Place:
    """Return a place whose location counts as known if it has a label, and be it the cluster alone."""
    location = place.location
    if location.known or not location.labels:
        return place
    return replace(place, location=Location(location.node, location.labels))
