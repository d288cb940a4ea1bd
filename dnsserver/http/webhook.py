# SPDX-License-Identifier: Apache-2.0

"""The HTTPS application of the webhook: AdmissionReviews in, replies out, bounded in size and time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import aclosing

import trio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from dnsserver.metrics.webhook import BUSY, FAILED, SLOW, TOO_LARGE, WebhookCounts
from locator.hints.admission import UNREADABLE, ReviewReply

log = logging.getLogger("topodns")

PATH = "/mutate/endpointslices"
# The API server takes no object beyond 3 MiB, and sends the old and the new one.
MAX_BODY = 8 << 20
BODY_SECONDS = 5.0  # for a body to arrive; API servers wait for 2 s, if the manifest is as it comes
# An API server closes connections that were idle for 90 s (Go's HTTP client in Kubernetes). If the webhook closed them
# first, it could meet a review on its way, and that review would fail.
IDLE_SECONDS = 120
GRACE_SECONDS = 3.0  # for reviews that have begun, when the process ends

Review = Callable[[bytes], ReviewReply]


def application(review: Review, counts: WebhookCounts) -> Starlette:
    """Return the application; *review* turns the body of a request into the reply."""

    async def mutate(request: Request) -> Response:
        began, outcome = time.perf_counter(), BUSY
        try:
            outcome, response = await _respond(request, review)
        finally:  # if it is cancelled, its connection had to be closed for others
            counts.note(outcome, time.perf_counter() - began)
        return response

    return Starlette(routes=[Route(PATH, mutate, methods=["POST"])])


class _BodyTooLarge(Exception):
    """The body of a request is too large."""


async def _respond(request: Request, review: Review) -> tuple[str, Response]:
    """Return what became of a request, and the response."""
    try:
        with trio.fail_after(BODY_SECONDS):
            body = await _body(request)
        return _reply_to(body, review)
    except ClientDisconnect:
        return SLOW, _closing(400)
    except trio.TooSlowError:
        return SLOW, _closing(408)
    except _BodyTooLarge:
        return TOO_LARGE, _closing(413)
    except Exception:  # boundary: one request; the API server goes on without a patch
        log.exception("internal error in an admission review")
        return FAILED, _closing(500)


async def _body(request: Request) -> bytes:
    """Return the body of a request. Raises ClientDisconnect, _BodyTooLarge."""
    parts, size = [], 0
    async with aclosing(request.stream()) as stream:
        async for part in stream:
            parts.append(part)
            size += len(part)
            if size > MAX_BODY:
                raise _BodyTooLarge
    return b"".join(parts)


def _reply_to(body: bytes, review: Review) -> tuple[str, Response]:
    reply = review(body)
    if reply.outcome == UNREADABLE:
        return UNREADABLE, Response("no AdmissionReview of admission.k8s.io/v1\n", 400, media_type="text/plain")
    return reply.outcome, Response(reply.body, media_type="application/json")


def _closing(status: int) -> Response:
    """Return a response after which the connection is closed: the rest of the request is not read."""
    return Response(status_code=status, headers={"Connection": "close"})
