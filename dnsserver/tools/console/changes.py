# SPDX-License-Identifier: Apache-2.0

"""Tells open pages when what they show has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dnsserver.tools.api.events import Take
from locator.model import Finding
from locator.printable import json_text
from locator.state.snapshot import Snapshot

SNAPSHOT, COUNTS = "snapshot", "counts"  # what can change: what is known of the clusters, and what was counted
CHANGE_SECONDS = 1.0  # between two events for a page


class PageChanges:
    """What was published last, and the open pages, which are told of changes."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.findings: Sequence[Finding] = ()
        self.publication = object()
        """Another one after each publication: what is made of a publication may name it without keeping it."""
        self._listeners: dict[Callable[[str], None], None] = {}
        self._start, self._published, self._counted = time.time_ns(), 0, 0

    @property
    def version(self) -> str:
        """Differs after each change, and from one run of the server to the next."""
        return f"{self._start:x}-{self._published}-{self._counted}"

    @property
    def readers(self) -> int:
        """The number of pages that follow changes."""
        return len(self._listeners)

    def published(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        """Take in a publication: a subscriber."""
        self.snapshot, self.findings = snapshot, findings
        self.publication = object()
        self._published += 1
        self._tell(SNAPSHOT)

    def counted(self) -> None:
        """Tell that counters, or the health of clusters, have changed."""
        self._counted += 1
        self._tell(COUNTS)

    @contextmanager
    def feed(self, wake: Callable[[], None]) -> Iterator[Take]:
        """Give a page the present version, and then what has changed."""
        events, changed = [_event("state", {"version": self.version})], dict[str, None]()

        def listen(what: str) -> None:
            changed[what] = None
            wake()

        def take() -> Iterator[str]:
            if changed:
                events.append(_event("changed", {"what": list(changed)}))
                changed.clear()
            while events:
                yield events.pop(0)

        self._listeners[listen] = None
        wake()
        try:
            yield take
        finally:
            del self._listeners[listen]

    def _tell(self, what: str) -> None:
        for listen in self._listeners:
            listen(what)


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json_text(data)}\n\n"
