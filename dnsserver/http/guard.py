# SPDX-License-Identifier: Apache-2.0

"""Whether a request may read what a listener serves. There is no password: whoever reaches the listener may ask.

A browser is among those who reach it, and pages from anywhere run in it. A page may send requests to any address, and
may let its own name resolve to that of the listener (DNS rebinding). So the Host header must be a name that no such
page has, and the request must not come from a page of another site.

On loopback, where only programs of this machine ask, Host must name this machine. Elsewhere it may be

- any address: a page whose URL has an address cannot let it lead to another one;
- a name that nobody can register: one label, a Service's name (NAME.NAMESPACE.svc), or this machine's own;
- any name at all if the browser has proven it by a certificate. Only then does it send ``Sec-Fetch-Site`` (W3C, Fetch
  Metadata Request Headers), which no page can set.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import SplitResult, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from dnsserver.http.problems import problem
from dnsserver.names import Zone
from locator.ip import is_address, parse_address

LOCAL = "localhost"
SERVICE_NAMES = "svc"
BROWSER_SAYS = "sec-fetch-site"
ELSEWHERE = ("cross-site", "same-site")  # its values for pages of other sites


Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(endpoint: Endpoint, *, loopback: bool, zones: Iterable[Zone] = ()) -> Endpoint:
    """Return an endpoint that answers as *endpoint* does, and with 403 what ``objection`` objects to."""

    async def guard(request: Request) -> Response:
        objected = objection(request.headers, loopback=loopback, zones=zones)
        return await endpoint(request) if objected is None else problem(403, objected)

    return guard


def objection(headers: Mapping[str, str], *, loopback: bool, zones: Iterable[Zone] = ()) -> str | None:
    """Return what is wrong with a request, None if nothing is.

    *loopback* is whether only programs of this machine may ask. *zones* are the DNS zones with names of Services.
    """
    host = headers.get("host", "")
    name = (_split(f"//{host}").hostname or "").removesuffix(".")
    if loopback and not (_is_local(name) or is_loopback(name)):
        return (
            f"Host: {host!r} found, expected localhost or a loopback address: ask for one, or serve at another --http"
        )
    if not loopback and not (BROWSER_SAYS in headers or is_address(name) or _is_own(name, zones)):
        return (
            f"Host: {host!r} found, expected an address, localhost or NAME.NAMESPACE.{SERVICE_NAMES}: ask for one, or "
            "reach topodns by HTTPS through a proxy; programs may send 'Sec-Fetch-Site: none'"
        )
    origin = headers.get("origin")
    if origin is not None and _split(origin).netloc != host:
        return f"Origin: {origin!r} found, expected no page of another site"
    linked = headers.get("sec-fetch-mode") == "navigate"  # a person followed a link; the page there sees nothing
    if headers.get(BROWSER_SAYS) in ELSEWHERE and not linked:
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


def _is_local(name: str) -> bool:
    return name == LOCAL or name.endswith(f".{LOCAL}")


def _is_own(name: str, zones: Iterable[Zone]) -> bool:
    """Whether a name in lower case, in any network, leads to no machine but those of whoever runs this one."""
    if "." not in name:  # no public name has one label
        return name != ""
    endings = (SERVICE_NAMES, *(f"{SERVICE_NAMES}.{zone.name}" for zone in zones if not zone.reverse))
    return _is_local(name) or name == socket.gethostname().lower() or any(name.endswith(f".{end}") for end in endings)
