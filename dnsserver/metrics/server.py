# SPDX-License-Identifier: Apache-2.0

"""The metrics of a server: of its queries, and of what it knows of clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace
from prometheus_client.metrics_core import Metric

from dnsserver.message.wire import RCODES
from dnsserver.metrics.counters import (
    ADDRESS,
    BLOCK,
    COUNTED_TYPES,
    MAX_SERVICES,
    OTHER,
    SUSPICIOUS_CLIENTS,
    Counts,
    Durations,
)
from dnsserver.metrics.families import (
    ANY_VALUE,
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Family,
    TopodnsCollector,
    Values,
    Watch,
    labelled,
    restarts,
    watched,
)
from dnsserver.metrics.relations import RELATIONS, UNKNOWN, relation
from locator.api.list_watch import RESTART_REASONS
from locator.model import Finding
from locator.places.book import LOCATED_BY
from locator.state.snapshot import Snapshot
from locator.topology.selection import EMPTY, OUTCOMES
from locator.topology.service_checks import is_invalid_constraint

ANSWER_ZONES = Family(
    "topodns_answer_zones",
    COUNTER,
    "Answers with endpoints, by the client's zone, and by whether the endpoints are in it: all (same), some, or none "
    "(other). With --metrics-per-service also by service_namespace and service_name, which are empty beyond "
    f"{MAX_SERVICES} Services.",
    {"client_zone": ANY_VALUE, "answer": RELATIONS},
)
ANSWER_ZONES_BY_SERVICE = replace(
    ANSWER_ZONES, labels={"service_namespace": ANY_VALUE, "service_name": ANY_VALUE, **ANSWER_ZONES.labels}
)
Sums = Counter[tuple[str, ...]]


class Summed:
    """What a server has counted; its replies are summed up by what each metric tells of them."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.requests: Sums = Counter()
        self.rcodes: Sums = Counter()
        self.outcomes: Sums = Counter()
        self.keys: Sums = Counter()
        self.located: Sums = Counter()
        self.zones: Sums = Counter()
        self.services: Sums = Counter()
        if not counts.per_service:
            self.zones.update({(zone or UNKNOWN, relation): 0 for zone in counts.zones() for relation in RELATIONS})
        for channel, origin, tally, number in counts.replies():
            self.requests[channel.proto, str(channel.family), tally.qtype] += number
            self.rcodes[RCODES.get(tally.rcode, str(tally.rcode)),] += number
            if tally.outcome in OUTCOMES:  # nothing was chosen of a Service without a ready endpoint
                self.outcomes[tally.outcome,] += number
            if tally.key:
                self.keys[tally.key,] += number
            shown = tally.service is None or tally.service in counts.services  # of one that is gone, nothing is
            if counts.per_service and shown and (tally.zones or tally.outcome in EMPTY):
                self.services[*(tally.service or ("", "")), tally.outcome] += number
            if origin.located_by:
                self.located[origin.located_by,] += number
            if tally.zones and origin.located_by and (shown or not counts.per_service):  # probes have no client
                service = (tally.service or ("", "")) if counts.per_service else ()
                self.zones[*service, origin.zone or UNKNOWN, relation(origin.zone, tally.zones)] += number

    @property
    def remembered(self) -> Values:
        """The replies that were remembered, and those that were computed."""
        computed = self.counts.computed
        return labelled({"hit": max(0, sum(self.rcodes.values()) - computed), "miss": computed})


# What a server shows of its queries; a family whose function returns None is not shown.
OF_QUERIES: Mapping[Family, Callable[[Summed], Values | Durations | float | None]] = {
    Family(
        "topodns_dns_requests", COUNTER, "Queries that got a reply.",
        {"proto": ("udp", "tcp"), "family": ("1", "2"), "type": (*COUNTED_TYPES, OTHER)},
    ): lambda of: of.requests,
    Family(
        "topodns_dns_responses", COUNTER, "Replies sent.", {"rcode": tuple(RCODES.values())}
    ): lambda of: of.rcodes,
    Family(
        "topodns_dns_request_duration_seconds", HISTOGRAM, "Time from receiving a query to sending its reply."
    ): lambda of: of.counts.durations,
    Family(
        "topodns_dns_response_truncated", COUNTER, "Replies sent with the TC bit."
    ): lambda of: sum(channel.truncated for channel in of.counts.channels.values()),
    Family(
        "topodns_answers", COUNTER,
        "Answers by how their endpoints were chosen; spilled: passed on, for want of room nearer to the client.",
        {"outcome": OUTCOMES},
    ): lambda of: of.outcomes,
    Family(
        "topodns_answer_tier", COUNTER, "Answers by the topology key that decided.", {"key": ANY_VALUE}
    ): lambda of: of.keys,
    ANSWER_ZONES: lambda of: of.zones,
    Family(
        "topodns_service_answers", COUNTER,
        "Answers with endpoints, unmet ones, and those without any ready endpoint (unready), by Service "
        f"and outcome; both names are empty beyond {MAX_SERVICES} Services.",
        {"service_namespace": ANY_VALUE, "service_name": ANY_VALUE, "outcome": ANY_VALUE}, "`--metrics-per-service`",
    ): lambda of: of.services if of.counts.per_service else None,
    Family(
        "topodns_clients", COUNTER, "Queries by how topodns located the client.", {"located_by": LOCATED_BY}
    ): lambda of: of.located,
    Family(
        "topodns_forwarded_without_client", COUNTER, "Queries from trusted forwarders that named no client.",
        {"forwarder": ANY_VALUE},
    ): lambda of: labelled(of.counts.unnamed_clients.numbers),
    Family(
        "topodns_client_subnets_ignored", COUNTER,
        "Queries that named a client but did not come from a trusted forwarder.", {"source": ANY_VALUE},
    ): lambda of: labelled(of.counts.ignored_clients.numbers),
    Family(
        "topodns_untrusted_forwarders", GAUGE,
        f"Sources that are no trusted forwarder and have named {SUSPICIOUS_CLIENTS} clients, each with the value 1.",
        {"source": ANY_VALUE},
    ): lambda of: labelled(dict.fromkeys(of.counts.ignored_clients.suspects(), 1)),
    Family(
        "topodns_unlocated_clients", COUNTER,
        "Queries of clients that nothing locates, by what was looked up and the /24 or /64 around it.",
        {"reason": (ADDRESS, BLOCK), "range": ANY_VALUE},
    ): lambda of: of.counts.unlocated_clients.numbers(),
    # Controllers have a metric of this name, too, of something else: the probes of load balancers.
    Family(
        "topodns_probes", COUNTER,
        "Queries of topodns doctor, which say so by an EDNS option: requests as all others, but of no client.",
    ): lambda of: of.counts.probes,
    Family(
        "topodns_malformed_proxy_headers", COUNTER,
        "Queries dropped (UDP) and connections closed (TCP) for a malformed PROXY header.", {"proto": ("udp", "tcp")},
    ): lambda of: labelled(of.counts.malformed_headers),
    Family(
        "topodns_remembered", COUNTER, "Replies, remembered (hit) or computed (miss).", {"result": ("hit", "miss")}
    ): lambda of: of.remembered,
    Family(
        "topodns_upstream_requests", COUNTER,
        "Queries that needed a name outside the zones, by result; refused: their namespace had used up its share.",
        {"result": ("remembered", "answered", "failed", "refused")},
    ): lambda of: labelled(of.counts.upstream),
    Family("topodns_silent", COUNTER, "Packets that got no reply."): lambda of: of.counts.silent,
    Family("topodns_tcp_connections", GAUGE, "Open TCP connections."): lambda of: of.counts.connections,
}  # fmt: skip


class OtherView(Protocol):
    """What topodns knows of another cluster."""

    name: str

    @property
    def watches(self) -> Mapping[str, Watch]:
        """The watches of a live cluster, by kind."""

    def object_counts(self) -> Mapping[str, int]:
        """Return the number of objects by kind."""


class ServerMetrics(TopodnsCollector):
    """The metrics of a server that reads these *kinds* of objects."""

    def __init__(self, counts: Counts, kinds: Iterable[str] = ()) -> None:
        super().__init__(counts.failures)
        self.counts = counts
        self._kinds = tuple(kinds)
        self.snapshot: Snapshot | None = None
        self.watches: Mapping[str, Watch] = {}
        self.others: Sequence[OtherView] = ()
        """The other clusters."""
        self.ages: Callable[[], Mapping[str, float]] = dict
        """Returns for how many seconds each cluster, the own one too, is out of reach; 0 while there is contact."""
        self.votes: Callable[[], Mapping[str, int]] | None = None
        """Returns the number of addresses on which each cluster has a vote that counts; None if nobody votes."""

    def show(self, snapshot: Snapshot, _: Sequence[Finding]) -> None:
        """Show the objects and findings of *snapshot* from now on, as a subscriber."""
        self.snapshot = snapshot

    def of_each_other(self, values: Callable[[OtherView], Values]) -> Values | None:
        """Return *values* of each other cluster, its name before the other labels; None without other clusters."""
        found = {(other.name, *key): number for other in self.others for key, number in values(other).items()}
        return found if self.others else None

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        self.counts.catch_up()
        summed = Summed(self.counts)
        for family, values_of in OF_QUERIES.items():
            by_service = family is ANSWER_ZONES and self.counts.per_service
            if (values := values_of(summed)) is not None:
                yield (ANSWER_ZONES_BY_SERVICE if by_service else family).metric(values)
        objects = self.snapshot.object_counts if self.snapshot else dict.fromkeys(self._kinds, 0)
        listed = dict.fromkeys(self._kinds, self.snapshot is not None)
        listed.update({kind: watch.listed for kind, watch in self.watches.items()})
        yield from watched(objects, listed, self.watches)
        for family, values_now in OF_THE_CLUSTER.items():
            if (found := values_now(self)) is not None:
                yield family.metric(found)
        yield from self.of_the_process()


# What a server shows of clusters; a family whose function returns None is not shown.
OF_THE_CLUSTER: Mapping[Family, Callable[[ServerMetrics], Values | Durations | float | None]] = {
    Family(
        "topodns_kubernetes_dns_programming_duration_seconds", HISTOGRAM,
        "Time from the change of an EndpointSlice to answers that show it.",
    ): lambda of: of.counts.programming,
    Family(
        "topodns_invalid_constraints", GAUGE, "Services whose constraint is invalid."
    ): lambda of: sum(map(is_invalid_constraint, of.snapshot.findings)) if of.snapshot else 0,
    Family(
        "topodns_distrusted_pod_cidrs", GAUGE,
        "Pod CIDRs that topodns does not trust, because an endpoint in them is on another node.",
    ): lambda of: of.snapshot.addresses.distrusted_cidrs if of.snapshot else 0,
    Family(
        "topodns_snapshot_reloads", COUNTER, "Reloads of the --snapshot files.", {"result": ("success", "failure")}
    ): lambda of: labelled(of.counts.reloads),
    Family(
        "topodns_cluster_objects", GAUGE, "Objects read from another cluster, by kind.",
        {"source_cluster": ANY_VALUE, "kind": ANY_VALUE}, "`--cluster` or `--cluster-dir`",
    ): lambda of: of.of_each_other(lambda other: labelled(other.object_counts())),
    Family(
        "topodns_cluster_view_age_seconds", GAUGE,
        "For how long a cluster is out of reach, 0 while there is contact; the own one is called --cluster-name.",
        {"source_cluster": ANY_VALUE},
    ): lambda of: labelled(of.ages()),
    Family(
        "topodns_cluster_synced", GAUGE, "Whether all objects of a kind in another cluster have been read.",
        {"source_cluster": ANY_VALUE, "kind": ANY_VALUE}, "`--cluster` or `--cluster-dir`",
    ): lambda of: of.of_each_other(
        lambda other: labelled({kind: watch.listed for kind, watch in other.watches.items()})
    ),
    Family(
        "topodns_cluster_watch_restarts", COUNTER, "Watches of another cluster restarted, by kind and reason.",
        {"source_cluster": ANY_VALUE, "kind": ANY_VALUE, "reason": RESTART_REASONS}, "`--cluster` or `--cluster-dir`",
    ): lambda of: of.of_each_other(lambda other: restarts(other.watches)),
    Family(
        "topodns_health_votes", GAUGE, "Load balancer addresses on which a cluster has a vote.",
        {"source_cluster": ANY_VALUE}, "several clusters",
    ): lambda of: None if of.votes is None else labelled(of.votes()),
}  # fmt: skip
