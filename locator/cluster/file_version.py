# SPDX-License-Identifier: Apache-2.0

"""By what a file is seen to have changed."""

from __future__ import annotations

import os


def version_of(found: os.stat_result) -> tuple[int, ...]:
    """Return what differs whenever a file is written, or another one takes its place."""
    return found.st_mtime_ns, found.st_size, found.st_ino
