"""The list/watch protocol of the Kubernetes API without I/O: what to ask next, and what the answers mean.

List, then watch from the list's version on. A watch that ends is watched on from the last version seen; only where that
leaves doubt about what was missed is everything listed again, and the Replace mends whatever was.

    state    asked                           next
    STREAM   a watch that begins with all    BOOKMARK with initial-events-end: WATCH in the same stream;
             objects                         a server that knows no such thing: PAGES
    PAGES    pages of all objects            the last page: WATCH; 410 for the continue token: from the
                                             beginning, in larger pages
    WATCH    what has changed since          410, another ERROR or an unreadable line: list again
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from locator.api.decoding import Resource
from locator.api.deltas import DeltaBatch, DeltaBuilder
from locator.backoff import STEADY, Backoff

PAGE = 500  # objects; client-go's own
LARGER = 10  # times as large is a page after its continue token expired
WHOLE = 100_000  # objects: a larger page is not limited any more, and so never continued
WATCH_SECONDS = 300  # at least, at most twice as much: watches of one start end apart
ABSENT_SECONDS = 10.0  # between looks for a kind that the API does not know (yet): six small requests a minute
LONGEST_REQUESTED = 60.0  # seconds of a Retry-After that are obeyed: a view must not grow old for a silly number
STREAM_REFUSALS = (400, 405, 422)  # how servers that know no streaming lists refuse one
NOT_FOUND, GONE = 404, 410
DOUBTFUL = (400, NOT_FOUND, GONE, 422, 504)  # of a watch; 504: its version is yet to come, as after a restored backup
INITIAL_END = "k8s.io/initial-events-end"

# Why a watch or list was begun again, in the words that are counted.
ENDED, EXPIRED, DOUBT, REFUSED = "ended", "expired", "doubt", "refused"
UNREACHABLE, SILENT, CUT = "unreachable", "silent", "cut"
HAS_EXPIRED = "the version to go on from has expired"
REASONS = (ENDED, EXPIRED, DOUBT, REFUSED, UNREACHABLE, SILENT, CUT)


class Ask(NamedTuple):
    """One GET; the answer to a *watch* goes to ``lines`` as it comes, another whole to ``page``."""

    path: str
    query: Mapping[str, str]
    watch: bool


class _State(Enum):
    STREAM = "stream"
    PAGES = "pages"
    WATCH = "watch"


class _Event(Struct):
    type: str
    object: Raw


class _BookmarkMeta(Struct):
    version: str | None = field(name="resourceVersion", default=None)
    annotations: dict[str, str] | None = None


class _Bookmark(Struct):
    metadata: _BookmarkMeta


class _Error(Struct):
    code: int | None = None
    reason: str | None = None
    message: str | None = None


class _PageMeta(Struct):
    version: str | None = field(name="resourceVersion", default=None)
    more: str | None = field(name="continue", default=None)


class _Page(Struct):
    metadata: _PageMeta
    items: list[Raw] | None = None


# Made here, since threads share them: see ``decoding.KINDS_READ``.
_EVENT, _BOOKMARK, _ERROR, _PAGE = Decoder(_Event), Decoder(_Bookmark), Decoder(_Error), Decoder(_Page)


class ListWatch:
    """One kind of one cluster: says what to ask, is told what came, and returns what that changes.

    ``next`` says what to ask, ``pause`` seconds from now. Then come ``lines`` or one ``page``; ``refused`` or
    ``ended`` follow when nothing more comes. *chance* returns numbers from 0 to below 1. Without *streaming* pages are
    asked for from the start.
    """

    def __init__(
        self, kind: type[Any], resource: Resource, *, chance: Callable[[], float], streaming: bool = True
    ) -> None:
        self.pause = 0.0
        """Seconds to wait before ``next``."""
        self.problem = "not listed yet"
        """Why what was told may not be how it is, empty if it is."""
        self.listed = False
        """Whether all objects have been told once."""
        self.reason = ""
        """Why it was begun again last, one of REASONS."""
        self.over = False
        """Whether the answer that is under way is of no more use: to be left, and ``ended``."""
        self.absent = False
        """Whether the API did not know the kind, which is optional, when it was asked last."""
        self._kind = resource
        self._chance = chance
        self._told = DeltaBuilder(kind, resource)
        self._listing = _State.STREAM if streaming else _State.PAGES
        self._state = self._listing
        self._version = ""
        self._continue = ""
        self._limit = PAGE
        self._backoff = Backoff()

    def next(self) -> Ask:
        """Return what to ask now."""
        self.over, self.pause, self.reason = False, 0.0, ""
        if self._state is _State.PAGES:
            query = {"limit": str(self._limit)} if self._limit <= WHOLE else {}
            if self._continue:
                query["continue"] = self._continue
            return Ask(self._kind.path, query, watch=False)
        query = {"watch": "1", "allowWatchBookmarks": "true"}
        if self._state is _State.STREAM:
            self._told.forget_list()
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            query["resourceVersion"] = self._version
        query["timeoutSeconds"] = str(int(WATCH_SECONDS * (1 + self._chance())))
        return Ask(self._kind.path, query, watch=True)

    def lines(self, batch: Sequence[bytes]) -> DeltaBatch:
        """Take in whole lines of a watch. Never raises, whatever they hold; look at ``over`` afterwards."""
        for line in batch:
            if self.over:
                break
            try:
                event = _EVENT.decode(line)
                if event.type in ("ADDED", "MODIFIED", "DELETED"):
                    take_in = self._told.list_untrusted if self._state is _State.STREAM else self._told.change_untrusted
                    take_in(event.object, gone=event.type == "DELETED")
                    self._version = self._told.version or self._version
                elif event.type == "BOOKMARK":
                    self._bookmark(_BOOKMARK.decode(event.object).metadata)
                elif event.type == "ERROR":
                    self._error(_ERROR.decode(event.object))
                else:
                    self._leave(DOUBT, f"an event of a type that nobody knows: {event.type[:30]!r}")
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._leave(DOUBT, "a line of the watch cannot be read")
        return self._told.news()

    def page(self, body: bytes) -> DeltaBatch:
        """Take in one page. Never raises, whatever it holds; look at ``over`` afterwards."""
        try:
            page = _PAGE.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._leave(DOUBT, "a page of the list cannot be read")
            return self._told.news()
        if not self._continue:
            self._told.forget_list()
        for position, raw in enumerate(page.items or ()):
            self._told.list_untrusted(raw, f"item {position}")
        self._version = page.metadata.version or self._version
        self._continue = page.metadata.more or ""
        if not self._continue:
            self._end_list()
        return self._told.news()

    def refused(self, status: int, text: str, retry_after: float | None = None) -> DeltaBatch:
        """Take in that the API server answered with an HTTP error; *text* is for people."""
        if self._kind.optional and status == NOT_FOUND:
            self._note_absence()
        elif self._state is _State.STREAM and status in STREAM_REFUSALS:
            self._listing = self._state = _State.PAGES
        elif self._state is _State.PAGES and status == GONE and self._continue and self._limit <= WHOLE:
            self._list_again()  # at once: it can happen only a few times, then the list is one page
            self._limit *= LARGER
            self.reason = EXPIRED
        else:
            if status in DOUBTFUL:
                self._list_again()
            self.reason = EXPIRED if status == GONE else REFUSED
            self._fail(self._words(status, text))
            self.pause = max(self.pause, min(retry_after or 0.0, LONGEST_REQUESTED))
        return self._told.news()

    def begun(self) -> None:
        """Take in that the API server has granted what was asked, and the answer is under way."""
        if self._state is _State.WATCH:
            self.problem = ""

    def ended(self, lived: float, reason: str = ENDED, text: str = "") -> None:
        """Take in that no more comes of a watch that lasted *lived* seconds, or that no answer came at all.

        *reason* is UNREACHABLE, SILENT or CUT where it did not end by itself; *text* is for people.
        """
        if self.over:  # we left it, and know why
            self._fail(self.problem, lived)
            return
        self.reason = reason
        if self._state is _State.STREAM and reason in (ENDED, SILENT) and lived:
            self._listing = self._state = _State.PAGES  # who does not know what was asked sends no end of the list
        if reason == ENDED and lived >= STEADY:
            self._backoff = Backoff()
        else:
            self._fail(text or "the watch ended early", lived)

    def failed(self, text: str) -> None:
        """Take in that what came could not be taken in."""
        self._leave(DOUBT, text)
        self._fail(text)

    def _fail(self, problem: str, lived: float = 0.0) -> None:
        self.problem = problem
        self._backoff = self._backoff.failed(lived)
        self.pause = self._backoff.delay(self._chance())

    def _leave(self, reason: str, problem: str) -> None:
        """See no use in the rest of an answer."""
        self.over = True
        self.reason, self.problem = reason, problem
        self._list_again()

    def _list_again(self) -> None:
        self._state = self._listing
        self._continue = ""

    def _end_list(self) -> None:
        self._told.end_list()
        self._state = _State.WATCH
        self._limit = PAGE
        self.absent = False
        self.listed = True
        self.problem = ""

    def _note_absence(self) -> None:
        """Tell that there are none of a kind that the API does not know, and look again later."""
        if not self.absent:
            self._told.forget_list()
            self._end_list()
        self._list_again()
        self.absent = True
        self.problem = ""
        self._backoff, self.pause = Backoff(), ABSENT_SECONDS

    def _bookmark(self, meta: _BookmarkMeta) -> None:
        if self._state is _State.STREAM:
            if INITIAL_END not in (meta.annotations or {}):  # who streams lists sends none before their end
                self._listing = _State.PAGES
                self._leave(REFUSED, "the API server streams no lists: pages instead")
                return
            self._end_list()
        self._version = meta.version or self._version

    def _error(self, error: _Error) -> None:
        if error.code == GONE:
            self._leave(EXPIRED, HAS_EXPIRED)
        else:
            self._leave(DOUBT, f"an error in the watch: {error.code} {error.reason}: {error.message}")

    def _words(self, status: int, text: str) -> str:
        """Return a text for people that stays the same as long as the problem does."""
        if status == NOT_FOUND:
            own = self._kind.group.endswith(".k8s.io") or "." not in self._kind.group
            hint = "" if own else "; is its CRD installed?"
            return f"{text}: the API server has no {self._kind.path}{hint}"
        return HAS_EXPIRED if status == GONE else text
