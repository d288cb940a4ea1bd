# SPDX-License-Identifier: Apache-2.0

"""Fuzzes the responder and the native code from one corpus: ``make fuzz``, or ``python -m tests.fuzz.run``.

libFuzzer mutates inputs, beginning with those of the wire table, and keeps each one that reaches new code: of Python
(atheris), then of the native code (cargo). Either begins with what both have kept. At the end the corpus is minimised:
what is left still reaches all that was reached.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz import native
from tests.fuzz.inputs import LONGEST, seeds, words

HALVES = ("python", "native")
PYTHON = "from tests.fuzz.python import main; main()"
INPUT_TIMEOUT = 10  # seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz until the time is over. The status is 0, or another one if an input broke something: it is printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each half")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations; 0 takes another one each time")
    parser.add_argument("--keep", type=Path, help="folder that keeps inputs for the next run, which begins with them")
    parser.add_argument("--only", choices=HALVES, help="leave out the other half")
    parser.add_argument("input", nargs="?", type=bytes.fromhex, help="run this input alone, in hex")
    parsed = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = folder / "seeds"
        begin.mkdir()
        for number, data in enumerate(seeds()):
            if len(data) <= LONGEST:
                (begin / str(number)).write_bytes(data)
        (folder / "words").write_text(words())
        (folder / "input").write_bytes(parsed.input or b"")
        options = {
            "max_total_time": parsed.seconds,
            "max_len": LONGEST,
            "dict": folder / "words",
            "timeout": INPUT_TIMEOUT,
            "seed": parsed.seed,
            "artifact_prefix": f"{folder}/broken-",
        }
        kept = {half: (parsed.keep or folder) / half for half in HALVES}
        for path in kept.values():
            path.mkdir(parents=True, exist_ok=True)
        for half in (parsed.only,) if parsed.only else HALVES:
            reason = lacking(half)
            if reason:
                print(f"{half}: left out, {reason}", file=sys.stderr)
                continue
            program, environment = program_of(half, folder)
            corpus = [kept[half], *(path for other, path in kept.items() if other != half), begin]
            given = [folder / "input"] if parsed.input is not None else corpus
            print(f"{half}:", file=sys.stderr, flush=True)
            status = run(program, [*(f"-{key}={value}" for key, value in options.items()), *given], environment)
            if status:
                for path in folder.glob("broken-*"):
                    data = path.read_bytes().hex()
                    print(f"input: {data}\nalone: python -m tests.fuzz.run {data}", file=sys.stderr)
                return status
            if parsed.keep and parsed.input is None:
                minimise(program, corpus, folder / f"{half}-minimised", environment)
    return 0


def lacking(half: str) -> str:
    """Return why a half cannot run on this machine, or ""."""
    if half == "python":
        return "" if find_spec("atheris") else "atheris has no wheel for this Python"
    return " and ".join(f"{tool} is not installed" for tool in ("cargo", "c++") if shutil.which(tool) is None)


def program_of(half: str, folder: Path) -> tuple[Path, Mapping[str, str]]:
    """Return a half's program and its environment; *folder* takes the files that it needs."""
    if half == "native":
        (folder / "learned").write_text(native.learned())
        return native.build(), {**os.environ, native.LEARNED: str(folder / "learned")}
    program = folder / "program"  # libFuzzer calls it again to minimise
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(PYTHON)} "$0" "$@"\n')
    program.chmod(0o755)
    return program, os.environ


def minimise(program: Path, corpus: Sequence[Path], minimised: Path, environment: Mapping[str, str]) -> None:
    """Leave in the first folder of a corpus only what it takes to reach all that the corpus reaches."""
    minimised.mkdir()
    if run(program, ["-merge=1", f"-max_len={LONGEST}", minimised, *corpus], environment):
        return  # what is there stays
    shutil.rmtree(corpus[0])
    shutil.copytree(minimised, corpus[0])


def run(program: Path, arguments: Sequence[str | Path], environment: Mapping[str, str]) -> int:
    """Run libFuzzer, and return its exit status."""
    return subprocess.run([program, *arguments], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
