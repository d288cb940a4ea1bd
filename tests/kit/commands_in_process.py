# SPDX-License-Identifier: Apache-2.0

"""Runs a command of ``topodns`` in this process, which is faster than a process of its own.

The fixture ``topodns`` is in ``conftest.py``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from dnsserver.cli.dispatch import run_command


class Ran(NamedTuple):
    """A command's exit status and output."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@contextmanager
def commands_in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Give a function that runs a command without the environment of whoever runs the tests."""

    def call(*arguments: str, **env: str) -> Ran:
        for name in [name for name in os.environ if name.startswith(("TOPODNS_", "KUBE"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", "/nonexistent")
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        ran = Ran(run_command(arguments), *capsys.readouterr())
        assert "Traceback" not in ran.err
        return ran

    with logging_as_before():
        yield call


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Undo at the end what the block does to the log."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
