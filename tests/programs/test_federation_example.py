# SPDX-License-Identifier: Apache-2.0

"""``make federation``, as far as it comes without a control plane."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from examples.federation.__main__ import PORT
from tests.kit.programs import environment
from tests.kit.this_machine import ROOT


def test_a_port_in_use(tmp_path: Path) -> None:
    """'make run' may still have it. That is said before anything is built or started, with how to take another port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        command = [sys.executable, "-m", "examples.federation", "--listen", taken, "--folder", str(tmp_path / "files")]
        ran = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    message, advice = ran.stderr.splitlines()
    assert f"--listen {taken}: tcp: port in use" in message
    assert advice == PORT
    assert (ran.returncode, ran.stdout) == (1, "")
    assert not list(tmp_path.iterdir())
