# SPDX-License-Identifier: Apache-2.0

"""The programs that installing topodns gives, as pyproject.toml lists them, in a folder for PATH."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

from tests.kit.this_machine import ROOT


def installed_scripts(folder: Path) -> dict[str, str]:
    """Write the programs into *folder*; return the variables by which a process finds them, and this code."""
    folder.mkdir()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, entry in scripts.items():
        module, _, function = entry.partition(":")
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        path.chmod(0o755)
    found = os.environ.get("PATH", os.defpath)
    return {"PATH": f"{folder}{os.pathsep}{found}", "PYTHONPATH": str(ROOT)}
