# SPDX-License-Identifier: Apache-2.0

"""From a request to what its page shows, errors included: an error of a field stands beside the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from starlette.requests import Request

from dnsserver.tools.api.inspected import NOT_READ_YET, TRY_AGAIN, Busy, NotReady
from dnsserver.tools.api.operations import TAIL, BadParameter, read_parameters
from dnsserver.tools.console import parameters
from dnsserver.tools.console.changes import COUNTS, SNAPSHOT
from dnsserver.tools.console.views import PageMissing, Views
from dnsserver.tools.explain.naming import UnknownName
from dnsserver.tools.simulation import MAX_OVERLOAD
from dnsserver.tools.simulation.selecting import BadSelection
from locator.model import Health
from locator.topology.annotations import MIN_ENDPOINTS
from locator.topology.selection import OUTCOMES

MAX_COLUMNS = 6  # of values of keys
MAX_ROWS = 50  # endpoints, and records, of an explanation; the API lists all
BOTH = f"{SNAPSHOT} {COUNTS}"  # what a page follows that shows what was counted, as the script reads it
PAGES = {"/": "Overview", "/map": "Map", "/services": "Services", "/explain": "Explain", "/tail": "Tail"}


class Shown(Struct, frozen=True):
    """What a template gets: its name, the page's title and the path that the navigation marks, and what is shown."""

    template: str
    title: str
    current: str
    parts: Mapping[str, Any]
    live: str = SNAPSHOT
    status: int = 200
    headers: Mapping[str, str] = {}


class Pages:
    """The pages by their paths. Each may raise what ``failed`` takes."""

    def __init__(self, views: Views) -> None:
        self._views = views

    async def overview(self, request: Request) -> Shown:
        """Return the first page."""
        parameters.read(parameters.OVERVIEW, request)
        return Shown("overview.html", "Overview", "/", {"view": await self._views.overview()}, BOTH)

    async def findings(self, request: Request) -> Shown:
        """Return all findings of one cause."""
        given = parameters.read(parameters.FINDINGS, request)
        view = await self._views.findings(given)
        return Shown("findings.html", given["code"] or "Findings", "/", {"view": view})

    async def map(self, request: Request) -> Shown:
        """Return what is in some domains."""
        given = parameters.read(parameters.MAP, request)
        try:
            view = await self._views.map(given, parameters.within_of(request))
        except ValueError as error:
            raise BadParameter("within", str(error)) from None
        return Shown("map.html", "Map", "/map", {"view": view})

    async def node(self, request: Request) -> Shown:
        """Return what is on a node."""
        given, path = parameters.read(parameters.NODE, request), request.path_params
        view = await self._views.node(path["cluster"], path["name"], given)
        parts = {"view": view, "is_own": self._views.is_own(view.cluster)}
        return Shown("node.html", f"Node {view.name}", "/map", parts)

    async def services(self, request: Request) -> Shown:
        """Return the list of Services."""
        view = await self._views.services(parameters.read(parameters.SERVICES, request))
        return Shown("services.html", "Services", "/services", {"view": view})

    async def service(self, request: Request) -> Shown:
        """Return a Service, and if a client is named, what that gets."""
        path, form = request.path_params, parameters.form_of(parameters.SERVICE, request)
        form = {name: form[name] for name in ("client", "namespace", "keys", "least")}
        errors: dict[str, str] = {}
        try:
            given = parameters.read(parameters.SERVICE, request)
            view = await self._views.service(path["namespace"], path["name"], given)
        except (BadParameter, UnknownName, BadSelection) as error:
            errors = _errors(error, form)
            given = {"client": None, "namespace": None, "keys": "", "least": "", "propose": False, "page": 1}
            view = await self._views.service(path["namespace"], path["name"], given)
        title = f"{view.namespace}/{view.name}"
        parts = {
            "view": view,
            "form": form,
            "errors": errors,
            "proposes": given["propose"],
            "max_overload": MAX_OVERLOAD,
        }
        return Shown("service.html", title, "/services", parts, status=400 if errors else 200)

    async def explain(self, request: Request) -> Shown:
        """Return the form, and the explanation once somebody has asked for one."""
        form = parameters.form_of(parameters.EXPLAINED, request)
        form = {name: form[name] for name in ("name", "client", "type", "namespace")}
        errors, view, title = dict[str, str](), None, "Explain"
        if form["name"] or not set(request.query_params) <= {"client"}:
            try:
                view = await self._views.explained(parameters.read(parameters.EXPLAINED, request, candidates="true"))
                title = f"{form['name']} for {form['client']}"
            except (BadParameter, UnknownName) as error:
                errors = _errors(error, form)
        parts = {"view": view, "form": form, "errors": errors, "most": MAX_ROWS, "columns": MAX_COLUMNS}
        return Shown("explain.html", title, "/explain", parts, status=400 if errors else 200)

    async def tail(self, request: Request) -> Shown:
        """Return the page that shows decisions as they are made."""
        form, errors = parameters.form_of(TAIL, request), dict[str, str]()
        query = [(name, text) for name, text in form.items() if text]
        try:
            read_parameters(TAIL, query)
        except BadParameter as error:
            errors = _errors(error, form)
        parts = {"form": form, "errors": errors, "query": query, "outcomes": OUTCOMES}
        return Shown("tail.html", "Tail", "/tail", parts, live="", status=400 if errors else 200)


def failed(error: Exception, current: str, checks: Mapping[str, Health]) -> Shown:
    """Return the page that says why there is no other. Raises *error* if it is none that pages raise."""
    match error:
        case NotReady():
            parts = {"text": f"Not yet: {NOT_READ_YET}.", "checks": checks}
            return Shown("message.html", "Not ready", current, parts, BOTH, 503, {"Retry-After": "1"})
        case Busy():
            return Shown("message.html", "Busy", current, _text(TRY_AGAIN), "", 503, {"Retry-After": "1"})
        case PageMissing():
            return Shown("message.html", "Not found", current, _text(str(error)), status=404)
        case BadParameter():
            return Shown("message.html", "Bad request", current, _text(f"{error.parameter}: {error}"), "", 400)
    raise error


def _text(text: str) -> dict[str, Any]:
    return {"text": text, "checks": {}}


def _errors(error: BadParameter | UnknownName | BadSelection, form: Mapping[str, str]) -> dict[str, str]:
    """Return the text of an error by the field that it is about, ``other`` if it is about none."""
    if isinstance(error, BadSelection):
        return {"least" if error.argument == MIN_ENDPOINTS else "keys": str(error)}
    field = error.parameter if isinstance(error, BadParameter) else error.argument
    return {field: str(error)} if field in form else {"other": f"{field}: {error}"}
