"""Writes to standard output, which may be a terminal, closed, full or a broken pipe."""

from __future__ import annotations

import os
import sys

from dnsserver.cli.errors import BrokenPipe, Failed


def write(text: str) -> None:
    """Write *text* to standard output and flush it. Raises Failed or BrokenPipe."""
    if sys.stdout is None:
        raise Failed("standard output: closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Python tries again at exit to write what it has buffered, and would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise BrokenPipe from None
        raise Failed(f"standard output: {error.strerror}") from None


def coloured() -> bool:
    """Whether to colour the output: it goes to a terminal that can do that, and NO_COLOR is not set."""
    return sys.stdout is not None and sys.stdout.isatty() and not is_dumb() and "NO_COLOR" not in os.environ


def is_dumb() -> bool:
    """Whether the terminal, if there is one, can neither show colours nor move its cursor."""
    return os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")
