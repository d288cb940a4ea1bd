# SPDX-License-Identifier: Apache-2.0

"""Tells open pages when what they show has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from locator.model import Finding
from locator.printable import json_text
from locator.state.snapshot import Snapshot

SNAPSHOT, COUNTS = "snapshot", "counts"  # what can change: what is known of the clusters, and what was counted


class Changes:
    """What was published last, and who wants to hear of changes."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.findings: Sequence[Finding] = ()
        self._listeners: dict[ChangeFeed, None] = {}
        self._start, self._published, self._counted = time.time_ns(), 0, 0

    @property
    def version(self) -> str:
        """Differs after each change, and from one run of the server to the next."""
        return f"{self._start:x}-{self._published}-{self._counted}"

    def current(self) -> Snapshot | None:
        """Return the snapshot that was published last, None before the first."""
        return self.snapshot

    def published(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        """Take in a publication: a subscriber."""
        self.snapshot, self.findings = snapshot, findings
        self._published += 1
        self._tell(SNAPSHOT)

    def counted(self) -> None:
        """Tell that counters, or the health of clusters, have changed."""
        self._counted += 1
        self._tell(COUNTS)

    def listen(self, feed: ChangeFeed) -> None:
        """Tell *feed* of changes from now on."""
        self._listeners[feed] = None

    def leave(self, feed: ChangeFeed) -> None:
        """Tell *feed* no longer."""
        del self._listeners[feed]

    def _tell(self, what: str) -> None:
        for feed in self._listeners:
            feed.hear(what)


class ChangeFeed:
    """A ``Feed`` for one page: first the present version, then what has changed, at most once a second."""

    pause = 1.0

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._heard: dict[str, None] = {}
        self._told_version = False
        self._wake: Callable[[], None] | None = None

    def open(self, wake: Callable[[], None]) -> None:
        """See ``Feed``."""
        self._wake = wake
        self._changes.listen(self)
        wake()

    def hear(self, what: str) -> None:
        """Hear of a change."""
        assert self._wake is not None
        self._heard[what] = None
        self._wake()

    def take(self) -> Iterator[str]:
        """See ``Feed``."""
        if not self._told_version:
            self._told_version = True
            yield _event("state", {"version": self._changes.version})
        heard, self._heard = list(self._heard), {}
        if heard:
            yield _event("changed", {"what": heard})

    def close(self) -> None:
        """See ``Feed``."""
        self._changes.leave(self)


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json_text(data)}\n\n"
