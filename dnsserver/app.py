"""Composition: which part is given which, in what order things start, and how they end."""

from __future__ import annotations

import logging
import random
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from dnsserver.answers.decision import Authority
from dnsserver.forwarders.stub_blocks import ECS_RULE
from dnsserver.metrics.counters import (
    Counts,
)
from dnsserver.metrics.exposition import (
    ControllerMetrics,
    ControllerState,
    Metrics,
    Undescribed,
)
from dnsserver.names import VERIFIED
from dnsserver.net import tcp, udp
from dnsserver.net.sockets import (
    WILDCARDS,
    CannotListen,
    announce,
    bound_pairs,
    bound_stream,
    connection_limit,
    default_listen,
    in_pod,
)
from dnsserver.responder.responder import Responder
from dnsserver.settings.fields import Settings
from dnsserver.settings.values import NODES, POD_LOCATORS, PODS, ListenAddress
from locator.cluster import dump_files
from locator.cluster.api_client import ApiClient
from locator.cluster.publisher import Publisher, Source, Subscriber, log_findings, on_new_findings
from locator.control.lease import LeaderElection
from locator.model import Finding, Health
from locator.state.snapshot import Snapshot
from locator.state.store import Store
from locator.topology.scope import Scope

if TYPE_CHECKING:
    from dnsserver.net.upstream import Upstream
    from locator.cluster.event_poster import EventPoster

log = logging.getLogger("topodns")

PORT, HTTP_PORT = 1053, 9153
LEASE = "topodns-controller"
DRAIN_SECONDS = 5.0  # for connections to finish what they have begun
LOOK_SECONDS = 1.0  # between looks at what time alone brings about
OTHER_DESCRIPTORS = 64  # for listeners, HTTP, files and the process that reads them
RESOLV_CONF = "/etc/resolv.conf"
SWITCH_SECONDS = 0.001  # the most that a thread taking in a snapshot holds a query up at a time


def store_of(settings: Settings) -> Store:
    """Return an empty store with what the settings say of networks and forwarders."""
    return Store(
        subnets={subnet.network: dict(subnet.labels) for subnet in settings.subnet},
        forwarders=settings.trusted_forwarder,
        forwarder_services=settings.forwarder_service,
        pods=PODS in settings.client_source,
        pod_locators=POD_LOCATORS in settings.client_source,
        nodes=NODES in settings.client_source,
        pod_names=settings.pods == VERIFIED,
        scope=Scope(frozenset(settings.namespace), settings.namespace_selector, settings.service_selector),
        endpoint_records=not settings.no_endpoints,
    )


def authority_of(settings: Settings) -> Authority:
    """Return what a server with these settings answers from."""
    own = [each.address for each in listen_of(settings) if each.address not in WILDCARDS]
    return Authority(
        zones=settings.zone,
        ttl=settings.ttl,
        addresses=settings.ns_address or tuple(dict.fromkeys(own)),
        unknown_gets_all=settings.unknown_client == "all",
        pods=settings.pods,
        endpoint_pod_names=settings.endpoint_pod_names,
        ignore_empty_service=settings.ignore_empty_service,
        zonal=settings.zonal,
        chases=bool(upstream_of(settings)),
    )


def upstream_of(settings: Settings) -> tuple[ListenAddress, ...]:
    """Return the name servers that a server with these settings asks for names elsewhere; () for nobody."""
    if settings.upstream is not None:
        return settings.upstream
    if not in_pod():
        return ()
    from dnsserver.net import upstream  # it brings dnspython, which those without an upstream need not

    try:
        return upstream.servers_in(RESOLV_CONF)
    except upstream.NoServers as error:
        log.warning("--upstream: %s; targets of ExternalName Services are not resolved", error)
        return ()


def listen_of(settings: Settings) -> tuple[ListenAddress, ...]:
    """Return where a server with these settings answers DNS."""
    return settings.listen or (default_listen(PORT),)


def cluster_of(settings: Settings) -> ApiClient:
    """Return the live cluster that the settings name. Raises BadCluster."""
    return ApiClient(kubeconfig=settings.kubeconfig, context=settings.context)


def serve(settings: Settings) -> None:
    """Answer until SIGTERM or SIGINT. Raises CannotListen, BadCluster, and BadDump before the first view."""
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        trio.run(_Server(settings).run)
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(error: BaseException) -> BaseException:
    """Return what ended a tree of tasks: the first failure in it."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def control(settings: Settings) -> None:
    """Keep PodLocators true until SIGTERM or SIGINT. Raises CannotListen, BadCluster."""
    try:
        trio.run(_control, settings)
    except BaseExceptionGroup as group:
        raise _first(group) from None


async def _control(settings: Settings) -> None:
    from locator.cluster.controller import Controller
    from locator.podlocators.objects import CONTROLLER_RESOURCES

    cluster = cluster_of(settings)
    namespace, name = settings.lease or (cluster.namespace, LEASE)
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"  # a container that starts again is somebody else
    election = LeaderElection(identity, namespace=namespace, name=name)
    controller = Controller(cluster, election, labels=settings.labels, writes_per_second=settings.writes_per_second)
    watches = {CONTROLLER_RESOURCES[kind].name: each for kind, each in controller.reflectors.items()}

    def look() -> ControllerState:
        return ControllerState(controller.writes, controller.leading, controller.waiting, controller.objects, watches)

    def health() -> Mapping[str, Health]:
        return {kind: each.health() for kind, each in watches.items()}

    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            await start_http(nursery, settings, ControllerMetrics(look), health)
            nursery.start_soon(controller.run)
            async for _ in signals:
                break
            log.info("ending: nothing more is written, and the Lease is given back if it is held")
            nursery.cancel_scope.cancel()


class _Server:
    """Everything of one running server, put together."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._counts = Counts()
        store = store_of(settings)
        self._metrics = Metrics(self._counts, [kind.__name__ for kind in store.kinds])
        authority = authority_of(settings)
        nsid = socket.gethostname().encode() if settings.nsid is None else settings.nsid
        self._responder = Responder(
            authority,
            self._counts,
            chance=random.random,
            client_option=settings.client_option,
            proxy_protocol=settings.proxy_protocol,
            nsid=nsid,
        )
        self._upstream = _upstream(settings, self._counts) if authority.chases else None
        others = OTHER_DESCRIPTORS + (self._upstream.most_sockets if self._upstream is not None else 0)
        limit = connection_limit(settings.max_connections, others=others)
        self._streams = tcp.Server(
            self._responder,
            self._counts,
            self._upstream,
            limit=limit,
            idle=float(settings.tcp_idle_timeout),
            in_flight=settings.max_queries_in_flight,
        )
        self._publisher = Publisher(store, programmed=self._counts.programmed)
        self._events: EventPoster | None = None
        self._source = self._source_of(store)
        self._publisher.subscribe(answering(self._responder, self._source, settings.stale_after))
        self._publisher.subscribe(self._metrics.show)
        self._publisher.subscribe(ready_line())
        self._publisher.subscribe(on_new_findings(log_findings))
        if self._events is not None:
            self._publisher.subscribe(on_new_findings(self._events.offer))

    def _source_of(self, store: Store) -> Source:
        """Return what reads the cluster, and prepare what only a live one has."""
        settings = self._settings
        if settings.snapshot:
            files = dump_files.DumpFiles(settings.snapshot)
            return dump_files.DumpSource(files, self._publisher, reread=self._counts.reread)
        from locator.cluster.event_poster import EventPoster
        from locator.cluster.informer import Informer
        from locator.cluster.state_file import StateFile

        cluster, folder, kept = cluster_of(settings), settings.state_dir, None
        if folder is not None:
            kept = StateFile(folder, cluster=cluster.identity, kinds=store.kinds, max_age=settings.state_max_age)
        informer = Informer(cluster, store.kinds, self._publisher, state_file=kept)
        self._metrics.watches = {kind.__name__: reflector for kind, reflector in informer.reflectors.items()}
        self._events = EventPoster(cluster, socket.gethostname())
        return informer

    async def run(self) -> None:
        """Bind, read, answer, and end in the opposite order."""
        pairs = bound_pairs(listen_of(self._settings))
        async with trio.open_nursery() as clients:  # connections outlive the listeners
            await clients.start(self._streams.serve)
            async with trio.open_nursery() as nursery:
                with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                    for datagrams, streams in pairs:
                        await nursery.start(udp.serve, datagrams, self._responder, self._counts, self._upstream)
                        announce("udp", datagrams.getsockname())
                        await nursery.start(self._streams.listen, streams)
                        announce("tcp", streams.getsockname())
                    await start_http(nursery, self._settings, self._metrics, self._source.health)
                    nursery.start_soon(self._publisher.run)
                    nursery.start_soon(self._source.run)
                    if self._events is not None:
                        nursery.start_soon(self._events.run)
                    nursery.start_soon(self._look_after)
                    async for number in signals:
                        if number != signal.SIGHUP:
                            break
                        self._source.read_again()
                    log.info("ending: no new connections, open ones finish what they have begun")
                    nursery.cancel_scope.cancel()
            self._streams.drain()
            clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS

    async def _look_after(self) -> None:
        """Do what time alone brings about: answers become stale, forwarders turn out to name no clients."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            self._responder.mark_stale(self._source.stale(self._settings.stale_after))
            for forwarder in self._counts.unnamed_clients.untold(trio.current_time()):
                log.warning(
                    "forwarder %s names no client, so its clients are unknown: put '%s' into its Corefile's stub "
                    "block; 'topodns corefile' prints what others than CoreDNS need",
                    forwarder,
                    ECS_RULE,
                )
            for source in self._counts.ignored_clients.untold(trio.current_time()):
                log.warning(
                    "%s names clients, but nobody vouched for it as a forwarder, so its clients are located by its own "
                    "address: if it forwards for them, start topodns with --trusted-forwarder %s/%d",
                    source,
                    source,
                    128 if ":" in source else 32,
                )


def answering(responder: Responder, source: Source, stale_after: float) -> Subscriber:
    """Return a subscriber that answers from each view, marked as stale from the beginning if it is."""

    def subscriber(snapshot: Snapshot, _: Sequence[Finding]) -> None:
        responder.mark_stale(source.stale(stale_after))
        responder.publish(snapshot)

    return subscriber


def ready_line() -> Subscriber:
    """Return a subscriber that prints ``ready`` at the first publication, alone on a line: programs wait for it."""
    said = False

    def subscriber(snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        nonlocal said
        if not said:
            print("ready", file=sys.stderr, flush=True)
        said = True

    return subscriber


def _upstream(settings: Settings, counts: Counts) -> Upstream:
    from dnsserver.net.upstream import Upstream

    return Upstream(upstream_of(settings), counts)


async def start_http(
    nursery: trio.Nursery, settings: Settings, metrics: Undescribed, health: Callable[[], Mapping[str, Health]]
) -> None:
    """Serve metrics, and *health* as readiness, unless that is off. Raises CannotListen if it was asked for."""
    listen = default_listen(HTTP_PORT) if settings.http is None else settings.http
    if not isinstance(listen, ListenAddress):
        return
    from dnsserver.http import application

    try:
        sock = bound_stream("--http", listen)
    except CannotListen as error:
        if settings.http is not None:
            raise
        log.warning("%s; metrics and health are not served", error)
        return
    name = sock.getsockname()
    await nursery.start(application.serve, sock, application.application(metrics.registry(), ready=health))
    announce("http", name)
