# SPDX-License-Identifier: Apache-2.0

"""The console: pages for people, beside the API.

It shows what the API shows, to those who may read the API. One page of each sort is computed at a time. Its HTML is
made in the thread that also makes explanations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dnsserver.http.guard import guarded
from dnsserver.http.problems import problem
from dnsserver.metrics.counters import Counts
from dnsserver.tools.api.events import EventStream
from dnsserver.tools.api.inspected import PROBLEMS, Busy, Inspected, Turns, problem_of
from dnsserver.tools.api.operations import DESCRIPTION, JSON, overview
from dnsserver.tools.console import parameters
from dnsserver.tools.console.changes import CHANGE_SECONDS, PageChanges
from dnsserver.tools.console.page_requests import PAGES, Pages, Shown, failed
from dnsserver.tools.console.rendering import environment, rendered
from dnsserver.tools.console.sampling import Sampler
from dnsserver.tools.console.views import Around, Views
from locator.printable import json_text

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

Endpoint = Callable[[Request], Awaitable[Response]]


class Console:
    """The pages about what is *inspected*. *changes* must hear of all publications.

    *counts* is None where no DNS is answered: then nobody asks anything. ``run`` is a task, as long as there are pages.
    """

    def __init__(
        self, inspected: Inspected, turns: Turns, around: Around, changes: PageChanges, counts: Counts | None
    ) -> None:
        self._turns, self._health, self._changes = turns, around.health, changes
        self._zones = inspected.authority.zones
        sampler = Sampler(counts, changes, around.health)
        self._views = Views(inspected, turns, around, self._changes, sampler)
        self._files, self._templates = StaticFiles(), environment()
        self._paths = {path: name for path, name in PAGES.items() if path != "/tail" or counts is not None}
        self.run = sampler.run

    def routes(self, *, loopback: bool) -> list[Route]:
        """Return the routes; *loopback* is whether only programs of this machine may ask."""
        pages = Pages(self._views)
        makers = {
            "/findings": pages.findings,
            "/map": pages.map,
            parameters.NODE.path: pages.node,
            "/services": pages.services,
            parameters.SERVICE.path: pages.service,
            "/explain": pages.explain,
            "/tail": pages.tail,
        }
        absent = PAGES.keys() - self._paths.keys()
        paths: dict[str, Endpoint] = {
            "/": partial(self._first, pages),
            "/live": self._live,
            "/complete": self._complete,
            **{path: partial(self._page, path, make) for path, make in makers.items() if path not in absent},
            **self._files.endpoints(),
        }
        return [
            Route(path, _headed(guarded(endpoint, loopback=loopback, zones=self._zones)), methods=["GET"])
            for path, endpoint in paths.items()
        ]

    async def _first(self, pages: Pages, request: Request) -> Response:
        """Return the first page to browsers, and to other programs a list of what there is."""
        if HTML in request.headers.get("accept", ""):
            response = await self._page("/", pages.overview, request)
        else:
            response = PlainTextResponse(overview(OTHER_PATHS))
        response.headers["Vary"] = "Accept"
        return response

    async def _page(self, path: str, make: Callable[[Request], Awaitable[Shown]], request: Request) -> Response:
        """Return a page as HTML, when its turn has come. ``explain`` takes turns itself: it waits for the upstream."""
        made = partial(self._made, path, make, request)
        early = await made() if path == parameters.EXPLAINED.path else None

        async def rendered() -> tuple[Shown, bytes]:
            shown, version = early or await made()
            return shown, await self._turns.in_thread(partial(self._rendered, shown, version))

        try:
            shown, html = await self._turns.take(path, rendered)
        except Busy as error:
            shown = failed(error, _current(path), {})
            html = self._rendered(shown, self._changes.version)
        return Response(html, shown.status, shown.headers, media_type=HTML)

    async def _made(
        self, path: str, make: Callable[[Request], Awaitable[Shown]], request: Request
    ) -> tuple[Shown, str]:
        """Return a page, and the version that it follows."""
        version = self._changes.version  # from before the page is computed: it may be older than it is, never newer
        try:
            return await make(request), version
        except Exception as error:
            return failed(error, _current(path), self._health()), version

    def _rendered(self, shown: Shown, version: str) -> bytes:
        parts = {
            **shown.parts,
            "title": shown.title,
            "current": shown.current,
            "live": shown.live,
            "version": version,
            "nav": self._paths.items(),
            "assets": self._files.version,
        }
        return rendered(self._templates, shown.template, parts).encode(errors="replace")

    async def _complete(self, request: Request) -> Response:
        """Return what completes a field, as JSON."""
        try:
            given = parameters.read(parameters.COMPLETE, request)
            proposals = await self._turns.take("/complete", partial(self._views.proposals, given))
        except PROBLEMS as error:
            return problem_of(error)
        return Response(json_text({"proposals": proposals}), media_type=JSON)

    async def _live(self, request: Request) -> Response:
        """Return a stream of what changes."""
        if self._changes.readers >= MAX_STREAMS:
            detail = f"{MAX_STREAMS} pages that follow changes found, expected fewer: close one of them"
            return problem(503, detail, headers={"Retry-After": "10"})
        if request.method == "HEAD":
            return Response(media_type=EventStream.media_type)
        return EventStream(self._changes.feed, pause=CHANGE_SECONDS)


def _current(path: str) -> str:
    """Return the page of the navigation that a path belongs to."""
    return {"/findings": "/", parameters.NODE.path: "/map", parameters.SERVICE.path: "/services"}.get(path, path)


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

    def endpoints(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        """Return what answers, by path."""
        return {f"/static/{name}": self._endpoint(name) for name in self._contents}

    def _endpoint(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        response = Response(self._contents[name], media_type=MEDIA_TYPES[Path(name).suffix], headers=KEPT)

        async def endpoint(request: Request) -> Response:
            return response

        return endpoint
