"""Shows what a controller does as Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dnsserver.metrics.families import Sums, TopodnsCollector, Watch, counter, labelled, watched

Writes = Mapping[tuple[str, str], int]  # by verb and result


class HealthState(Struct, frozen=True):
    """What a controller has found out about load balancers at one moment.

    ``probes`` are by result, ``addresses`` by whether they are healthy.
    """

    writes: Writes
    probes: Mapping[str, int]
    addresses: Mapping[bool, int]


class ControllerState(Struct, frozen=True):
    """A controller at one moment.

    ``waiting`` is the length of the work queue of PodLocators. ``objects`` are numbers by kind. ``health`` is None
    without ``--health``.
    """

    writes: Writes
    leading: bool
    waiting: int
    objects: Mapping[str, int]
    watches: Mapping[str, Watch]
    health: HealthState | None = None


class ControllerMetrics(TopodnsCollector):
    """The metrics of a controller; *state* returns its present state."""

    def __init__(self, state: Callable[[], ControllerState]) -> None:
        super().__init__(Counter())
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        state = self._state()
        listed = {kind: watch.listed for kind, watch in state.watches.items()}
        yield from watched(state.objects, listed, state.watches)
        yield _writes("PodLocator", state.writes)
        yield GaugeMetricFamily("topodns_leading", "Whether this replica leads, and so writes.", int(state.leading))
        text = "PodLocators in the work queue; only the leader takes them out."
        yield GaugeMetricFamily("topodns_podlocators_waiting", text, state.waiting)
        if state.health is not None:
            yield from _health(state.health)
        yield from self.of_the_process()


def _health(state: HealthState) -> Iterator[Metric]:
    yield _writes("ServiceHealth", state.writes)
    text = "Probes of load balancer addresses, by result; unknown: this machine could not find out."
    yield counter("topodns_probes", text, ("result",), labelled(state.probes))
    text = "Load balancer addresses that this replica probes, by whether they are healthy."
    addresses = GaugeMetricFamily("topodns_probed_addresses", text, labels=("healthy",))
    for healthy, number in state.addresses.items():
        addresses.add_metric((str(healthy).lower(),), number)
    yield addresses


def _writes(kind: str, writes: Writes) -> Metric:
    numbers: Sums = Counter({(verb, result): number for (verb, result), number in writes.items()})
    text = f"Writes of {kind}s, by verb and result."
    return counter(f"topodns_{kind.lower()}_writes", text, ("verb", "result"), numbers)
