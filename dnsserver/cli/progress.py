# SPDX-License-Identifier: Apache-2.0

"""Shows on a terminal what a command is reading, while that takes long.

In a pipe, and on a terminal that cannot move its cursor, nothing is shown, and the library for it is not even loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dnsserver.cli.log_format import is_json
from dnsserver.cli.output import is_dumb, is_seen
from locator.printable import as_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOWN_AFTER = 0.5  # seconds: what is done sooner needs no line, and does not wait for the library

Report = Callable[[str], None]  # takes what is being done now


@contextmanager
def shown_progress() -> Iterator[Report]:
    """Yield a function that any thread may call with what is being done; a terminal shows it while the block runs."""
    if not _can_show():
        yield lambda text: None
        return
    line = _StatusLine()
    timer = threading.Timer(SHOWN_AFTER, line.show)
    timer.daemon = True
    timer.start()
    try:
        yield line.change
    finally:
        timer.cancel()
        timer.join()
        line.end()


def _can_show() -> bool:
    """Whether standard error is a terminal that can move its cursor, and people read it."""
    return is_seen() and not is_dumb() and not is_json()


class _StatusLine:
    """A line of the terminal that says what is being done, and for how long. It leaves nothing behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""
        self._shown: tuple[Progress, TaskID] | None = None
        self._ended = False

    def change(self, text: str) -> None:
        """Say something else from now on."""
        with self._lock:
            self._text = as_line(text)
            if self._shown is not None:
                progress, task = self._shown
                progress.update(task, description=self._text)

    def show(self) -> None:
        """Show the line from now on, unless it has ended."""
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._ended:
                return
            text = TextColumn("{task.description}", markup=False)  # a file's name may look like markup
            progress = Progress(
                SpinnerColumn(), text, TimeElapsedColumn(), console=Console(stderr=True), transient=True
            )
            self._shown = progress, progress.add_task(self._text, total=None)
            progress.start()
            progress.console.show_cursor()  # which it hides, but a signal may end this process at any moment

    def end(self) -> None:
        """Take the line away."""
        with self._lock:
            self._ended = True
            if self._shown is not None:
                self._shown[0].stop()
