# SPDX-License-Identifier: Apache-2.0

"""Several clusters read as one: whatever happened to each of them, in whatever order, the result is that of now."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from locator.ip import parse_address
from locator.model import Location
from locator.state.snapshot import CompiledService, Entry, FederatedMember, Snapshot, Vote
from locator.topology.selection import LocatedEndpoint
from tests.kit.api_objects import IMPORTED_SERVICE_NAME, SOURCE_CLUSTER, TOPOLOGY_KEYS, Item, item
from tests.kit.in_memory import NOW, ClustersInMemory, resolved
from tests.kit.random_cluster import chance
from tests.kit.random_federations import HOSTS, Case, case_of, changed, keys, resolved_later
from tests.kit.unshrunk import unshrunk
from tests.oracle.twin_map import of_kind

Hosts = Mapping[str, Sequence[str]]


class World:
    """Clusters that change, and what reads them: each step is a change, or time that passes."""

    def __init__(self, seed: int) -> None:
        self.rng, case = random.Random(seed), case_of(seed)
        self.own, self.flags = case.world.own, {**case.world.flags(), "multicluster": ["clusterset.local"]}
        self.items: dict[str, Sequence[Item]] = {}
        self.lost: set[str] = set()
        self.hosts: Hosts = HOSTS
        self.seconds = 0.0
        self.case = case
        self.seen: dict[str, Mapping[str, Item]] = {name: {} for name in case.world.clusters}  # votes, by cluster
        for name, items in case.world.clusters.items():
            self.items[name] = self.voted_now(name, items)
        self.read = self.made_anew()

    def made_anew(self) -> ClustersInMemory:
        """Return what reads the clusters of now for the first time."""
        others = {name: items for name, items in self.items.items() if name != self.own}
        made = ClustersInMemory(self.items[self.own], others, self.flags, hosts=resolved(self.hosts))
        for name in self.lost:
            made.clusters.update(name, None)
        return made

    def publish(self, clusters: ClustersInMemory) -> Snapshot:
        self.seen = {name: {**self.seen[name], **votes_in(items)} for name, items in self.items.items()}
        return clusters.clusters.publish(NOW + self.seconds, moment=self.seconds)

    def step(self) -> None:
        """Let something happen."""
        rng, others = self.rng, sorted(self.items.keys() - {self.own})
        what = rng.choice(("change", "change", "change", "import", "time", "host", "lose", "back", "replace"))
        name = rng.choice(others)
        if what == "time":
            self.publish(self.read)  # changes are seen when they are made
            self.seconds += rng.choice((0.5, 7, 25, 31))
        elif what == "host":
            self.hosts = resolved_later(rng, self.hosts)
            self.read.clusters.resolve(resolved(self.hosts))
        elif what == "lose":
            self.lost.add(name)
            self.read.clusters.update(name, None)
        elif what == "back":
            if name in self.lost:
                self.take_in(name, self.items[name])
        elif what == "replace":
            clusters = case_of(rng.randrange(10**5)).world.clusters
            self.take_in(name, clusters[rng.choice(sorted(clusters))])
        else:
            name = rng.choice(sorted(self.items))
            self.take_in(name, self.imports(name) if what == "import" else self.later(name))

    def later(self, name: str) -> Sequence[Item]:
        """Return a cluster after a change of what is in it."""
        while True:
            world = self.case.world._replace(clusters=self.items)
            after = changed(Case(world, [], []), self.rng.randrange(10**6)).world.clusters
            if after[name] is not self.items[name]:
                return after[name]

    def imports(self, name: str) -> Sequence[Item]:
        """Return a cluster that has imported a Service s0, or no longer, or from another cluster."""
        rng = self.rng
        items = copy.deepcopy([found for found in self.items[name] if found["kind"] != "ServiceImport"])
        for found in of_kind(items, "EndpointSlice"):
            if IMPORTED_SERVICE_NAME in found["metadata"]["labels"]:
                found["metadata"]["labels"] |= {SOURCE_CLUSTER: rng.choice(sorted(self.items))}
        if chance(rng, 80):
            spec = {"type": rng.choice(("Headless", "ClusterSetIP"))}
            notes = {TOPOLOGY_KEYS: ",".join(keys(rng))} if chance(rng, 50) else {}
            items.append(item("ServiceImport", "s0", "shop", annotations=notes, spec=spec))
        return items

    def take_in(self, name: str, items: Sequence[Item]) -> None:
        self.lost.discard(name)
        self.items[name] = self.voted_now(name, items)
        self.read.take_in(self.items[name], "" if name == self.own else name, now=NOW + self.seconds)

    def voted_now(self, cluster: str, items: Sequence[Item]) -> Sequence[Item]:
        """Return objects whose votes have the time of now if they differ from those seen, and none is of the future.

        Then those who see them for the first time later agree on their age.
        """
        before = self.seen[cluster]
        items = copy.deepcopy(list(items))
        for name, found in votes_in(items).items():
            known = before.get(name)
            if known is not None and known["status"] == found["status"]:
                continue
            at = datetime.fromisoformat(found["status"]["renewTime"]).timestamp()
            if known is not None or at > NOW + self.seconds:
                at = NOW + self.seconds
            found["status"]["renewTime"] = datetime.fromtimestamp(at, UTC).isoformat()
        return items


def votes_in(items: Sequence[Item]) -> dict[str, Item]:
    return {found["metadata"]["name"]: found for found in of_kind(items, "ServiceHealth")}


# What a snapshot says, without whose objects say it


def said(snapshot: Snapshot) -> dict[str, object]:
    return {
        "services": {key: of_service(found) for key, found in snapshot.services.items()},
        "imported": {key: of_service(found) for key, found in snapshot.imported.items()},
        "federated": {
            key: (found.default, found.flat, [of_member(member) for member in found.members])
            for key, found in snapshot.federated.items()
        },
        "namespaces": (snapshot.namespaces, snapshot.federated_namespaces),
    }


def of_service(found: CompiledService) -> object:
    return found.service, found.declarations, list(map(of_located, found.endpoints)), found.empty


def of_member(member: FederatedMember) -> object:
    entries = [*(() if member.virtual is None else (member.virtual,)), *member.balancers]
    return (
        member.cluster,
        of_service(member.exported.compiled),
        member.exported.constraint,
        member.virtual is None,
        list(map(of_located, entries)),
    )


def of_located(located: LocatedEndpoint) -> object:
    more: tuple[object, ...] = ()
    if isinstance(located, Entry):
        votes: Sequence[Vote] = located.votes
        more = located.balancer, located.ttls, located.down, [(vote.cluster, vote.word) for vote in votes]
    return located.endpoint, of_location(located.location), more


def of_location(location: Location) -> object:
    return location.node, location.labels, location.known


def places(snapshot: Snapshot, clusters: Mapping[str, Sequence[Item]]) -> dict[str, object]:
    """Return where the addresses of all endpoints and pods in *clusters* are."""
    texts = {
        text
        for items in clusters.values()
        for found in items
        for text in (
            *(pod["ip"] for pod in found.get("status", {}).get("podIPs", ())),
            *(text for row in found.get("endpoints", ()) or () for text in row["addresses"]),
        )
    }
    found = {text: snapshot.addresses.locate(parse_address(text)) for text in sorted(texts)}
    return {text: (place.located_by, of_location(place.location)) for text, place in found.items()}


@settings(unshrunk, max_examples=5)
@given(seed=st.integers(0, 100_000))
def test_any_history_ends_in_what_is_read_at_once(seed: int) -> None:
    """Changes in all clusters, lost and replaced ones, votes, host names, time: published at each, or some at once."""
    world = World(seed)
    world.publish(world.read)
    for _ in range(8):
        for _ in range(world.rng.choice((1, 1, 2, 4))):
            world.step()
        before = world.publish(world.read)
        again, anew = world.publish(world.read), world.made_anew()
        assert (again.federated, again.imported, again.addresses, again.serial) == (
            before.federated, before.imported, before.addresses, before.serial,
        )  # fmt: skip
        expected = world.publish(anew)
        assert said(again) == said(expected)
        assert places(again, world.items) == places(expected, world.items)
        assert world.read.clusters.hosts == anew.clusters.hosts
        assert list(world.read.clusters.findings()) == list(anew.clusters.findings())
        assert list(world.read.clusters.advice()) == list(anew.clusters.advice())
        assert (world.read.clusters.votes, world.read.clusters.due) == (anew.clusters.votes, anew.clusters.due)
