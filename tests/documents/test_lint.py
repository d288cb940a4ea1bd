# SPDX-License-Identifier: Apache-2.0

"""Lint: ruff's rules and format, mypy strict, which folder imports which, and the license of each file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.this_machine import ROOT


@pytest.mark.parametrize(
    "command",
    ["ruff check .", "ruff format --check .", "mypy", "lint-imports --no-logo", "reuse lint --lines"],
    ids=["ruff-check", "ruff-format", "mypy-strict", "imports", "licenses: make spdx adds them"],
)
def test_tool_finds_nothing(command: str) -> None:
    """Each tool ends without a finding."""
    program, *arguments = command.split()
    path = Path(sys.executable).with_name(program)
    ran = subprocess.run([path, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
