# SPDX-License-Identifier: Apache-2.0

"""Puts a server together: which part gets which, in what order things start, and how they end."""

from __future__ import annotations

import gc
import logging
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from dnsserver import __version__
from dnsserver.http import loop_delay
from dnsserver.message.proxy_protocol import PLAIN_HEADERS
from dnsserver.metrics.counters import DURATION_BOUNDS, Counts
from dnsserver.metrics.server import ServerMetrics
from dnsserver.net import tcp, udp
from dnsserver.net.bounds import HeldOctets
from dnsserver.net.sockets import announce, bound_pairs, connection_limit
from dnsserver.programs.clusters import Clusters
from dnsserver.programs.from_settings import (
    authority_of,
    listen_of,
    reply_options_of,
    tried_by_kubectl,
    upstream_of,
)
from dnsserver.programs.run import SWITCH_SECONDS, Shutdown, run_program, start_http
from dnsserver.programs.server_log import log_delay, ready_line, warn_about_forwarders, warn_about_lookups
from dnsserver.responder.native_feed import AnswerTable
from dnsserver.responder.responder import Responder
from dnsserver.settings.settings import Settings
from dnsserver.tools.tap.tap import Tap
from locator.cluster import memory
from locator.cluster.publisher import FindingLog, Source, Subscriber, on_new_findings
from locator.model import Finding, Health
from locator.state.snapshot import Snapshot

if TYPE_CHECKING:
    from starlette.routing import Route

    from dnsserver.net.ingress_hosts import IngressHosts
    from dnsserver.net.upstream import Upstream
    from dnsserver.tools.console.console import Console

log = logging.getLogger("topodns")

DRAIN_SECONDS = 5.0  # for open connections to finish the queries that they have begun
OTHER_DESCRIPTORS = 64  # for listeners, HTTP, files and the process that reads them
# How many new container objects start a garbage collection, and how many collections of one generation one of the next.
# Answers wait meanwhile. The first two generations have some 2,000 objects, which take a millisecond or two. The third
# has all remembered answers, and can take a fifth of a second, so only the clock starts it. Little garbage gets so old:
# 3 kB of an HTTP connection that is open during two collections of the others.
COLLECTED_AFTER = (700, 2, 1_000_000_000)
COLLECT_SECONDS = 3600.0  # between full collections


def serve(settings: Settings) -> None:
    """Answer until SIGTERM or SIGINT. Raises CannotListen, BadCluster, and BadDump before the first snapshot."""
    memory.keep_little()
    gc.set_threshold(*COLLECTED_AFTER)
    sys.setswitchinterval(SWITCH_SECONDS)
    run_program(_ServerProgram(settings).run)


class _ServerProgram:
    """One server: its parts, and the tasks that run them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._counts = Counts(per_service=settings.metrics_per_service)
        self._held = HeldOctets(self._counts.failures)
        self._clusters = Clusters(settings, self._counts)
        self._shutdown = Shutdown(settings.shutdown_delay)
        self._metrics = ServerMetrics(self._counts, self._clusters.kinds)
        authority = self._authority = authority_of(settings)
        self._native = native_code(settings, seed=random.getrandbits(64))
        self._responder = Responder(
            authority,
            self._counts,
            draw=random.getrandbits,
            options=reply_options_of(settings),
            native=self._native,
        )
        self._tap = Tap(self._responder, clock=time.time, failed=self._tap_failed)
        self._upstream = _upstream(settings, self._counts) if authority.has_upstream else None
        others = OTHER_DESCRIPTORS + (self._upstream.most_sockets if self._upstream is not None else 0)
        limit = connection_limit(settings.max_connections, others=others)
        self._streams = tcp.TcpServer(
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
                        from dnsserver.programs import query_log

                        nursery.start_soon(query_log.write, self._tap, self._authority, self._settings.log_queries)
                    self._clusters.start(nursery)
                    self._clusters.post_events(nursery)
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
        from dnsserver.programs.console import api_and_console
        from dnsserver.tools.console.changes import PageChanges

        api, self._console = api_and_console(
            self._settings, self._authority, self._clusters, PageChanges(),
            current=lambda: self._responder.snapshot, upstream=self._upstream, tap=self._tap, counts=self._counts,
        )  # fmt: skip
        return [*api.routes(loopback=loopback), *self._console.routes(loopback=loopback)]

    def _tap_failed(self, error: Exception) -> None:
        """Count and log an error in a listener of the tap; the reply is sent."""
        self._counts.failures["tap"] += 1
        log.error("a reader of answers could not be sent one", exc_info=error)

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


def _upstream(settings: Settings, counts: Counts) -> Upstream:
    from dnsserver.net.upstream import Upstream

    return Upstream(upstream_of(settings), counts)
