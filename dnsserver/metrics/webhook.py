# SPDX-License-Identifier: Apache-2.0

"""The metrics of the webhook: what became of its requests, how long they took, and what its leader wrote."""

from __future__ import annotations

from collections import Counter

from dnsserver.metrics.counters import Durations
from dnsserver.metrics.families import COUNTER, GAUGE, HISTOGRAM, LEADING, Family
from locator.control.writes import RESULTS
from locator.hints.admission import REVIEW_OUTCOMES

# What became of a request that was not reviewed, beside the outcomes of reviews.
TOO_LARGE, SLOW, BUSY, FAILED = "too_large", "slow", "busy", "failed"
ALL_OUTCOMES = (*REVIEW_OUTCOMES, TOO_LARGE, SLOW, BUSY, FAILED)
# Seconds: from a slice with one endpoint to a Service with thousands. API servers wait for 2 s.
REVIEW_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)

WEBHOOK_REQUESTS = Family(
    "topodns_webhook_requests", COUNTER, "Requests to the webhook, by what became of them.",
    {"outcome": ALL_OUTCOMES},
)  # fmt: skip
WEBHOOK_REQUEST_DURATION = Family(
    "topodns_webhook_request_duration_seconds", HISTOGRAM, "Time from the headers of a request to its response."
)
SLICES_REWRITTEN = Family(
    "topodns_webhook_slices_rewritten", COUNTER, "EndpointSlices whose hints the leader had to correct, by result.",
    {"result": RESULTS},
)  # fmt: skip
SLICES_WAITING = Family(
    "topodns_webhook_slices_waiting", GAUGE, "EndpointSlices in the work queue; only the leader takes them out."
)
CERTIFICATE_EXPIRY = Family(
    "topodns_webhook_certificate_expiry_timestamp_seconds",
    GAUGE,
    "When the certificate that new connections get ends (Unix time), 0 without one.",
)
CA_EXPIRY = Family(
    "topodns_webhook_ca_expiry_timestamp_seconds",
    GAUGE,
    "When the CA of that certificate ends (Unix time), 0 while the webhook configuration does not hold it.",
    when="its own certificate",
)

OF_WEBHOOKS = (
    LEADING, WEBHOOK_REQUESTS, WEBHOOK_REQUEST_DURATION, SLICES_REWRITTEN, SLICES_WAITING, CERTIFICATE_EXPIRY,
    CA_EXPIRY,
)  # fmt: skip


class WebhookCounts:
    """The counters of the HTTPS listener."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.durations = Durations(REVIEW_BOUNDS)

    def note(self, outcome: str, seconds: float) -> None:
        """Count a request, which took *seconds* from its headers to its response."""
        self.requests[outcome] += 1
        self.durations.add(seconds, 1)
