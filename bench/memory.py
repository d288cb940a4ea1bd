# SPDX-License-Identifier: Apache-2.0

"""The memory that a process has taken."""

from __future__ import annotations

import os
import re
from pathlib import Path


def resident() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def peak(process: int | str) -> float:
    """Return the most resident memory that a process (an id, or ``self``) has had in MB, since its program started.

    Not so ``getrusage``, whose maximum begins with that of the process that started it.
    """
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None, status
    return int(found[1]) * 1024 / 1e6
