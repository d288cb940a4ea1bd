"""Exponential backoff as a value: a floor, a cap, doubling, jitter and a reset.

A reflector whose every try fails sends ten requests in its first two minutes, then two to four a minute. The jitter
keeps replicas that started together apart.
"""

from __future__ import annotations

from msgspec import Struct

# All three as in client-go's reflector, a load that API servers are built for.
FLOOR = 0.8  # seconds
CAP = 30.0  # seconds
STEADY = 120.0  # seconds that something must have worked before its earlier failures are forgotten


class Backoff(Struct, frozen=True):
    """How many times in a row something has failed."""

    failures: int = 0

    def failed(self, lasted: float = 0.0) -> Backoff:
        """Return the backoff after one more failure of something that had worked for *lasted* seconds."""
        return Backoff(1 if lasted >= STEADY else self.failures + 1)

    def delay(self, chance: float) -> float:
        """Return the seconds to wait before the next try: 0 without a failure, else from FLOOR to CAP.

        *chance* is a random number from 0 to below 1. It at most doubles the delay, so that clients which failed
        together come back apart.
        """
        if not self.failures:
            return 0.0
        least = min(FLOOR * 2.0 ** min(self.failures - 1, 30), CAP / 2)
        return least * (1.0 + chance)
