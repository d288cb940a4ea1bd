# SPDX-License-Identifier: Apache-2.0

"""The half of ``make fuzz`` that follows the paths of ``native/src``: its target, and what Python makes known to it.

``native/fuzz`` has the target, laid out for cargo-fuzz. It is built with the flags of cargo-fuzz, which takes no more
than cargo and a C++ compiler.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dnsserver.message.proxy_protocol import PLAIN_HEADERS
from dnsserver.responder.repeating import KnownPlace, Parts
from locator.ip import Network, parse_address
from tests.fuzz_inputs import SERVERS, SOURCES, Target, seeds
from tests.this_machine import ROOT

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


class Learned:
    """Stands in for the native code of a server: it answers nothing, and writes down what Python makes known."""

    def __init__(self, flags: Mapping[str, object]) -> None:
        self.lines = [line_of("header", *header) for header in PLAIN_HEADERS if flags.get("proxy-protocol")]
        self.lines.append("server")

    def reply(self, query: bytes, source: bytes) -> None:
        """Leave it to Python."""

    def learn_places(self, places: Sequence[tuple[bytes, KnownPlace | None]]) -> None:
        self.lines += [line_of("learn_place", address, place) for address, place in places]

    def learn_source(self, source: bytes, place: KnownPlace) -> None:
        self.lines.append(line_of("learn_source", source, place))

    def learn_client(self, client: bytes, place: KnownPlace) -> None:
        self.lines.append(line_of("learn_client", client, place))

    def learn_block(self, content: bytes, place: KnownPlace) -> None:
        self.lines.append(line_of("learn_block", content, place))

    def learn_profile(self, rest: bytes, *, limit: int, opts: tuple[bytes, bytes], octets: int, host: bool) -> None:
        self.lines.append(line_of("learn_profile", rest, limit, *opts, octets, host))

    def learn_transient(self, question: bytes, parts: Parts) -> None:
        self.lines.append(line_of("learn_transient", question, *parts))

    def learn_answer(self, question: bytes, basis: int, parts: Parts) -> None:
        self.lines.append(line_of("learn_answer", question, basis, *parts))

    def learn_choice(self, question: bytes, basis: int, choice: tuple[int, int, int], parts: Parts) -> None:
        self.lines.append(line_of("learn_choice", question, basis, choice, *parts))

    def asked(self, bases: Sequence[int]) -> Sequence[bytes]:
        return ()

    def publish(self, serial: int, bases: Sequence[int], networks: Sequence[Network] | None) -> None:
        self.lines.append(line_of("publish", serial))

    def forget_profiles(self) -> None:
        self.lines.append("forget_profiles")

    def take_numbers(
        self,
    ) -> tuple[Sequence[Mapping[int, int]], Sequence[int], Mapping[int, int], Sequence[int], float]:
        return ({}, {}), (0, 0), {}, (), 0.0


def line_of(name: str, *values: bytes | int | Sequence[int] | None) -> str:
    """Return a line as the target reads it."""
    return " ".join((name, *map(word_of, values)))


def word_of(value: bytes | int | Sequence[int] | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return f"x{value.hex()}"
    return ",".join(str(int(number)) for number in ((value,) if isinstance(value, int) else value))


def learned() -> str:
    """Return what the servers make known to their native codes while they answer the inputs to begin with."""
    natives = [Learned(flags) for flags in SERVERS]
    target = Target(natives)
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
