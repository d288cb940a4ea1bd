# SPDX-License-Identifier: Apache-2.0

"""What all programs share: how they start, serve HTTP, take part in an election, and end."""

from __future__ import annotations

import logging
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from dnsserver.metrics.families import TopodnsCollector
from dnsserver.net.bounds import HeldOctets
from dnsserver.net.sockets import CannotListen, announce, bound_stream, default_listen, in_pod
from dnsserver.programs.from_settings import HTTP_PORT
from dnsserver.settings.settings import Settings
from dnsserver.settings.values import ListenAddress
from locator.control.lease import LeaderElection
from locator.model import Health

if TYPE_CHECKING:
    from starlette.routing import Route

    from locator.cluster.api_client import ApiClient

log = logging.getLogger("topodns")

# A pod that ends gets queries until its readiness probe has failed three times, 2 s apart, and every kube-proxy knows.
POD_SHUTDOWN_DELAY = 12
QUIET_SECONDS = 1.0  # without a query, after which nobody sends any more
LAST_SECONDS = 5.0  # in which that is waited for
SWITCH_SECONDS = 0.001  # the longest that a thread which takes in a snapshot holds up a query at a time


def run_program(program: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """Run a program to its end. Raises the first of its errors by itself: a nursery makes groups of them."""
    try:
        trio.run(program, *arguments)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


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

    *held* bounds the octets of its connections, and *may_take_all* says whether a source may have all of them. *pages*
    returns the routes of API and console, given whether only programs of this machine can reach them. They are served
    with ``--console``, by default only then; otherwise ``/`` says how to switch them on.

    Raises CannotListen if the settings give the address; on the default address this is a warning.
    """
    listen = default_listen(HTTP_PORT) if settings.http is None else settings.http
    if not isinstance(listen, ListenAddress):
        return None
    from dnsserver.http import application, connections, console_off, guard
    from dnsserver.http.conversation import Limits

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
    more: Sequence[Route] = ()
    if pages is not None:
        more = pages(loopback) if with_pages else console_off.routes()
    app = application.application(metrics.registry(), ready=health, loopback=loopback, more=more)
    limits = Limits(held, application.IDLE_SECONDS, application.GRACE_SECONDS, may_take_all)
    await nursery.start(connections.serve, sock, app, metrics.failures, limits)
    return announce("http", name)


def election_of(settings: Settings, cluster: ApiClient, name: str) -> LeaderElection:
    """Return this process's part in the election for the Lease of the settings, by default *name*."""
    return election_for(*(settings.lease or (cluster.namespace, name)))


def election_for(namespace: str, name: str) -> LeaderElection:
    """Return this process's part in the election for that Lease."""
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"  # unique: a restarted container must not take itself for leader
    return LeaderElection(identity, namespace=namespace, name=name)
