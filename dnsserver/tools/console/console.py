# SPDX-License-Identifier: Apache-2.0

"""The console: pages for people, beside the API.

It shows what the API shows, to those who may read the API. One page of each sort is computed at a time. Its HTML is
made in the thread that also makes explanations.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dnsserver.http.guard import Endpoint, guarded
from dnsserver.http.problems import problem
from dnsserver.tools.api.events import EventStream
from dnsserver.tools.api.inspected import RESPONSE_ERRORS, Busy, problem_of
from dnsserver.tools.api.operations import DESCRIPTION, JSON, overview
from dnsserver.tools.console.changes import CHANGE_SECONDS
from dnsserver.tools.console.completion import completions
from dnsserver.tools.console.page import Page, PageContext, error_page
from dnsserver.tools.console.pages.explain import EXPLAIN_PATH, explain_page, tail_page
from dnsserver.tools.console.pages.findings import findings_page
from dnsserver.tools.console.pages.gains import gains_page
from dnsserver.tools.console.pages.map import map_page
from dnsserver.tools.console.pages.node import node_page
from dnsserver.tools.console.pages.overview import overview_page
from dnsserver.tools.console.pages.search import SEARCH_PATH, search_page
from dnsserver.tools.console.pages.service import service_page
from dnsserver.tools.console.pages.services import services_page
from dnsserver.tools.console.rendering import environment, rendered
from dnsserver.tools.console.troubles.now import look_at_troubles
from locator.printable import json_text

log = logging.getLogger("topodns")

T = TypeVar("T")

LOOK_SECONDS = 5.0  # between two looks at the counters; with 1,000 Services that are all asked, one takes 6 ms
MAX_STREAMS = 16  # pages that follow changes: people leave tabs open
OTHER_PATHS = (
    ("/", "The console, for browsers; this list for others"),
    (DESCRIPTION, "The description of these operations (OpenAPI)"),
    ("/metrics", "Metrics for Prometheus"),
    ("/livez, /readyz", "Health; /readyz?verbose shows each check"),
)
HTML = "text/html"
STATIC = Path(__file__).parent / "static"
# The pages ask for them by their version, so that browsers may keep them for ever.
KEPT = {"Cache-Control": "public, max-age=31536000, immutable"}
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# What a page may load, and who may show it: the headers of everything that the console sends.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageRoute(NamedTuple):
    """A page: its path, what makes it, its name in the navigation, or else the path of the page that it is within."""

    path: str
    make: Callable[[PageContext, Request], Awaitable[Page]]
    name: str = ""
    within: str = ""


TAIL_PATH = "/tail"
PAGES = (
    PageRoute("/", overview_page, "Overview"),
    PageRoute("/findings", findings_page, within="/"),
    PageRoute("/gain", gains_page, within="/"),
    PageRoute("/map", map_page, "Map"),
    PageRoute("/nodes/{cluster}/{name}", node_page, within="/map"),
    PageRoute("/services", services_page, "Services"),
    PageRoute("/services/{namespace}/{name}", service_page, within="/services"),
    PageRoute(EXPLAIN_PATH, explain_page, "Explain"),
    PageRoute(TAIL_PATH, tail_page, "Tail"),
    PageRoute(SEARCH_PATH, search_page),
)


class Console:
    """The pages that are made from a *context*. ``run`` is a task, as long as there are pages."""

    def __init__(self, context: PageContext) -> None:
        self._context, self._files, self._templates = context, StaticFiles(), environment()
        self._pages = [page for page in PAGES if page.path != TAIL_PATH or context.recent is not None]

    async def run(self) -> None:
        """Look every few seconds at what was counted and is wrong; tell pages of it and of the clusters' health."""
        context, seen = self._context, None
        while True:
            if (live := context.live) is not None:
                await self._tried("what was decided", partial(live.keep, context.inspected.authority))
                await self._tried("who asks", partial(live.clients.look, context.inspected))
            counted = None if context.recent is None else await self._tried("what was asked", context.recent.look)
            state = counted, context.health(), await self._tried("what is wrong", partial(look_at_troubles, context))
            if state != seen:
                context.changes.counted()
            seen = state
            await trio.sleep(LOOK_SECONDS)

    async def _tried(self, what: str, look: Callable[[], Awaitable[T]]) -> T | None:
        """Return what a look finds out, None if it fails."""
        try:
            return await look()
        except Exception:  # boundary: one look; it may cost no answer
            self._context.failures["console"] += 1
            log.exception("%s could not be found out", what)
            return None

    def routes(self, *, loopback: bool) -> list[Route]:
        """Return the routes; *loopback* is whether only programs of this machine may ask."""
        paths: dict[str, Endpoint] = {
            **{page.path: partial(self._page, page) for page in self._pages},
            "/": self._first,
            "/live": self._live,
            "/complete": self._complete,
            **self._files.endpoints(),
        }
        zones = self._context.inspected.authority.zones
        return [
            Route(path, _headed(guarded(endpoint, loopback=loopback, zones=zones)), methods=["GET"])
            for path, endpoint in paths.items()
        ]

    async def _first(self, request: Request) -> Response:
        """Return the first page to browsers, and to other programs a list of what there is."""
        if HTML in request.headers.get("accept", ""):
            response = await self._page(PAGES[0], request)
        else:
            response = PlainTextResponse(overview(OTHER_PATHS))
        response.headers["Vary"] = "Accept"
        return response

    async def _page(self, route: PageRoute, request: Request) -> Response:
        """Return a page as HTML, when its turn has come. ``explain`` takes turns itself: it waits for the upstream."""
        turns, made = self._context.turns, partial(self._made, route, request)
        early = await made() if route.path == EXPLAIN_PATH else None

        async def rendered() -> tuple[Page, bytes]:
            page, version = early or await made()
            return page, await turns.in_thread(partial(self._rendered, page, route, version))

        try:
            page, html = await turns.take(route.path, rendered)
        except Busy as error:
            page = error_page(error, {})
            html = self._rendered(page, route, self._context.changes.version)
        return Response(html, page.status, page.headers, media_type=HTML)

    async def _made(self, route: PageRoute, request: Request) -> tuple[Page, str]:
        """Return a page, and the version that it follows."""
        # The version is from before the page is computed: it may be older than the page is, never newer.
        version = self._context.changes.version
        try:
            return await route.make(self._context, request), version
        except Exception as error:
            return error_page(error, self._context.health()), version

    def _rendered(self, page: Page, route: PageRoute, version: str) -> bytes:
        parts = {
            **page.shown,
            "title": page.title,
            "follows": page.follows,
            "version": version,
            "nav": [(page.path, page.name) for page in self._pages if page.name],
            "current": route.within or route.path,
            "assets": self._files.version,
        }
        return rendered(self._templates, page.template, parts).encode(errors="replace")

    async def _complete(self, request: Request) -> Response:
        """Return what completes a field, as JSON."""
        try:
            proposals = await self._context.turns.take("/complete", partial(completions, self._context, request))
        except RESPONSE_ERRORS as error:
            return problem_of(error)
        return Response(json_text({"proposals": [{"value": proposal} for proposal in proposals]}), media_type=JSON)

    async def _live(self, request: Request) -> Response:
        """Return a stream of what changes."""
        changes = self._context.changes
        if changes.readers >= MAX_STREAMS:
            detail = f"{MAX_STREAMS} pages that follow changes found, expected fewer: close one of them"
            return problem(503, detail, headers={"Retry-After": "10"})
        if request.method == "HEAD":
            return Response(media_type=EventStream.media_type)
        return EventStream(changes.feed, pause=CHANGE_SECONDS)


def _headed(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that answers as *endpoint* does, with the headers of the console."""

    async def headed(request: Request) -> Response:
        response = await endpoint(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return headed


class StaticFiles:
    """The stylesheet, the scripts and the icon, as they were when the server started."""

    def __init__(self) -> None:
        self._contents = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir())}
        self.version = hashlib.sha256(b"".join(self._contents.values())).hexdigest()[:16]
        """Differs when any of them does."""

    def endpoints(self) -> dict[str, Endpoint]:
        """Return what answers, by path."""
        return {f"/static/{name}": self._endpoint(name) for name in self._contents}

    def _endpoint(self, name: str) -> Endpoint:
        response = Response(self._contents[name], media_type=MEDIA_TYPES[Path(name).suffix], headers=KEPT)

        async def endpoint(request: Request) -> Response:
            return response

        return endpoint
