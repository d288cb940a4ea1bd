# SPDX-License-Identifier: Apache-2.0

"""Programs that run in the background of a test and print to a file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.waiting import PATIENCE, NotReadyError, until


class Daemon(NamedTuple):
    """A program that runs until ``end``; its output goes to the file ``printed``."""

    process: subprocess.Popen[bytes]
    printed: Path

    @classmethod
    def start(cls, command: Sequence[str], folder: Path, *, name: str, env: Mapping[str, str] | None = None) -> Daemon:
        """Start *command* in *folder*; its output goes to ``NAME.log`` there."""
        printed = folder / f"{name}.log"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment(env),
            )
        return cls(process, printed)

    def until(self, ready: Callable[[], Any], *, within: float = PATIENCE) -> Any:
        """Wait until *ready* returns something true, and return that.

        Raises ``NotReadyError``, with the last lines of output, if the program ends or time runs out before.
        """

        def holds() -> Any:
            if self.process.poll() is not None:
                raise NotReadyError(f"{self} ended with status {self.process.returncode}\n{self.last_lines()}")
            return ready()

        return until(holds, lambda: f"{self} ready\n{self.last_lines()}", within=within)

    def last_lines(self) -> str:
        """Return the last lines that the program printed."""
        return tail(self.printed.read_text(errors="replace"))

    def end(self) -> None:
        """End the program, unless it has already ended."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __str__(self) -> str:
        return self.printed.stem


@contextmanager
def ready(
    command: Sequence[str], folder: Path, *, name: str, env: Mapping[str, str] | None = None, within: float = PATIENCE
) -> Iterator[Daemon]:
    """Run a command that becomes ``topodns serve``: ready when the block begins, ended with status 0 after it."""
    daemon = Daemon.start(command, folder, name=name, env=env)
    try:
        daemon.until(lambda: "\nready\n" in daemon.printed.read_text(), within=within)
        yield daemon
    finally:
        daemon.end()
    assert daemon.process.returncode == 0, daemon.last_lines()


def tail(text: str, lines: int = 25) -> str:
    """Return the last lines of a program's output."""
    return "\n".join(text.splitlines()[-lines:])


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment, without variables that topodns or Kubernetes clients read, and with *env*."""
    others = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("TOPODNS_", "KUBERNETES_", "KUBECONFIG", "NO_COLOR"))
    }
    return {**others, "PYTHONUNBUFFERED": "1", **(env or {})}
