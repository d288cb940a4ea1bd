# SPDX-License-Identifier: Apache-2.0

"""When an address counts as unhealthy, and when as healthy again: after some probes in a row that say so."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from locator.model import HealthEntry

FAILURES = 3  # in a row: a restart, or one lost packet, is no outage
SUCCESSES = 2


class Condition(Struct, frozen=True):
    """What a prober says of one address, and how many of the latest probes in a row contradict it."""

    entry: HealthEntry
    contrary: int = 0

    def after(self, failure: str, wall: str) -> Condition:
        """Return the condition after one more probe; *failure* is empty if it succeeded, *wall* the time."""
        entry, works = self.entry, not failure
        if works == entry.healthy:
            return Condition(replace(entry, message=failure))
        contrary = self.contrary + 1
        if contrary < (FAILURES if entry.healthy else SUCCESSES):
            return Condition(entry, contrary)
        return Condition(HealthEntry(entry.address, works, wall, failure))


def first_seen(address: str, wall: str) -> Condition:
    """Return the condition of an address that nobody has probed: healthy until proven otherwise."""
    return Condition(HealthEntry(address, True, wall))
