"""Delays between tries, as values: a floor, a cap, doubling, jitter from a chance handed in, and a reset.

With these numbers a reflector whose every try fails asks ten times in its first two minutes, and then between two and
four times a minute, whatever the number of replicas that started together.
"""

from __future__ import annotations

from msgspec import Struct

FLOOR = 0.8  # seconds; client-go's own, as the others are: API servers are built to bear it
CAP = 30.0  # seconds
STEADY = 120.0  # seconds that something must have worked for before earlier failures are forgotten


class Backoff(Struct, frozen=True):
    """How often something has failed in a row."""

    failures: int = 0

    def failed(self, lived: float = 0.0) -> Backoff:
        """Return what holds after one more failure, of something that had worked for *lived* seconds."""
        return Backoff(1 if lived >= STEADY else self.failures + 1)

    def delay(self, chance: float) -> float:
        """Return the seconds to wait before the next try, for a *chance* from 0 to below 1.

        Never below the floor nor above the cap; 0 where nothing has failed. The spread is as wide as the
        least delay, so that those who failed together come back apart.
        """
        if not self.failures:
            return 0.0
        least = min(FLOOR * 2.0 ** min(self.failures - 1, 30), CAP / 2)
        return least * (1.0 + chance)
