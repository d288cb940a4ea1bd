# SPDX-License-Identifier: Apache-2.0

"""Waiting for a condition, with a deadline. Tests never just sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import trio

PATIENCE = 20.0  # seconds until a test stops waiting for a line, a reply or a process' end


class NotReadyError(Exception):
    """A program ended, or was not ready in time; the text ends with the last lines of its output."""


def until(holds: Callable[[], Any], what: str | Callable[[], str], *, within: float = PATIENCE) -> Any:
    """Call *holds* again and again until it returns something true, and return that.

    Raises ``NotReadyError`` after *within* seconds; *what* says what was expected.
    """
    deadline = time.monotonic() + within
    while True:
        if result := holds():
            return result
        if time.monotonic() > deadline:
            raise NotReadyError(f"not within {within:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


async def until_in_trio(holds: Callable[[], object]) -> None:
    """Wait until *holds* returns something true, while other tasks run. Raises ``trio.TooSlowError``."""
    with trio.fail_after(PATIENCE):
        while not holds():
            await trio.sleep(0.01)
