# SPDX-License-Identifier: Apache-2.0

"""Since when something is there, as far as somebody has looked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

MAX_KNOWN = 5000  # half a megabyte; the troubles of Services alone are at most 200, with 20 dates each

Identity = tuple[str, str]  # what tells a thing from all others


class FirstSeen:
    """When each thing was seen for the first time of those without a break, in Unix time: of MAX_KNOWN at most."""

    def __init__(self) -> None:
        self.since: Mapping[Identity, float | None] = {}
        """Of what the last look found: since when it is there, None if it was there before anybody looked."""
        self.began: float | None = None
        """When the first look was that was settled."""

    def look(self, found: Iterable[Identity], now: float, *, settled: bool) -> None:
        """Note since when each thing is there that a look at *now* has *found*; those that are gone are forgotten.

        What the first look finds that is *settled*, which means that nothing was left out, was there before.
        """
        first = None if self.began is None else now
        self.since = {identity: self.since.get(identity, first) for identity in islice(found, MAX_KNOWN)}
        if settled and self.began is None:
            self.began = now
