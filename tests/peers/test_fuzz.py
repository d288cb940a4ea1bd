# SPDX-License-Identifier: Apache-2.0

"""Fuzzing: any octets, found by the paths that they take through the code; ``make fuzz`` runs for longer."""

from __future__ import annotations

import os
import re

import pytest

from tests.fuzz import run as fuzz
from tests.fuzz.inputs import Target, seeds
from tests.kit.this_machine import lacking
from tests.kit.wire_rows import ROWS

SECONDS = 10 if os.environ.get("CI") == "true" else 5

# A responder with a fault that no row shows: it calls what holds a Z authentic.
FAULTY = """
from tests.fuzz import python
from tests.kit.in_memory import CountedResponder
right = CountedResponder.reply
def wrong(responder, query, source, channel, **named):
    reply = right(responder, query, source, channel, **named)
    faulty = isinstance(reply, bytes) and b"Z" in query[12:]
    return reply[:3] + bytes((reply[3] | 0x20,)) + reply[4:] if faulty else reply
CountedResponder.reply = wrong
python.main()
"""


def needs(half: str) -> None:
    if reason := fuzz.lacking(half):
        lacking(reason)


def test_each_seed_gets_the_same_reply_from_all() -> None:
    """What Python computes, what it remembers, and what the native code repeats."""
    target = Target()
    for data in seeds():
        target(data)


@pytest.mark.parametrize("half", ["python", "native"])
def test_no_input_gets_an_unsound_reply(half: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Any input gets a sound reply or silence, never an exception or a panic, remembered or computed."""
    needs(half)
    status = fuzz.main([f"--only={half}", f"--seconds={SECONDS}", "--seed=1"])
    said = capfd.readouterr().err
    assert status == 0, said[-4000:]
    ran = re.search(r"^Done (\d+) runs", said, re.MULTILINE)
    assert ran is not None and int(ran[1]) > len(ROWS), said[-4000:]


def test_an_unsound_reply_ends_it_and_shows_the_input(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The fuzzer finds a fault that the test makes, and prints its input."""
    needs("python")
    monkeypatch.setattr(fuzz, "PYTHON", FAULTY)
    assert fuzz.main(["--only=python", "--seconds=120", "--seed=1"]) != 0  # it ends once it has found it
    said = capfd.readouterr()
    shown = re.search(r"^input: ([0-9a-f]+)$", said.err, re.MULTILINE)
    assert shown is not None and "AssertionError" in said.out + said.err, said.err[-4000:]
    assert fuzz.main(["--only=python", shown[1]]) != 0
    assert "AssertionError" in "".join(capfd.readouterr())
    monkeypatch.undo()
    assert fuzz.main(["--only=python", shown[1]]) == 0
