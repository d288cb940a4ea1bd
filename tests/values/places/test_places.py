# SPDX-License-Identifier: Apache-2.0

"""Who decides where an address is, what disproves a pod CIDR, and that clients and endpoints agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.programs.from_settings import store_of
from locator.api.deltas import Put
from locator.ip import Network, address_text, host_network, parse_address
from locator.model import CLUSTER, ENDPOINTS, Node
from locator.state.store import Store, StoreOptions
from tests.kit import api_objects, random_cluster
from tests.kit.api_objects import (
    HOSTNAME,
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
from tests.kit.random_cluster import SUBNETS
from tests.kit.unshrunk import unshrunk
from tests.oracle.twin import Modes, Twin
from tests.oracle.twin_map import ip_network

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
    ("ready-before-not-ready", [W, kept("c1", 1, ready=False), kept("b1", 2)], {}, "endpoint", "b"),
    ("living-before-dying", [W, with_conditions("c1", 1, DYING), with_conditions("b1", 2, LIVE)], {}, "endpoint", "b"),
    ("first-by-name", [W, kept("b1", 1), kept("c1", 2)], {}, "endpoint", "b"),
    ("deleted-with-a-finalizer", [W, deleted(kept("b1"))], {}, "podcidr", "a"),
    ("of-an-external-name", [{**W, "spec": {**W["spec"], "type": "ExternalName", "externalName": "x.example"}},
                             kept("b1")], {}, "podcidr", "a"),
    ("unknown-node-before-subnets",
     [W, endpoint_slice("w", 1, [endpoint("10.0.9.9", nodeName="gone", zone="z")], by=SLICE_CONTROLLER)],
     {"subnet": [f"10.0.0.0/8={ZONE}=s"], "asked": "10.0.9.9"}, "endpoint", "z"),
    ("subnet-for-both-addresses-of-a-pod-on-its-nodes-network",
     [node("v", "", "10.0.9.9", "fd00::9"), pod("p", ["10.0.9.9", "fd00::9"], "v", hostNetwork=True)],
     {"subnet": [f"10.0.9.0/24={ZONE}=s"], "asked": "fd00::9"}, "node", "s"),
    ("pod-on-another-node-than-its-locator-says",
     [pod("p", [A], "b1"), pod_locator("p", "shop", [A], nodeName="c1", nodeLabels={ZONE: "c"})],
     {"client-source": "pods,podlocators"}, "pod", None),
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
    ("endpoint-of-a-deleted-slice", [*TRUE, W, deleted(kept("c1"))], "podcidr", 0),
    ("one-of-two-endpoints-beside-the-true-pod",
     [*TRUE, W, service("x", selects=True), pod("p", [A], "a1"), kept("a1"), kept("c1", owner="x")], "unknown", 1),
    ("locator-of-a-node", [*TRUE, node("d1", "d", A), pod_locator("p", "shop", [A], nodeName="c1", nodeLabels={})],
     "podcidr", 0),
    ("one-lies-and-one-is-true", [*TRUE, pod("p", [A], "c1")], "unknown", 1),
    ("a-true-pod-beside-the-liar", [pod("p", [A], "c1"), pod("q", ["10.0.1.3"], "a1")], "unknown", 3),
    ("cidrs-around-one-that-lies",
     [*TRUE, pod("q", ["10.0.3.2"], "c1"), node("d1", "d", cidr="10.0.0.0/23"), pod("p", [A], "c1")], "unknown", 2),
    ("cidr-around-another-s", [*TRUE, node("d1", "d", cidr="10.0.0.0/23"), pod("p", ["10.0.0.9"], "d1")], "podcidr", 0),
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


# A random cluster, read naively

steady = settings(unshrunk, max_examples=60)
KINDS = ("pods", "podlocators", "nodes")
SOURCES = [",".join(kinds) for size in (1, 2, 3) for kinds in combinations(KINDS, size)]


@settings(unshrunk, max_examples=120)
@given(seed=st.integers(0, 100_000), sources=st.sampled_from(SOURCES))
def test_every_address_is_where_the_first_match_says(seed: int, sources: str) -> None:
    """Pod, PodLocator, node, endpoint, the node's pod CIDR if trusted, subnet, unknown."""
    world, modes = random_cluster.world(seed), Modes(client_source=sources, subnets=SUBNETS)
    twin = Twin(world.items, modes).map
    book = snapshot_of(api_objects.listed(world.items), modes.flags()).addresses
    for address in world.addresses:
        place, where = book.locate(parse_address(address)), twin.locate(address)
        labels = where.labels if place.located_by in ("subnet", "unknown") else {**where.labels, CLUSTER: "local"}
        assert (address, place.located_by, place.location.node) == (address, where.located_by, where.node)
        assert (address, place.location.labels) == (address, labels)
    cidrs = [ip_network(text) for owner in twin.nodes.values() for text in owner["spec"].get("podCIDRs", ())]
    assert book.distrusted_cidrs == len([cidr for cidr in cidrs if cidr not in twin.trusted])


networks = st.builds(
    lambda family, number, bits: (
        Network((number >> (16 - bits) << (16 - bits)).to_bytes(2) + bytes(family - 2), bits)
    ),
    st.sampled_from((4, 16)), st.integers(0, 0xFFFF), st.integers(1, 16),
)  # fmt: skip


@steady
@given(
    nodes=st.lists(st.lists(networks, max_size=3), max_size=6),
    subnets=st.lists(networks, max_size=4, unique=True),
    asked=st.lists(st.tuples(st.sampled_from((4, 16)), st.integers(0, 0xFFFF)), min_size=1, max_size=8),
)
def test_the_longest_block_around_an_address_decides(
    nodes: list[list[Network]], subnets: list[Network], asked: list[tuple[int, int]]
) -> None:
    """Pod CIDRs before configured subnets; the longest prefix in each; of equal ones, the shared labels."""
    labels = [{HOSTNAME: f"n{number}", "parity": str(number % 2)} for number in range(len(nodes))]
    store = Store(StoreOptions(subnets={network: {"subnet": str(i)} for i, network in enumerate(subnets)}))
    store.replace(Node, [Node(f"n{number}", labels[number], (), tuple(cidrs)) for number, cidrs in enumerate(nodes)])
    book = store.publish(NOW).addresses
    for family, number in asked:

        def around(network: Network, family: int = family, number: int = number) -> bool:
            bits = 16 - network.length
            return len(network.address) == family and number >> bits == int.from_bytes(network.address[:2]) >> bits

        cidrs = sorted((each.length for row in nodes for each in row if around(each)), reverse=True)
        blocks = sorted(((subnet.length, i) for i, subnet in enumerate(subnets) if around(subnet)), reverse=True)
        expected: tuple[str, dict[str, str]] = ("unknown", {})
        if cidrs:
            lacking = {"subnet": str(blocks[0][1])} if blocks else {}
            owners = [
                {**lacking, **labels[i]}
                for i, row in enumerate(nodes)
                if any(around(e) and e.length == cidrs[0] for e in row)
            ]
            shared = {k: v for k, v in owners[0].items() if all(own[k] == v for own in owners)}
            expected = ("podcidr", {**shared, CLUSTER: "local"})
        elif blocks:
            expected = ("subnet", {"subnet": str(blocks[0][1])})
        place = book.locate(number.to_bytes(2) + bytes(family - 2))
        assert (place.located_by, place.location.labels) == expected


@steady
@given(seed=st.integers(0, 100_000), sources=st.sampled_from(("pods,nodes", "nodes")))
def test_a_client_and_an_endpoint_at_one_address_are_at_one_place(seed: int, sources: str) -> None:
    """Every pod and every kept endpoint is at one place, whether it asks or answers."""
    flags = {"subnet": [f"10.244.1.0/26={ZONE}=s", "198.51.100.0/24=zone=a"], "client-source": sources}
    snapshot = snapshot_of(api_objects.listed(random_cluster.world(seed, truthful=True).items), flags)
    unready = [located for rows in snapshot.unready.values() for located in rows]
    for located in [*(row for found in snapshot.services.values() for row in found.endpoints), *unready]:
        for address in located.endpoint.addresses:
            client = snapshot.addresses.locate(address).location
            assert (address_text(address), client.labels) == (address_text(address), located.location.labels)
