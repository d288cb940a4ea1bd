"""Programs that run beside a test: what they print goes to a file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.waiting import PATIENCE, NotReadyError, until


class Daemon(NamedTuple):
    """A program that runs until it is ended; what it prints goes to a file."""

    process: subprocess.Popen[bytes]
    printed: Path

    @classmethod
    def start(cls, command: Sequence[str], folder: Path, *, name: str, env: Mapping[str, str] | None = None) -> Daemon:
        """Start *command*; its output goes to a file in *folder*."""
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
        """Wait until *ready* returns something true; fail with the program's last words if it ends or never does."""

        def holds() -> Any:
            if self.process.poll() is not None:
                raise NotReadyError(f"{self} ended with status {self.process.returncode}\n{self.words()}")
            return ready()

        return until(holds, lambda: f"{self} ready\n{self.words()}", within=within)

    def words(self) -> str:
        """Return the last lines that the program printed."""
        return tail(self.printed.read_text(errors="replace"))

    def end(self) -> None:
        """End the program, unless it has ended by itself."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __str__(self) -> str:
        return self.printed.stem


def tail(text: str, lines: int = 25) -> str:
    """Return the last lines of what a program printed."""
    return "\n".join(text.splitlines()[-lines:])


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without our own variables, and with *env*."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("TOPODNS_", "KUBERNETES_", "KUBECONFIG", "NO_COLOR"))
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **(env or {})}
