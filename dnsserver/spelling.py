# SPDX-License-Identifier: Apache-2.0

"""Suggests corrections for misspelled words. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from locator.labels import nearest_label_key
from locator.model import object_key

NEAR = 0.66  # as difflib counts: "tll" is near "ttl", "foo" is not near "webhook"
FEW = 14  # names that a message lists


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``, did you mean ...?`` with the known word closest to *word*, or "" if none is near."""
    found = _near(word, known)
    return f", did you mean {found}?" if found else ""


def suggestion(word: str, known: Collection[str]) -> str:
    """Return what ``nearest`` returns; if no known word is near and they are few, ``; there are ...`` with all."""
    return nearest(word, known) or listed(known)


def listed(known: Collection[str]) -> str:
    """Return ``; there are ...`` with all known words, or "" if there is none, or too many for a message."""
    if not 0 < len(known) <= FEW:
        return ""
    return f"; there {'is' if len(known) == 1 else 'are'} {', '.join(sorted(known))}"


def nearest_label(key: str, known: Collection[str]) -> str:
    """Return what ``suggestion`` returns for a label key, by its name after the slash: prefixes are often the same."""
    names = {other.rpartition("/")[2]: other for other in known}
    found = _near(key.rpartition("/")[2], names)
    return f", did you mean {nearest_label_key(found, known)}?" if found else listed(known)


def nearest_key(namespace: str, name: str, keys: Iterable[str]) -> str | None:
    """Return the one of *keys* (``namespace/name``) that was probably meant by an object that does not exist.

    That is the object of this name in another namespace, else one in this namespace whose name is near, else such a one
    elsewhere. None if there is none.
    """
    known, key = list(keys), object_key(namespace, name)
    if elsewhere := [other for other in known if other.endswith(f"/{name}")]:
        return difflib.get_close_matches(key, elsewhere, 1, 0.0)[0]
    for choice in ([other for other in known if other.startswith(f"{namespace}/")], known):
        by_name = {other.rpartition("/")[2]: other for other in choice}
        if (found := _near(name, by_name)) is not None:
            return by_name[found]
    return None


def names_in(namespace: str, keys: Iterable[str]) -> list[str]:
    """Return the names in *namespace* among *keys* (``namespace/name``)."""
    return [key.removeprefix(f"{namespace}/") for key in keys if key.startswith(f"{namespace}/")]


def _near(word: str, known: Iterable[str]) -> str | None:
    """Return the closest of the known words that are near *word*. Case and the dashes of a flag make no difference."""
    plain = {_plain(other): other for other in known}
    matches = difflib.get_close_matches(_plain(word), plain, 1, NEAR)
    return plain[matches[0]] if matches else None


def _plain(word: str) -> str:
    return word.lstrip("-").lower()
