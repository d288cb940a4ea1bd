# SPDX-License-Identifier: Apache-2.0

"""Puts the controller together: which part gets which, in what order things start, and how they end."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from dnsserver.http import loop_delay
from dnsserver.metrics.controller import (
    PODLOCATOR_WRITES,
    PODLOCATORS_WAITING,
    PROBED_ADDRESSES,
    PROBES,
    SERVICEHEALTH_WRITES,
    SERVICEPOLICY_WRITES,
    ControllerMetrics,
)
from dnsserver.metrics.families import LEADING, Family, Values, labelled
from dnsserver.net.bounds import HeldOctets
from dnsserver.programs.from_settings import cluster_of
from dnsserver.programs.other_clusters import OtherClusters
from dnsserver.programs.run import election_of, run_program, start_http
from dnsserver.settings.settings import Settings
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector, timestamp_now
from locator.cluster.publisher import FindingLog
from locator.model import Health
from locator.podlocators.rules import LocatorRules
from locator.policies.rules import PolicyRules
from locator.times import time_text

if TYPE_CHECKING:
    from locator.cluster.cluster_folder import OpenedCluster
    from locator.cluster.leading.prober import LeaderProber

log = logging.getLogger("topodns")

LEASE = FIELD_MANAGER = "topodns-controller"


def run(settings: Settings) -> None:
    """Keep what the controller writes true until SIGTERM or SIGINT. Raises CannotListen, BadCluster, BadDump."""
    run_program(_run, settings)


async def _run(settings: Settings) -> None:
    client = cluster_of(settings)
    kinds = f"PodLocators{', ServiceHealths' if settings.health else ''} and the status of ServicePolicies"
    elector = LeaderElector(client, election_of(settings, client, LEASE), writes=kinds)
    make = partial(Controller, client, elector, field_manager=FIELD_MANAGER)
    locators = make(LocatorRules(settings.labels))
    policies = make(PolicyRules(lambda: time_text(time.time(), "seconds")))
    others = OtherClusters(settings, client)
    prober = _prober(settings, others, elector, make) if settings.health else None
    if prober is None and (settings.cluster or settings.cluster_dir is not None):
        flag = "--cluster" if settings.cluster else "--cluster-dir"
        log.warning("%s has no effect without --health: the controller probes nothing", flag)
    needed = [locators, *([] if prober is None else [prober.controller])]

    def health() -> Mapping[str, Health]:
        status = {name: Health(True, found.text) for name, found in policies.health().items()}  # nothing depends on it
        return status | {name: found for controller in needed for name, found in controller.health().items()}

    works = [policies.run, *(controller.run for controller in needed), *([] if prober is None else [prober.run])]
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            metrics = metrics_of(elector, locators, policies, prober)
            await start_http(nursery, settings, metrics, HeldOctets(metrics.failures), health)
            nursery.start_soon(loop_delay.measure, metrics.loop_delays)
            nursery.start_soon(elector.lead, *works)
            if prober is not None:
                FindingLog().log(others.findings)
                nursery.start_soon(others.follow, partial(_change, prober.controller), FindingLog().log)
            async for _ in signals:
                break
            log.info("ending: the controller stops writing, and releases its Lease if it leads")
            nursery.cancel_scope.cancel()


def _prober(
    settings: Settings, others: OtherClusters, elector: LeaderElector, make: Callable[..., Controller]
) -> LeaderProber:
    """Return what probes load balancers, and its controller."""
    from locator.cluster.leading.prober import LeaderProber
    from locator.health.rules import HealthRules

    rules = HealthRules(settings.cluster_name, timestamp=timestamp_now)
    controller = make(rules)
    for name, opened in others.opened.items():
        controller.add_cluster(name, opened)
    return LeaderProber(controller, rules, elector)


def _change(controller: Controller, name: str, opened: OpenedCluster | None) -> None:
    """Have a controller read another cluster from now on, or no longer if *opened* is None."""
    if opened is None:
        controller.remove_cluster(name)
    else:
        controller.add_cluster(name, opened)


def metrics_of(
    elector: LeaderElector, locators: Controller, policies: Controller, prober: LeaderProber | None
) -> ControllerMetrics:
    """Return the metrics of a controller; *prober* is None without ``--health``."""
    controllers, watches = [policies, locators], locators.watches
    shown: dict[Family, Callable[[], Values | float]] = {
        LEADING: lambda: {(elector.lease,): elector.is_leader()},
        PODLOCATOR_WRITES: lambda: locators.writer.writes,
        PODLOCATORS_WAITING: lambda: locators.writer.waiting,
        SERVICEPOLICY_WRITES: lambda: policies.writer.writes,
    }
    if prober is not None:
        controllers.append(prober.controller)
        watches = watches | prober.controller.watches
        shown |= {
            SERVICEHEALTH_WRITES: lambda: prober.controller.writer.writes,
            PROBES: lambda: labelled(prober.results),
            PROBED_ADDRESSES: lambda: {(str(state).lower(),): number for state, number in prober.addresses.items()},
        }

    def objects() -> dict[str, int]:
        return {kind: number for controller in controllers for kind, number in controller.object_counts.items()}

    # The watches that readiness waits for: an alert is about those, and nothing depends on the others.
    return ControllerMetrics(objects, watches, shown)
