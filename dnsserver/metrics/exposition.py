"""Shows the counters of a server as Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dnsserver.metrics.counters import Counts
from dnsserver.metrics.families import (
    Sums,
    TopodnsCollector,
    Watch,
    counter,
    histogram,
    labelled,
    watched,
)
from locator.model import Finding
from locator.state.snapshot import Snapshot
from locator.topology.constraint_findings import is_invalid_constraint

RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED", 16: "BADVERS"}


class OtherView(Protocol):
    """What topodns knows of another cluster."""

    name: str

    @property
    def watches(self) -> Mapping[str, Watch]:
        """The watches of a live cluster, by kind."""

    def age(self) -> float:
        """Return for how many seconds it is out of reach, 0 while there is contact."""

    def object_counts(self) -> Mapping[str, int]:
        """Return the number of objects by kind."""


class Metrics(TopodnsCollector):
    """The metrics of a server that reads these *kinds* of objects."""

    def __init__(self, counts: Counts, kinds: Iterable[str] = ()) -> None:
        super().__init__(counts.failures)
        self._counts = counts
        self._kinds = tuple(kinds)
        self._snapshot: Snapshot | None = None
        self.watches: Mapping[str, Watch] = {}
        self.others: Sequence[OtherView] = ()
        """The other clusters."""
        self.votes: Callable[[], Mapping[str, int]] | None = None
        """Returns the number of addresses on which each cluster has a vote that counts; None if nobody votes."""

    def show(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        """Show the objects and findings of *snapshot* from now on."""
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        for add_counted in self._counts.before_reading:
            add_counted()
        yield from self._queries()
        yield from self._cluster()
        yield from self.of_the_process()

    def _queries(self) -> Iterator[Metric]:
        counts = self._counts
        requests, rcodes, outcomes, keys = _summed(counts)
        yield counter("topodns_dns_requests", "Queries received.", ("proto", "family", "type"), requests)
        yield counter("topodns_dns_responses", "Replies sent.", ("rcode",), rcodes)
        yield counter("topodns_answers", "Answers by how their endpoints were chosen.", ("outcome",), outcomes)
        yield counter("topodns_answer_tier", "Answers by the topology key that decided.", ("key",), keys)
        located = labelled(counts.located)
        yield counter("topodns_clients", "Queries by how topodns located the client.", ("located_by",), located)
        yield counter(
            "topodns_forwarded_without_client",
            "Queries from trusted forwarders that named no client.",
            ("forwarder",),
            labelled(counts.unnamed_clients.numbers),
        )
        yield counter(
            "topodns_client_subnets_ignored",
            "Queries that named a client but did not come from a trusted forwarder.",
            ("source",),
            labelled(counts.ignored_clients.numbers),
        )
        yield counter(
            "topodns_malformed_proxy_headers",
            "Queries dropped (UDP) and connections closed (TCP) for a malformed PROXY header.",
            ("proto",),
            labelled(counts.malformed_headers),
        )
        answered = sum(rcodes.values())
        remembered = labelled({"hit": max(0, answered - counts.computed), "miss": counts.computed})
        yield counter(
            "topodns_remembered",
            "Replies, remembered (hit) or computed (miss).",
            ("result",),
            remembered,
        )
        truncated = sum(channel.truncated for channel in counts.channels.values())
        yield counter("topodns_dns_response_truncated", "Replies sent with the TC bit.", (), Counter({(): truncated}))
        yield counter(
            "topodns_upstream_requests",
            "Queries that needed a name outside the zones, by result.",
            ("result",),
            labelled(counts.upstream),
        )
        yield counter("topodns_silent", "Packets that got no reply.", (), Counter({(): counts.silent}))
        yield GaugeMetricFamily("topodns_tcp_connections", "Open TCP connections.", counts.connections)
        yield histogram(
            "topodns_dns_request_duration_seconds",
            "Time from receiving a query to sending its reply.",
            counts.durations,
        )

    def _cluster(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        objects = snapshot.object_counts if snapshot else dict.fromkeys(self._kinds, 0)
        listed = dict.fromkeys(self._kinds, snapshot is not None)
        listed.update({kind: watch.listed for kind, watch in self.watches.items()})
        yield from watched(objects, listed, self.watches)
        yield histogram(
            "topodns_kubernetes_dns_programming_duration_seconds",
            "Time from the change of an EndpointSlice to answers that show it.",
            self._counts.programming,
        )
        invalid = sum(map(is_invalid_constraint, snapshot.findings)) if snapshot else 0
        yield GaugeMetricFamily("topodns_invalid_constraints", "Services whose constraint is invalid.", invalid)
        distrusted = snapshot.addresses.distrusted_cidrs if snapshot else 0
        text = "Pod CIDRs that topodns does not trust, because an endpoint in them is on another node."
        yield GaugeMetricFamily("topodns_distrusted_pod_cidrs", text, distrusted)
        if self.others:
            yield from self._other_clusters()
        if self.votes is not None:
            votes = GaugeMetricFamily(
                "topodns_health_votes", "Load balancer addresses on which a cluster has a vote.", labels=("cluster",)
            )
            for cluster, number in self.votes().items():
                votes.add_metric((cluster,), number)
            yield votes
        reloads = labelled(self._counts.reloads)
        yield counter("topodns_snapshot_reloads", "Reloads of the --snapshot files.", ("result",), reloads)

    def _other_clusters(self) -> Iterator[Metric]:
        known = GaugeMetricFamily(
            "topodns_cluster_objects", "Objects read from another cluster, by kind.", labels=("cluster", "kind")
        )
        ages = GaugeMetricFamily(
            "topodns_cluster_view_age_seconds", "For how long another cluster is out of reach.", labels=("cluster",)
        )
        synced = GaugeMetricFamily(
            "topodns_cluster_synced",
            "Whether all objects of a kind in another cluster have been read.",
            labels=("cluster", "kind"),
        )
        restarts: Sums = Counter()
        for cluster in self.others:
            ages.add_metric((cluster.name,), cluster.age())
            for kind, number in cluster.object_counts().items():
                known.add_metric((cluster.name, kind), number)
            for kind, watch in cluster.watches.items():
                synced.add_metric((cluster.name, kind), int(watch.listed))
                restarts.update({(cluster.name, kind, reason): number for reason, number in watch.restarts.items()})
        yield from (ages, known, synced)
        text, labels = "Watches of another cluster restarted, by kind and reason.", ("cluster", "kind", "reason")
        yield counter("topodns_cluster_watch_restarts", text, labels, restarts)


def _summed(counts: Counts) -> tuple[Sums, Sums, Sums, Sums]:
    """Return the sums of requests, rcodes, outcomes and deciding keys over all channels and tallies."""
    requests: Sums = Counter()
    rcodes: Sums = Counter()
    outcomes: Sums = Counter()
    keys: Sums = Counter()
    for channel in counts.channels.values():
        for tally, number in zip(counts.tallies, channel.counts, strict=False):
            if not number:
                continue
            requests[channel.proto, str(channel.family), tally.qtype] += number
            rcodes[RCODES.get(tally.rcode, str(tally.rcode)),] += number
            if tally.outcome:
                outcomes[tally.outcome,] += number
            if tally.key:
                keys[tally.key,] += number
    return requests, rcodes, outcomes, keys
