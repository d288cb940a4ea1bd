# SPDX-License-Identifier: Apache-2.0

"""Properties of snapshots: one for each promise, for any cluster and any order of changes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dnsserver.programs.from_settings import store_of
from locator.ip import Network, parse_address
from locator.model import CLUSTER, Endpoint, Location, Node
from locator.places.forwarders import GRACE_SECONDS
from locator.state.store import Store, StoreOptions
from locator.topology.selection import FirstMatch, LocatedEndpoint, select
from tests.kit import api_objects, random_cluster
from tests.kit.api_objects import HOSTNAME, Item
from tests.kit.in_memory import NOW, dump_of, settings_of, take_in
from tests.kit.random_cluster import SUBNETS
from tests.kit.store_histories import content_of
from tests.kit.unshrunk import unshrunk
from tests.oracle.twin import Modes, Twin
from tests.oracle.twin_map import of_kind

steady = settings(unshrunk, max_examples=60)
SUBNET_FLAGS = {
    "subnet": [f"{network}={','.join(f'{key}={value}' for key, value in labels.items())}"
               for network, labels in SUBNETS.items()],
}  # fmt: skip
SEEDS = st.integers(0, 100_000)


def store_with(items: Iterable[Item]) -> Store:
    store = store_of(settings_of(SUBNET_FLAGS))
    take_in(store, dump_of(api_objects.listed(items)).objects)
    return store


# Selection

label_values = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=3)


@steady
@given(
    keys=st.lists(st.sampled_from("abc"), unique=True, max_size=3),
    soft=st.booleans(),
    here=label_values,
    rows=st.lists(label_values, max_size=8),
    least=st.integers(1, 4),
)
def test_selection_equals_the_rule_read_word_by_word(
    keys: list[str], soft: bool, here: dict[str, str], rows: list[dict[str, str]], least: int
) -> None:
    """The first tier with enough endpoints decides, ``*`` takes all; otherwise the first tier with any."""
    keys = keys + ["*"] * soft
    endpoints = [LocatedEndpoint(Endpoint((bytes((10, 0, 0, i)),)), Location(None, row)) for i, row in enumerate(rows)]
    tiers = [
        rows_at(rows, range(len(rows)))
        if key == "*"
        else [i for i, row in enumerate(rows) if key in here and row.get(key) == here[key]]
        for key in keys
    ]
    expected, key, outcome = [], None, "unmet"
    enough = [i for i, tier in enumerate(tiers) if keys[i] == "*" or len(tier) >= least]
    some = [i for i, tier in enumerate(tiers) if tier]
    if enough or some:
        decided = (enough or some)[0]
        expected, key, outcome = tiers[decided], keys[decided], "all" if keys[decided] == "*" else "nearest"

    selection = select(FirstMatch(tuple(keys), at_least=least), Location("n", here), endpoints)

    assert [endpoints.index(endpoint) for endpoint in selection.endpoints] == expected
    assert (selection.key, selection.outcome) == (key, outcome)
    looked_at = len(keys) if not enough else enough[0] + 1
    assert [(step.key, step.matched) for step in selection.steps] == [
        (keys[i], len(tiers[i])) for i in range(looked_at)
    ]


def rows_at(rows: Sequence[object], numbers: Iterable[int]) -> list[int]:
    return [number for number in numbers if number < len(rows)]


# The cluster read naively


@steady
@given(seed=SEEDS)
def test_every_address_is_where_the_first_match_says(seed: int) -> None:
    """Pod, endpoint, node, the node's pod CIDR if trusted, subnet, unknown."""
    world = random_cluster.world(seed)
    twin, book = Twin(world.items, Modes(subnets=SUBNETS)), store_with(world.items).publish(NOW).addresses
    for address in world.addresses:
        place, where = book.locate(parse_address(address)), twin.map.locate(address)
        labels = where.labels if place.located_by in ("subnet", "unknown") else {**where.labels, CLUSTER: "local"}
        assert (address, place.located_by, place.location.node) == (address, where.located_by, where.node)
        assert (address, place.location.labels) == (address, labels)


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
        address = number.to_bytes(2) + bytes(family - 2)

        def around(network: Network, address: bytes = address, number: int = number) -> bool:
            bits = 16 - network.length
            return (
                len(network.address) == len(address) and number >> bits == int.from_bytes(network.address[:2]) >> bits
            )

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
        place = book.locate(address)
        assert (place.located_by, place.location.labels) == expected


# After changes


@steady
@given(seed=SEEDS, later=SEEDS)
def test_unchanged_services_live_on_in_the_next_snapshot(seed: int, later: int) -> None:
    """If a Service, its slices and their nodes are unchanged, so is the compiled Service."""
    before = random_cluster.world(seed).items
    after = random_cluster.changed(before, later)
    store = store_with(before)
    first = store.publish(NOW)
    take_in(store, dump_of(api_objects.listed(after)).objects)
    second = store.publish(NOW + 60)
    made_from, made_later = service_parts(before), service_parts(after)
    if made_from == made_later and visible(before) == visible(after):
        assert second is first
        return
    for key, compiled in second.services.items():
        if made_from.get(key) == made_later[key]:
            assert compiled is first.services[key], key


@settings(steady, max_examples=80)
@given(seed=SEEDS, changes=st.lists(SEEDS, min_size=1, max_size=3))
@example(seed=16384, changes=[102, 16384, 3388])  # a forwarder goes
def test_any_changes_end_in_the_snapshot_of_the_final_state(seed: int, changes: list[int]) -> None:
    """The last snapshot equals one that is made of the final state."""
    items = random_cluster.world(seed).items
    store = store_with(items)
    store.publish(NOW)
    for number, change in enumerate(changes, 1):
        items = random_cluster.changed(items, change)
        take_in(store, dump_of(api_objects.listed(items)).objects)
        now = NOW + 60 * number
        store.publish(now)  # a forwarder that is gone is trusted for some seconds more
        assert content_of(store.publish(now + GRACE_SECONDS)) == content_of(store_with(items).publish(now))


def visible(items: Sequence[Item]) -> list[str]:
    """Return objects as sorted text, without what cannot show in an answer."""
    return sorted(repr({**item, "metadata": {**item["metadata"], "resourceVersion": ""}}) for item in items)


def service_parts(items: Sequence[Item]) -> dict[str, list[str]]:
    """Return, for each Service, everything that its answers are made from."""
    parts: dict[str, list[str]] = {}
    for service in of_kind(items, "Service"):
        meta = service["metadata"]
        slices = [
            item
            for item in of_kind(items, "EndpointSlice")
            if item["metadata"]["namespace"] == meta["namespace"]
            and item["metadata"]["labels"][api_objects.SERVICE_NAME] == meta["name"]
        ]
        rows = [row for endpoint_slice in slices for row in endpoint_slice["endpoints"]]
        names = {row.get("nodeName") for row in rows}
        nodes = [item for item in of_kind(items, "Node") if item["metadata"]["name"] in names]
        pods = [item for item in of_kind(items, "Pod") if any(told_of(item, row) for row in rows)]
        policies = of_kind(items, "ServicePolicy")
        # An endpoint without a known node is where its address is, which anything may say.
        others = items if len(nodes) < len(names) else [service, *slices, *nodes, *policies, *pods]
        parts[f"{meta['namespace']}/{meta['name']}"] = visible(others)
    return parts


def told_of(pod: Item, row: Item) -> bool:
    """Whether a pod may say where an endpoint is, or what its node lacks."""
    texts = [entry["ip"] for entry in pod["status"]["podIPs"]]
    return pod["metadata"]["name"] == row.get("targetRef", {}).get("name") or not set(texts).isdisjoint(
        row["addresses"]
    )


@steady
@given(seed=SEEDS, order=st.randoms(use_true_random=False))
def test_the_order_of_objects_does_not_matter(seed: int, order: random.Random) -> None:
    """Whatever comes first, the snapshot is the same."""
    items = random_cluster.world(seed).items
    shuffled = list(items)
    order.shuffle(shuffled)
    assert content_of(store_with(items).publish(NOW)) == content_of(store_with(shuffled).publish(NOW))
