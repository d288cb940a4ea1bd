# SPDX-License-Identifier: Apache-2.0

"""A folder as the kubelet mounts a Secret: links into a hidden folder, which another one replaces at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def mount(folder: Path, files: Mapping[str, str | None]) -> None:
    """Put *files* into a folder in place of all that it has; None has a link lead nowhere."""
    number = sum(1 for one in folder.iterdir() if one.name.startswith("..2"))
    now = folder / f"..2026_{number}"
    now.mkdir()
    for name, text in files.items():
        if text is not None:
            (now / name).write_text(text)
    (folder / "..new").symlink_to(now.name)
    os.replace(folder / "..new", folder / "..data")
    for name in files:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    for link in folder.iterdir():
        if link.is_symlink() and not link.name.startswith(".") and link.name not in files:
            link.unlink()
