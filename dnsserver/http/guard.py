# SPDX-License-Identifier: Apache-2.0

"""Whether a request may read what a listener serves. There is no password: whoever reaches the listener may ask.

On loopback only programs of this machine reach it. A browser there is one of them, and pages from anywhere run in it:
a page may send requests to any address, and may let its own name resolve to 127.0.0.1 (DNS rebinding). So the Host
header must name this machine, and the request must not come from a page of another site.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import SplitResult, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from dnsserver.http.problems import problem
from locator.ip import parse_address

LOCAL = "localhost"
ELSEWHERE = ("cross-site", "same-site")  # values of Sec-Fetch-Site for pages of other sites


Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(endpoint: Endpoint, *, loopback: bool) -> Endpoint:
    """Return an endpoint that answers as *endpoint* does, if nothing is wrong with the request."""

    async def guard(request: Request) -> Response:
        objected = objection(request.headers, loopback=loopback)
        return await endpoint(request) if objected is None else problem(403, objected)

    return guard


def objection(headers: Mapping[str, str], *, loopback: bool) -> str | None:
    """Return what is wrong with a request, None if nothing is. *loopback*: only programs of this machine may ask."""
    host = headers.get("host", "")
    if loopback and not _is_this_machine(host):
        return (
            f"Host: {host!r} found, expected localhost or a loopback address: ask for one, or serve at another --http"
        )
    origin = headers.get("origin")
    if origin is not None and _split(origin).netloc != host:
        return f"Origin: {origin!r} found, expected no page of another site"
    linked = headers.get("sec-fetch-mode") == "navigate"  # a person followed a link; the page there sees nothing
    if headers.get("sec-fetch-site") in ELSEWHERE and not linked:
        return "Sec-Fetch-Site: a page of another site asks"
    return None


def is_loopback(host: str) -> bool:
    """Whether a text is a loopback address."""
    try:
        return ipaddress.ip_address(parse_address(host)).is_loopback
    except ValueError:
        return False


def _split(url: str) -> SplitResult:
    """Return the parts of a URL, those of an empty one if it is malformed."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _is_this_machine(host: str) -> bool:
    name = (_split(f"//{host}").hostname or "").removesuffix(".")
    return name == LOCAL or name.endswith(f".{LOCAL}") or is_loopback(name)
