"""Asks the C library to keep little memory that Python no longer uses; where it has no such functions, does nothing."""

from __future__ import annotations

import ctypes

_C = ctypes.CDLL(None)
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # of glibc's mallopt
# From this size on, a block goes back to the system as soon as it is free: bodies of responses, and tables that have
# been copied to larger ones. Smaller blocks are asked for too often.
_LARGE = 1 << 18


def keep_little() -> None:
    """Use one arena for all threads, since each arena keeps what its threads have freed. Call before any thread runs.

    Threads that wait for one another's arena would cost more, but they wait for the interpreter's lock first.
    """
    if hasattr(_C, "mallopt"):
        _C.mallopt(_M_ARENA_MAX, 1)
        _C.mallopt(_M_MMAP_THRESHOLD, _LARGE)


def give_back() -> None:
    """Give free memory back to the system, which takes some milliseconds: worth it after something large."""
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
