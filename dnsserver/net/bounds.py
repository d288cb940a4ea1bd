# SPDX-License-Identifier: Apache-2.0

"""Bounds the work for datagrams and connections.

All connections together, of DNS and of HTTP, hold a bounded number of octets. Each source has a share of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

C = TypeVar("C")

TURN_SECONDS = 0.005  # of answering before other tasks run: what waits is bounded by its cost, not by its number
SMALLEST_SHARE = 8  # connections of one source, so that a low limit of all does not end a client's usual few
MAX_HELD = 64 << 20  # octets; fits the smallest memory limit of docs/sizing.md
# To which share of the limit connections are closed once it is exceeded: finding those that hold most costs about the
# same for one as for many.
LEFT = 7 / 8


class SourceShares(Generic[C]):
    """Connections by source. One source has at most a quarter of *limit*, so that it cannot take them from all others.

    However low *limit* is, its share is at least ``SMALLEST_SHARE``. It has no bound if *may_take_all* is true of its
    packed address.
    """

    def __init__(self, limit: int, may_take_all: Callable[[bytes], bool]) -> None:
        self._share = max(SMALLEST_SHARE, limit // 4)
        self._may_take_all = may_take_all
        self._by_source: defaultdict[bytes, dict[C, None]] = defaultdict(dict)  # the oldest first

    def add(self, source: bytes, connection: C) -> None:
        """Add a connection of a source."""
        self._by_source[source][connection] = None

    def remove(self, source: bytes, connection: C) -> None:
        """Remove a connection that was added."""
        own = self._by_source[source]
        del own[connection]
        if not own:
            del self._by_source[source]

    def has_share(self, source: bytes) -> bool:
        """Whether a source has its share: one more connection must cost it another."""
        return len(self.of(source)) >= self._share and not self._may_take_all(source)

    def of(self, source: bytes) -> Collection[C]:
        """Return the connections of a source, the oldest first."""
        return self._by_source.get(source, ())


def first_to_close(connections: Collection[C], is_idle: Callable[[C], bool]) -> C:
    """Return the first idle one of some connections, else the first."""
    return next(filter(is_idle, connections), None) or next(iter(connections))


class HeldOctets:
    """How many octets each connection holds: received and not answered yet, or not sent yet.

    Together they hold at most ``MAX_HELD``. Whenever they would hold more, those that hold most are closed first.
    *failures* counts the closed ones, as ``memory``.
    """

    def __init__(self, failures: Counter[str]) -> None:
        self._failures = failures
        self._sum = 0
        self._holders: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    def note(self, holder: Hashable, octets: int, close: Callable[[], None]) -> None:
        """Note that *holder* now holds *octets*. *close* closes it, perhaps at once."""
        self.forget(holder)
        if octets:
            self._holders[holder] = octets, close
            self._sum += octets
            if self._sum > MAX_HELD:
                self._close_largest()

    def forget(self, holder: Hashable) -> None:
        """Note that *holder* holds nothing any more, as when it is closed."""
        octets, _ = self._holders.pop(holder, (0, None))
        self._sum -= octets

    def _close_largest(self) -> None:
        for holder in sorted(self._holders, key=lambda holder: self._holders[holder][0], reverse=True):
            if self._sum <= MAX_HELD * LEFT:
                break
            _, close = self._holders[holder]
            self.forget(holder)
            self._failures["memory"] += 1
            close()
