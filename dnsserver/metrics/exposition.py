"""Shows the counters of a server, or of a controller, as Prometheus metrics."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dnsserver import __version__
from dnsserver.metrics.counters import Counts, Durations
from locator.model import Finding
from locator.state.snapshot import Snapshot
from locator.topology.constraint_findings import is_invalid_constraint

RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED", 16: "BADVERS"}

Sums = Counter[tuple[str, ...]]


class Watch(Protocol):
    """The watch of one kind: whether its first list is complete, and its restarts by reason."""

    listed: bool
    restarts: Counter[str]


class TopodnsCollector(Collector):
    """Metrics of topodns, in a registry of their own."""

    def registry(self) -> CollectorRegistry:
        """Return a registry with these metrics alone."""
        registry = CollectorRegistry(auto_describe=False)  # describing would collect once more
        registry.register(self)
        return registry


class Metrics(TopodnsCollector):
    """The metrics of a server that reads these *kinds* of objects."""

    def __init__(self, counts: Counts, kinds: Iterable[str] = ()) -> None:
        self._counts = counts
        self._kinds = tuple(kinds)
        self._snapshot: Snapshot | None = None
        self.watches: Mapping[str, Watch] = {}

    def show(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        """Show the objects and findings of *snapshot* from now on."""
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        yield from self._queries()
        yield from self._cluster()
        yield _build_info()

    def _queries(self) -> Iterator[Metric]:
        counts = self._counts
        requests, rcodes, outcomes, keys = _summed(counts)
        yield _counter("topodns_dns_requests", "Queries received.", ("proto", "family", "type"), requests)
        yield _counter("topodns_dns_responses", "Replies sent.", ("rcode",), rcodes)
        yield _counter("topodns_answers", "Answers by how their endpoints were chosen.", ("outcome",), outcomes)
        yield _counter("topodns_answer_tier", "Answers by the topology key that decided.", ("key",), keys)
        located = _labelled(counts.located)
        yield _counter("topodns_clients", "Queries by how topodns located the client.", ("located_by",), located)
        yield _counter(
            "topodns_forwarded_without_client",
            "Queries from trusted forwarders that named no client.",
            ("forwarder",),
            _labelled(counts.unnamed_clients.numbers),
        )
        yield _counter(
            "topodns_client_subnets_ignored",
            "Queries that named a client but did not come from a trusted forwarder.",
            ("source",),
            _labelled(counts.ignored_clients.numbers),
        )
        yield _counter(
            "topodns_malformed_proxy_headers",
            "Queries dropped (UDP) and connections closed (TCP) for a malformed PROXY header.",
            ("proto",),
            _labelled(counts.malformed_headers),
        )
        answered = sum(rcodes.values())
        remembered = _labelled({"hit": max(0, answered - counts.computed), "miss": counts.computed})
        yield _counter(
            "topodns_remembered",
            "Replies, remembered (hit) or computed (miss).",
            ("result",),
            remembered,
        )
        truncated = sum(channel.truncated for channel in counts.channels.values())
        yield _counter("topodns_dns_response_truncated", "Replies sent with the TC bit.", (), Counter({(): truncated}))
        yield _counter(
            "topodns_upstream_requests",
            "Queries that needed a name outside the zones, by result.",
            ("result",),
            _labelled(counts.upstream),
        )
        failures = _labelled(counts.failures)
        yield _counter("topodns_failures", "Errors caught, by where.", ("wall",), failures)
        yield _counter("topodns_silent", "Packets that got no reply.", (), Counter({(): counts.silent}))
        yield GaugeMetricFamily("topodns_tcp_connections", "Open TCP connections.", counts.connections)
        yield _histogram(
            "topodns_dns_request_duration_seconds",
            "Time from receiving a query to sending its reply.",
            counts.durations,
        )

    def _cluster(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        objects = snapshot.object_counts if snapshot else dict.fromkeys(self._kinds, 0)
        listed = dict.fromkeys(self._kinds, snapshot is not None)
        listed.update({kind: watch.listed for kind, watch in self.watches.items()})
        yield from _watched(objects, listed, self.watches)
        yield _histogram(
            "topodns_kubernetes_dns_programming_duration_seconds",
            "Time from the change of an EndpointSlice to answers that show it.",
            self._counts.programming,
        )
        invalid = sum(map(is_invalid_constraint, snapshot.findings)) if snapshot else 0
        yield GaugeMetricFamily("topodns_invalid_constraints", "Services whose constraint is invalid.", invalid)
        distrusted = snapshot.addresses.distrusted_cidrs if snapshot else 0
        text = "Pod CIDRs that topodns does not trust, because an endpoint in them is on another node."
        yield GaugeMetricFamily("topodns_distrusted_pod_cidrs", text, distrusted)
        reloads = _labelled(self._counts.reloads)
        yield _counter("topodns_snapshot_reloads", "Reloads of the --snapshot files.", ("result",), reloads)


class ControllerState(Struct, frozen=True):
    """A controller at one moment.

    ``writes`` are by verb and result. ``waiting`` is the length of the work queue. ``objects`` are numbers by kind.
    """

    writes: Mapping[tuple[str, str], int]
    leading: bool
    waiting: int
    objects: Mapping[str, int]
    watches: Mapping[str, Watch]


class ControllerMetrics(TopodnsCollector):
    """The metrics of a controller; *state* returns its present state."""

    def __init__(self, state: Callable[[], ControllerState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        state = self._state()
        listed = {kind: watch.listed for kind, watch in state.watches.items()}
        yield from _watched(state.objects, listed, state.watches)
        yield _counter(
            "topodns_podlocator_writes",
            "Writes of PodLocators, by verb and result.",
            ("verb", "result"),
            Counter({(verb, result): number for (verb, result), number in state.writes.items()}),
        )
        yield GaugeMetricFamily("topodns_leading", "Whether this replica leads, and so writes.", int(state.leading))
        text = "PodLocators in the work queue; only the leader takes them out."
        yield GaugeMetricFamily("topodns_podlocators_waiting", text, state.waiting)
        yield _build_info()


def _watched(objects: Mapping[str, int], listed: Mapping[str, bool], watches: Mapping[str, Watch]) -> Iterator[Metric]:
    """Yield the number of objects by kind, and the state of the watches."""
    known = GaugeMetricFamily("topodns_objects", "Objects read from the cluster, by kind.", labels=("kind",))
    synced = GaugeMetricFamily("topodns_synced", "Whether all objects of a kind have been read.", labels=("kind",))
    restarts: Sums = Counter()
    for kind, number in objects.items():
        known.add_metric((kind,), number)
    for kind, complete in listed.items():
        synced.add_metric((kind,), int(complete))
    for kind, watch in watches.items():
        restarts.update({(kind, reason): number for reason, number in watch.restarts.items()})
    yield known
    yield synced
    yield _counter("topodns_watch_restarts", "Watches restarted, by kind and reason.", ("kind", "reason"), restarts)


def _build_info() -> Metric:
    info = GaugeMetricFamily("topodns_build_info", "Versions of topodns and Python.", labels=("version", "python"))
    info.add_metric((__version__, platform.python_version()), 1)
    return info


def _labelled(numbers: Mapping[str, int]) -> Sums:
    return Counter({(label,): number for label, number in numbers.items()})


def _counter(name: str, text: str, labels: tuple[str, ...], values: Sums) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, number in sorted(values.items()):
        family.add_metric(key, number)
    return family


def _histogram(name: str, text: str, durations: Durations) -> Metric:
    total, buckets = 0, []
    for bound, number in zip((*map(str, durations.bounds), "+Inf"), durations.numbers, strict=True):
        total += number
        buckets.append((bound, total))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=durations.seconds)


def _summed(counts: Counts) -> tuple[Sums, Sums, Sums, Sums]:
    """Return the sums of requests, rcodes, outcomes and deciding keys over all channels and tallies."""
    requests: Sums = Counter()
    rcodes: Sums = Counter()
    outcomes: Sums = Counter()
    keys: Sums = Counter()
    for channel in counts.channels.values():
        for tally, number in zip(counts.tallies, channel.counts, strict=False):
            if not number:
                continue
            requests[channel.proto, str(channel.family), tally.qtype] += number
            rcodes[RCODES.get(tally.rcode, str(tally.rcode)),] += number
            if tally.outcome:
                outcomes[tally.outcome,] += number
            if tally.key:
                keys[tally.key,] += number
    return requests, rcodes, outcomes, keys
