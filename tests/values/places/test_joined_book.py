# SPDX-License-Identifier: Apache-2.0

"""The address books of several clusters, read as one: whose an address is."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.message.query import read_query
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.metrics.counters import Counts
from dnsserver.responder.answer_cache import AnswerCache
from dnsserver.responder.native_feed import NativeFeed
from dnsserver.responder.replies import ReplyOptions, ReplyWriter
from locator.ip import network_end, parse_address, parse_network
from locator.model import CLUSTER, UNKNOWN_LOCATION
from locator.places.book import AddressBook, Place
from locator.places.joined_book import JoinedBook
from locator.state.snapshot import Snapshot, book_of
from locator.state.store import Store, StoreOptions
from tests.kit import random_cluster
from tests.kit.api_objects import (
    REGION,
    SLICE_CONTROLLER,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    namespace,
    node,
    pod,
    service,
)
from tests.kit.dns_queries import query
from tests.kit.in_memory import HAS_NATIVE, NOW, dump_of, take_in
from tests.kit.this_machine import lacking

EMPTY = [namespace("shop")]
FORWARDER = parse_network("10.9.0.0/16")
SUBNETS = {parse_network("172.16.0.0/12"): {ZONE: "outside"}}


def book(name: str, items: Sequence[Item], *, own: bool = False) -> AddressBook:
    """Return the address book of a cluster."""
    store = (
        Store(StoreOptions(cluster=name, subnets=SUBNETS, forwarders=[FORWARDER]))
        if own
        else Store(StoreOptions(cluster=name))
    )
    take_in(store, dump_of(list(items)).objects)
    return book_of(store.publish(NOW))


def on(name: str, block: str | None = None, **labels: str) -> Item:
    return node(name, {REGION: "r1", **labels}, cidrs=[block] if block else [])


OWN = [
    on("n1", "10.1.1.0/24", **{ZONE: "a"}),
    on("n2", "10.1.2.0/24", **{ZONE: "b"}),
    pod("own", ["10.2.0.7"], "n1"),
    pod("twice", ["10.3.0.1"], "n2"),
]
WEST = [
    on("n1", "10.1.1.0/25", **{ZONE: "w"}),
    on("w2", "10.4.0.0/24", **{ZONE: "w"}),
    on("w3", "10.5.0.0/24", **{ZONE: "w"}),
    pod("west", ["10.1.1.9"], "w2"),
    pod("twice", ["10.3.0.1"], "w2"),
    pod("both", ["10.6.0.1"], "w2"),
    pod("asking", ["10.9.0.1"], "w2"),
    pod("honest-1", ["10.4.0.250"], "w2"),  # most pod CIDRs tell the truth
    pod("honest-2", ["10.5.0.250"], "w3"),
]
SOUTH = [
    on("s1", "10.5.0.0/25", **{ZONE: "s"}),
    pod("both", ["10.6.0.1"], "s1"),
    service("db", selects=True),
    endpoint_slice("db", 1, [endpoint("10.4.0.9", nodeName="s1")], by=SLICE_CONTROLLER),
]
JOINED = JoinedBook(book("east", OWN, own=True), [book("west", WEST), book("south", SOUTH)])

ADDRESSES = [
    ("10.2.0.7", "pod", "east", "a"),  # a pod of the own cluster
    ("10.3.0.1", "pod", "east", "b"),  # the own cluster comes first
    ("10.1.1.9", "podcidr", "east", "a"),  # also with its pod CIDR, although another cluster has a pod there
    ("10.4.0.1", "podcidr", "west", "w"),  # the only other cluster that has it
    ("10.4.0.9", "unknown", None, None),  # an endpoint of one other cluster in a pod CIDR of another
    ("10.5.0.1", "unknown", None, None),  # pod CIDRs of two others
    ("10.5.0.200", "podcidr", "west", "w"),  # where they do not overlap
    ("10.6.0.1", "unknown", None, None),  # pods of two others
    ("172.16.0.1", "subnet", None, "outside"),  # no cluster has it
    ("192.0.2.1", "unknown", None, None),
]


@pytest.mark.parametrize(("text", "located_by", "cluster", "zone"), ADDRESSES, ids=[row[0] for row in ADDRESSES])
def test_whose_an_address_is(text: str, located_by: str, cluster: str | None, zone: str | None) -> None:
    """The own cluster's, else the only other one's; several others: nobody knows."""
    for place in (JOINED.locate(parse_address(text)), JOINED.source(parse_address(text))):
        found = place.location.labels
        assert (place.located_by, found.get(CLUSTER), found.get(ZONE)) == (located_by, cluster, zone)


BLOCKS = [
    ("10.1.1.0/26", {CLUSTER: "east", ZONE: "a", REGION: "r1"}),  # within a pod CIDR of the own cluster
    ("10.1.0.0/16", {CLUSTER: "east", REGION: "r1"}),  # the own one's; what west has of it is hidden
    ("10.4.0.0/26", {}),  # around an endpoint of another cluster
    ("10.4.0.128/25", {CLUSTER: "west", ZONE: "w", REGION: "r1"}),
    ("10.5.0.0/26", {}),  # in pod CIDRs of two others
    ("10.5.0.0/24", {REGION: "r1"}),  # partly: whoever it is
    ("10.0.0.0/8", {REGION: "r1"}),  # of all clusters
    ("172.16.0.0/16", {ZONE: "outside"}),
    ("192.0.2.0/24", {}),
]


@pytest.mark.parametrize(("text", "labels"), BLOCKS, ids=[row[0] for row in BLOCKS])
def test_what_a_block_shares(text: str, labels: dict[str, str]) -> None:
    """What all that is known in it agrees on, and be it the cluster alone."""
    found = JOINED.locate_network(parse_network(text)).location
    shared = {key: value for key, value in found.labels.items() if key in (CLUSTER, ZONE, REGION)}
    if text == "10.4.0.0/26":
        assert found.labels.get(CLUSTER) is None
    else:
        assert (shared, found.known) == (labels, bool(labels))


def test_one_cluster_alone_is_worth_to_know() -> None:
    """Nodes that share nothing else are in one cluster: among several, that says something."""
    items = [on("x1", "10.1.1.0/24", **{ZONE: "a", REGION: "x"}), on("x2", "10.1.2.0/24", **{ZONE: "b"})]
    alone = book("east", items)
    assert alone.locate_network(parse_network("10.1.0.0/16")).location.known is False
    located = JoinedBook(alone, [book("west", EMPTY)]).locate_network(parse_network("10.1.0.0/16")).location
    assert (located.known, located.labels) == (True, {CLUSTER: "east"})


def test_forwarders_in_other_clusters() -> None:
    """A configured network of forwarders counts wherever its addresses are."""
    address = parse_address("10.9.0.1")
    assert JOINED.source(address).forwarder
    assert JOINED.source(parse_address("10.9.0.2")).forwarder


@settings(max_examples=5)
@given(st.integers(0, 100_000))
def test_native_code_locates_by_the_same_rules(seed: int) -> None:
    """Whatever changes in any of the clusters: it counts each client under the place that Python has for it."""
    if not HAS_NATIVE:
        lacking("the native code is not built")
    from dnsserver.net import native

    rng, asked = random.Random(seed), query("one.example")
    numbers: dict[object, int] = {}

    def number(place: Place) -> int:
        return numbers.setdefault((frozenset(place.location.labels.items()), place.located_by), len(numbers))

    table = native.AnswerTable((), (1.0,), 1)
    writer = ReplyWriter(rng.getrandbits, ReplyOptions(max_udp_size=512))
    feed = NativeFeed(table, Counts(), writer, origin_of=number, put_again=lambda _, __: None)
    sent, answer = read_query(asked), RenderedAnswer(flags=0x8400, answers=[])
    assert sent is not None
    cached = AnswerCache().keep_without_source(sent.question, answer)
    books = {name: book(name, EMPTY, own=name == "east") for name in ("east", "west", "south")}
    addresses = {parse_address(text) for text, *_ in ADDRESSES} | {parse_address("fd00::1"), parse_address("10.9.0.1")}
    for _ in range(4):
        name = rng.choice(list(books))
        books[name] = book(name, random_cluster.world(rng.randrange(300)).items, own=name == "east")
        for other in books.values():
            addresses.update(address for address, _ in other.places.items())
            addresses.update(network_end(cidr) for cidr, _ in other.cidrs.items())
        joined = JoinedBook(books["east"], [books["west"], books["south"]])
        feed.publish(Snapshot({}, frozenset(), joined, serial=NOW))
        feed.put(sent, answer, cached, UNKNOWN_LOCATION)
        for address in addresses:
            place = joined.source(address)
            assert (table.reply(asked, address) is None) == place.forwarder  # it names nobody
            counted = [origin for replies in table.take_counts().replies for origin in replies]
            assert counted == ([] if place.forwarder else [number(place)])
