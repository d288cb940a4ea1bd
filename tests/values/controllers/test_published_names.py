# SPDX-License-Identifier: Apache-2.0

"""DNSEndpoints of federated names: which there are, what they say, and that nothing goes which is only not known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.programs.publishing import reading_balancers
from dnsserver.settings.settings import Settings
from locator.control.writes import CREATE, DELETE, PATCH
from locator.federation.federating import ResolvedHost
from locator.ip import parse_address
from locator.publishing.dns_endpoints import OURS
from locator.publishing.rules import PublishingRules, Unread
from tests.kit.api_objects import Item, endpoint, item, listed
from tests.kit.controlled import Controlled
from tests.kit.in_memory import ClustersInMemory, resolved
from tests.kit.random_federations import case_of
from tests.kit.three_clusters import Change, Clusters, endpoints, three_clusters, votes, web

ZONE, SPACE, NAME = "fed.example", "dns", "web.shop.fed.example"
KEY = f"{SPACE}/{NAME}"
FLAGS: dict[str, Any] = {
    "cluster-name": "east", "federation": [ZONE], "forwarder-service": "off", "no-endpoints": "on",
}  # fmt: skip
EAST, WEST, SOUTH = "192.0.2.1", "192.0.2.2", "192.0.2.3"
LATER = Unread(clusters=True)


class World(Controlled):
    """The controller of the cluster ``east``, which leads, and its API server; *changes* are made to three clusters.

    *read* are the clusters that it has read.
    """

    def __init__(self, *changes: Change, stored: Iterable[Item] = (), zones: Sequence[str] = (ZONE,)) -> None:
        self.rules = PublishingRules(zones, SPACE)
        super().__init__(self.rules, stored)
        self.clusters = three_clusters(*changes)

    def look(
        self, *, read: Collection[str] = ("east", "west", "south"), unread: Unread | None = None,
        hosts: Mapping[str, ResolvedHost] | None = None, upstream: str = "192.0.2.53",
    ) -> list[str]:  # fmt: skip
        """Read the clusters; carry out all writes that are due, and return their verbs."""
        others = {name: self.clusters[name] for name in ("west", "south") if name in read}
        flags = {**FLAGS, "upstream": [upstream]}
        snapshot = ClustersInMemory(self.clusters["east"], others, flags, hosts=hosts).snapshot()
        for key in self.rules.want(snapshot.federated, unread or Unread(clusters=len(others) < 2)):
            self.reconciler.queue.add(key)
        return [write.verb for write in self.write()]

    def change(self, *changes: Change) -> None:
        for change in changes:
            change(self.clusters)

    def said(self, key: str = KEY) -> dict[str, list[str]]:
        """Return the addresses in a DNSEndpoint by type of record; empty if there is none."""
        written = self.stored[key]["spec"]["endpoints"] if key in self.stored else ()
        return {record["recordType"]: record["targets"] for record in written}

    def addresses(self) -> set[str]:
        return {address for targets in self.said().values() for address in targets}


def stored(*records: Item, labels: Mapping[str, str] = OURS, name: str = NAME) -> Item:
    made = item("DNSEndpoint", name, SPACE, spec={"endpoints": list(records)})
    made["metadata"] |= {"resourceVersion": "7", "labels": dict(labels)}
    return made


def record(*targets: str) -> Item:
    return {"dnsName": NAME, "recordTTL": 180, "recordType": "A", "targets": list(targets)}


def test_the_life_of_a_dnsendpoint() -> None:
    """It is there while the name has a load balancer, and says where."""
    world = World(web("south", balancers=["2001:db8::3", SOUTH]))
    assert world.look() == [CREATE]
    assert world.stored[KEY] == {
        "apiVersion": "externaldns.k8s.io/v1alpha1",
        "kind": "DNSEndpoint",
        "metadata": {"namespace": SPACE, "name": NAME, "labels": OURS, "resourceVersion": "101"},
        "spec": {
            "endpoints": [
                {"dnsName": NAME, "recordTTL": 180, "recordType": "A", "targets": [EAST, WEST, SOUTH]},
                {"dnsName": NAME, "recordTTL": 180, "recordType": "AAAA", "targets": ["2001:db8::3"]},
            ]
        },
    }
    assert world.look() == []
    world.change(web("south", balancers=[SOUTH]), web("west", balancers=[]))
    assert (world.look(), world.said()) == ([PATCH], {"A": [EAST, SOUTH]})
    world.change(web("east west south", balancers=[]))
    assert (world.look(), world.stored, len(world.reconciler.queue)) == ([DELETE], {}, 0)
    world.change(web("west", balancers=[WEST]))
    assert (world.look(), world.said()) == ([CREATE], {"A": [WEST]})


NOT_READY = endpoint("10.3.0.5", nodeName="n1", ready=False)


class Row(NamedTuple):
    """What is different, and the addresses that are published."""

    name: str
    changes: Sequence[Change]
    addresses: Sequence[str]


def not_exported(name: str) -> Change:
    def change(clusters: Clusters) -> None:
        for found in clusters[name]:
            found["metadata"].pop("annotations", None)

    return change


ROWS = [
    Row("nothing", [], [EAST, WEST, SOUTH]),
    Row("no endpoint is ready", [endpoints("south", NOT_READY)], [EAST, WEST]),
    Row("not exported", [not_exported("south")], [EAST, WEST]),
    Row("a hard constraint, which is about clients", [web("east west south", keys="topodns.io/cluster")],
        [EAST, WEST, SOUTH]),
    Row("a majority is against one", [votes("east west", SOUTH)], [EAST, WEST]),
    Row("a minority is", [votes("east", SOUTH)], [EAST, WEST, SOUTH]),
    Row("a majority is against all", [votes("east west", EAST, WEST, SOUTH)], [EAST, WEST, SOUTH]),
    Row("two clusters have one address", [web("south", balancers=[EAST])], [EAST, WEST]),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_published(row: Row) -> None:
    """The load balancers of all clusters, but for those that are voted out; of all that are, all."""
    world = World(*row.changes)
    world.look()
    assert world.said() == {"A": row.addresses}


def test_each_zone_has_its_name() -> None:
    """Each federated name is an object of its own; those of a zone that is not given any more go."""
    world = World(zones=[ZONE, "other.example"])
    assert world.look() == [CREATE, CREATE]
    assert sorted(world.stored) == [KEY, f"{SPACE}/web.shop.other.example"]
    left = World(stored=world.stored.values())
    assert (left.look(), list(left.stored)) == ([DELETE], [KEY])


def test_what_is_not_ours_stays() -> None:
    """A DNSEndpoint without the label is somebody else's: it is never written, and whoever looks is told."""
    foreign = stored(record("198.51.100.1"), labels={})
    other = stored(record("198.51.100.1"), labels={"app.kubernetes.io/managed-by": "Helm"}, name="of-somebody")
    world = World(stored=[foreign, other])
    assert (world.look(), world.stored[KEY]) == ([], foreign)
    assert world.rules.problems == {
        KEY: "the DNSEndpoint of that name is somebody else's, expected none, or one with the label "
        "app.kubernetes.io/managed-by: topodns"
    }
    world.drop(world.rules.writes, KEY)
    assert ([write.verb for write in world.write()], world.rules.problems) == ([CREATE], {})


def test_what_others_wrote_into_ours_is_undone() -> None:
    """The records are ours; labels and annotations that others add stay."""
    world = World()
    world.look()
    wanted = world.stored[KEY]["spec"]
    changed = stored(record("198.51.100.1"))
    changed["metadata"]["annotations"] = {"example.com/owner": "somebody"}
    world.put(changed)
    assert [write.verb for write in world.write()] == [PATCH]
    assert (world.stored[KEY]["spec"], world.stored[KEY]["metadata"]["annotations"]) == (
        wanted, {"example.com/owner": "somebody"})  # fmt: skip


UNREADABLE = [
    {}, {"endpoints": None}, {"endpoints": []}, {"endpoints": 5},
    {"endpoints": [None, 1, {}, {"targets": 3}, {"targets": [4, "x", None]}]},
]  # fmt: skip


@pytest.mark.parametrize("spec", UNREADABLE, ids=str)
@pytest.mark.parametrize("unread", [Unread(), LATER], ids=str)
def test_whatever_stands_there(spec: Item, unread: Unread) -> None:
    """Ours is put right, whatever somebody wrote into it."""
    world = World(stored=[{**stored(), "spec": spec}, {**stored(name="gone.example"), "spec": spec}])
    assert (sorted(world.look(unread=unread)), world.said()) == ([DELETE, PATCH], {"A": [EAST, WEST, SOUTH]})


def test_the_name_of_the_name_server_is_not_published() -> None:
    """ns.dns.<zone> is topodns's own, whatever Services there are."""

    def renamed(clusters: Clusters) -> None:
        for found in (found for of_cluster in clusters.values() for found in of_cluster):
            if found["metadata"].get("namespace") == "shop":
                found["metadata"] |= {"namespace": "dns", "name": found["metadata"]["name"].replace("web", "ns")}
                labels = found["metadata"].get("labels", {})
                labels |= {"kubernetes.io/service-name": "ns"} if "kubernetes.io/service-name" in labels else {}

    world = World(renamed)
    assert (world.look(), world.rules.problems) == ([], {})


@pytest.mark.parametrize(
    ("zone", "problem"),
    [
        (f"{'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 53}.example", "262 characters, expected at most 253"),
        ("of_us.example", "cannot be the name of an object, expected letters, digits and - in each label"),
    ],
    ids=["too long", "an underscore"],
)
def test_names_that_no_object_can_have(zone: str, problem: str) -> None:
    """Nothing is written, and whoever looks is told; other zones go on."""
    world = World(zones=[zone, ZONE])
    assert (world.look(), list(world.stored)) == ([CREATE], [KEY])
    assert world.rules.problems == {f"{SPACE}/web.shop.{zone}": problem}


def test_before_anything_was_read_nothing_is_written() -> None:
    """What stands written may be all right."""
    world = World(stored=[stored(record(EAST, "198.51.100.1"))])
    assert world.write() == []


def test_a_cluster_that_was_not_read_yet_loses_nothing() -> None:
    """Its addresses stay until it is read or given up; those of others come and go."""
    world = World(stored=[stored(record(EAST, WEST, SOUTH))])
    assert (world.look(read=["east"]), world.said()) == ([], {"A": [EAST, WEST, SOUTH]})
    world.change(web("east", balancers=["192.0.2.4"]))
    assert (world.look(read=["east"]), world.said()) == ([PATCH], {"A": [EAST, WEST, SOUTH, "192.0.2.4"]})
    world.change(votes("east west south", SOUTH))
    assert (world.look(read=["east", "south", "west"], unread=LATER), world.said()) == (
        [PATCH], {"A": [EAST, WEST, "192.0.2.4"]})  # fmt: skip
    assert (world.look(), world.said()) == ([PATCH], {"A": [WEST, "192.0.2.4"]})


def test_a_name_that_nobody_read_yet_is_not_deleted() -> None:
    """It may be of the cluster that was not read; it goes once that is read, or given up."""
    world = World(not_exported("east"), stored=[stored(record(WEST))])
    assert (world.look(read=["east"]), world.said()) == ([], {"A": [WEST]})
    assert (world.look(read=["east"], unread=Unread()), world.stored) == ([DELETE], {})


def test_a_host_name_that_was_not_resolved_yet_loses_nothing() -> None:
    """Its addresses stay until it is resolved, or should have been."""
    world = World(web("east", balancers=["lb.example"]), web("west south", balancers=[]), stored=[stored(record(EAST))])
    waits = Unread(hosts=True)
    assert (world.look(unread=waits), world.said()) == ([], {"A": [EAST]})
    found = {"lb.example": ResolvedHost((parse_address(WEST),), {4: 60})}
    assert (world.look(unread=waits, hosts=found), world.said()) == ([PATCH], {"A": [WEST]})
    assert (world.look(), world.stored) == ([DELETE], {})


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_it_reads_what_a_server_reads(seed: int) -> None:
    """Without Pods, Nodes and endpoints, clusters have the same load balancers, and the same votes on them."""
    world = case_of(seed).world
    texts = {name: listed(items) for name, items in world.clusters.items()}
    own = texts.pop(world.own)

    def balancers(read_as: Callable[[Settings], Settings]) -> dict[str, list[tuple[object, ...]]]:
        clusters = ClustersInMemory(own, texts, world.flags(), hosts=resolved(world.hosts), read_as=read_as)
        services = clusters.snapshot().federated.items()
        found = {key: [one for member in service.members for one in member.balancers] for key, service in services}
        return {key: [(one.balancer, one.endpoint.addresses, one.down) for one in entries]
                for key, entries in found.items() if entries}  # fmt: skip

    assert balancers(reading_balancers) == balancers(lambda settings: settings)


ADDRESSES = [EAST, WEST, SOUTH, "192.0.2.4", "2001:db8::1"]
OF_A_CLUSTER = st.lists(st.sampled_from(ADDRESSES), max_size=3, unique=True)


@settings(max_examples=60)
@given(st.data())
def test_whatever_happened_it_ends_as_from_the_beginning(data: st.DataObject) -> None:
    """After any changes, with clusters that are read or not, the object is that of a controller which starts now."""
    world = World(stored=[stored(record(*data.draw(OF_A_CLUSTER, "stored")))])
    for _ in range(data.draw(st.integers(1, 4), "rounds")):
        world.change(*(web(name, balancers=data.draw(OF_A_CLUSTER, name)) for name in ("east", "west", "south")))
        before = world.addresses()
        read = ["east", *data.draw(st.sets(st.sampled_from(["west", "south"])), "read")]
        world.look(read=read)
        if len(read) < 3:
            assert before <= world.addresses()
    world.look()
    anew = World()
    anew.change(lambda clusters: clusters.update(world.clusters))
    anew.look()
    assert world.said() == anew.said()
