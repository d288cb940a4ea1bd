"""Times as Kubernetes writes them."""

from __future__ import annotations

from datetime import datetime

from locator.printable import quoted


def parse_time(text: str) -> float:
    """Parse a time in RFC 3339; return it in seconds since 1970. Raises ValueError, also if it names no time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{quoted(text)} is no time") from None
    if moment.tzinfo is None:
        raise ValueError(f"{quoted(text)} has no time zone")
    return moment.timestamp()
