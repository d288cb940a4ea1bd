# SPDX-License-Identifier: Apache-2.0

"""Publishes what a ClusterSet makes of several clusters, each of which has a publisher of its own.

A cluster that is slow, or out of reach, holds up nobody: the others are published without it, or with its last view.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from locator.cluster.publisher import Publisher, Source, Subscriber
from locator.federation.clusterset import ClusterSet
from locator.federation.federating import ResolvedHost
from locator.model import Finding, Health
from locator.state.snapshot import Snapshot

if TYPE_CHECKING:
    from locator.cluster.reflector import Reflector  # imports urllib3, which reading files does not need

log = logging.getLogger("topodns")

START_SECONDS = 2.0  # for which the first snapshot waits: small clusters are read within a second or two
POLL_SECONDS = 0.02  # meanwhile


class Cluster:
    """A cluster: its *source*, the *publisher* that it feeds, and the reflectors of a live one by kind.

    Its *name* is "" if it is the own one. ``lost`` says that the view of another one is too old to count.
    """

    def __init__(
        self, name: str, source: Source, publisher: Publisher, watches: Mapping[str, Reflector] | None = None
    ) -> None:
        self.name, self.source, self.publisher = name, source, publisher
        self.watches: Mapping[str, Reflector] = watches or {}
        self.lost = False
        self.scope = trio.CancelScope()
        """Of the tasks that follow it."""

    @property
    def is_on_its_way(self) -> bool:
        """Whether it has not been read yet, and no try has failed."""
        failed = any(watch.restarts for watch in self.watches.values())
        return self.publisher.snapshot is None and not failed

    def age(self) -> float:
        """Return for how many seconds it is out of reach, 0 while there is contact."""
        return self.source.age()

    def object_counts(self) -> Mapping[str, int]:
        """Return the number of objects by kind, nothing of a cluster that has never been read."""
        return {} if self.publisher.snapshot is None else self.publisher.snapshot.object_counts

    def health(self) -> Health:
        """Return what ``/readyz?verbose`` tells of it. It always passes: one cluster does not hold up the others."""
        if self.publisher.snapshot is None and not self.watches:
            text = self.source.health()["snapshot"].text
            return Health(True, text, text)
        if self.publisher.snapshot is None:
            problems = {reflector.problem for reflector in self.watches.values() if reflector.problem}
            text = f"not read yet{''.join(f'; {problem}' for problem in sorted(problems)[:1])}"
            return Health(True, text, text)
        age = self.source.age()
        if age:
            return Health(True, f"no contact for {age:.0f} s", "no contact")
        return Health(True) if self.watches else self.source.health()["snapshot"]


class SetPublisher:
    """Publishes the snapshots of *clusters* to its subscribers; *own* is the own cluster's publisher.

    *max_age* is how many seconds another cluster that is out of reach still counts. The first snapshot waits a little
    for the others and for host names, so that a restart does not change answers for a moment; but for no cluster that
    refuses or cannot be reached.
    """

    def __init__(self, clusters: ClusterSet, own: Publisher, *, max_age: float) -> None:
        self.clusters = clusters
        self._others: dict[str, Cluster] = {}
        self._max_age = max_age
        self._subscribers: list[Subscriber] = []
        self._found: dict[str, Sequence[Finding]] = {}  # by cluster, as its publisher gave them; the own one is ""
        self._findings: dict[str, Sequence[Finding]] = {}  # likewise, each with its cluster
        self._noted: dict[str, Sequence[Finding]] = {}  # by cluster, about its source
        self._publishers = {"": own}
        self._between: Sequence[Finding] = ()  # between the clusters
        self._between_in_files: Sequence[Finding] = ()  # the same ones, each with its file
        self._asked: Mapping[str, str] = {}
        self._ask: Callable[[Mapping[str, str]], None] | None = None
        self._started = self._resolved = False
        own.subscribe(partial(self._update, None))

    def add(self, cluster: Cluster) -> None:
        """Publish another cluster, too, once it has been read."""
        self._others[cluster.name], self._publishers[cluster.name] = cluster, cluster.publisher
        self.clusters.add(cluster.name)
        cluster.publisher.subscribe(partial(self._update, cluster))
        self._publish()

    def remove(self, name: str) -> None:
        """Publish all without another cluster, and listen to it no longer."""
        for known in (self._others, self._publishers, self._found, self._findings, self._noted):
            known.pop(name, None)
        self.clusters.remove(name)
        self._publish()

    def note(self, name: str, findings: Sequence[Finding]) -> None:
        """Publish *findings* about the source of a cluster, "" for all of them, in place of those noted before."""
        if self._noted.get(name, ()) != findings:
            self._noted[name] = findings
            self._publish()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call *subscriber* at each publication from now on, after all earlier subscribers."""
        self._subscribers.append(subscriber)

    def resolve_by(self, ask: Callable[[Mapping[str, str]], None]) -> None:
        """Call *ask* with the host names of load balancers whenever they change; it has ``resolve`` called.

        They come as in ``ClusterSet.hosts``.
        """
        self._ask = ask

    def resolve(self, hosts: Mapping[str, ResolvedHost]) -> None:
        """Take in the addresses of host names, and publish what changes."""
        self._resolved = True
        self.clusters.resolve(hosts)
        self._publish()

    async def run(self) -> None:
        """Publish for the first time; then return."""
        while not self.clusters.complete:
            await trio.sleep(POLL_SECONDS)
        with trio.move_on_after(START_SECONDS):
            while any(cluster.is_on_its_way for cluster in self._others.values()):
                await trio.sleep(POLL_SECONDS)
            self.clusters.publish(time.time(), moment=trio.current_time())
            self._follow_hosts()
            while self._asked and not self._resolved:
                await trio.sleep(POLL_SECONDS)
        self.start()

    def start(self, missing: Mapping[str, Finding] | None = None) -> None:
        """Publish what there is now, and from now on each change. *missing* says why there is nothing of a cluster."""
        self._noted |= {name: [finding] for name, finding in (missing or {}).items()}
        self._started = True
        self._publish()

    def health(self) -> Health:
        """Return whether something has been published. Before, there are no answers, whatever is known."""
        if self._started:
            return Health(True)
        slow = [name for name, cluster in self._others.items() if cluster.is_on_its_way]
        if not self.clusters.complete or not slow:
            return Health(False, "nothing to answer from yet")
        return Health(False, f"waiting up to {START_SECONDS:g} s for {', '.join(slow)}")

    def votes(self) -> Mapping[str, int]:
        """Return the number of addresses on which each cluster has a vote that counts."""
        return self.clusters.votes

    def check_ages(self) -> None:
        """Let other clusters, and votes, go that are too old; let clusters back in that are there again."""
        due = self.clusters.due
        if due is not None and due <= trio.current_time():
            self._publish()
        for cluster in self._others.values():
            lost = cluster.source.age() > self._max_age
            if lost is cluster.lost:
                continue
            cluster.lost = lost
            if cluster.publisher.snapshot is not None:
                about = {"fields": {"cluster": cluster.name}}
                if lost:
                    log.warning(
                        "cluster %s: out of reach for %d s (--cluster-max-age); it does not count until it is back",
                        cluster.name, self._max_age, extra=about,
                    )  # fmt: skip
                else:
                    log.info("cluster %s: back in reach; it counts again", cluster.name, extra=about)
                self.clusters.update(cluster.name, None if lost else cluster.publisher.snapshot)
                self._publish()

    def _update(self, cluster: Cluster | None, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        name = "" if cluster is None else cluster.name
        if cluster is not None and self._others.get(name) is not cluster:
            return  # it has gone
        if self._found.get(name) is not findings:
            self._found[name] = findings
            self._findings[name] = [finding.in_cluster(name) for finding in findings] if name else findings
        if cluster is None:
            self.clusters.update_own(snapshot)
        elif not cluster.lost:
            self.clusters.update(name, snapshot)
        self._publish()

    def _publish(self) -> None:
        if not self._started:
            return
        snapshot = self.clusters.publish(time.time(), moment=trio.current_time())
        self._follow_hosts()
        if self._between is not self.clusters.findings():
            self._between = self.clusters.findings()
            self._between_in_files = [self._publishers[finding.cluster].with_file(finding) for finding in self._between]
        known = (self._findings, self._noted)
        within = [finding for name in self._publishers for found in known for finding in found.get(name, ())]
        findings = [*within, *self._between_in_files]
        for subscriber in self._subscribers:
            subscriber(snapshot, findings)

    def _follow_hosts(self) -> None:
        """Have the host names resolved that the clusters' load balancers have now."""
        if self._ask is not None and self.clusters.hosts != self._asked:
            self._asked = self.clusters.hosts
            self._ask(self._asked)
