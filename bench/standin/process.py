# SPDX-License-Identifier: Apache-2.0

"""The stand-in as a process of its own, on the load generator's core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.servers import CannotStart, needed
from bench.standin.numbering import SERVICES
from bench.standin.objects import FIRST_VERSION
from bench.standin.recording import recording

PATIENCE = 600.0  # seconds for a request: a step of many changes takes as long as the server does


class StandinProcess:
    """A running stand-in; ``kubeconfig`` and ``url`` lead to it."""

    def __init__(self, process: subprocess.Popen[str], kubeconfig: Path, url: str) -> None:
        self.kubeconfig = kubeconfig
        self.url = url
        self._process = process

    def stand_back(self) -> None:
        """Leave the core to the load generator whenever that has something to do."""
        for task in os.listdir(f"/proc/{self._process.pid}/task"):
            os.sched_setscheduler(int(task), os.SCHED_IDLE, os.sched_param(0))

    def set_rate(self, steps: float) -> None:
        """Change *steps* pods and as many slices in each second from now on."""
        self._post(f"rate/{steps}")

    def step(self, number: int) -> None:
        """Change *number* pods and slices; return when the server has taken all."""
        self._post(f"step/{number}")

    def expire(self, kind: str) -> None:
        """Have all objects of a kind listed anew."""
        self._post(f"expire/{kind}")

    def wait_until_watched(self, kind: str) -> None:
        """Return once all objects of a kind have been sent, as after ``expire``."""
        while True:
            status = self._status()
            if kind in status["watches"] and status["drained"]:
                return
            time.sleep(0.5)

    def changes(self) -> int:
        """Return how many objects have changed since the start."""
        return int(self._status()["version"]) - FIRST_VERSION

    def _status(self) -> Any:
        with urllib.request.urlopen(f"{self.url}/standin/status", timeout=PATIENCE) as response:
            return msgspec.json.decode(response.read())

    def _post(self, what: str) -> Any:
        request = urllib.request.Request(f"{self.url}/standin/{what}", method="POST")
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return msgspec.json.decode(response.read())


@contextmanager
def running_standin(
    folder: Path, form: str, *, services: int = SERVICES, max_overload: str = ""
) -> Iterator[StandinProcess]:
    """Run a stand-in that serves ``json`` or ``protobuf``, of a cluster as in StandinObjects. Raises CannotStart."""
    with needed():
        recording()
    kubeconfig = folder / f"standin-{form}-{services}-{max_overload}.kubeconfig"
    command = [sys.executable, "-m", "bench.standin", "--kubeconfig", str(kubeconfig), "--form", form]
    command += ["--services", str(services), "--max-overload", max_overload]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise CannotStart("the stand-in for the API server did not start")
            yield StandinProcess(process, kubeconfig, f"http://127.0.0.1:{line.split()[-1]}")
        finally:
            process.terminate()
