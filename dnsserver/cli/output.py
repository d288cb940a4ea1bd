"""Standard output, which may be a terminal, closed, full, or a pipe whose reader has left."""

from __future__ import annotations

import os
import sys

from dnsserver.cli.errors import Failed, ReaderLeft


def write(text: str) -> None:
    """Write *text* to standard output, now. Raises Failed, or ReaderLeft if nobody reads it."""
    if sys.stdout is None:
        raise Failed("standard output: closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Python keeps what it could not write, and tries again, with a traceback, when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise ReaderLeft from None
        raise Failed(f"standard output: {error.strerror}") from None


def coloured() -> bool:
    """Whether output may be coloured: a terminal reads it, and NO_COLOR is not set."""
    return sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
