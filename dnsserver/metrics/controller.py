# SPDX-License-Identifier: Apache-2.0

"""Shows what a controller does as Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from prometheus_client.metrics_core import Metric

from dnsserver.metrics.families import (
    COUNTER,
    GAUGE,
    LEADING,
    WRITTEN,
    Family,
    TopodnsCollector,
    Watch,
    labelled,
    watched,
)

Writes = Mapping[tuple[str, str], int]  # by verb and result

VERBS = ("create", "patch", "delete")

PODLOCATOR_WRITES = Family(
    "topodns_podlocator_writes", COUNTER, "Writes of PodLocators, by verb and result.",
    {"verb": VERBS, "result": WRITTEN},
)  # fmt: skip
PODLOCATORS_WAITING = Family(
    "topodns_podlocators_waiting", GAUGE, "PodLocators in the work queue; only the leader takes them out."
)
SERVICEPOLICY_WRITES = Family(
    "topodns_servicepolicy_writes", COUNTER, "Writes of the status of ServicePolicies, by verb and result.",
    {"verb": ("patch",), "result": WRITTEN},
)  # fmt: skip
SERVICEHEALTH_WRITES = Family(
    "topodns_servicehealth_writes", COUNTER, "Writes of ServiceHealths, by verb and result.",
    {"verb": VERBS, "result": WRITTEN}, "`--health`",
)  # fmt: skip
PROBES = Family(
    "topodns_probes",
    COUNTER,
    "Probes of load balancer addresses, by result; unknown: this machine could not find out.",
    {"result": ("success", "failure", "unknown")},
    "`--health`",
)
PROBED_ADDRESSES = Family(
    "topodns_probed_addresses", GAUGE, "Load balancer addresses that this replica probes, by whether they are healthy.",
    {"healthy": ("true", "false")}, "`--health`",
)  # fmt: skip

OF_CONTROLLERS = (
    LEADING, PODLOCATOR_WRITES, PODLOCATORS_WAITING, SERVICEPOLICY_WRITES, SERVICEHEALTH_WRITES, PROBES,
    PROBED_ADDRESSES,
)  # fmt: skip


class HealthState(Struct, frozen=True):
    """What a controller has found out about load balancers at one moment.

    ``probes`` are by result, ``addresses`` by whether they are healthy.
    """

    writes: Writes
    probes: Mapping[str, int]
    addresses: Mapping[bool, int]


class ControllerState(Struct, frozen=True):
    """A controller at one moment.

    ``writes`` are those of PodLocators, and ``waiting`` is the length of their work queue; ``status_writes`` are those
    of ServicePolicies. ``leading`` is by the Lease. ``objects`` are numbers by kind. ``health`` is None without
    ``--health``.
    """

    writes: Writes
    status_writes: Writes
    leading: Mapping[str, bool]
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
        yield PODLOCATOR_WRITES.metric(state.writes)
        yield LEADING.metric(labelled(state.leading))
        yield PODLOCATORS_WAITING.metric(state.waiting)
        yield SERVICEPOLICY_WRITES.metric(state.status_writes)
        if state.health is not None:
            yield SERVICEHEALTH_WRITES.metric(state.health.writes)
            yield PROBES.metric(labelled(state.health.probes))
            addresses = {str(healthy).lower(): number for healthy, number in state.health.addresses.items()}
            yield PROBED_ADDRESSES.metric(labelled(addresses))
        yield from self.of_the_process()
