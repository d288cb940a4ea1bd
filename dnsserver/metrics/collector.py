# SPDX-License-Identifier: Apache-2.0

"""What servers, controllers and webhooks all show: their watches, and their process."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dnsserver import __version__
from dnsserver.metrics import families
from dnsserver.metrics.counters import LOOP_DELAY_BOUNDS, Durations
from dnsserver.metrics.families import labelled
from locator.api.list_watch import REASONS


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
        yield families.FAILURES.metric(labelled(self.failures))
        yield families.LOOP_DELAY.histogram(self.loop_delays)
        yield families.BUILD_INFO.metric({(__version__, platform.python_version()): 1})

    def registry(self) -> CollectorRegistry:
        """Return a registry with these metrics, and what Linux tells of the process: ``process_*``."""
        registry = CollectorRegistry(auto_describe=False)  # describing would collect once more
        registry.register(self)
        ProcessCollector(registry=registry)
        return registry


def watched(objects: Mapping[str, int], listed: Mapping[str, bool], watches: Mapping[str, Watch]) -> Iterator[Metric]:
    """Yield the number of objects by kind, and the state of the watches."""
    yield families.OBJECTS.metric(labelled(objects))
    yield families.SYNCED.metric(labelled(listed))
    yield families.WATCH_RESTARTS.metric(restarts(watches))


def restarts(watches: Mapping[str, Watch]) -> dict[tuple[str, ...], int]:
    """Return the restarts of watches by kind and reason."""
    return {(kind, reason): watch.restarts[reason] for kind, watch in watches.items() for reason in REASONS}
