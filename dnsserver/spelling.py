"""Suggests corrections for misspelled words. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from locator.model import object_key


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``, did you mean ...?`` with the known word closest to *word*, or "" if *known* is empty."""
    matches = difflib.get_close_matches(word, list(known), 1, 0.0)
    return f", did you mean {matches[0]}?" if matches else ""


def nearest_key(namespace: str, name: str, keys: Iterable[str]) -> str | None:
    """Return the one of *keys* (``namespace/name``) that was probably meant by an object that does not exist.

    That is the object of this name in another namespace, else the closest name in this one, else the closest of all.
    None if *keys* is empty.
    """
    known, key = list(keys), object_key(namespace, name)
    elsewhere = [other for other in known if other.endswith(f"/{name}")]
    here = [other for other in known if other.startswith(f"{namespace}/")]
    for choice in (elsewhere, here, known):
        if choice:
            return difflib.get_close_matches(key, choice, 1, 0.0)[0]
    return None
