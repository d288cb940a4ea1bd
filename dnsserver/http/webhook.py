"""The HTTPS application of the webhook: AdmissionReviews in, replies out, bounded in size and time."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import trio
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from dnsserver.http import connections
from dnsserver.metrics.webhook import BUSY, FAILED, SLOW, TOO_LARGE, WebhookCounts
from locator.hints.admission import UNREADABLE, Reply

log = logging.getLogger("topodns")

PATH = "/mutate/endpointslices"
# The API server takes no object beyond 3 MiB, and sends the old and the new one.
MAX_BODY = 8 << 20
MAX_HELD = 64 << 20  # bytes of all bodies that are being received; fits the memory limit of the manifest
BODY_SECONDS = 5.0  # for a body to arrive; API servers wait for 2 s, if the manifest is as it comes
HANDSHAKE_SECONDS = 5.0
# An API server closes connections that were idle for 90 s (Go's HTTP client in Kubernetes). If the webhook closed them
# first, it could meet a review on its way, and that review would fail.
IDLE_SECONDS = 120
GRACE_SECONDS = 3.0  # for reviews that have begun, when the process ends

Review = Callable[[bytes], Reply]


def application(review: Review, counts: WebhookCounts) -> Starlette:
    """Return the application; *review* turns the body of a request into the reply."""
    desk = _Desk(review)

    async def mutate(request: Request) -> Response:
        began = time.perf_counter()
        outcome, response = await desk.respond(request)
        counts.note(outcome, time.perf_counter() - began)
        return response

    return Starlette(routes=[Route(PATH, mutate, methods=["POST"])])


class _TooLarge(Exception):
    """The body of a request is too large."""


class _TooMuch(Exception):
    """The bodies of all requests together are too large."""


class _Desk:
    """Receives requests, and knows how many bytes of their bodies it holds."""

    def __init__(self, review: Review) -> None:
        self._review = review
        self._held = 0

    async def respond(self, request: Request) -> tuple[str, Response]:
        """Return what became of a request, and the response."""
        parts: list[bytes] = []
        try:
            with trio.fail_after(BODY_SECONDS):
                await self._receive(request, parts)
            return self._reply_to(b"".join(parts))
        except ClientDisconnect:
            return SLOW, _closing(400)
        except trio.TooSlowError:
            return SLOW, _closing(408)
        except _TooLarge:
            return TOO_LARGE, _closing(413)
        except _TooMuch:
            return BUSY, _closing(503)
        except Exception:  # boundary: one request; the API server goes on without a patch
            log.exception("internal error in an admission review")
            return FAILED, _closing(500)
        finally:
            self._held -= sum(map(len, parts))

    async def _receive(self, request: Request, parts: list[bytes]) -> None:
        """Append the body of a request to *parts*. Raises ClientDisconnect, _TooLarge, _TooMuch."""
        size = 0
        async with aclosing(request.stream()) as stream:
            async for part in stream:
                parts.append(part)
                size += len(part)
                self._held += len(part)
                if size > MAX_BODY:
                    raise _TooLarge
                if self._held > MAX_HELD:
                    raise _TooMuch

    def _reply_to(self, body: bytes) -> tuple[str, Response]:
        reply = self._review(body)
        if reply.outcome == UNREADABLE:
            return UNREADABLE, Response("no AdmissionReview of admission.k8s.io/v1\n", 400, media_type="text/plain")
        return reply.outcome, Response(reply.body, media_type="application/json")


def _closing(status: int) -> Response:
    """Return a response after which the connection is closed: the rest of the request is not read."""
    return Response(status_code=status, headers={"Connection": "close"})


async def serve(
    sock: socket.socket,
    app: Starlette,
    context: ssl.SSLContext,
    failures: Counter[str],
    *,
    until: Callable[[], Awaitable[None]],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve *app* over TLS at a bound socket until *until* returns; end requests that have begun; close the socket.

    *failures* are those of ``connections``.
    """
    config = Config()
    config.ssl_handshake_timeout = HANDSHAKE_SECONDS
    config.keep_alive_timeout = config.read_timeout = IDLE_SECONDS  # the second also ends what never became HTTP/1.1
    config.graceful_timeout = GRACE_SECONDS
    await connections.serve(sock, app, config, failures, tls=context, until=until, task_status=task_status)
