# SPDX-License-Identifier: Apache-2.0

"""After changes, also after a restart between them, a store says what a new store says of the same objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dnsserver.programs.from_settings import store_of
from locator.api.deltas import Drop, Put, Replace
from locator.ip import address_text, host_network, parse_address
from locator.model import HOSTNAME, Finding, Pod
from locator.state.snapshot import Snapshot
from locator.state.store import Store
from tests.kit import api_objects
from tests.kit.api_objects import SLICE_CONTROLLER, ZONE, Item, endpoint, endpoint_slice, pod, pod_locator, service
from tests.kit.in_memory import NOW, dump_of, settings_of, take_in

A, A6, B, C = "10.0.1.9", "fd00::9", "10.0.2.9", "10.9.9.9"
RACK = "example.com/rack"
POD = {"kind": "Pod", "name": "p"}
DYING, LIVE = {"ready": True, "terminating": True}, {"ready": True}


def node(name: str, zone: str | None, *, cidrs: Sequence[str] = (), **labels: str) -> Item:
    return api_objects.node(name, {HOSTNAME: name, **({ZONE: zone} if zone else {}), **labels}, cidrs=cidrs)


def kept(number: int, *rows: Item, owner: str = "w", family: str = "IPv4", by: str | None = SLICE_CONTROLLER) -> Item:
    return endpoint_slice(owner, number, rows, family=family, by=by)


def with_conditions(address: str, conditions: dict[str, bool], **more: Any) -> Item:
    return {"addresses": [address], "conditions": conditions, **more}


W, OWN = service("w", keys=ZONE, selects=True), service("own", keys=ZONE)
A1, B1, V = node("a1", "a", cidrs=["10.0.1.0/24"]), node("b1", "b", cidrs=["10.0.2.0/24"]), node("v", None)
BY_SUBNET = {"subnet": [f"fd00::/64={ZONE}=s", f"10.0.2.0/24={ZONE}=t"]}
NODES_ONLY = {"client-source": "nodes"}
DUAL = pod("p", [A, A6], "v")
OF_POD = endpoint(A, nodeName="v", targetRef=POD)
CHANGES = [
    # id, objects, settings, objects that come or change, objects that go
    ("target-of-an-endpoint-on-an-unknown-node", [A1, B1, W, kept(2, endpoint(B, nodeName="b1"))], NODES_ONLY,
     [kept(1, endpoint(A, nodeName="gone", targetRef={"kind": "Node", "name": "b1"}))], []),
    ("pod-cidr-goes-while-nothing-has-a-place", [A1, W, kept(1, endpoint(A, nodeName="gone", zone="z"))], {},
     [node("a1", "a")], []),
    ("pod-finishes", [V, OWN, DUAL, kept(1, OF_POD, owner="own", by=None)], BY_SUBNET,
     [pod("p", [A, A6], "v", phase="Succeeded")], []),
    ("pods-come-last", [V, OWN, kept(1, OF_POD, owner="own", by=None)], BY_SUBNET, [DUAL], []),
    ("pod-leaves-an-address-of-the-living",
     [A1, B1, OWN, kept(1, with_conditions(C, DYING), owner="own"),
      kept(2, with_conditions(C, LIVE, nodeName="b1"), owner="own"), pod("q", [C], "a1")], {},
     [], [pod("q", [C], "a1")]),
    ("living-leaves-the-dying",
     [A1, OWN, kept(1, with_conditions(C, DYING), owner="own"),
      kept(2, with_conditions(C, LIVE, nodeName="a1"), owner="own")], {},
     [], [kept(2, with_conditions(C, LIVE, nodeName="a1"), owner="own")]),
    ("node-loses-the-only-key", [node("a1", "a", **{RACK: "1"}), service("own", keys=RACK), pod("p", [A], "a1")], {},
     [node("a1", "a")], []),
    ("node-goes-whose-pod-locator-has-its-labels",
     [node("a1", "a", **{RACK: "1"}), node("b1", "b"), service("own", keys=RACK),
      pod_locator("p", "shop", [A], nodeName="a1", nodeLabels={HOSTNAME: "a1", ZONE: "a", RACK: "1"})],
     {"client-source": "podlocators,nodes"}, [], [node("a1", "a", **{RACK: "1"})]),
    ("node-has-another-value", [node("a1", "a", **{RACK: "1"}), service("own", keys=RACK), pod("p", [A], "a1")], {},
     [node("a1", "a", **{RACK: "2"})], []),
    ("kept-slice-is-deleted-and-stays", [A1, B1, W, kept(1, endpoint(A, nodeName="b1"))], NODES_ONLY,
     [{**kept(1, endpoint(A, nodeName="b1")),
       "metadata": {**kept(1)["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}], []),
    ("second-address-of-a-kept-pod-comes", [V, W, kept(1, OF_POD)], {**BY_SUBNET, **NODES_ONLY},
     [kept(2, endpoint(A6, nodeName="v", targetRef=POD), family="IPv6")], []),
    ("second-address-of-a-kept-pod-goes",
     [V, W, kept(1, OF_POD), kept(2, endpoint(A6, nodeName="v", targetRef=POD), family="IPv6")],
     {**BY_SUBNET, **NODES_ONLY}, [], [kept(2, endpoint(A6, nodeName="v", targetRef=POD), family="IPv6")]),
]  # fmt: skip


def said(snapshot: Snapshot) -> tuple[dict[str, Any], dict[str, Any], list[Finding]]:
    """Return where everything is, and what is found."""
    places, located = {}, {}
    for address in map(parse_address, (A, A6, B, C, "10.0.1.77")):
        place, holder = snapshot.addresses.locate(address), snapshot.addresses.holder(host_network(address))
        places[address_text(address)] = (place.location.labels, place.located_by, place.block, holder)
    for key, compiled in snapshot.services.items():
        located[key] = [(row.endpoint, row.location.labels) for row in compiled.endpoints]
    return places, located, sorted(snapshot.findings, key=str)


def stored(items: Sequence[Item], flags: dict[str, Any]) -> Store:
    store = store_of(settings_of(flags))
    take_in(store, dump_of(items).objects)
    return store


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
@pytest.mark.parametrize(
    ("items", "flags", "come", "go"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES]
)
def test_changes_end_where_a_new_store_begins(
    items: list[Item], flags: dict[str, Any], come: list[Item], go: list[Item], *, restart: bool
) -> None:
    """The order of changes makes no difference."""
    store = stored(items, flags)
    snapshot = store.publish(NOW)
    if restart:
        store = store_of(settings_of(flags))
        store.start_from(snapshot)
        take_in(store, dump_of(items).objects)
        store.publish(NOW)
    for changed in dump_of(come).objects if come else ():
        whole = isinstance(changed, Pod) and not store.objects(Pod)
        store.apply(Replace(Pod, [changed]) if whole else Put(changed))
    for gone in dump_of(go).objects if go else ():
        store.apply(Drop(type(gone), gone.key))
    names = {(item["kind"], item["metadata"]["name"]) for item in (*come, *go)}
    rest = [item for item in items if (item["kind"], item["metadata"]["name"]) not in names]
    assert said(store.publish(NOW + 1)) == said(stored([*rest, *come], flags).publish(NOW + 1))
