"""What is counted. On the query path these are plain integers; Prometheus sees them when it asks."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter

from msgspec import Struct

from dnsserver.message.records import type_name

# Seconds: from a remembered answer to one that waited its turn in a full socket buffer.
DURATION_BOUNDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
# Seconds: from an event that is heard of at once to one after a watch was lost. The controller's own delay counts, too.
PROGRAMMING_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 150.0, 300.0)
# Types that have a label of their own; the rest are "other", so that nobody can make labels by asking.
COUNTED_TYPES = ("A", "AAAA", "ANY", "CNAME", "HTTPS", "MX", "NS", "PTR", "SOA", "SRV", "SVCB", "TXT")
OTHER = "other"
MAX_SOURCES = 1024  # distinct addresses counted; more are counted together as "other"
TELL_SECONDS = 3600.0  # between two log lines about one source: it asks on meanwhile, and somebody must mend it
SUSPICIOUS_CLIENTS = 3  # named by one source that is not trusted: it is likely to be a forwarder


class Tally(Struct, frozen=True):
    """What an answer counts as: all that its labels are made from. Empty strings count nowhere."""

    qtype: str
    rcode: int
    outcome: str = ""
    tier: str = ""


class Channel:
    """Where queries come in: transport and address family, and how many answers of each tally left.

    ``counts`` is indexed by the tally's number; ``Counts.tally`` keeps it long enough.
    ``limited`` is whether replies must fit a datagram.
    """

    __slots__ = ("counts", "family", "limited", "proto", "truncated")

    def __init__(self, proto: str, family: int) -> None:
        self.proto = proto
        self.family = family
        self.limited = proto == "udp"
        self.counts: list[int] = []
        self.truncated = 0


class Durations:
    """How often something took how long: by upper bounds in seconds, and in all."""

    __slots__ = ("bounds", "numbers", "seconds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.numbers = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def add(self, seconds: float, times: int) -> None:
        """Note that it took *seconds*, some times."""
        self.numbers[bisect_left(self.bounds, seconds)] += times
        self.seconds += seconds * times


class SourceCounter:
    """Queries of one sort by the address that they came from, bounded; and of whom people are to be told.

    People are told of a source that named at least *clients* different clients.
    """

    def __init__(self, *, clients: int = 0) -> None:
        self.numbers: Counter[str] = Counter()
        self._clients = clients
        self._named: dict[str, set[bytes]] = {}
        self._told: dict[str, tuple[float, int]] = {}  # when last, and how many queries there were

    def note(self, source: str, named: bytes = b"") -> None:
        """Count a query from *source*, which *named* a client other than itself if that is not empty."""
        known = source in self.numbers or len(self.numbers) < MAX_SOURCES
        self.numbers[source if known else OTHER] += 1
        if known and named and self._clients:
            clients = self._named.setdefault(source, set())
            if len(clients) < self._clients:
                clients.add(named)

    def due(self, now: float) -> list[str]:
        """Return the sources that did it again since they were returned last: each once an hour at most."""
        fresh = []
        for source, number in self.numbers.items():
            since, before = self._told.get(source, (-math.inf, 0))
            enough = len(self._named.get(source, ())) >= self._clients
            if source != OTHER and enough and number > before and now - since >= TELL_SECONDS:
                self._told[source] = now, number
                fresh.append(source)
        return fresh


class Counts:
    """Every counter of one server. Read by ``families``; written to directly by those who count."""

    def __init__(self) -> None:
        self.channels = {(proto, family): Channel(proto, family) for proto in ("udp", "tcp") for family in (1, 2)}
        self.tallies: list[Tally] = []
        self._numbers: dict[Tally, int] = {}
        self.located: Counter[str] = Counter()
        self.unnamed_clients = SourceCounter()
        """Queries from trusted forwarders that name no client."""
        self.ignored_clients = SourceCounter(clients=SUSPICIOUS_CLIENTS)
        """Queries that name a client but come from nobody who is trusted."""
        self.computed = 0
        self.silent = 0
        self.malformed_headers: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.reloads: Counter[str] = Counter()
        self.programming = Durations(PROGRAMMING_BOUNDS)
        self.upstream: Counter[str] = Counter()
        self.connections = 0
        self.durations = Durations(DURATION_BOUNDS)

    def tally(self, tally: Tally) -> int:
        """Return the number under which a tally is counted."""
        number = self._numbers.get(tally)
        if number is None:
            number = self._numbers[tally] = len(self.tallies)
            self.tallies.append(tally)
            for channel in self.channels.values():
                channel.counts.append(0)
        return number

    def took(self, seconds: float, queries: int) -> None:
        """Note that each of some queries was answered within *seconds* of being received."""
        self.durations.add(seconds, queries)

    def programmed(self, seconds: float) -> None:
        """Note that an EndpointSlice's change was in the answers after *seconds*."""
        self.programming.add(seconds, 1)

    def reread(self, good: bool) -> None:
        """Note that the snapshot's files were read again, or could not be."""
        self.reloads["success" if good else "failure"] += 1


def counted_type(qtype: int) -> str:
    """Return the label under which a query type is counted."""
    name = type_name(qtype)
    return name if name in COUNTED_TYPES else OTHER
