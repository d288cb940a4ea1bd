# SPDX-License-Identifier: Apache-2.0

"""The entry point of the process: sets up signals and standard streams, then runs the command.

Signal handlers come first. No module that loads slowly is imported before them, so that Ctrl-C ends topodns without a
traceback at any moment.
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
KUBECTL_COMPLETES = "kubectl_complete-topodns"  # the program that kubectl calls to complete ``kubectl topodns``


def main() -> int:
    """Run the command line of this process; return its exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # set by nohup, and by shells for background jobs
            signal.signal(number, _end)
    sys.stderr = _non_raising_stderr()
    if isinstance(sys.stdout, io.TextIOWrapper):  # None if it is closed
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may not be valid text
    from dnsserver.cli.dispatch import complete, run_command
    from dnsserver.cli.log_format import catch_what_nobody_logs

    if "_ARGCOMPLETE" in os.environ or os.path.basename(sys.argv[0]) == KUBECTL_COMPLETES:
        return complete(sys.argv[1:])
    catch_what_nobody_logs()
    return run_command(sys.argv[1:])


def _end(number: int, _: FrameType | None) -> None:
    """End the process by the signal itself, so that its parent sees which signal ended it."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # reached only as PID 1 of a container: the kernel does not apply default actions to it


class _NonRaisingFile(io.FileIO):
    """A file whose ``write`` drops data that cannot be written."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or memoryview(data).nbytes  # None if a write would block
        except OSError:
            return memoryview(data).nbytes


def _non_raising_stderr() -> io.TextIOWrapper:
    """Return a standard error that never raises, so that a message that cannot be printed has no other effect.

    If it is closed, its file descriptor is opened to /dev/null, so that no file opened later receives the messages.
    """
    if sys.stderr is None:
        null = os.open(os.devnull, os.O_WRONLY)
        if null != STDERR:
            os.dup2(null, STDERR)
            os.close(null)
    raw = _NonRaisingFile(STDERR, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), errors="backslashreplace", line_buffering=True)
