"""HTTP for those who run a server: health and metrics."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_http
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

Check = Callable[[], str | None]  # None if all is well, else what is not


def application(registry: CollectorRegistry, *, live: Mapping[str, Check], ready: Mapping[str, Check]) -> Starlette:
    """Return the HTTP application; *live* and *ready* are the checks by name, in order."""

    def health(checks: Mapping[str, Check]) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            results = {name: check() for name, check in checks.items()}
            failed = {name: why for name, why in results.items() if why is not None}
            shown = results if "verbose" in request.query_params else failed
            lines = [f"[{'+' if why is None else '-'}]{name} {why or 'ok'}" for name, why in shown.items()]
            lines.append("not ok" if failed else "ok")
            return PlainTextResponse("\n".join(lines) + "\n", status_code=503 if failed else 200)

        return respond

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=content_type)

    alive, is_ready = health(live), health(ready)
    paths = {
        "/livez": alive,
        "/healthz": alive,
        "/health": alive,
        "/readyz": is_ready,
        "/ready": is_ready,
        "/metrics": metrics,
    }
    return Starlette(routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in paths.items()])


async def serve(
    sock: socket.socket, app: Starlette, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve HTTP at a bound socket, which is taken over, until cancelled."""
    config = Config()
    config.bind = [f"fd://{sock.detach()}"]
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    config.graceful_timeout = 1.0
    await serve_http(app, config, mode="asgi", task_status=task_status)  # type: ignore[arg-type]
