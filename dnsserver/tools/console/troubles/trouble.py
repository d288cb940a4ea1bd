# SPDX-License-Identifier: Apache-2.0

"""What is wrong as a page shows it: a trouble, and all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dnsserver.text import DAY, duration
from dnsserver.tools.console.first_seen import FirstSeen

# The sorts of troubles, in the order in which a page shows them.
UNMET, UNMET_ANSWERS, LOST, OVERLOADED, SOURCE, FORWARDER, UNLOCATED, FINDING = KINDS = (
    "unmet", "unmet answers", "lost zone", "overloaded", "source", "forwarder", "unlocated", "finding",
)  # fmt: skip
WORDS = {
    UNMET: "clients get nothing", UNMET_ANSWERS: "clients got nothing", LOST: "zone without endpoints",
    OVERLOADED: "overloaded", SOURCE: "out of date", FORWARDER: "forwarder", UNLOCATED: "clients without a place",
    FINDING: "finding",
}  # fmt: skip
BAD, WARN = "bad", "warn"
MAX_OF_A_KIND = 5  # troubles that a page shows; more would hide those of the next kind
NAMED = 3  # things by their names in a sentence


class Trouble(Struct, frozen=True):
    """Something that is wrong now. ``kind`` and ``key`` tell it from all others, also while its texts change.

    ``since`` is a Unix time, None if it was there before anybody looked. ``clients`` are how many it concerns, None if
    that is not known. ``command`` is for a shell, or a line of a configuration. ``links`` are texts with their paths.
    ``tone`` is BAD where clients get nothing or what is wrong, else WARN. ``service`` is its ``namespace/name``, and
    ``lost`` is whether it has endpoints for these clients that are not ready. ``parts`` has the keys of what is dated
    on its own, here the places whose clients get nothing: the trouble is as it is since the newest of them is there.
    """

    kind: str
    key: str
    tone: str
    title: str
    cause: str
    fix: str
    command: str = ""
    links: tuple[tuple[str, str], ...] = ()
    clients: int | None = None
    since: float | None = None
    service: str = ""
    lost: bool = False
    parts: tuple[str, ...] = ()


class Now(NamedTuple):
    """All that is wrong: the first troubles of each kind in order, and by kind how many more there are.

    ``at`` is the Unix time of the look, and ``began`` that of the first one, None if all is about a dump that nobody
    serves. ``peace`` says in a line what was looked at, for when nothing is wrong.
    """

    shown: Sequence[Trouble]
    more: Mapping[str, int]
    at: float
    began: float | None
    peace: str

    @property
    def total(self) -> int:
        """How many things are wrong."""
        return len(self.shown) + sum(self.more.values())

    @property
    def verdict(self) -> str:
        """What a person reads first: how many things are wrong."""
        if not self.total:
            return "Nothing is wrong"
        return f"{self.total:,} thing{' is' if self.total == 1 else 's are'} wrong"

    @property
    def title(self) -> str:
        """What the tab says of a page that nobody looks at: the worst of it, and how much more there is."""
        if not self.total:
            return self.verdict
        return self.shown[0].title + (f", and {self.total - 1:,} more" if self.total > 1 else "")

    @property
    def identities(self) -> tuple[object, ...]:
        """What differs when something else is wrong, or something more."""
        return (*((trouble.kind, trouble.key) for trouble in self.shown), *self.more.items())

    def since_text(self, trouble: Trouble) -> str:
        """Return since when a trouble is there, as people read it."""
        if trouble.since is None:
            return "in this dump" if self.began is None else f"since {self._clock(self.began)} or earlier"
        return f"since {self._clock(trouble.since)} ({duration(max(0.0, self.at - trouble.since))})"

    def _clock(self, time: float) -> str:
        form = "%H:%M UTC" if self.at - time < DAY else "%d %b %H:%M UTC"
        return datetime.fromtimestamp(time, UTC).strftime(form)


def dated(troubles: Sequence[Trouble], first_seen: FirstSeen, now: float, *, settled: bool) -> list[Trouble]:
    """Return the troubles of a ``FirstSeen.look``, each with its time; *settled* is as there."""
    first_seen.look([(one.kind, part) for one in troubles for part in _parts(one)], now, settled=settled)
    return dated_as_seen(troubles, first_seen, None)


def dated_as_seen(troubles: Sequence[Trouble], first_seen: FirstSeen, new: float | None) -> list[Trouble]:
    """Return the *troubles*, each with its time by the last look; *new* is that of those which this did not find."""

    def newest(trouble: Trouble) -> float | None:
        since = (first_seen.since.get((trouble.kind, part), new) for part in _parts(trouble))
        return max(filter(None, since), default=None)

    return [one if one.since is not None else replace(one, since=newest(one)) for one in troubles]


def _parts(trouble: Trouble) -> Sequence[str]:
    return trouble.parts or (trouble.key,)


def in_short(troubles: Iterable[Trouble]) -> tuple[list[Trouble], dict[str, int]]:
    """Return the first troubles of each kind, and how many more there are of those kinds with more."""
    of_kind: dict[str, list[Trouble]] = {kind: [] for kind in KINDS}
    for trouble in troubles:
        of_kind[trouble.kind].append(trouble)
    more = {kind: len(found) - MAX_OF_A_KIND for kind, found in of_kind.items() if len(found) > MAX_OF_A_KIND}
    return [trouble for found in of_kind.values() for trouble in found[:MAX_OF_A_KIND]], more
