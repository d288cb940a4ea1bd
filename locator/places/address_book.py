"""Which location an address has: pods, node addresses, pod CIDRs, configured subnets.

``AddressBook`` is immutable; a changed cluster makes a new one, which shares what stayed. Exact
addresses are a dictionary look-up or two whatever their number, blocks one for each prefix length in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from operator import attrgetter, itemgetter

from msgspec import Struct

from locator.bounded_map import BoundedMap
from locator.ip import Network, network_end, network_text
from locator.model import UNKNOWN, Location, canonical_labels
from locator.places.address_map import GROUP, AddressMap, Group, PrefixTable, Row

POD = "pod"
POD_LOCATOR = "podlocator"
ENDPOINT = "endpoint"
NODE = "node"
POD_CIDR = "podcidr"
SUBNET = "subnet"
NOWHERE = "unknown"

WORTH_REMEMBERING = 8  # places: what fewer agree on is found out as soon as it is remembered
MAX_AGREED = 65_536  # parts of a cluster of which a reader remembers what they agree on


class Place(Struct, frozen=True, eq=False, gc=False):
    """What the address book says of one address: its location, and by what it was located.

    ``holder`` names the object that has the address, for people. ``forwarder`` is true where
    queries from this address are asked on behalf of others, and so say nothing of the asker.
    """

    location: Location
    located_by: str
    holder: str = ""
    forwarder: bool = False


class Agreed(Struct, frozen=True, gc=False):
    """What the places of some addresses agree on, and the first of them, with its address."""

    address: bytes
    place: Place
    location: Location


STRANGER = Place(UNKNOWN, NOWHERE)
FORWARDER = Place(UNKNOWN, NOWHERE, forwarder=True)


def same_place(left: Place | None, right: Place | None) -> bool:
    """Whether two places say the same, of the same location."""
    if left is None or right is None:
        return left is right
    return (
        left.location is right.location
        and left.holder == right.holder
        and left.located_by == right.located_by
        and left.forwarder == right.forwarder
    )


class AddressBook:
    """Where every address of one cluster is (first match wins).

    ``places`` has the addresses that are held by something known; ``source`` and ``locate``
    answer for every address, ``locate_network`` for a block. ``distrusted_cidrs`` counts the
    pod CIDRs of nodes that are not believed.
    """

    def __init__(
        self, *, subnets: Mapping[Network, Mapping[str, str]] | None = None, forwarders: Iterable[Network] = ()
    ) -> None:
        """Start with nothing but networks that were told: where they are, and which are of trusted forwarders."""
        self.places: AddressMap[Place] = AddressMap()
        self.cidrs: PrefixTable[Place] = PrefixTable()  # pod CIDRs that are believed
        self.distrusted_cidrs = 0
        self._subnets = {
            network: Place(Location(None, canonical_labels(dict(labels))), SUBNET, f"subnet {network_text(network)}")
            for network, labels in (subnets or {}).items()
        }
        self._subnet_table = PrefixTable(self._subnets)
        self._trusted = PrefixTable(dict.fromkeys(forwarders, True))
        self.trusting = bool(self._trusted)
        # What speaks for the blocks around it: held addresses for which no pod CIDR speaks, and pod CIDRs.
        self._witnesses: AddressMap[Place] = AddressMap()
        self._cidr_witnesses: AddressMap[tuple[tuple[int, Place], ...]] = AddressMap()

    def changed(
        self,
        places: Mapping[bytes, Place | None],
        cidrs: Mapping[Network, Place | None],
        *,
        distrusted_cidrs: int = 0,
    ) -> AddressBook:
        """Return the book in which some addresses and pod CIDRs have other places, None for none; this one stays."""
        after = copy(self)
        after.places, after.cidrs = self.places.changed(places), self.cidrs.changed(cidrs)
        after.distrusted_cidrs = distrusted_cidrs
        after._cidr_witnesses = self._cidr_witnesses.changed(self._cidrs_at(cidrs))
        # A block that has a place now or has none any more makes the addresses in it silent, or lets them speak.
        turned = [network for network in cidrs if (cidrs[network] is None) != (self.stated(network) is None)]
        within = [after.places.within(network) for network in turned] if len(self.places) else []
        witnesses: dict[bytes, Place | None] = {}
        for address, around in after.cidrs.around_each(chain(places, *(map(itemgetter(0), row) for row in within))):
            place = None if around else places[address] if address in places else after.places.get(address)
            if place is not None and place.location.known:
                witnesses[address] = place
            elif len(self._witnesses) and self._witnesses.get(address) is not None:
                witnesses[address] = None
        after._witnesses = self._witnesses.changed(witnesses)
        return after

    def source(self, address: bytes) -> Place:
        """Return the place of a packet's source; of a trusted forwarder only that it is one."""
        place = self.places.get(address)
        if place is not None:
            return place
        return FORWARDER if self.trusts(address) else self.locate(address)

    def locate(self, address: bytes) -> Place:
        """Return the place of one address, ``STRANGER`` if nobody knows it."""
        return self.places.get(address) or self.unheld(address)

    def unheld(self, address: bytes) -> Place:
        """Return the place that an address has, or would have, if nothing known holds it."""
        return self.cidrs.find(address) or self._subnet_table.find(address) or STRANGER

    def locate_network(self, network: Network, known: AgreedParts | None = None) -> Place:
        """Return the place that all of a block (a plain one) agrees on: a node, shared labels, or ``STRANGER``.

        Whoever asks often hands in *known*, the same from one book to the next.
        """
        if network.length == 8 * len(network.address):
            return self.locate(network.address)
        if not network.length:  # all addresses together are nowhere
            return STRANGER
        return self._agreed(network, AgreedParts() if known is None else known)

    def trusts(self, address: bytes) -> bool:
        """Whether an address lies in a network of trusted forwarders."""
        return self.trusting and self._trusted.find(address) is not None

    def stated(self, network: Network) -> Place | None:
        """Return the place of a believed pod CIDR, None if there is none of just this size."""
        found = self._cidr_witnesses.get(network.address) or ()
        return next((place for length, place in found if length == network.length), None)

    def _cidrs_at(self, cidrs: Mapping[Network, Place | None]) -> dict[bytes, tuple[tuple[int, Place], ...] | None]:
        """Return the pod CIDRs that begin at some addresses, after these changes, the shortest first."""
        rows: dict[bytes, dict[int, Place]] = {}
        for network, place in cidrs.items():
            row = rows.setdefault(network.address, dict(self._cidr_witnesses.get(network.address) or ()))
            row.pop(network.length, None)
            if place is not None:
                row[network.length] = place
        return {address: tuple(sorted(row.items(), key=itemgetter(0))) or None for address, row in rows.items()}

    def _agreed(self, network: Network, known: AgreedParts) -> Place:
        around = self.cidrs.find(network.address, network.length)
        found = [
            Agreed(address, place, place.location)
            for address, cidrs in self._cidr_witnesses.within(network)
            for length, place in cidrs
            if length > network.length
        ]
        found += self._agreed_within(network, known)
        if not found and around is None:  # nothing of the cluster is there
            around = self._subnet_table.find(network.address, network.length)
            lowest, highest = network.address, network_end(network)
            found = [
                Agreed(subnet.address, place, place.location)
                for subnet, place in self._subnets.items()
                if len(subnet.address) == len(network.address)
                and subnet.length > network.length
                and lowest <= subnet.address <= highest
            ]
        if not found and around is None:
            return STRANGER
        first = around or min(found, key=attrgetter("address")).place
        location = shared_location(chain([first.location], map(attrgetter("location"), found)))
        if location is first.location:
            return first
        return Place(location, first.located_by, network_text(network)) if location.known else STRANGER

    def _agreed_within(self, network: Network, known: AgreedParts) -> Iterator[Agreed]:
        """Yield what the witnesses in a block agree on, those of a row or of a group together."""
        octets, witnesses = len(network.address), self._witnesses
        if network.length > 8 * (octets - 1):
            if some := dict(witnesses.within(network)):
                yield agreed(some)
        elif network.length > 8 * GROUP[octets]:
            for head, row in witnesses.rows_within(network):
                yield known.of_row(head, row)
        else:
            for common, group in witnesses.groups_within(network):
                yield known.of_group(common, group)


class AgreedParts:
    """What parts of a cluster's addresses agree on, remembered by a reader of address books.

    A part is a row or a group of an ``AddressMap``. What is remembered of it holds as long as the
    part is the same object, so most lives on from one book to the next.
    """

    def __init__(self) -> None:
        self._known: BoundedMap[bytes, tuple[object, Agreed]] = BoundedMap(MAX_AGREED)

    def of_group(self, common: bytes, group: Group[Place]) -> Agreed:
        """Return what the places of a group agree on; its addresses begin with *common*."""
        return self._of(common, group, lambda: all_agreed([self.of_row(head, row) for head, row in group.items()]))

    def of_row(self, head: bytes, row: Row[Place]) -> Agreed:
        """Return what the places of a row agree on; its addresses begin with *head*."""
        return agreed(row) if len(row) < WORTH_REMEMBERING else self._of(head, row, lambda: agreed(row))

    def _of(self, key: bytes, part: object, agree: Callable[[], Agreed]) -> Agreed:
        known = self._known.get(key)
        if known is None or known[0] is not part:
            known = self._known[key] = part, agree()
        return known[1]


def agreed(places: Mapping[bytes, Place]) -> Agreed:
    """Return what some places, at least one, agree on."""
    if len(places) == 1:
        ((address, place),) = places.items()
        return Agreed(address, place, place.location)
    ordered = sorted(places.items())
    address, place = ordered[0]
    return Agreed(address, place, shared_location(each.location for _, each in ordered))


def all_agreed(parts: Sequence[Agreed]) -> Agreed:
    """Return what several, at least one, agree on."""
    first = min(parts, key=attrgetter("address"))
    return Agreed(first.address, first.place, shared_location(map(attrgetter("location"), parts)))


def shared_location(locations: Iterable[Location]) -> Location:
    """Return what all locations agree on: one of them, the labels they share, or ``UNKNOWN``."""
    distinct: dict[int, Location] = {}
    labels: Mapping[str, str] = {}
    for location in locations:
        if id(location) in distinct:
            continue
        if distinct:
            labels = {key: value for key, value in labels.items() if location.labels.get(key) == value}
            if not labels:
                return UNKNOWN
        else:
            labels = location.labels
        distinct[id(location)] = location
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    return Location(None, dict(labels)) if labels else UNKNOWN
