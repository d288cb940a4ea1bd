# SPDX-License-Identifier: Apache-2.0

"""Probes load balancer addresses while this replica leads, each every INTERVAL_SECONDS, and reports what it finds.

Each address has a task and a moment of its own in the interval. So thousands are not probed in the same instant, and
one that hangs delays no other one. Those of one namespace, however many hang, delay none of another (``fair_shares``).
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import trio

from locator.cluster.leading import probe
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector
from locator.control.fair_shares import FairTurns, Turn
from locator.health.rules import HealthRules, health_name
from locator.health.targets import ProbeTarget

log = logging.getLogger("topodns")

INTERVAL_SECONDS = 5.0  # three failures in a row are found within 17 s
IN_FLIGHT = 500  # probes. If all hang, this is enough for 1,250 addresses; beyond that, the interval grows
IN_FLIGHT_EACH = IN_FLIGHT // 2  # of one namespace: enough for 625 that hang

# For other clusters, before a leader begins without those that cannot be read. Until then, the votes of the leader
# before it count: they are not too old yet.
WAIT_SECONDS = 10.0

# The results of a probe, as the metrics count them. ``UNKNOWN``: this machine could not find out.
SUCCESS, FAILURE, UNKNOWN = "success", "failure", "unknown"


class LeaderProber:
    """Probes what *rules* name while this replica leads by *elector*; *controller* writes what that changes.

    A replica that cannot reach its API server any more goes on probing until it hears of another leader, so that it has
    results when the API server is back.
    """

    def __init__(self, controller: Controller, rules: HealthRules, elector: LeaderElector) -> None:
        self.controller = controller
        self.results: Counter[str] = Counter()
        """The number of probes by result."""
        self._rules, self._elector = rules, elector
        self._changed = trio.Event()
        elector.on_observed(self._wake)
        controller.on_change(self._wake)

    @property
    def addresses(self) -> Counter[bool]:
        """The number of addresses by whether they are healthy; none while this replica does not probe."""
        return Counter(entry.healthy for entry in self._rules.entries)

    async def run(self) -> None:
        """Probe while this replica leads, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_waiting)
            prober, probing = Prober(nursery, self._record, results=self.results), False
            while True:
                self._changed = trio.Event()
                if probing != (self._elector.led_last and self._rules.objects.has_synced):
                    probing = not probing
                    if probing:
                        for name in self._rules.start_probing():
                            self._compare(name)
                    else:
                        self._rules.stop_probing()
                prober.follow(self._rules.targets if probing else frozenset())
                await self._changed.wait()

    def _wake(self) -> None:
        """Look again at what there is to probe."""
        self._changed.set()

    async def _stop_waiting(self) -> None:
        await trio.sleep(WAIT_SECONDS)
        self._rules.objects.stop_waiting()
        self._wake()

    def _record(self, target: ProbeTarget, failure: str) -> None:
        entry = self._rules.record(target, failure)
        if entry is not None:
            state = "healthy again" if entry.healthy else f"unhealthy: {entry.message}"
            log.info("Service %s: %s port %d is %s", target.service, target.address, target.port, state)
            self._compare(health_name(target.service), urgent=True)

    def _compare(self, name: str, *, urgent: bool = False) -> None:
        self.controller.reconciler.queue.add(name, urgent=urgent)
        self.controller.writer.wake()


class Prober:
    """Probes what ``follow`` says, with tasks in *nursery*.

    Calls *on_result* with each target and why it is not healthy, empty if it is. *results* counts all probes.
    """

    def __init__(
        self, nursery: trio.Nursery, on_result: Callable[[ProbeTarget, str], None], *, results: Counter[str]
    ) -> None:
        self._nursery = nursery
        self._on_result = on_result
        self._results = results
        self._turns = FairTurns(most=IN_FLIGHT, each=IN_FLIGHT_EACH)
        self._lookups = probe.Lookups()
        self._tasks: dict[ProbeTarget, trio.CancelScope] = {}

    def follow(self, targets: Collection[ProbeTarget]) -> None:
        """Probe *targets* from now on, and nothing else."""
        for target in self._tasks.keys() - targets:
            self._tasks.pop(target).cancel()
        for target in targets:
            if target not in self._tasks:
                scope = self._tasks[target] = trio.CancelScope()
                self._nursery.start_soon(self._probe_regularly, target, scope)

    async def _probe_regularly(self, target: ProbeTarget, scope: trio.CancelScope) -> None:
        with scope:
            due = trio.current_time() + random.random() * INTERVAL_SECONDS
            while True:
                await trio.sleep_until(due)
                async with self._turn(target.namespace):
                    failure = await self._probe(target)
                self._results[UNKNOWN if failure is None else FAILURE if failure else SUCCESS] += 1
                if failure is not None:
                    self._on_result(target, failure)
                due = max(due + INTERVAL_SECONDS, trio.current_time())  # one that is late makes up for nothing

    @asynccontextmanager
    async def _turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn of *namespace*, and hold it."""
        begun = trio.Event()
        turn = Turn(begun.set)
        self._turns.want(turn, namespace)
        try:
            await begun.wait()
            yield
        finally:
            self._turns.leave(turn, namespace)

    async def _probe(self, target: ProbeTarget) -> str | None:
        try:
            return await probe.failure_of(target, self._lookups)
        except Exception:  # boundary: one probe
            log.exception("%s: internal error while probing %s", target.service, target.address)
            return None
