# SPDX-License-Identifier: Apache-2.0

"""A terminal shows what a command reads while that takes long: ``check``, ``explain``, ``simulate``, ``doctor``."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dnsserver.cli.log_format import set_up_logging
from dnsserver.cli.progress import shown_progress
from tests.kit.commands_in_process import logging_as_before
from tests.kit.other_server import Response, kubeconfig, other_server
from tests.kit.terminal import Terminal
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import COMMAND
from tests.kit.waiting import PATIENCE

DONE = 0
EXAMPLE = ROOT / "examples" / "cluster.yaml"
CLEAN = "0 errors, "
CASES = {
    # standard error: whether it is a terminal, TERM, the log format; whether something is shown
    "terminal": (True, "xterm-256color", "text", True),
    "pipe": (False, "xterm-256color", "text", False),
    "dumb-terminal": (True, "dumb", "text", False),
    "unknown-terminal": (True, "", "text", False),
    "no-terminal-named": (True, None, "text", False),
    "json": (True, "xterm-256color", "json", False),
}


@contextmanager
def held_pipe(folder: Path) -> Iterator[tuple[Path, threading.Event]]:
    """Yield a pipe that gives the example cluster once the event is set."""
    path, wanted = folder / "pipe [b]", threading.Event()
    os.mkfifo(path)

    def give() -> None:
        with path.open("wb") as pipe:
            wanted.wait(PATIENCE)
            pipe.write(EXAMPLE.read_bytes())

    thread = threading.Thread(target=give)
    thread.start()
    try:
        yield path, wanted
    finally:
        wanted.set()
        thread.join(PATIENCE)


@contextmanager
def held_api_server(folder: Path) -> Iterator[tuple[Path, threading.Event]]:
    """Yield the kubeconfig of an API server without objects, which answers from when the event is set."""
    wanted = threading.Event()
    nothing = json.dumps({"metadata": {"resourceVersion": "1"}, "items": []}).encode()

    def respond() -> Response:
        wanted.wait(PATIENCE)
        return Response(200, nothing)

    with other_server(respond) as address:
        try:
            yield kubeconfig(folder, f"http://{address}"), wanted
        finally:
            wanted.set()


def test_a_dump_that_comes_slowly(tmp_path: Path) -> None:
    """The line names the file, and is gone when the result is printed."""
    with held_pipe(tmp_path) as (path, wanted):
        shell = [*COMMAND, "explain", "memcached.shop", "--client", "10.244.2.16", "--snapshot", str(path)]
        with Terminal(shell, env={}, folder=ROOT) as terminal:
            terminal.until(re.escape(f"reading {path}"))
            terminal.until(re.escape("\033[?25h"))  # the cursor is there, also if Ctrl-C comes now
            wanted.set()
            rest = terminal.rest().decode()
            assert terminal.process.returncode == DONE
    *_, result = rest.split("\033[2K")  # what erases a line
    assert "memcached.shop.svc.cluster.local. A" in result
    assert not re.search(r"\d:\d\d:\d\d", result)  # no time that has passed


@pytest.mark.parametrize(
    ("command", "line", "printed"),
    [
        ("check", r"http://127.0.0.1:\d+: reading Namespace objects", CLEAN),
        ("doctor", r"http://127.0.0.1:\d+: looking at the installation", "could not be looked at, "),
    ],
    ids=["check", "doctor"],
)
def test_an_api_server_that_answers_slowly(tmp_path: Path, command: str, line: str, printed: str) -> None:
    """The line names the server, and what is being read."""
    with held_api_server(tmp_path) as (path, wanted):
        shell = [*COMMAND, command, "--kubeconfig", str(path)]
        with Terminal(shell, env={}, folder=ROOT) as terminal:
            terminal.until(line)
            wanted.set()
            assert printed in terminal.rest().decode()


@pytest.mark.parametrize(("is_terminal", "term", "log_format", "shown"), CASES.values(), ids=CASES)
def test_who_sees_it(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, term: str | None, log_format: str, shown: bool
) -> None:
    """People at a terminal that can move its cursor. For all others nothing is prepared, and no library loaded."""
    monkeypatch.setattr(sys, "stderr", error := io.StringIO())
    monkeypatch.setattr(error, "isatty", lambda: is_terminal)
    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    with logging_as_before():
        set_up_logging(log_format)
        with shown_progress() as report:
            report("reading")
            timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
        assert bool(timers) == shown and error.getvalue() == ""
