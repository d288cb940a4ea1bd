# SPDX-License-Identifier: Apache-2.0

"""Makes known to native code what a responder remembers, so that it can repeat answers without the interpreter.

The native code (``native/``) decides nothing. It looks up what this module made known, in the order in which
``Responder.answer`` looks it up, and leaves every other query to that. Whatever no longer holds for a new snapshot
is forgotten at its publication.

Locations, tuples of label keys, values and Services are known to it by numbers, which are never used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from cachetools import LRUCache
from msgspec import Struct, field

from dnsserver.message import wire
from dnsserver.message.edns import opt_record, udp_limit
from dnsserver.message.query import Query
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.metrics.counters import Counts
from dnsserver.responder.answer_cache import CachedAnswers
from dnsserver.responder.clients import Clients
from dnsserver.responder.replies import AnsweredQuery, ReplyWriter
from locator.ip import Network, host_network, plain_address
from locator.model import Location
from locator.places.address_book import UNKNOWN_PLACE, Place
from locator.state.snapshot import Basis, Snapshot

MAX_TERMS = 256  # tuples of label keys
MAX_LOCATIONS = 65_536  # of clients: a large cluster has 5,000 nodes
MAX_RECORDS_SIZE = 65535  # octets of records: longer answers never fit into a datagram, and offsets have 16 bits
MAX_TRANSIENT_SIZE = 1024  # octets of an answer: most say that a name does not exist. 16,384 take some megabytes
MAX_REFRESHED = 1200  # endpoints of answers at one publication, three milliseconds or so; more answers are forgotten
ANSWER_COST = 16  # endpoints: an answer costs as much besides its own
MAX_REFRESHED_LOCATIONS = 16  # of one question: the zones, not each node
# Octets from the end of the question, if the rest is an OPT record whose only option is client subnet: of the record
# without options; to the option's content, and to the address in that.
OPT_FIXED, SUBNET_CONTENT_AT, SUBNET_ADDRESS_AT = 11, 15, 19
PLAIN_FLAGS = wire.RD | wire.CD | wire.AD
PLACES_AT_ONCE = 4096  # handed over: a large cluster has 150,000

# The numbers of its location and of its ``Origin``; whether it is a forwarder; the number of the range around a client
# that nothing locates, else 0.
KnownPlace = tuple[int, int, bool, int]
# Flags; records in each section; the records; their offsets; what follows them; octets of glue in that; offset of the
# serial in that; whether the answer depends on the client; its tally.
Parts = tuple[int, Sequence[int], bytes, Sequence[int], bytes, int, int, bool, int]


class Repeated(Protocol):
    """What the native code knows, and may repeat."""

    def learn_places(self, places: Sequence[tuple[bytes, KnownPlace | None]]) -> None:
        """Make known the places of addresses that an object has; None for one that no object has any more."""

    def learn_source(self, source: bytes, place: KnownPlace) -> None:
        """Make known the place of a packet's source, a packed address that no object has."""

    def learn_client(self, client: bytes, place: KnownPlace) -> None:
        """Make known the place of an address that no object has, and that a forwarder names."""

    def learn_block(self, content: bytes, place: KnownPlace) -> None:
        """Make known the place of a shorter client subnet, by the option's content."""

    def learn_profile(self, rest: bytes, *, limit: int, opts: tuple[bytes, bytes], octets: int, host: bool) -> None:
        """Make known what a reply needs to know of its query's EDNS, by the octets *rest* behind the question.

        *limit* is the size of a UDP reply. *opts* is the reply's OPT record without the address of a client subnet: for
        an answer that does not depend on the client, and for one that does. *octets* is the length of that address;
        *host*: it is a whole one.
        """

    def learn_transient(self, question: bytes, parts: Parts) -> None:
        """Make known an answer that all clients get until the next publication."""

    def learn_answer(self, question: bytes, basis: int, parts: Parts) -> None:
        """Make known an answer that all clients get as long as the Service with the number *basis* is the same."""

    def learn_choice(self, question: bytes, basis: int, choice: tuple[int, int, int], parts: Parts) -> None:
        """Make known an answer for some clients; *choice* has the numbers of label keys, location and values."""

    def asked(self, bases: Sequence[int]) -> Sequence[bytes]:
        """Return the questions about some Services that were answered since the answer was made known."""

    def publish(self, serial: int, bases: Sequence[int], networks: Sequence[Network] | None) -> None:
        """Forget the answers of some Services, and all transient ones.

        Unless *networks* is None, forget the places of all blocks, and of addresses in the networks that no object has.
        """

    def forget_profiles(self) -> None:
        """Forget what was made known of EDNS."""

    def take_numbers(
        self,
    ) -> tuple[Sequence[Mapping[int, int]], Sequence[int], Mapping[int, int], Sequence[int], float]:
        """Return what was counted since the last call.

        Replies as in ``Channel.counts``, and those cut, for IPv4 and IPv6 each; those to clients that nothing locates,
        by range; durations by bound, and their sum in seconds.
        """


K = TypeVar("K", bound=Hashable)


class _Numbers(Generic[K]):
    """Numbers of values, at most *limit* of them: a value that was not used for long gets a new number."""

    def __init__(self, limit: int) -> None:
        self._numbers: LRUCache[K, int] = LRUCache(limit)
        self._next = 0

    def of(self, value: K) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = self._next = self._next + 1
        return number


class _KnownBasis(Struct):
    """A Service whose answers are known, and the questions about it, by themselves with the case folded."""

    basis: Basis
    number: int
    questions: dict[bytes, _Asked] = field(default_factory=dict)


class _Asked(Struct):
    """A query, and the locations of some clients with different answers to its question."""

    query: Query
    locations: list[Location] = field(default_factory=list)


class Repeater:
    """Keeps *repeated* up to date with what *clients* locate and what was answered; *writer* knows about OPT records.

    *origin_of* returns the number of a place's ``Origin``. *answer_again* returns the answer to the question of a query
    for clients at a location, and what is remembered of the question; None if that is nothing.
    """

    def __init__(
        self,
        repeated: Repeated,
        clients: Clients,
        writer: ReplyWriter,
        counts: Counts,
        *,
        origin_of: Callable[[Place], int],
        answer_again: Callable[[Query, Location], tuple[RenderedAnswer, CachedAnswers] | None],
    ) -> None:
        self._repeated = repeated
        self._origin_of = origin_of
        self._answer_again = answer_again
        self._clients, self._writer, self._counts = clients, writer, counts
        self._locations: _Numbers[Location] = _Numbers(MAX_LOCATIONS)
        self._terms: _Numbers[tuple[str, ...]] = _Numbers(MAX_TERMS)
        self._values: _Numbers[tuple[object, ...]] = _Numbers(MAX_LOCATIONS)
        self._bases: dict[str, _KnownBasis] = {}  # by the Service's key
        self._last_basis = 0
        self._places: list[tuple[bytes, KnownPlace | None]] = []  # changed, and not handed over yet
        self._unrepeated: frozenset[str] | None = frozenset()  # see ``leave_to_python``
        self._serial = 0
        self.forget_profiles = repeated.forget_profiles

    def learn(self, answered: AnsweredQuery) -> None:
        """Make known what it takes to repeat the answer to a query that was just answered, if it can be repeated."""
        query, source, client, answer = answered.query, answered.source, answered.client, answered.answer
        if self._unrepeated is None or client is None or answer is None or answered.cached is None:
            return
        rest, subnet = query.octets[query.end :], query.edns.subnet if query.edns is not None else None
        if (
            query.flags & ~PLAIN_FLAGS
            or query.octets[4:11] != b"\0\1\0\0\0\0\0"
            or not self._learn_profile(query, rest)
        ):
            return
        self._learn_place(source, self._clients.source(source), self._repeated.learn_source)
        if client.forwarded:
            if client.network is None:
                return
            if client.network.is_host:
                self._learn_place(client.octets, client.place, self._repeated.learn_client)
            elif subnet is not None:
                known = self._known(client.place, client.network)
                self._repeated.learn_block(rest[SUBNET_CONTENT_AT:], known)
        self._learn_answer(query, answer, answered.cached, client.place.location)

    def leave_to_python(self, services: frozenset[str] | None) -> None:
        """Make the native code leave the queries about these Services to Python from now on; None: all queries.

        As long as there are any, it also leaves those whose answer belongs to no Service.
        """
        self._unrepeated = services
        if services is None or services:
            left = [key for key in self._bases if services is None or _service_of(key) in services]
            self._repeated.publish(self._serial, [self._bases.pop(key).number for key in left], None)

    def place_changed(self, address: bytes, place: Place | None) -> None:
        """Make known where an address is now, None if no object has it any more."""
        self._places.append((address, None if place is None else self._known(place)))
        if len(self._places) == PLACES_AT_ONCE:
            self._hand_over_places()

    def publish(self, snapshot: Snapshot, networks: Sequence[Network] | None) -> None:
        """Forget what may not hold for *snapshot*; *networks* is what ``Clients.follow`` returned.

        What was asked of a Service that changed is likely to be asked again, so it is answered at once. Otherwise
        its clients would wait for Python while the cluster changes.
        """
        self._hand_over_places()
        self._serial = snapshot.serial & 0xFFFFFFFF
        changed = [key for key, known in self._bases.items() if not snapshot.holds(known.basis)]
        bases = [self._bases.pop(key) for key in changed]
        numbers = [basis.number for basis in bases]
        if bases:
            self._refresh(bases, frozenset(self._repeated.asked(numbers)))
        self._repeated.publish(self._serial, numbers, networks)

    def count(self) -> None:
        """Add what the native code counted to the counters."""
        counts = self._counts
        replies, truncated, unlocated, durations, seconds = self._repeated.take_numbers()
        for family, (numbers, cut) in enumerate(zip(replies, truncated, strict=True), start=1):
            channel = counts.channels["udp", family]
            channel.truncated += cut
            for key, number in numbers.items():
                channel.counts[key] += number
        for number, times in unlocated.items():
            counts.unlocated_clients.add(number, times)
        counts.durations.add_all(durations, seconds)

    def _refresh(self, bases: Iterable[_KnownBasis], asked: Container[bytes]) -> None:
        left = MAX_REFRESHED
        for known_basis in bases:
            cost = ANSWER_COST + len(known_basis.basis.endpoints)
            for folded, known in known_basis.questions.items():
                if folded in asked and len(known.locations) * cost <= left:
                    left -= len(known.locations) * cost
                    with suppress(Exception):  # it is counted and logged when somebody asks
                        for location in known.locations:
                            found = self._answer_again(known.query, location)
                            if found is not None:
                                self._learn_answer(known.query, *found, location)

    def _hand_over_places(self) -> None:
        if self._places:
            self._repeated.learn_places(self._places)
            self._places = []

    def _learn_place(self, address: bytes, place: Place, otherwise: Callable[[bytes, KnownPlace], None]) -> None:
        address = plain_address(address)
        if self._clients.places.get(address) is place:
            self._repeated.learn_places([(address, self._known(place))])
        else:
            otherwise(address, self._known(place, host_network(address)))

    def _learn_profile(self, query: Query, rest: bytes) -> bool:
        """Make known what a reply needs to know of a query's EDNS, its *rest*; return whether that is all of it."""
        edns, writer = query.edns, self._writer
        if edns is None:
            return not rest
        subnet = edns.subnet
        size, host, end = 0, True, OPT_FIXED
        if subnet is not None:
            size, host = len(subnet.address), subnet.prefix_length == (32 if subnet.family == 1 else 128)
            end = SUBNET_ADDRESS_AT + size
            if not 0 < subnet.prefix_length == 8 * size:  # bits beyond the prefix are FORMERR, which only parsing finds
                return False
        if len(rest) != end or edns.version:
            return False
        independent, dependent = (
            opt_record(edns, nsid=writer.nsid, dependent=scoped, errors=writer.common_errors)
            for scoped in (False, True)
        )
        opts = independent[: len(independent) - size], dependent[: len(dependent) - size]
        limit = udp_limit(edns, writer.max_udp_size)
        self._repeated.learn_profile(rest[:SUBNET_ADDRESS_AT], limit=limit, opts=opts, octets=size, host=host)
        return True

    def _learn_answer(self, query: Query, answer: RenderedAnswer, cached: CachedAnswers, location: Location) -> None:
        question = query.question
        if answer.aliases or answer.error is not None or answer.length > MAX_RECORDS_SIZE:
            return
        for_all, basis = cached.answer is not None, cached.basis
        if basis is None or isinstance(basis, Snapshot):
            if for_all and answer.size <= MAX_TRANSIENT_SIZE and not self._unrepeated:
                self._repeated.learn_transient(question, _parts(answer))
            return
        if self._unrepeated and _service_of(basis.basis_key) in self._unrepeated:
            return
        known = self._known_basis(basis)
        locations = known.questions.setdefault(question, _Asked(query)).locations
        if len(locations) < MAX_REFRESHED_LOCATIONS and (not for_all or not locations):
            locations.append(location)
        if for_all:
            self._repeated.learn_answer(question, known.number, _parts(answer))
        else:
            choice = (
                self._terms.of(cached.terms),
                self._locations.of(location),
                self._values.of(cached.values_at(location)),
            )
            self._repeated.learn_choice(question, known.number, choice, _parts(answer))

    def _known_basis(self, basis: Basis) -> _KnownBasis:
        key = basis.basis_key
        known = self._bases.get(key)
        if known is None:
            self._last_basis += 1
            known = self._bases[key] = _KnownBasis(basis, self._last_basis)
        return known

    def _known(self, place: Place, client: Network | None = None) -> KnownPlace:
        unlocated = client if place is UNKNOWN_PLACE else None
        number = 0 if unlocated is None else self._counts.unlocated_clients.number(unlocated)
        return self._locations.of(place.location), self._origin_of(place), place.forwarder, number


def _service_of(basis_key: str) -> str:
    """Return ``namespace/name`` of the Service that has a ``Basis.basis_key``."""
    return basis_key.partition(" ")[0]


def _parts(answer: RenderedAnswer) -> Parts:
    # Python leaves out additional records that do not fit, and cuts the spares.
    additional = answer.additional
    optional = len(answer.tail) if answer.spares else len(additional.whole) if additional is not None else 0
    return (
        answer.flags,
        answer.section_counts,
        answer.blob[: answer.length],
        answer.offsets[: answer.records + 1],
        answer.tail,
        optional,
        answer.serial_at,
        answer.dependent,
        answer.tally,
    )
