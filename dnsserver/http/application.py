# SPDX-License-Identifier: Apache-2.0

"""The HTTP application: health and metrics, and what ``api`` adds to them.

Computing the metrics costs as much as thousands of answers, so they are those of the last second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio
from cachetools import TTLCache
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dnsserver.http.guard import Endpoint, guarded
from dnsserver.http.problems import as_problem, problem
from dnsserver.metrics.families import METRICS_SECONDS
from locator.model import Health
from locator.printable import as_line

IDLE_SECONDS = 5.0
GRACE_SECONDS = 1.0
OPENMETRICS = "application/openmetrics-text"

Healths = Callable[[], Mapping[str, Health]]


def application(
    registry: CollectorRegistry, *, ready: Healths, loopback: bool, more: Sequence[Route] = ()
) -> Starlette:
    """Return the HTTP application, with *more* routes.

    *ready* returns the health of everything that readiness needs, by name. *loopback*: only programs of this machine
    may ask, except whether the process is alive.
    """

    def health(check: Healths) -> Endpoint:
        async def respond(request: Request) -> Response:
            results = check()
            verbose = "verbose" in request.query_params
            lines = [
                f"[{'+' if result.ok else '-'}]{name} {result.text}"
                for name, result in results.items()
                if verbose or not result.ok
            ]
            healthy = all(result.ok for result in results.values())
            lines.append("ok" if healthy else "not ok")
            return PlainTextResponse("\n".join(map(as_line, lines)) + "\n", status_code=200 if healthy else 503)

        return respond

    async def failed(request: Request, error: Exception) -> Response:  # ``connections`` logs it
        return problem(500, "an error in topodns; its log says more, once a minute for each error")

    def local(endpoint: Endpoint) -> Endpoint:
        return guarded(endpoint, loopback=True) if loopback else endpoint

    alive, is_ready = health(_alive), local(health(ready))
    paths = {
        "/livez": alive,
        "/healthz": alive,
        "/health": alive,
        "/readyz": is_ready,
        "/ready": is_ready,
        "/metrics": local(_MetricsPage(registry).respond),
    }
    routes = [*(Route(path, endpoint, methods=["GET"]) for path, endpoint in paths.items()), *more]
    return Starlette(routes=routes, exception_handlers={HTTPException: as_problem, Exception: failed})


class _MetricsPage:
    """The metrics in a registry, as text. Each of its two forms is kept for a second."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._kept: TTLCache[str, bytes] = TTLCache(2, METRICS_SECONDS, timer=trio.current_time)  # by content type

    async def respond(self, request: Request) -> Response:
        """Return the metrics in the form that a client asks for; it does not choose anything else."""
        encode, content_type = choose_encoder(OPENMETRICS if OPENMETRICS in request.headers.get("accept", "") else "")
        text = self._kept.get(content_type)
        if text is None:
            text = self._kept[content_type] = encode(self._registry)
        return Response(text, media_type=content_type)


def _alive() -> Mapping[str, Health]:
    return {"loop": Health(True)}  # a process that can answer is alive
