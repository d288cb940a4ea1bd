# SPDX-License-Identifier: Apache-2.0

"""Health by quorum, the prober: what it writes, for one cluster and for several, whatever happens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.api.deltas import Drop, Put, Replace
from locator.control.writes import CREATE, DELETE, PATCH
from locator.health.rules import (
    FAILURES,
    RENEW_AGAINST_SECONDS,
    RENEW_SECONDS,
    SUCCESSES,
    HealthRules,
    health_name,
)
from locator.health.targets import ProbeTarget
from locator.health.votes import VOTE_SECONDS
from locator.model import OWN, HealthEntry, Service, ServiceHealth
from tests.kit.api_objects import Item
from tests.kit.balanced_services import balanced_record
from tests.kit.controlled import Controlled, merged

ONE, TWO = "192.0.2.1", "192.0.2.2"
REFUSED, WEST = "connection refused", "west"


class World(Controlled):
    """The prober of the cluster ``east``, which leads, and its API server."""

    def __init__(self, *, others: Sequence[str] = (), stored: Iterable[Item] = ()) -> None:
        self.now = 0.0
        self.rules = HealthRules("east", timestamp=lambda: f"{self.now:06.1f}")
        for cluster in others:
            self.rules.objects.add(cluster, self.rules.elsewhere)
        super().__init__(self.rules, stored)
        self.start_probing()

    def start_probing(self) -> None:
        for name in self.rules.start_probing():
            self.reconciler.queue.add(name)

    def services(self, *services: Service, cluster: str = OWN) -> None:
        """List the Services of a cluster."""
        self.reconciler.apply(Replace(Service, list(services)), cluster)

    def written(self) -> list[str]:
        """Carry out all writes that are due; return their verbs."""
        return [write.verb for write in self.write(self.now)]

    def said(self, name: str = "web.shop") -> dict[str, bool]:
        return {entry["address"]: entry["healthy"] for entry in self.stored[name]["status"]["entries"]}

    def probe(self, address: str, failure: str, times: int = 1) -> None:
        for _ in range(times):
            (target,) = (target for target in self.rules.targets if target.address == address)
            self.record(target, failure)

    def record(self, target: ProbeTarget, failure: str) -> HealthEntry | None:
        """Record the result of a probe, as the prober does."""
        entry = self.rules.record(target, failure)
        if entry is not None:
            self.reconciler.queue.add(health_name(target.service), urgent=True)
        return entry


def test_the_life_of_a_servicehealth() -> None:
    """It is there while the Service has something to probe, and says what was found."""
    world = World()
    world.services(balanced_record("web", [ONE, TWO]))
    (write,) = world.write()
    assert (write.verb, write.path) == (CREATE, "/apis/topodns.io/v1alpha1/servicehealths")
    assert write.body == {
        "apiVersion": "topodns.io/v1alpha1",
        "kind": "ServiceHealth",
        "metadata": {"name": "web.shop"},
        "status": {
            "cluster": "east",
            "service": {"namespace": "shop", "name": "web"},
            "entries": [{"address": ONE, "healthy": True, "since": "0000.0"},
                        {"address": TWO, "healthy": True, "since": "0000.0"}],
            "renewTime": "0000.0",
        },
    }  # fmt: skip
    world.now = 1
    world.probe(ONE, REFUSED, 3)
    (write,) = world.write()
    assert (write.verb, write.path) == (PATCH, "/apis/topodns.io/v1alpha1/servicehealths/web.shop")
    assert write.body["metadata"] == {"resourceVersion": "101"}
    assert write.body["status"]["entries"][0] == {
        "address": ONE, "healthy": False, "since": "0001.0", "message": REFUSED}  # fmt: skip
    world.reconciler.apply(Drop(Service, "shop/web"))
    (write,) = world.write()
    assert (write.verb, write.body["preconditions"]) == (DELETE, {"resourceVersion": "102"})
    assert (world.write(), len(world.reconciler.queue), world.rules.targets) == ([], 0, frozenset())


def test_a_vote_is_renewed_in_time() -> None:
    """Twice or more in the time that readers believe it; one against an address sooner, and nothing in between."""
    world = World()
    world.services(balanced_record("web", [ONE]), balanced_record("sick", [TWO]))
    world.write()
    world.probe(TWO, REFUSED, 3)
    written: dict[str, list[float]] = {"web.shop": [], "sick.shop": []}
    for world.now in range(41):
        for write in world.write(world.now):
            written[write.key].append(world.now)
            assert write.body["status"]["renewTime"] == f"{world.now:06.1f}"
    assert written["web.shop"] == [10, 20, 30, 40]
    assert written["sick.shop"] == [0, 5, 10, 15, 20, 25, 30, 35, 40]
    assert RENEW_AGAINST_SECONDS + 18 < VOTE_SECONDS and 3 * RENEW_SECONDS <= VOTE_SECONDS
    assert world.reconciler.queue.due() == 45


def test_renewals_against_an_address_come_first() -> None:
    """When many are due, those that readers act on."""
    world = World()
    world.services(*(balanced_record(f"web-{number}", [f"192.0.2.{number}"]) for number in range(1, 6)))
    world.write()
    world.probe("192.0.2.4", REFUSED, 3)
    world.write(5.5)
    assert world.write(10.5)[0].key == "web-4.shop"


@pytest.mark.parametrize("since", [{"since": "0001.0"}, {}], ids=["by-a-prober", "by-hand"])
def test_a_new_leader_goes_on_from_what_stands_written(since: Item) -> None:
    """It renews that at once. A vote in it need not say since when; the schema takes no empty time."""
    first = World()
    first.services(balanced_record("web", [ONE, TWO]))
    first.write()
    (health,) = first.stored.values()
    vote = {"address": ONE, "healthy": False, "message": REFUSED, **since}
    second = World(stored=[merged(health, {"status": {"entries": [vote]}})])
    second.services(balanced_record("web", [ONE, TWO]))
    assert second.written() == [PATCH]
    assert second.stored["web.shop"]["status"]["entries"][0] == vote
    assert second.said() == {ONE: False, TWO: True}


def test_a_cluster_that_was_never_read_deletes_nothing() -> None:
    """Its Services may be what stands written: that is left to age, without work, until the cluster has been read."""
    first = World()
    first.services(balanced_record("theirs", [ONE]))
    first.probe(ONE, REFUSED, 3)
    first.write()
    world = World(others=(WEST,), stored=first.stored.values())
    world.services(balanced_record("web", [ONE]))
    assert not world.reconciler.has_synced
    world.rules.objects.stop_waiting()
    assert world.written() == [CREATE]
    world.reconciler.apply(Drop(Service, "shop/web"))
    for world.now in (1, 11, 30):
        due = world.reconciler.queue.due()
        assert due is None or due >= world.now, "the writer waits for a moment that is over"
        assert world.written() == []
    world.services(balanced_record("theirs", [ONE]), cluster=WEST)
    assert sorted(world.written()) == [DELETE, PATCH] and world.said("theirs.shop") == {ONE: False}
    world.services(cluster=WEST)
    assert world.written() == [DELETE]


def test_a_cluster_that_comes_and_goes() -> None:
    """Its addresses are probed from then on, and no longer; until it has been listed, it holds up deletions alone."""
    world = World()
    world.services(balanced_record("web", [ONE]))
    assert world.written() == [CREATE]
    world.reconciler.add_cluster(WEST)
    assert world.reconciler.has_synced and not world.rules.objects.is_complete
    world.reconciler.apply(Drop(Service, "shop/web"))
    assert world.written() == []
    world.services(balanced_record("web", [ONE, TWO]), balanced_record("api", [TWO]), cluster=WEST)
    assert sorted(world.written()) == [CREATE, PATCH]
    assert world.said("web.shop") == {ONE: True, TWO: True}
    world.reconciler.remove_cluster(WEST)
    assert (world.written(), world.rules.targets) == ([DELETE, DELETE], frozenset())
    assert world.rules.objects.is_complete


def test_a_cluster_that_goes_before_it_was_listed() -> None:
    """What it held up goes on."""
    world = World(others=(WEST,))
    world.services(balanced_record("web", [ONE]))
    assert not world.reconciler.has_synced
    world.reconciler.remove_cluster(WEST)
    assert world.reconciler.has_synced and world.written() == [CREATE]
    world.reconciler.add_cluster(WEST)
    world.services()
    assert world.written() == []
    world.reconciler.remove_cluster(WEST)
    assert world.written() == [DELETE]


NAMES = st.sampled_from(("web", "api"))
STATED = (st.sampled_from((OWN, WEST)), NAMES, st.sampled_from((80, 81)), st.sets(st.sampled_from((ONE, TWO))))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("service"), *STATED),
        st.tuples(st.just("list"), *STATED),
        *[st.tuples(st.just("probe"), st.integers(0, 9), st.booleans(), st.integers(1, 4))] * 3,
        st.tuples(st.just("hand"), NAMES, st.sampled_from(("delete", "change"))),
        st.tuples(st.just("leader")),
        st.tuples(st.just("write")),
        st.tuples(st.just("time"), st.floats(0.1, 12)),
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(EVENTS)
def test_what_stands_written_is_what_is_known(events: Sequence[tuple[Any, ...]]) -> None:
    """After any history, all due writes lead to one ServiceHealth for each probed Service, and none is written in vain.

    It has the entries of all clusters. An address that two clusters have is probed as the own one says. A new address
    begins as it stands written, or healthy; a result of an earlier check counts for nothing.
    """
    world = World(others=(WEST,))
    stated: dict[tuple[str, str], dict[str, int]] = {}  # by cluster and name: the port of each address
    seen: set[ProbeTarget] = set()
    votes: dict[ProbeTarget, tuple[bool, int]] = {}  # whether it is healthy, and the results in a row against that
    renewed: dict[str, float] = {}
    world.services()
    world.services(cluster=WEST)

    def known() -> dict[str, dict[str, bool]]:
        by_name: dict[str, dict[str, bool]] = {}
        for target, (healthy, _) in votes.items():
            by_name.setdefault(health_name(target.service), {})[target.address] = healthy
        return by_name

    def stands(name: str, said: dict[str, bool]) -> bool:
        status = world.stored[name]["status"] if name in world.stored else {"cluster": ""}
        pause = RENEW_SECONDS if all(said.values()) else RENEW_AGAINST_SECONDS
        return status["cluster"] == "east" and world.said(name) == said and world.now < renewed[name] + pause

    def write() -> None:
        standing = {name for name, said in known().items() if stands(name, said)}
        for one in world.write(world.now):
            assert one.key not in standing
            renewed[one.key] = world.now

    def follow() -> None:
        ports = {(name, address): port for cluster in (WEST, OWN) for (of, name), rows in stated.items()
                 if of == cluster for address, port in rows.items()}  # fmt: skip
        before = {(target.service, target.address): vote for target, vote in votes.items()}
        written = {
            (f"shop/{name.removesuffix('.shop')}", address): (healthy, 0)
            for name in world.stored
            for address, healthy in world.said(name).items()
        }
        votes.clear()
        for (name, address), port in ports.items():
            place = f"shop/{name}", address
            votes[ProbeTarget(*place, port)] = before.get(place) or written.get(place) or (True, 0)
        assert world.rules.targets == votes.keys()
        seen.update(votes)

    for event in events:
        match event:
            case ("service", cluster, name, port, addresses):
                stated[cluster, name] = dict.fromkeys(addresses, port)
                world.reconciler.apply(Put(balanced_record(name, sorted(addresses), f"tcp:{port}")), cluster)
            case ("list", cluster, name, port, addresses):
                stated = {key: rows for key, rows in stated.items() if key[0] != cluster}
                stated[cluster, name] = dict.fromkeys(addresses, port)
                world.services(balanced_record(name, sorted(addresses), f"tcp:{port}"), cluster=cluster)
            case ("probe", number, works, times) if seen:
                target = sorted(seen, key=str)[number % len(seen)]
                for _ in range(times):
                    healthy, contrary = votes.get(target, (works, 0))
                    contrary = 0 if works == healthy else contrary + 1
                    turns = contrary == (FAILURES if healthy else SUCCESSES)
                    assert (world.record(target, "" if works else REFUSED) is not None) == turns
                    if target in votes:
                        votes[target] = (works, 0) if turns else (healthy, contrary)
            case ("hand", name, "delete") if f"{name}.shop" in world.stored:
                world.drop(ServiceHealth, f"{name}.shop")
            case ("hand", name, "change") if f"{name}.shop" in world.stored:
                world.put(merged(world.stored[f"{name}.shop"], {"status": {"entries": [], "cluster": "mine"}}))
            case ("leader",):
                write()
                world.rules.stop_probing()
                votes.clear()
                assert world.rules.entries == [] and not any(world.record(target, REFUSED) for target in seen)
                world.start_probing()
            case ("write",):
                write()
            case ("time", seconds):
                world.now += seconds
        follow()
    write()
    assert {name: world.said(name) for name in world.stored} == known()
    assert {health["status"]["cluster"] for health in world.stored.values()} <= {"east"}
    assert world.write(world.now) == []
