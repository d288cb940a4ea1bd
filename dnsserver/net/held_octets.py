"""What bounds all connections, whether they speak DNS or HTTP: one sum of octets, and a share for each source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

SMALLEST_SHARE = 8  # connections of one source, so that a low limit of all does not end a client's usual few
MAX_HELD = 64 << 20  # octets; fits the smallest memory limit of docs/sizing.md
# To which share of the limit connections are closed once it is exceeded: finding those that hold most costs about the
# same for one as for many.
LEFT = 7 / 8


def share_of_source(limit: int) -> int:
    """Return how many of *limit* connections one source may have, so that it cannot take them from all others."""
    return max(SMALLEST_SHARE, limit // 4)


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
