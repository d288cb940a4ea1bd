"""Fuzzing: any octets, found by the paths that they take through the code; ``make fuzz`` runs for longer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec

from tests.this_machine import ROOT, lacking
from tests.waiting import PATIENCE
from tests.wire_rows import ROWS

SECONDS = 10 if os.environ.get("CI") == "true" else 5

# A responder with a fault that no row shows: it calls what holds a Z authentic.
FAULTY = """
import sys
from tests import fuzz
right = fuzz.CountedResponder.answer
def wrong(responder, query, source, channel, **named):
    reply = right(responder, query, source, channel, **named)
    faulty = isinstance(reply, bytes) and b"Z" in query[12:]
    return reply[:3] + bytes((reply[3] | 0x20,)) + reply[4:] if faulty else reply
fuzz.CountedResponder.answer = wrong
fuzz.main(sys.argv[1:])
"""


def fuzzed(*arguments: str, seconds: float = 0) -> subprocess.CompletedProcess[str]:
    """Run Python with *arguments*; return atheris' standard error."""
    if find_spec("atheris") is None:
        lacking("atheris is not installed here (make fuzz installs it)")
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + 6 * PATIENCE,
        check=False,
    )


def test_no_input_gets_an_unsound_reply() -> None:
    """Any input gets a sound reply or silence, never an exception, cached or computed."""
    ran = fuzzed("-m", "tests.fuzz", f"--seconds={SECONDS}", "--seed=1", seconds=SECONDS)
    assert ran.returncode == 0, ran.stderr[-4000:]
    asked = re.search(r"^stat::number_of_executed_units: (\d+)$", ran.stderr, re.MULTILINE)
    assert asked is not None and int(asked[1]) > len(ROWS), ran.stderr[-4000:]


def test_an_unsound_reply_ends_it_and_shows_the_input() -> None:
    """The fuzzer finds a fault that the test makes, and prints its input."""
    ran = fuzzed("-c", FAULTY, "--seconds=120", "--seed=1", seconds=120)  # it ends once it has found it
    assert ran.returncode != 0
    shown = re.search(r"^input: ([0-9a-f]+)$", ran.stderr, re.MULTILINE)
    assert shown is not None and "AssertionError" in ran.stderr, ran.stderr[-4000:]
    again = fuzzed("-c", FAULTY, shown[1])
    assert again.returncode != 0 and "AssertionError" in again.stderr
    assert fuzzed("-m", "tests.fuzz", shown[1]).returncode == 0
