# SPDX-License-Identifier: Apache-2.0

"""A changing cluster: after any changes, the snapshot equals one of the final state."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from locator.api.deltas import Delta, Drop, Put, Replace
from locator.endpoints import SliceEndpoints, compact
from locator.ip import Network, host_network, parse_address, parse_network
from locator.labels import Selector, parse_selector, requirement
from locator.model import (
    KINDS,
    MIRRORING_CONTROLLER,
    REGION,
    SLICE_CONTROLLER,
    ZONE,
    Endpoint,
    EndpointSlice,
    HealthEntry,
    Location,
    Namespace,
    Node,
    Object,
    Pod,
    PodLocator,
    Service,
    ServiceExport,
    ServiceHealth,
    ServiceImport,
    ServicePolicy,
    canonical_labels,
)
from locator.places.address_map import keys_at
from locator.places.forwarders import GRACE_SECONDS
from locator.state.snapshot import CompiledService, Snapshot, answers_differ
from locator.state.store import Store, StoreOptions
from locator.topology.constraints import IGNORED, PREFERRED, REQUIRED
from locator.topology.scope import Scope
from locator.topology.selection import LocatedEndpoint
from tests.kit.in_memory import addresses_in, read_again
from tests.kit.unshrunk import unshrunk

steady = settings(unshrunk, max_examples=150)
NOW = 1_700_000_000
FOREVER = NOW + 10**6  # when nobody who left is trusted any more
DNS = "kube-system/dns"


def ip(text: str) -> bytes:
    return parse_address(text)


# What a snapshot says


def at(location: Location) -> tuple[object, ...]:
    return location.known, location.node, sorted(location.labels.items())


ADDRESSES = [ip(f"10.0.{net}.{host}") for net in (0, 1, 2) for host in (1, 2, 17)]
ADDRESSES += [ip("fd00::1"), ip("fd00::2"), ip("192.168.0.1"), ip("192.168.0.2"), ip("198.51.100.7"), ip("203.0.113.9")]
BLOCKS = ["10.0.0.0/24", "10.0.1.0/25", "10.0.0.0/28", "10.0.0.0/23", "10.0.0.0/16", "10.0.2.0/24", "10.0.0.0/8",
          "0.0.0.0/0", "192.168.0.0/30", "198.51.0.0/16", "fd00::/64", "fd00::/127", "fd00::/16", "::/0"]  # fmt: skip


def located(rows: Iterable[LocatedEndpoint]) -> list[tuple[object, ...]]:
    return [(row.endpoint, at(row.location)) for row in rows]


def said_of(each: CompiledService) -> tuple[object, ...]:
    return each.service, each.declaration, each.empty, located(each.endpoints)


def said(snapshot: Snapshot) -> dict[str, Any]:
    """Return the content of a snapshot, without its serial, as values that can be compared."""
    book, flat = snapshot.addresses, {}
    for name, ask in (("source", book.source), ("locate", book.locate)):
        for address in ADDRESSES:
            place = ask(address)
            flat[name, address] = at(place.location), place.located_by, place.forwarder
    for block in BLOCKS:
        place = book.locate_network(parse_network(block))
        flat["block", block.encode()] = at(place.location), place.located_by, place.block, place.forwarder
    return {
        "services": {key: said_of(service) for key, service in snapshot.services.items()},
        "unready": {key: located(rows) for key, rows in snapshot.unready.items()},
        "places": flat,
        "held": {a: (at(p.location), p.located_by, p.block, p.forwarder) for a, p in book.places.items()},
        "distrusted": book.distrusted_cidrs,
        "namespaces": snapshot.namespaces,
        "holders": {
            address: keys_at(snapshot.service_addresses, address)
            for address in addresses_in(snapshot.service_addresses)
        },
        "pods": dict(snapshot.pod_namespaces.items()),
        "findings": snapshot.findings,
        "objects": snapshot.object_counts,
        "sizes": [len(book.places), len(snapshot.pod_namespaces)],
    }


def holders(snapshot: Snapshot) -> dict[Network, str]:
    """Return who holds each address and block, which the latest snapshot alone can tell."""
    held = [Network(address, 8 * len(address)) for address, _ in snapshot.addresses.places.items()]
    book, networks = snapshot.addresses, [*held, *map(parse_network, BLOCKS), *map(host_network, ADDRESSES)]
    return {network: book.holder(network) + book.overlooked(network) for network in networks}


# What happens


def some(values: Sequence[Any], most: int = 2, least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(values), min_size=least, max_size=most, unique=True).map(tuple)


NODES, SPACES, NAMES, PODS = ("n0", "n1", "n2"), ("shop", "lab", "kube-system"), ("web", "api"), ("p0", "p1", "p2")
CIDRS = [parse_network(text) for text in ("10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/16", "10.0.0.0/28", "fd00::/64")]
labels = st.dictionaries(st.sampled_from((ZONE, "rack")), st.sampled_from("ab"), max_size=2)
KEEPERS = (SLICE_CONTROLLER, SLICE_CONTROLLER, SLICE_CONTROLLER, MIRRORING_CONTROLLER, "operator")
maybe_node = st.sampled_from((*NODES, *NODES, None))
held = some(ADDRESSES[:13])


def canonical(node: str | None, own: dict[str, str]) -> dict[str, str]:
    return canonical_labels(own, node=node)


nodes = st.builds(
    lambda name, own, *rest: Node(name, canonical(name, own), *rest),
    st.sampled_from(NODES), labels, some(ADDRESSES[9:13]), some(CIDRS),
)  # fmt: skip
pods = st.builds(
    Pod, st.sampled_from(SPACES), st.sampled_from(PODS), held, maybe_node, st.sampled_from((False, False, True)),
    st.sampled_from((False, False, False, True)), st.sampled_from(("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z")),
)  # fmt: skip
locators = st.builds(
    lambda space, name, addresses, node, own: PodLocator(space, name, addresses, node, canonical(node, own)),
    st.sampled_from(SPACES), st.sampled_from(PODS), held, maybe_node, labels,
)  # fmt: skip


def endpoints_with(addresses: st.SearchStrategy[tuple[bytes, ...]]) -> st.SearchStrategy[list[Endpoint]]:
    endpoint = st.builds(
        lambda addresses, node, word, ready, pod, target, terminating: Endpoint(
            addresses, node=node, slice_labels=word, ready=ready, pod=None if target else pod, target_node=target,
            terminating=terminating,
        ),
        addresses, maybe_node, labels, st.sampled_from((True, True, False)), st.sampled_from((*PODS, None)),
        st.sampled_from((*[None] * 4, "n1")), st.sampled_from((False, False, False, True)),
    )  # fmt: skip
    return st.lists(endpoint, max_size=4)


endpoints = (endpoints_with(some(ADDRESSES[:9], 1, 1)) | endpoints_with(some(ADDRESSES[:13], least=1))).map(compact)
slices = st.builds(
    lambda space, name, service, rows, keeper: EndpointSlice(
        space, name, service, rows, managed_by=keeper
    ),
    st.sampled_from(SPACES), st.sampled_from(("x", "y", "z")),
    st.sampled_from((*NAMES, "dns", None)), endpoints, st.sampled_from(KEEPERS),
)  # fmt: skip
services = st.builds(
    lambda space, name, ips, keys, alias, own, selects: Service(
        space, name, headless=not ips and alias is None, cluster_ips=ips, alias=alias, labels=own, selects_pods=selects,
        annotations={"topodns.io/topology-keys": keys} if keys else {},
    ),
    st.sampled_from(SPACES), st.sampled_from(NAMES), some(ADDRESSES[-2:], 1),
    st.sampled_from(("", " ", ZONE, "rack,*", f"{ZONE}s,racks,*", "*,rack")),
    st.sampled_from((None, None, None, "example.org")),
    st.builds(
        lambda own, dns: {**own, **dns},
        st.dictionaries(st.sampled_from(("app", "version")), st.sampled_from("12"), max_size=2),
        st.sampled_from(({}, {"k8s-app": "kube-dns"}, {"k8s-app": "web"}, {"topodns.io/hints": "true"})),
    ),
    st.sampled_from((True, True, False)),
)  # fmt: skip
policies = st.builds(
    lambda space, name, created, value, key, mode: ServicePolicy(
        space, name, created, Selector((requirement("app", "in", [value]),)), key, mode
    ),
    st.sampled_from(SPACES), st.sampled_from(("q", "r")), st.sampled_from(("2024", "2025")), st.sampled_from("12"),
    st.sampled_from((ZONE, "rack", "-bad-")), st.sampled_from((REQUIRED, PREFERRED, IGNORED)),
)  # fmt: skip
namespaces = st.builds(Namespace, st.sampled_from(SPACES), st.dictionaries(st.just("team"), st.sampled_from("ab")))
STRATEGIES: dict[type[Object], st.SearchStrategy[Any]] = {
    Namespace: namespaces, Node: nodes, Pod: pods, PodLocator: locators, Service: services, ServicePolicy: policies,
    EndpointSlice: slices,
}  # fmt: skip


PUBLISH = "publish"
HAPPENS = (*KINDS, Node, Pod, Pod, Service, EndpointSlice, EndpointSlice, PUBLISH, PUBLISH, PUBLISH)


# Few nodes, blocks within blocks, and endpoints that lie in them, some of them forwarders: much depends on much here.
BLOCKS_ALONE: dict[type[Object], st.SearchStrategy[Any]] = {
    Node: st.builds(
        lambda name, zone, cidrs: Node(name, canonical(name, {ZONE: zone}), (), cidrs),
        st.sampled_from(NODES), st.sampled_from("ab"), some(CIDRS[:4], 3),
    ),
    Pod: st.builds(
        lambda name, address, node: Pod("kube-system", name, (address,), node),
        st.sampled_from(PODS), st.sampled_from(ADDRESSES[:4]), maybe_node,
    ),
    Service: st.builds(
        lambda name, selects: Service("kube-system", name, headless=True, selects_pods=selects),
        st.sampled_from(("web", "dns")), st.sampled_from((True, True, False)),
    ),
    EndpointSlice: st.builds(
        lambda name, service, rows, keeper: EndpointSlice(
            "kube-system", name, service, compact(rows), managed_by=keeper
        ),
        st.sampled_from("xy"), st.sampled_from(("web", "dns")),
        st.lists(st.builds(lambda address, node, pod: Endpoint((address,), node=node, pod=pod),
                           st.sampled_from((ADDRESSES[0], ADDRESSES[2], ADDRESSES[3])), maybe_node,
                           st.sampled_from((*PODS[:2], None))), max_size=2),
        st.sampled_from(KEEPERS),
    ),
}  # fmt: skip

# Slices of endpoints that often nothing locates but the places of their addresses.
unplaced = st.lists(
    st.builds(
        lambda addresses, node, word, pod, *states: Endpoint(
            addresses, node=node, slice_labels=word, pod=pod, ready=states[0], terminating=states[1]
        ),
        some(ADDRESSES[:4], 2, 1), st.sampled_from((None, None, "n1")), st.sampled_from(({}, {}, {ZONE: "b"})),
        st.sampled_from((None, None, "p0")), st.booleans(), st.sampled_from((False, False, True)),
    ), min_size=1, max_size=2,
).map(compact)  # fmt: skip

FIRST, IN_CIDR = ip("10.0.1.1"), ip("10.0.0.1")
JOINS_BY_ADDRESS, JOINED_BY_ADDRESS = compact([Endpoint((FIRST,))]), compact([Endpoint((FIRST, IN_CIDR), node="n1")])
JOINS_BY_POD, JOINED_BY_POD = (
    compact([Endpoint((address,), pod="p0", slice_labels=word)])
    for address, word in ((FIRST, {}), (IN_CIDR, {ZONE: "b"}))
)

# Services that gain and lose the label by which the cluster's DNS is found, and their slices.
DNS_ALONE: dict[type[Object], st.SearchStrategy[Any]] = {
    Service: st.builds(
        lambda space, name, label: Service(space, name, cluster_ips=(ADDRESSES[-1],), labels={"k8s-app": label}),
        st.sampled_from(("kube-system", "kube-system", "shop")), st.sampled_from((*NAMES, "kube-dns")),
        st.sampled_from(("kube-dns", "web")),
    ),
    EndpointSlice: st.builds(
        lambda name, service, address: EndpointSlice("kube-system", name, service, compact((Endpoint((address,)),))),
        st.sampled_from("xy"), st.sampled_from((*NAMES, "kube-dns")), st.sampled_from(ADDRESSES[:3]),
    ),
}  # fmt: skip


@st.composite
def happenings(draw: st.DrawFn, strategies: Any = None) -> Any:
    """A delta, or the request for a snapshot."""
    strategies = strategies or STRATEGIES
    kind: Any = draw(st.sampled_from([each for each in HAPPENS if each == PUBLISH or each in strategies]))
    if kind == PUBLISH:
        return PUBLISH
    how, each = draw(st.sampled_from((Put, Put, Drop, Replace))), strategies[kind]
    if how is Replace:
        return Replace(kind, draw(st.lists(each, max_size=4)))
    return Put(draw(each)) if how is Put else Drop(kind, draw(each).key)


history = st.lists(happenings(), min_size=15, max_size=40)  # short ones say little
history_of_blocks = st.lists(happenings(BLOCKS_ALONE), min_size=8, max_size=20)
history_of_dns = st.lists(happenings(DNS_ALONE), min_size=8, max_size=20)
SUBNETS = {
    parse_network("198.51.100.0/24"): {ZONE: "a"},
    parse_network("10.0.0.0/12"): {ZONE: "b"},
    parse_network("10.0.0.16/28"): {ZONE: "a", "rack": "a"},  # within the nodes' pod CIDRs
}
STORES: list[dict[str, Any]] = [
    {},
    {"pod_locators": True},
    {"pods": False},
    {"pods": False, "nodes": False, "pod_locators": True},
    {"pods": False, "pod_locators": True},
    {"nodes": False, "pod_locators": True, "pod_names": True},
    {"pods": False, "pod_names": True, "forwarders": [parse_network("10.0.1.0/24")]},
    {"scope": Scope(frozenset(("shop", "lab")), parse_selector("team=a"), parse_selector("version=1"))},
    {"scope": Scope(frozenset(("shop",))), "endpoint_records": False, "pod_names": True},
    {"forwarder_services": None, "default_keys": {"topo.local": ("rack", ZONE)}},
    {"subnets": None, "pods": False},
    {"forwarder_services": None, "pods": False, "scope": Scope(frozenset(("shop",)))},
]


def store_with(**options: Any) -> Store:
    return Store(StoreOptions(**{"subnets": SUBNETS, "forwarder_services": [DNS], **options}))


class State:
    """The objects after some deltas: what a list of each kind would return."""

    def __init__(self) -> None:
        self.objects: dict[type[Object], dict[str, Object]] = {kind: {} for kind in KINDS}

    def apply(self, change: Delta) -> None:
        if isinstance(change, Put):
            self.objects[type(change.object)][change.object.key] = change.object
        elif isinstance(change, Drop):
            self.objects[change.kind].pop(change.key, None)
        else:
            self.objects[change.kind] = {obj.key: obj for obj in change.objects}

    def fresh(self, options: dict[str, Any], *, backwards: bool = False, kept: Snapshot | None = None) -> Store:
        """Return a new store with the same objects, which came in one order or the other, after a *kept* snapshot."""
        store = store_with(**options)
        if kept is not None:
            store.start_from(read_again(kept))
        for kind, objects in reversed(self.objects.items()) if backwards else self.objects.items():
            if kind in store.kinds:
                rows = [*objects.values()]
                store.apply(Replace(kind, rows[::-1] if backwards else rows))
        return store


@steady
@given(options=st.sampled_from(STORES), events=history, backwards=st.booleans())
def test_any_events_end_in_the_snapshot_of_the_final_state(
    options: dict[str, Any], events: list[Any], backwards: bool
) -> None:
    """In any order, with snapshots in between or not; a published snapshot never changes."""
    assert_same_in_the_end(options, events, backwards=backwards)


@settings(steady, max_examples=400)
@given(events=history_of_blocks, pods=st.booleans(), backwards=st.booleans())
def test_belief_in_blocks_depends_on_the_final_state_alone(events: list[Any], pods: bool, backwards: bool) -> None:
    """Which pod CIDRs are trusted depends on the final state, not on the order of changes."""
    assert_same_in_the_end({"pods": pods}, events, backwards=backwards)


@steady
@example([JOINS_BY_ADDRESS, JOINED_BY_ADDRESS], [(CIDRS[0],)], True)
@example([JOINS_BY_POD, JOINED_BY_POD], [(CIDRS[0],)], True)
@given(rows=st.lists(unplaced, min_size=1, max_size=2), cidrs=st.lists(some(CIDRS[:2]), max_size=3), more=st.booleans())
def test_an_endpoint_follows_the_place_of_its_address(
    rows: list[SliceEndpoints], cidrs: list[tuple[Network, ...]], more: bool
) -> None:
    """And so does the finding that nobody knows where it is, with endpoint records and without."""
    options, state = {"subnets": None, "endpoint_records": more}, State()
    store, n0 = store_with(**options), Node("n0", canonical("n0", {ZONE: "a"}))
    slices = [Put(EndpointSlice("shop", name, "web", part)) for name, part in zip("xy", rows, strict=False)]
    service = Service("shop", "web", headless=True, annotations={"topodns.io/topology-keys": ZONE})
    for deltas in ([Put(service), *slices, Put(n0)], *([Put(replace(n0, pod_cidrs=networks))] for networks in cidrs)):
        for delta in deltas:
            store.apply(delta)
            state.apply(delta)
        assert said(store.publish(NOW)) == said(state.fresh(options).publish(NOW))


@steady
@given(changes=st.lists(st.tuples(*map(st.sampled_from, (NODES, (None, "", "a", "b"), ("", "r", "s")))), min_size=4))
def test_what_is_wrong_with_zones_depends_on_the_nodes_alone(changes: list[tuple[str, str | None, str]]) -> None:
    """Nodes come and go, and gain and lose zones and regions: who lacks a zone, and which zone is in two regions."""
    store, state = store_with(), State()
    for name, zone, region in changes:
        made = None if zone is None else Node(name, canonical(name, {ZONE: zone, REGION: region}))
        delta = Drop(Node, name) if made is None else Put(made)
        store.apply(delta)
        state.apply(delta)
        assert store.publish(NOW).findings == state.fresh({}).publish(NOW).findings


@steady
@given(events=history_of_dns, backwards=st.booleans())
def test_trust_in_the_clusters_dns_depends_on_the_final_state_alone(events: list[Any], backwards: bool) -> None:
    """Services gain and lose the label that makes them forwarders, before and after their slices come."""
    assert_same_in_the_end({"forwarder_services": None}, events, backwards=backwards)


def assert_same_in_the_end(options: dict[str, Any], events: list[Any], *, backwards: bool) -> None:
    store, state, now, published = store_with(**options), State(), NOW, list[tuple[Snapshot, dict[str, Any]]]()
    store.apply(Replace(Pod, []))  # from a cluster: what is not listed does not exist
    for event in events:
        if event == PUBLISH:
            now += 10
            published.append(((snapshot := store.publish(now)), said(snapshot)))
        elif (event.kind if not isinstance(event, Put) else type(event.object)) in store.kinds:
            store.apply(event)
            state.apply(event)
    store.publish(now + 1)  # who left since is trusted for a while from here on
    last = store.publish(FOREVER)
    fresh = state.fresh(options, backwards=backwards)
    expected = fresh.publish(FOREVER)
    assert said(last) == said(expected)
    assert holders(last) == holders(expected)
    assert [*store.advice()] == [*fresh.advice()]
    assert store.publish(FOREVER) is last
    assert store.due is None
    for kept in (last, *(snapshot for snapshot, _ in published[:1])):
        restarted = state.fresh(options, kept=kept)
        after = restarted.publish(FOREVER)
        assert said(after) == said(expected)
        assert holders(after) == holders(expected)
        assert restarted.publish(FOREVER + 1) is after
    for snapshot, before in published:
        again = said(snapshot)
        assert again == before


def concerned(changes: Iterable[Delta], before: Snapshot, after: Snapshot) -> set[str]:
    """Return the Services that some deltas may affect, by the names in them."""
    names, keys, spaces = set[str](), set[str](), set[str]()
    for change in changes:
        if isinstance(change, Replace):
            return {*before.services, *after.services}
        kind = type(change.object) if isinstance(change, Put) else change.kind
        key = change.object.key if isinstance(change, Put) else change.key
        if kind in (Namespace, ServicePolicy):
            spaces.add(key.partition("/")[0])
        elif kind in (Node, PodLocator):
            names.add(key.rpartition("/")[2])
        elif kind is Service:
            keys.add(key)
        elif kind is EndpointSlice:  # it may have been another Service's
            spaces.add(key.partition("/")[0])
    return {
        key
        for snapshot in (before, after)
        for key, service in snapshot.services.items()
        if key in keys
        or service.service.namespace in spaces
        or any(row.endpoint.node in names or row.endpoint.pod in names for row in service.endpoints)
    }


@steady
@given(options=st.sampled_from(STORES), events=history)
def test_a_kept_snapshot_goes_on(options: dict[str, Any], events: list[Any]) -> None:
    """Nothing of it is made anew if the objects are still the same, so no answer is forgotten."""
    state = State()
    for event in events:
        if event != PUBLISH and (event.kind if not isinstance(event, Put) else type(event.object)) in KINDS:
            state.apply(event)
    kept = state.fresh(options).publish(NOW)
    store = store_with(**options)
    before = store.start_from(read_again(kept))
    assert said(before) == said(kept)
    for kind, objects in state.objects.items():
        store.apply(Replace(kind, [*objects.values()]))
    after = store.publish(NOW + 60)
    assert after.services is before.services and after.unready is before.unready
    assert after.addresses.places is before.addresses.places and after.pod_namespaces is before.pod_namespaces
    if not any(isinstance(node, Node) and node.pod_cidrs for node in state.objects[Node].values()):  # may be shared
        assert not answers_differ(before, after) and after.serial == NOW


def test_unknown_is_no_kept_location() -> None:
    """An object without a node is somewhere, even if it has no label; a forwarder that nothing locates is not."""
    far = ip("203.0.113.9")
    before = store_with()
    before.apply(Put(EndpointSlice("kube-system", "dns-x", "dns", compact((Endpoint((far,)),)))))
    kept = before.publish(NOW)
    assert not kept.addresses.source(far).location.known
    store = store_with()
    store.start_from(read_again(kept))
    store.apply(Put(Pod("shop", "p9", (NEW,), None)))
    assert store.publish(NOW).addresses.source(NEW).location.known


def test_a_kept_snapshot_is_let_go() -> None:
    """Once the objects are known, nothing of it takes memory but what is still true."""
    kept = read_again(store_with().publish(NOW))
    book = weakref.ref(kept.addresses)
    store = store_with()
    store.start_from(kept)
    del kept
    assert book() is not None
    store.apply(Put(Node("n0", canonical("n0", {ZONE: "a"}))))
    store.publish(NOW)
    assert book() is None


SETTINGS = [
    ("subnets", {"subnets": SUBNETS}),
    ("labels-of-a-subnet", {"subnets": {**SUBNETS, parse_network("10.0.0.0/12"): {ZONE: "c"}}}),
    ("forwarders", {"forwarders": [parse_network("10.0.1.0/24")]}),
    ("forwarder-services", {"forwarder_services": [DNS]}),
    ("no-pods", {"pods": False}),
    ("no-nodes", {"nodes": False}),
    ("locators", {"pod_locators": True}),
    ("pod-names", {"pod_names": True}),
    ("pod-names-alone", {"pod_names": True, "pods": False}),
    ("namespaces", {"scope": Scope(frozenset(("shop", "lab", "a", "b")))}),
    ("namespace-selector", {"scope": Scope(namespace_selector=parse_selector("team=a"))}),
    ("service-selector", {"scope": Scope(service_selector=parse_selector("team=a"))}),
    ("no-endpoints", {"endpoint_records": False}),
    ("no-hints", {"honor_kubernetes": False}),
    ("default-keys", {"default_keys": {"topo.local": ("rack", ZONE)}}),
]  # fmt: skip


def test_stores_with_other_settings_are_told_apart() -> None:
    """A snapshot that was kept with other settings would give other answers."""
    texts = [Store(StoreOptions(**options)).settings for _, options in [("none", {}), *SETTINGS]]
    assert len(set(texts)) == len(texts)
    assert texts == [Store(StoreOptions(**options)).settings for _, options in [("none", {}), *SETTINGS]]


def test_what_other_settings_need_is_kept() -> None:
    """After a restart with a namespace selector, the objects that a store without one kept must do."""
    store = store_with()
    store.apply(Put(Namespace("shop", {"team": "a"})))
    store.apply(Put(Namespace("lab", {"team": "b"})))
    other = store_with(scope=Scope(namespace_selector=parse_selector("team=a")))
    for item in store.all_objects():
        other.apply(Put(item))
    assert other.publish(NOW).namespaces == {"shop"}


@steady
@given(options=st.sampled_from(STORES), events=history)
def test_what_is_not_concerned_is_the_very_same(options: dict[str, Any], events: list[Any]) -> None:
    """A Service that a delta does not affect stays the same object."""
    store = store_with(**options)
    before, since = store.publish(NOW), list[Delta]()
    for event in events:
        if event != PUBLISH:
            if store.apply(event):
                since.append(event)
            continue
        after = store.publish(NOW)
        if not since:
            assert after.services is before.services and after.addresses is before.addresses
            assert (after.findings, after.namespaces) == (before.findings, before.namespaces)
        touched = concerned(since, before, after)
        for key, service in before.services.items():
            assert key in touched or after.services[key] is service
        before, since = after, []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_equal_object_is_no_change(kind: type[Object]) -> None:
    """After a heartbeat, or a list of known objects, nothing is published."""
    store = Store(StoreOptions(pod_locators=True, exports=True, imports=True))
    objects: dict[type[Object], list[Any]] = {kind: [] for kind in KINDS}
    objects[Namespace] = [Namespace("shop")]
    objects[Node] = [Node("n0", canonical("n0", {ZONE: "a"}), (ip("192.168.0.1"),), (CIDRS[0],))]
    objects[Pod] = [Pod("shop", "p0", (ip("10.0.0.1"),), "n0")]
    objects[PodLocator] = [PodLocator("shop", "p0", (ip("10.0.0.1"),), "n0", canonical("n0", {ZONE: "a"}))]
    objects[Service] = [Service("shop", "web", headless=True, labels={"app": "1"})]
    objects[ServicePolicy] = [ServicePolicy("shop", "q", "2024", Selector(), ZONE, REQUIRED)]
    objects[EndpointSlice] = [
        EndpointSlice("shop", "x", "web", compact((Endpoint((ip("10.0.0.1"),), node="n0", pod="p0"),)))
    ]
    objects[ServiceExport] = [ServiceExport("shop", "web")]
    objects[ServiceImport] = [ServiceImport("shop", "web", headless=True)]
    objects[ServiceHealth] = [ServiceHealth("web.shop", "shop/web", (HealthEntry("192.0.2.1", True),))]
    for kind_of_list, of_kind in objects.items():
        assert store.apply(Replace(kind_of_list, of_kind)) is True
    first = store.publish(NOW)
    again = [replace(obj) for obj in objects[kind]]
    assert store.apply(Put(again[0])) is store.apply(Replace(kind, again)) is False
    assert store.apply(Drop(kind, "none/such")) is False
    assert store.publish(NOW + 1) is first


INVISIBLE = [
    ("pending-pod", Put(Pod("shop", "p9", (), None))),
    ("finished-pod", Put(Pod("shop", "p9", (ip("10.0.0.9"),), "n0", finished=True))),
    ("locator-of-a-finished-pod", Put(PodLocator("shop", "p9"))),
    ("labels-of-a-service", Put(Service("shop", "web", headless=True, labels={"version": "2"}))),
]


@pytest.mark.parametrize("change", [row[1] for row in INVISIBLE], ids=[row[0] for row in INVISIBLE])
def test_what_no_answer_shows_is_no_reason_to_publish(change: Delta) -> None:
    """The store calls it invisible, and answers and serial stay the same."""
    store = Store(StoreOptions(pod_locators=True))
    store.apply(Put(Namespace("shop")))
    store.apply(Put(Service("shop", "web", headless=True)))
    first = store.publish(NOW)
    assert store.apply(change) is False
    second = store.publish(NOW + 1)
    assert (second.serial, second.services) == (NOW, first.services) and second.addresses is first.addresses


def test_two_threads_read_the_same_endpoints() -> None:
    """A responder and a simulator may be the first to ask for them at the same moment: each caches by the objects."""
    addresses = [bytes((10, 1, number >> 8, number & 255)) for number in range(1000)]
    endpoints = compact([Endpoint((address,), node="n0", pod=address.hex()) for address in addresses])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            store = Store()
            store.apply(Put(Service("shop", "web", headless=True)))
            store.apply(Put(EndpointSlice("shop", "web-1", "web", endpoints)))
            compiled, start = store.publish(NOW).services["shop/web"], threading.Barrier(2)

            def read(compiled: CompiledService = compiled, start: threading.Barrier = start) -> list[int]:
                start.wait()
                return list(map(id, compiled.endpoints))

            with ThreadPoolExecutor(2) as threads:
                one, other = (reading.result() for reading in [threads.submit(read), threads.submit(read)])
            assert one == other == list(map(id, compiled.endpoints))
    finally:
        sys.setswitchinterval(interval)


def test_endpoints_that_are_not_ready() -> None:
    """The snapshot has them, but the Service stays the same object, and so do those of other Services."""
    ready, unready = Endpoint((ip("10.0.0.1"),), node="n0"), Endpoint((ip("10.0.0.2"),), node="n0", ready=False)
    store = Store()
    for name in ("web", "api"):
        store.apply(Put(Service("shop", name, headless=True)))
        store.apply(Put(EndpointSlice("shop", f"{name}-1", name, compact((ready, unready)))))
    first = store.publish(NOW)
    assert {key: [row.endpoint for row in rows] for key, rows in first.unready.items()} == {
        "shop/web": [unready], "shop/api": [unready]}  # fmt: skip

    other = replace(unready, hostname="web-1")
    store.apply(Put(EndpointSlice("shop", "web-1", "web", compact((ready, other)))))
    second = store.publish(NOW + 1)
    assert [row.endpoint for row in second.unready["shop/web"]] == [other]
    assert second.unready["shop/api"] is first.unready["shop/api"]
    assert second.services is first.services and second.serial == first.serial == NOW

    store.apply(Put(EndpointSlice("shop", "web-1", "web", compact((replace(ready, hostname="web-0"), other)))))
    assert store.publish(NOW + 2).unready is second.unready
    store.apply(Put(Node("n0", canonical("n0", {ZONE: "a"}))))
    third = store.publish(NOW + 3)
    assert [row.location.value(ZONE) for row in third.unready["shop/web"]] == ["a"]
    store.apply(Put(EndpointSlice("shop", "web-1", "web", compact((ready, replace(other, ready=True))))))
    store.apply(Drop(Service, "shop/api"))
    assert store.publish(NOW + 4).unready == {}
    store.apply(Put(Service("shop", "api", alias="example.org")))
    last = store.publish(NOW + 5)
    assert last.unready == {}
    assert store.publish(NOW + 6) is last


@pytest.mark.parametrize("exported", [False, True], ids=["not-exported", "exported"])
def test_without_endpoint_records_endpoints_that_get_ready_change_no_answer(exported: bool) -> None:
    """Only of an exported Service do they matter: where all of them are, its load balancer is."""
    first, second = Endpoint((ip("10.0.0.1"),), node="n0"), Endpoint((ip("10.0.0.2"),), node="n1")
    store = Store(StoreOptions(endpoint_records=False, exports=True))
    store.apply(Put(Service("shop", "web")))
    if exported:
        store.apply(Put(ServiceExport("shop", "web")))
    store.apply(Put(EndpointSlice("shop", "web-1", "web", compact((first, replace(second, ready=False))))))
    before = store.publish(NOW)
    store.apply(Put(EndpointSlice("shop", "web-1", "web", compact((first, second)))))
    after = store.publish(NOW + 1)
    assert (after.services is before.services) is not exported
    assert after.serial == NOW + exported


def test_ready_in_one_slice_is_ready() -> None:
    """While an endpoint moves from one slice to another, both may have it."""
    rows = [Endpoint((ip("10.0.0.1"),), pod="p0", ready=ready) for ready in (True, False)]
    store = Store()
    store.apply(Put(Service("shop", "web", headless=True)))
    for number, row in enumerate(rows):
        store.apply(Put(EndpointSlice("shop", f"web-{number}", "web", compact((row,)))))
    assert store.publish(NOW).unready == {}


SELECTING = Put(Service("shop", "web", headless=True, selects_pods=True))


def test_a_slice_is_found_once_its_pods_are_gone() -> None:
    """As long as the Service has a selector, whose slice does not list them."""
    first, second = (Endpoint((ip(f"10.0.0.{number}"),), pod=f"web-{number}") for number in (1, 2))
    pods = [Put(Pod("shop", f"web-{number}", (ip(f"10.0.0.{number}"),), "n0")) for number in (1, 2)]
    own = EndpointSlice("shop", "web-a", "web", compact((first,)), managed_by=SLICE_CONTROLLER)
    mirrored = EndpointSlice("shop", "web-b", "web", compact((first, second)), managed_by=MIRRORING_CONTROLLER)
    store = store_with()
    for delta in (Replace(Pod, []), SELECTING, Put(own), Put(mirrored), *pods):
        store.apply(delta)
    found = []
    for delta in (
        Put(own), Drop(Pod, "shop/web-2"), Put(replace(own, endpoints=compact((first, second)))), Put(own), pods[1],
        Drop(Pod, "shop/web-2"), Put(Service("shop", "web", headless=True)),
        SELECTING, Drop(EndpointSlice, own.key), Put(own),
        Drop(EndpointSlice, mirrored.key), Put(mirrored), Put(replace(mirrored, managed_by="")), Put(mirrored),
        Drop(Pod, "shop/web-1"),
    ):  # fmt: skip
        store.apply(delta)
        found.append("SliceLeftBehind" in [finding.code for finding in store.publish(NOW).findings])
    assert "".join(".x"[one] for one in found) == ".x.x.x.x.x.x.xx"


# Forwarders


OLD, NEW = ip("10.0.0.53"), ip("10.0.0.54")


def dns(
    *addresses: bytes,
    ready: bool = True,
    pod: str | None = "dns-1",
    pod_namespace: str | None = None,
    service: str = "dns",
) -> Put:
    rows = compact(
        Endpoint((address,), node="n0", ready=ready, pod=pod, pod_namespace=pod_namespace) for address in addresses
    )
    return Put(EndpointSlice("kube-system", "dns-x", service, rows))


def running(name: str, *, space: str = "kube-system", **more: Any) -> Put:
    return Put(Pod(space, name, (OLD,), "n0", created="2024", **more))


def told(name: str) -> Put:
    return Put(PodLocator("kube-system", name, (OLD,), "n0"))


def elsewhere(pod: str, *, kept: bool = True, **more: Any) -> Put:
    row = Endpoint((OLD,), node="n0", pod=pod, **more)
    return Put(EndpointSlice("shop", "y", "web", compact((row,)), managed_by=SLICE_CONTROLLER if kept else ""))


AFTER = GRACE_SECONDS
TRUST = [
    # id, options, what happens: (seconds, changes, whether OLD is trusted then)
    ("there", {}, [(0, [dns(OLD)], True), (100, [], True)]),
    ("not-ready", {}, [(0, [dns(OLD, ready=False)], True)]),
    ("left", {}, [(0, [dns(OLD)], True), (5, [dns(NEW)], True), (4 + AFTER, [], True), (5 + AFTER, [], False)]),
    ("slice-is-gone", {}, [(0, [dns(OLD)], True), (5, [Drop(EndpointSlice, "kube-system/dns-x")], True),
                           (5 + AFTER, [], False)]),
    ("moved-to-another-service", {}, [
        (0, [dns(OLD)], True),
        (5, [dns(OLD, service="other")], True),
        (5 + AFTER, [], False)]),
    ("came-back", {}, [(0, [dns(OLD)], True), (5, [dns(NEW)], True), (10, [dns(OLD)], True), (50, [], True),
                       (60, [dns(NEW)], True), (59 + AFTER, [], True), (60 + AFTER, [], False)]),
    ("own-pod-still-runs", {}, [(0, [dns(OLD), running("dns-1")], True), (5, [dns(NEW)], True),
                                (5 + AFTER, [], False)]),
    ("own-pod-in-another-namespace", {},
     [(0, [dns(OLD, pod_namespace="shop"), running("dns-1", space="shop")], True), (5, [dns(NEW)], True),
      (5 + AFTER, [], False)]),
    ("another-pod-has-it-already", {}, [(0, [dns(OLD)], True), (5, [dns(NEW), running("web-1")], False)]),
    ("another-pod-gets-it", {}, [(0, [dns(OLD)], True), (5, [dns(NEW)], True), (6, [running("web-1")], False),
                                 (7, [Drop(Pod, "kube-system/web-1")], False)]),
    ("a-pod-of-the-same-name-elsewhere", {}, [(0, [dns(OLD)], True), (5, [dns(NEW)], True),
                                              (6, [running("dns-1", space="shop")], False)]),
    ("another-pod-that-is-finished", {}, [(0, [dns(OLD)], True),
                                          (5, [dns(NEW), running("web-1", finished=True)], True)]),
    ("another-pod-on-the-nodes-network", {}, [(0, [dns(OLD)], True),
                                              (5, [dns(NEW), running("web-1", host_network=True)], True)]),
    ("another-pods-locator", {"pods": False, "pod_locators": True},
     [(0, [dns(OLD), told("dns-1")], True), (5, [dns(NEW)], True), (6, [told("web-1")], False)]),
    ("another-pods-endpoint", {"pods": False}, [(0, [dns(OLD)], True), (5, [dns(NEW)], True),
                                                (6, [elsewhere("web-1")], False)]),
    ("another-pods-endpoint-of-somebody", {"pods": False},
     [(0, [dns(OLD)], True), (5, [dns(NEW)], True), (6, [elsewhere("web-1", kept=False)], True)]),
    ("another-pods-endpoint-not-ready", {"pods": False}, [(0, [dns(OLD)], True), (5, [dns(NEW)], True),
                                                          (6, [elsewhere("web-1", ready=False)], True)]),
    ("no-pod-is-named", {}, [(0, [dns(OLD, pod=None)], True), (5, [dns(NEW, pod=None)], True),
                             (6, [running("web-1")], False)]),
    ("while-it-is-there-another-pod-matters-not", {}, [(0, [dns(OLD), running("web-1")], True)]),
    ("configured", {"forwarders": [parse_network("10.0.0.0/24")]},
     [(0, [dns(OLD)], True), (5, [dns(NEW), running("web-1")], True), (5 + AFTER, [], True)]),
    ("another-service", {}, [(0, [elsewhere("web-1")], False)]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "moments"), [row[1:] for row in TRUST], ids=[row[0] for row in TRUST])
def test_trust_in_who_left(options: dict[str, Any], moments: list[tuple[int, list[Delta], bool]]) -> None:
    """A forwarder that shuts down is trusted for a while, unless another pod has its address."""
    store = Store(StoreOptions(forwarder_services=[DNS], **options))
    store.apply(SELECTING)
    for seconds, changes, trusted in moments:
        for change in changes:
            store.apply(change)
        assert (seconds, store.publish(NOW + seconds).addresses.source(OLD).forwarder) == (seconds, trusted)


def labelled_dns(label: str | None, name: str = "coredns") -> Put:
    """Return the Service of DNS servers, with a value of the label that makes it one of forwarders."""
    labels = {} if label is None else {"k8s-app": label}
    return Put(Service("kube-system", name, cluster_ips=(ip("10.96.0.10"),), labels=labels))


COREDNS = Put(EndpointSlice("kube-system", "x", "coredns", compact((Endpoint((OLD,), pod="coredns-1"),))))
LABELLED = [
    # id, what happens when (s), and whether the endpoint is trusted then
    ("from-the-start", [(0, [labelled_dns("kube-dns"), COREDNS], True)]),
    ("gained", [(0, [labelled_dns(None), COREDNS], False), (5, [labelled_dns("kube-dns")], True)]),
    ("before-its-slices", [(0, [labelled_dns("kube-dns")], False), (5, [COREDNS], True)]),
    ("lost", [(0, [labelled_dns("kube-dns"), COREDNS], True), (5, [labelled_dns("coredns")], True),
              (5 + GRACE_SECONDS, [], False)]),
    ("lost-and-gained", [(0, [labelled_dns("kube-dns"), COREDNS], True), (5, [labelled_dns(None)], True),
                         (9, [labelled_dns("kube-dns")], True), (5 + GRACE_SECONDS, [], True)]),
    ("gone", [(0, [labelled_dns("kube-dns"), COREDNS], True), (5, [Drop(Service, "kube-system/coredns")], True),
              (5 + GRACE_SECONDS, [], False)]),
    ("another-change-of-it", [(0, [labelled_dns("kube-dns"), COREDNS], True),
                              (5, [Put(Service("kube-system", "coredns", labels={"k8s-app": "kube-dns", "v": "2"}))],
                               True), (5 + GRACE_SECONDS, [], True)]),
]  # fmt: skip


@pytest.mark.parametrize("moments", [row[1] for row in LABELLED], ids=[row[0] for row in LABELLED])
def test_trust_by_a_services_label(moments: list[tuple[int, list[Delta], bool]]) -> None:
    """The label makes a Service's endpoints trusted; without it, trust ends after the grace period."""
    store = Store(StoreOptions(forwarder_services=None))
    for seconds, changes, trusted in moments:
        visible = [store.apply(change) for change in changes]
        assert all(visible), "what changes trust is to be published"
        assert (seconds, store.publish(NOW + seconds).addresses.source(OLD).forwarder) == (seconds, trusted)


def test_when_a_publication_is_due() -> None:
    """A publication is due when trust ends by time; otherwise none is."""
    store = Store(StoreOptions(forwarder_services=[DNS]))
    store.apply(dns(OLD))
    first = store.publish(NOW)
    assert store.due is None
    store.apply(dns(NEW))
    second = store.publish(NOW + 7)
    assert store.due == NOW + 7 + GRACE_SECONDS
    assert first.addresses.source(OLD).forwarder and second.addresses.source(OLD).forwarder
    assert store.publish(NOW + 8) is second
    last = store.publish(int(store.due))
    assert last is not second and not last.addresses.source(OLD).forwarder and store.due is None
    assert last.serial == NOW + 7 + GRACE_SECONDS
    assert second.addresses.source(OLD).forwarder  # what was published stays as it was


@steady
@given(
    events=history,
    dns_events=st.lists(
        st.sampled_from([dns(OLD), dns(NEW), dns(), running("web-1"), Drop(Pod, "kube-system/web-1")]), max_size=8
    ),
)
def test_trust_never_outlives_its_reason(events: list[Any], dns_events: list[Any]) -> None:
    """Trusted are the addresses in the slices, and those that left within the grace period."""
    store, state, now, left = store_with(), State(), float(NOW), dict[bytes, float]()
    present: set[bytes] = set()
    mixed = zip(events, [*dns_events, *[PUBLISH] * 40], strict=False)
    for number, event in enumerate([each for pair in mixed for each in pair]):
        if event != PUBLISH:
            store.apply(event)
            state.apply(event)
            continue
        now += 7 * (number % 3)
        book = store.publish(now).addresses
        every: list[Any] = [*state.objects[EndpointSlice].values()]
        rows = [row for each in every if each.service_key == DNS for row in each.endpoints]
        before, present = present, {address for row in rows for address in row.addresses}
        left |= dict.fromkeys(before - present, now)
        for address in {*ADDRESSES, OLD, NEW}:
            trusted = book.source(address).forwarder
            if address in present:
                assert trusted
            elif trusted:
                assert now < left[address] + GRACE_SECONDS


def test_a_block_within_another_changes_what_speaks_for_the_outer_one() -> None:
    """An endpoint is evidence for the longest trusted pod CIDR around it."""
    store = Store(StoreOptions(pods=False))
    store.apply(SELECTING)
    for name, cidr in (("n1", "10.0.0.0/24"), ("n2", "10.0.0.0/16")):
        store.apply(Put(Node(name, canonical(name, {ZONE: "a"}), (), (parse_network(cidr),))))
    for number in range(1, 9):  # honest in the inner block
        row = Endpoint((ip(f"10.0.0.{number}"),), node="n1")
        store.apply(Put(EndpointSlice("shop", f"x{number}", "web", compact((row,)), managed_by=SLICE_CONTROLLER)))
    for _ in range(2):
        first = store.publish(NOW).addresses
        assert (first.distrusted_cidrs, first.locate(ip("10.0.9.9")).located_by) == (0, "podcidr")
        other = Endpoint((ip("10.0.0.200"),), node="n2")
        store.apply(Put(EndpointSlice("shop", "y", "web", compact((other,)), managed_by=SLICE_CONTROLLER)))
        second = store.publish(NOW).addresses
        assert (second.distrusted_cidrs, second.locate(ip("10.0.9.9")).located_by) == (2, "unknown")
        store.apply(Drop(EndpointSlice, "shop/y"))


def test_a_forwarder_that_nobody_holds_is_where_its_block_is() -> None:
    """A forwarder's address that is named as a client is located by the nodes' pod CIDRs."""
    store = Store(StoreOptions(forwarder_services=[DNS]))
    store.apply(Put(EndpointSlice("kube-system", "x", "dns", compact((Endpoint((OLD,)),)))))
    for zone in (None, "a", "b", None):
        node = Node("n0", canonical("n0", {ZONE: zone or ""}), (), (CIDRS[0],))
        store.apply(Drop(Node, "n0") if zone is None else Put(node))
        place = store.publish(NOW).addresses.locate(OLD)
        assert (place.forwarder, place.location.value(ZONE)) == (True, zone)


# PodLocators


def tells(node: str | None, zone: str, *addresses: str, name: str = "p0") -> Put:
    own = canonical(node, {ZONE: zone} if zone else {})
    return Put(PodLocator("shop", name, tuple(map(ip, addresses)), node, own))


def on(node: str, zone: str) -> Put:
    return Put(Node(node, canonical(node, {ZONE: zone})))


def is_on(node: str | None, name: str = "p0", **more: Any) -> Put:
    return Put(Pod("shop", name, (ip("10.0.0.1"),), node, created="2024", **more))


def behind(node: str | None, word: str = "", pod: str | None = "p0") -> Put:
    row = Endpoint((ip("10.0.0.1"),), node=node, slice_labels={ZONE: word} if word else {}, pod=pod)
    return Put(EndpointSlice("shop", "x", "web", compact((row,)), managed_by=SLICE_CONTROLLER))


ALL: dict[str, Any] = {"pod_locators": True}
ALONE: dict[str, Any] = {"pods": False, "nodes": False, "pod_locators": True}
BESIDE_NODES: dict[str, Any] = {"pods": False, "pod_locators": True}
BESIDE_PODS: dict[str, Any] = {"nodes": False, "pod_locators": True}
PRECEDENCE = [
    # id, options, changes, by what the client is located, its zone, the endpoint's zone
    ("alone", ALONE, [tells("n0", "a", "10.0.0.1"), behind("n0", "w")], "podlocator", "a", "a"),
    ("alone-pods-and-nodes-say-nothing", ALONE,
     [tells("n0", "a", "10.0.0.1"), on("n0", "b"), is_on("n1"), behind("n0")], "podlocator", "a", "a"),
    ("not-watched", {}, [tells("n0", "a", "10.0.0.1")], "unknown", None, None),
    ("of-a-finished-pod", ALONE, [tells("n0", "a"), behind("n0", "w")], "endpoint", "a", "a"),
    ("whose-node-is-gone", ALONE, [tells(None, "", "10.0.0.1"), behind("n0", "w")], "podlocator", None, "w"),
    ("of-nobody", ALONE, [behind("n0", "w")], "endpoint", "w", "w"),
    ("of-another-pod", ALONE, [tells("n0", "a", "10.0.0.2", name="p1"), behind("n0", "w")], "endpoint", "w", "w"),
    ("endpoint-without-a-pod", ALONE, [tells("n0", "a", "10.0.0.1"), behind("n0", "w", pod=None)],
     "podlocator", "a", "w"),
    ("beside-a-known-node", BESIDE_NODES, [tells("n0", "a", "10.0.0.1"), on("n0", "b"), behind("n0")],
     "podlocator", "b", "b"),
    ("beside-an-unknown-node", BESIDE_NODES, [tells("n0", "a", "10.0.0.1"), behind("n0", "w")], "podlocator", "a", "a"),
    ("live-pod-first", ALL, [tells("n0", "a", "10.0.0.1"), on("n1", "b"), is_on("n1"), behind("n1")], "pod", "b", "b"),
    ("another-live-pod-first", ALL,
     [tells("n0", "a", "10.0.0.1"), on("n1", "b"), is_on("n1", "p9"), behind("n1", pod="p9")], "pod", "b", "b"),
    ("pod-that-is-finished", ALL, [tells("n0", "a", "10.0.0.1"), is_on("n0", finished=True)], "unknown", None, None),
    ("pod-on-its-nodes-network", ALL, [tells("n0", "a", "10.0.0.1"), on("n0", "b"), is_on("n0", host_network=True)],
     "node", "b", None),
    ("live-pod-whose-node-only-the-locator-knows", BESIDE_PODS, [tells("n0", "a", "10.0.0.1"), is_on("n0")],
     "podlocator", "a", None),
    ("live-pod-on-another-node-than-told", BESIDE_PODS, [tells("n0", "a", "10.0.0.1"), is_on("n1")], "pod", None, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "changes", "located_by", "zone", "endpoint_zone"),
    [row[1:] for row in PRECEDENCE],
    ids=[row[0] for row in PRECEDENCE],
)
def test_precedence(
    options: dict[str, Any], changes: list[Put], located_by: str, zone: str | None, endpoint_zone: str | None
) -> None:
    """For clients the running pod, then its PodLocator; for endpoints the Node, then the PodLocator, then the slice."""
    for order in (changes, changes[::-1]):
        store = Store(StoreOptions(**options))
        store.apply(SELECTING)
        for change in order:
            store.apply(change)
            store.publish(NOW)
        snapshot = store.publish(NOW)
        place = snapshot.addresses.locate(ip("10.0.0.1"))
        assert (place.located_by, place.location.value(ZONE)) == (located_by, zone)
        found = [row.location.value(ZONE) for row in snapshot.services["shop/web"].endpoints]
        assert found == ([endpoint_zone] if any(type(delta.object) is EndpointSlice for delta in changes) else [])


def test_equal_locations_are_one() -> None:
    """All pods of a node share one location object, whatever located them."""
    store = Store(StoreOptions(**ALONE))
    for number in range(1, 9):
        store.apply(tells(f"n{number % 2}", "a", f"10.0.0.{number}", name=f"p{number}"))
    book = store.publish(NOW).addresses
    assert len({id(book.locate(ip(f"10.0.0.{number}")).location) for number in range(1, 9)}) == 2
    assert len({id(obj.labels) for obj in store.all_objects() if isinstance(obj, PodLocator)}) == 2


def test_one_string_for_the_key_of_a_service() -> None:
    """Addresses that join a Service later do not each bring a copy of its key: the memory would grow with them."""
    store, addresses = Store(), [ip(f"10.0.0.{number}") for number in range(1, 4)]
    store.apply(Put(Service("shop", "web", headless=True)))
    for count in range(1, 4):
        endpoints = compact([Endpoint((address,), node="n0") for address in addresses[:count]])
        store.apply(Put(EndpointSlice("shop", "x", "web", endpoints)))
        snapshot = store.publish(NOW)
    keys = [snapshot.service_addresses.get(address) for address in addresses]
    assert keys[0] == "shop/web" and keys[0] is keys[1] is keys[2]


def test_kinds() -> None:
    """Kinds that make no difference are not watched; those that limit or name Services always are."""
    always = {Namespace, Service, ServicePolicy, EndpointSlice}
    rows: list[tuple[dict[str, Any], set[Any]]] = [
        ({}, {Pod, Node}),
        (ALONE, {PodLocator}),
        (BESIDE_NODES, {PodLocator, Node}),
        ({"pods": False, "nodes": False}, set()),
        ({"pods": False, "nodes": False, "pod_names": True}, {Pod}),
        ({"exports": True}, {Pod, Node, ServiceExport, ServiceHealth}),
        ({"imports": True}, {Pod, Node, ServiceImport}),
    ]
    for options, more in rows:
        assert set(Store(StoreOptions(**options)).kinds) == always | more
