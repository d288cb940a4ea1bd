# SPDX-License-Identifier: Apache-2.0

"""The counters of a server: plain integers, so that a query pays little. ``server.py`` shows them to Prometheus."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from dnsserver.message.records import type_name
from locator.ip import Network, network_text

# Seconds: from a remembered answer to one whose query waited in a full socket buffer.
DURATION_BOUNDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
# Seconds: from an event that arrives at once to one after a lost watch. They include the delay of Kubernetes'
# EndpointSlice controller.
PROGRAMMING_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 150.0, 300.0)
# Seconds: from a loop that rests to one that something holds for longer than resolvers wait.
LOOP_DELAY_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
# Types with a label value of their own. All others count as "other", so that queries cannot create label values.
COUNTED_TYPES = ("A", "AAAA", "ANY", "CNAME", "HTTPS", "MX", "NS", "PTR", "SOA", "SRV", "SVCB", "TXT")
OTHER = "other"
# Why nothing locates a client: nothing has its address, or the addresses of the block that a forwarder names differ.
ADDRESS, BLOCK = "address", "block"
MAX_TALLIES = 65_536  # a few for each Service with --metrics-per-service; else some dozens in most clusters
DETAILED_TALLIES = MAX_TALLIES - 8192  # those after them say less, so that there are few of them
# Those after them name no Service. A number is never another tally's, since native code counts by numbers: so Services
# that are gone keep theirs, and some ten thousand, one after the other, are counted one by one until the next start.
SERVICE_TALLIES = DETAILED_TALLIES - 8192
MAX_ORIGINS = 1024  # zones times the ways to locate a client
MAX_SERVICES = 1000  # that answers are counted for, one by one, at a time
FEW_PLACES = MAX_SERVICES // 4  # with fewer left, those of Services that are gone are freed
MAX_ASKERS = 8192  # clients by what they got, between two looks; further ones are noted when they ask again
MAX_SOURCES = 1024  # addresses counted one by one; all others count together as "other"
WARN_SECONDS = 3600.0  # between two warnings about one source: it needs an operator, and keeps asking meanwhile
RANGE_OCTETS = {4: 3, 16: 8}  # that the ranges share by which unknown clients are counted; by those of an address
SUSPICIOUS_CLIENTS = 3  # an untrusted source that names so many is likely to be a forwarder


class Tally(Struct, frozen=True, gc=False):
    """What all metrics tell of an answer. A metric does not count an answer with an empty value.

    ``key`` is the topology key that decided. ``zones`` are those of the endpoints in the answer, "" for endpoints
    whose zone is not known. ``outcome`` is UNREADY where no endpoint of the Service is ready. ``service`` is the
    namespace and name of their Service, or of the one of which the client got nothing, if answers are counted for each.

    Native code counts what it repeats by the number of the tally, so a new field needs no change there. There must be
    few tallies: ``MAX_TALLIES``.
    """

    qtype: str
    rcode: int
    outcome: str = ""
    key: str = ""
    zones: frozenset[str] = frozenset()
    service: tuple[str, str] | None = None


class ClientOrigin(Struct, frozen=True, gc=False):
    """What all metrics tell of a client: how it was located, and its zone, "" if that is not known."""

    located_by: str
    zone: str


NOBODY = ClientOrigin("", "")  # of replies that need no client, such as REFUSED
NOBODYS = 0  # the number of this origin


class Channel:
    """The replies over one transport and address family (1 for IPv4, 2 for IPv6).

    ``counts`` are numbers of replies, by the sum of the client's ``Counts.origin`` and the answer's ``Counts.tally``.
    ``is_udp`` is whether it is UDP, where replies must fit a datagram. ``truncated`` counts those with TC.
    """

    __slots__ = ("counts", "family", "is_udp", "proto", "truncated")

    def __init__(self, proto: str, family: int) -> None:
        self.proto = proto
        self.family = family
        self.is_udp = proto == "udp"
        self.counts: defaultdict[int, int] = defaultdict(int)
        self.truncated = 0


class Durations:
    """A histogram of durations: ``numbers`` by upper ``bounds`` in seconds, and the sum in ``seconds``."""

    __slots__ = ("bounds", "numbers", "seconds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.numbers = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def add(self, seconds: float, times: int) -> None:
        """Count a duration of *seconds*, as often as *times*."""
        self.numbers[bisect_left(self.bounds, seconds)] += times
        self.seconds += seconds * times

    def add_all(self, numbers: Sequence[int], seconds: float) -> None:
        """Add durations that were counted elsewhere by the same bounds, and their sum in *seconds*."""
        self.numbers = [own + other for own, other in zip(self.numbers, numbers, strict=True)]
        self.seconds += seconds


class _Suspect(Struct):
    """What is known of one source: the clients that it named, its queries, and when it was last warned about."""

    clients: set[bytes]
    queries: int = 0
    warned: float = -math.inf
    queries_then: int = 0


class SourceCounter:
    """Counts the queries with one fault by source, bounded, and says which sources to warn about.

    A source is an address, or for ``Counts.refused_lookups`` a namespace.

    A source needs a warning once it has named at least *clients* different clients. Which sources
    are known for this is bounded apart from ``numbers``: a flood of addresses must not hide a
    forwarder that comes later.
    """

    def __init__(self, *, clients: int = 0) -> None:
        self.numbers: Counter[str] = Counter()
        self._clients = clients
        self._suspects: OrderedDict[str, _Suspect] = OrderedDict()  # who has asked last stands last

    def note(self, source: str, named: bytes = b"") -> None:
        """Count a query from *source*; *named* is a client other than itself that the query names, or empty."""
        known = source in self.numbers or len(self.numbers) < MAX_SOURCES
        self.numbers[source if known else OTHER] += 1
        suspect = self._suspects.get(source)
        if suspect is None:
            suspect = self._suspects[source] = _Suspect(set())
            if len(self._suspects) > 2 * MAX_SOURCES:
                self._suspects.popitem(last=False)
        else:
            self._suspects.move_to_end(source)
        suspect.queries += 1
        if named and len(suspect.clients) < self._clients:
            suspect.clients.add(named)

    def due(self, now: float) -> list[str]:
        """Return the sources to warn about at *now*, sorted: those with new queries, each at most once an hour."""
        sources = []
        for source, suspect in self._suspects.items():
            enough = len(suspect.clients) >= self._clients and suspect.queries > suspect.queries_then
            if enough and now - suspect.warned >= WARN_SECONDS:
                suspect.warned, suspect.queries_then = now, suspect.queries
                sources.append(source)
        return sorted(sources)

    def suspects(self) -> list[str]:
        """Return the sources that have named enough clients to be suspected."""
        return [source for source, suspect in self._suspects.items() if len(suspect.clients) >= self._clients]


class RangeCounter:
    """Counts the queries of clients that nothing locates, by the reason and the range around the client; bounded."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, bytes]] = Counter()  # by the octets that all addresses of a range have

    def add(self, reason: str, address: bytes, times: int = 1) -> None:
        """Count queries of clients in the range around *address*; if that is empty, in one of many ranges."""
        key = reason, address[: RANGE_OCTETS.get(len(address), 0)]
        if key not in self._times and len(self._times) >= MAX_SOURCES:
            key = reason, b""
        self._times[key] += times

    def numbers(self) -> dict[tuple[str, str], int]:
        """Return the numbers of queries by reason and range; further ranges count as "other"."""
        return {(reason, _range_text(start)): times for (reason, start), times in self._times.items()}


def _range_text(start: bytes) -> str:
    if not start:
        return OTHER
    size = next(size for size, octets in RANGE_OCTETS.items() if octets == len(start))
    return network_text(Network(start.ljust(size, b"\0"), 8 * len(start)))


class Counts:
    """All counters of one server. The code that counts writes to them directly.

    *per_service*: metrics show answers for each Service.
    """

    def __init__(self, *, per_service: bool = False) -> None:
        self.channels = {(proto, family): Channel(proto, family) for proto in ("udp", "tcp") for family in (1, 2)}
        self._tallies: dict[Tally, int] = {}
        self._origins: dict[ClientOrigin, int] = {NOBODY: NOBODYS}
        self._known: tuple[list[ClientOrigin], list[Tally]] = [], []  # by number, as far as somebody has asked
        self.per_service = per_service
        self.counts_services = per_service
        """Whether tallies name the Service: metrics, or the console, show answers for each."""
        self.services: set[tuple[str, str]] = set()
        """Those that answers are counted for, one by one. After some are gone, it is another set."""
        self._has_few_places = False
        self.unnamed_clients = SourceCounter()
        """Queries from trusted forwarders that name no client."""
        self.ignored_clients = SourceCounter(clients=SUSPICIOUS_CLIENTS)
        """Queries that name a client but do not come from a trusted forwarder."""
        self.unlocated_clients = RangeCounter()
        """Queries of clients that nothing locates."""
        self.askers: set[tuple[int, bytes]] | None = None
        """Tallies with a Service, and the addresses of located clients that got such answers; None: nobody asks."""
        self.probes = 0
        """Queries of our own tools, which are no clients."""
        self.computed = 0
        """Replies that were not remembered, errors among them."""
        self.silent = 0
        """Packets that got no reply."""
        self.malformed_headers: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.reloads: Counter[str] = Counter()
        self.programming = Durations(PROGRAMMING_BOUNDS)
        self.upstream: Counter[str] = Counter()
        self.refused_lookups = SourceCounter()
        """Queries that wanted more than the share of their namespace in look-ups at the upstream, by namespace."""
        self.connections = 0
        self.durations = Durations(DURATION_BOUNDS)
        self.before_reading: list[Callable[[], None]] = []
        """Functions that add what was counted elsewhere: ``catch_up`` calls them."""

    def tally(self, tally: Tally) -> int:
        """Return the number of a tally, below ``MAX_TALLIES``."""
        number, size = self._tallies.get(tally), len(self._tallies)
        if tally.service is not None and (
            (number is None and size >= SERVICE_TALLIES) or not self._has_place(tally.service)
        ):
            return self.tally(replace(tally, service=None))
        if number is None:
            if size >= DETAILED_TALLIES:
                tally = Tally(tally.qtype, tally.rcode, tally.outcome)
            number = self._tallies.setdefault(tally, size)
        return number

    def _has_place(self, service: tuple[str, str]) -> bool:
        """Whether answers are counted for a Service: it gets a place if there is one."""
        if service in self.services:
            return True
        left = MAX_SERVICES - len(self.services)
        self._has_few_places = self._has_few_places or left < FEW_PLACES
        if left > 0:
            self.services.add(service)
        return left > 0

    def free_places(self, exists: Callable[[str], bool]) -> None:
        """Free the places of Services (``namespace/name``) that do not exist any more, if few are left for new ones."""
        if self._has_few_places:
            self._has_few_places = False
            left = {service for service in self.services if exists("/".join(service))}
            self.services = left if len(left) < len(self.services) else self.services

    def note_askers(self, found: Iterable[tuple[int, bytes]]) -> None:
        """Note numbers of tallies, and the addresses of clients that got such answers, if somebody wants to know."""
        if self.askers is not None:
            self.askers.update(islice(found, MAX_ASKERS - len(self.askers)))

    def take_askers(self) -> Iterator[tuple[tuple[str, str], bytes]]:
        """Take the Services, and the addresses of clients that asked for them, since the last call.

        A client may come several times. What is yielded may be read later, while others are noted.
        """
        askers, self.askers = self.askers or set(), set()
        tallies = list(self._tallies)
        found = ((tallies[number].service, client) for number, client in askers)
        return ((service, client) for service, client in found if service is not None)

    def origin(self, located_by: str, zone: str) -> int:
        """Return the number of the clients that were located so and are in *zone*, "" for an unknown one.

        It is a multiple of ``MAX_TALLIES``. The zones of very many are not counted, as if they were unknown.
        """
        origin = ClientOrigin(located_by, zone)
        number = self._origins.get(origin)
        if number is None:
            if len(self._origins) >= MAX_ORIGINS:
                origin = ClientOrigin(located_by, "")
            number = self._origins.setdefault(origin, len(self._origins))
        return number * MAX_TALLIES

    def catch_up(self) -> None:
        """Add what was counted elsewhere: whoever reads the counters does this first."""
        for add_counted in self.before_reading:
            add_counted()

    def replied(self) -> int:
        """Return the number of all replies."""
        self.catch_up()
        return sum(sum(channel.counts.values()) for channel in self.channels.values())

    def replies(self) -> Iterator[tuple[Channel, ClientOrigin, Tally, int]]:
        """Yield how many replies there were through a channel, to clients of an origin, with answers of a tally.

        Counting may go on between two of them. What was counted elsewhere is there after ``catch_up``.
        """
        tallies, origins = list(self._tallies), list(self._origins)
        for channel in self.channels.values():
            for number, replies in list(channel.counts.items()):
                origin, tally = divmod(number, MAX_TALLIES)
                yield channel, origins[origin], tallies[tally], replies

    def grown(self, before: dict[tuple[str, int], dict[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield all numbers of ``Channel.counts``, each with how much it grew since the last call with this *before*.

        That is empty at first, and kept up to date here. Counting may go on meanwhile.
        """
        for path, channel in self.channels.items():
            known = before.setdefault(path, {})
            for number, replies in list(channel.counts.items()):
                yield number, replies - known.get(number, 0)
                known[number] = replies

    def origin_and_tally(self, number: int) -> tuple[ClientOrigin, Tally]:
        """Return which clients and which answers a number of ``Channel.counts`` is about."""
        if len(self._known[0]) < len(self._origins) or len(self._known[1]) < len(self._tallies):
            self._known = list(self._origins), list(self._tallies)
        origin, tally = divmod(number, MAX_TALLIES)
        return self._known[0][origin], self._known[1][tally]

    def zones(self) -> set[str]:
        """Return the zones of all clients so far, "" for an unknown one."""
        return {origin.zone for origin in self._origins}

    def took(self, seconds: float, queries: int) -> None:
        """Count *queries* that were each answered *seconds* after they were received."""
        self.durations.add(seconds, queries)

    def programmed(self, seconds: float) -> None:
        """Count a change of an EndpointSlice that was in the answers after *seconds*."""
        self.programming.add(seconds, 1)

    def reread(self, good: bool) -> None:
        """Count a reload of the ``--snapshot`` files: *good* if they could be read."""
        self.reloads["success" if good else "failure"] += 1


def counted_type(qtype: int) -> str:
    """Return the label value for a query type."""
    name = type_name(qtype)
    return name if name in COUNTED_TYPES else OTHER
