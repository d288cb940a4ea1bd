"""The HTTP API: what a running server answers, and why.

Whatever takes longer than answering a few queries is computed in a thread, one request at a time. So the event loop
waits for the interpreter for a millisecond now and then (``sys.setswitchinterval``), and never for a whole request.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dnsserver.answers.decision import Authority
from dnsserver.answers.explanation import Explanation
from dnsserver.http.events import DecisionStream
from dnsserver.http.guard import objection
from dnsserver.http.problems import problem
from dnsserver.inspection import naming
from dnsserver.inspection.constrained import constrained_services
from dnsserver.inspection.domains import ClusterContents, Domains, domains_of, keys_in_use
from dnsserver.inspection.operations import (
    DESCRIPTION,
    EXPLAIN,
    JSON,
    SERVICES,
    TAIL,
    TOPOLOGY,
    BadParameter,
    Operation,
    description,
    overview,
    read_parameters,
)
from dnsserver.tap.lines import line_of
from dnsserver.tap.listeners import Wanted
from dnsserver.tap.tap import Tap
from locator.cluster.publisher import Publisher
from locator.model import Node, Object, Pod, PodLocator, Service, in_cluster
from locator.state.snapshot import Snapshot

log = logging.getLogger("topodns")

MAX_STREAMS = 4
MAX_WAITING = 16  # requests for the thread that computes
OTHER_PATHS = (
    (DESCRIPTION, "The description of these operations (OpenAPI)"),
    ("/metrics", "Metrics for Prometheus"),
    ("/livez, /readyz", "Health; /readyz?verbose shows each check"),
)

NOT_READY = "the server has not read the cluster yet"
BUSY = "the server computes enough answers of this kind already: try again in a second"

Respond = Callable[[dict[str, Any]], Awaitable[Response]]


class Asked(NamedTuple):
    """What the API reads: ``snapshot`` is what the server answers from, or None; ``clusters`` by name, the own first.

    ``namespace`` is where names without one are looked up.
    """

    snapshot: Callable[[], Snapshot | None]
    clusters: Mapping[str, Publisher]
    authority: Authority
    namespace: str


class Api:
    """The operations of the API, on what a server has read."""

    def __init__(self, asked: Asked, tap: Tap) -> None:
        self._asked, self._tap = asked, tap
        self._streams = 0
        self._thread = trio.CapacityLimiter(1)
        self._domains: tuple[Snapshot, tuple[str, ...] | None, Domains] | None = None

    def routes(self, *, loopback: bool) -> list[Route]:
        """Return the routes; *loopback*: only programs of this machine may ask."""
        described = Response(msgspec.json.encode(description()), media_type=JSON)
        pages = {"/": PlainTextResponse(overview(OTHER_PATHS)), DESCRIPTION: described}
        guarded = {path: _page(response) for path, response in pages.items()}
        for operation, respond in (
            (EXPLAIN, self._explain),
            (TOPOLOGY, self._topology),
            (SERVICES, self._services),
            (TAIL, self._tail),
        ):
            guarded[operation.path] = _operation(operation, respond)
        return [
            Route(path, _guarded(endpoint, loopback=loopback), methods=["GET"]) for path, endpoint in guarded.items()
        ]

    async def _explain(self, given: dict[str, Any]) -> Response:
        snapshot = self._asked.snapshot()
        if snapshot is None:
            return problem(503, NOT_READY)
        client, namespace = given["client"], given["namespace"] or self._asked.namespace
        objects = await self._objects(client, namespace)

        def explained() -> Explanation:
            services = {key: compiled.service for key, compiled in snapshot.services.items()}
            known = naming.Known(snapshot, {**objects, Service: services}, namespace)
            return naming.explain_named(
                given["name"], given["type"], client, known, self._asked.authority, candidates=given["candidates"]
            )

        return await self._computed(explained)

    async def _objects(self, client: object, namespace: str) -> dict[type[Object], Mapping[str, Any]]:
        """Return the objects that it takes to find a client. Raises UnknownName."""
        own = next(iter(self._asked.clusters.values()))
        if not isinstance(client, naming.Reference):
            return {Node: await own.objects(Node)} if isinstance(client, naming.Topology) else {}
        if client.kind is Node:
            return {Node: await own.objects(Node)}
        key = f"{namespace}/{client.name}"
        found = {kind: await own.look_up(kind, key) for kind in (Pod, PodLocator)}
        if not any(found.values()):
            found_text = f"pod/{client.name} found, but the server knows no Pods (--client-source)"
            raise naming.UnknownName(naming.CLIENT, f"{found_text}, expected an address")
        return {kind: by_key for kind, by_key in found.items() if by_key}

    async def _topology(self, given: dict[str, Any]) -> Response:
        snapshot, keys = self._asked.snapshot(), given["keys"]
        if snapshot is None:
            return problem(503, NOT_READY)
        clusters = [
            ClusterContents(
                publisher.snapshot,
                [in_cluster(node.labels, name) for node in (await publisher.objects(Node)).values()],
            )
            for name, publisher in self._asked.clusters.items()
            if publisher.snapshot is not None
        ]

        def domains() -> Domains:
            known = self._domains
            if known is None or known[0] is not snapshot or known[1] != keys:
                found = domains_of(clusters, keys or keys_in_use(snapshot))
                known = self._domains = snapshot, keys, found
            return known[2]

        return await self._computed(domains)

    async def _services(self, given: dict[str, Any]) -> Response:
        snapshot = self._asked.snapshot()
        if snapshot is None:
            return problem(503, NOT_READY)
        after, limit = given["continue"] or "", given["limit"]
        return await self._computed(partial(constrained_services, snapshot, after=after, limit=limit))

    async def _computed(self, compute: Callable[[], Any]) -> Response:
        """Return what *compute* returns as JSON. Raises what it raises."""
        if self._thread.statistics().tasks_waiting >= MAX_WAITING:
            return problem(503, BUSY, headers={"Retry-After": "1"})
        body = await trio.to_thread.run_sync(lambda: msgspec.json.encode(compute()), limiter=self._thread)
        return Response(body, media_type=JSON)

    async def _tail(self, given: dict[str, Any]) -> Response:
        if self._streams >= MAX_STREAMS:
            return problem(503, f"{MAX_STREAMS} readers found, expected fewer: wait until one of them ends")
        self._streams += 1
        log.info("a reader of decisions has come: until it goes, native code leaves their queries to Python")
        wanted = Wanted(given["service"], given["client"], given["outcome"])
        return DecisionStream(self._tap, wanted, partial(line_of, authority=self._asked.authority), self._gone)

    def _gone(self) -> None:
        self._streams -= 1
        log.info("a reader of decisions has gone")


def _page(response: Response) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return response

    return endpoint


def _operation(operation: Operation, respond: Respond) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            given = read_parameters(operation, request.query_params.multi_items())
            if request.method == "HEAD" and operation.media_type != JSON:
                return Response(media_type=operation.media_type)
            return await respond(given)
        except BadParameter as error:
            return problem(400, f"{error.parameter}: {error}", parameter=error.parameter)
        except naming.UnknownName as error:
            return problem(400, f"{error.argument}: {error}", parameter=error.argument)

    return endpoint


def _guarded(
    endpoint: Callable[[Request], Awaitable[Response]], *, loopback: bool
) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        objected = objection(request.headers, loopback=loopback)
        return await endpoint(request) if objected is None else problem(403, objected)

    return guarded
