# SPDX-License-Identifier: Apache-2.0

"""When several clusters are published, and which of them count, in virtual time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from locator.cluster.set_publisher import START_SECONDS, Cluster, SetPublisher
from locator.federation.clusterset import ClusterSet
from locator.federation.federating import Joining, default_constraint, flat_pairs
from locator.findings import ClusterCode
from locator.health.votes import VOTE_SECONDS
from locator.ip import address_text, parse_address
from locator.model import CLUSTER, Finding
from locator.state.snapshot import Snapshot
from locator.state.store import Store, StoreOptions
from tests.kit.in_memory import NOW, dump_of, take_in
from tests.kit.three_clusters import IN_EAST, IN_WEST, Change, three_clusters, votes

MAX_AGE = 60.0  # seconds


class Feed:
    """A publisher and a source whose age the test sets."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.seconds = 0.0
        self._subscribers: list[Callable[[Snapshot, Sequence[Finding]], None]] = []

    def subscribe(self, subscriber: Callable[[Snapshot, Sequence[Finding]], None]) -> None:
        self._subscribers.append(subscriber)

    def age(self) -> float:
        return self.seconds

    def publish(self, name: str, *changes: Change) -> None:
        store = Store(StoreOptions(cluster=name, exports=True))
        take_in(store, dump_of(three_clusters(*changes)[name]).objects)
        self.snapshot = store.publish(NOW)
        for subscriber in self._subscribers:
            subscriber(self.snapshot, ())


class Set:
    """East, which is the own cluster, and west, in a flat network; ``published`` are the snapshots of both."""

    def __init__(self) -> None:
        self.own, self.west = Feed(), Feed()
        feeds: tuple[Any, Any] = (self.own, self.west)
        joining = Joining(flat_pairs([frozenset({"east", "west"})]), default_constraint(("*",)))
        self.watches: dict[str, Any] = {}
        self.publisher = SetPublisher(ClusterSet("east", joining), feeds[0], max_age=MAX_AGE)
        self.publisher.add(Cluster("west", feeds[1], feeds[1], self.watches))
        self.published: list[Snapshot] = []
        self.findings: Sequence[Finding] = ()
        self.publisher.subscribe(self._take)

    def _take(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        self.published.append(snapshot)
        self.findings = findings

    def knows(self) -> list[str]:
        """Return the clusters of an address in each, as published last."""
        places = [self.published[-1].addresses.locate(parse_address(text)) for text in (IN_EAST, IN_WEST)]
        return [place.location.labels.get(CLUSTER, "") for place in places]

    def in_east(self) -> set[str]:
        """Return the addresses that clients in east get, whichever is near, as published last."""
        entries = self.published[-1].federated["shop/web"].entries("east", with_ports=False)
        return {address_text(address) for entry in entries for address in entry.endpoint.addresses}

    def voted_out(self) -> bool:
        """Return whether most clusters vote against a load balancer, as published last."""
        return any(
            entry.down for member in self.published[-1].federated["shop/web"].members for entry in member.balancers
        )


def in_virtual_time(main: Callable[[Set], Any]) -> None:
    async def run() -> None:
        await main(Set())

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_cluster_that_is_slow_holds_up_the_first_publication_for_a_while() -> None:
    """Readiness tells of it: nothing is answered before."""

    async def main(both: Set) -> None:
        both.own.publish("east")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(both.publisher.run)
            await trio.sleep(START_SECONDS - 0.5)
            assert (both.published, both.publisher.health().ok) == ([], False)
            assert both.publisher.health().text == "waiting up to 2 s for west"
        assert trio.current_time() < START_SECONDS + 0.1
        assert both.publisher.health().ok
        assert both.knows() == ["east", ""]

    in_virtual_time(main)


def test_a_lost_cluster_does_not_count_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """Both are in the log; whatever it publishes meanwhile waits, too."""
    caplog.set_level(logging.INFO, "topodns")

    async def main(both: Set) -> None:
        both.own.publish("east")
        both.west.publish("west")
        await both.publisher.run()
        known = []
        for age in (0.0, MAX_AGE, MAX_AGE + 1, MAX_AGE + 2, 0.0):
            both.west.seconds = age
            both.publisher.check_ages()
            both.west.publish("west")
            known.append(both.knows()[1])
        assert known == ["west", "west", "", "", "west"]

    in_virtual_time(main)
    assert [record.getMessage() for record in caplog.records] == [
        "cluster west: out of reach for 60 s (--cluster-max-age); it does not count until it is back",
        "cluster west: back in reach; it counts again",
    ]


def test_pods_of_a_lost_cluster_in_a_flat_network_stay_as_long_as_its_view_counts() -> None:
    """Though its API server is away, they may well be there; nobody probes them, whatever votes say."""

    async def main(both: Set) -> None:
        against = votes("east west", "10.2.0.5", "192.0.2.2", renewed=time.time())
        both.own.publish("east", against)
        both.west.publish("west", against)
        await both.publisher.run()
        given = []
        for age in (0.0, MAX_AGE, MAX_AGE + 1, 0.0):
            both.west.seconds = age
            both.publisher.check_ages()
            given.append(both.in_east())
        both_clusters = {"10.96.1.1", "10.2.0.5"}
        assert given == [both_clusters, both_clusters, {"10.96.1.1"}, both_clusters]

    in_virtual_time(main)


def test_a_cluster_that_comes_and_goes() -> None:
    """What it publishes counts in between, as what is noted of it; votes need another majority at once."""

    async def main(both: Set) -> None:
        against = votes("east", "192.0.2.1", renewed=time.time() + VOTE_SECONDS)
        both.own.publish("east", against)
        both.west.publish("west")
        both.publisher.remove("west")
        await both.publisher.run()
        seen = [(both.knows()[1], both.voted_out(), len(both.published[-1].federated["shop/web"].members))]
        feed: Any = both.west
        for number in (1, 2):
            both.publisher.add(Cluster("west", feed, feed))
            seen.append((both.knows()[1], both.voted_out(), number))
            both.west.publish("west")
            both.publisher.note("west", [finding := ClusterCode.InvalidClusterFile.finding(message=f"{number}")])
            assert both.findings == [finding]
            seen.append((both.knows()[1], both.voted_out(), number))
            both.publisher.remove("west")
            both.west.publish("west")
            assert both.findings == []
        assert seen == [("", True, 1), ("", False, 1), ("west", False, 1), ("", False, 2), ("west", False, 2)]
        assert both.knows() == ["east", ""] and both.voted_out()

    in_virtual_time(main)


def test_a_vote_ends_without_an_event() -> None:
    """There is one more publication then, in which the address is back."""

    async def main(both: Set) -> None:
        against = votes("east west", "192.0.2.2", renewed=time.time() + VOTE_SECONDS)  # in the future: counts as now
        both.own.publish("east", against)
        both.west.publish("west", against)
        await both.publisher.run()
        seen = []
        for seconds in (0.0, VOTE_SECONDS - 1, 2.0, VOTE_SECONDS):
            await trio.sleep(seconds)
            both.publisher.check_ages()
            seen.append((len(both.published), both.voted_out()))
        assert seen == [(1, True), (1, True), (2, False), (2, False)]

    in_virtual_time(main)
