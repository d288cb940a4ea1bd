# SPDX-License-Identifier: Apache-2.0

"""What a metric of topodns is: its name, labels and meaning. ``docs/metrics.md`` is made from all of them.

A family with labels whose values are all known beforehand has all of them from the start, at 0: Prometheus' ``rate``
would miss the first count of a series that appears with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from dnsserver.metrics.counters import Durations
from locator.api.list_watch import REASONS
from locator.printable import cut

Values = Mapping[Any, float]  # by the values of all labels, as a tuple of strings

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

WRITTEN = ("done", "conflict", "refused", "unreachable", "failed", "late")  # the results of a controller's writes

ANY: tuple[str, ...] = ()  # values of a label that are not known beforehand


class Family(Struct, frozen=True, eq=False):
    """A metric. ``name`` is without the suffix of counters, ``labels`` has the values of each label, or ``ANY``.

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

    def metric(self, values: Values, *, more_labels: tuple[str, ...] = ()) -> Metric:
        """Return a counter or gauge with *values* by the values of its labels, and 0 for those known beforehand.

        *more_labels* are labels of this process alone, which stand first. What others wrote into a label is printable,
        and cut; what looks the same then counts together.
        """
        make = CounterMetricFamily if self.kind == COUNTER else GaugeMetricFamily
        family = make(self.name, self.text, labels=(*more_labels, *self.labels))
        known = product(*self.labels.values()) if not more_labels else ()
        shown: dict[tuple[str, ...], float] = dict.fromkeys(known, 0)
        for key, number in values.items():
            label = tuple(map(cut, key))
            shown[label] = shown.get(label, 0) + number
        for label, number in sorted(shown.items()):
            family.add_metric(label, number)
        return family

    def only(self, value: float) -> Metric:
        """Return a counter or gauge without labels."""
        return self.metric({(): value})

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
OBJECTS = Family("topodns_objects", GAUGE, "Objects read from the cluster, by kind.", {"kind": ANY})
SYNCED = Family("topodns_synced", GAUGE, "Whether all objects of a kind have been read.", {"kind": ANY})
WATCH_RESTARTS = Family(
    "topodns_watch_restarts", COUNTER, "Watches restarted, by kind and reason.",
    {"kind": ANY, "reason": REASONS}, "a live cluster",
)  # fmt: skip
OF_WATCHES = (OBJECTS, SYNCED, WATCH_RESTARTS)

# Of controllers and the webhook.
LEADING = Family("topodns_leading", GAUGE, "Whether this replica leads by a Lease, and so writes.", {"lease": ANY})

# Of each process.
FAILURES = Family(
    "topodns_failures", COUNTER, "Errors caught, and queries dropped, by where.",
    {"wall": ("packet", "queue", "receive", "send", "accept", "connection", "memory", "upstream", "http", "tap")},
)  # fmt: skip
LOOP_DELAY = Family("topodns_loop_delay_seconds", HISTOGRAM, "How late the event loop runs what is due.")
BUILD_INFO = Family("topodns_build_info", GAUGE, "Versions of topodns and Python.", {"version": ANY, "python": ANY})
OF_EACH_PROCESS = (FAILURES, LOOP_DELAY, BUILD_INFO)
