# SPDX-License-Identifier: Apache-2.0

"""Errors over HTTP, as RFC 9457 has them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import NotRequired, TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from locator.printable import json_text

PROBLEM_JSON = "application/problem+json"
# A browser may show it, too: of what somebody wrote into a URL, it must make nothing.
SAFE = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Problem(TypedDict):
    """What went wrong (RFC 9457). ``parameter`` is the one that is wrong, if it is one."""

    type: str
    title: str
    status: int
    detail: str
    parameter: NotRequired[str]


def problem(
    status: int, detail: str, *, parameter: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response that says what is wrong, and which *parameter* it is about if it is about one."""
    said: Problem = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    if parameter is not None:
        said["parameter"] = parameter
    return Response(json_text(said), status, {**SAFE, **(headers or {})}, media_type=PROBLEM_JSON)


async def as_problem(request: Request, error: Exception) -> Response:
    """Return the response to a request for which there is no path, or not with this method."""
    assert isinstance(error, HTTPException)
    details = {
        404: f"nothing is served at {request.url.path}",
        405: f"{request.method} found, expected GET or HEAD",
    }
    return problem(error.status_code, details.get(error.status_code, error.detail), headers=error.headers)
