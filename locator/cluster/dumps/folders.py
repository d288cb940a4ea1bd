# SPDX-License-Identifier: Apache-2.0

"""Finds the dumps in a folder and the folders in it: those of ``kubectl cluster-info dump``, must-gather, bundles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from locator.api.dump import Skipped
from locator.cluster.dumps.reading import Input

ENDINGS = (".yaml", ".yml", ".json", ".yaml.gz", ".yml.gz", ".json.gz")
EXPECTED_ENDING = f"a name that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"
OF_FILE_SYSTEM = "lost+found"  # only root can read it
MAX_DEPTH = 100  # folders in one another
OF_KUBELET = ".."  # how the folders begin to which the links in a mounted ConfigMap or Secret lead


def inputs_in(folder: str) -> Iterator[Input]:
    """Yield the files in a folder and in its folders, each once, in order of their paths. Raises OSError.

    What is not to be read is yielded with the reason. Nothing is opened.
    """
    yield from _inputs_in(folder, set(), 0)


def _inputs_in(folder: str, seen: set[tuple[int, int]], depth: int) -> Iterator[Input]:
    if depth > MAX_DEPTH:
        yield Input(folder, passed_over=Skipped(f"a folder below {MAX_DEPTH} others"))
        return
    status = os.stat(folder)
    if (status.st_dev, status.st_ino) in seen:
        yield Input(folder, passed_over=Skipped("a link to a folder that is read already"))
        return
    seen.add((status.st_dev, status.st_ino))
    with os.scandir(folder) as scanned:
        found = sorted(scanned, key=lambda entry: entry.name)
    for entry in found:
        if entry.name.startswith(OF_KUBELET):
            continue
        if _is(entry.is_dir):
            if entry.name.startswith("."):
                yield Input(entry.path, passed_over=Skipped("a hidden folder"))
            elif entry.name == OF_FILE_SYSTEM:
                yield Input(entry.path, passed_over=Skipped("a folder of the file system"))
            else:
                yield from _inputs_in(entry.path, seen, depth + 1)
        else:
            yield Input(entry.path, in_folder=True, passed_over=_reason(entry))


def _reason(entry: os.DirEntry[str]) -> Skipped | None:
    """Return why a file is not read, None if it is."""
    name = entry.name.lower()
    if name.startswith("._"):
        return Skipped("what macOS writes beside a file")
    if not name.endswith(ENDINGS):
        _, dot, ending = name.rpartition(".")
        return Skipped(f"the name ends in .{ending}" if dot else "the name has no ending", EXPECTED_ENDING)
    if _is(entry.is_file):
        return None
    leads_nowhere = entry.is_symlink() and not os.path.exists(entry.path)
    return Skipped("a link that leads nowhere" if leads_nowhere else "no regular file")


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # links that lead in a circle
        return False
