"""Suggests corrections for misspelled words. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``, did you mean ...?`` with the known word closest to *word*, or "" if *known* is empty."""
    matches = difflib.get_close_matches(word, list(known), 1, 0.0)
    return f", did you mean {matches[0]}?" if matches else ""
