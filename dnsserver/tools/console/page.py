# SPDX-License-Identifier: Apache-2.0

"""What the pages have in common: what they are made from, their parameters, parts of long lists, errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import trio
from msgspec import Struct
from starlette.requests import Request

from dnsserver.settings import values
from dnsserver.tools.api.inspected import NOT_READ_YET, TRY_AGAIN, Busy, Inspected, NotReady, Turns
from dnsserver.tools.api.live import Live
from dnsserver.tools.api.operations import MAX_PARAMETER, BadParameter, Parameter, read_parameters
from dnsserver.tools.console.changes import COUNTS, SNAPSHOT, PageChanges
from dnsserver.tools.console.first_seen import FirstSeen
from dnsserver.tools.console.recent import RecentCounts
from dnsserver.tools.explain.naming import UnknownName
from locator.model import Health

FOLLOWS_ALL = f"{SNAPSHOT} {COUNTS}"  # the ``follows`` of a page that shows what was counted, too
FOLLOWS_NOTHING = ""
WITHIN = "within"  # the only parameter that may be given several times: the map reads it by itself
PAGE = Parameter("page", "Which part of a long list.", values.whole_number(1, 1_000_000).read, "a number", default="1")
TEXT = Parameter("text", "Part of a name.", str, "a text", default="")
NAMESPACE = Parameter("namespace", "Of the client.", values.NAMESPACE.read, values.NAMESPACE.expected)

T = TypeVar("T")
U = TypeVar("U")

# Into what takes long goes at most one part in so many of the time: while somebody looks, and while nobody does.
FOR_VIEWERS, IN_BACKGROUND = 20, 50


class Page(Struct, frozen=True):
    """A page before it is HTML: its template, its title, and what the template shows, by name.

    ``follows`` are the changes after which a browser fetches it again, as the script reads them.
    """

    template: str
    title: str
    shown: Mapping[str, Any] = {}
    follows: str = SNAPSHOT
    status: int = 200
    headers: Mapping[str, str] = {}


class PageMissing(Exception):
    """What a page is about does not exist. The text says so."""


class PageContext:
    """What pages are made from: what a server has read, what changed, and what it counted in the last minutes.

    *changes* must hear of all publications. *live* is None where no DNS is answered: then nobody asks anything.
    ``health`` and ``ages`` (in seconds) are those of the clusters, by name.
    """

    def __init__(
        self,
        inspected: Inspected,
        turns: Turns,
        changes: PageChanges,
        live: Live | None,
        *,
        health: Callable[[], Mapping[str, Health]],
        ages: Callable[[], Mapping[str, float]],
    ) -> None:
        self.inspected, self.turns, self.changes, self.health, self.ages = inspected, turns, changes, health, ages
        self.live = live
        self.recent = None if live is None else RecentCounts(live.counts)
        self.failures = Counter[str]() if live is None else live.counts.failures
        self.first_seen = FirstSeen()
        self._cached: dict[str, tuple[Sequence[object], Any]] = {}
        self._throttled: dict[str, tuple[float, float, Any]] = {}  # when each was made, how long it took, and what

    async def cached(self, name: str, of: Sequence[object], compute: Callable[[], Awaitable[T]]) -> T:
        """Return what *compute* returns; what it returned under this *name* before, if it was made *of* these objects.

        These are the very same objects, not equal ones.
        """
        cached = self._cached.get(name)
        if cached is None or len(cached[0]) != len(of) or not all(map(is_, cached[0], of)):
            cached = self._cached[name] = of, await compute()
        result: T = cached[1]
        return result

    async def throttled(self, name: str, compute: Callable[[], Awaitable[T]], *, one_part_in: int | None = None) -> T:
        """Return what ``cached`` does of the present publication, or what that returned a while ago.

        At most one part in so many of the time goes into *compute*: by default one in FOR_VIEWERS, and as much as it
        takes where no DNS is answered.
        """
        pause = one_part_in or (0 if self.live is None else FOR_VIEWERS)  # times as long as it took
        made, took, result = self._throttled.get(name, (-math.inf, 0.0, None))
        if (began := trio.current_time()) >= made + pause * took:
            result = await self.cached(name, (self.changes.publication,), compute)
            ended = trio.current_time()
            self._throttled[name] = ended, ended - began, result
        found: T = result
        return found


class Part(Struct, Generic[T], frozen=True):
    """Some ``rows`` of a list that has ``total``; ``first`` is how many come before them.

    ``number`` counts the parts from 1; there are ``parts``, at least 1.
    """

    rows: Sequence[T]
    total: int
    first: int
    number: int
    parts: int

    def of(self, rows: Sequence[U]) -> Part[U]:
        """Return the same part with other *rows*, which were made from its own."""
        return Part(rows, self.total, self.first, self.number, self.parts)


def part_of(rows: Sequence[T], number: int, size: int) -> Part[T]:
    """Return part *number* (from 1) of *rows*, of *size* rows, or the last part if there are not so many."""
    parts = max(1, -(-len(rows) // size))
    number = min(max(number, 1), parts)
    first = (number - 1) * size
    return Part(rows[first : first + size], len(rows), first, number, parts)


def read(request: Request, *parameters: Parameter, **more: str) -> dict[str, Any]:
    """Return the values of the *parameters* of a page; a field that is left empty is not given. Raises BadParameter.

    *more* are texts of parameters that the request does not give.
    """
    given = [(name, text) for name, text in request.query_params.multi_items() if text and name != WITHIN]
    names = {name for name, _ in given}
    return read_parameters(parameters, [*given, *((name, text) for name, text in more.items() if name not in names)])


def form_of(request: Request, *names: str) -> dict[str, str]:
    """Return what stands in the fields of a form."""
    return {name: request.query_params.get(name, "")[:MAX_PARAMETER] for name in names}


def field_errors(error: BadParameter | UnknownName, form: Iterable[str]) -> dict[str, str]:
    """Return the text of an error by the field of a *form* that it is about, ``other`` if it is about none."""
    field = error.parameter if isinstance(error, BadParameter) else error.argument
    return {field: str(error)} if field in form else {"other": f"{field}: {error}"}


def wrong_fields(form: Mapping[str, str], parameters: Iterable[Parameter]) -> dict[str, str]:
    """Return what is wrong with each field of a *form* that holds one of the *parameters*."""
    wrong: dict[str, str] = {}
    for parameter in parameters:
        try:
            read_parameters([parameter], [(parameter.name, text)] if (text := form.get(parameter.name)) else ())
        except BadParameter as error:
            wrong[parameter.name] = str(error)
    return wrong


def segment(text: str) -> str:
    """Return a text as one segment of a path."""
    return quote(text, safe="")


def service_path(key: str) -> str:
    """Return the path of the page of a Service (``namespace/name``)."""
    return f"/services/{'/'.join(map(segment, key.split('/', 1)))}"


def error_page(error: Exception, checks: Mapping[str, Health]) -> Page:
    """Return the page that says why there is no other. Raises *error* if it is none that pages raise."""
    match error:
        case NotReady():
            shown = {"text": f"Not yet: {NOT_READ_YET}.", "checks": checks}
            return Page("message.html", "Not ready", shown, FOLLOWS_ALL, 503, {"Retry-After": "1"})
        case Busy():
            return Page("message.html", "Busy", {"text": TRY_AGAIN}, FOLLOWS_NOTHING, 503, {"Retry-After": "1"})
        case PageMissing():
            return Page("message.html", "Not found", {"text": str(error)}, status=404)
        case BadParameter():
            return Page("message.html", "Bad request", {"text": f"{error.parameter}: {error}"}, FOLLOWS_NOTHING, 400)
    raise error
