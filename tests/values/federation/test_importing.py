# SPDX-License-Identifier: Apache-2.0

"""Multi-cluster Services: where their endpoints are, whose constraint counts, and what a change concerns.

``scenarios/multicluster-services.yaml`` has the answers. CoreDNS's are compared in ``test_compared_with_coredns.py``.
That any changes end in what is read at once is shown in ``test_cluster_set.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dns.rcode
import dns.reversename
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.ip import parse_address
from locator.state.snapshot import ImportedService
from tests.kit.api_objects import (
    HOSTNAME,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    imported_slice,
    namespace,
    node,
    service,
    service_import,
    service_policy,
)
from tests.kit.in_memory import NOW, ClustersInMemory, ask
from tests.kit.replies import data

FLAGS = {"cluster-name": "west", "multicluster": ["clusterset.local"]}
CLUSTER = "topodns.io/cluster"
ADDRESS = "10.0.0.1"
WEST = [namespace("shop"), node("n1", {ZONE: "w"})]
EAST = [node("n1", {ZONE: "e"}), node("n2", {ZONE: "e"})]


def imported_of(own: Sequence[Item], flags: dict[str, Any] | None = None) -> ImportedService:
    """Return a multi-cluster Service as the cluster west sees it, which knows the cluster east."""
    return ClustersInMemory([*WEST, *own], {"east": EAST}, {**FLAGS, **(flags or {})}).snapshot().imported["shop/db"]


# -- where an endpoint is


def test_clusters_may_use_the_same_addresses() -> None:
    """Endpoints with one address in two clusters are two, with a name in either; one of both slices of a pod is one."""
    own = [service_import("db"), *(imported_slice("db", name, [endpoint(ADDRESS)]) for name in ("west", "east"))]
    own.append(imported_slice("db", "east", [endpoint(ADDRESS)], 2, ports=[("more", 81, "TCP")]))
    assert [located.location.labels[CLUSTER] for located in imported_of(own).endpoints] == ["east", "west"]


def test_a_reverse_name_is_one_of_the_own_cluster() -> None:
    """PTR names neither multi-cluster Services nor their endpoints."""
    own = [*WEST, service_import("db"), imported_slice("db", "west", [endpoint("10.0.0.9")])]
    own += [service("db"), endpoint_slice("db", 1, [endpoint(ADDRESS)])]
    responder = ClustersInMemory(own, {"east": EAST}, FLAGS).responder()
    for address, names in ((ADDRESS, ["PTR 10-0-0-1.db.shop.svc.cluster.local."]), ("10.0.0.9", [])):
        assert data(ask(responder, dns.reversename.from_address(address), "PTR").answer) == names


# -- whose constraint counts

NAMESAKE = {"keys": "example.com/rack", "labels": {"app": "db"}}
POLICY = service_policy("p", "example.com/hall", "required", app="db")


CLOSE, DISTRIBUTION = {"trafficDistribution": "PreferClose"}, "traffic-distribution"
HINTED = endpoint("10.0.0.2", hints={"forZones": [{"name": "w"}]})


@pytest.mark.parametrize(
    ("own", "flags", "source", "keys"),
    [
        ([service_import("db", keys=ZONE), service("db", **NAMESAKE)], {}, "annotation", [ZONE]),
        ([service_import("db", **CLOSE), service("db", **NAMESAKE)], {}, DISTRIBUTION, [ZONE, "*"]),
        ([service_import("db", **CLOSE), service("db", **NAMESAKE)], {DISTRIBUTION: "ignore"}, "annotation",
         ["example.com/rack"]),
        ([service_import("db"), service("db", **NAMESAKE), POLICY], {}, "policy", ["example.com/hall"]),
        ([service_import("db"), service("db", **CLOSE), endpoint_slice("db", 1, [HINTED])], {}, DISTRIBUTION,
         [ZONE, "*"]),
    ],
    ids=["annotation-first", "traffic-distribution-first", "ignored", "policy-of-namesake", "no-hints-of-namesake"],
)  # fmt: skip
def test_the_constraint_is_the_imports_then_that_of_the_service_of_its_name(
    own: list[Item], flags: dict[str, Any], source: str, keys: list[str]
) -> None:
    """The Service of its name decides where the ServiceImport declares nothing; hints are about their own slices."""
    declaration = imported_of([*own, imported_slice("db", "east", [endpoint(ADDRESS)])], flags).declaration
    assert declaration is not None and declaration.effective
    assert (declaration.source, list(declaration.constraint.keys)) == (source, keys)


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
SPOTS = st.tuples(  # an endpoint's cluster, node and zone, as its slice says
    st.sampled_from(["west", "east", "East", "north", None]), st.sampled_from(["n1", "n2", "n3", None]),
    st.sampled_from(["a", "b", None]),
)  # fmt: skip


def where(cluster: str | None, node: str | None, zone: str | None) -> dict[str, str | None]:
    """Return what is known of a place: *zone* is the slice's own word, for a node that nobody knows."""
    cluster = cluster and cluster.lower()
    return {HOSTNAME: node, ZONE: NODES.get(cluster or "", {}).get(node or "", zone), CLUSTER: cluster}


def nearest(keys: str, here: dict[str, str | None], spots: Sequence[dict[str, str | None]]) -> list[int]:
    """Return which of some places a client gets."""
    for key in keys.split(","):
        same = [
            number
            for number, spot in enumerate(spots)
            if key == "*"
            or (spot[key] == here[key] is not None and (key != HOSTNAME or spot[CLUSTER] in (None, here[CLUSTER])))
        ]
        if same:
            return same
    return []


@settings(max_examples=60)
@given(spots=st.lists(SPOTS, min_size=1, max_size=6), keys=st.sampled_from(KEYS), client=st.sampled_from([*CLIENTS]))
def test_the_nearest_endpoints_of_all_clusters(spots: list[Any], keys: str, client: str) -> None:
    """For any endpoints in clusters that are known, not known or not named."""
    nodes = {
        cluster: [node(name, {ZONE: zone}, cidrs=[f"10.{number}.{name[1]}.0/24"]) for name, zone in of_cluster.items()]
        for number, (cluster, of_cluster) in enumerate(NODES.items(), 1)
    }
    slices = []
    for number, (cluster, on, zone) in enumerate(spots):
        told = {field: text for field, text in (("nodeName", on), ("zone", zone)) if text}
        slices.append(imported_slice("db", cluster, [endpoint(f"10.9.0.{number}", **told)], number))
    own = [namespace("shop"), *nodes["west"], service_import("db", keys=keys), *slices]
    responder = ClustersInMemory(own, {"east": nodes["east"]}, FLAGS).responder()
    reply = ask(responder, "db.shop.svc.clusterset.local", "A", client)
    assert reply.rcode() == dns.rcode.NOERROR
    expected = nearest(keys, where(*CLIENTS[client], None), [where(*spot) for spot in spots])
    assert data(reply.answer) == sorted(f"A 10.9.0.{number}" for number in expected)
