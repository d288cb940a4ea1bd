# SPDX-License-Identifier: Apache-2.0

"""Asks the C library to keep little memory that Python no longer uses; where it has no such functions, does nothing."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # of glibc's mallopt
# From this size on, a block goes back to the system as soon as it is free: bodies of responses, and tables that have
# been copied to larger ones. Smaller blocks are asked for too often.
_LARGE = 1 << 18

_C: ctypes.CDLL | None = None
with suppress(OSError, TypeError):  # a Python that is linked statically, or not of Unix
    _C = ctypes.CDLL(None)


def keep_little() -> None:
    """Use one arena for all threads, since each arena keeps what its threads have freed. Call before any thread runs.

    Threads that wait for one another's arena would cost more. But those of Python wait for the interpreter's lock
    first, and native code asks for no memory while it repeats answers.
    """
    if _C is not None and hasattr(_C, "mallopt"):
        _C.mallopt(_M_ARENA_MAX, 1)
        _C.mallopt(_M_MMAP_THRESHOLD, _LARGE)


def give_back() -> None:
    """Give free memory back to the system, which takes some milliseconds: worth it after something large."""
    if _C is not None and hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
