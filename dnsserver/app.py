# SPDX-License-Identifier: Apache-2.0

"""Puts a server together: which part gets which, in what order things start, and how they end."""

from __future__ import annotations

import gc
import logging
import random
import signal
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from dnsserver import __version__
from dnsserver.clusters import Clusters
from dnsserver.from_settings import (
    HTTP_PORT,
    authority_of,
    listen_of,
    tried_by_kubectl,
    upstream_of,
)
from dnsserver.http import loop_delay
from dnsserver.inspection.tap.tap import Tap
from dnsserver.loaded import loaded
from dnsserver.message.proxy_protocol import PLAIN_HEADERS
from dnsserver.metrics.collector import TopodnsCollector
from dnsserver.metrics.counters import DURATION_BOUNDS, Counts
from dnsserver.metrics.exposition import Metrics
from dnsserver.net import tcp, udp
from dnsserver.net.bounds import HeldOctets
from dnsserver.net.listening import CannotListen, default_listen, in_pod
from dnsserver.net.sockets import announce, bound_pairs, bound_stream, connection_limit, log_alone
from dnsserver.responder.native_feed import AnswerTable
from dnsserver.responder.responder import Responder
from dnsserver.settings.fields import Settings
from dnsserver.settings.values import HONOR, ListenAddress
from locator.cluster import memory
from locator.cluster.publisher import FindingLog, Publisher, Source, Subscriber, on_new_findings
from locator.control.lease import LeaderElection
from locator.ip import Network
from locator.model import Finding, Health
from locator.state.snapshot import Snapshot

if TYPE_CHECKING:
    from starlette.routing import Route

    from dnsserver.http.console.console import Console
    from dnsserver.net.ingress_hosts import IngressHosts
    from dnsserver.net.upstream import Upstream
    from locator.cluster.api_client import ApiClient

log = logging.getLogger("topodns")

DRAIN_SECONDS = 5.0  # for open connections to finish the queries that they have begun
# A pod that ends gets queries until its readiness probe has failed three times, 2 s apart, and every kube-proxy knows.
POD_SHUTDOWN_DELAY = 12
QUIET_SECONDS = 1.0  # without a query, after which nobody sends any more
LAST_SECONDS = 5.0  # in which that is waited for
OTHER_DESCRIPTORS = 64  # for listeners, HTTP, files and the process that reads them
# How many new container objects start a garbage collection, and how many collections of one generation one of the next.
# Answers wait meanwhile. The first two generations have some 2,000 objects, which take a millisecond or two. The third
# has all remembered answers, and can take a fifth of a second, so only the clock starts it. Little garbage gets so old:
# 3 kB of an HTTP connection that is open during two collections of the others.
COLLECTED_AFTER = (700, 2, 1_000_000_000)
COLLECT_SECONDS = 3600.0  # between full collections
DELAY_SECONDS = 5.0  # after which a person asks why nothing is answered; a small cluster takes one or two
SWITCH_SECONDS = 0.001  # the longest that a thread which takes in a snapshot holds up a query at a time


def serve(settings: Settings) -> None:
    """Answer until SIGTERM or SIGINT. Raises CannotListen, BadCluster, and BadDump before the first snapshot."""
    memory.keep_little()
    gc.set_threshold(*COLLECTED_AFTER)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        trio.run(_Server(settings).run)
    except BaseExceptionGroup as group:
        raise first_failure(group) from None


def first_failure(error: BaseException) -> BaseException:
    """Return the first error in groups of errors, which nurseries make."""
    return first_failure(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


class Shutdown:
    """How a process that others ask ends: on SIGINT at once, on SIGTERM when they have had time to go elsewhere.

    The time is *delay* in seconds, by default ``POD_SHUTDOWN_DELAY`` in a pod, and otherwise none.
    """

    def __init__(self, delay: int | None) -> None:
        self._delay = (POD_SHUTDOWN_DELAY if in_pod() else 0) if delay is None else delay
        self._begun = False

    def health(self) -> Mapping[str, Health]:
        """Return why the process is not ready: since SIGTERM, because it ends."""
        return {"shutdown": Health(False, "ending: got SIGTERM")} if self._begun else {}

    async def wait(
        self, signals: AsyncIterator[int], asked: Callable[[], int], hangup: Callable[[], None] = lambda: None
    ) -> None:
        """Return when it is time to end: after the delay, when *asked*, which counts the queries, stays the same.

        A second signal ends the delay. Call *hangup* on SIGHUP.
        """
        if await next_ending(signals, hangup) == signal.SIGINT or not self._delay:
            return
        self._begun = True
        log.info("ending in %d s: topodns is not ready any more, and goes on answering until then", self._delay)
        async with trio.open_nursery() as nursery:

            async def end_at_once() -> None:
                await next_ending(signals, hangup)
                nursery.cancel_scope.cancel()

            nursery.start_soon(end_at_once)
            await trio.sleep(self._delay)
            with trio.move_on_after(LAST_SECONDS):
                before = None
                while (now := asked()) != before:
                    before = now
                    await trio.sleep(QUIET_SECONDS)
            nursery.cancel_scope.cancel()


async def next_ending(signals: AsyncIterator[int], hangup: Callable[[], None]) -> int:
    """Return the next signal that ends the process; call *hangup* on SIGHUP."""
    async for number in signals:
        if number != signal.SIGHUP:
            return number
        hangup()
    raise AssertionError("signals do not end")


class _Server:
    """One server: its parts, and the tasks that run them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._counts = Counts(per_service=settings.metrics_per_service)
        self._held = HeldOctets(self._counts.failures)
        self._clusters = Clusters(settings, self._counts)
        self._shutdown = Shutdown(settings.shutdown_delay)
        self._metrics = Metrics(self._counts, self._clusters.kinds)
        authority = self._authority = authority_of(settings)
        nsid = socket.gethostname().encode() if settings.nsid is None else settings.nsid
        self._native = native_code(settings, seed=random.getrandbits(64))
        self._responder = Responder(
            authority,
            self._counts,
            draw=random.getrandbits,
            client_option=settings.client_option,
            proxy_protocol=settings.proxy_protocol,
            nsid=nsid,
            max_udp_size=settings.max_udp_size,
            native=self._native,
        )
        self._tap = Tap(self._responder, clock=time.time, failed=self._tap_failed)
        self._upstream = _upstream(settings, self._counts) if authority.has_upstream else None
        others = OTHER_DESCRIPTORS + (self._upstream.most_sockets if self._upstream is not None else 0)
        limit = connection_limit(settings.max_connections, others=others)
        self._streams = tcp.Server(
            self._responder,
            self._counts,
            self._upstream,
            held=self._held,
            limit=limit,
            idle=float(settings.tcp_idle_timeout),
            in_flight=settings.max_queries_in_flight,
        )
        self._console: Console | None = None
        self._hosts: IngressHosts | None = None
        joined = self._clusters.joined
        if joined is not None and self._upstream is not None and settings.federation:
            from dnsserver.net.ingress_hosts import IngressHosts

            self._hosts = IngressHosts(_upstream(settings, Counts()), joined.resolve)
            joined.resolve_by(self._hosts.want)
        self._clusters.subscribe(answering(self._responder, self._clusters.source, settings.stale_after))
        self._clusters.show_in(self._metrics)
        self._clusters.subscribe(ready_line())
        self._clusters.subscribe(on_new_findings(FindingLog().log))

    async def run(self) -> None:
        """Bind the sockets, read the cluster, answer; end in the opposite order."""
        pairs = bound_pairs(listen_of(self._settings))
        async with trio.open_nursery() as clients:  # connections outlive the listeners
            await clients.start(self._streams.serve)
            async with trio.open_nursery() as nursery:
                with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                    for datagrams, streams in pairs:
                        answering_udp = partial(udp.serve, native=self._native)
                        await nursery.start(answering_udp, datagrams, self._responder, self._counts, self._upstream)
                        announce("udp", datagrams.getsockname())
                        await nursery.start(self._streams.listen, streams)
                        announce("tcp", streams.getsockname())
                    await start_http(
                        nursery, self._settings, self._metrics, self._held, self._ready, self._pages,
                        may_take_all=self._responder.may_take_all,
                    )  # fmt: skip
                    if self._console is not None:
                        nursery.start_soon(self._console.run)
                    if self._settings.log_queries is not None:
                        from dnsserver.net import query_log

                        nursery.start_soon(query_log.write, self._tap, self._authority, self._settings.log_queries)
                    self._clusters.start(nursery)
                    self._clusters.post_events(nursery)
                    log_all_loaded(nursery, self._clusters, self._settings)
                    kubectl = tried_by_kubectl(self._settings)
                    nursery.start_soon(log_delay, self._clusters.publisher, self._clusters.problems, kubectl)
                    if self._hosts is not None:
                        nursery.start_soon(self._hosts.run)
                    nursery.start_soon(loop_delay.measure, self._metrics.loop_delays, self._check)
                    nursery.start_soon(collect_garbage)
                    await self._shutdown.wait(signals, self._counts.replied, self._clusters.read_again)
                    log.info("ending: topodns accepts no more connections, and open ones finish their queries")
                    nursery.cancel_scope.cancel()
            self._streams.drain()
            clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS

    def _ready(self) -> Mapping[str, Health]:
        """Return what readiness needs."""
        return {**self._shutdown.health(), **self._clusters.health()}

    def _pages(self, loopback: bool) -> list[Route]:
        """Return the routes of the API and of the console, which learns of the cluster from now on."""
        from dnsserver.http.api import Api
        from dnsserver.http.console.changes import Changes
        from dnsserver.http.console.console import Console
        from dnsserver.http.console.views import Around
        from dnsserver.http.inspected import Inspected, Turns

        clusters, turns, changes = self._clusters, Turns(), Changes()
        clusters.subscribe(changes.published)
        honors = self._settings.traffic_distribution == HONOR
        find_all = None if self._upstream is None else self._upstream.find_all
        inspected = Inspected(
            lambda: self._responder.snapshot, clusters.by_name, self._authority, clusters.namespace, honors, find_all
        )
        self._console = Console(inspected, turns, Around(clusters.health, clusters.ages), changes, self._counts)
        return [
            *Api(inspected, turns, self._tap).routes(loopback=loopback),
            *self._console.routes(loopback=loopback),
        ]

    def _tap_failed(self, error: Exception) -> None:
        """Count and log an error in telling of an answer; the answer is sent."""
        self._counts.failures["tap"] += 1
        log.error("a decision could not be told", exc_info=error)

    def _check(self) -> None:
        """Check what changes with time alone: whether answers are stale, and what to warn about."""
        self._responder.mark_stale(self._clusters.source.stale(self._settings.stale_after))
        self._clusters.check_ages()
        warn_about_forwarders(self._counts, trio.current_time())
        warn_about_lookups(self._counts, trio.current_time())


async def collect_garbage() -> None:
    """Collect garbage of all ages from time to time, for ever: a quiet server would keep it."""
    while True:
        await trio.sleep(COLLECT_SECONDS)
        gc.collect()


def native_code(settings: Settings, *, seed: int) -> AnswerTable | None:
    """Return the native code, which repeats answers; None if it is switched off, or cannot be used.

    *seed*, of 64 bits, begins its random numbers, which decide the rotation of records.
    """
    if settings.native == "off":
        return None
    if settings.log_queries is not None:
        log.info("native code is not used with --log-queries: it would keep queries to itself")
        return None
    try:
        import dnsserver.net.native as native  # "from dnsserver.net import" hides why it cannot be loaded
    except ModuleNotFoundError:
        log.info(
            "native code is not installed: Python answers all queries over UDP, at several times the CPU time; to have "
            "it, install cargo, then topodns again"
        )
        return None
    except ImportError as error:  # built for another machine, say
        log.warning("native code is not used: %s", error)
        return None
    if __version__ != native.VERSION:
        log.warning(
            "native code %s is not used, expected version %s: install topodns again", native.VERSION, __version__
        )
        return None
    return native.AnswerTable(PLAIN_HEADERS if settings.proxy_protocol else (), DURATION_BOUNDS, seed)


def answering(responder: Responder, source: Source, stale_after: float) -> Subscriber:
    """Return a subscriber from whose snapshots *responder* answers, marked as stale at once if *source* is."""

    def subscriber(snapshot: Snapshot, _: Sequence[Finding]) -> None:
        responder.mark_stale(source.stale(stale_after))
        responder.publish(snapshot)

    return subscriber


def ready_line() -> Subscriber:
    """Return a subscriber that logs the line ``ready`` at the first snapshot, for programs that wait for it."""
    logged = False

    def subscriber(snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        nonlocal logged
        if not logged:
            log_alone("ready")
        logged = True

    return subscriber


async def log_loaded(publisher: Publisher, networks: Collection[Network], about: str = "") -> None:
    """Log what was loaded, once every kind is known from the cluster itself, not from a state file; then return.

    Only once: ``/metrics`` shows what becomes of it. *networks* are the configured ones of trusted forwarders.
    """
    listed = trio.Event()

    def subscriber(snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        if not publisher.unlisted:
            listed.set()

    publisher.subscribe(subscriber)
    await listed.wait()
    snapshot = publisher.snapshot
    assert snapshot is not None
    found = await trio.to_thread.run_sync(loaded, snapshot, publisher.kinds, networks)  # it looks at every address
    log.info("%s%s", about, found, extra={"fields": found.fields()})


def log_all_loaded(nursery: trio.Nursery, clusters: Clusters, settings: Settings) -> None:
    """Log what was loaded from each cluster, once it is, in tasks of *nursery*."""
    nursery.start_soon(log_loaded, clusters.publisher, settings.trusted_forwarder)
    for cluster in clusters.others:
        nursery.start_soon(log_loaded, cluster.publisher, (), f"cluster {cluster.name}: ")


async def log_delay(publisher: Publisher, problems: Callable[[], Collection[str]], advice: str) -> None:
    """Warn once if the first snapshot does not come, with the *problems* of the moment; then return."""
    await trio.sleep(DELAY_SECONDS)
    if publisher.snapshot is None and (found := sorted(filter(None, problems()))):
        log.warning(
            "not ready after %d s: %s; topodns goes on trying, and answers SERVFAIL until then%s",
            DELAY_SECONDS, "; ".join(found), advice,
        )  # fmt: skip


def warn_about_forwarders(counts: Counts, now: float) -> None:
    """Log the forwarders that do not name their clients, or name clients without being trusted."""
    for forwarder in counts.unnamed_clients.due(now):
        from dnsserver.forwarders.stub_blocks import ECS_RULE

        log.warning(
            "forwarder %s names no client, so topodns cannot locate its clients: put '%s' into the stub block of its "
            "Corefile; for forwarders other than CoreDNS, 'topodns corefile' prints the configuration",
            forwarder,
            ECS_RULE,
            extra={"fields": {"source": forwarder}},
        )
    for source in counts.ignored_clients.due(now):
        log.warning(
            "%s names clients but is no trusted forwarder, so topodns locates its clients by its own address: if it "
            "forwards their queries, start topodns with --trusted-forwarder %s/%d",
            source,
            source,
            128 if ":" in source else 32,
            extra={"fields": {"source": source}},
        )


def warn_about_lookups(counts: Counts, now: float) -> None:
    """Log the namespaces whose look-ups at the upstream were refused."""
    for namespace in counts.refused_lookups.due(now):
        if namespace:  # explanations tell whoever asks for them
            log.warning(
                "queries about ExternalName Services of namespace %s were refused: its look-ups at the upstream use up "
                "the share of a namespace; other namespaces are answered. Mend or delete those of its Services whose "
                "externalName is never answered, or only slowly",
                namespace,
                extra={"fields": {"namespace": namespace}},
            )


def _upstream(settings: Settings, counts: Counts) -> Upstream:
    from dnsserver.net.upstream import Upstream

    return Upstream(upstream_of(settings), counts)


async def start_http(
    nursery: trio.Nursery,
    settings: Settings,
    metrics: TopodnsCollector,
    held: HeldOctets,
    health: Callable[[], Mapping[str, Health]],
    pages: Callable[[bool], list[Route]] | None = None,
    *,
    may_take_all: Callable[[bytes], bool] = lambda source: False,
) -> str | None:
    """Serve metrics and readiness, which is *health*, unless ``--http off``; return the address, None without one.

    *held* and *may_take_all* are about its connections: see ``Limits``. *pages* returns the routes of API and console,
    given whether only programs of this machine can reach them. They are served with ``--console``, by default only
    then.

    Raises CannotListen if the settings give the address; on the default address this is a warning.
    """
    listen = default_listen(HTTP_PORT) if settings.http is None else settings.http
    if not isinstance(listen, ListenAddress):
        return None
    from dnsserver.http import application, guard

    try:
        sock = bound_stream("--http", listen)
    except CannotListen as error:
        if settings.http is not None:
            raise
        log.warning("%s; metrics and health are not served", error)
        return None
    name = sock.getsockname()
    loopback = guard.is_loopback(name[0])
    with_pages = loopback if settings.console is None else settings.console
    more = pages(loopback) if pages is not None and with_pages else ()
    app = application.application(metrics.registry(), ready=health, loopback=loopback, more=more)
    await nursery.start(application.serve, sock, app, metrics.failures, held, may_take_all)
    return announce("http", name)


def election_of(settings: Settings, cluster: ApiClient, name: str) -> LeaderElection:
    """Return this process's part in the election for the Lease of the settings, by default *name*."""
    namespace, name = settings.lease or (cluster.namespace, name)
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"  # unique: a restarted container must not take itself for leader
    return LeaderElection(identity, namespace=namespace, name=name)
