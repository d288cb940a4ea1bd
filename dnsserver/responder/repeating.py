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

from msgspec import Struct, field

from dnsserver.message import wire
from dnsserver.message.proxy_protocol import PLAIN_HEADERS
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.metrics.counters import Counts
from dnsserver.responder.answer_cache import MAX_LOCATIONS, MAX_TERMS, AnswerCache
from dnsserver.responder.clients import Clients
from dnsserver.responder.recognition import (
    HEAD_INDEXES,
    NO_EDNS,
    SUBNET_ADDRESS_AT,
    SUBNET_CONTENT_AT,
    WITH_OPT,
    EdnsProfile,
    EdnsProfiles,
)
from locator.bounded_map import BoundedMap
from locator.ip import Network, host_network, plain_address
from locator.model import Location
from locator.places.book import UNKNOWN_PLACE, Place
from locator.state.snapshot import Basis, Snapshot

MAX_RECORDS_SIZE = 65535  # octets of records: longer answers never fit into a datagram, and offsets have 16 bits
MAX_TRANSIENT_SIZE = 1024  # octets of an answer: most say that a name does not exist. 16,384 take some megabytes
MAX_REFRESHED = 1200  # endpoints of answers at one publication, three milliseconds or so; more answers are forgotten
ANSWER_COST = 16  # endpoints: an answer costs as much besides its own
MAX_REFRESHED_LOCATIONS = 16  # of one question: the zones, not each node
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
        """Make known an ``EdnsProfile``."""

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
        """Forget every ``EdnsProfile``."""

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
        self._numbers: BoundedMap[K, int] = BoundedMap(limit)
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
    """A question as it was asked, and the locations of some clients with different answers.

    Folding the case would make another type of some types, such as HTTPS.
    """

    question: bytes
    locations: list[Location] = field(default_factory=list)


class Repeater:
    """Keeps *repeated* up to date with what *clients*, *profiles* and *cache* remember.

    *origin_of* returns the number of a place's ``Origin``. *answer_again* computes and remembers the answer to a
    question for clients at a location.
    """

    def __init__(
        self,
        repeated: Repeated,
        clients: Clients,
        profiles: EdnsProfiles,
        cache: AnswerCache,
        counts: Counts,
        *,
        origin_of: Callable[[Place], int],
        answer_again: Callable[[bytes, Location], None],
    ) -> None:
        self._repeated = repeated
        self._origin_of = origin_of
        self._answer_again = answer_again
        self._clients, self._profiles, self._cache, self._counts = clients, profiles, cache, counts
        self._locations: _Numbers[Location] = _Numbers(4 * MAX_LOCATIONS)
        self._terms: _Numbers[tuple[str, ...]] = _Numbers(MAX_TERMS)
        self._values: _Numbers[tuple[object, ...]] = _Numbers(4 * MAX_LOCATIONS)
        self._bases: dict[str, _KnownBasis] = {}  # by the Service's key
        self._last_basis = 0
        self._places: list[tuple[bytes, KnownPlace | None]] = []  # changed, and not handed over yet
        self._unrepeated: frozenset[str] | None = frozenset()  # see ``leave_to_python``
        self._serial = 0
        self.forget_profiles = repeated.forget_profiles

    def learn(self, query: bytes, source: bytes) -> None:
        """Make known what it takes to repeat the answer to a query that was just answered, if it can be repeated."""
        if self._unrepeated is None:
            return
        place = self._clients.source(source)
        in_header: bytes | None = None
        if place.forwarder:
            for start, size, octets in PLAIN_HEADERS:
                if query.startswith(start) and len(query) >= size:
                    query, in_header = query[size:], query[len(start) : len(start) + octets]
        head, end = HEAD_INDEXES.get(query[2 : wire.HEADER]), query.find(b"\0", wire.HEADER) + 5
        if head is None:
            return
        asked = query[wire.HEADER : end]
        question = asked.lower()
        basis = self._cache.basis_of(question)
        profile = self._learned_profile(query[end:]) if head >= WITH_OPT else NO_EDNS
        if profile is None:
            return
        self._learn_place(source, place, self._repeated.learn_source)
        named, host = query[end + SUBNET_ADDRESS_AT :] if profile.octets else b"", profile.host
        if in_header is not None:
            named, host = in_header, True
        if place.forwarder:
            if not named:
                return
            if host:
                place = self._clients.locate(named)
                self._learn_place(named, place, self._repeated.learn_client)
            else:
                content = query[end + SUBNET_CONTENT_AT :]
                block = self._clients.blocks.get(content)
                if block is None:
                    return
                place = block
                client = self._clients.client_of(source, profile.edns_of(named), header_client=None)
                self._repeated.learn_block(content, self._known(place, client))
        self._learn_answer(asked, basis, place.location)

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
                            self._answer_again(known.question, location)
                            self._learn_answer(known.question, self._cache.basis_of(folded), location)

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

    def _learned_profile(self, rest: bytes) -> EdnsProfile | None:
        """Make known a query's EDNS, and return its profile; None if there is none."""
        key = rest[:SUBNET_ADDRESS_AT]
        profile = self._profiles.known.get(key)
        if profile is None or (profile.octets and len(rest) != SUBNET_ADDRESS_AT + profile.octets):
            return None
        self._repeated.learn_profile(
            key, limit=profile.limit, opts=profile.opts, octets=profile.octets, host=profile.host
        )
        return profile

    def _learn_answer(self, asked: bytes, basis: Basis | None, location: Location) -> None:
        question = asked.lower()
        remembered = self._cache.current.get(question) or self._cache.recall(question)
        if remembered is None:
            return
        answers = remembered[2] if isinstance(remembered, tuple) else None
        answer = remembered if isinstance(remembered, RenderedAnswer) else remembered[2].get(location)
        if answer is None or not answer.plain or answer.length > MAX_RECORDS_SIZE:
            return
        if basis is None:
            if answers is None and answer.size <= MAX_TRANSIENT_SIZE and not self._unrepeated:
                self._repeated.learn_transient(question, _parts(answer))
            return
        if self._unrepeated and _service_of(basis.basis_key) in self._unrepeated:
            return
        known = self._known_basis(basis)
        locations = known.questions.setdefault(question, _Asked(asked)).locations
        if len(locations) < MAX_REFRESHED_LOCATIONS and (answers is not None or not locations):
            locations.append(location)
        if answers is None:
            self._repeated.learn_answer(question, known.number, _parts(answer))
        else:
            choice = (
                self._terms.of(answers.terms),
                self._locations.of(location),
                self._values.of(answers.values_at(location)),
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
    # Python leaves out glue that does not fit, and cuts the spares.
    optional = len(answer.tail) if answer.spares else len(answer.glue.whole) if answer.glue is not None else 0
    additional = answer.glue.count if answer.glue is not None else 0
    return (
        answer.flags,
        (*answer.section_counts, additional),
        answer.blob[: answer.length],
        answer.offsets[: answer.records + 1],
        answer.tail,
        optional,
        answer.serial_at,
        answer.dependent,
        answer.tally,
    )
