"""Metric families that servers, controllers and webhooks share, and how they are made."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dnsserver import __version__
from dnsserver.metrics.counters import LOOP_DELAY_BOUNDS, Durations

Sums = Counter[tuple[str, ...]]


class Watch(Protocol):
    """The watch of one kind: whether its first list is complete, why it may be out of date, and restarts by reason."""

    listed: bool
    problem: str
    restarts: Counter[str]


class TopodnsCollector(Collector):
    """Metrics of topodns, in a registry of their own. *failures* counts the errors that were caught, by where."""

    def __init__(self, failures: Counter[str]) -> None:
        self.failures = failures
        self.loop_delays = Durations(LOOP_DELAY_BOUNDS)

    def of_the_process(self) -> Iterator[Metric]:
        """Yield what each program of topodns shows: errors caught, delays of its event loop, and versions."""
        text = "Errors caught, and queries dropped, by where."
        yield counter("topodns_failures", text, ("wall",), labelled(self.failures))
        yield histogram("topodns_loop_delay_seconds", "How late the event loop runs what is due.", self.loop_delays)
        yield _build_info()

    def registry(self) -> CollectorRegistry:
        """Return a registry with these metrics alone."""
        registry = CollectorRegistry(auto_describe=False)  # describing would collect once more
        registry.register(self)
        return registry


def watched(objects: Mapping[str, int], listed: Mapping[str, bool], watches: Mapping[str, Watch]) -> Iterator[Metric]:
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
    yield counter("topodns_watch_restarts", "Watches restarted, by kind and reason.", ("kind", "reason"), restarts)


def _build_info() -> Metric:
    """Return the versions of topodns and Python."""
    info = GaugeMetricFamily("topodns_build_info", "Versions of topodns and Python.", labels=("version", "python"))
    info.add_metric((__version__, platform.python_version()), 1)
    return info


def labelled(numbers: Mapping[str, int]) -> Sums:
    """Return numbers by the value of the only label."""
    return Counter({(label,): number for label, number in numbers.items()})


def counter(name: str, text: str, labels: tuple[str, ...], values: Sums) -> Metric:
    """Return a counter; its name gets the suffix ``_total``."""
    family = CounterMetricFamily(name, text, labels=labels)
    for key, number in sorted(values.items()):
        family.add_metric(key, number)
    return family


def histogram(name: str, text: str, durations: Durations) -> Metric:
    """Return a histogram of durations in seconds."""
    total, buckets = 0, []
    for bound, number in zip((*map(str, durations.bounds), "+Inf"), durations.numbers, strict=True):
        total += number
        buckets.append((bound, total))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=durations.seconds)
