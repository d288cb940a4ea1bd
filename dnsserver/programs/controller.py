# SPDX-License-Identifier: Apache-2.0

"""Puts the controller together: which part gets which, in what order things start, and how they end."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

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
from dnsserver.metrics.families import LEADING, Family, Values, Watch, labelled
from dnsserver.net.bounds import HeldOctets
from dnsserver.programs.from_settings import cluster_of
from dnsserver.programs.other_clusters import OtherClusters
from dnsserver.programs.run import election_of, run_program, start_http
from dnsserver.settings.settings import Settings
from locator.cluster import memory
from locator.cluster.credentials import NoKubeconfig
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector, timestamp_now
from locator.cluster.publisher import FindingLog, only_new
from locator.model import Health
from locator.podlocators.rules import LocatorRules
from locator.policies.rules import PolicyRules
from locator.printable import shell_words
from locator.times import time_text

if TYPE_CHECKING:
    from dnsserver.programs.federation import Federation
    from dnsserver.programs.publishing import NamePublisher
    from locator.cluster.api_client import ApiClient
    from locator.cluster.cluster_folder import OpenedCluster
    from locator.cluster.leading.prober import LeaderProber

log = logging.getLogger("topodns")

LEASE = FIELD_MANAGER = "topodns-controller"


def run(settings: Settings) -> None:
    """Keep what the controller writes true until SIGTERM or SIGINT. Raises CannotListen, BadCluster, BadDump."""
    memory.keep_little()
    run_program(_run, settings)


async def _run(settings: Settings) -> None:
    client = _own_cluster(settings)
    others = OtherClusters(settings, client)
    federation = _federation(settings, client, others)
    parts = None if federation is not None and federation.is_own else _parts(settings, client, others)
    prober = parts.prober if parts is not None else None
    _warn_of_missing_flags(settings)
    if parts is None and (settings.health or settings.publish):
        log.warning("--health and --publish have no effect where the own cluster is the federation API of --federate")

    def change(name: str, opened: OpenedCluster | None) -> None:
        if prober is not None:
            if opened is None:
                prober.controller.remove_cluster(name)
            else:
                prober.controller.add_cluster(name, opened)
        if federation is not None:
            federation.change(name, opened)

    def health() -> Mapping[str, Health]:
        found = {} if parts is None else parts.health()
        return found if federation is None else {**found, **federation.federator.health()}

    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            metrics = metrics_of(parts, federation)
            await start_http(nursery, settings, metrics, HeldOctets(metrics.failures), health)
            nursery.start_soon(loop_delay.measure, metrics.loop_delays)
            if parts is not None:
                nursery.start_soon(parts.elector.lead, *parts.works())
            if federation is not None:
                nursery.start_soon(federation.run)
            tell = only_new(FindingLog().log)
            tell(others.findings)
            others.subscribe(change, tell)
            nursery.start_soon(others.follow)
            async for _ in signals:
                break
            log.info("ending: the controller stops writing, and releases its Lease if it leads")
            nursery.cancel_scope.cancel()


def _own_cluster(settings: Settings) -> ApiClient:
    """Return a client of the own cluster. Raises BadCluster."""
    try:
        return cluster_of(settings)
    except NoKubeconfig as error:
        if settings.federate is None:
            raise
        path, context = settings.federate.path, settings.federate.context
        flags = shell_words("--kubeconfig", path, *(() if context is None else ("--context", context)))
        raise NoKubeconfig(f"{error}; without an own cluster, name the federation API's: {flags}") from None


def _warn_of_missing_flags(settings: Settings) -> None:
    """Log the flags that have no effect in a controller, since another one is missing."""
    of_clusters = {"--cluster": settings.cluster, "--cluster-dir": settings.cluster_dir}
    of_names = {
        "--federation": settings.federation,
        "--upstream": settings.upstream,
        "--cluster-max-age": settings.cluster_max_age != Settings.cluster_max_age,
    }
    reads_others = settings.health or settings.publish or settings.federate is not None
    for flag in filter(of_clusters.get, () if reads_others else of_clusters):
        log.warning("%s has no effect without --health, --publish or --federate", flag)
    for flag in filter(of_names.get, () if settings.publish else of_names):
        log.warning("%s has no effect without --publish", flag)


class Parts(NamedTuple):
    """What the controller does in its own cluster while it leads there.

    ``prober`` is None without ``--health``, ``names`` without ``--publish``.
    """

    elector: LeaderElector
    locators: Controller
    policies: Controller
    prober: LeaderProber | None
    names: NamePublisher | None

    @property
    def needed(self) -> list[Controller]:
        """What readiness needs."""
        return [self.locators, *([] if self.prober is None else [self.prober.controller])]

    def works(self) -> list[Callable[[], Awaitable[None]]]:
        """Return what runs while the controller leads."""
        more = [part.run for part in (self.prober, self.names) if part is not None]
        return [self.policies.run, *(controller.run for controller in self.needed), *more]

    def health(self) -> Mapping[str, Health]:
        """Return the checks of readiness. Nothing depends on what watches ServicePolicies."""
        status = {name: Health(True, found.text) for name, found in self.policies.health().items()}
        status |= {name: found for controller in self.needed for name, found in controller.health().items()}
        return status if self.names is None else {**status, **self.names.health()}


def _parts(settings: Settings, client: ApiClient, others: OtherClusters) -> Parts:
    """Return what is done in the own cluster. Raises BadDump."""
    more = [*(["ServiceHealths"] if settings.health else []), *(["DNSEndpoints"] if settings.publish else [])]
    kinds = f"{', '.join(['PodLocators', *more])} and the status of ServicePolicies"
    election = election_of(settings, client, LEASE)
    elector = LeaderElector(client, election, writes=kinds)
    make = partial(Controller, client, elector, field_manager=FIELD_MANAGER)
    locators = make(LocatorRules(settings.labels))
    policies = make(PolicyRules(lambda: time_text(time.time(), "seconds")))
    prober = _prober(settings, others, elector, make) if settings.health else None
    names = None
    if settings.publish:
        from dnsserver.programs.publishing import NamePublisher

        names = NamePublisher(settings, others, election.namespace, make)
    return Parts(elector, locators, policies, prober, names)


def _federation(settings: Settings, client: ApiClient, others: OtherClusters) -> Federation | None:
    """Return what distributes objects, None without ``--federate``. Raises BadCluster."""
    if settings.federate is None:
        return None
    from dnsserver.programs.federation import federation_of

    return federation_of(settings, client, others)


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


def metrics_of(parts: Parts | None, federation: Federation | None) -> ControllerMetrics:
    """Return the metrics of a controller."""
    controllers: list[Controller] = []
    watches: Mapping[str, Watch] = {}
    electors = [part.elector for part in (parts, federation) if part is not None]
    shown: dict[Family, Callable[[], Values | float]] = {
        LEADING: lambda: {(elector.lease,): elector.is_leader() for elector in electors}
    }
    if parts is not None:
        locators, policies, prober = parts.locators, parts.policies, parts.prober
        controllers, watches = [policies, locators], locators.watches
        shown |= {
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
        if parts.names is not None:
            names = parts.names.controller
            controllers.append(names)
            watches = watches | names.watches
            shown[DNSENDPOINT_WRITES] = lambda: names.writer.writes
    if federation is not None:
        shown |= federation.shown

    def objects() -> dict[str, int]:
        return {kind: number for controller in controllers for kind, number in controller.object_counts.items()}

    # The watches that readiness waits for: an alert is about those, and nothing depends on the others.
    return ControllerMetrics(objects, watches, shown)
