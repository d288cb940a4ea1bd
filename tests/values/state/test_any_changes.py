# SPDX-License-Identifier: Apache-2.0

"""A changing cluster: after any changes, the snapshot equals one of the final state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from locator.api.deltas import Delta, Drop, Put, Replace
from locator.endpoints import SliceEndpoints, compact
from locator.ip import Network
from locator.model import (
    KINDS,
    REGION,
    ZONE,
    Endpoint,
    EndpointSlice,
    Namespace,
    Node,
    Pod,
    PodLocator,
    Service,
    ServicePolicy,
)
from locator.state.snapshot import Snapshot, answers_differ
from tests.kit.in_memory import NOW, read_again
from tests.kit.store_histories import (
    ADDRESSES,
    CIDRS,
    FOREVER,
    NODES,
    PUBLISH,
    STORES,
    State,
    canonical,
    content_of,
    history,
    history_of_blocks,
    history_of_dns,
    holders,
    ip,
    some,
    steady,
    store_with,
)


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
        assert content_of(store.publish(NOW)) == content_of(state.fresh(options).publish(NOW))


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
            published.append(((snapshot := store.publish(now)), content_of(snapshot)))
        elif (event.kind if not isinstance(event, Put) else type(event.object)) in store.kinds:
            store.apply(event)
            state.apply(event)
    store.publish(now + 1)  # who left since is trusted for a while from here on
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
    assert content_of(before) == content_of(kept)
    for kind, objects in state.objects.items():
        store.apply(Replace(kind, [*objects.values()]))
    after = store.publish(NOW + 60)
    assert after.services is before.services and after.unready is before.unready
    assert after.addresses.places is before.addresses.places and after.pod_namespaces is before.pod_namespaces
    if not any(isinstance(node, Node) and node.pod_cidrs for node in state.objects[Node].values()):  # may be shared
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
        before, since = after, []
