# SPDX-License-Identifier: Apache-2.0

"""Health by quorum, from probes to what is voted out: three probers and a reader, in virtual time.

Each cluster has its prober, its ServiceHealths and a clock of its own, which may be hours off. The reader sees what
stands in each cluster that it can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.api.deltas import Replace
from locator.health.rules import HealthRules, health_name
from locator.health.votes import Votes
from locator.model import Service
from tests.kit.api_objects import Item
from tests.kit.balanced_services import balanced_record
from tests.kit.controlled import Controlled

WEB, ONE, TWO = "shop/web", "192.0.2.1", "192.0.2.2"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
STEP = 0.5  # seconds
INTERVAL = 5.0
SKEWS = st.lists(st.floats(-9 * 3600, 9 * 3600), min_size=4, max_size=4)
PHASES = st.lists(st.integers(0, 9).map(lambda steps: steps * STEP), min_size=3, max_size=3)


class Cluster:
    """A cluster with its prober, which the test can cut off or kill."""

    def __init__(self, world: World, name: str, *, skew: float, phase: float) -> None:
        self.name, self.phase = name, phase
        self.reachable = True  # for readers
        self.finds: Callable[[str], bool] = lambda address: address not in world.down
        self._world, self._skew = world, skew
        self._stored: dict[str, Item] = {}
        self.lead()

    def lead(self) -> None:
        """Let a new leader begin: all that it knows is what stands written."""
        self._rules = HealthRules(self.name, timestamp=self._timestamp)
        self.prober: Controlled | None = Controlled(self._rules, self._stored.values())
        self._stored, self.healths = self.prober.stored, self.prober.records
        self.prober.reconciler.apply(Replace(Service, [balanced_record("web", [ONE, TWO])]))
        for name in self._rules.start_probing():
            self.prober.reconciler.queue.add(name)

    def kill(self) -> None:
        """Kill the leader."""
        self.prober = None

    def _timestamp(self) -> str:
        return (EPOCH + timedelta(seconds=self._world.now + self._skew)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def step(self) -> None:
        """Probe if it is time, and write what is due."""
        if self.prober is None:
            return
        if (self._world.now - self.phase) % INTERVAL == 0:
            for target in self._rules.targets:
                if self._rules.record(target, "" if self.finds(target.address) else "refused") is not None:
                    self.prober.reconciler.queue.add(health_name(target.service), urgent=True)
        self.prober.write(self._world.now)


class World:
    """Three clusters, and one who reads their votes."""

    def __init__(self, skews: Sequence[float] = (0, 0, 0, 0), phases: Sequence[float] = (0, 1, 2)) -> None:
        self.now = 0.0
        self.down: set[str] = set()
        places = zip("abc", skews, phases, strict=False)
        self.clusters = [Cluster(self, name, skew=skew, phase=phase) for name, skew, phase in places]
        self.votes = Votes("abc")
        self._reader_skew = skews[3]

    def run(self, seconds: float) -> Iterator[frozenset[str]]:
        """Let time pass; yield what is voted out after each step."""
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            for cluster in self.clusters:
                cluster.step()
            for cluster in self.clusters:
                if cluster.reachable:
                    unix_time = EPOCH.timestamp() + self.now + self._reader_skew
                    self.votes.observe(cluster.name, cluster.healths.values(), now=self.now, unix_time=unix_time)
            if self.votes.due is not None and self.votes.due <= self.now:
                self.votes.expire(self.now)
            yield self.votes.voted_out(WEB)

    def until(self, expected: set[str], *, within: float) -> float:
        """Let time pass until exactly *expected* is voted out; return how long that took."""
        began = self.now
        for out in self.run(within):
            if out == expected:
                return self.now - began
        pytest.fail(f"not within {within} s: {set(self.votes.voted_out(WEB))}, not {expected}")


def only(world: World, seconds: float, expected: set[str]) -> None:
    """Let time pass; nothing but *expected* is voted out meanwhile."""
    assert set(world.run(seconds)) <= {frozenset(expected)}


@settings(max_examples=20)
@given(skews=SKEWS, phases=PHASES, healthy_for=st.integers(10, 30))
def test_an_address_dies_and_comes_back(skews: Sequence[float], phases: Sequence[float], healthy_for: int) -> None:
    """It is out within 20 s, stays out, and is back soon after: whatever the clocks say."""
    world = World(skews, phases)
    only(world, healthy_for, set())
    world.down = {ONE}
    assert 10 <= world.until({ONE}, within=20) <= 15.5
    only(world, 60, {ONE})
    world.down = set()
    assert 5 <= world.until(set(), within=20) <= 10.5
    only(world, 30, set())


@settings(max_examples=20)
@given(phases=PHASES, order=st.permutations(range(3)))
def test_a_prober_that_is_cut_off_removes_nothing(phases: Sequence[float], order: Sequence[int]) -> None:
    """One that reaches no load balancer, or that nobody can read, decides nothing; nor do two that nobody reads."""
    world = World(phases=phases)
    first, second, _ = (world.clusters[place] for place in order)
    first.finds = lambda address: False
    only(world, 60, set())
    second.reachable = False
    only(world, 60, set())
    first.reachable = False
    only(world, 31, set())  # until its votes are too old
    world.down = {ONE, TWO}
    only(world, 60, set())
    second.reachable = True
    world.until({ONE, TWO}, within=20)  # two of three, one of which has been at it for long


@settings(max_examples=20)
@given(phases=PHASES, order=st.permutations(range(3)), at=st.integers(0, 10))
def test_a_leader_that_is_killed_is_replaced(phases: Sequence[float], order: Sequence[int], at: int) -> None:
    """Its votes hold until the next one goes on, 18 s later, in two clusters at once."""
    world = World(phases=phases)
    world.down = {ONE}
    world.until({ONE}, within=20)
    only(world, at, {ONE})
    killed = [world.clusters[place] for place in order[:2]]
    for cluster in killed:
        cluster.kill()
    only(world, 18, {ONE})
    for cluster in killed:
        cluster.lead()
    only(world, 60, {ONE})
