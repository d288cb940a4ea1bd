# SPDX-License-Identifier: Apache-2.0

"""Files that change while a program reads them, and copies of this project."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kit.this_machine import ROOT

# What git and make put into a clone, and what builds and tools leave behind.
MADE = shutil.ignore_patterns(
    ".git", ".venv", ".cache", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "target", "*.so",
    "*.egg-info", "Cargo.lock",
)  # fmt: skip


def copy_of_the_project(folder: Path) -> Path:
    """Return *folder*, which then has the files of this repository, without what was made in it."""
    return shutil.copytree(ROOT, folder, ignore=MADE, symlinks=True)


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file in one step, as a ConfigMap's volume does: nobody reads a part of it."""
    new = path.with_suffix(".new")
    new.write_bytes(content if isinstance(content, bytes) else content.encode())
    new.replace(path)
