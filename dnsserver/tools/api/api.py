# SPDX-License-Identifier: Apache-2.0

"""The HTTP API: what a running server answers, and why."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dnsserver.http.guard import guarded
from dnsserver.http.problems import problem
from dnsserver.tools.api.clients import ClientsByService
from dnsserver.tools.api.contents import constrained_services, domains_of, keys_in_use
from dnsserver.tools.api.events import DECISION_SECONDS, EventStream, Take, decisions
from dnsserver.tools.api.inspected import RESPONSE_ERRORS, Inspected, Turns, problem_of
from dnsserver.tools.api.live import Live
from dnsserver.tools.api.operations import (
    CLIENTS,
    DECISIONS,
    DESCRIPTION,
    EXPLAIN,
    JSON,
    SERVICES,
    TAIL,
    TOPOLOGY,
    LastDecisions,
    Operation,
    description,
    read_parameters,
)
from dnsserver.tools.tap.lines import line_of
from dnsserver.tools.tap.listeners import Wanted
from dnsserver.tools.tap.tap import Tap
from locator.printable import json_text
from locator.state.snapshot import Snapshot

log = logging.getLogger("topodns")

MAX_STREAMS = 4

Respond = Callable[[dict[str, Any]], Awaitable[Response]]


class Api:
    """The operations of the API, on what a server has read."""

    def __init__(self, inspected: Inspected, turns: Turns, live: Live | None) -> None:
        """Serve neither decisions nor clients without *live*."""
        self._inspected, self._turns, self._live = inspected, turns, live
        self._streams = 0
        self._domains: tuple[Snapshot, tuple[str, ...] | None, str] | None = None  # the last ones, as JSON

    def routes(self, *, loopback: bool) -> list[Route]:
        """Return the routes; *loopback* is whether only programs of this machine may ask."""
        served: list[tuple[Operation, Respond]] = [
            (EXPLAIN, self._explain),
            (TOPOLOGY, self._topology),
            (SERVICES, self._services),
        ]
        if (live := self._live) is not None:
            served += [
                (TAIL, partial(self._tail, live.tap)),
                (DECISIONS, partial(self._last_decisions, live)),
                (CLIENTS, partial(self._clients, live.clients)),
            ]
        described = description([operation for operation, _ in served])
        paths = {DESCRIPTION: _page(Response(json_text(described), media_type=JSON))}
        paths |= {operation.path: _operation(operation, respond) for operation, respond in served}
        zones = self._inspected.authority.zones
        return [
            Route(path, guarded(endpoint, loopback=loopback, zones=zones), methods=["GET"])
            for path, endpoint in paths.items()
        ]

    async def _explain(self, given: dict[str, Any]) -> Response:
        self._inspected.current()  # whoever comes too early need not wait
        explanation = await self._inspected.explained(given, self._turns, EXPLAIN.path)
        return Response(json_text(explanation), media_type=JSON)

    async def _topology(self, given: dict[str, Any]) -> Response:
        async def counted() -> str:
            snapshot = self._inspected.current()
            if self._domains is None or self._domains[0] is not snapshot or self._domains[1] != given["keys"]:
                keys = given["keys"] or await keys_in_use(snapshot.services)
                clusters = await self._inspected.contents()
                self._domains = snapshot, given["keys"], json_text(await domains_of(clusters, keys))
            return self._domains[2]

        return await self._in_turn(TOPOLOGY, counted)

    async def _services(self, given: dict[str, Any]) -> Response:
        async def page() -> str:
            after, services = given["continue"] or "", self._inspected.current().services
            return json_text(await constrained_services(services, after=after, limit=given["limit"]))

        return await self._in_turn(SERVICES, page)

    async def _in_turn(self, operation: Operation, compute: Callable[[], Awaitable[str]]) -> Response:
        """Return the JSON that *compute* returns, for one request at a time. Raises NotReady, Busy."""
        self._inspected.current()  # whoever comes too early need not wait
        return Response(await self._turns.take(operation.path, compute), media_type=JSON)

    async def _clients(self, clients: ClientsByService, given: dict[str, Any]) -> Response:
        service = given["service"]
        await self._inspected.check_service(service, self._turns)

        async def found() -> str:
            await clients.look(self._inspected)
            return json_text(await clients.of_service(service, self._inspected))

        return await self._in_turn(CLIENTS, found)

    async def _last_decisions(self, live: Live, given: dict[str, Any]) -> Response:
        kept, service = live.kept, given["service"]
        if service is not None and not kept.knows(service):
            await self._inspected.check_service(service, self._turns)

        async def found() -> str:
            await live.keep(self._inspected.authority)
            select = partial(kept.decisions, service, given["outcome"], client=given["client"], limit=given["limit"])
            page: LastDecisions = {"since": live.since, "items": list(await self._turns.in_thread(select))}
            return json_text(page)

        return Response(await self._turns.take(DECISIONS.path, found), media_type=JSON)

    async def _tail(self, tap: Tap, given: dict[str, Any]) -> Response:
        if given["service"] is not None:
            await self._inspected.check_service(given["service"], self._turns)
        if self._streams >= MAX_STREAMS:
            return problem(503, f"{MAX_STREAMS} readers found, expected fewer: wait until one of them ends")
        wanted = Wanted(given["service"], given["client"], given["outcome"])
        return EventStream(partial(self._decisions, tap, wanted), pause=DECISION_SECONDS)

    @contextmanager
    def _decisions(self, tap: Tap, wanted: Wanted, wake: Callable[[], None]) -> Iterator[Take]:
        self._streams += 1
        log.info("a reader of decisions has come: until it goes, native code leaves their queries to Python")
        try:
            with decisions(tap, wanted, partial(line_of, authority=self._inspected.authority), wake) as take:
                yield take
        finally:
            self._streams -= 1
            log.info("a reader of decisions has gone")


def _page(response: Response) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return response

    return endpoint


def _operation(operation: Operation, respond: Respond) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            given = read_parameters(operation.parameters, request.query_params.multi_items())
            if request.method == "HEAD" and operation.media_type != JSON:
                return Response(media_type=operation.media_type)
            return await respond(given)
        except RESPONSE_ERRORS as error:
            return problem_of(error)

    return endpoint
