# SPDX-License-Identifier: Apache-2.0

"""What tests build or fetch once, and keep in ``.cache/``.

A folder there is named after a hash of everything that it is made from, so nothing is made twice, and nothing old is
used.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.kit.this_machine import ROOT

CACHE = ROOT / ".cache"


def made_once(name: str, inputs: Sequence[bytes], make: Callable[[Path], None]) -> Path:
    """Return the folder that *make* fills from *inputs*, now or earlier; one process makes it while others wait."""
    key = hashlib.sha256()
    for part in inputs:
        key.update(hashlib.sha256(part).digest())
    folder = CACHE / f"{name}-{key.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            for old in CACHE.glob(f"{name}-*"):  # of another version, or half made
                shutil.rmtree(old)
            unfinished = Path(tempfile.mkdtemp(dir=CACHE, prefix=f"{name}-unfinished-"))
            make(unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(folder)
    return folder
