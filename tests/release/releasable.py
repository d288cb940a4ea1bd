# SPDX-License-Identifier: Apache-2.0

"""Clones of which a release can be made: with addresses in the place of placeholders, and a section of the changes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from dnsserver import __version__
from tests.release.release import CONTACTS, PLACEHOLDER, Addresses

SET = Addresses(
    home="https://home.example/topodns",
    source="https://source.example/topodns",
    documentation="https://docs.example/topodns",
    image="registry.example/topodns",
)
# The one place that has addresses: what an address follows there.
KEYS = {"Homepage": SET.home, "Source": SET.source, "Documentation": SET.documentation, "image": SET.image}
# As a commit that is the same whoever makes it.
GIT = ("git", "-c", "user.name=Somebody", "-c", "user.email=somebody@topodns.example")
DATE = "2026-01-02T03:04:05Z"


def releasable(folder: Path) -> Path:
    """Make a copy of the project a clone whose addresses are set."""
    for key, address in KEYS.items():
        _edit(folder / "pyproject.toml", rf'^{key} = ".*?"', f'{key} = "{address}"')
    for name in CONTACTS:
        _edit(folder / name, PLACEHOLDER.pattern, "somebody@topodns.example")
    _edit(folder / "CHANGELOG.md", r"(?<=^## \[Unreleased\]\n)", f"\n## [{__version__}] - {DATE[:10]}\n")
    env = {**os.environ, "GIT_AUTHOR_DATE": DATE, "GIT_COMMITTER_DATE": DATE}
    for command in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message", "Release")):
        subprocess.run([*GIT, *command], cwd=folder, env=env, check=True)
    return folder


def _edit(path: Path, pattern: str, text: str) -> None:
    path.write_text(re.sub(pattern, text, path.read_text(), flags=re.MULTILINE))
