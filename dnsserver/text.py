# SPDX-License-Identifier: Apache-2.0

"""Text for people: the one place that paints, aligns and counts. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from locator.model import ENDPOINTS

BOLD, DIM, PLAIN = "\033[1m", "\033[2m", "\033[0m"
RED, GREEN, YELLOW, MAGENTA = "\033[31m", "\033[32m", "\033[33m", "\033[35m"
COLOUR_CODES = re.compile(r"(\033\[[0-9]+m)")  # any of these

DAY = 86_400  # seconds

Paint = Callable[[str, str], str]  # takes a text and one of these


def painter(*, colour: bool) -> Paint:
    """Return a function that paints a text, or returns it as it is if nothing is to have *colour*."""

    def paint(text: str, code: str) -> str:
        return f"{code}{text}{PLAIN}" if colour and text and code else text

    return paint


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows with aligned columns, at least one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def counted(number: int, noun: str) -> str:
    """Return for example ``1 endpoint``, ``2000 endpoints``, ``2 ServicePolicies`` or ``2 Ingresses``."""
    return f"{number} {_inflected(noun, number)}"


def grouped(number: int, noun: str) -> str:
    """Return for example ``1 endpoint`` or ``2,000 endpoints``."""
    return f"{number:,} {_inflected(noun, number)}"


def number_text(number: float) -> str:
    """Return a number with at most two decimals, for example ``1,234.5`` or ``150``."""
    return f"{number:,.2f}".rstrip("0").rstrip(".")


def percent(fraction: float) -> str:
    """Return a fraction as people read it."""
    return f"{100 * fraction:.1f} %"


def duration(seconds: float) -> str:
    """Return ``45 seconds``, ``5 minutes``, ``3 hours`` or ``4 days``."""
    for size, noun in ((DAY, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 2 * size:
            return grouped(int(seconds // size), noun)
    return grouped(round(seconds), "second")


def _inflected(noun: str, number: int) -> str:
    if number == 1 or noun == ENDPOINTS:
        return noun
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith(('s', 'x')) else 's'}"
