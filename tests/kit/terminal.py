# SPDX-License-Identifier: Apache-2.0

"""A program on a terminal, as a person would run it: what it shows, and what is typed."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.kit.programs import environment
from tests.kit.waiting import PATIENCE, NotReadyError

LAST = 2000  # octets of what was shown that a failed test prints


class Terminal:
    """Runs a command on a terminal until the block ends; ``shown`` is all that it has written there."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], folder: Path, stdout: int | None = None
    ) -> None:
        self.shown = b""
        self._ours, theirs = pty.openpty()
        try:
            self.process = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=theirs if stdout is None else stdout,
                stderr=theirs,
                cwd=folder,
                env=environment({"TERM": "xterm", "COLUMNS": "120", "LINES": "40", **env}),
                start_new_session=True,
            )
        finally:
            os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | BaseException | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, pattern: str) -> re.Match[bytes]:
        """Wait until what follows the last match has another; forget what is before its end. Fail if it never has."""
        deadline = time.monotonic() + PATIENCE
        while (match := re.search(pattern.encode(), self.shown)) is None:
            if not self._read(deadline):
                raise NotReadyError(f"{pattern!r} in {self.shown[-LAST:]!r}")
        self.shown = self.shown[match.end() :]
        return match

    def rest(self) -> bytes:
        """Wait for the end of the program; return what it has shown and no ``until`` has matched."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        self.process.wait(PATIENCE)
        return self.shown

    def _read(self, deadline: float) -> bool:
        """Read what is there; return whether more can come."""
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        with suppress(OSError):  # the end: nobody has the terminal open any more
            self.shown += (read := os.read(self._ours, 65536))
            return bool(read)
        return False
