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
    ("finished-pod", Put(Pod("shop", "p9", (ip("10.0.0.9"),), "n0", phase="Succeeded"))),
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
    """The snapshot has them, and another one of them changes no answer."""
    ready, unready = Endpoint((ip("10.0.0.1"),), node="n0"), Endpoint((ip("10.0.0.2"),), node="n0", ready=False)
    store = Store()
    store.apply(Put(Service("shop", "web", headless=True)))
    store.apply(Put(EndpointSlice("shop", "web-1", "web", compact((ready, unready)))))
    first = store.publish(NOW)
    assert [row.endpoint for row in first.unready["shop/web"]] == [unready]
    other = replace(unready, hostname="web-1")
    store.apply(Put(EndpointSlice("shop", "web-1", "web", compact((ready, other)))))
    second = store.publish(NOW + 1)
    assert [row.endpoint for row in second.unready["shop/web"]] == [other]
    assert second.services is first.services and second.serial == first.serial == NOW


@pytest.mark.parametrize("change", [{"deleting": True}, {"managed_by": ""}], ids=str)
def test_a_slice_that_no_controller_keeps_any_more_locates_nobody(change: dict[str, Any]) -> None:
    """Though it has the same endpoints as before; and again once it is kept."""
    address, store = ip("10.0.0.1"), Store()
    kept = EndpointSlice("shop", "x", "web", compact([Endpoint((address,), node="n0")]), managed_by=SLICE_CONTROLLER)
    for item in (Service("shop", "web", headless=True, selects_pods=True), Node("n0", canonical("n0", {ZONE: "a"}))):
        store.apply(Put(item))
    for item, located_by in ((kept, "endpoint"), (replace(kept, **change), "unknown"), (kept, "endpoint")):
        store.apply(Put(item))
        assert store.publish(NOW).addresses.locate(address).located_by == located_by


def test_an_endpoint_may_change_where_it_is() -> None:
    """Its location stays, and yet its Service is another one."""
    store = Store()
    store.apply(Put(Service("shop", "web", headless=True)))
    for address in (ip("10.0.0.1"), ip("10.0.0.2")):
        rows = compact([Endpoint((address,), node="n0")])
        store.apply(Put(EndpointSlice("shop", "x", "web", rows)))
        (found,) = store.publish(NOW).services["shop/web"].endpoints
        assert found.endpoint.addresses == (address,)


def test_a_pod_locator_whose_node_is_gone_says_nothing_of_an_endpoint() -> None:
    """Its slice does, then."""
    store = Store(StoreOptions(pods=False, nodes=False, pod_locators=True))
    rows = compact([Endpoint((ip("10.0.0.1"),), node="n0", slice_labels={ZONE: "w"}, pod="p0")])
    for item in (
        *(Service("shop", "web", headless=True), EndpointSlice("shop", "x", "web", rows)),
        PodLocator("shop", "p0", (ip("10.0.0.1"),)),
    ):
        store.apply(Put(item))
    (found,) = store.publish(NOW).services["shop/web"].endpoints
    assert found.location.value(ZONE) == "w"


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


def test_equal_locations_are_one() -> None:
    """All pods of a node share one location object, whatever located them."""
    store = Store(StoreOptions(pods=False, nodes=False, pod_locators=True))
    for number in range(1, 9):
        node = f"n{number % 2}"
        labels = canonical(node, {ZONE: "a"})
        store.apply(Put(PodLocator("shop", f"p{number}", (ip(f"10.0.0.{number}"),), node, labels)))
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
        ({"pods": False, "nodes": False, "pod_locators": True}, {PodLocator}),
        ({"pods": False, "pod_locators": True}, {PodLocator, Node}),
        ({"pods": False, "nodes": False}, set()),
        ({"pods": False, "nodes": False, "pod_names": True}, {Pod}),
        ({"exports": True}, {Pod, Node, ServiceExport, ServiceHealth}),
        ({"imports": True}, {Pod, Node, ServiceImport}),
    ]
    for options, more in rows:
        assert set(Store(StoreOptions(**options)).kinds) == always | more
