# SPDX-License-Identifier: Apache-2.0

"""Makes known to native code where clients are and what they are answered, so that it repeats answers by itself.

The native code (``native/``) decides nothing. It locates a client by the address book, as Python does; it looks up the
answer that a responder has put there for such clients, and leaves every other query to Python. Whatever no longer
holds for a new snapshot is forgotten at its publication.

Locations, tuples of label keys, values and Services are known to it by numbers, which are never used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import count, islice, zip_longest
from typing import Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from cachetools import FIFOCache, LRUCache
from msgspec import Struct, field

from dnsserver.message import wire
from dnsserver.message.edns import udp_limit
from dnsserver.message.query import Edns, Query
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.metrics.counters import ADDRESS, BLOCK, Counts
from dnsserver.responder.answer_cache import CachedAnswers
from dnsserver.responder.replies import AnsweredQuery, ReplyWriter
from locator.ip import Network
from locator.model import Location
from locator.places.book import UNKNOWN_PLACE, AddressBook, Book, Place
from locator.state.snapshot import AnyService, Snapshot

MAX_KEYS = 256  # tuples of label keys
MAX_VALUES = 65_536  # tuples of values of these: a large cluster has 5,000 nodes
MAX_FORMS = 1024  # of EDNS: clients and forwarders write queries in a few ways only
MAX_RECORDS_SIZE = 65535  # octets of records: longer answers never fit into a datagram, and offsets have 16 bits
MAX_UNTIL_PUBLISHED = 1024  # octets of an answer: most say that a name does not exist. 16,384 take some megabytes
MAX_REFRESHED = 1200  # endpoints of answers at one publication, three milliseconds or so; more answers are forgotten
ANSWER_COST = 16  # endpoints: an answer costs as much besides its own
MAX_REFRESHED_LOCATIONS = 16  # of one question: the zones, not each node
PLAIN_FLAGS = wire.RD | wire.CD | wire.AD  # what a query says with AD does not matter (RFC 6840, section 5.7)
# Octets from the end of the question, if the rest is an OPT record whose only option is client subnet: of the record
# without options; to the option's content, and to the address in that.
OPT_FIXED, SUBNET_CONTENT_AT, SUBNET_ADDRESS_AT = 11, 15, 19
PLACES_AT_ONCE = 4096  # handed over: a large cluster has 150,000


class NativePlace(NamedTuple):
    """A client's place: the numbers of its location and ``ClientOrigin``; whether it forwards; whether it is known."""

    location: int
    origin: int
    forwarder: bool
    located: bool


class EdnsForm(NamedTuple):
    """What a reply needs to know of its query's EDNS, but for the address of the client subnet.

    ``limit`` is the size of the reply. ``opts`` is its OPT record without that address: for an answer that does not
    depend on the client, and for one that does. ``octets`` are those of the address in the query; ``host`` is whether
    they are a whole address.
    """

    limit: int
    opts: tuple[bytes, bytes]
    octets: int
    host: bool


class ClientGroup(NamedTuple):
    """The clients that get an answer: the numbers of some label keys and of their values of these.

    Those at *location* are among them. *alike* has the numbers of other values that lead to the same answer.
    """

    keys: int
    values: int
    location: int
    alike: Sequence[int] = ()


class TakenCounts(Protocol):
    """What was counted since the last call.

    ``replies``, as in ``Channel.counts``, and those ``truncated``, for IPv4 and IPv6 each. ``unlocated`` are those to
    clients that nothing locates: whether a forwarder named a block, an address in their range (empty if there were too
    many ranges), how many. ``askers`` are the numbers of tallies, each with the address of a client that got such an
    answer, if that is ``noted``. ``durations`` are by bound, their sum in ``seconds``.
    """

    replies: Sequence[Mapping[int, int]]
    truncated: Sequence[int]
    unlocated: Sequence[tuple[bool, bytes, int]]
    askers: Sequence[tuple[int, bytes]]
    durations: Sequence[int]
    seconds: float


class AnswerTable(Protocol):
    """What the native code knows, and may repeat."""

    def configure(
        self, subnets: Sequence[tuple[Network, NativePlace]], forwarders: Sequence[Network], unknown: NativePlace
    ) -> None:
        """Make known the configured networks: subnets, and those of trusted forwarders; and the place of all others."""

    def places(self, cluster: int, changes: Sequence[tuple[bytes, NativePlace | None]]) -> None:
        """Make known the places of addresses that objects of a cluster hold, None for one that none holds any more.

        The own cluster has the number 0.
        """

    def pod_cidrs(self, cluster: int, changes: Sequence[tuple[Network, NativePlace | None]]) -> None:
        """Make known the places of pod CIDRs of a cluster, None for one that it has no more."""

    def block(self, content: bytes, first: bytes, place: NativePlace) -> None:
        """Make known the place of a client subnet, by the option's content and first address, until places change."""

    def edns(self, key: bytes, form: EdnsForm) -> None:
        """Make known a form of EDNS, by the octets of an OPT record before the address of the client subnet."""

    def forget_edns(self) -> None:
        """Forget all forms of EDNS."""

    def answer(self, question: bytes, answer: RenderedAnswer, service: int | None, group: ClientGroup | None) -> None:
        """Make known an answer for a group of clients, or all of them, until the Service with this number is gone.

        Without a Service, it holds until the next publication.
        """

    def asked(self, services: Sequence[int]) -> Sequence[bytes]:
        """Return the questions about some Services that were answered since the answers were made known."""

    def publish(self, serial: int, gone: Sequence[int]) -> None:
        """Forget the answers of the Services *gone*, and all without one; SOA records have *serial* from now on."""

    def take_counts(self) -> TakenCounts:
        """Return what was counted since the last call."""

    def reply(self, query: bytes, source: bytes) -> bytes | None:
        """Return the reply to a datagram as the native code sends it, None if Python must reply."""


K = TypeVar("K", bound=Hashable)


class _Numbers(Generic[K]):
    """Numbers of values, as long as *known* has them: a value that it has lost gets a new number."""

    def __init__(self, known: MutableMapping[K, int]) -> None:
        self._known = known
        self._next = count(1)

    def of(self, value: K) -> int:
        number = self._known.get(value)
        if number is None:
            number = self._known[value] = next(self._next)
        return number

    def get(self, value: K) -> int | None:
        return self._known.get(value)


class _KnownQuestion(Struct):
    """A query, and the locations of some clients with different answers to its question."""

    query: Query
    locations: list[Location] = field(default_factory=list)


class _KnownService(Struct):
    """A Service whose answers are known, and the questions about it, by themselves with the case folded."""

    service: AnyService
    number: int
    questions: dict[bytes, _KnownQuestion] = field(default_factory=dict)


class NativeFeed:
    """Keeps the native *table* up to date with what one responder knows.

    *writer* knows about OPT records. *origin_of* returns the number of the ``ClientOrigin`` of clients at a place.
    *put_again* computes the answer to a query for clients at a location, and puts it here.
    """

    def __init__(
        self,
        table: AnswerTable,
        counts: Counts,
        writer: ReplyWriter,
        *,
        origin_of: Callable[[Place], int],
        put_again: Callable[[Query, Location], None],
    ) -> None:
        self._table = table
        self._counts = counts
        self._writer = writer
        self._origin_of = origin_of
        self._put_again = put_again
        self._book: Book = AddressBook()
        self._locations: _Numbers[Location] = _Numbers(WeakKeyDictionary())
        self._keys: _Numbers[tuple[str, ...]] = _Numbers(LRUCache(MAX_KEYS))
        self._values: _Numbers[tuple[object, ...]] = _Numbers(LRUCache(MAX_VALUES))
        self._services: dict[str, _KnownService] = {}  # by the Service's key
        self._service_numbers = count(1)
        self._left_to_python: frozenset[str] | None = frozenset()
        self._serial = 0
        self._edns_forms: FIFOCache[bytes, EdnsForm] = FIFOCache(MAX_FORMS)  # as the native code knows them, or did

    def forget_edns(self) -> None:
        """Forget all forms of EDNS, since replies will have other OPT records."""
        self._edns_forms.clear()
        self._table.forget_edns()

    def put_answered(self, answered: AnsweredQuery) -> None:
        """Make known what it takes to repeat the answer to a query, if that is lasting, and can be repeated."""
        query, client, answer, cached = answered.query, answered.client, answered.answer, answered.cached
        if client is None or answer is None or cached is None or not answered.lasting or self._left_to_python is None:
            return
        if query.flags & ~PLAIN_FLAGS or not self._put_edns(query):
            return
        if client.forwarded:
            network = client.network
            if network is None:
                return
            if not network.is_host:  # only a client subnet names more than one address
                content = query.octets[query.end + SUBNET_CONTENT_AT :]
                self._table.block(content, network.address, self._native_place(client.place))
        self.put(query, answer, cached, client.place.location)

    def put(self, query: Query, answer: RenderedAnswer, cached: CachedAnswers, location: Location) -> None:
        """Make known the answer to a query for clients at *location*, if it can be repeated."""
        left, service = self._left_to_python, cached.service
        if left is None or answer.aliases or answer.error is not None or answer.length > MAX_RECORDS_SIZE:
            return
        question = query.question
        if service is None:
            if cached.answer is not None and not left and answer.size <= MAX_UNTIL_PUBLISHED:
                self._table.answer(question, answer, None, None)
            return
        if left and _service_of(service.cache_key) in left:
            return
        known = self._known_service(service)
        locations = known.questions.setdefault(question, _KnownQuestion(query)).locations
        if len(locations) < (MAX_REFRESHED_LOCATIONS if cached.client_keys else 1) and location not in locations:
            locations.append(location)
        group = None
        if cached.client_keys:
            values = self._values.of(cached.values_at(location))
            # Values that no client has had so far have no number, and are left out.
            alike = [number for number in map(self._values.get, cached.alike(location)) if number is not None]
            group = ClientGroup(self._keys.of(cached.client_keys), values, self._locations.of(location), alike)
        self._table.answer(question, answer, known.number, group)

    def leave_to_python(self, services: frozenset[str] | None) -> None:
        """Make the native code leave the queries about these Services to Python from now on; None: all queries.

        As long as there are any, it also leaves those whose answer belongs to no Service.
        """
        self._left_to_python = services
        if services is None or services:
            left = [key for key in self._services if services is None or _service_of(key) in services]
            self._table.publish(self._serial, [self._services.pop(key).number for key in left])

    def publish(self, snapshot: Snapshot) -> None:
        """Locate clients by *snapshot* from now on, and forget what may not hold for it.

        What was asked of a Service that changed is likely to be asked again, so it is answered at once. Otherwise
        its clients would wait for Python while the cluster changes.
        """
        self._follow(snapshot.addresses)
        self._serial = snapshot.serial & 0xFFFFFFFF
        changed = [key for key, known in self._services.items() if not snapshot.holds(known.service)]
        gone = [self._services.pop(key) for key in changed]
        numbers = [known.number for known in gone]
        if gone:
            self._refresh(gone, frozenset(self._table.asked(numbers)))
        self._table.publish(self._serial, numbers)

    def count(self) -> None:
        """Add what the native code counted to the counters."""
        counts, taken = self._counts, self._table.take_counts()
        for family, (numbers, cut) in enumerate(zip(taken.replies, taken.truncated, strict=True), start=1):
            channel = counts.channels["udp", family]
            channel.truncated += cut
            for key, number in numbers.items():
                channel.counts[key] += number
        for is_block, address, number in taken.unlocated:
            counts.unlocated_clients.add(BLOCK if is_block else ADDRESS, address, number)
        counts.note_askers(taken.askers)
        counts.durations.add_all(taken.durations, taken.seconds)

    def _follow(self, book: Book) -> None:
        """Make known what differs between *book* and the one before."""
        if book is self._book:
            return
        place_of = cache(self._native_place)  # addresses of one node share their place
        for cluster, (now, then) in enumerate(zip_longest(book.books, self._book.books, fillvalue=AddressBook())):
            if not cluster and now.subnets is not then.subnets:
                subnets = [(network, place_of(place)) for network, place in now.subnets.items()]
                self._table.configure(
                    subnets, [network for network, _ in now.forwarder_networks.items()], place_of(UNKNOWN_PLACE)
                )
            changes = (
                (address, None if place is None else place_of(place))
                for address, place in now.places.changes_since(then.places)
            )
            while some := list(islice(changes, PLACES_AT_ONCE)):
                self._table.places(cluster, some)
            cidrs = [(cidr, now.cidrs.get(cidr)) for cidr in now.cidrs.changes_since(then.cidrs)]
            self._table.pod_cidrs(
                cluster, [(cidr, None if place is None else place_of(place)) for cidr, place in cidrs]
            )
        self._book = book

    def _put_edns(self, query: Query) -> bool:
        """Make known what a reply needs to know of a query's EDNS; return whether native code can know all of it."""
        edns, rest = query.edns, query.octets[query.end :]
        if edns is None:
            return not rest
        subnet = edns.subnet
        size = len(subnet.address) if subnet is not None else 0
        if len(rest) != (OPT_FIXED if subnet is None else SUBNET_ADDRESS_AT + size):
            return False  # other options, or other records
        # Bits beyond the prefix are FORMERR, which only the parser finds.
        if subnet is not None and not 0 < subnet.prefix_length == 8 * size:
            return False
        key = rest[:SUBNET_ADDRESS_AT]
        form = self._edns_forms.get(key)
        if form is None:
            form = self._edns_forms[key] = self._edns_form(edns, size)
        self._table.edns(key, form)  # known or not: the native code forgets what was not asked for lately
        return True

    def _edns_form(self, edns: Edns, size: int) -> EdnsForm:
        """Return what a reply needs to know; *size* is that of the address in the client subnet."""
        writer, subnet = self._writer, edns.subnet
        independent, dependent = (
            writer.opt(edns, dependent=scoped, errors=writer.common_errors) for scoped in (False, True)
        )
        opts = independent[: len(independent) - size], dependent[: len(dependent) - size]
        return EdnsForm(udp_limit(edns, writer.max_udp_size), opts, size, subnet is None or subnet.is_host)

    def _refresh(self, services: Iterable[_KnownService], asked: Container[bytes]) -> None:
        left = MAX_REFRESHED
        for known in services:
            cost = ANSWER_COST + len(known.service.endpoints)
            for folded, question in known.questions.items():
                if folded in asked and len(question.locations) * cost <= left:
                    left -= len(question.locations) * cost
                    with suppress(Exception):  # it is counted and logged when somebody asks
                        for location in question.locations:
                            self._put_again(question.query, location)

    def _known_service(self, service: AnyService) -> _KnownService:
        key = service.cache_key
        if key not in self._services:
            self._services[key] = _KnownService(service, next(self._service_numbers))
        return self._services[key]

    def _native_place(self, place: Place) -> NativePlace:
        location, origin = self._locations.of(place.location), self._origin_of(place)
        return NativePlace(location, origin, place.forwarder, located=place is not UNKNOWN_PLACE)


def _service_of(cache_key: str) -> str:
    """Return ``namespace/name`` of the Service that has a ``cache_key``."""
    return cache_key.partition(" ")[0]
