# SPDX-License-Identifier: Apache-2.0

"""Work in steps: a generator that yields between them, and returns the result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
STEP = 1000  # items in a step: half a millisecond or so, for which queries wait
