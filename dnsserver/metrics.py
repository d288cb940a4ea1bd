"""What is counted. On the query path these are plain integers; Prometheus sees them when it asks."""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dnsserver import __version__
from dnsserver.records import type_name
from locator.model import ERROR, KINDS
from locator.snapshot import Snapshot

# Seconds: from a remembered answer to one that waited its turn in a full socket buffer.
DURATION_BOUNDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED", 16: "BADVERS"}
# Types that have a label of their own; the rest are "other", so that nobody can make labels by asking.
COUNTED_TYPES = ("A", "AAAA", "ANY", "CNAME", "HTTPS", "MX", "NS", "PTR", "SOA", "SRV", "SVCB", "TXT")
OTHER = "other"
MAX_FORWARDERS = 1024  # distinct addresses counted; more are counted together as "other"


Sums = Counter[tuple[str, ...]]


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


class Counts:
    """Every counter of one server. Read by ``families``; written to directly by those who count."""

    def __init__(self) -> None:
        self.channels = {(proto, family): Channel(proto, family) for proto in ("udp", "tcp") for family in (1, 2)}
        self.tallies: list[Tally] = []
        self._numbers: dict[Tally, int] = {}
        self.located: Counter[str] = Counter()
        self.unnamed: Counter[str] = Counter()
        self.computed = 0
        self.silent = 0
        self.failures: Counter[str] = Counter()
        self.reloads: Counter[str] = Counter()
        self.upstream: Counter[str] = Counter()
        self.connections = 0
        self.durations = [0] * (len(DURATION_BOUNDS) + 1)
        self.seconds = 0.0

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
        self.durations[bisect_left(DURATION_BOUNDS, seconds)] += queries
        self.seconds += seconds * queries

    def forwarded_without_client(self, forwarder: str) -> None:
        """Note a query from a trusted forwarder that said nothing of who asked."""
        known = forwarder in self.unnamed or len(self.unnamed) < MAX_FORWARDERS
        self.unnamed[forwarder if known else OTHER] += 1


def counted_type(qtype: int) -> str:
    """Return the label under which a query type is counted."""
    name = type_name(qtype)
    return name if name in COUNTED_TYPES else OTHER


class Metrics(Collector):
    """The counters as Prometheus reads them."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self.snapshot: Snapshot | None = None

    def registry(self) -> CollectorRegistry:
        """Return a registry that holds these metrics alone."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def describe(self) -> Iterable[Metric]:
        """Nothing is described beforehand: a scrape tells all."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        yield from self._queries()
        yield from self._cluster()
        yield _build_info()

    def _queries(self) -> Iterator[Metric]:
        counts = self._counts
        requests, rcodes, outcomes, tiers = _summed(counts)
        yield _counter("topodns_dns_requests", "Queries received.", ("proto", "family", "type"), requests)
        yield _counter("topodns_dns_responses", "Replies sent.", ("rcode",), rcodes)
        yield _counter("topodns_answers", "Answers by how their endpoints were chosen.", ("outcome",), outcomes)
        yield _counter("topodns_answer_tier", "Answers by the topology key that decided.", ("key",), tiers)
        located = _labelled(counts.located)
        yield _counter("topodns_clients", "Queries by what told where the client is.", ("located_by",), located)
        unnamed = _labelled(counts.unnamed)
        yield _counter(
            "topodns_forwarded_without_client",
            "Queries from trusted forwarders that named no client.",
            ("forwarder",),
            unnamed,
        )
        answered = sum(rcodes.values())
        remembered = _labelled({"hit": max(0, answered - counts.computed), "miss": counts.computed})
        yield _counter("topodns_remembered", "Replies made from memory, or computed.", ("result",), remembered)
        truncated = sum(channel.truncated for channel in counts.channels.values())
        yield _counter("topodns_dns_response_truncated", "Replies sent with TC.", (), Counter({(): truncated}))
        yield _counter(
            "topodns_upstream_requests",
            "Queries that needed a name elsewhere, by what came of it.",
            ("result",),
            _labelled(counts.upstream),
        )
        failures = _labelled(counts.failures)
        yield _counter("topodns_failures", "Failures that were stopped at a wall.", ("wall",), failures)
        yield _counter("topodns_silent", "Packets that got no reply.", (), Counter({(): counts.silent}))
        yield GaugeMetricFamily("topodns_tcp_connections", "Open TCP connections.", counts.connections)
        yield self._durations()

    def _durations(self) -> Metric:
        total, buckets = 0, []
        for bound, number in zip((*map(str, DURATION_BOUNDS), "+Inf"), self._counts.durations, strict=True):
            total += number
            buckets.append((bound, total))
        return HistogramMetricFamily(
            "topodns_dns_request_duration_seconds",
            "Time from receiving a query to having sent its reply.",
            buckets=buckets,
            sum_value=self._counts.seconds,
        )

    def _cluster(self) -> Iterator[Metric]:
        snapshot = self.snapshot
        objects = GaugeMetricFamily("topodns_objects", "Objects known.", labels=("kind",))
        synced = GaugeMetricFamily("topodns_synced", "Whether all objects of a kind are known.", labels=("kind",))
        for kind in (kind.__name__ for kind in KINDS):
            objects.add_metric((kind,), snapshot.objects.get(kind, 0) if snapshot else 0)
            synced.add_metric((kind,), 1 if snapshot else 0)
        yield objects
        yield synced
        invalid = (
            sum(each.severity == ERROR and each.kind == "Service" for each in snapshot.findings) if snapshot else 0
        )
        yield GaugeMetricFamily("topodns_invalid_constraints", "Services whose constraint is invalid.", invalid)
        lying = snapshot.addresses.distrusted_cidrs if snapshot else 0
        yield GaugeMetricFamily("topodns_distrusted_pod_cidrs", "Pod CIDRs not believed, by an endpoint's word.", lying)
        reloads = _labelled(self._counts.reloads)
        yield _counter("topodns_snapshot_reloads", "Times the snapshot was read again.", ("result",), reloads)


def _build_info() -> Metric:
    info = GaugeMetricFamily("topodns_build_info", "Version of topodns and of Python.", labels=("version", "python"))
    info.add_metric((__version__, platform.python_version()), 1)
    return info


def _labelled(numbers: Mapping[str, int]) -> Sums:
    return Counter({(label,): number for label, number in numbers.items()})


def _counter(name: str, text: str, labels: tuple[str, ...], values: Sums) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, number in sorted(values.items()):
        family.add_metric(key, number)
    return family


def _summed(counts: Counts) -> tuple[Sums, Sums, Sums, Sums]:
    """Return requests, rcodes, outcomes and tiers, summed from the tallies."""
    requests: Sums = Counter()
    rcodes: Sums = Counter()
    outcomes: Sums = Counter()
    tiers: Sums = Counter()
    for channel in counts.channels.values():
        for tally, number in zip(counts.tallies, channel.counts, strict=False):
            if not number:
                continue
            requests[channel.proto, str(channel.family), tally.qtype] += number
            rcodes[RCODES.get(tally.rcode, str(tally.rcode)),] += number
            if tally.outcome:
                outcomes[tally.outcome,] += number
            if tally.tier:
                tiers[tally.tier,] += number
    return requests, rcodes, outcomes, tiers
