# SPDX-License-Identifier: Apache-2.0

"""The answer to a client with the reasons for it, and decisions as they are made: what the API has, on pages."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from dnsserver.tools.api import operations
from dnsserver.tools.api.operations import TAIL, BadParameter, read_parameters
from dnsserver.tools.console.page import FOLLOWS_NOTHING, Page, PageContext, field_errors, form_of, read
from dnsserver.tools.explain.naming import UnknownName
from dnsserver.tools.tap.lines import MAX_SHOWN, TailLine
from locator.topology.selection import OUTCOMES

EXPLAIN_PATH = "/explain"
MAX_COLUMNS = 6  # of values of keys
MAX_KEPT_ROWS = 50  # decisions from before a page was opened: each is up to a kilobyte
MAX_ROWS = 50  # endpoints, and records, of an explanation; the API lists all


async def explain_page(context: PageContext, request: Request) -> Page:
    """Return the form, and the explanation that the API gives once somebody has asked for one. Raises Busy."""
    form, errors = form_of(request, "name", "client", "type", "namespace"), dict[str, str]()
    explanation, title = None, "Explain"
    if form["name"] or not set(request.query_params) <= {"client", "namespace"}:
        try:
            given = read(request, *operations.EXPLAIN.parameters, candidates="true")
            explanation = await context.inspected.explained(given, context.turns, EXPLAIN_PATH)
            title = f"{form['name']} for {form['client']}"
        except (BadParameter, UnknownName) as error:
            errors = field_errors(error, form)
    shown = {"explanation": explanation, "form": form, "errors": errors, "most": MAX_ROWS, "columns": MAX_COLUMNS}
    return Page("explain.html", title, shown, status=400 if errors else 200)


async def tail_page(context: PageContext, request: Request) -> Page:
    """Return the page that shows decisions as they are made: a script reads them from the API."""
    form, errors = form_of(request, *(parameter.name for parameter in TAIL.parameters)), dict[str, str]()
    query = [(name, text) for name, text in form.items() if text]
    live = context.live
    lines: Sequence[TailLine] = ()
    try:
        given = read_parameters(TAIL.parameters, query)
        service, outcome, client = given["service"], given["outcome"], given["client"]
        if service is not None and not (live is not None and live.kept.knows(service)):
            await context.inspected.check_service(service, context.turns)
        if live is not None:
            lines = live.kept.decisions(service, outcome, client=client, limit=MAX_KEPT_ROWS)
    except BadParameter as error:
        errors = field_errors(error, form)
    shown = {
        "form": form,
        "errors": errors,
        "query": query,
        "outcomes": OUTCOMES,
        "asked": None if context.recent is None else context.recent.asked(),
        "kept": lines[::-1],
        "most": MAX_SHOWN,
    }
    return Page("tail.html", "Tail", shown, FOLLOWS_NOTHING, 400 if errors else 200)
