# SPDX-License-Identifier: Apache-2.0

"""Times in RFC 3339, as Kubernetes and logs have them."""

from __future__ import annotations

from datetime import UTC, datetime

from locator.printable import quoted


def time_text(seconds: float, timespec: str = "milliseconds") -> str:
    """Return a time, in seconds since 1970, as UTC; *timespec* "seconds" cuts it, as ``metav1.Time`` does."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """Parse a time in RFC 3339; return it in seconds since 1970. Raises ValueError, also if it names no time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{quoted(text)} is no time") from None
    if moment.tzinfo is None:
        raise ValueError(f"{quoted(text)} has no time zone")
    return moment.timestamp()
