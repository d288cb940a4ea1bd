"""The process that ``topodns`` is: how it ends on signals, and what its standard streams do.

Signals come first. Nothing that takes time to load is imported before they are taken care of, so that Ctrl-C ends
topodns quietly at any moment.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDERR = 2


def main() -> int:
    """Run the command line of this process; return its exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and shells ask for that
            signal.signal(number, _end)
    sys.stderr = _unfailing_stderr()
    if isinstance(sys.stdout, io.TextIOWrapper):  # None if it is closed
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name need not be text
    from dnsserver.cli.dispatch import run_command

    return run_command(sys.argv[1:])


def _end(number: int, _: FrameType | None) -> None:
    """End as a program that handles no signals does: whoever started it sees that a signal ended it."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # reached by a container's first process only, which the kernel spares


class _Unfailing(io.FileIO):
    """A file that drops what cannot be written to it."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or memoryview(data).nbytes  # None where it would have to wait
        except OSError:
            return memoryview(data).nbytes


def _unfailing_stderr() -> io.TextIOWrapper:
    """Return a standard error that never raises: a message that nobody can read changes nothing else.

    Where it is closed, its number is taken, so that no other file gets the messages.
    """
    if sys.stderr is None:
        null = os.open(os.devnull, os.O_WRONLY)
        if null != STDERR:
            os.dup2(null, STDERR)
            os.close(null)
    raw = _Unfailing(STDERR, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), errors="backslashreplace", line_buffering=True)
