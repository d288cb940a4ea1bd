"""The metrics of the webhook: what became of its requests, how long they took, and what its leader wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dnsserver.metrics.counters import Durations
from dnsserver.metrics.families import TopodnsCollector, Watch, counter, histogram, labelled, watched
from locator.hints.admission import OUTCOMES

# What became of a request that was not reviewed, beside the outcomes of reviews.
TOO_LARGE, SLOW, BUSY, FAILED = "too_large", "slow", "busy", "failed"
ALL_OUTCOMES = (*OUTCOMES, TOO_LARGE, SLOW, BUSY, FAILED)
# Seconds: from a slice with one endpoint to a Service with thousands. API servers wait for 2 s.
REVIEW_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
RESULTS = ("done", "conflict", "refused", "unreachable", "failed", "late")  # of the leader's writes


class WebhookCounts:
    """The counters of the HTTPS listener."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter(dict.fromkeys(ALL_OUTCOMES, 0))
        self.durations = Durations(REVIEW_BOUNDS)

    def note(self, outcome: str, seconds: float) -> None:
        """Count a request, which took *seconds* from its headers to its response."""
        self.requests[outcome] += 1
        self.durations.add(seconds, 1)


class WebhookState(Struct, frozen=True):
    """A webhook at one moment.

    ``writes`` are the leader's by verb and result. ``waiting`` is the length of its work queue. ``objects`` are numbers
    by kind. ``certificate_ends`` is Unix time, 0 without a certificate.
    """

    writes: Mapping[tuple[str, str], int]
    leading: bool
    waiting: int
    objects: Mapping[str, int]
    watches: Mapping[str, Watch]
    certificate_ends: float


class WebhookMetrics(TopodnsCollector):
    """The metrics of a webhook; *state* returns its present state."""

    def __init__(self, counts: WebhookCounts, state: Callable[[], WebhookState]) -> None:
        super().__init__(Counter())
        self._counts = counts
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        state = self._state()
        yield counter(
            "topodns_webhook_requests",
            "Requests to the webhook, by what became of them.",
            ("outcome",),
            labelled(self._counts.requests),
        )
        yield histogram(
            "topodns_webhook_request_duration_seconds",
            "Time from the headers of a request to its response.",
            self._counts.durations,
        )
        rewritten = Counter(dict.fromkeys(RESULTS, 0))
        for (_, result), number in state.writes.items():
            rewritten[result] += number
        yield counter(
            "topodns_webhook_slices_rewritten",
            "EndpointSlices whose hints the leader had to correct, by result.",
            ("result",),
            labelled(rewritten),
        )
        text = "EndpointSlices in the work queue; only the leader takes them out."
        yield GaugeMetricFamily("topodns_webhook_slices_waiting", text, state.waiting)
        yield GaugeMetricFamily("topodns_leading", "Whether this replica leads, and so writes.", int(state.leading))
        text = "When the certificate that new connections get ends (Unix time), 0 without one."
        yield GaugeMetricFamily("topodns_webhook_certificate_expiry_timestamp_seconds", text, state.certificate_ends)
        listed = {kind: watch.listed for kind, watch in state.watches.items()}
        yield from watched(state.objects, listed, state.watches)
        yield from self.of_the_process()
