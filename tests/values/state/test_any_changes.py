# SPDX-License-Identifier: Apache-2.0

"""A changing cluster: after any changes, the snapshot equals one of the final state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.api.deltas import Delta, Put, Replace
from locator.model import (
    KINDS,
    ZONE,
    EndpointSlice,
    Namespace,
    Node,
    Pod,
    PodLocator,
    Service,
    ServiceExport,
    ServiceImport,
    ServicePolicy,
    kind_of,
)
from locator.state.snapshot import Snapshot, answers_differ
from tests.kit.balanced_histories import BalancedHistory
from tests.kit.in_memory import NOW, read_again
from tests.kit.store_histories import (
    FOREVER,
    PUBLISH,
    STORES,
    State,
    content_of,
    history,
    history_of_blocks,
    history_of_dns,
    history_of_unlocated,
    holders,
    steady,
    store_with,
)

# Who counts as a client: pods, nodes, PodLocators where no Node is read and where some are.
BALANCING: list[dict[str, Any]] = [
    {},
    {"default_keys": {"topo.local": ("rack", ZONE), "near.local": (ZONE, "*")}},
    {"endpoint_records": False},
    {"pods": False},
    {"pods": False, "nodes": False, "pod_locators": True},
    {"pods": False, "pod_locators": True},
    {"pod_locators": True},
]
HISTORIES = {
    "of-all": st.tuples(st.sampled_from(STORES), history),
    "of-blocks": st.tuples(st.sampled_from(({}, {"pods": False})), history_of_blocks),
    "of-endpoints-that-nothing-locates": st.tuples(
        st.sampled_from(({"subnets": None}, {"subnets": None, "endpoint_records": False})), history_of_unlocated
    ),
    "of-balanced-services": st.tuples(
        st.sampled_from(BALANCING), st.integers(0, 10**9).map(lambda seed: BalancedHistory(seed).events)
    ),
    "of-the-clusters-dns": st.tuples(st.just({"forwarder_services": None}), history_of_dns),
}


@pytest.mark.parametrize("histories", HISTORIES.values(), ids=HISTORIES)
@steady
@given(data=st.data(), backwards=st.booleans())
def test_any_events_end_in_the_snapshot_of_the_final_state(
    histories: st.SearchStrategy[tuple[dict[str, Any], list[Any]]], data: st.DataObject, backwards: bool
) -> None:
    """In any order, with snapshots in between or not; a published snapshot never changes."""
    options, events = data.draw(histories)
    store, state, now, published = store_with(**options), State(), NOW, list[tuple[Snapshot, dict[str, Any]]]()
    store.apply(Replace(Pod, []))  # from a cluster: what is not listed does not exist
    for event in events:
        if event == PUBLISH:
            now += 10
            published.append(((snapshot := store.publish(now)), content_of(snapshot)))
        elif (event.kind if not isinstance(event, Put) else kind_of(event.object)) in store.kinds:
            store.apply(state.apply(event))
    store.publish(now + 1)  # who left since is trusted for a while from here on
    if not store.wanted_labels <= state.read:
        store.apply(state.listed(Pod, store.wanted_labels))
    last = store.publish(FOREVER)
    fresh = state.fresh(options, backwards=backwards)
    expected = fresh.publish(FOREVER)
    assert content_of(last) == content_of(expected)
    assert holders(last) == holders(expected)
    assert [*store.advice()] == [*fresh.advice()]
    assert store.publish(FOREVER) is last
    assert store.due is None
    for kept in (last, *(snapshot for snapshot, _ in published[:1])):
        restarted = state.fresh(options, kept=kept)
        after = restarted.publish(FOREVER)
        assert content_of(after) == content_of(expected)
        assert holders(after) == holders(expected)
        assert restarted.publish(FOREVER + 1) is after
    for snapshot, before in published:
        again = content_of(snapshot)
        assert again == before


def concerned(changes: Iterable[Delta], before: Snapshot, after: Snapshot) -> set[str]:
    """Return the Services that some deltas may affect, by the names in them."""
    names, keys, spaces = set[str](), set[str](), set[str]()
    for change in changes:
        if isinstance(change, Replace):
            return {*before.services, *after.services}
        kind = kind_of(change.object) if isinstance(change, Put) else change.kind
        key = change.object.key if isinstance(change, Put) else change.key
        if kind in (Namespace, ServicePolicy):
            spaces.add(key.partition("/")[0])
        elif kind in (Node, PodLocator):
            names.add(key.rpartition("/")[2])
        elif kind in (Service, ServiceExport, ServiceImport):
            keys.add(key)
        elif kind is EndpointSlice:  # it may have been another Service's
            spaces.add(key.partition("/")[0])
    return {
        key
        for snapshot in (before, after)
        for key, service in snapshot.services.items()
        if key in keys
        or service.service.namespace in spaces
        or any(
            row.endpoint.node in names or row.endpoint.pod in names
            for row in (*service.endpoints, *snapshot.unready.get(key, ()))
        )
    }


@steady
@given(options=st.sampled_from(STORES), events=history)
def test_a_kept_snapshot_goes_on(options: dict[str, Any], events: list[Any]) -> None:
    """Nothing of it is made anew if the objects are still the same, so no answer is forgotten."""
    state = State()
    for event in events:
        if event != PUBLISH and (event.kind if not isinstance(event, Put) else kind_of(event.object)) in KINDS:
            state.apply(event)
    kept = state.fresh(options).publish(NOW)
    store = store_with(**options)
    before = store.start_from(read_again(kept))
    assert content_of(before) == content_of(kept)
    for kind in store.kinds:
        store.apply(state.listed(kind))
    after = store.publish(NOW + 60)
    assert after.services is before.services and after.unready is before.unready
    assert after.pod_namespaces is before.pod_namespaces
    cidrs = [cidr for node in state.objects[Node].values() if isinstance(node, Node) for cidr in node.pod_cidrs]
    if len(cidrs) == len(set(cidrs)):  # what is in two nodes' has a place of its own, made anew
        assert after.addresses.places is before.addresses.places
    if not cidrs:  # may be shared
        assert not answers_differ(before, after) and after.serial == NOW


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
        for key, rows in before.unready.items():
            assert key in touched or after.unready[key] is rows
        before, since = after, []
