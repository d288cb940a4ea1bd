"""A shell on a machine from which clusters can be reached: it runs commands of pages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests import go_programs
from tests.programs import environment
from tests.this_machine import ROOT
from tests.waiting import PATIENCE


class Shell(NamedTuple):
    """Runs commands in a folder, with kubectl, and with ``topodns`` as this Python runs it."""

    folder: Path
    env: Mapping[str, str]

    @classmethod
    def with_kubeconfig(cls, folder: Path, kubeconfig: Path) -> Shell:
        """Return a shell whose folder has what pages name: the manifests and the examples."""
        for name in ("manifests", "examples"):
            (folder / name).symlink_to(ROOT / name)
        program = folder / "bin" / "topodns"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m dnsserver "$@"\n')
        program.chmod(0o755)
        path = f"{program.parent}:{go_programs.control_plane()}:{os.environ['PATH']}"
        return cls(folder, environment({"KUBECONFIG": str(kubeconfig), "HOME": str(folder), "PATH": path}))

    def run(self, command: str) -> list[str]:
        """Return the lines that a command prints; it must succeed."""
        done = subprocess.run(
            ["bash", "-euc", command], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.splitlines()
