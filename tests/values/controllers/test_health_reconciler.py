# SPDX-License-Identifier: Apache-2.0

"""Health by quorum, the prober: what it writes, for one cluster and for several, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from locator.api.decoding import RESOURCES, decode_untrusted
from locator.api.deltas import Drop, Put, Replace
from locator.control.reconciler import Reconciler
from locator.control.writes import CREATE, DELETE, PATCH, Write
from locator.health.rules import RENEW_AGAINST_SECONDS, RENEW_SECONDS, HealthRules, health_name
from locator.health.targets import ProbeTarget
from locator.health.votes import VOTE_SECONDS
from locator.model import OWN, HealthEntry, Service, ServiceHealth
from tests.kit.balanced_services import balanced_record

ONE, TWO = "192.0.2.1", "192.0.2.2"
REFUSED, WEST = "connection refused", "west"


class World:
    """A reconciler, and the API server that it writes to."""

    def __init__(
        self, *, others: Sequence[str] = (), probing: bool = True, healths: Iterable[ServiceHealth] = ()
    ) -> None:
        self.now = 0.0
        self.stored = {health.name: health for health in healths}
        self.version = 100
        self.rules = HealthRules("east", others=others, timestamp=lambda: f"{self.now:06.1f}")
        self.one = Reconciler(self.rules)
        self.one.apply(Replace(ServiceHealth, list(self.stored.values())))
        if probing:
            for cluster in (OWN, *others):
                self.services(cluster=cluster)
            self.start_probing()

    def start_probing(self) -> None:
        for name in self.rules.start_probing():
            self.one.queue.add(name)

    def services(self, *services: Service, cluster: str = OWN) -> None:
        """List the Services of a cluster."""
        self.one.apply(Replace(Service, list(services)), cluster)

    def write(self) -> list[Write]:
        """Carry out all writes that are due."""
        done = []
        while (write := self.one.next_write(self.now)) is not None:
            done.append(write)
            self.version += 1
            answer = None
            if write.verb == DELETE:
                del self.stored[write.key]
            else:
                answer = self.stored[write.key] = decoded(write, self.version)
            self.one.written(write, answer, began=self.now)
            self.one.queue.done(write.key)
        return done

    def said(self, name: str = "web.shop") -> dict[str, bool]:
        return {entry.address: entry.healthy for entry in self.stored[name].entries}

    def probe(self, address: str, failure: str, times: int = 1) -> None:
        for _ in range(times):
            (target,) = (target for target in self.rules.targets if target.address == address)
            self.record(target, failure)

    def record(self, target: ProbeTarget, failure: str) -> HealthEntry | None:
        """Record the result of a probe, as the prober does."""
        entry = self.rules.record(target, failure)
        if entry is not None:
            self.one.queue.add(health_name(target.service), urgent=True)
        return entry


def decoded(write: Write, version: int) -> ServiceHealth:
    """Return what the API server makes of a write."""
    body = {**write.body, "metadata": {"name": write.key, "resourceVersion": str(version)}}
    built = decode_untrusted(RESOURCES[ServiceHealth], json.dumps(body).encode()).built
    assert isinstance(built, ServiceHealth)
    return built


def verbs(writes: Iterable[Write]) -> list[str]:
    return [write.verb for write in writes]


def test_the_life_of_a_servicehealth() -> None:
    """It is there while the Service has something to probe, and says what was found."""
    world = World()
    world.services(balanced_record("web", [ONE, TWO]))
    (write,) = world.write()
    assert (write.verb, write.method, write.path) == (
        CREATE, "POST", "/apis/topodns.io/v1alpha1/servicehealths")  # fmt: skip
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
    world.probe(ONE, REFUSED, 2)
    assert world.write() == []
    world.probe(ONE, REFUSED)
    (write,) = world.write()
    assert (write.verb, write.path) == (PATCH, "/apis/topodns.io/v1alpha1/servicehealths/web.shop")
    assert write.body["metadata"] == {"resourceVersion": "101"}
    assert write.body["status"]["entries"][0] == {
        "address": ONE, "healthy": False, "since": "0001.0", "message": REFUSED}  # fmt: skip
    world.one.apply(Drop(Service, "shop/web"))
    (write,) = world.write()
    assert (write.verb, write.body["preconditions"]) == (DELETE, {"resourceVersion": "102"})
    assert (world.write(), len(world.one.queue), world.rules.targets) == ([], 0, frozenset())


def test_a_vote_is_renewed_in_time() -> None:
    """Twice or more in the time that readers believe it; one against an address sooner, and nothing in between."""
    world = World()
    world.services(balanced_record("web", [ONE]), balanced_record("sick", [TWO]))
    world.write()
    world.probe(TWO, REFUSED, 3)
    written: dict[str, list[float]] = {"web.shop": [], "sick.shop": []}
    for world.now in range(41):
        for write in world.write():
            written[write.key].append(world.now)
            assert write.body["status"]["renewTime"] == f"{world.now:06.1f}"
    assert written["web.shop"] == [10, 20, 30, 40]
    assert written["sick.shop"] == [0, 5, 10, 15, 20, 25, 30, 35, 40]
    assert RENEW_AGAINST_SECONDS + 18 < VOTE_SECONDS and 3 * RENEW_SECONDS <= VOTE_SECONDS
    assert world.one.queue.due() == 45


def test_renewals_against_an_address_come_first() -> None:
    """When many are due, those that readers act on."""
    world = World()
    world.services(*(balanced_record(f"web-{number}", [f"192.0.2.{number}"]) for number in range(1, 6)))
    world.write()
    world.probe("192.0.2.4", REFUSED, 3)
    world.now = 5.5
    world.write()
    world.now = 10.5
    assert next(write.key for write in world.write()) == "web-4.shop"


def test_a_new_leader_goes_on_from_what_stands_written() -> None:
    """What was unhealthy stays so until it answers; what is not there is new."""
    first = World()
    first.services(balanced_record("web", [ONE, TWO]))
    first.probe(ONE, REFUSED, 3)
    first.write()
    second = World(healths=first.stored.values())
    second.now = 20
    second.services(balanced_record("web", [ONE, TWO]))
    (write,) = second.write()  # and it renews at once
    assert write.verb == PATCH and second.said() == {ONE: False, TWO: True}
    assert second.stored["web.shop"].entries == first.stored["web.shop"].entries
    second.probe(ONE, "")
    assert second.write() == []
    second.probe(ONE, "")
    assert second.write() and second.said() == {ONE: True, TWO: True}


def test_who_does_not_lead_knows_and_says_nothing() -> None:
    """No results, no writes; and when it leads again, what stands written then counts."""
    world = World()
    world.services(balanced_record("web", [ONE]))
    world.write()
    world.probe(ONE, REFUSED, 3)
    world.rules.stop_probing()
    assert world.write() == [] and world.rules.entries == []
    (target,) = world.rules.targets
    assert world.record(target, REFUSED) is None
    world.start_probing()
    world.write()
    assert world.said() == {ONE: True}


def test_an_entry_that_moves_is_written_at_once() -> None:
    """Its new address begins healthy, the other one keeps what was found, the old one is forgotten."""
    world = World()
    world.services(balanced_record("web", [ONE, TWO]))
    world.probe(ONE, REFUSED, 3)
    world.probe(TWO, REFUSED, 3)
    world.write()
    world.one.apply(Put(balanced_record("web", [TWO, "192.0.2.3"])))
    assert verbs(world.write()) == [PATCH] and world.said() == {TWO: False, "192.0.2.3": True}
    world.probe(TWO, "", 2)
    world.one.apply(Put(balanced_record("web", [ONE, TWO])))  # before that is written
    world.write()
    assert world.said() == {ONE: True, TWO: True}


def test_a_result_of_an_earlier_check_counts_for_nothing() -> None:
    """The annotation was changed while the probe was under way."""
    world = World()
    world.services(balanced_record("web", [ONE], "tcp:80"))
    (before,) = world.rules.targets
    world.one.apply(Put(balanced_record("web", [ONE], "tcp:81")))
    for _ in range(5):
        assert world.record(before, REFUSED) is None
    (after,) = world.rules.targets
    assert [world.record(after, REFUSED) is None for _ in range(3)] == [True, True, False]


def test_what_a_hand_does_is_undone() -> None:
    """Votes that others change, take away or delete are written again."""
    world = World()
    world.services(balanced_record("web", [ONE]))
    world.write()
    other = World()
    other.services(balanced_record("web", [TWO]))
    (write,) = other.write()
    world.version = 200
    world.one.apply(Put(decoded(write, 200)))
    assert verbs(world.write()) == [PATCH] and world.said() == {ONE: True}
    world.one.apply(Drop(ServiceHealth, "web.shop"))
    assert verbs(world.write()) == [CREATE]
    world.one.apply(Replace(ServiceHealth, []))
    assert verbs(world.write()) == [CREATE]
    world.one.apply(Put(decoded(write, 1)))  # an event that comes late
    assert world.write() == []


def test_the_services_of_all_clusters_are_probed() -> None:
    """One object has the entries of all; an address that two clusters have is probed as the own one says."""
    world = World(others=(WEST, "north"))
    world.services(balanced_record("web", [ONE], "tcp:80"))
    world.services(balanced_record("web", [TWO, ONE], "tcp:82"), cluster=WEST)
    world.services(balanced_record("web", ["lb.example"], "http:83/"), balanced_record("own", [TWO]), cluster="north")
    assert verbs(world.write()) == [CREATE, CREATE]
    assert list(world.said()) == [ONE, TWO, "lb.example"]
    assert ProbeTarget("shop/web", ONE, 80) in world.rules.targets and len(world.rules.targets) == 4
    assert world.rules.objects.counts == {Service: 2, ServiceHealth: 2}
    world.services(balanced_record("web", [ONE], None))  # the annotation is gone here, and so the next one counts
    assert ProbeTarget("shop/web", ONE, 82) in world.rules.targets
    assert world.write() == []
    world.services(cluster=WEST)
    assert verbs(world.write()) == [PATCH] and list(world.said()) == ["lb.example"]


def test_a_cluster_that_was_never_read_deletes_nothing() -> None:
    """Its Services may be what stands written: that is left to age, until the cluster has been read."""
    first = World()
    first.services(balanced_record("theirs", [ONE]))
    first.probe(ONE, REFUSED, 3)
    first.write()
    world = World(others=(WEST,), probing=False, healths=first.stored.values())
    world.services()
    assert not world.one.has_synced
    world.rules.objects.stop_waiting()
    assert world.one.has_synced
    world.start_probing()
    assert world.write() == []
    world.services(balanced_record("theirs", [ONE]), cluster=WEST)
    assert verbs(world.write()) == [PATCH] and world.said("theirs.shop") == {ONE: False}
    world.services(cluster=WEST)
    assert verbs(world.write()) == [DELETE]


NAMES, ADDRESSES, CLUSTERS = ("web", "api"), (ONE, TWO), st.sampled_from((OWN, WEST))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("service"), CLUSTERS, st.sampled_from(NAMES), st.sets(st.sampled_from(ADDRESSES))),
        st.tuples(st.just("list"), CLUSTERS, st.sampled_from(NAMES), st.sets(st.sampled_from(ADDRESSES))),
        st.tuples(st.just("probe"), st.integers(0, 9), st.booleans(), st.integers(1, 4)),
        st.tuples(st.just("hand"), st.sampled_from(NAMES)),
        st.tuples(st.just("leader")),
        st.tuples(st.just("write")),
        st.tuples(st.just("time"), st.floats(0.1, 12)),
    ),
    max_size=30,
)


@given(EVENTS)
def test_what_stands_written_is_what_is_known(events: Sequence[tuple[Any, ...]]) -> None:
    """After any history, all due writes lead to one ServiceHealth for each probed Service, and then none is due."""
    world = World(others=(WEST,))
    stated: dict[tuple[str, str], set[str]] = {}
    for event in events:
        match event:
            case ("service", cluster, name, addresses):
                stated[cluster, name] = addresses
                world.one.apply(Put(balanced_record(name, sorted(addresses))), cluster)
            case ("list", cluster, name, addresses):
                stated = {key: known for key, known in stated.items() if key[0] != cluster} | {
                    (cluster, name): addresses
                }
                world.services(balanced_record(name, sorted(addresses)), cluster=cluster)
            case ("probe", number, works, times) if world.rules.targets:
                targets = sorted(world.rules.targets, key=str)
                for _ in range(times):
                    world.record(targets[number % len(targets)], "" if works else REFUSED)
            case ("hand", name) if f"{name}.shop" in world.stored:
                del world.stored[f"{name}.shop"]
                world.one.apply(Drop(ServiceHealth, f"{name}.shop"))
            case ("leader",):
                world.write()
                world.rules.stop_probing()
                world.start_probing()
            case ("write",):
                world.write()
            case ("time", seconds):
                world.now += seconds
    world.write()
    wanted: dict[str, set[str]] = {}
    for (_, name), addresses in stated.items():
        wanted.setdefault(f"{name}.shop", set()).update(addresses)
    assert {name: set(world.said(name)) for name in world.stored} == {k: v for k, v in wanted.items() if v}
    now = {entry.address: entry.healthy for entry in world.rules.entries}
    assert all(world.said(name).keys() <= now.keys() for name in world.stored)
    assert world.write() == []


def test_a_service_that_goes_while_a_cluster_was_never_read() -> None:
    """What was written for it stays, without work, until that cluster has been read, and then goes."""
    world = World(others=(WEST,), probing=False)
    world.services(balanced_record("web", [ONE]))
    world.rules.objects.stop_waiting()
    world.start_probing()
    assert verbs(world.write()) == [CREATE]
    world.one.apply(Drop(Service, "shop/web"))
    for world.now in (1, 11, 30):
        due = world.one.queue.due()
        assert due is None or due >= world.now, "the writer waits for a moment that is over"
        assert world.write() == []
    world.services(cluster=WEST)
    assert verbs(world.write()) == [DELETE]
