# SPDX-License-Identifier: Apache-2.0

"""What a metric of topodns is, and those that servers, controllers and webhooks all show.

``docs/metrics.md`` is made from the tables of families.

A family with labels whose values are all known beforehand has all of them from the start, at 0: Prometheus' ``rate``
would miss the first count of a series that appears with it.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Protocol

from msgspec import Struct
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dnsserver import __version__
from dnsserver.metrics.counters import LOOP_DELAY_BOUNDS, Durations
from locator.api.list_watch import RESTART_REASONS
from locator.printable import cut

Values = Mapping[Any, float]  # by the values of all labels, as a tuple of strings

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

ANY_VALUE: tuple[str, ...] = ()  # values of a label that are not known beforehand


class Family(Struct, frozen=True, eq=False):
    """A metric. ``name`` is without the suffix of counters, ``labels`` has the values of each label, or ``ANY_VALUE``.

    ``when`` says with which setting it is there, empty if it always is.
    """

    name: str
    kind: str
    text: str
    labels: Mapping[str, tuple[str, ...]] = {}
    when: str = ""

    @property
    def shown_name(self) -> str:
        """The name in queries; a histogram also has those with ``_bucket``, ``_sum`` and ``_count``."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name

    def metric(self, values: Values | Durations | float) -> Metric:
        """Return the metric with *values*: by the values of its labels, durations of a histogram, or a single number.

        Label values that are known beforehand are there in any case, at 0. What others wrote into a label is printable,
        and cut; what looks the same then counts together.
        """
        if isinstance(values, Durations):
            return self.histogram(values)
        make = CounterMetricFamily if self.kind == COUNTER else GaugeMetricFamily
        family = make(self.name, self.text, labels=tuple(self.labels))
        shown: dict[tuple[str, ...], float] = dict.fromkeys(product(*self.labels.values()), 0)
        for key, number in (values if isinstance(values, Mapping) else {(): values}).items():
            label = tuple(map(cut, key))
            shown[label] = shown.get(label, 0) + number
        for label, number in sorted(shown.items()):
            family.add_metric(label, number)
        return family

    def histogram(self, durations: Durations) -> Metric:
        """Return a histogram of durations in seconds."""
        total, buckets = 0, []
        for bound, number in zip((*map(str, durations.bounds), "+Inf"), durations.numbers, strict=True):
            total += number
            buckets.append((bound, total))
        return HistogramMetricFamily(self.name, self.text, buckets=buckets, sum_value=durations.seconds)


def labelled(numbers: Mapping[str, float]) -> Values:
    """Return numbers by the value of the only label."""
    return {(label,): number for label, number in numbers.items()}


METRICS_SECONDS = 1.0  # for which a process keeps its metrics, whoever asks for them

# Of watches.
OBJECTS = Family("topodns_objects", GAUGE, "Objects read from the cluster, by kind.", {"kind": ANY_VALUE})
SYNCED = Family("topodns_synced", GAUGE, "Whether all objects of a kind have been read.", {"kind": ANY_VALUE})
WATCH_RESTARTS = Family(
    "topodns_watch_restarts", COUNTER, "Watches restarted, by kind and reason.",
    {"kind": ANY_VALUE, "reason": RESTART_REASONS}, "a live cluster",
)  # fmt: skip
OF_WATCHES = (OBJECTS, SYNCED, WATCH_RESTARTS)

# Of controllers and the webhook.
LEADING = Family(
    "topodns_leading", GAUGE, "Whether this replica leads by a Lease, and so writes.", {"lease": ANY_VALUE}
)

# Of each process.
FAILURES = Family(
    "topodns_failures", COUNTER, "Errors caught, and queries dropped, by where.",
    {"where": ("packet", "queue", "receive", "send", "accept", "connection", "memory", "upstream", "http", "tap",
               "console")},
)  # fmt: skip
LOOP_DELAY = Family("topodns_loop_delay_seconds", HISTOGRAM, "How late the event loop runs what is due.")
BUILD_INFO = Family(
    "topodns_build_info", GAUGE, "Versions of topodns and Python.", {"version": ANY_VALUE, "python": ANY_VALUE}
)
OF_EACH_PROCESS = (FAILURES, LOOP_DELAY, BUILD_INFO)


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
        yield FAILURES.metric(labelled(self.failures))
        yield LOOP_DELAY.metric(self.loop_delays)
        yield BUILD_INFO.metric({(__version__, platform.python_version()): 1})

    def registry(self) -> CollectorRegistry:
        """Return a registry with these metrics, and what Linux tells of the process: ``process_*``."""
        registry = CollectorRegistry(auto_describe=False)  # describing would collect once more
        registry.register(self)
        ProcessCollector(registry=registry)
        return registry


def watched(objects: Mapping[str, int], listed: Mapping[str, bool], watches: Mapping[str, Watch]) -> Iterator[Metric]:
    """Yield the number of objects by kind, and the state of the watches."""
    yield OBJECTS.metric(labelled(objects))
    yield SYNCED.metric(labelled(listed))
    yield WATCH_RESTARTS.metric(restarts(watches))


def restarts(watches: Mapping[str, Watch]) -> dict[tuple[str, ...], int]:
    """Return the restarts of watches by kind and reason."""
    return {(kind, reason): watch.restarts[reason] for kind, watch in watches.items() for reason in RESTART_REASONS}
