# SPDX-License-Identifier: Apache-2.0

"""Proposes ``--subnet`` networks for a cluster without pod CIDRs, from the addresses that it knows.

Some networks, such as Amazon's VPC, give a pod an address of the subnet that its node is in. Nodes then have no pod
CIDRs, but a subnet lies in one zone. A configured subnet locates a pod from its first query on, even if that comes
before the watch has shown the pod's address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from locator.ip import Network
from locator.model import REGION, ZONE, Location
from locator.places.book import ENDPOINT, POD, POD_LOCATOR, AddressBook

# Prefix lengths of a cloud's subnets, by the octets of an address: Amazon has /16 to /28, and /44 to /64.
LARGEST, USUAL, SMALLEST = {4: 16, 16: 44}, {4: 24, 16: 64}, {4: 28, 16: 64}
MAX_PROPOSALS = 16  # if it takes more, the network does not follow the zones
MIN_KNOWN = 2  # addresses in a proposed network: one alone says nothing about its neighbours


class RegionalZone(NamedTuple):
    """A zone and its region, None if that is not known."""

    zone: str
    region: str | None

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its nodes."""
        return {ZONE: self.zone} | ({REGION: self.region} if self.region is not None else {})


NO_ZONE = RegionalZone("", None)  # that of a node without a zone; no label has this value


class KnownAddress(NamedTuple):
    """An address, and the zone of the node that it is on. ``wanted``: the network around it should be proposed."""

    address: bytes
    zone: RegionalZone
    wanted: bool


class _Mixed(Exception):
    """Two zones share a network that no cloud divides."""


def proposed_subnets(book: AddressBook) -> dict[Network, RegionalZone]:
    """Return the networks of the pods and endpoints in an address book, by address; none if they are not needed.

    That is so for a family of addresses in which a node has a pod CIDR, for what a configured subnet locates already,
    and in a cluster of one zone.
    """
    known = [entry for octets in (4, 16) if not book.cidrs.has_size(octets) for entry in _known(book, octets)]
    proposals = networks_of(known)
    return proposals if len({entry.zone for entry in known} - {NO_ZONE}) > 1 else {}


def networks_of(known: Sequence[KnownAddress]) -> dict[Network, RegionalZone]:
    """Return the fewest networks that hold the wanted addresses, and no address of another zone than their own.

    Each is as small as its addresses allow, but not smaller than usual, and holds at least MIN_KNOWN. Returns none if
    it takes more than MAX_PROPOSALS, or if addresses of two zones, a wanted one among them, share one of the smallest
    networks: then addresses do not follow zones.
    """
    proposals: dict[Network, RegionalZone] = {}
    try:
        for octets in (4, 16):
            ordered = sorted(entry for entry in known if len(entry.address) == octets)
            if ordered:
                proposals.update(_divided(ordered, 0))
    except _Mixed:
        return {}
    return proposals if len(proposals) <= MAX_PROPOSALS else {}


def _known(book: AddressBook, octets: int) -> Iterator[KnownAddress]:
    for address, place in book.places.items():
        zone = place.location.value(ZONE)
        if len(address) != octets:
            continue
        if zone is not None:
            wanted = place.located_by in (POD, POD_LOCATOR, ENDPOINT) and not _covered(book, address, place.location)
            yield KnownAddress(address, RegionalZone(zone, place.location.value(REGION)), wanted)
        elif place.location.node is not None:  # a subnet around it would say where it is
            yield KnownAddress(address, NO_ZONE, wanted=False)


def _covered(book: AddressBook, address: bytes, location: Location) -> bool:
    subnet = book.subnets.find(address)
    return subnet is not None and subnet.location.value(ZONE) == location.value(ZONE)


def _divided(ordered: Sequence[KnownAddress], length: int) -> Iterator[tuple[Network, RegionalZone]]:
    """Yield the networks of the addresses in one network of *length* bits, in order. Raises _Mixed."""
    if not any(entry.wanted for entry in ordered):
        return
    first, octets = ordered[0], len(ordered[0].address)
    differing = int.from_bytes(first.address) ^ int.from_bytes(ordered[-1].address)
    common = 8 * octets - differing.bit_length()
    if all(entry.zone == first.zone for entry in ordered) and common >= LARGEST[octets]:
        if len(ordered) >= MIN_KNOWN:
            yield _network(first.address, max(length, min(common, USUAL[octets]))), first.zone
    elif common >= SMALLEST[octets]:
        raise _Mixed
    else:
        bit = 1 << (8 * octets - common - 1)
        for side in (0, bit):
            half = [entry for entry in ordered if int.from_bytes(entry.address) & bit == side]
            yield from _divided(half, common + 1)


def _network(address: bytes, length: int) -> Network:
    size = 8 * len(address)
    return Network((int.from_bytes(address) >> (size - length) << (size - length)).to_bytes(len(address)), length)
