"""Finds the dumps in a folder and the folders in it: those of ``kubectl cluster-info dump``, must-gather, bundles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from locator.cluster.dumps.reading import Input

ENDINGS = (".yaml", ".yml", ".json", ".yaml.gz", ".yml.gz", ".json.gz")
EXPECTED = "expected one that ends in .yaml, .yml or .json, or one of these and .gz"
OF_KUBELET = ".."  # how the folders begin to which the links in a mounted ConfigMap or Secret lead


def inputs_in(folder: str) -> Iterator[Input]:
    """Yield the files in a folder and in its folders, each once, in order of their paths. Raises OSError for itself.

    What is not to be read is yielded with the reason. Nothing is opened.
    """
    yield from _inputs_in(folder, set())


def _inputs_in(folder: str, seen: set[tuple[int, int]]) -> Iterator[Input]:
    status = os.stat(folder)
    if (status.st_dev, status.st_ino) in seen:
        yield Input(folder, passed_over="a link to a folder that is read already")
        return
    seen.add((status.st_dev, status.st_ino))
    with os.scandir(folder) as scanned:
        found = sorted(scanned, key=lambda entry: entry.name)
    for entry in found:
        if entry.name.startswith(OF_KUBELET):
            continue
        if _is(entry.is_dir):
            if entry.name.startswith("."):
                yield Input(entry.path, passed_over="a hidden folder")
                continue
            try:
                yield from _inputs_in(entry.path, seen)
            except OSError as error:
                yield Input(entry.path, passed_over=f"{error.strerror}, expected a folder that can be read")
        else:
            yield Input(entry.path, in_folder=True, passed_over=_reason(entry))


def _reason(entry: os.DirEntry[str]) -> str:
    """Return why a file is not read, "" if it is."""
    name = entry.name.lower()
    if name.startswith("._"):
        return "what macOS writes beside a file"
    if not name.endswith(ENDINGS):
        _, dot, ending = name.rpartition(".")
        return (
            f"not read by its name, which ends in .{ending}, {EXPECTED}" if dot else f"not read by its name, {EXPECTED}"
        )
    if _is(entry.is_file):
        return ""
    return "a link that leads nowhere" if entry.is_symlink() and not os.path.exists(entry.path) else "no regular file"


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # links that lead in a circle
        return False
