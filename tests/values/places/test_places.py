# SPDX-License-Identifier: Apache-2.0

"""Who decides where an address is, what disproves a pod CIDR, and that clients and endpoints agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.programs.from_settings import store_of
from locator.api.deltas import Put
from locator.ip import address_text, host_network, parse_address
from locator.model import ENDPOINTS
from tests.kit import api_objects, random_cluster
from tests.kit.api_objects import (
    SLICE_CONTROLLER,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    endpoints,
    pod,
    pod_locator,
    service,
)
from tests.kit.in_memory import NOW, dump_of, settings_of, snapshot_of, take_in
from tests.kit.unshrunk import unshrunk

A = "10.0.1.9"  # in the pod CIDR of a1
POD = {"kind": "Pod", "name": "p"}
LIVE, DYING = {"ready": True}, {"ready": True, "terminating": True}


def node(name: str, zone: str, *addresses: str, cidr: str | None = None) -> Item:
    return api_objects.node(name, {ZONE: zone} if zone else {}, addresses=addresses, cidrs=[cidr] if cidr else [])


NODES = [node("a1", "a", cidr="10.0.1.0/24"), node("b1", "b"), node("c1", "c")]


def kept(
    on: str | None,
    number: int = 1,
    *,
    owner: str = "w",
    ready: bool = True,
    by: str | None = SLICE_CONTROLLER,
    **more: Any,
) -> Item:
    """Return a slice with one endpoint at ``A``."""
    row = endpoint(A, ready=ready, **({"nodeName": on} if on else {}), **more)
    return endpoint_slice(owner, number, [row], by=by)


def with_conditions(on: str, number: int, conditions: dict[str, bool]) -> Item:
    row = {"addresses": [A], "conditions": conditions, "nodeName": on}
    return endpoint_slice("w", number, [row], by=SLICE_CONTROLLER)


def deleted(item: Item) -> Item:
    """Return an object that has been deleted and stays, because it has a finalizer."""
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/stays"]}
    return {**item, "metadata": {**item["metadata"], **gone}}


W, OWN = service("w", selects=True), service("own")
HOLDERS = [
    # id, objects, settings, located by, zone
    ("pod", [pod("p", [A], "b1"), W, kept("c1")], {}, "pod", "b"),
    ("newest-pod", [pod("old", [A], "c1", created="2024-01-01T00:00:00Z"),
                    pod("new", [A], "b1", created="2024-01-02T00:00:00Z")], {}, "pod", "b"),
    ("finished-pod", [pod("p", [A], "b1", phase="Failed")], {}, "podcidr", "a"),
    ("node-before-endpoints", [node("d1", "d", A), W, kept("b1")], {}, "node", "d"),
    ("pod-on-a-nodes-network", [pod("p", [A], "b1", hostNetwork=True), W, kept("c1")], {}, "node", "b"),
    ("kept-endpoint-before-pod-cidrs", [W, kept("b1")], {}, "endpoint", "b"),
    ("by-the-pod-of-its-target", [pod("p", ["10.9.9.9"], "b1"), W, kept(None, targetRef=POD)],
     {"client-source": "nodes"}, "podcidr", "a"),
    ("by-the-node-of-its-target", [W, kept(None, targetRef={"kind": "Node", "name": "b1"})], {}, "endpoint", "b"),
    ("by-the-locator-of-its-target", [pod_locator("p", "shop", [], nodeName="b1", nodeLabels={}),
                                      W, kept(None, targetRef=POD)],
     {"client-source": "podlocators,nodes"}, "endpoint", "b"),
    ("ready-before-not-ready", [W, kept("c1", 1, ready=False), kept("b1", 2)], {}, "endpoint", "b"),
    ("living-before-dying", [W, with_conditions("c1", 1, DYING), with_conditions("b1", 2, LIVE)], {}, "endpoint", "b"),
    ("first-by-name", [W, kept("b1", 1), kept("c1", 2)], {}, "endpoint", "b"),
    ("not-ready-alone", [W, kept("b1", ready=False)], {}, "endpoint", "b"),
    ("without-the-label", [W, kept("b1", by=None)], {}, "podcidr", "a"),
    ("deleted-with-a-finalizer", [W, deleted(kept("b1"))], {}, "podcidr", "a"),
    ("of-another-controller", [W, kept("b1", by="endpointslicemirroring-controller.k8s.io")], {}, "podcidr", "a"),
    ("of-a-service-without-selector", [OWN, kept("b1", owner="own")], {}, "podcidr", "a"),
    ("of-an-external-name", [{**W, "spec": {**W["spec"], "type": "ExternalName", "externalName": "x.example"}},
                             kept("b1")], {}, "podcidr", "a"),
    ("without-its-service", [kept("b1")], {}, "podcidr", "a"),
    ("pod-not-known-yet", [W, kept("b1", targetRef=POD)], {}, "endpoint", "b"),
    ("pod-without-the-address", [pod("p", ["10.9.9.9"], "b1"), W, kept("b1", targetRef=POD)], {}, "podcidr", "a"),
    ("pods-are-not-watched", [pod("p", ["10.9.9.9"], "b1"), W, kept("b1", targetRef=POD)],
     {"client-source": "nodes"}, "endpoint", "b"),
    ("endpoints-of-a-selector", [W, endpoints("w", {"addresses": [{"ip": A, "nodeName": "b1"}]})], {}, "endpoint", "b"),
    ("endpoints-of-none", [OWN, endpoints("own", {"addresses": [{"ip": A, "nodeName": "b1"}]})], {}, "podcidr", "a"),
    ("pod-cidr-before-an-unknown-node", [W, kept("gone", zone="z")], {}, "podcidr", "a"),
    ("unknown-node-before-subnets",
     [W, endpoint_slice("w", 1, [endpoint("10.0.9.9", nodeName="gone", zone="z")], by=SLICE_CONTROLLER)],
     {"subnet": [f"10.0.0.0/8={ZONE}=s"], "asked": "10.0.9.9"}, "endpoint", "z"),
    ("subnet", [], {"subnet": [f"10.0.0.0/8={ZONE}=s"], "asked": "10.0.9.9"}, "subnet", "s"),
    ("subnet-for-what-a-pods-node-lacks", [node("v", ""), pod("p", ["10.0.9.9"], "v")],
     {"subnet": [f"10.0.9.0/24={ZONE}=s"], "asked": "10.0.9.9"}, "pod", "s"),
    ("the-first-of-two-addresses-in-a-subnet", [node("v", ""), pod("p", ["10.0.9.9", "fd00::9"], "v")],
     {"subnet": [f"10.0.9.0/24={ZONE}=s", f"fd00::/64={ZONE}=t"], "asked": "fd00::9"}, "pod", "s"),
    ("subnet-for-what-an-endpoints-node-lacks",
     [node("v", ""), W, endpoint_slice("w", 1, [endpoint("10.0.9.9", nodeName="v")], by=SLICE_CONTROLLER)],
     {"subnet": [f"10.0.9.0/24={ZONE}=s"], "asked": "10.0.9.9"}, "endpoint", "s"),
    ("subnet-for-what-a-pod-cidrs-node-lacks", [node("v", "", cidr="10.0.9.0/24")],
     {"subnet": [f"10.0.9.0/25={ZONE}=s"], "asked": "10.0.9.9"}, "podcidr", "s"),
    ("subnet-for-both-addresses-of-an-endpoint",
     [node("v", ""), W,
      endpoint_slice("w", 1, [endpoint("10.0.9.9", nodeName="v", targetRef=POD)], by=SLICE_CONTROLLER),
      endpoint_slice("w", 2, [endpoint("fd00::9", nodeName="v", targetRef=POD)], family="IPv6", by=SLICE_CONTROLLER)],
     {"subnet": [f"10.0.9.0/24={ZONE}=s"], "asked": "fd00::9", "client-source": "nodes"}, "endpoint", "s"),
    ("subnet-for-both-addresses-of-a-pod-on-its-nodes-network",
     [node("v", "", "10.0.9.9", "fd00::9"), pod("p", ["10.0.9.9", "fd00::9"], "v", hostNetwork=True)],
     {"subnet": [f"10.0.9.0/24={ZONE}=s"], "asked": "fd00::9"}, "node", "s"),
    ("no-subnet-for-what-somebody-says-of-an-endpoint",
     [node("v", ""), W, endpoint_slice("w", 1, [endpoint("10.0.9.9", nodeName="v", targetRef=POD)]),
      endpoint_slice("w", 2, [endpoint("fd00::9", nodeName="v", targetRef=POD)], family="IPv6", by=SLICE_CONTROLLER)],
     {"subnet": [f"10.0.9.0/24={ZONE}=s"], "asked": "fd00::9", "client-source": "nodes"}, "endpoint", None),
    ("no-subnet-for-an-unknown-node", [pod("p", ["10.0.9.9"], "gone")],
     {"subnet": [f"10.0.9.0/24={ZONE}=s"], "asked": "10.0.9.9"}, "pod", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("items", "flags", "located_by", "zone"), [row[1:] for row in HOLDERS], ids=[row[0] for row in HOLDERS]
)
def test_who_decides(items: list[Item], flags: dict[str, Any], located_by: str, zone: str | None) -> None:
    """The first match decides, in whatever order the objects come."""
    flags = dict(flags)
    asked = parse_address(flags.pop("asked", A))
    for order in ([*NODES, *items], [*items[::-1], *NODES[::-1]]):
        place = snapshot_of(order, flags).addresses.locate(asked)
        assert (place.located_by, place.location.value(ZONE)) == (located_by, zone)


FREE = "10.0.1.200"
TRUE = [pod("true", ["10.0.2.2"], "b1")]  # confirms the pod CIDR of b1
TWO = [node("a1", "a", cidr="10.0.1.0/24"), node("b1", "b", cidr="10.0.2.0/24"), node("c1", "c", cidr="10.0.3.0/24")]
PROOFS = [
    # id, objects, how an address is located that nothing has, how many pod CIDRs are not trusted
    ("nothing", [], "podcidr", 0),
    ("running-pod", [*TRUE, pod("p", [A], "c1")], "unknown", 1),
    ("pod-on-its-nodes-network", [*TRUE, pod("p", [A], "c1", hostNetwork=True)], "podcidr", 0),
    ("finished-pod", [*TRUE, pod("p", [A], "c1", phase="Succeeded")], "podcidr", 0),
    ("pod-on-an-unknown-node", [*TRUE, pod("p", [A], "gone")], "podcidr", 0),
    ("ready-kept-endpoint", [*TRUE, W, kept("c1")], "unknown", 1),
    ("endpoint-not-ready", [*TRUE, W, kept("c1", ready=False)], "podcidr", 0),
    ("endpoint-on-an-unknown-node", [*TRUE, W, kept("gone")], "podcidr", 0),
    ("endpoint-of-somebody", [*TRUE, W, kept("c1", by=None)], "podcidr", 0),
    ("endpoint-of-a-deleted-slice", [*TRUE, W, deleted(kept("c1"))], "podcidr", 0),
    ("one-of-two-endpoints", [*TRUE, W, service("x", selects=True), kept("a1"), kept("c1", owner="x")], "unknown", 1),
    ("endpoint-beside-the-true-pod", [*TRUE, W, pod("p", [A], "a1"), kept("c1")], "unknown", 1),
    ("one-of-two-endpoints-beside-the-true-pod",
     [*TRUE, W, service("x", selects=True), pod("p", [A], "a1"), kept("a1"), kept("c1", owner="x")], "unknown", 1),
    ("two-endpoints-where-the-pod-is",
     [*TRUE, W, service("x", selects=True), pod("p", [A], "a1"), kept("a1"), kept("a1", owner="x")], "podcidr", 0),
    ("endpoint-by-its-target", [*TRUE, W, kept(None, targetRef={"kind": "Node", "name": "c1"})], "unknown", 1),
    ("locator", [*TRUE, pod_locator("p", "shop", [A], nodeName="c1", nodeLabels={})], "unknown", 1),
    ("locator-of-a-node", [*TRUE, node("d1", "d", A), pod_locator("p", "shop", [A], nodeName="c1", nodeLabels={})],
     "podcidr", 0),
    ("one-lies-and-one-is-true", [*TRUE, pod("p", [A], "c1")], "unknown", 1),
    ("one-lies-and-none-is-true", [pod("p", [A], "c1")], "unknown", 3),
    ("a-true-pod-beside-the-liar", [pod("p", [A], "c1"), pod("q", ["10.0.1.3"], "a1")], "unknown", 3),
]  # fmt: skip


@pytest.mark.parametrize(("items", "located_by", "distrusted"), [row[1:] for row in PROOFS], ids=[r[0] for r in PROOFS])
def test_what_disproves_a_pod_cidr(items: list[Item], located_by: str, distrusted: int) -> None:
    """Running pods and ready kept endpoints on other known nodes do; once most lie, none is believed."""
    snapshot = snapshot_of([*TWO, *items], {"client-source": "pods,podlocators,nodes"})
    book = snapshot.addresses
    assert (book.locate(parse_address(FREE)).located_by, book.distrusted_cidrs) == (located_by, distrusted)
    believed = "unknown" if distrusted == 3 else "podcidr"
    assert book.locate(parse_address("10.0.3.200")).located_by == believed
    found = [finding for finding in snapshot.findings if finding.code == "PodCidrDistrusted"]
    assert len(found) == (2 if distrusted == 3 else distrusted)


def test_a_plugin_that_ignores_pod_cidrs_is_one_finding() -> None:
    """Where pods contradict many pod CIDRs, one finding says that none is believed, and more pods do not change it."""
    nodes = [node(f"n{number}", "z", cidr=f"10.1.{number}.0/24") for number in range(12)]
    pods = [pod(f"p{number}", [f"10.1.{number}.7"], f"n{(number + 1) % 12}") for number in range(12)]
    store = store_of(settings_of())
    take_in(store, dump_of([*nodes, *pods]).objects)
    first = [one for one in store.publish(NOW).findings if one.code == "PodCidrDistrusted"]
    assert len(first) == 1 and first[0].kind == "" and "no pod CIDR is trusted" in first[0].message
    store.apply(Put(*dump_of([pod("more", ["10.1.3.9"], "n1")]).objects))
    snapshot = store.publish(NOW + 1)
    assert snapshot.addresses.distrusted_cidrs == 12
    assert [one for one in snapshot.findings if one.code == "PodCidrDistrusted"] == first


OVERLOOKED = [
    ("label", [W, kept("b1", by=None)], "endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io"),
    ("selector", [OWN, kept("b1", owner="own")], "Service shop/own has no selector"),
    ("remedy", [OWN, kept("b1", owner="own")], "give the Service a selector, or topodns a --subnet around the address"),
    (
        "external-name",
        [{**W, "spec": {**W["spec"], "type": "ExternalName", "externalName": "x.example"}}, kept("b1")],
        "Service shop/w is of type ExternalName",
    ),
    ("service", [kept("b1")], "there is no Service shop/w"),
    ("deleted", [W, deleted(kept("b1"))], "the slice has been deleted, and waits for its finalizers"),
    ("pod", [W, pod("p", ["10.9.9.9"], "b1"), kept("b1", targetRef=POD)], "its pod shop/p does not have the address"),
    ("kept", [W, kept("b1")], ""),
    ("of-a-pod", [pod("p", [A], "b1"), OWN, kept("c1", owner="own")], ""),
    (
        "endpoints",
        [OWN, endpoints("own", {"addresses": [{"ip": A, "nodeName": "b1"}]})],
        f"{ENDPOINTS} shop/own has",
    ),
]


@pytest.mark.parametrize(("items", "words"), [row[1:] for row in OVERLOOKED], ids=[row[0] for row in OVERLOOKED])
def test_an_endpoint_that_does_not_count_is_named(items: Sequence[Item], words: str) -> None:
    """``explain`` says that an endpoint has the client's address, and what would make it count."""
    text = snapshot_of([*NODES, *items]).addresses.overlooked(host_network(parse_address(A)))
    assert words in text and bool(text) == bool(words)


@settings(unshrunk, max_examples=60)
@given(seed=st.integers(0, 100_000), sources=st.sampled_from(("pods,nodes", "nodes")))
def test_a_client_and_an_endpoint_at_one_address_are_at_one_place(seed: int, sources: str) -> None:
    """Every pod and every kept endpoint is at one place, whether it asks or answers."""
    items = random_cluster.world(seed, truthful=True).items
    flags = {"subnet": [f"10.244.1.0/26={ZONE}=s", "198.51.100.0/24=zone=a"], "client-source": sources}
    store = store_of(settings_of(flags))
    take_in(store, dump_of(items).objects)
    snapshot = store.publish(NOW)
    unready = [located for rows in snapshot.unready.values() for located in rows]
    for located in [*(row for found in snapshot.services.values() for row in found.endpoints), *unready]:
        for address in located.endpoint.addresses:
            client = snapshot.addresses.locate(address).location
            assert (address_text(address), client.labels) == (address_text(address), located.location.labels)
