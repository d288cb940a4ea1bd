# SPDX-License-Identifier: Apache-2.0

"""The ``--subnet`` networks that ``check`` proposes for clusters without pod CIDRs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.ip import Network, network_end, network_text, parse_address, parse_network
from locator.places.subnet_proposals import (
    LARGEST,
    MAX_PROPOSALS,
    MIN_KNOWN,
    SMALLEST,
    KnownAddress,
    RegionalZone,
    networks_of,
    proposed_subnets,
)
from tests.kit.api_objects import REGION, SLICE_CONTROLLER, ZONE, Item, endpoint, endpoint_slice, node, pod, service
from tests.kit.in_memory import snapshot_of

A, B, C = RegionalZone("a", "r1"), RegionalZone("b", "r1"), RegionalZone("c", None)


def inside(address: bytes, network: Network) -> bool:
    return len(address) == len(network.address) and network.address <= address <= network_end(network)


def known(zone: RegionalZone, *addresses: str, wanted: bool = True) -> list[KnownAddress]:
    return [KnownAddress(parse_address(address), zone, wanted) for address in addresses]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([*known(A, "10.0.1.5", "10.0.7.9"), *known(B, "10.0.32.7", "10.0.41.8")],
         {"10.0.0.0/21": A, "10.0.32.0/20": B}),
        ([*known(A, "10.0.1.5", "10.0.1.6"), *known(B, "10.0.2.7", "10.0.2.8")], {"10.0.1.0/24": A, "10.0.2.0/24": B}),
        ([*known(A, "10.0.1.5", "10.0.1.6"), *known(B, "10.0.1.70", "10.0.1.71")],
         {"10.0.1.0/26": A, "10.0.1.64/26": B}),
        ([*known(A, "10.0.1.5", "10.0.1.6", "10.0.3.1", "10.0.3.2"), *known(B, "10.0.2.7", "10.0.2.8")],
         {"10.0.1.0/24": A, "10.0.2.0/24": B, "10.0.3.0/24": A}),
        ([*known(A, "10.0.1.5", "10.0.1.6", "10.0.2.5", "10.0.2.6"), *known(B, "10.0.1.7")], {}),
        ([*known(A, "10.0.1.5"), *known(A, "10.0.2.5", wanted=False), *known(B, "10.0.9.1", "10.0.9.2")],
         {"10.0.0.0/22": A, "10.0.9.0/24": B}),
        ([*known(A, "10.0.1.5", "10.0.1.6"), *known(B, "10.0.9.1", "10.0.9.2", wanted=False)], {"10.0.1.0/24": A}),
        ([*known(A, "10.0.1.5", "10.0.1.6"), *known(A, "54.1.1.1", wanted=False), *known(B, "54.1.1.2", wanted=False)],
         {"10.0.1.0/24": A}),
        ([*known(A, "10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2")], {"10.1.0.0/24": A, "10.2.0.0/24": A}),
        ([*known(A, "10.0.1.5")], {}),
        ([*known(A, "fd00:0:0:1::5", "fd00:0:0:1::6"), *known(C, "fd00:0:0:2::5", "fd00:0:0:2::6")],
         {"fd00:0:0:1::/64": A, "fd00:0:0:2::/64": C}),
        ([entry for third in range(17) for entry in known((A, B)[third % 2], f"10.0.{third}.1", f"10.0.{third}.2")],
         {}),
        ([], {}),
    ],
    ids=["as-small-as-they-allow", "not-smaller-than-usual", "smaller-beside-another-zone", "divided", "mixed",
         "nodes-extend", "only-wanted-ones", "public-addresses-of-nodes", "not-larger-than-a-subnet", "one-address",
         "ipv6", "too-many", "none"],
)  # fmt: skip
def test_networks(entries: list[KnownAddress], expected: Mapping[str, RegionalZone]) -> None:
    """The fewest networks in which all known addresses are of one zone."""
    assert {network_text(network): zone for network, zone in networks_of(entries).items()} == expected


addresses = st.one_of(
    st.builds(lambda third, last: bytes((10, 0, third, last)), st.integers(0, 20), st.integers(0, 255)),
    st.binary(min_size=4, max_size=4),
    st.builds(lambda net, last: parse_address(f"fd00:0:0:{net:x}::{last:x}"), st.integers(0, 9), st.integers(0, 99)),
)
entries_of = st.dictionaries(addresses, st.tuples(st.sampled_from((A, B, C)), st.booleans()), max_size=30)
# Each zone in subnets of its own, as in a cloud: the third octet tells the zone.
by_subnet = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 255)).map(lambda ends: bytes((10, 0, *ends))),
    st.booleans(),
    max_size=40,
).map(lambda found: {address: ((A, B, C)[address[2] // 2], wanted) for address, wanted in found.items()})


@given(found=st.one_of(entries_of, by_subnet))
def test_proposals_are_true(found: dict[bytes, tuple[RegionalZone, bool]]) -> None:
    """No address of another zone lies in a network, and there are few; they do not overlap."""
    networks = networks_of([KnownAddress(address, zone, wanted) for address, (zone, wanted) in found.items()])
    assert len(networks) <= MAX_PROPOSALS
    for network, zone in networks.items():
        assert parse_network(network_text(network)) == network, "no host bits"
        assert LARGEST[len(network.address)] <= network.length <= SMALLEST[len(network.address)]
        within = {address: told for address, told in found.items() if inside(address, network)}
        assert len(within) >= MIN_KNOWN and {told for told, _ in within.values()} == {zone}
        assert any(wanted for _, wanted in within.values())
        assert not any(inside(other.address, network) for other in networks if other != network)


@given(found=by_subnet)
def test_zones_with_subnets_are_found(found: dict[bytes, tuple[RegionalZone, bool]]) -> None:
    """Where addresses follow zones, every wanted address that is not alone gets its network, at most one a subnet."""
    networks = networks_of([KnownAddress(address, zone, wanted) for address, (zone, wanted) in found.items()])
    assert len(networks) <= len({address[2] for address in found})
    for address, (_, wanted) in found.items():
        neighbours = [other for other in found if other[2] == address[2]]
        assert not wanted or len(neighbours) < MIN_KNOWN or any(inside(address, network) for network in networks)


def vpc(*, zones: Sequence[str] = "ab", region: str | None = "eu", cidrs: bool = False) -> list[Item]:
    """Return nodes of a zone each, in subnets of their own, with a pod and an endpoint."""
    items: list[Item] = [service("web", selects=True)]
    for number, zone in enumerate(zones):
        name, net = f"n-{zone}", f"10.0.{16 * number}"
        labels = {ZONE: zone} | ({REGION: region} if region else {})
        items += [
            node(name, labels, addresses=[f"{net}.10", f"203.0.113.{number + 1}"],
                 cidrs=[f"10.244.{number}.0/24"] if cidrs else []),
            pod(f"p-{zone}", [f"{net}.20"], name),
            pod(f"host-{zone}", [f"{net}.10"], name, hostNetwork=True),
            endpoint_slice("web", number, [endpoint(f"{net}.30", nodeName=name)], by=SLICE_CONTROLLER),
        ]  # fmt: skip
    return items


EU = f"{ZONE}=%s,{REGION}=eu"
BOTH = {"10.0.0.0/24": RegionalZone("a", "eu"), "10.0.16.0/24": RegionalZone("b", "eu")}


@pytest.mark.parametrize(
    ("cluster", "flags", "expected"),
    [
        (vpc(), {}, BOTH),
        (vpc(), {"client-source": "nodes"}, BOTH),
        (vpc(region=None), {}, {network: zone._replace(region=None) for network, zone in BOTH.items()}),
        (vpc(cidrs=True), {}, {}),
        (vpc(zones="a"), {}, {}),
        (vpc(), {"subnet": [f"10.0.0.0/20={EU % 'a'}", f"10.0.16.0/20={EU % 'b'}"]}, {}),
        (vpc(), {"subnet": f"10.0.0.0/20={EU % 'a'}"}, {"10.0.16.0/24": RegionalZone("b", "eu")}),
        (vpc(), {"subnet": f"10.0.0.0/16={ZONE}=c"}, BOTH),
        ([node("a1", {ZONE: "a"}), node("b1", {ZONE: "b"})], {}, {}),
        ([*vpc(), node("v1"), pod("p-v", ["10.0.0.200"], "v1")], {},
         {"10.0.0.0/25": RegionalZone("a", "eu"), "10.0.16.0/24": RegionalZone("b", "eu")}),
        ([*vpc(), node("v1"), pod("p-v", ["10.0.0.21"], "v1")], {}, {}),
        ([*vpc(zones="a"), node("v1"), pod("p-v", ["10.0.99.21"], "v1")], {}, {}),
    ],
    ids=["as-on-eks", "without-pods", "no-region", "pod-cidrs", "one-zone", "configured", "half-configured",
         "configured-otherwise", "nobody", "pods-of-a-node-without-zone", "pods-of-a-node-without-zone-among-others",
             "one-zone-and-none"],
)  # fmt: skip
def test_proposed(cluster: list[Item], flags: Mapping[str, Any], expected: Mapping[str, RegionalZone]) -> None:
    """Only where no pod CIDR locates pods, several zones are known, and ``--subnet`` does not say it already."""
    book = snapshot_of(cluster, flags).addresses
    assert {network_text(network): zone for network, zone in proposed_subnets(book).items()} == expected


def test_pod_cidrs_that_lie_are_none() -> None:
    """Where the network ignores pod CIDRs, its own addresses count."""
    lying = [*vpc(), node("n-a", {ZONE: "a"}, cidrs=["10.0.16.0/24"]), node("n-b", {ZONE: "b"}, cidrs=["10.0.0.0/24"])]
    found = proposed_subnets(snapshot_of(lying).addresses)
    assert [network_text(network) for network in found] == ["10.0.0.0/24", "10.0.16.0/24"]
