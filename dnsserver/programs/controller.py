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
    DNSENDPOINT_WRITES,
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
from dnsserver.programs.from_settings import cluster_of, other_clients_of
from dnsserver.programs.run import election_of, run_program, start_http
from dnsserver.settings.settings import Settings
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector, timestamp_now
from locator.model import Health
from locator.podlocators.rules import LocatorRules
from locator.policies.rules import PolicyRules
from locator.times import time_text

if TYPE_CHECKING:
    from dnsserver.programs.publishing import NamePublisher
    from locator.cluster.api_client import ApiClient
    from locator.cluster.leading.prober import LeaderProber

log = logging.getLogger("topodns")

LEASE = FIELD_MANAGER = "topodns-controller"


def run(settings: Settings) -> None:
    """Keep what the controller writes true until SIGTERM or SIGINT. Raises CannotListen, BadCluster, BadDump."""
    run_program(_run, settings)


async def _run(settings: Settings) -> None:
    client = cluster_of(settings)
    more = [*(["ServiceHealths"] if settings.health else []), *(["DNSEndpoints"] if settings.publish else [])]
    kinds = f"{', '.join(['PodLocators', *more])} and the status of ServicePolicies"
    election = election_of(settings, client, LEASE)
    elector = LeaderElector(client, election, writes=kinds)
    make = partial(Controller, client, elector, field_manager=FIELD_MANAGER)
    locators = make(LocatorRules(settings.labels))
    policies = make(PolicyRules(lambda: time_text(time.time(), "seconds")))
    prober = _prober(settings, client, elector, make) if settings.health else None
    publisher = _publisher(settings, election.namespace, make) if settings.publish else None
    if settings.cluster and prober is None and publisher is None:
        log.warning("--cluster has no effect without --health or --publish: the controller probes nothing")
    if settings.federation and publisher is None:
        log.warning("--federation has no effect without --publish: the controller publishes no names")
    needed = [locators, *([] if prober is None else [prober.controller])]

    def health() -> Mapping[str, Health]:
        status = {name: Health(True, found.text) for name, found in policies.health().items()}  # nothing depends on it
        status |= {name: found for controller in needed for name, found in controller.health().items()}
        return status if publisher is None else {**status, **publisher.health()}

    works = [policies.run, *(controller.run for controller in needed), *([] if prober is None else [prober.run])]
    works += [] if publisher is None else [publisher.run]
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            metrics = metrics_of(
                elector, locators, policies, prober, None if publisher is None else publisher.controller
            )
            await start_http(nursery, settings, metrics, HeldOctets(metrics.failures), health)
            nursery.start_soon(loop_delay.measure, metrics.loop_delays)
            nursery.start_soon(elector.lead, *works)
            async for _ in signals:
                break
            log.info("ending: the controller stops writing, and releases its Lease if it leads")
            nursery.cancel_scope.cancel()


def _prober(
    settings: Settings, client: ApiClient, elector: LeaderElector, make: Callable[..., Controller]
) -> LeaderProber:
    """Return what probes load balancers, and its controller. Raises BadCluster, BadDump."""
    from locator.cluster.dump_files import DumpFiles
    from locator.cluster.leading.prober import LeaderProber
    from locator.health.rules import HealthRules

    clients = other_clients_of(settings, client)
    others = {cluster.name: clients[cluster.name] or DumpFiles((cluster.path,)) for cluster in settings.cluster}
    rules = HealthRules(settings.cluster_name, others=others, timestamp=timestamp_now)
    return LeaderProber(make(rules, others=others), rules, elector)


def _publisher(settings: Settings, namespace: str, make: Callable[..., Controller]) -> NamePublisher:
    """Return what publishes federated names, beside the Lease in *namespace*. Raises BadCluster, BadDump."""
    from dnsserver.programs.publishing import NamePublisher

    return NamePublisher(settings, namespace, make)


def metrics_of(
    elector: LeaderElector,
    locators: Controller,
    policies: Controller,
    prober: LeaderProber | None,
    names: Controller | None,
) -> ControllerMetrics:
    """Return the metrics of a controller; *prober* is None without ``--health``, *names* without ``--publish``."""
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
    if names is not None:
        controllers.append(names)
        watches = watches | names.watches
        shown[DNSENDPOINT_WRITES] = lambda: names.writer.writes

    def objects() -> dict[str, int]:
        return {kind: number for controller in controllers for kind, number in controller.object_counts.items()}

    # The watches that readiness waits for: an alert is about those, and nothing depends on the others.
    return ControllerMetrics(objects, watches, shown)
