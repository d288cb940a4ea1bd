# SPDX-License-Identifier: Apache-2.0

"""A store: what it keeps over a restart, what it need not publish, and which source locates a client."""

from __future__ import annotations

import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace

from locator.api.deltas import Delta, Drop, Put, Replace
from locator.endpoints import compact
from locator.ip import parse_network
from locator.labels import Selector, parse_selector
from locator.model import (
    KINDS,
    MIRRORING_CONTROLLER,
    SLICE_CONTROLLER,
    ZONE,
    Endpoint,
    EndpointSlice,
    HealthEntry,
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
)
from locator.state.snapshot import CompiledService
from locator.state.store import Store, StoreOptions
from locator.topology.constraints import REQUIRED
from locator.topology.scope import Scope
from tests.kit.in_memory import NOW, read_again
from tests.kit.store_histories import CIDRS, DNS, SUBNETS, canonical, ip, store_with


def test_unknown_is_no_kept_location() -> None:
    """An object without a node is somewhere, even if it has no label; a forwarder that nothing locates is not."""
    far = ip("203.0.113.9")
    before = store_with()
    before.apply(Put(EndpointSlice("kube-system", "dns-x", "dns", compact((Endpoint((far,)),)))))
    kept = before.publish(NOW)
    assert not kept.addresses.source(far).location.known
    store = store_with()
    store.start_from(read_again(kept))
    store.apply(Put(Pod("shop", "p9", (ip("10.0.0.54"),), None)))
    assert store.publish(NOW).addresses.source(ip("10.0.0.54")).location.known


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


SETTINGS: list[dict[str, Any]] = [
    {},
    {"subnets": SUBNETS},
    {"subnets": {**SUBNETS, parse_network("10.0.0.0/12"): {ZONE: "c"}}},
    {"forwarders": [parse_network("10.0.1.0/24")]},
    {"forwarder_services": [DNS]},
    *({option: False} for option in ("pods", "nodes", "endpoint_records", "honor_kubernetes")),
    *({option: True} for option in ("pod_locators", "pod_names")),
    {"pod_names": True, "pods": False},
    {"scope": Scope(frozenset(("shop", "lab", "a", "b")))},
    {"scope": Scope(namespace_selector=parse_selector("team=a"))},
    {"scope": Scope(service_selector=parse_selector("team=a"))},
    {"default_keys": {"topo.local": ("rack", ZONE)}},
]


def test_stores_with_other_settings_are_told_apart() -> None:
    """A snapshot that was kept with other settings would give other answers."""
    texts, again = ([Store(StoreOptions(**options)).settings for options in SETTINGS] for _ in range(2))
    assert len(set(texts)) == len(texts) and texts == again


def test_what_other_settings_need_is_kept() -> None:
    """After a restart with a namespace selector, the objects that a store without one kept must do."""
    store = store_with()
    store.apply(Put(Namespace("shop", {"team": "a"})))
    store.apply(Put(Namespace("lab", {"team": "b"})))
    other = store_with(scope=Scope(namespace_selector=parse_selector("team=a")))
    for item in store.all_objects():
        other.apply(Put(item))
    assert other.publish(NOW).namespaces == {"shop"}


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
