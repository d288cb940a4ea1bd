# SPDX-License-Identifier: Apache-2.0

"""Completion by the real kubectl."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kit import go_programs
from tests.kit.installed_scripts import installed_scripts
from tests.kit.programs import environment
from tests.kit.waiting import PATIENCE


def test_by_kubectl(tmp_path: Path) -> None:
    """kubectl, which completes itself in all shells, asks the plugin; the last line tells it what to add."""
    kubectl = str(go_programs.control_plane() / "kubectl")
    env = environment({**installed_scripts(tmp_path / "bin"), "HOME": str(tmp_path)})
    (tmp_path / "folder").mkdir()

    def completed(*words: str) -> list[str]:
        ran = subprocess.run([kubectl, "__complete", "topodns", *words], env=env, cwd=tmp_path, capture_output=True,
                             text=True, timeout=PATIENCE, check=True)  # fmt: skip
        return ran.stdout.splitlines()

    assert {"serve", "explain", "check"} <= {line.partition("\t")[0] for line in completed("")}
    first, *rest = completed("explain", "web", "--client", "10.0.0.1", "--cand")
    assert first.partition("\t")[0] == "--candidates" and rest == [":4"]
    assert completed("serve", "--pods=ver") == ["--pods=verified", ":4"]
    assert completed("check", "--snapshot", "fol") == ["folder/", ":6"], "no space after a folder"
