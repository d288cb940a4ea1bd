# SPDX-License-Identifier: Apache-2.0

"""Puts the console of ``topodns console`` together: the pages of a server that answers no DNS queries."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import trio
from starlette.routing import Route

from dnsserver.http import loop_delay
from dnsserver.metrics.counters import Counts
from dnsserver.metrics.server import ServerMetrics
from dnsserver.net.bounds import HeldOctets
from dnsserver.programs.clusters import Clusters
from dnsserver.programs.from_settings import authority_of, upstream_of
from dnsserver.programs.run import SWITCH_SECONDS, next_ending, run_program, start_http
from dnsserver.settings.fields import Settings
from dnsserver.settings.values import HONOR
from dnsserver.tools.api.api import Api
from dnsserver.tools.api.inspected import Inspected, Turns
from dnsserver.tools.console.changes import PageChanges
from dnsserver.tools.console.console import Console
from dnsserver.tools.console.page import PageContext


def show(settings: Settings, opened: Callable[[str], None]) -> None:
    """Show the console at ``Server.http`` until SIGTERM or SIGINT. *opened* gets its URL, once it can be opened.

    Raises CannotListen, BadCluster, and BadDump before the first snapshot.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    run_program(_ConsoleProgram(settings, opened).run)


class _ConsoleProgram:
    """The clusters, and the pages about them."""

    def __init__(self, settings: Settings, opened: Callable[[str], None]) -> None:
        self._settings, self._opened = settings, opened
        counts = Counts()
        self._clusters = Clusters(settings, counts)
        self._metrics = ServerMetrics(counts, self._clusters.kinds)
        self._clusters.show_in(self._metrics)
        self._changes, turns = PageChanges(), Turns()
        self._clusters.subscribe(self._changes.published)
        authority = authority_of(settings)
        honors = settings.traffic_distribution == HONOR
        find_all = None
        if authority.has_upstream:
            from dnsserver.net.upstream import Upstream  # imports dnspython

            find_all = Upstream(upstream_of(settings), counts).find_all
        changes, clusters = self._changes, self._clusters
        inspected = Inspected(
            lambda: changes.snapshot, clusters.by_name, authority, clusters.namespace, honors, find_all
        )
        self._api = Api(inspected, turns, None)
        health, ages = clusters.health, clusters.ages
        self._console = Console(PageContext(inspected, turns, changes, None, health=health, ages=ages))

    async def run(self) -> None:
        """Read the clusters, and show them."""
        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                self._clusters.start(nursery)
                self._clusters.log_loaded(nursery)
                nursery.start_soon(self._open, nursery)
                await next_ending(signals, self._clusters.read_again)
                nursery.cancel_scope.cancel()

    async def _open(self, nursery: trio.Nursery) -> None:
        """Serve the pages: those of files once these have been read, so that a mistake in them comes first."""
        if self._settings.snapshot:
            while self._changes.snapshot is None:
                await trio.sleep(0.02)
        held = HeldOctets(self._metrics.failures)
        address = await start_http(nursery, self._settings, self._metrics, held, self._clusters.health, self._routes)
        assert address is not None  # the command has seen to that
        nursery.start_soon(self._console.run)
        nursery.start_soon(loop_delay.measure, self._metrics.loop_delays, self._clusters.check_ages)
        self._opened(f"http://{address}/")

    def _routes(self, loopback: bool) -> list[Route]:
        return [*self._api.routes(loopback=loopback), *self._console.routes(loopback=loopback)]
