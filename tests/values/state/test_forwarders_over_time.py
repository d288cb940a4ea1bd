# SPDX-License-Identifier: Apache-2.0

"""Forwarders over time: who is trusted, from when, and until when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.api.deltas import Delta, Drop, Put
from locator.endpoints import compact
from locator.ip import parse_network
from locator.model import SLICE_CONTROLLER, ZONE, Endpoint, EndpointSlice, Node, Pod, PodLocator, Service
from locator.places.forwarders import GRACE_SECONDS
from locator.state.store import Store, StoreOptions
from tests.kit.in_memory import NOW
from tests.kit.store_histories import ADDRESSES, CIDRS, DNS, PUBLISH, State, canonical, history, ip, steady, store_with

SELECTING = Put(Service("shop", "web", headless=True, selects_pods=True))

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


def labelled_dns(label: str | None) -> Put:
    """Return the Service of DNS servers, with a value of the label that makes it one of forwarders."""
    labels = {} if label is None else {"k8s-app": label}
    return Put(Service("kube-system", "coredns", cluster_ips=(ip("10.96.0.10"),), labels=labels))


COREDNS = Put(EndpointSlice("kube-system", "x", "coredns", compact((Endpoint((OLD,), pod="coredns-1"),))))
BY_LABEL = {"forwarder_services": None}
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
                                          (5, [dns(NEW), running("web-1", phase="Succeeded")], True)]),
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
    ("off", {"forwarder_services": ()}, [(0, [dns(OLD)], False)]),
    ("its-service-gains-the-label", BY_LABEL,
     [(0, [labelled_dns(None), COREDNS], False), (5, [labelled_dns("kube-dns")], True)]),
    ("its-service-has-the-label-before-its-slices", BY_LABEL,
     [(0, [labelled_dns("kube-dns")], False), (5, [COREDNS], True)]),
    ("its-service-loses-the-label", BY_LABEL,
     [(0, [labelled_dns("kube-dns"), COREDNS], True), (5, [labelled_dns("coredns")], True), (5 + AFTER, [], False)]),
    ("its-service-loses-and-gains-the-label", BY_LABEL,
     [(0, [labelled_dns("kube-dns"), COREDNS], True), (5, [labelled_dns(None)], True),
      (9, [labelled_dns("kube-dns")], True), (5 + AFTER, [], True)]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "moments"), [row[1:] for row in TRUST], ids=[row[0] for row in TRUST])
def test_trust_in_who_left(options: dict[str, Any], moments: list[tuple[int, list[Delta], bool]]) -> None:
    """A forwarder that shuts down is trusted for a while, unless another pod has its address."""
    store = Store(StoreOptions(**{"forwarder_services": [DNS], **options}))
    store.apply(SELECTING)
    for seconds, changes, trusted in moments:
        visible = [store.apply(change) for change in changes]
        assert any(visible) == bool(changes), "what changes trust is to be published"
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


def test_a_forwarder_that_nobody_holds_is_where_its_block_is() -> None:
    """A forwarder's address that is named as a client is located by the nodes' pod CIDRs."""
    store = Store(StoreOptions(forwarder_services=[DNS]))
    store.apply(Put(EndpointSlice("kube-system", "x", "dns", compact((Endpoint((OLD,)),)))))
    for zone in (None, "a", "b", None):
        node = Node("n0", canonical("n0", {ZONE: zone or ""}), (), (CIDRS[0],))
        store.apply(Drop(Node, "n0") if zone is None else Put(node))
        place = store.publish(NOW).addresses.locate(OLD)
        assert (place.forwarder, place.location.value(ZONE)) == (True, zone)
