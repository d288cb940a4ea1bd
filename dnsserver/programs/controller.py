# SPDX-License-Identifier: Apache-2.0

"""Puts the controller together: which part gets which, in what order things start, and how they end."""

from __future__ import annotations

import logging
import signal
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
from locator.cluster.leading.leader_elector import LeaderElector
from locator.cluster.leading.policy_controller import PolicyController
from locator.model import Health
from locator.podlocators.objects import CONTROLLER_RESOURCES

if TYPE_CHECKING:
    from locator.cluster.api_client import ApiClient
    from locator.cluster.leading.health_controller import HealthController

log = logging.getLogger("topodns")

LEASE = "topodns-controller"


def run(settings: Settings) -> None:
    """Keep what the controller writes true until SIGTERM or SIGINT. Raises CannotListen, BadCluster, BadDump."""
    run_program(_run, settings)


async def _run(settings: Settings) -> None:
    client = cluster_of(settings)
    kinds = f"PodLocators{', ServiceHealths' if settings.health else ''} and the status of ServicePolicies"
    elector = LeaderElector(client, election_of(settings, client, LEASE), writes=kinds)
    locators = Controller(client, elector, labels=settings.labels, writes_per_second=settings.writes_per_second)
    policies = PolicyController(client, elector, writes_per_second=settings.writes_per_second)
    watches = {CONTROLLER_RESOURCES[kind].name: reflector for kind, reflector in locators.reflectors.items()}
    prober = _prober(settings, client, elector) if settings.health else None
    if settings.cluster and prober is None:
        log.warning("--cluster has no effect without --health: the controller probes nothing")
    if prober is not None:
        watches |= {kind.__name__: reflector for kind, reflector in prober.reflectors.items()}

    def state() -> ControllerState:
        writer, objects, probes = locators.writer, policies.object_counts | locators.object_counts, None
        if prober is not None:
            objects |= prober.object_counts
            probes = HealthState(prober.writer.writes, prober.probes, prober.addresses)
        leading = {elector.lease: writer.leading}
        # The watches that readiness waits for: an alert is about those, and nothing depends on the others.
        return ControllerState(writer.writes, policies.writer.writes, leading, writer.waiting, objects, watches, probes)

    def health() -> Mapping[str, Health]:
        clusters = {} if prober is None else prober.clusters
        others = {f"cluster {name}": health for name, health in clusters.items()}
        return policies.health() | {kind: reflector.health() for kind, reflector in watches.items()} | others

    works = [locators.run, policies.run, *([] if prober is None else [prober.run])]
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


def _prober(settings: Settings, client: ApiClient, elector: LeaderElector) -> HealthController:
    """Return what probes load balancers. Raises BadCluster, BadDump."""
    from locator.cluster.dump_files import DumpFiles
    from locator.cluster.leading.health_controller import HealthController

    clients = other_clients_of(settings, client)
    others = {cluster.name: clients[cluster.name] or DumpFiles((cluster.path,)) for cluster in settings.cluster}
    return HealthController(
        client, elector, name=settings.cluster_name, others=others, writes_per_second=settings.writes_per_second
    )
