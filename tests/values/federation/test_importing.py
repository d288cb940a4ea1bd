# SPDX-License-Identifier: Apache-2.0

"""Multi-cluster Services: where their endpoints are, whose constraint counts, and what a change concerns.

``scenarios/multicluster-services.yaml`` has the answers. CoreDNS's are compared in ``test_compared_with_coredns.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dns.message
import dns.rcode
import dns.reversename
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.programs.from_settings import cluster_set_of, other_store_of, store_of
from locator.api.deltas import Drop, Put
from locator.endpoints import compact
from locator.federation.clusterset import ClusterSet
from locator.ip import parse_address
from locator.labels import IN, Requirement, Selector
from locator.model import (
    Endpoint,
    EndpointSlice,
    Namespace,
    Node,
    Port,
    Service,
    ServiceImport,
    ServicePolicy,
    in_cluster,
)
from locator.state.snapshot import ImportedService, Snapshot
from locator.state.store import Store
from tests.kit.api_objects import (
    HOSTNAME,
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    imported_slice,
    item,
    namespace,
    node,
    service,
    service_import,
)
from tests.kit.in_memory import NOW, ClustersInMemory, ask_in_memory, read_again, settings_of

FLAGS = {"cluster-name": "west", "multicluster": ["clusterset.local"]}
CLUSTER = "topodns.io/cluster"
ADDRESS = "10.0.0.1"
WEST = [namespace("shop"), node("n1", {ZONE: "w"})]
EAST = [node("n1", {ZONE: "e"}), node("n2", {ZONE: "e"})]


def imported_of(own: Sequence[Item], flags: dict[str, Any] | None = None, key: str = "shop/db") -> ImportedService:
    """Return a multi-cluster Service as the cluster west sees it, which knows the cluster east."""
    return ClustersInMemory([*WEST, *own], {"east": EAST}, {**FLAGS, **(flags or {})}).snapshot().imported[key]


# -- where an endpoint is


@pytest.mark.parametrize(
    ("cluster", "fields", "labels"),
    [
        ("west", {"nodeName": "n1"}, {CLUSTER: "west", ZONE: "w", HOSTNAME: "n1"}),
        ("east", {"nodeName": "n1"}, {CLUSTER: "east", ZONE: "e", HOSTNAME: "n1"}),
        ("East", {"nodeName": "n1"}, {CLUSTER: "east", ZONE: "e", HOSTNAME: "n1"}),
        ("east", {"nodeName": "n1", "zone": "stale"}, {CLUSTER: "east", ZONE: "e", HOSTNAME: "n1"}),
        ("west", {"nodeName": "n2", "zone": "x"}, {CLUSTER: "west", ZONE: "x", HOSTNAME: "n2"}),
        ("east", {"zone": "x"}, {CLUSTER: "east", ZONE: "x"}),
        ("north", {"nodeName": "n1", "zone": "x"}, {CLUSTER: "north", ZONE: "x", HOSTNAME: "n1"}),
        ("north", {}, {CLUSTER: "north"}),
        (None, {"nodeName": "n1", "zone": "x"}, {ZONE: "x", HOSTNAME: "n1"}),
    ],
    ids=[
        *(
            "own-node",
            "node-elsewhere",
            "capitals",
            "node-before-zone",
            "own-node-unknown",
            "no-node",
            "unknown-cluster",
        ),
        *("nothing-known", "no-cluster"),
    ],
)
def test_an_endpoint_is_on_its_node_else_where_its_slice_says(
    cluster: str | None, fields: dict[str, str], labels: dict[str, str]
) -> None:
    """The node counts if its cluster is known, then the slice's own word. Nodes of one name in two clusters are two."""
    found = imported_of([service_import("db"), imported_slice("db", cluster, [endpoint(ADDRESS, **fields)])])
    assert [location.labels for location in found.locations] == [labels]


def test_clusters_may_use_the_same_addresses() -> None:
    """Endpoints with one address in two clusters are two, with a name in either; one of both slices of a pod is one."""
    own = [service_import("db"), *(imported_slice("db", name, [endpoint(ADDRESS)]) for name in ("west", "east"))]
    own.append(imported_slice("db", "east", [endpoint(ADDRESS)], 2, ports=[("more", 81, "TCP")]))
    assert [located.location.labels[CLUSTER] for located in imported_of(own).endpoints] == ["east", "west"]


@pytest.mark.parametrize(
    ("address", "names"),
    [(ADDRESS, ["10-0-0-1.db.shop.svc.cluster.local."]), ("10.0.0.9", [])],
    ids=["of-the-service", "of-the-import"],
)
def test_a_reverse_name_is_one_of_the_own_cluster(address: str, names: list[str]) -> None:
    """PTR names neither multi-cluster Services nor their endpoints."""
    own = [*WEST, service_import("db"), imported_slice("db", "west", [endpoint("10.0.0.9")])]
    own += [service("db"), endpoint_slice("db", 1, [endpoint(ADDRESS)])]
    query = dns.message.make_query(dns.reversename.from_address(address), "PTR")
    reply = ask_in_memory(ClustersInMemory(own, {"east": EAST}, FLAGS).responder(), query, "192.0.2.1")
    assert reply is not None
    assert [str(row) for rrset in reply.answer for row in rrset] == names


# -- whose constraint counts

NAMESAKE = {"keys": "example.com/rack", "labels": {"app": "db"}}
HALL = {"key": "example.com/hall", "mode": "required"}
POLICY = item("ServicePolicy", "p", "shop", spec={"serviceSelector": {"matchLabels": {"app": "db"}}, "topology": HALL})


@pytest.mark.parametrize(
    ("own", "flags", "source", "keys"),
    [
        ([service_import("db")], {}, None, None),
        ([service_import("db", keys=f"{ZONE},*")], {}, "annotation", [ZONE, "*"]),
        ([service_import("db", keys=ZONE), service("db", **NAMESAKE)], {}, "annotation", [ZONE]),
        ([service_import("db", trafficDistribution="PreferSameNode")], {}, "traffic-distribution",
         [HOSTNAME, ZONE, "*"]),
        ([service_import("db", trafficDistribution="PreferClose"), service("db", **NAMESAKE)], {},
         "traffic-distribution", [ZONE, "*"]),
        ([service_import("db", trafficDistribution="PreferClose"), service("db", **NAMESAKE)],
         {"traffic-distribution": "ignore"}, "annotation", ["example.com/rack"]),
        ([service_import("db"), service("db", **NAMESAKE)], {}, "annotation", ["example.com/rack"]),
        ([service_import("db"), service("db", cluster_ips=["10.96.0.1"], **NAMESAKE)], {}, "annotation",
         ["example.com/rack"]),
        ([service_import("db"), service("db", **NAMESAKE), POLICY], {}, "policy", ["example.com/hall"]),
        ([service_import("db"), service("db", trafficDistribution="PreferClose"),
          endpoint_slice("db", 1, [endpoint("10.0.0.2", hints={"forZones": [{"name": "w"}]})])], {},
         "traffic-distribution", [ZONE, "*"]),
        ([service_import("db"), service("db", where="lab", **NAMESAKE), namespace("lab")], {}, None, None),
    ],
    ids=[
        *("none", "annotation", "annotation-first", "traffic-distribution", "traffic-distribution-first", "ignored"),
        *("namesake", "namesake-with-cluster-ip", "policy-of-namesake", "no-hints-of-namesake", "another-namespace"),
    ],
)  # fmt: skip
def test_the_constraint_is_the_imports_then_that_of_the_service_of_its_name(
    own: list[Item], flags: dict[str, Any], source: str | None, keys: list[str] | None
) -> None:
    """The Service of its name decides where the ServiceImport declares nothing; hints are about their own slices."""
    declaration = imported_of([*own, imported_slice("db", "east", [endpoint(ADDRESS)])], flags).declaration
    assert (declaration and declaration.source) == source
    if declaration is not None:
        assert list(declaration.constraint.keys) == keys and declaration.effective


@pytest.mark.parametrize(
    "own",
    [
        [service_import("db", keys=ZONE, ips=["10.112.0.1"])],
        [service_import("db", ips=["10.112.0.1"]), service("db", **NAMESAKE)],
    ],
    ids=["own", "of-namesake"],
)
def test_nothing_is_near_behind_one_address(own: list[Item]) -> None:
    """A constraint has no effect on a ServiceImport of type ClusterSetIP."""
    declaration = imported_of(own).declaration
    assert declaration is not None and declaration.without_effect == "the Service is not headless"


# -- what changes


def test_what_is_not_concerned_is_the_very_same() -> None:
    """A multi-cluster Service stays the same object, so that its answers stay remembered, until something changes."""
    own = [*WEST, service_import("db", keys=ZONE), imported_slice("db", "east", [endpoint(ADDRESS, nodeName="n1")])]
    clusters = ClustersInMemory(own, {"east": EAST}, FLAGS)
    before = clusters.snapshot().imported["shop/db"]
    clusters.take_in([*own, service("other"), imported_slice("other", "east", [endpoint("10.0.0.9")])])
    clusters.take_in([*EAST, node("n3")], "east")
    assert clusters.snapshot().imported["shop/db"] is before
    clusters.take_in([node("n1", {ZONE: "moved"})], "east")
    after = clusters.snapshot().imported["shop/db"]
    assert after is not before and after.locations[0].labels[ZONE] == "moved"


def test_an_endpoint_that_is_not_ready_changes_no_answer() -> None:
    """It is told by explain alone, and the serial of the zone stays."""
    own = [*WEST, service_import("db"), imported_slice("db", "east", [endpoint(ADDRESS)])]
    clusters = ClustersInMemory(own, {}, FLAGS)
    before = clusters.snapshot()
    clusters.take_in([*own, imported_slice("db", "north", [endpoint("10.0.0.2", ready=False)])])
    after = clusters.snapshot(now=NOW + 60)
    assert after.imported is before.imported and after.serial == before.serial
    (unready,) = after.unready[after.imported["shop/db"].cache_key]
    assert unready.endpoint.addresses == (parse_address("10.0.0.2"),)
    clusters.take_in(own)
    assert not clusters.snapshot().unready


PORTS = (Port("main", 80, "tcp"),)
PLACES: list[dict[str, Any]] = [
    {"cluster": "west", "node": "n1"},
    {"cluster": "east", "node": "n1"},
    {"cluster": "", "slice_labels": {ZONE: "x"}},
    {"cluster": "north", "node": "n1", "ready": False},
]
ENDPOINTS = [Endpoint((parse_address(f"10.0.0.{number}"),), PORTS, **place) for number in (1, 2) for place in PLACES]
ANNOTATIONS = st.sampled_from([{}, {TOPOLOGY_KEYS: ZONE}, {TOPOLOGY_KEYS: "*,bad"}])
OF_DB = Selector((Requirement("app", IN, frozenset({"db"})),))
EVENTS = st.one_of(
    st.builds(
        lambda name, of, endpoints: Put(EndpointSlice("shop", name, None, compact(endpoints), imported_service=of)),
        st.sampled_from("xyz"), st.sampled_from(["db", "db", "web", None]),
        st.lists(st.sampled_from(ENDPOINTS), max_size=3),
    ),
    st.builds(
        lambda name, headless, annotations, spread: Put(ServiceImport(
            "shop", name, headless, () if headless else (b"\n\0\0\1",), PORTS, spread, annotations)),
        st.sampled_from(["db", "web"]), st.booleans(), ANNOTATIONS, st.sampled_from(["", "PreferClose"]),
    ),
    st.builds(
        lambda headless, annotations, labels: Put(
            Service("shop", "db", headless=headless, annotations=annotations, labels=labels)),
        st.booleans(), ANNOTATIONS, st.sampled_from([{}, {"app": "db"}]),
    ),
    st.just(Put(ServicePolicy("shop", "p", "", OF_DB, ZONE, "Required"))),
    st.builds(lambda zone: Put(Node("n1", in_cluster({ZONE: zone}, "any"))), st.sampled_from("ab")),
    st.sampled_from([
        *[Drop(EndpointSlice, f"shop/{name}") for name in "xyz"],
        *[Drop(kind, "shop/db") for kind in (Service, ServiceImport)],
        *[Drop(ServicePolicy, "shop/p"), Drop(Node, "n1"), Drop(Namespace, "shop")],
    ]),
    st.sampled_from([Put(Namespace("shop")), Put(Namespace("shop", {"team": "x"}))]),
)  # fmt: skip
PUBLISH, LOSE = "publish", "lose"
STEPS = st.lists(
    st.one_of(st.tuples(st.just("west"), EVENTS), st.tuples(st.just("east"), EVENTS), st.sampled_from([PUBLISH, LOSE])),
    min_size=8,
    max_size=40,
)  # fmt: skip


class World:
    """Two clusters, of which west reads both."""

    def __init__(self) -> None:
        settings = settings_of({**FLAGS, "cluster": ["east=east.yaml"], "namespace-selector": "team!=x"})
        clusters = cluster_set_of(settings)
        assert clusters is not None
        self.clusters: ClusterSet = clusters
        self.stores: dict[str, Store] = {"west": store_of(settings), "east": other_store_of(settings, "east")}
        self.objects: dict[tuple[str, type[Any], str], Any] = {}

    def apply(self, name: str, event: Put | Drop) -> None:
        kind, key = (type(event.object), event.object.key) if isinstance(event, Put) else (event.kind, event.key)
        self.objects[name, kind, key] = event
        if kind in self.stores[name].kinds:
            self.stores[name].apply(event)

    def publish(self) -> Snapshot:
        self.clusters.update_own(self.stores["west"].publish(NOW))
        self.clusters.update("east", self.stores["east"].publish(NOW))
        return self.clusters.publish(NOW)


def said(snapshot: Snapshot) -> Any:
    """Return all that a snapshot says of multi-cluster Services."""
    return (
        {
            key: (found.service, found.declarations, found.empty,
                  [(located.endpoint, located.location.node, located.location.labels) for located in found.endpoints])
            for key, found in snapshot.imported.items()
        },
        {
            key: [(located.endpoint, located.location.node, located.location.labels) for located in rows]
            for key, rows in snapshot.unready.items()
        },
    )  # fmt: skip


@settings(max_examples=300)
@given(steps=STEPS)
def test_any_edits_end_in_the_same_as_one_list(steps: list[Any]) -> None:
    """In any order, in two clusters, with snapshots in between or not, while one is lost and comes back.

    A restart begins with the same, from what the state files have.
    """
    world = World()
    for step in steps:
        if step == PUBLISH:
            world.publish()
        elif step == LOSE:
            world.publish()
            world.clusters.update("east", None)
            world.clusters.publish(NOW)
        else:
            world.apply(*step)
    fresh, restarted = World(), World()
    expected = said(world.publish())
    for name, store in world.stores.items():
        restarted.clusters.update(name, restarted.stores[name].start_from(read_again(store.publish(NOW))))
    assert said(restarted.clusters.publish(NOW)) == expected
    for (name, _, _), event in world.objects.items():
        fresh.apply(name, event)
        restarted.apply(name, event)
    assert said(fresh.publish()) == expected
    assert said(restarted.publish()) == expected


def test_a_namespace_that_is_no_longer_served_takes_its_imports_along() -> None:
    """And brings them back when it is served again: ``--namespace-selector``."""
    own = [service_import("db"), imported_slice("db", "east", [endpoint(ADDRESS)])]
    clusters = ClustersInMemory([namespace("shop"), *own], {}, {**FLAGS, "namespace-selector": "team!=x"})
    for labels, keys in (({}, ["shop/db"]), ({"team": "x"}, []), ({}, ["shop/db"])):
        clusters.take_in([namespace("shop", labels), *own])
        assert list(clusters.snapshot().imported) == keys


# -- nearness, computed a second time

NODES: dict[str, dict[str, str]] = {"west": {"n1": "a", "n2": "b"}, "east": {"n1": "b", "n3": "a"}}  # -> zone
CLIENTS = {
    "10.1.1.9": ("west", "n1"),
    "10.1.2.9": ("west", "n2"),
    "10.2.1.9": ("east", "n1"),
    "10.2.3.9": ("east", "n3"),
}
KEYS = (f"{ZONE},*", f"{HOSTNAME},{CLUSTER}", f"{CLUSTER},{ZONE},*", f"{HOSTNAME},{ZONE}", HOSTNAME, "*")
SPOTS = st.tuples(
    st.sampled_from(["west", "east", "north", None]), st.sampled_from(["n1", "n2", "n3", None]), st.sampled_from("ab")
)


def where(cluster: str | None, node: str | None, zone: str | None) -> dict[str, str | None]:
    """Return what is known of a place: *zone* is the slice's own word."""
    known = NODES.get(cluster or "", {}).get(node or "")
    return {HOSTNAME: node, ZONE: known or zone, CLUSTER: cluster}


def nearest(keys: str, here: dict[str, str | None], spots: Sequence[dict[str, str | None]]) -> list[int]:
    """Return which of some places a client gets."""
    for key in keys.split(","):
        same = [
            number
            for number, spot in enumerate(spots)
            if key == "*" or (spot[key] == here[key] and (key != HOSTNAME or spot[CLUSTER] in (None, here[CLUSTER])))
        ]
        if same:
            return same
    return []


@settings(max_examples=150)
@given(spots=st.lists(SPOTS, min_size=1, max_size=6), keys=st.sampled_from(KEYS), client=st.sampled_from([*CLIENTS]))
def test_the_nearest_endpoints_of_all_clusters(spots: list[Any], keys: str, client: str) -> None:
    """For any endpoints in clusters that are known, not known or not named."""
    nodes = {
        cluster: [node(name, {ZONE: zone}, cidrs=[f"10.{number}.{name[1]}.0/24"]) for name, zone in of_cluster.items()]
        for number, (cluster, of_cluster) in enumerate(NODES.items(), 1)
    }
    slices = [
        imported_slice(
            "db", cluster, [endpoint(f"10.9.0.{number}", zone=zone, **({"nodeName": on} if on else {}))], number
        )
        for number, (cluster, on, zone) in enumerate(spots)
    ]
    own = [namespace("shop"), *nodes["west"], service_import("db", keys=keys), *slices]
    responder = ClustersInMemory(own, {"east": nodes["east"]}, FLAGS).responder()
    reply = ask_in_memory(responder, dns.message.make_query("db.shop.svc.clusterset.local", "A"), client)
    assert reply is not None and reply.rcode() == dns.rcode.NOERROR
    expected = nearest(keys, where(*CLIENTS[client], None), [where(*spot) for spot in spots])
    found = {str(row) for rrset in reply.answer for row in rrset}
    assert found == {f"10.9.0.{number}" for number in expected}
