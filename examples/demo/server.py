# SPDX-License-Identifier: Apache-2.0

"""A real ``topodns serve`` as a process, for as long as the demo runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.demo.day import TRUSTED

START = 30.0  # seconds until it must be ready: on a busy laptop it takes two
END = 15.0  # seconds until it must have ended
HTTP = 10.0  # seconds that an HTTP response may take


class ServerError(Exception):
    """The server could not start, or it ended; the text is what it said of that."""


class Server:
    """A server of the dump at *path*; it listens at ``dns`` and ``http``, and is ready."""

    def __init__(self, path: Path, *, listen: str, http: str) -> None:
        """Start it, and wait until it is ready. Raises ServerError."""
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "dnsserver", "serve", "--snapshot", path.name, "--trusted-forwarder", TRUSTED),
                *("--listen", listen, "--http", http, "--console=on", "--log-format=text", "--upstream=off"),
            ],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=path.parent,  # so that it says cluster.yaml, wherever that is
            env={key: value for key, value in os.environ.items() if not key.startswith("TOPODNS_")},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or "ready" in self.lines, START)
            if "ready" not in self.lines or self._ended:
                raise ServerError(self.reason())
        except BaseException:  # somebody may interrupt the start
            self.end()
            raise
        host, _, port = _after("listening udp ", self.lines).rpartition(":")
        self.dns = (host, int(port))
        self.http = f"http://{_after('listening http ', self.lines)}"

    def read_again(self) -> None:
        """Have it read its dump at once, and not within a second."""
        self._process.send_signal(signal.SIGHUP)

    def get(self, path: str) -> str:
        """Return what it has at a path. Raises OSError."""
        with urllib.request.urlopen(self.http + path, timeout=HTTP) as response:
            text: str = response.read().decode()
        return text

    def get_json(self, path: str) -> Any:
        """Return the JSON that it has at a path. Raises OSError."""
        return json.loads(self.get(path))

    def reason(self) -> str:
        """Return why it ended: its own message, else its last line."""
        own = [line for line in self.lines if line.startswith("topodns: ")]
        return next(iter(own or self.lines[-1:]), f"topodns serve ended with status {self._process.returncode}")

    def end(self) -> None:
        """End it, unless it has ended."""
        self._process.terminate()
        try:
            self._process.wait(END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _after(begin: str, lines: Sequence[str]) -> str:
    return next(line.removeprefix(begin) for line in lines if line.startswith(begin))
