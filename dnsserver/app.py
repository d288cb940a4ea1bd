"""Composition: which part is given which, in what order things start, and how they end."""

from __future__ import annotations

import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from dnsserver.decision import VERIFIED, Authority
from dnsserver.metrics import OTHER, Counts, Metrics
from dnsserver.net import tcp, udp
from dnsserver.responder import Responder
from dnsserver.settings import ListenAddress, Settings
from locator.addresses import address_text
from locator.cluster import static
from locator.model import ERROR, Finding
from locator.selectors import Scope
from locator.snapshot import Snapshot
from locator.store import Store

if TYPE_CHECKING:
    from dnsserver.net.upstream import Upstream

log = logging.getLogger("topodns")

PORT, HTTP_PORT = 1053, 9153
SHARED_PORT_TRIES = 20  # a port that UDP gave may be taken for TCP
DRAIN_SECONDS = 5.0  # for connections to finish what they have begun
FORWARDER_SECONDS = 5.0  # between looks at who forwards without naming clients
OTHER_DESCRIPTORS = 64  # for listeners, HTTP, files and the process that reads them
RESOLV_CONF = "/etc/resolv.conf"
SWITCH_SECONDS = 0.001  # the most that a thread taking in a snapshot holds a query up at a time
MAX_FINDINGS_LOGGED = 50  # of one reading; ``check`` lists them all

V4_WILDCARD, V6_WILDCARD = bytes(4), bytes(16)


class CannotListen(Exception):
    """An address that cannot be listened on: which, and why."""


def store_of(settings: Settings) -> Store:
    """Return an empty store with what the settings say of networks and forwarders."""
    return Store(
        subnets={subnet.network: dict(subnet.labels) for subnet in settings.subnet},
        forwarders=settings.trusted_forwarder,
        forwarder_services=settings.forwarder_service,
        pods="pods" in settings.client_source,
        nodes="nodes" in settings.client_source,
        pod_names=settings.pods == VERIFIED,
        scope=Scope(frozenset(settings.namespace), settings.namespace_selector, settings.service_selector),
        endpoint_records=not settings.no_endpoints,
    )


def authority_of(settings: Settings) -> Authority:
    """Return what a server with these settings answers from."""
    own = [each.address for each in listen_of(settings) if each.address not in (V4_WILDCARD, V6_WILDCARD)]
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
    if not _in_pod():
        return ()
    from dnsserver.net import upstream  # it brings dnspython, which those without an upstream need not

    try:
        return upstream.servers_in(RESOLV_CONF)
    except upstream.NoServers as error:
        log.warning("--upstream: %s; targets of ExternalName Services are not resolved", error)
        return ()


def listen_of(settings: Settings) -> tuple[ListenAddress, ...]:
    """Return where a server with these settings answers DNS."""
    return settings.listen or (_default_listen(PORT),)


def _default_listen(port: int) -> ListenAddress:
    """Return where to listen when nothing is said: loopback, or in a pod everywhere."""
    if not _in_pod():
        return ListenAddress(bytes((127, 0, 0, 1)), port)
    return ListenAddress(V6_WILDCARD if _has_ipv6() else V4_WILDCARD, port)


def _in_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ


def serve(settings: Settings) -> None:
    """Answer until SIGTERM or SIGINT. Raises CannotListen, and BadSnapshot before the first view."""
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        trio.run(_Server(settings).run)
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(error: BaseException) -> BaseException:
    """Return what ended a tree of tasks: the first failure in it."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


class _Server:
    """Everything of one running server, put together."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._listen = listen_of(settings)
        self._http_is_default = settings.http is None
        self._http = _default_listen(HTTP_PORT) if settings.http is None else settings.http
        self._counts = Counts()
        self._metrics = Metrics(self._counts)
        self._snapshots = static.Snapshots(settings.snapshot)
        self._store = store_of(settings)
        authority = authority_of(settings)
        nsid = socket.gethostname().encode() if settings.nsid is None else settings.nsid
        self._responder = Responder(authority, self._counts, client_option=settings.client_option, nsid=nsid)
        self._upstream = _upstream(settings, self._counts) if authority.chases else None
        others = OTHER_DESCRIPTORS + (self._upstream.most_sockets if self._upstream is not None else 0)
        limit = _connection_limit(settings.max_connections, others=others)
        self._streams = tcp.Server(
            self._responder,
            self._counts,
            self._upstream,
            limit=limit,
            idle=float(settings.tcp_idle_timeout),
            in_flight=settings.max_queries_in_flight,
        )
        self._asked = trio.Event()
        self._reported: set[str] = set()
        self._logged: set[Finding] = set()

    async def run(self) -> None:
        """Bind, read, answer, and end in the opposite order."""
        self._snapshots.check()
        pairs = [self._bind_pair(listen) for listen in self._listen]
        async with trio.open_nursery() as clients:  # connections outlive the listeners
            await clients.start(self._streams.serve)
            async with trio.open_nursery() as nursery:
                with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                    for datagrams, streams in pairs:
                        await nursery.start(udp.serve, datagrams, self._responder, self._counts, self._upstream)
                        _announce("udp", datagrams.getsockname())
                        await nursery.start(self._streams.listen, streams)
                        _announce("tcp", streams.getsockname())
                    await self._start_http(nursery)
                    nursery.start_soon(self._follow_snapshots)
                    nursery.start_soon(self._report_forwarders)
                    async for number in signals:
                        if number != signal.SIGHUP:
                            break
                        self._asked.set()
                    log.info("ending: no new connections, open ones finish what they have begun")
                    nursery.cancel_scope.cancel()
            self._streams.drain()
            clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS

    def _bind_pair(self, listen: ListenAddress) -> tuple[socket.socket, socket.socket]:
        """Return a bound UDP and a bound TCP socket that share a port."""
        alone = any(each.port == listen.port != 0 and len(each.address) == 4 for each in self._listen)
        for attempt in range(SHARED_PORT_TRIES):
            prepare = partial(udp.prepare, wildcard=listen.address in (V4_WILDCARD, V6_WILDCARD))
            datagrams = _bound("--listen", listen, socket.SOCK_DGRAM, prepare, six_only=alone)
            port = datagrams.getsockname()[1]
            try:
                same = listen._replace(port=port)
                return datagrams, _bound("--listen", same, socket.SOCK_STREAM, tcp.prepare, six_only=alone)
            except CannotListen:
                datagrams.close()
                if listen.port != 0 or attempt == SHARED_PORT_TRIES - 1:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _start_http(self, nursery: trio.Nursery) -> None:
        if not isinstance(self._http, ListenAddress):
            return
        from dnsserver.net import admin  # a third of a second that 'explain' and 'check' need not wait for

        try:
            sock = _bound("--http", self._http, socket.SOCK_STREAM, tcp.prepare)
        except CannotListen as error:
            if not self._http_is_default:
                raise
            log.warning("%s; metrics and health are not served", error)
            return
        app = admin.application(
            self._metrics.registry(),
            live={"loop": lambda: None},
            ready={"snapshot": lambda: None if self._metrics.snapshot is not None else "not read yet"},
        )
        name = sock.getsockname()
        await nursery.start(admin.serve, sock, app)
        _announce("http", name)

    async def _follow_snapshots(self) -> None:
        """Read the snapshot, and again whenever it changes or someone asks; a broken one changes nothing."""
        signature = await trio.to_thread.run_sync(self._snapshots.signature, abandon_on_cancel=True)
        self._publish(await self._load())
        print("ready", file=sys.stderr, flush=True)
        while True:
            await self._changed(signature)
            self._asked = trio.Event()
            signature = await trio.to_thread.run_sync(self._snapshots.signature)
            try:
                self._publish(await self._load())
            except static.BadSnapshot as error:
                self._counts.reloads["failure"] += 1
                log.error("%s; the view from before stays", error)
            except Exception:  # the wall around one reading
                self._counts.reloads["failure"] += 1
                log.exception("the snapshot could not be read; the view from before stays")
            else:
                self._counts.reloads["success"] += 1
                log.info("snapshot read again")

    async def _changed(self, signature: object) -> None:
        """Wait until the files differ from *signature*, or somebody asks for them to be read."""
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await self._asked.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(ask)
            await self._snapshots.changed(signature)
            nursery.cancel_scope.cancel()

    async def _load(self) -> Snapshot:
        dump = await static.load(self._snapshots)
        snapshot = await trio.to_thread.run_sync(self._take_in, dump)
        self._log_findings([*dump.findings, *dump.located(snapshot.findings)])
        return snapshot

    def _log_findings(self, findings: list[Finding]) -> None:
        """Log what is wrong and was not wrong at the last reading."""
        fresh = [finding for finding in findings if finding not in self._logged]
        self._logged = set(findings)
        for finding in fresh[:MAX_FINDINGS_LOGGED]:
            log.log(logging.ERROR if finding.severity == ERROR else logging.WARNING, "%s", finding)
        if len(fresh) > MAX_FINDINGS_LOGGED:
            log.warning("%d more findings; 'topodns check' lists all", len(fresh) - MAX_FINDINGS_LOGGED)

    def _take_in(self, dump: static.Dump) -> Snapshot:
        """In a thread, with collection off: a collection would stop the answering, too."""
        gc.disable()
        try:
            static.apply(dump.objects, self._store)
            return self._store.publish(int(time.time()))
        finally:
            gc.enable()

    def _publish(self, snapshot: Snapshot) -> None:
        self._responder.publish(snapshot)
        self._metrics.snapshot = snapshot
        gc.freeze()  # a view lives long: collections that walk it would be felt

    async def _report_forwarders(self) -> None:
        """Log each trusted forwarder that names no clients, once, with what mends it."""
        while True:
            await trio.sleep(FORWARDER_SECONDS)
            for forwarder in set(self._counts.unnamed) - self._reported - {OTHER}:
                self._reported.add(forwarder)
                log.warning(
                    "forwarder %s names no client, so its clients are unknown: put "
                    "'rewrite edns0 subnet set 32 128 revert' into its Corefile's stub block",
                    forwarder,
                )


def _bound(
    flag: str,
    listen: ListenAddress,
    kind: socket.SocketKind,
    prepare: Callable[[socket.socket], None],
    *,
    six_only: bool = False,
) -> socket.socket:
    family = socket.AF_INET if len(listen.address) == 4 else socket.AF_INET6
    try:
        sock = socket.socket(family, kind)
        try:
            prepare(sock)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, six_only)
            sock.bind((address_text(listen.address), listen.port))
        except OSError:
            sock.close()
            raise
    except OSError as error:
        name = "udp" if kind == socket.SOCK_DGRAM else "tcp"
        reason = "port in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise CannotListen(f"{flag} {listen}: {name}: {reason}, expected an address and port that are free") from None
    return sock


def _upstream(settings: Settings, counts: Counts) -> Upstream:
    from dnsserver.net.upstream import Upstream

    return Upstream(upstream_of(settings), counts)


def _connection_limit(asked: int, *, others: int) -> int:
    """Return how many connections there may be: as many as asked for, if there can be so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and soft < asked + others:
        soft = hard if hard != resource.RLIM_INFINITY else asked + others
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = asked if soft == resource.RLIM_INFINITY else max(1, min(asked, soft - others))
    if possible < asked:
        log.warning("--max-connections: %d of %d, as many as 'ulimit -n' allows", possible, asked)
    return possible


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::", 0))
    except OSError:
        return False
    return True


def _announce(proto: str, name: tuple[str, int]) -> None:
    """Print where we listen, alone on a line: programs wait for it."""
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    print(f"listening {proto} {host}:{name[1]}", file=sys.stderr, flush=True)
