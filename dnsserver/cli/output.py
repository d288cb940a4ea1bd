# SPDX-License-Identifier: Apache-2.0

"""Writes to standard output, which may be a terminal, closed, full or a broken pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from dnsserver.cli.errors import BrokenPipe, Failed
from dnsserver.text import COLOUR_CODES, PLAIN
from locator.printable import MAX_LINE, as_line, ascii_json, printable


def write(text: str) -> None:
    """Write lines for people to standard output, and flush it. Raises Failed or BrokenPipe.

    Whatever others wrote in them, nothing but topodns' own colours commands the terminal, and no line is endless.
    """
    write_as_it_is("\n".join(map(_shown, text.split("\n"))))


def write_json(text: str) -> None:
    """Write JSON to standard output, in ASCII, and flush it. Raises Failed or BrokenPipe."""
    write_as_it_is(ascii_json(text))


def write_result(result: object, output: str) -> None:
    """Write a result for programs as "json" or "yaml". Raises Failed or BrokenPipe."""
    if output == "json":
        write_json(f"{json.dumps(result, indent=2)}\n")
    else:
        write_as_it_is(as_yaml(result))


def as_yaml(result: object) -> str:
    """Return a result as YAML, its fields in their order."""
    import yaml  # loaded late: most commands do not need it

    text: str = yaml.safe_dump(result, sort_keys=False)
    return text


def write_as_it_is(text: str) -> None:
    """Write what programs read, and what escapes all by its own rules. Raises Failed or BrokenPipe."""
    with standard_output() as stdout:
        stdout.write(text)
        stdout.flush()


def write_octets(data: bytes) -> None:
    """Write these octets, whatever the encoding of standard output is. Raises Failed or BrokenPipe."""
    with standard_output() as stdout:
        stdout.buffer.write(data)
        stdout.flush()


@contextmanager
def standard_output() -> Iterator[TextIO]:
    """Yield standard output, and turn what goes wrong in writing to it into Failed or BrokenPipe."""
    if sys.stdout is None:
        raise Failed("standard output: closed")
    try:
        yield sys.stdout
    except OSError as error:
        # Python tries again at exit to write what it has buffered, and would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise BrokenPipe from None
        raise Failed(f"standard output: {error.strerror}") from None


def _shown(line: str) -> str:
    if not coloured():
        return as_line(line)
    parts = COLOUR_CODES.split(line)
    shown, plain = "".join(part if n % 2 else printable(part) for n, part in enumerate(parts)), "".join(parts[::2])
    return shown if len(plain.encode()) <= MAX_LINE else f"{PLAIN}{as_line(plain)}"


def coloured() -> bool:
    """Whether to colour the output: it goes to a terminal that can do that, and NO_COLOR is not set."""
    return sys.stdout is not None and sys.stdout.isatty() and not is_dumb() and "NO_COLOR" not in os.environ


def is_seen() -> bool:
    """Whether a person sees what goes to standard error: it is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def is_dumb() -> bool:
    """Whether the terminal, if there is one, can neither show colours nor move its cursor."""
    return os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")
