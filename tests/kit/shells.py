# SPDX-License-Identifier: Apache-2.0

"""A shell on a machine from which clusters can be reached: it runs commands of pages."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.kit import go_programs
from tests.kit.installed_scripts import installed_scripts
from tests.kit.programs import environment
from tests.kit.this_machine import ROOT
from tests.kit.waiting import PATIENCE


class Shell(NamedTuple):
    """Runs commands in a folder."""

    folder: Path
    env: Mapping[str, str]

    @classmethod
    def with_kubeconfig(cls, folder: Path, kubeconfig: Path) -> Shell:
        """Return a shell with kubectl and topodns, whose folder has what pages name: the manifests and the examples."""
        for name in ("manifests", "examples"):
            (folder / name).symlink_to(ROOT / name)
        scripts = installed_scripts(folder / "bin")
        own = {
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(folder),
            "PATH": f"{go_programs.control_plane()}:{scripts['PATH']}",
        }
        return cls(folder, environment({**scripts, **own}))

    def run(self, command: str) -> list[str]:
        """Return the lines that a command prints; it must succeed."""
        done = subprocess.run(
            ["bash", "-euc", command], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.splitlines()
