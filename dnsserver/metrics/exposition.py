# SPDX-License-Identifier: Apache-2.0

"""Shows the counters of a server as Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.metrics_core import Metric

from dnsserver.message.wire import RCODES
from dnsserver.metrics import server_families as families
from dnsserver.metrics.collector import TopodnsCollector, Watch, restarts, watched
from dnsserver.metrics.counters import Counts
from dnsserver.metrics.families import labelled
from dnsserver.metrics.server_families import RELATIONS, UNKNOWN, relation
from locator.model import Finding
from locator.state.snapshot import Snapshot
from locator.topology.constraint_findings import is_invalid_constraint

Sums = Counter[tuple[str, ...]]


class OtherView(Protocol):
    """What topodns knows of another cluster."""

    name: str

    @property
    def watches(self) -> Mapping[str, Watch]:
        """The watches of a live cluster, by kind."""

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
        self.ages: Callable[[], Mapping[str, float]] = dict
        """Returns for how many seconds each cluster, the own one too, is out of reach; 0 while there is contact."""
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
        sums = Summed(counts)
        yield families.REQUESTS.metric(sums.requests)
        yield families.RESPONSES.metric(sums.rcodes)
        yield families.ANSWERS.metric(sums.outcomes)
        yield families.ANSWER_TIER.metric(sums.keys)
        of_service = ("service_namespace", "service_name") if counts.per_service else ()
        yield families.ANSWER_ZONES.metric(sums.zones, more_labels=of_service)
        yield families.CLIENTS.metric(sums.located)
        yield families.FORWARDED_WITHOUT_CLIENT.metric(labelled(counts.unnamed_clients.numbers))
        yield families.SUBNETS_IGNORED.metric(labelled(counts.ignored_clients.numbers))
        yield families.UNTRUSTED_FORWARDERS.metric({(source,): 1 for source in counts.ignored_clients.suspects()})
        yield families.UNLOCATED_CLIENTS.metric(counts.unlocated_clients.numbers())
        yield families.PROBES.only(counts.probes)
        yield families.MALFORMED_PROXY_HEADERS.metric(labelled(counts.malformed_headers))
        hits = max(0, sum(sums.rcodes.values()) - counts.computed)
        yield families.REMEMBERED.metric(labelled({"hit": hits, "miss": counts.computed}))
        yield families.TRUNCATED.only(sum(channel.truncated for channel in counts.channels.values()))
        yield families.UPSTREAM_REQUESTS.metric(labelled(counts.upstream))
        yield families.SILENT.only(counts.silent)
        yield families.TCP_CONNECTIONS.only(counts.connections)
        yield families.REQUEST_DURATION.histogram(counts.durations)

    def _cluster(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        objects = snapshot.object_counts if snapshot else dict.fromkeys(self._kinds, 0)
        listed = dict.fromkeys(self._kinds, snapshot is not None)
        listed.update({kind: watch.listed for kind, watch in self.watches.items()})
        yield from watched(objects, listed, self.watches)
        yield families.PROGRAMMING_DURATION.histogram(self._counts.programming)
        invalid = sum(map(is_invalid_constraint, snapshot.findings)) if snapshot else 0
        yield families.INVALID_CONSTRAINTS.only(invalid)
        yield families.DISTRUSTED_POD_CIDRS.only(snapshot.addresses.distrusted_cidrs if snapshot else 0)
        yield families.CLUSTER_VIEW_AGE.metric(labelled(self.ages()))
        if self.others:
            yield from self._other_clusters()
        if self.votes is not None:
            yield families.HEALTH_VOTES.metric(labelled(self.votes()))
        yield families.SNAPSHOT_RELOADS.metric(labelled(self._counts.reloads))

    def _other_clusters(self) -> Iterator[Metric]:
        def of_each(values: Callable[[OtherView], Mapping[tuple[str, ...], float]]) -> Mapping[tuple[str, ...], float]:
            return {(cluster.name, *key): number for cluster in self.others for key, number in values(cluster).items()}

        yield families.CLUSTER_OBJECTS.metric(of_each(lambda cluster: labelled(cluster.object_counts())))
        yield families.CLUSTER_SYNCED.metric(
            of_each(lambda cluster: {(kind,): watch.listed for kind, watch in cluster.watches.items()})
        )
        yield families.CLUSTER_WATCH_RESTARTS.metric(of_each(lambda cluster: restarts(cluster.watches)))


class Summed:
    """The replies of a server, summed up by what each metric tells of them."""

    def __init__(self, counts: Counts) -> None:
        self.requests: Sums = Counter()
        self.rcodes: Sums = Counter()
        self.outcomes: Sums = Counter()
        self.keys: Sums = Counter()
        self.located: Sums = Counter()
        self.zones: Sums = Counter()
        if not counts.per_service:
            self.zones.update({(zone or UNKNOWN, relation): 0 for zone in counts.zones() for relation in RELATIONS})
        for channel, origin, tally, number in counts.replies():
            self.requests[channel.proto, str(channel.family), tally.qtype] += number
            self.rcodes[RCODES.get(tally.rcode, str(tally.rcode)),] += number
            if tally.outcome:
                self.outcomes[tally.outcome,] += number
            if tally.key:
                self.keys[tally.key,] += number
            if origin.located_by:
                self.located[origin.located_by,] += number
            if tally.zones and origin.located_by:  # probes have no client
                service = (tally.service or ("", "")) if counts.per_service else ()
                self.zones[*service, origin.zone or UNKNOWN, relation(origin.zone, tally.zones)] += number
