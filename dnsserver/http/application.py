"""The HTTP application: health and metrics.

It is written for ASGI itself: a framework would take a server's memory for six fixed paths.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import trio
from hypercorn.config import Config
from hypercorn.typing import HTTPScope
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from dnsserver.http import connections
from locator.model import Health

METRICS = "/metrics"
PLAIN = "text/plain; charset=utf-8"

Healths = Callable[[], Mapping[str, Health]]
Response = tuple[int, str, bytes]  # status, media type, body


def application(registry: CollectorRegistry, *, ready: Healths) -> connections.Application:
    """Return the HTTP application; *ready* returns the health of everything that readiness needs, by name."""
    checks = {"/livez": _alive, "/healthz": _alive, "/health": _alive, "/readyz": ready, "/ready": ready}

    def response_to(scope: HTTPScope) -> Response:
        check = checks.get(scope["path"])
        if check is None and scope["path"] != METRICS:
            return 404, PLAIN, b"Not Found"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, PLAIN, b"Method Not Allowed"
        return _metrics(scope, registry) if check is None else _health(scope, check())

    async def respond(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close"})  # before it was accepted: 403
            return
        status, media_type, body = response_to(scope)
        headers = [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return respond


def _metrics(scope: HTTPScope, registry: CollectorRegistry) -> Response:
    accepted = b",".join(value for name, value in scope["headers"] if name == b"accept")
    encode, media_type = choose_encoder(accepted.decode("latin-1"))
    return 200, media_type, encode(registry)


def _health(scope: HTTPScope, results: Mapping[str, Health]) -> Response:
    verbose = "verbose" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    lines = [
        f"[{'+' if result.ok else '-'}]{name} {result.text}"
        for name, result in results.items()
        if verbose or not result.ok
    ]
    healthy = all(result.ok for result in results.values())
    lines.append("ok" if healthy else "not ok")
    return 200 if healthy else 503, PLAIN, "".join(f"{line}\n" for line in lines).encode()


def _alive() -> Mapping[str, Health]:
    return {"loop": Health(True)}  # a process that can answer is alive


async def serve(
    sock: socket.socket,
    app: connections.Application,
    failures: Counter[str],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve *app* at a bound socket until cancelled, and close the socket. *failures* are those of ``connections``."""
    config = Config()
    config.graceful_timeout = 1.0
    await connections.serve(sock, app, config, failures, task_status=task_status)
