# SPDX-License-Identifier: Apache-2.0

"""Clusters that are added to a set, and removed from it, in any order: it is as if it had always been so."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from locator.ip import parse_address
from locator.places.joined_book import JoinedBook
from locator.state.snapshot import Snapshot
from tests.kit.in_memory import ClustersInMemory
from tests.kit.three_clusters import IN_EAST, IN_WEST, three_clusters, votes, web

FLAGS = {"cluster-name": "east", "federation": ["fed.example"], "forwarder-service": "off", "upstream": "off"}
OTHERS = ("west", "south")
VERSIONS = (
    three_clusters(votes("east", "192.0.2.1")),
    three_clusters(votes("east south", "192.0.2.1", "192.0.2.2"), web("south", keys="topodns.io/cluster")),
)


def seen(snapshot: Snapshot) -> object:
    """Return what answers depend on."""
    addresses = map(parse_address, (IN_EAST, IN_WEST, "10.3.0.200"))
    places = [snapshot.addresses.locate(address).location.labels for address in addresses]
    members = {
        (key, member.cluster): [
            (entry.endpoint.addresses, entry.down, sorted((vote.cluster, vote.word) for vote in entry.votes))
            for entry in member.balancers
        ]
        for key, service in snapshot.federated.items()
        for member in service.members
    }
    return members, snapshot.federated_namespaces, places


def set_of(others: dict[str, int]) -> ClustersInMemory:
    """Return east, and other clusters, each as it is in one of the versions."""
    return ClustersInMemory(
        VERSIONS[0]["east"], {name: VERSIONS[version][name] for name, version in others.items()}, FLAGS
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OTHERS), st.sampled_from((0, 1, None)), st.booleans()), max_size=12))
def test_any_history_ends_as_if_it_had_always_been_so(changes: Sequence[tuple[str, int | None, bool]]) -> None:
    """None: the cluster goes. Nothing has to be published in between."""
    clusters, now = set_of(dict.fromkeys(OTHERS, 0)), dict.fromkeys(OTHERS, 0)
    clusters.snapshot()
    for name, version, publishes in changes:
        if version is None:
            if name in now:
                clusters.clusters.remove(name)
                del now[name]
        else:
            if name not in now:
                clusters.clusters.add(name)
            clusters.take_in(VERSIONS[version][name], name)
            now[name] = version
        if publishes:
            assert seen(clusters.snapshot()) == seen(set_of(now).snapshot())
    assert seen(clusters.snapshot()) == seen(set_of(now).snapshot())
    assert clusters.clusters.names == ["east", *sorted(now, key=clusters.clusters.names.index)]


def test_the_books_of_those_that_stay_keep_their_places() -> None:
    """Native code follows changes by place: it must not meet the addresses of one cluster as those of another."""
    clusters = set_of(dict.fromkeys(OTHERS, 0))
    before = clusters.snapshot().addresses
    clusters.clusters.remove("west")
    after = clusters.snapshot().addresses
    assert isinstance(before, JoinedBook) and isinstance(after, JoinedBook)
    assert [one is other for one, other in zip(before.books, after.books, strict=True)] == [True, False, True]
    clusters.clusters.add("north")
    assert len(clusters.snapshot().addresses.books) == 3
