# SPDX-License-Identifier: Apache-2.0

"""Several clusters read as one: whatever happened to each of them, in whatever order, the result is that of now."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from locator.ip import parse_address
from locator.state.snapshot import CompiledService, Snapshot
from tests.kit.api_objects import (
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    endpoint,
    imported_slice,
    item,
    listed,
)
from tests.kit.in_memory import NOW, ClustersInMemory, resolved
from tests.kit.random_cluster import chance
from tests.kit.random_federations import HOSTS, Case, case_of, changed, keys, resolved_later
from tests.kit.unshrunk import unshrunk
from tests.oracle.twin_map import of_kind

Hosts = Mapping[str, Sequence[str]]
ROUNDS = 6


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
        for _ in range(5):
            self.items[self.own] = self.imports()
        self.read = self.made_anew()

    def made_anew(self) -> ClustersInMemory:
        """Return what reads the clusters of now for the first time."""
        texts = {name: listed(items) for name, items in self.items.items()}
        made = ClustersInMemory(texts.pop(self.own), texts, self.flags, hosts=resolved(self.hosts))
        for name in self.lost:
            made.clusters.update(name, None)
        return made

    def publish(self, clusters: ClustersInMemory) -> Snapshot:
        self.seen = {name: {**self.seen[name], **votes_in(items)} for name, items in self.items.items()}
        return clusters.clusters.publish(NOW + self.seconds, moment=self.seconds)

    def step(self) -> None:
        """Let something happen."""
        rng, others = self.rng, sorted(self.items.keys() - {self.own})
        what = rng.choice((*["change", "import", "import", "node"] * 2, "time", "host", "lose", "back", "replace"))
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
        elif what == "import":
            self.take_in(self.own, self.imports())
        else:
            name = rng.choice(sorted(self.items))
            self.take_in(name, self.moved(name) if what == "node" else self.later(name))

    def later(self, name: str) -> Sequence[Item]:
        """Return a cluster after a change of what is in it."""
        while True:
            world = self.case.world._replace(clusters=self.items)
            after = changed(Case(world, [], []), self.rng.randrange(10**6)).world.clusters
            if after[name] is not self.items[name]:
                return after[name]

    def moved(self, name: str) -> Sequence[Item]:
        """Return a cluster of which a node is in another zone."""
        items = copy.deepcopy(list(self.items[name]))
        self.rng.choice(of_kind(items, "Node"))["metadata"]["labels"][ZONE] = self.rng.choice("abc")
        return items

    def imports(self) -> Sequence[Item]:
        """Return the own cluster with another ServiceImport s0, another slice of it, or another Service of its name."""
        rng, items = self.rng, copy.deepcopy(list(self.items[self.own]))
        what, source = rng.choice(("import", "slice", "slice", "namesake")), rng.choice(sorted(self.items))
        if what == "import":
            spec = {"type": rng.choice(("Headless", "Headless", "ClusterSetIP"))}
            notes = {TOPOLOGY_KEYS: ",".join(keys(rng))} if chance(rng, 40) else {}
            items = [found for found in items if found["kind"] != "ServiceImport"]
            items += [item("ServiceImport", "s0", "shop", annotations=notes, spec=spec)] * chance(rng, 85)
        elif what == "slice":
            nodes = [found["metadata"]["name"] for found in of_kind(self.items[source], "Node")]
            rows = [
                endpoint(f"10.99.0.{last}", nodeName=rng.choice(nodes), ready=chance(rng, 80))
                for last in rng.sample(range(4), rng.choice((1, 1, 2)))
            ]
            made = imported_slice("s0", source, rows)
            items = [*(found for found in items if found["metadata"]["name"] != made["metadata"]["name"]), made]
        else:
            for found in of_kind(items, "Service"):
                if found["metadata"]["name"] == "s0":
                    found["metadata"]["annotations"][TOPOLOGY_KEYS] = ",".join(keys(rng))
        return items

    def take_in(self, name: str, items: Sequence[Item]) -> None:
        self.lost.discard(name)
        self.items[name] = self.voted_now(name, items)
        self.read.take_in(listed(self.items[name]), "" if name == self.own else name, now=NOW + self.seconds)

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


# What a snapshot says, whichever objects say it

SAID = ("services", "namespaces", "unready", "imported", "federated", "federated_namespaces")


def said(snapshot: Snapshot) -> dict[str, object]:
    return {field: plain(getattr(snapshot, field)) for field in SAID}


def plain(value: object) -> object:
    """Return what a part of a snapshot holds, as something that compares by that."""
    if isinstance(value, CompiledService):  # of its slices, only what is ready counts
        return plain((value.service, value.declarations, value.endpoints, value.empty))
    if isinstance(value, Struct):
        return [(field, plain(getattr(value, field))) for field in value.__struct_fields__]
    if isinstance(value, Mapping):
        return {key: plain(of_key) for key, of_key in value.items()}
    return list(map(plain, value)) if isinstance(value, tuple) else value


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
    return {text: (place.located_by, plain(place.location)) for text, place in found.items()}


@settings(unshrunk, max_examples=12)
@given(seed=st.integers(0, 100_000))
def test_any_history_ends_in_what_is_read_at_once(seed: int) -> None:
    """Changes in all clusters, lost and replaced ones, votes, host names, time: published at each, or some at once."""
    world = World(seed)
    world.publish(world.read)
    for _ in range(ROUNDS):
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
