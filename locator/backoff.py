# SPDX-License-Identifier: Apache-2.0

"""How long to wait after failures: an exponential backoff as a value, and how soon the end of an outage is noticed.

The load, for a server that watches eight kinds: a reflector whose every try fails sends ten requests in its first two
minutes, then two to four a minute. While one of them waits and the API server is away, the server also asks
``/readyz`` once in 0.75 s to 1.5 s: about 50 small requests a minute, by one connection, however many kinds wait. When
that says that the API server is back, every kind sends two small requests within JITTER, and up to four more if objects
that changed last were deleted; a list follows only if the API server has forgotten the changes meanwhile, has gone
back, or has none of the objects that topodns asks for. Replicas ask at times of their own, and so come back within two
seconds: ten replicas send 160 requests or a few more, 80 of them watches. If the API server is ready by turns, this
happens six times a minute. The jitter keeps replicas that started together apart.
"""

from __future__ import annotations

from msgspec import Struct

# All three as in client-go's reflector, a load that API servers are built for.
FLOOR = 0.8  # seconds
CAP = 30.0  # seconds
STEADY = 120.0  # seconds that a list and its watch must have worked before earlier failures are forgotten
STEADY_WATCH = 10.0  # seconds: the same without a list, since to begin a watch costs the API server little

# An outage may be longer than any pause, and yet topodns should know all changes 5 s after its end. So something cheap
# is asked more often than lists and watches.
POLL = 0.75  # seconds between two requests for /readyz, to twice as much at random
POLL_TIMEOUT = 2.0  # seconds, to connect and to get the answer: a host that is back gets a SYN within one second
REFUSING = 60.0  # seconds for which one that refuses may still be about to start; later, only what fails asks
JITTER = 0.5  # seconds within which the kinds try again once the API server is back
BETWEEN_RETURNS = 10.0  # seconds at least: an API server that is ready by turns must not cause a storm


class Backoff(Struct, frozen=True):
    """How many times in a row something has failed."""

    failures: int = 0

    def failed(self) -> Backoff:
        """Return the backoff after one more failure."""
        return Backoff(self.failures + 1)

    def delay(self, chance: float) -> float:
        """Return the seconds to wait before the next try: 0 without a failure, else from FLOOR to CAP.

        *chance* is a random number from 0 to below 1. It at most doubles the delay, so that clients which failed
        together come back apart.
        """
        if not self.failures:
            return 0.0
        least = min(FLOOR * 2.0 ** min(self.failures - 1, 30), CAP / 2)
        return least * (1.0 + chance)
