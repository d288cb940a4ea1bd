# SPDX-License-Identifier: Apache-2.0

"""Errors over HTTP, as RFC 9457 has them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dnsserver.http.inspected import BUSY, NOT_READY, Busy, NotReady
from dnsserver.inspection.naming import UnknownName
from dnsserver.inspection.operations import BadParameter
from dnsserver.inspection.problem import PROBLEM_JSON, Problem
from locator.printable import json_text

# A browser may show it, too: of what somebody wrote into a URL, it must make nothing.
SAFE = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def problem(
    status: int, detail: str, *, parameter: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response that says what is wrong, and which *parameter* it is about if it is about one."""
    said: Problem = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    if parameter is not None:
        said["parameter"] = parameter
    return Response(json_text(said), status, {**SAFE, **(headers or {})}, media_type=PROBLEM_JSON)


REFUSED = (BadParameter, UnknownName, NotReady, Busy)  # what reading parameters and computing a response raise


def refusal(error: BadParameter | UnknownName | NotReady | Busy) -> Response:
    """Return the response that says why there is no other."""
    match error:
        case NotReady():
            return problem(503, NOT_READY)
        case Busy():
            return problem(503, BUSY, headers={"Retry-After": "1"})
    parameter = error.parameter if isinstance(error, BadParameter) else error.argument
    return problem(400, f"{parameter}: {error}", parameter=parameter)


async def as_problem(request: Request, error: Exception) -> Response:
    """Return the response to a request for which there is no path, or not with this method."""
    assert isinstance(error, HTTPException)
    details = {
        404: f"nothing is served at {request.url.path}",
        405: f"{request.method} found, expected GET or HEAD",
    }
    return problem(error.status_code, details.get(error.status_code, error.detail), headers=error.headers)
