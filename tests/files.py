"""Files that change while a program reads them."""

from __future__ import annotations

from pathlib import Path


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file in one step, as a ConfigMap's volume does: nobody reads a part of it."""
    new = path.with_suffix(".new")
    new.write_bytes(content if isinstance(content, bytes) else content.encode())
    new.replace(path)
