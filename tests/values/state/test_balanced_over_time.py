# SPDX-License-Identifier: Apache-2.0

"""Balanced Services over time: who is counted when, which labels of pods are wanted, and what stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from locator.api.deltas import Drop, Put, Replace
from locator.endpoints import compact
from locator.ip import parse_address
from locator.model import HOSTNAME, ZONE, ClientPod, Endpoint, EndpointSlice, Node, Pod, Service
from locator.state.balancing import COUNTS_SECONDS
from locator.state.snapshot import CompiledService
from locator.state.store import Store, StoreOptions
from tests.kit.api_objects import topodns_annotations
from tests.kit.in_memory import NOW, read_again

KEY = "shop/web"
NODES = {"n0": "a", "n1": "a", "n2": "a", "n3": "a", "n4": "b"}
OVERLOAD, CLIENTS = "topodns.io/max-overload", "topodns.io/clients"
APP = frozenset(("app",))


def web(**annotations: str) -> Service:
    """Return a Service whose own zone comes first; in zone a, there are four times as many clients as in b."""
    said = topodns_annotations({"topology-keys": f"{ZONE},*", **annotations})
    return Service("shop", "web", headless=True, annotations=said)


def client(number: int, node: str, *, phase: str = "Running", where: str = "shop", app: str = "") -> Pod:
    held = (parse_address(f"10.1.0.{number}"),)
    if app:
        return ClientPod(where, f"c{number}", held, node, phase=phase, labels={"app": app})
    return Pod(where, f"c{number}", held, node, phase=phase)


def clients(app: str = "", *, each: int = 3) -> list[Pod]:
    return [client(number, node, app=app) for number, node in enumerate([*NODES] * each, 1)]


def store_of(service: Service, asking: Sequence[Pod] = (), **options: Any) -> Store:
    """Return a store with the Service, an endpoint in each zone, and some clients."""
    store = Store(StoreOptions(**options))
    for name, zone in NODES.items():
        store.apply(Put(Node(name, {HOSTNAME: name, ZONE: zone})))
    rows = [
        Endpoint((parse_address(f"10.2.0.{at}"),), node=node, pod=f"web-{at}") for at, node in enumerate(("n0", "n4"))
    ]
    store.apply(Put(EndpointSlice("shop", "web-1", "web", compact(rows))))
    store.apply(Replace(Pod, [*asking]))
    store.apply(Put(service))
    return store


def known(store: Store, now: float = NOW) -> CompiledService:
    return store.publish(now).services[KEY]


def counted(store: Store, now: float = NOW) -> int:
    (balance,) = store.publish(now).balances[KEY]
    return balance.clients


def test_nothing_is_counted_without_a_balanced_service() -> None:
    """A pod that starts or ends is no news then, and nothing is due."""
    for service in (web(), web(clients="shop/app=web"), web(max_overload="0"), Service("shop", "web", headless=True)):
        store = store_of(service, clients())
        assert known(store).plans == () and store.publish(NOW).balances == {}
        assert store.wanted_labels == frozenset()
        assert not store.apply(Put(client(1, "n0", phase="Pending")))
        assert store.due is None


def test_counts_alone_are_taken_up_once_a_second() -> None:
    """The first change at once, the next ones a second later; a change of the endpoints does not wait."""
    store, later = store_of(web(max_overload="1.1"), clients()), NOW + 100
    assert counted(store) == 15
    assert store.apply(Put(client(101, "n4")))
    assert counted(store, later) == 16 and store.due is None
    store.apply(Put(client(102, "n4")))
    assert counted(store, later + COUNTS_SECONDS / 2) == 16
    assert store.due == later + COUNTS_SECONDS
    assert counted(store, later + COUNTS_SECONDS) == 17 and store.due is None
    store.apply(Drop(Pod, "shop/c102"))
    store.apply(Put(Node("n3", {HOSTNAME: "n3", ZONE: "b"})))
    assert counted(store, later + COUNTS_SECONDS) == 16, "a node that moves takes all with it"


def test_a_clock_that_goes_back_holds_nothing_up() -> None:
    store = store_of(web(max_overload="1.1"), clients())
    store.publish(NOW)
    store.apply(Put(client(101, "n4")))
    assert counted(store, NOW + 1000) == 16
    store.apply(Put(client(102, "n4")))
    assert counted(store, NOW - 1000) == 17


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (Put(client(1, "n0", phase="Succeeded")), 14),
        (Put(client(1, "n0", phase="Pending")), 14),
        (Put(Pod("shop", "c1", (), "n0")), 14),
        (Put(client(1, "gone")), 15),
        (Put(client(1, "n4")), 15),
        (Drop(Pod, "shop/c1"), 14),
        (Drop(Node, "n0"), 15),
        (Put(Pod("shop", "web-0", (parse_address("10.2.0.0"),), "n0")), 15),
        (Put(Pod("lab", "web-0", (parse_address("10.9.0.9"),), "n0")), 16),
        (Replace(Pod, []), 0),
    ],
    ids=["finished", "starts", "no-address", "unknown-node", "moved", "deleted", "node-deleted", "endpoint",
         "namesake-elsewhere", "all-gone"],
)  # fmt: skip
def test_who_is_counted_after_a_change(change: Put | Drop | Replace, counts: int) -> None:
    """The same as in a store that never knew it otherwise."""
    store = store_of(web(max_overload="1.1"), clients())
    store.publish(NOW)
    store.apply(change)
    assert counted(store, NOW + 10) == counts


def test_an_unchanged_plan_keeps_the_service_the_same() -> None:
    """Then all of its remembered answers stay, and the serial, though the numbers have changed."""
    store = store_of(web(max_overload="1.5"), [*clients(each=26), client(201, "n4", phase="Pending")])
    before = store.publish(NOW)
    store.apply(Put(client(201, "n4")))
    after = store.publish(NOW + 10)
    assert after is not before and after.balances != before.balances
    assert after.services is before.services and after.serial == before.serial
    (plan,) = after.services[KEY].plans
    store.apply(Replace(Pod, [client(number, "n4") for number in range(1, 9)]))
    assert known(store, NOW + 20).plans != (plan,) and store.publish(NOW + 20).serial == NOW + 20


def test_a_service_waits_for_the_labels_of_its_clients() -> None:
    """It has no plan until pods were listed with them; others need not wait."""
    store = store_of(web(max_overload="1.1", clients="shop/app=web"), clients())
    assert known(store).plans == () and store.wanted_labels == APP
    store.apply(Replace(Pod, clients("web"), labels=APP))
    assert known(store).plans and counted(store) == 15
    store.apply(Put(client(1, "n0", app="batch")))
    assert counted(store, NOW + 10) == 14
    for several in ("shop/app=web; lab", "lab; shop/app in (web,batch)"):
        store.apply(Put(web(max_overload="1.1", clients=several)))
        assert counted(store, NOW + 20) == (14 if "in" not in several else 15)
    store.apply(Put(web(max_overload="1.1", clients="shop/tier=web")))
    assert counted(store, NOW + 30) == 15 and store.wanted_labels >= {"tier"}


def test_a_service_that_waits_for_labels_keeps_its_plan() -> None:
    """It counts those who asked before, while endpoints come and go, too."""
    store = store_of(web(max_overload="1.1"), clients())
    plans = known(store).plans
    assert plans
    store.apply(Put(web(max_overload="1.1", clients="shop/app=web")))
    assert known(store, NOW + 10).plans == plans
    rows = [Endpoint((parse_address("10.2.0.9"),), node="n1", pod="web-9")]
    store.apply(Put(EndpointSlice("shop", "web-2", "web", compact(rows))))
    (plan,) = known(store, NOW + 20).plans
    assert plan != plans[0] and counted(store, NOW + 20) == 15, "by whom it asked for before"
    store.apply(Replace(Pod, clients("batch"), labels=APP))
    assert known(store, NOW + 30).plans == () and counted(store, NOW + 30) == 0


def test_labels_are_not_wanted_any_more() -> None:
    """A Service that asks for others, for nobody any more, or is gone leaves nothing that is counted."""
    named = web(max_overload="1.1", clients="shop/app=web")
    for change in (Put(web(max_overload="1.1")), Put(web()), Drop(Service, KEY)):
        for read in (frozenset[str](), APP):
            store = store_of(named)
            app = "web" if read else ""
            store.apply(Replace(Pod, clients(app), labels=read))
            store.publish(NOW)
            store.apply(change)
            store.publish(NOW + 10)
            assert store.wanted_labels == frozenset()
            still = isinstance(change, Put) and OVERLOAD in change.object.annotations
            assert store.apply(Put(client(1, "n0", phase="Pending", app=app))) == still


def test_another_service_that_goes_leaves_labels_wanted() -> None:
    """Even while the one that wants them waits for them."""
    store = store_of(web(max_overload="1.1", clients="shop/app=web"), clients())
    other = Service("shop", "api", headless=True, annotations=web(max_overload="2").annotations)
    store.apply(Put(other))
    rows = compact([Endpoint((parse_address("10.3.0.1"),), node="n0")])
    store.apply(Put(EndpointSlice("shop", "api-1", "api", rows)))
    store.publish(NOW)
    store.apply(Drop(Service, other.key))
    store.publish(NOW + 10)
    assert store.wanted_labels == APP


def test_labels_alone_move_nobody() -> None:
    """A pod with other labels is no news unless a Service asks for those: lists with labels bring them for all pods."""
    of_web = {"max_overload": "2", "clients": "shop/app=web"}
    for asked, is_news in (dict[str, str](), False), ({"max_overload": "2"}, False), (of_web, True):
        store = store_of(web(**asked))
        store.apply(Replace(Pod, clients("web"), labels=APP))
        store.publish(NOW)
        assert store.apply(Put(client(1, "n0", app="batch"))) == is_news
        assert store.apply(Put(client(1, "n0"))) is False


@pytest.mark.parametrize("read", [frozenset[str](), APP], ids=["before-labels", "with-labels"])
def test_a_plan_is_kept_over_a_restart(read: frozenset[str]) -> None:
    """From the state file on, and while labels have not been read again."""
    service = web(max_overload="1.1", clients="shop/app=web")
    before = store_of(service)
    before.apply(Replace(Pod, clients("web"), labels=APP))
    kept = read_again(before.publish(NOW))
    assert kept.services[KEY].plans and kept.balances
    store = Store()
    assert store.start_from(kept).services[KEY].plans == kept.services[KEY].plans
    for kind in store.kinds:
        if kind is Pod:
            store.apply(Replace(Pod, clients("web") if read else clients(), labels=read))
        else:
            store.apply(Replace(kind, [*before.objects(kind).values()]))
    after = store.publish(NOW + 10)
    assert after.services is kept.services and after.balances == kept.balances and after.serial == NOW
    store.apply(Put(web()))
    after = store.publish(NOW + 20)
    assert after.services[KEY].plans == () and after.balances == {} and store.wanted_labels == frozenset()


@pytest.mark.parametrize(
    ("options", "counts"),
    [({"pods": False}, 5), ({"pods": False, "pod_names": True}, 5), ({"endpoint_records": False}, 15)],
    ids=["nodes", "nodes-beside-pod-names", "no-endpoints"],
)
def test_what_counts_by_other_settings(options: dict[str, bool], counts: int) -> None:
    """Where Pods locate nobody, each node counts, and nobody hears whose clients are meant."""
    service = web(max_overload="1.1", **({"clients": "shop/app=web"} if "pods" in options else {}))
    store = store_of(service, clients(), **options)
    if options.get("endpoint_records", True):
        assert counted(store) == counts
    else:
        assert store.publish(NOW).balances == {}
    assert store.wanted_labels == frozenset()
