# SPDX-License-Identifier: Apache-2.0

"""The half of ``make fuzz`` that follows the paths of ``native/src``: its target, and what Python makes known to it.

``native/fuzz`` has the target, laid out for cargo-fuzz. It is built with the flags of cargo-fuzz, which takes no more
than cargo and a C++ compiler.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from dnsserver.message.proxy_protocol import PLAIN_HEADERS
from dnsserver.message.rendering import RenderedAnswer
from locator.ip import parse_address
from tests.fuzz.inputs import SERVERS, SOURCES, Target, seeds
from tests.kit.this_machine import ROOT

# The variable of the target that names the file with what is known.
LEARNED = "TOPODNS_FUZZ_LEARNED"
CRATE = ROOT / "native" / "fuzz"
BUILT = ROOT / ".cache" / "native-fuzz"
# Those of cargo-fuzz 0.13 without a sanitizer: all that is fuzzed is safe Rust, and stable Rust has them.
FLAGS = (
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
    "--cfg=fuzzing",
)


class Recorded:
    """Stands in for the native code of a server: it answers nothing, and writes down what Python makes known."""

    def __init__(self, flags: Mapping[str, object]) -> None:
        self.lines = [line_of("header", *header) for header in PLAIN_HEADERS if flags.get("proxy-protocol")]
        self.lines.append("server")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values: self.lines.append(line_of(name, *values))

    def reply(self, query: bytes, source: bytes) -> None:
        """Leave it to Python."""

    def asked(self, services: Sequence[int]) -> Sequence[bytes]:
        return ()

    def answer(self, question: bytes, answer: RenderedAnswer, *clients: object) -> None:
        records, offsets = answer.blob[: answer.length], list(answer.offsets[: answer.records + 1])
        values = (records, offsets, answer.tail, answer.optional, answer.serial_at, answer.dependent, answer.tally)
        self.lines.append(line_of("answer", question, answer.flags, answer.section_counts, *values, *clients))


def line_of(name: str, *values: object) -> str:
    """Return a line as the target reads it."""
    return " ".join((name, *words_of(values)))


def words_of(value: object) -> Iterator[str]:
    """Yield the words of a value: of a list, first how many items it has."""
    if isinstance(value, (tuple, list)):
        if isinstance(value, list):
            yield str(len(value))
        for item in value:
            yield from words_of(item)
    elif isinstance(value, bytes):
        yield f"x{value.hex()}"
    else:
        assert value is None or isinstance(value, int)
        yield "-" if value is None else str(int(value))


def learned() -> str:
    """Return what the servers make known to their native codes while they answer the inputs to begin with."""
    natives = [Recorded(flags) for flags in SERVERS]
    target = Target(cast(Any, natives))
    for data in seeds():
        target(data)
    sources = [line_of("from", parse_address(source)) for source in SOURCES]
    # A form of a query is made known each time that it comes.
    return "\n".join((*sources, *(line for native in natives for line in dict.fromkeys(native.lines)))) + "\n"


def build() -> Path:
    """Build the target, and return its path."""
    host = (
        subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True)
        .stdout.split("host: ")[1]
        .split()[0]
    )
    subprocess.run([ROOT / "native" / "lock.sh", CRATE], check=True)
    command = ("cargo", "build", "--quiet", "--release", "--locked", "--target", host)
    variables = {"CARGO_ENCODED_RUSTFLAGS": "\x1f".join(FLAGS), "CARGO_TARGET_DIR": str(BUILT)}
    subprocess.run(command, cwd=CRATE, env={**os.environ, **variables}, check=True)
    return BUILT / host / "release" / "reply"
