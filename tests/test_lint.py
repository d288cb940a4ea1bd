# SPDX-License-Identifier: Apache-2.0

"""Lint: ruff's rules and format, mypy strict, and the license of each file."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.this_machine import ROOT


@pytest.mark.parametrize(
    "arguments",
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",), ("reuse", "lint", "--lines")],
    ids=["ruff-check", "ruff-format", "mypy-strict", "licenses: make spdx adds them"],
)
def test_tool_finds_nothing(arguments: tuple[str, ...]) -> None:
    """Each tool ends without a finding."""
    ran = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
