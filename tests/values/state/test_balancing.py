# SPDX-License-Identifier: Apache-2.0

"""Balanced Services while not everything is known that they ask for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dnsserver.programs.from_settings import store_of
from locator.api.deltas import Put, Replace
from locator.model import ZONE, ClientPod, Pod
from locator.topology.annotations import CLIENTS
from tests.kit.api_objects import Item, endpoint, endpoint_slice
from tests.kit.crowded_zone import MADE, balanced, crowded
from tests.kit.in_memory import NOW, dump_of, read_again, replaced, settings_of, snapshot_of

HERE = [endpoint(f"10.0.0.{number}", nodeName=name) for number, name in enumerate(MADE)]
BY_LABEL = {CLIENTS: "shop/app=front"}
ON = balanced(f"{ZONE},*", annotations=BY_LABEL)


def with_endpoints(keys: str, endpoints: Sequence[Item]) -> list[Item]:
    cluster = crowded(balanced(keys, annotations=BY_LABEL))
    return [*cluster[:-1], endpoint_slice("web", 1, endpoints)]


@pytest.mark.parametrize("keys", [f"{ZONE},*", ZONE], ids=["soft", "hard"])
@pytest.mark.parametrize("left", [4, 3, 1, 0])
def test_a_restart_before_labels_are_read(keys: str, left: int) -> None:
    """A plan goes on if the endpoints are still the same. With others there is none until it is known who asks."""
    saved = snapshot_of(with_endpoints(keys, HERE))
    before, now = saved.services["shop/web"], with_endpoints(keys, HERE[-left:] if left else [])
    assert before.plans and saved.balances
    store, objects = store_of(settings_of()), dump_of(now).objects
    store.start_from(read_again(saved))
    bare = [one for one in objects if not isinstance(one, Pod)]
    pods = [one for one in objects if isinstance(one, ClientPod)]
    for delta in replaced(bare):
        store.apply(delta)
    store.apply(Replace(Pod, [Pod(one.namespace, one.name, one.addresses, one.node) for one in pods]))
    after = store.publish(NOW + 1)
    assert after.services["shop/web"].plans == (before.plans if left == 4 else ())
    assert after.balances == (saved.balances if left == 4 else {})
    store.apply(Replace(Pod, pods, labels=store.wanted_labels))
    known, expected = store.publish(NOW + 2), snapshot_of(now)
    assert known.services["shop/web"].plans == expected.services["shop/web"].plans
    assert known.balances == expected.balances


def test_without_endpoint_records() -> None:
    """Nothing is balanced where no name of a headless Service is answered, though other clusters ask where it is."""
    flags = {"no-endpoints": True, "federation": ["clusterset.local"], "cluster-name": "east"}
    service = balanced(None, trafficDistribution="PreferClose", annotations={"topodns.io/federated": "true"})
    snapshot = snapshot_of(crowded(service, hints=True), flags)
    assert not snapshot.balances and not snapshot.services["shop/web"].plans


def test_a_service_that_asks_again_and_again() -> None:
    """Who asks is not counted anew each time, but kept for a while. Later it is forgotten, and so are its labels."""
    on, off = (snapshot_of([found]).services["shop/web"].service for found in (ON, balanced(f"{ZONE},*")))
    store, wanted = store_of(settings_of()), list[frozenset[str]]()
    for delta in replaced(dump_of(crowded(ON)).objects):
        store.apply(delta)
    for seconds, service in enumerate((on, off, on, off, on, off)):
        store.apply(Put(service))
        store.publish(NOW + seconds)
        wanted.append(store.wanted_labels)
    assert wanted == [{"app"}, set(), *[{"app"}] * 4]
    store.apply(Put(replace(off, created="2024-01-01T00:00:00Z")))
    store.publish(NOW + 100)
    assert store.wanted_labels == set()
    for number in range(100):  # each time for others
        store.apply(Put(replace(on, annotations={**on.annotations, CLIENTS: f"shop/label-{number}"})))
        store.publish(NOW + 101)
        assert len(store.wanted_labels) <= 10
