# SPDX-License-Identifier: Apache-2.0

"""Installs topodns from this folder into its virtual environment, and tells what it is doing: 'make run' calls it.

It needs the standard library alone. All that pip and cargo say is kept in the environment, in ``install.log``.
"""

from __future__ import annotations

import io
import os
import platform
import re
import selectors
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parent
PINNED = re.compile(r"^[\w.-]+==", re.MULTILINE)
CRATE = re.compile(r"^\[\[package\]\]", re.MULTILINE)
RUST = "install Rust (https://rustup.rs, or on Debian: apt install cargo) and a C compiler (apt install gcc)"
HEARTBEAT = 1.0  # seconds after which a terminal shows that the work goes on
REPORT = 10.0  # the same where lines stay, such as in a log of CI


class InstallError(Exception):
    """Something could not be installed; the text says what to do."""


class Step:
    """A line that says what is being done, how far it is, and how long it took."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._begun = self._shown = time.monotonic()
        self._print("")

    def tell(self, detail: str) -> None:
        """Show how far it is, unless that was shown just now."""
        now = time.monotonic()
        if now - self._shown >= (HEARTBEAT / 5 if sys.stdout.isatty() else REPORT):
            self._shown = now
            self._print(f"{detail}, {now - self._begun:.0f} s" if detail else f"{now - self._begun:.0f} s")

    def end(self) -> None:
        """Leave the line as it is, with the time that all took."""
        if sys.stdout.isatty():
            self._print(f"{time.monotonic() - self._begun:.0f} s")
            print(flush=True)

    def _print(self, detail: str) -> None:
        text = f"  {self.title}{': ' if detail else ' ...'}{detail}"
        if sys.stdout.isatty():
            print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        else:
            print(text, flush=True)


class Libraries:
    """What pip says while it installs libraries."""

    def __init__(self, pinned: int) -> None:
        self.pinned = pinned
        self.found = 0
        self.retries = 0
        self.sources: list[str] = []
        """What has no wheel for this machine, and so must be compiled."""
        self.errors: list[str] = []

    def read(self, line: str) -> str:
        """Take a line of pip; return how far it is."""
        if line.startswith("Ignoring "):
            self.pinned -= 1
        elif re.match(r"Collecting |Requirement already satisfied", line):
            self.found += 1
        elif "Retrying (" in line:
            self.retries += 1
        elif source := re.match(r"\s*(?:Downloading|Using cached) (?:\S*/)?([\w.-]+?)-[\w.]+\.(?:tar\.gz|zip)\b", line):
            self.sources.append(source[1])
        elif line.startswith("ERROR: "):
            self.errors.append(line.removeprefix("ERROR: "))
        if line.startswith(("Installing collected", "Attempting")) or self.found >= self.pinned:
            return "all are here, unpacking"
        return f"{self.found} of {self.pinned}" + (": no answer from the index yet" if self.retries else "")

    def failure(self) -> str:
        """Return why pip failed, and what to do."""
        if self.retries:
            return (
                "pip cannot reach its index of packages. Is this machine connected to the Internet? Behind a proxy,\n"
                "set HTTPS_PROXY; to take the libraries from an index of your own, set PIP_INDEX_URL."
            )
        if self.sources:
            here = f"Python {platform.python_version()} on {platform.machine()}"
            return (
                f"There is no wheel of {self.sources[-1]} for {here}, and pip could not compile it.\n"
                "Install a C compiler and the headers of Python (on Debian: apt install gcc python3-dev), or take\n"
                "another Python: make PYTHON=python3.12 run"
            )
        return "\n".join(self.errors[:3]) or "pip has failed."


class Native:
    """What cargo says, through pip, while it compiles the native code."""

    def __init__(self, crates: int) -> None:
        self.crates = crates
        self.compiled: set[str] = set()
        self.error = ""

    def read(self, line: str) -> str:
        """Take a line of pip; return how far cargo is."""
        if compiling := re.match(r"\s*(?:Compiling|Fresh) (\S+) v\d", line):
            self.compiled.add(compiling[1])
        elif not self.error and (error := re.match(r"\s*error(?:\[\w+\])?: (.*)", line)):
            self.error = error[1]
        return f"{len(self.compiled)} of {self.crates}" if self.compiled else ""

    def loss(self) -> str:
        """Return what is lost if there is no native code now, why, and how to get it."""
        why = f"cargo says: {self.error}." if self.error else "There is no cargo here."
        return (
            f"Without native code. {why} Answers are the same, but each takes several times as much CPU. To\n"
            f"have it, {RUST}, then:\n"
            "rm .venv/.installed && make run"
        )


def follow(command: Sequence[str], step: Step, read: Callable[[str], str], log: TextIO) -> int:
    """Run *command* until it ends, and let the step tell what is read from its lines; return its exit status."""
    detail, rest = "", b""
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
        selectors.DefaultSelector() as selector,
    ):
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        try:
            while True:
                if selector.select(HEARTBEAT):
                    if not (some := os.read(process.stdout.fileno(), 65536)):
                        break
                    *lines, rest = (rest + some).split(b"\n")
                    for line in (line.decode(errors="replace") for line in lines):
                        log.write(f"{line}\n")
                        detail = read(line)
                step.tell(detail)
        except KeyboardInterrupt:
            process.terminate()  # a terminal has interrupted it, too
            raise
        return process.wait()


def pip(venv: Path, *arguments: str) -> Sequence[str]:
    """Return the command that installs in the environment what the *arguments* say."""
    return (str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", *arguments)


def install_topodns(venv: Path) -> None:
    """Make the environment anew, with the libraries that topodns needs, and topodns itself."""
    print(f"This installs topodns into {venv}, once. It takes a minute or two.", flush=True)
    for built in (ROOT / "dnsserver" / "net").glob("*.so"):  # it would still be used if it could not be built again
        built.unlink()
    step = Step(f"an environment for Python {platform.python_version()}")
    said = io.StringIO()
    if follow((sys.executable, "-m", "venv", "--clear", str(venv)), step, lambda _: "", said):
        raise InstallError(f"Python cannot make a virtual environment:\n{said.getvalue()}")
    step.end()
    with (venv / "install.log").open("w") as log:
        libraries(venv, "requirements.txt", log)
        cargo = shutil.which("cargo")
        step = Step("topodns and its native code, compiled by cargo" if cargo else "topodns")
        native = Native(len(CRATE.findall((ROOT / "native" / "crates.lock").read_text())))
        if follow(pip(venv, "-v", "--no-deps", "--no-build-isolation", "-e", "."), step, native.read, log):
            raise InstallError(f"pip could not install topodns. {log.name} has all that it says.")
        step.end()
    if not [*(ROOT / "dnsserver" / "net").glob("*.so")]:
        print(textwrap.indent(native.loss(), "  "), flush=True)


def install_tests(venv: Path) -> None:
    """Add the libraries that tests, the site of the documentation, benchmarks and releases need."""
    print("This adds what tests, documentation and releases need, once: pytest, mypy, mkdocs, playwright and others.")
    with (venv / "install-tests.log").open("w") as log:
        libraries(venv, "constraints.txt", log)


def libraries(venv: Path, pins: str, log: TextIO) -> None:
    """Install what a file pins by version and hash."""
    step = Step("libraries, downloaded by pip")
    said = Libraries(len(PINNED.findall((ROOT / pins).read_text())))
    if follow(pip(venv, "--progress-bar", "off", "--require-hashes", "-r", pins), step, said.read, log):
        raise InstallError(f"{said.failure()}\nAll that pip says is in {log.name}.")
    step.end()


def main(arguments: Iterable[str]) -> int:
    """Install what make wants to have, and note that it is there: ``VENV/.installed`` or ``VENV/.installed-tests``."""
    (wanted,) = map(Path, arguments)
    try:
        (install_tests if wanted.name == ".installed-tests" else install_topodns)(wanted.parent)
    except InstallError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped before all was installed. The same command begins again.", file=sys.stderr)
        return 0  # Ctrl-C ends make, too, and with another status make would report an error
    print("Installed.\n", flush=True)
    wanted.touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
