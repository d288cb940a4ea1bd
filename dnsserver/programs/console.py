# SPDX-License-Identifier: Apache-2.0

"""Puts the HTTP API and the console together: for a server, and for ``topodns console``, which answers no queries."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio
from starlette.routing import Route

from dnsserver.answers.decision import Authority
from dnsserver.http import loop_delay
from dnsserver.metrics.counters import Counts
from dnsserver.metrics.server import ServerMetrics
from dnsserver.net.bounds import HeldOctets
from dnsserver.programs.clusters import Clusters
from dnsserver.programs.from_settings import authority_of, reply_options_of, upstream_of
from dnsserver.programs.run import SWITCH_SECONDS, next_ending, run_program, start_http
from dnsserver.settings.settings import Settings
from dnsserver.settings.values import HONOR
from dnsserver.tools.api.api import Api
from dnsserver.tools.api.inspected import Inspected, Turns
from dnsserver.tools.api.live import Live
from dnsserver.tools.console.changes import PageChanges
from dnsserver.tools.console.console import Console
from dnsserver.tools.console.page import PageContext
from locator.state.snapshot import Snapshot
from locator.times import time_text

if TYPE_CHECKING:
    from dnsserver.net.upstream import Upstream
    from dnsserver.tools.tap.tap import Tap


def show(settings: Settings, opened: Callable[[str], None]) -> None:
    """Show the console at ``ServerSettings.http`` until SIGTERM or SIGINT. *opened* gets its URL once that is open.

    Raises CannotListen, BadCluster, and BadDump before the first snapshot.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    run_program(_ConsoleProgram(settings, opened).run)


def api_and_console(
    settings: Settings,
    authority: Authority,
    clusters: Clusters,
    changes: PageChanges,
    *,
    current: Callable[[], Snapshot | None],
    upstream: Upstream | None,
    tap: Tap | None = None,
    counts: Counts | None = None,
) -> tuple[Api, Console]:
    """Return the HTTP API and the console about some clusters, which learn of their *changes* from now on.

    *current* returns what is answered from. Only a server has a *tap*, and *counts* of what was asked.
    """
    clusters.subscribe(changes.published)
    turns = Turns()
    inspected = Inspected(
        current,
        clusters.by_name,
        authority,
        clusters.namespace,
        settings.traffic_distribution == HONOR,
        None if upstream is None else upstream.find_all,
    )
    live = None
    if counts is not None and tap is not None:
        name = reply_options_of(settings).nsid.decode(errors="replace")
        live = Live(counts, tap, name=name, since=time_text(time.time(), "seconds"))
    context = PageContext(inspected, turns, changes, live, health=clusters.health, ages=clusters.ages)
    return Api(inspected, turns, live), Console(context)


class _ConsoleProgram:
    """The clusters, and the pages about them."""

    def __init__(self, settings: Settings, opened: Callable[[str], None]) -> None:
        self._settings, self._opened = settings, opened
        counts = Counts()
        self._clusters = Clusters(settings, counts)
        self._metrics = ServerMetrics(counts, self._clusters.kinds)
        self._clusters.show_in(self._metrics)
        authority, upstream = authority_of(settings), None
        if authority.has_upstream:
            from dnsserver.net.upstream import Upstream  # imports dnspython

            upstream = Upstream(upstream_of(settings), counts)
        self._changes = PageChanges()
        self._api, self._console = api_and_console(
            settings, authority, self._clusters, self._changes,
            current=lambda: self._changes.snapshot, upstream=upstream,
        )  # fmt: skip

    async def run(self) -> None:
        """Read the clusters, and show them."""
        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                self._clusters.start(nursery)
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
