"""Suggests what somebody may have meant by a word that nobody knows. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``, did you mean ...?`` with the known word that is most like an unknown one."""
    near = difflib.get_close_matches(word, list(known), 1, 0.0)
    return f", did you mean {near[0]}?" if near else ""
