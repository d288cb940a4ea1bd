"""The HTTP API: what a running server answers, and why.

No request holds up the event loop for more than a millisecond or so. What goes through the whole cluster does so in
steps. An explanation, which lists each endpoint if somebody asks for that, is made in a thread; then the loop waits for
the interpreter, a millisecond at a time (``sys.setswitchinterval``). One request of each sort is computed at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dnsserver.answers.decision import Authority
from dnsserver.http.events import DecisionStream
from dnsserver.http.guard import objection
from dnsserver.http.problems import problem
from dnsserver.inspection import naming
from dnsserver.inspection.constrained import constrained_services
from dnsserver.inspection.domains import ClusterContents, domains_of, keys_in_use
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
from dnsserver.inspection.steps import Steps
from dnsserver.inspection.tap.lines import line_of
from dnsserver.inspection.tap.listeners import Wanted
from dnsserver.inspection.tap.tap import Tap
from locator.cluster.publisher import Publisher
from locator.model import Node, Object, Pod, PodLocator, Service, object_key
from locator.state.snapshot import Snapshot

log = logging.getLogger("topodns")

MAX_STREAMS = 4
MAX_WAITING = 16  # requests of one sort, beside the one that is computed
OTHER_PATHS = (
    (DESCRIPTION, "The description of these operations (OpenAPI)"),
    ("/metrics", "Metrics for Prometheus"),
    ("/livez, /readyz", "Health; /readyz?verbose shows each check"),
)

NOT_READY = "the server has not read the cluster yet"
BUSY = "the server has enough requests of this sort already, expected fewer: try again in a second"

T = TypeVar("T")

Respond = Callable[[dict[str, Any]], Awaitable[Response]]


class Inspected(NamedTuple):
    """What the API reads: ``snapshot`` is what the server answers from, or None; ``clusters`` by name, the own first.

    ``namespace`` is where names without one are looked up.
    """

    snapshot: Callable[[], Snapshot | None]
    clusters: Mapping[str, Publisher]
    authority: Authority
    namespace: str


class Api:
    """The operations of the API, on what a server has read."""

    def __init__(self, inspected: Inspected, tap: Tap) -> None:
        self._inspected, self._tap = inspected, tap
        self._streams = 0
        self._thread = trio.CapacityLimiter(1)
        self._in_steps = trio.Lock()
        self._domains: tuple[Snapshot, tuple[str, ...] | None, bytes] | None = None  # the last ones, as JSON

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
        snapshot = self._inspected.snapshot()
        if snapshot is None:
            return problem(503, NOT_READY)
        client, namespace = given["client"], given["namespace"] or self._inspected.namespace
        found = await self._found(client, namespace)

        def explained() -> bytes:
            known = naming.Known(snapshot, {**found, Service: naming.Served(snapshot)}, namespace)
            explanation = naming.explain_named(
                given["name"], given["type"], client, known, self._inspected.authority, candidates=given["candidates"]
            )
            return msgspec.json.encode(explanation)

        if self._thread.statistics().tasks_waiting >= MAX_WAITING:
            return _busy()
        return Response(await trio.to_thread.run_sync(explained, limiter=self._thread), media_type=JSON)

    async def _found(self, client: object, namespace: str) -> dict[type[Object], Mapping[str, Any]]:
        """Return by kind what it takes to find a client: objects by key, or if what it names is missing, all keys.

        Raises UnknownName.
        """
        own = next(iter(self._inspected.clusters.values()))
        if isinstance(client, naming.Topology) or (isinstance(client, naming.Reference) and client.kind is Node):
            return {Node: await own.objects(Node)}
        if not isinstance(client, naming.Reference):
            return {}
        found: dict[type[Object], Mapping[str, Any]] = {}
        for kind in (Pod, PodLocator):
            one, keys = await own.look_up(kind, key := object_key(namespace, client.name))
            if one is not None or keys:
                found[kind] = naming.Missing(keys) if one is None else {key: one}
        if not found:
            text = f"pod/{client.name} found, but the server knows no Pods (--client-source), expected an address"
            raise naming.UnknownName(naming.CLIENT, text)
        return found

    async def _topology(self, given: dict[str, Any]) -> Response:
        async def counted(snapshot: Snapshot) -> bytes:
            if self._domains is None or self._domains[0] is not snapshot or self._domains[1] != given["keys"]:
                keys = given["keys"] or await _run(keys_in_use(snapshot))
                clusters = [
                    ClusterContents(name, publisher.snapshot, list((await publisher.objects(Node)).values()))
                    for name, publisher in self._inspected.clusters.items()
                    if publisher.snapshot is not None
                ]
                self._domains = snapshot, given["keys"], msgspec.json.encode(await _run(domains_of(clusters, keys)))
            return self._domains[2]

        return await self._one_by_one(counted)

    async def _services(self, given: dict[str, Any]) -> Response:
        async def page(snapshot: Snapshot) -> bytes:
            after, limit = given["continue"] or "", given["limit"]
            return msgspec.json.encode(await _run(constrained_services(snapshot, after=after, limit=limit)))

        return await self._one_by_one(page)

    async def _one_by_one(self, compute: Callable[[Snapshot], Awaitable[bytes]]) -> Response:
        """Return the JSON that *compute* makes of what the server answers from, for one request at a time."""
        if self._in_steps.statistics().tasks_waiting >= MAX_WAITING:
            return _busy()
        async with self._in_steps:
            snapshot = self._inspected.snapshot()
            if snapshot is None:
                return problem(503, NOT_READY)
            return Response(await compute(snapshot), media_type=JSON)

    async def _tail(self, given: dict[str, Any]) -> Response:
        if self._streams >= MAX_STREAMS:
            return problem(503, f"{MAX_STREAMS} readers found, expected fewer: wait until one of them ends")
        self._streams += 1
        log.info("a reader of decisions has come: until it goes, native code leaves their queries to Python")
        wanted = Wanted(given["service"], given["client"], given["outcome"])
        return DecisionStream(self._tap, wanted, partial(line_of, authority=self._inspected.authority), self._gone)

    def _gone(self) -> None:
        self._streams -= 1
        log.info("a reader of decisions has gone")


def _busy() -> Response:
    return problem(503, BUSY, headers={"Retry-After": "1"})


async def _run(steps: Steps[T]) -> T:
    """Return the result of work in steps, between which other tasks run."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await trio.lowlevel.checkpoint()


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
