"""Whether a request may read the API. There is no password: whoever reaches the listener may ask.

On loopback only programs of this machine reach it. A browser there is one of them, and pages from anywhere run in it:
a page may send requests to any address, and may let its own name resolve to 127.0.0.1 (DNS rebinding). So the Host
header must name this machine, and the request must not come from a page of another site.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

LOCAL = "localhost"
ELSEWHERE = ("cross-site", "same-site")  # values of Sec-Fetch-Site for pages of other sites


def objection(headers: Mapping[str, str], *, loopback: bool) -> str | None:
    """Return what is wrong with a request, None if nothing is. *loopback*: only programs of this machine may ask."""
    host = headers.get("host", "")
    if loopback and not _is_this_machine(host):
        return f"Host: {host!r} found, expected localhost or a loopback address"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return f"Origin: {origin!r} found, expected no page of another site"
    linked = headers.get("sec-fetch-mode") == "navigate"  # a person followed a link; the page there sees nothing
    if headers.get("sec-fetch-site") in ELSEWHERE and not linked:
        return "Sec-Fetch-Site: a page of another site asks"
    return None


def is_loopback(host: str) -> bool:
    """Whether a text is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_this_machine(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == LOCAL or name.endswith(f".{LOCAL}") or is_loopback(name)
