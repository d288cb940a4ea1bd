# SPDX-License-Identifier: Apache-2.0

"""Puts the controller together: which part gets which, in what order things start, and how they end."""

from __future__ import annotations

import logging
import signal
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from dnsserver.http import loop_delay
from dnsserver.metrics.controller import ControllerMetrics, ControllerState, HealthState
from dnsserver.net.bounds import HeldOctets
from dnsserver.programs.from_settings import cluster_of, other_clients_of
from dnsserver.programs.run import election_of, run_program, start_http
from dnsserver.settings.fields import Settings
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector, wall_time
from locator.model import Health
from locator.podlocators.rules import LocatorRules
from locator.policies.rules import PolicyRules
from locator.times import time_text

if TYPE_CHECKING:
    from locator.cluster.api_client import ApiClient
    from locator.cluster.leading.prober import LeaderProber
    from locator.cluster.reflector import Reflector
    from locator.health.rules import HealthRules

log = logging.getLogger("topodns")

LEASE = FIELD_MANAGER = "topodns-controller"


def run(settings: Settings) -> None:
    """Keep what the controller writes true until SIGTERM or SIGINT. Raises CannotListen, BadCluster, BadDump."""
    run_program(_run, settings)


async def _run(settings: Settings) -> None:
    client = cluster_of(settings)
    kinds = f"PodLocators{', ServiceHealths' if settings.health else ''} and the status of ServicePolicies"
    elector = LeaderElector(client, election_of(settings, client, LEASE), writes=kinds)
    locators = Controller(
        client,
        elector,
        LocatorRules(settings.labels),
        field_manager=FIELD_MANAGER,
        writes_per_second=settings.writes_per_second,
    )
    policies = Controller(
        client,
        elector,
        PolicyRules(lambda: time_text(time.time(), "seconds")),
        field_manager=FIELD_MANAGER,
        writes_per_second=settings.writes_per_second,
    )
    watches: dict[str, Reflector] = {}
    probes: Counter[str] = Counter()
    controllers, prober = [locators], None
    if settings.health:
        rules, checks, prober = _health_of(settings, client, elector, probes)
        controllers.append(checks)
    elif settings.cluster:
        log.warning("--cluster has no effect without --health: the controller probes nothing")
    for controller in controllers:
        watches |= controller.watches

    def state() -> ControllerState:
        writer, objects, found = locators.writer, policies.object_counts, None
        for controller in controllers:
            objects |= controller.object_counts
        if prober is not None:
            healthy = Counter(entry.healthy for entry in rules.entries)
            found = HealthState(checks.writer.writes, probes, {state: healthy[state] for state in (True, False)})
        leading = {elector.lease: writer.leading}
        # The watches that readiness waits for: an alert is about those, and nothing depends on the others.
        return ControllerState(writer.writes, policies.writer.writes, leading, writer.waiting, objects, watches, found)

    def health() -> Mapping[str, Health]:
        status = {name: Health(True, found.text) for name, found in policies.health().items()}  # nothing depends on it
        return status | {name: found for each in controllers for name, found in each.health().items()}

    works = [policies.run, *(controller.run for controller in controllers), *([] if prober is None else [prober.run])]
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            metrics = ControllerMetrics(state)
            await start_http(nursery, settings, metrics, HeldOctets(metrics.failures), health)
            nursery.start_soon(loop_delay.measure, metrics.loop_delays)
            nursery.start_soon(elector.lead, *works)
            async for _ in signals:
                break
            log.info("ending: the controller stops writing, and releases its Lease if it leads")
            nursery.cancel_scope.cancel()


def _health_of(
    settings: Settings, client: ApiClient, elector: LeaderElector, probes: Counter[str]
) -> tuple[HealthRules, Controller, LeaderProber]:
    """Return what probes load balancers, and what writes the results. Raises BadCluster, BadDump."""
    from locator.cluster.dump_files import DumpFiles
    from locator.cluster.leading.prober import LeaderProber
    from locator.health.rules import HealthRules

    clients = other_clients_of(settings, client)
    others = {cluster.name: clients[cluster.name] or DumpFiles((cluster.path,)) for cluster in settings.cluster}
    rules = HealthRules(settings.cluster_name, others=others, wall=wall_time)
    controller = Controller(
        client,
        elector,
        rules,
        field_manager=FIELD_MANAGER,
        writes_per_second=settings.writes_per_second,
        others=others,
    )
    return rules, controller, LeaderProber(controller, rules, elector, results=probes)
