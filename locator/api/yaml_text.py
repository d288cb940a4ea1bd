# SPDX-License-Identifier: Apache-2.0

"""Converts YAML to JSON, event by event, so that one decoder reads both and no tree of a whole dump is ever held.

Scalars are read as kubectl reads them (YAML 1.1), but fractions stay text, and so do keys, the values of labels and
other mappings of text, and y and n, which not all programs quote. Aliases and merge keys are obeyed, and mean what
stood in their place. A key that stands twice in one mapping is an error.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import yaml
from msgspec import Raw
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from locator.printable import printable

_INTEGER = re.compile(r"[-+]?(?:0x[0-9a-f_]+|0b[01_]+|(0o?[0-7_]+)|0|[1-9][0-9_]*)", re.ASCII | re.IGNORECASE)
LONGEST = 80  # characters of an integer of 64 bits, in any base
_PLAIN: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **{spelt: True for word in ("true", "yes", "on") for spelt in (word, word.capitalize(), word.upper())},
    **{spelt: False for word in ("false", "no", "off") for spelt in (word, word.capitalize(), word.upper())},
}
# Fields whose values are mappings of text to text: "rack: 0x1f" is a label as it stands there.
_OF_TEXT = frozenset(
    ("annotations", "deprecatedTopology", "labels", "matchLabels", "nodeLabels", "selector", "topology")
)
MERGE = "<<"
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(f"{_TAG}{name}" for name in ("int", "bool", "null"))  # mean the same as without quotation marks
# Characters that aliases may add to a file: kubectl prints none, and a few of them can mean terabytes.
ALIASED = 1 << 26
MAX_ANCHORS = 100_000  # in a document: what has one stays in memory


class NotYAML(ValueError):
    """The text is not YAML, or YAML that means nothing in a dump; ``line`` is where, counted from 1, 0 if unknown."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


# A value, and how its scalars are spelt, since an alias may stand where they are text: the text of a scalar, those in a
# mapping by their keys, but for null (None if they are of no use), or a list of these for the items of a list.
_Read = tuple[Any, str | dict[str, str] | list[Any] | None]


def documents(text: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield each document of a text in UTF-8 that is not empty as JSON, and the line on which it begins.

    Each item of a List is on the line of its own: as many line feeds stand before it as in the YAML. Raises NotYAML and
    RecursionError.
    """
    try:
        yield from _Reader(text).documents()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise NotYAML(mark.line + 1 if mark is not None else 0, error.problem or error.context or "") from None
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, NotYAML):
            raise
        raise NotYAML(0, str(error)) from None


class _Reader:
    """Reads one text."""

    def __init__(self, text: bytes) -> None:
        self._next: Callable[[], Any] = yaml.CBaseLoader(text).get_event  # libyaml, which all wheels of PyYAML contain
        self._anchors: dict[str, _Read] = {}
        self._sizes: dict[int, tuple[Any, int]] = {}  # of what has an anchor, by its id; holds it, so that the id stays
        self._aliased = 0
        self._line = 0  # on which the JSON is

    def documents(self) -> Iterator[tuple[bytes, int]]:
        while (event := self._next()).__class__ is not StreamEndEvent:
            if event.__class__ is DocumentStartEvent:
                self._anchors, self._sizes = {}, {}
                root = self._next()
                self._line = line = root.start_mark.line + 1
                value = self._top(root, is_root=True)
                if value is not None:
                    yield msgspec.json.encode(value), line

    def _top(self, event: Any, *, is_root: bool = False) -> Any:
        """Return an object, whose items are objects if it is a List; *is_root*: it is a whole document, or a list."""
        if is_root and event.__class__ is SequenceStartEvent and event.anchor is None:
            return self._items()
        if event.__class__ is MappingStartEvent and event.anchor is None:
            return self._mapping(is_object=True, is_root=is_root)
        return self._value(event)

    def _items(self) -> Raw:
        """Return the items of a List, each on its line. What they are made of is no longer held."""
        items = []
        while (event := self._next()).__class__ is not SequenceEndEvent:
            line = event.start_mark.line + 1
            lines, self._line = b"\n" * (line - self._line), line
            items.append(lines + msgspec.json.encode(self._top(event)))
        return Raw(b"[" + b",".join(items) + b"]")

    def _mapping(
        self, spelt: dict[str, str] | None = None, *, is_object: bool = False, is_root: bool = False
    ) -> dict[str, Any]:
        """Return a mapping; *spelt* gets its scalars as ``_Read`` has them."""
        mapping: dict[str, Any] = {}
        merged: list[_Read] | None = None
        read = self._next
        while True:
            event = read()
            if event.__class__ is MappingEndEvent:
                break
            key = event.value if event.__class__ is ScalarEvent and event.anchor is None else self._key(event)
            if key in mapping or (key == MERGE and merged is not None):
                raise NotYAML(event.start_mark.line + 1, twice(key, between_documents=is_root))
            if key == MERGE and event.__class__ is ScalarEvent and (event.implicit[0] or event.tag == f"{_TAG}merge"):
                merged = self._sources(read())
                continue
            event = read()
            if event.__class__ is ScalarEvent and event.anchor is None:
                mapping[key] = meant = _scalar(event)
                if spelt is not None and meant is not None:
                    spelt[key] = event.value
            elif is_object and key == "items" and event.__class__ is SequenceStartEvent and event.anchor is None:
                mapping[key] = self._items()
            else:
                is_of_text = key in _OF_TEXT
                value, as_spelt = self._read(event, spells=is_of_text)
                if is_of_text and isinstance(as_spelt, dict):
                    value = {**value, **as_spelt}
                elif spelt is not None and isinstance(as_spelt, str) and value is not None:
                    spelt[key] = as_spelt
                mapping[key] = value
        for source, as_spelt in merged or ():
            if spelt is not None and isinstance(as_spelt, dict):
                spelt.update((key, text) for key, text in as_spelt.items() if key not in mapping)
            mapping = {**source, **mapping}
        return mapping

    def _value(self, event: Any) -> Any:
        return self._read(event)[0]

    def _read(self, event: Any, *, spells: bool = False) -> _Read:
        """Return what stands here or, if it is an alias, elsewhere; *spells*: somebody asks how scalars are spelt."""
        kind = event.__class__
        if kind is AliasEvent:
            return self._alias(event)
        spells = spells or event.anchor is not None
        value: Any
        spelt: Any
        if kind is ScalarEvent:
            value, spelt = _scalar(event), event.value
        elif kind is MappingStartEvent:
            spelt = {} if spells else None
            value = self._mapping(spelt)
        else:
            value, spelt, read = [], [], self._next
            while (item := read()).__class__ is not SequenceEndEvent:
                found, as_spelt = self._read(item, spells=spells)
                value.append(found)
                spelt.append(as_spelt)
        if event.anchor is not None:
            if len(self._sizes) >= MAX_ANCHORS:
                found = f"more than {MAX_ANCHORS:,} anchors in a document"
                raise NotYAML(event.start_mark.line + 1, f"{found}, expected none, as kubectl prints it")
            self._anchors[event.anchor] = value, spelt
            self._sizes[id(value)] = value, self._size(value)
        return value, spelt

    def _key(self, event: Any) -> str:
        line = event.start_mark.line + 1
        if event.__class__ is ScalarEvent:
            self._anchors[str(event.anchor)] = _scalar(event), event.value
            return str(event.value)
        key = self._alias(event)[1] if event.__class__ is AliasEvent else None
        if not isinstance(key, str):
            raise NotYAML(line, "a mapping or list found as a key, expected text")
        return key

    def _alias(self, event: Any) -> _Read:
        """Return what an alias stands for. A reader that would write it out too often for its memory stops here."""
        line = event.start_mark.line + 1
        if event.anchor not in self._anchors:
            raise NotYAML(line, f"no anchor &{event.anchor} before *{event.anchor}, expected one")
        found = self._anchors[event.anchor]
        self._aliased += self._size(found[0])
        if self._aliased > ALIASED:
            added = f"they add more than {ALIASED >> 20} MiB to this file"
            raise NotYAML(line, f"too many aliases: {added}, expected none, as kubectl prints it")
        return found

    def _size(self, value: Any) -> int:
        """Return about how many characters a value has as JSON."""
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, dict):
            return 4 + sum(len(key) + self._size(item) for key, item in value.items())
        if isinstance(value, list):
            return 4 + sum(map(self._size, value))
        return 4 + len(value) if isinstance(value, str) else 8

    def _sources(self, event: Any) -> list[_Read]:
        """Return the mappings to merge, the first of which counts first (https://yaml.org/type/merge.html)."""
        value, spelt = self._read(event, spells=True)
        sources: list[_Read] = list(zip(value, spelt, strict=True)) if isinstance(spelt, list) else [(value, spelt)]
        if not all(isinstance(source, dict) for source, _ in sources):
            raise NotYAML(event.start_mark.line + 1, f"{MERGE} found without a mapping, expected one or a list of them")
        return sources


def _scalar(event: Any) -> Any:
    """Return what a scalar means."""
    value: str = event.value
    is_plain, is_quoted = event.implicit  # neither if it has a tag
    if is_plain or (not is_quoted and event.tag in _PLAIN_TAGS):
        if value in _PLAIN:
            return _PLAIN[value]
        if value[0] in "0123456789-+" and len(value) < LONGEST and (match := _INTEGER.fullmatch(value)):
            return _integer(value, 8 if match[1] else 0)
    elif not is_quoted and event.tag == f"{_TAG}binary":
        try:
            return base64.b64decode(value).decode(errors="replace")
        except binascii.Error:
            return value
    return value


def _integer(text: str, base: int) -> int | str:
    try:
        number = int(text.replace("_", ""), base)
    except ValueError:  # nothing but "_" in it
        return text
    return number if -(1 << 63) <= number < 1 << 64 else text


def twice(key: str, *, between_documents: bool = False) -> str:
    """Return what is wrong if a key stands twice in one mapping; *between_documents* if that is a whole document."""
    text = f"the key {printable(key)} stands twice in one mapping, expected it once"
    return f"{text}; a line '---' is missing between two objects or Lists" if between_documents else text
