"""The HTTP application: health and metrics, and what ``api`` adds to them."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio
from hypercorn.config import Config
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dnsserver.http import connections
from dnsserver.http.problems import as_problem, problem
from locator.model import Health
from locator.printable import as_line

Healths = Callable[[], Mapping[str, Health]]


def application(
    registry: CollectorRegistry, failures: Counter[str], *, ready: Healths, more: Sequence[Route] = ()
) -> Starlette:
    """Return the HTTP application, with *more* routes.

    *failures* counts requests that an error has ended, as ``http``. *ready* returns the health of everything that
    readiness needs, by name.
    """

    def health(check: Healths) -> Callable[[Request], Awaitable[Response]]:
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

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=content_type)

    async def failed(request: Request, error: Exception) -> Response:  # boundary: one request; hypercorn logs it
        failures["http"] += 1
        return problem(500, "an error in topodns; its log says more")

    alive, is_ready = health(_alive), health(ready)
    paths = {
        "/livez": alive,
        "/healthz": alive,
        "/health": alive,
        "/readyz": is_ready,
        "/ready": is_ready,
        "/metrics": metrics,
    }
    routes = [*(Route(path, endpoint, methods=["GET"]) for path, endpoint in paths.items()), *more]
    return Starlette(routes=routes, exception_handlers={HTTPException: as_problem, Exception: failed})


def _alive() -> Mapping[str, Health]:
    return {"loop": Health(True)}  # a process that can answer is alive


async def serve(
    sock: socket.socket,
    app: Starlette,
    failures: Counter[str],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve *app* at a bound socket until cancelled, and close the socket. *failures* are those of ``connections``."""
    config = Config()
    config.graceful_timeout = 1.0
    await connections.serve(sock, app, config, failures, task_status=task_status)
