# SPDX-License-Identifier: Apache-2.0

"""What others wrote, as topodns may show it: on one line, without what commands a terminal, cut, quoted for a shell.

Names, labels, annotations, error texts of other programs: whoever shows them uses these functions, and no others.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

MAX_VALUE = 320  # characters of a value that a text quotes: the longest label key has 317
MAX_TEXT = 1024  # characters of a text; the limit of events.k8s.io/v1
MAX_LINE = 4096  # octets of a line

_NO_ASCII = re.compile(r"[^\n\x20-\x7e]")
_PLACEHOLDER = re.compile(r"\b[A-Z]+\b(?!:)")  # "NAME:" is the title of a column


def printable(text: str) -> str:
    """Return a text that a terminal only shows: what others wrote may hold the sequences that command it, and lines.

    Escapes what Unicode calls control, format (such as what reverses the direction), separator or surrogate.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def cut(text: str, most: int = MAX_VALUE, *, said: bool = True) -> str:
    """Return a printable text: if it is longer than *most*, so many characters, and if *said*, how long it is."""
    shown = printable(text[: most + 1])
    return shown if len(shown) <= most else f"{shown[:most]}{_end(text) if said else '…'}"


def quoted(text: str) -> str:
    """Return a value in quotation marks, for a message."""
    return repr(text) if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]!r}{_end(text)}"


def printable_values(value: Any) -> Any:
    """Return a value that JSON can hold, a Struct too, whose texts are printable, and cut as a text for people is."""
    if isinstance(value, str):
        return cut(value, MAX_TEXT)
    if isinstance(value, dict):
        return {cut(key): printable_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(printable_values, value))
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: printable_values(item) for name, item in msgspec.structs.asdict(value).items()})
    return value


def as_line(text: str) -> str:
    """Return a printable text of at most MAX_LINE octets in UTF-8."""
    shown = printable(text[: MAX_LINE + 1])
    octets = shown.encode()
    if len(octets) <= MAX_LINE:
        return shown
    end = _end(text)
    return f"{octets[: MAX_LINE - len(end.encode())].decode(errors='ignore')}{end}"


def ascii_json(text: str) -> str:
    """Return a text in JSON with an escape for each character that is no printable ASCII."""
    return text if text.isascii() and text.isprintable() else _NO_ASCII.sub(lambda one: json.dumps(one[0])[1:-1], text)


def json_text(value: object) -> str:
    """Return a value as JSON in printable ASCII."""
    try:
        return ascii_json(msgspec.json.encode(value).decode())
    except UnicodeEncodeError:  # of a surrogate: the name of a file need not be valid UTF-8
        return ascii_json(json.dumps(msgspec.to_builtins(value), separators=(",", ":")))


def shell_words(*words: str) -> str:
    """Return words of a command line for a shell, each quoted where it has to be."""
    return shlex.join(map(printable, words))


def filled(command: str, words: Mapping[str, str]) -> str:
    """Return a command for a shell: *words* stand, quoted, for the words in capitals that are their keys.

    A word in capitals stays if nothing is given for it, or what would be a flag.
    """

    def word(found: re.Match[str]) -> str:
        text = words.get(found[0], "")
        return found[0] if not text or text.startswith("-") else shell_words(text)

    return _PLACEHOLDER.sub(word, command)


def _end(text: str) -> str:
    return f"… ({len(text):,} characters)"
