# SPDX-License-Identifier: Apache-2.0

"""The metrics of controllers, and how programs that watch and write show theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from dnsserver.metrics.counters import Durations
from dnsserver.metrics.families import (
    ANY_VALUE,
    COUNTER,
    GAUGE,
    LEADING,
    Family,
    TopodnsCollector,
    Values,
    Watch,
    watched,
)
from locator.control.writes import CREATE, DELETE, METHODS, PATCH, RESULTS

PODLOCATOR_WRITES = Family(
    "topodns_podlocator_writes", COUNTER, "Writes of PodLocators, by verb and result.",
    {"verb": (CREATE, PATCH, DELETE), "result": RESULTS},
)  # fmt: skip
PODLOCATORS_WAITING = Family(
    "topodns_podlocators_waiting", GAUGE, "PodLocators in the work queue; only the leader takes them out."
)
SERVICEPOLICY_WRITES = Family(
    "topodns_servicepolicy_writes", COUNTER, "Writes of the status of ServicePolicies, by verb and result.",
    {"verb": (PATCH,), "result": RESULTS},
)  # fmt: skip
SERVICEHEALTH_WRITES = Family(
    "topodns_servicehealth_writes", COUNTER, "Writes of ServiceHealths, by verb and result.",
    {"verb": (CREATE, PATCH, DELETE), "result": RESULTS}, "`--health`",
)  # fmt: skip
DNSENDPOINT_WRITES = Family(
    "topodns_dnsendpoint_writes", COUNTER, "Writes of DNSEndpoints, by verb and result.",
    {"verb": (CREATE, PATCH, DELETE), "result": RESULTS}, "`--publish`",
)  # fmt: skip
# Servers have a metric of this name, too, of something else: the queries of doctor. Only the labels differ.
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

FEDERATION_WRITES = Family(
    "topodns_federation_writes", COUNTER,
    "Writes of objects of a federation, by cluster (empty: the federation API), verb and result.",
    {"source_cluster": ANY_VALUE, "verb": tuple(METHODS), "result": RESULTS}, "`--federate`",
)  # fmt: skip
FEDERATION_WAITING = Family(
    "topodns_federation_waiting", GAUGE,
    "Objects of a federation in the work queue of a cluster (empty: the federation API).",
    {"source_cluster": ANY_VALUE}, "`--federate`",
)  # fmt: skip
FEDERATION_REACHABLE = Family(
    "topodns_federation_reachable", GAUGE, "Whether a cluster to which objects are distributed can be read.",
    {"source_cluster": ANY_VALUE}, "`--federate`",
)  # fmt: skip

OF_CONTROLLERS = (
    LEADING, PODLOCATOR_WRITES, PODLOCATORS_WAITING, SERVICEPOLICY_WRITES, SERVICEHEALTH_WRITES, PROBES,
    PROBED_ADDRESSES, DNSENDPOINT_WRITES, FEDERATION_WRITES, FEDERATION_WAITING, FEDERATION_REACHABLE,
)  # fmt: skip


class ControllerMetrics(TopodnsCollector):
    """The metrics of a program that watches and writes.

    *objects* returns the number of objects by kind. *shown* has what returns the values of each other family.
    """

    def __init__(
        self,
        objects: Callable[[], Mapping[str, int]],
        watches: Mapping[str, Watch],
        shown: Mapping[Family, Callable[[], Values | Durations | float]],
    ) -> None:
        super().__init__(Counter())
        self._objects, self._watches, self._shown = objects, watches, shown

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        listed = {kind: watch.listed for kind, watch in self._watches.items()}
        yield from watched(self._objects(), listed, self._watches)
        for family, values in self._shown.items():
            yield family.metric(values())
        yield from self.of_the_process()
