# SPDX-License-Identifier: Apache-2.0

"""Installs topodns from this folder into its virtual environment, and tells what it is doing: 'make run' calls it.

It needs the standard library alone. All that pip and cargo say is kept in the environment, in ``install.log``.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parent
PINNED = re.compile(r"^[\w.-]+==", re.MULTILINE)
CRATE = re.compile(r"^\[\[package\]\]", re.MULTILINE)
RUST = "install Rust (https://rustup.rs, or on Debian: apt install cargo) and a C compiler (apt install gcc)"
HEARTBEAT = 0.5  # seconds after which a terminal shows that the work goes on
REPORT = 10.0  # the same where lines stay, such as in a log of CI


class InstallError(Exception):
    """Something could not be installed; the text says what to do."""


def libraries_so_far(said: str, pinned: int) -> str:
    """Return how far pip is with so many *pinned* libraries, by what it has said."""
    wanted = pinned - len(re.findall(r"^Ignoring ", said, re.MULTILINE))
    found = len(re.findall(r"^(?:Collecting |Requirement already satisfied)", said, re.MULTILINE))
    if found >= wanted or re.search(r"^(?:Installing collected|Attempting)", said, re.MULTILINE):
        return "all are here, unpacking"
    return f"{found} of {wanted}" + (": no answer from the index yet" if "Retrying (" in said else "")


def why_no_libraries(said: str) -> str:
    """Return why pip has failed, and what to do, by what it has said."""
    if "Retrying (" in said:
        return (
            "pip cannot reach its index of packages. Is this machine connected to the Internet? Behind a proxy,\n"
            "set HTTPS_PROXY; to take the libraries from an index of your own, set PIP_INDEX_URL."
        )
    source = r"^\s*(?:Downloading|Using cached) (?:\S*/)?([\w.-]+?)-[\w.]+\.(?:tar\.gz|zip)\b"
    if sources := re.findall(source, said, re.MULTILINE):  # they have no wheel for this machine
        here = f"Python {platform.python_version()} on {platform.machine()}"
        return (
            f"There is no wheel of {sources[-1]} for {here}, and pip could not compile it.\n"
            "Install a C compiler and the headers of Python (on Debian: apt install gcc python3-dev), or take\n"
            "another Python: make PYTHON=python3.12 run"
        )
    return "\n".join(re.findall(r"^ERROR: (.*)", said, re.MULTILINE)[:3]) or "pip has failed."


def crates_so_far(said: str, crates: int) -> str:
    """Return how far cargo is with so many *crates*, by what it has said through pip; "" before the first."""
    compiled = set(re.findall(r"^\s*(?:Compiling|Fresh) (\S+) v\d", said, re.MULTILINE))
    return f"{len(compiled)} of {crates}" if compiled else ""


def without_native_code(said: str) -> str:
    """Return what is lost if there is no native code now, why, and how to get it, by what pip and cargo have said."""
    error = re.search(r"^\s*error(?:\[\w+\])?: (.*)", said, re.MULTILINE)
    why = f"cargo says: {error[1]}." if error else "There is no cargo here."
    return (
        f"Without native code. {why} Answers are the same, but each takes several times as much CPU. To\n"
        f"have it, {RUST}, then:\n"
        "rm .venv/.installed && make run"
    )


def run(title: str, command: Sequence[str], log: TextIO, so_far: Callable[[str], str]) -> tuple[int, str]:
    """Run *command*, and show on a line what it is, how far it is by what it has said, and how long it takes.

    Return its exit status and what it has said, which stands at the end of *log*, too (opened to append and read).
    """
    begun, before, terminal = time.monotonic(), log.seek(0, os.SEEK_END), sys.stdout.isatty()

    def said() -> str:
        log.seek(before)
        return log.read()

    def show(*details: str) -> None:
        text = f"  {title}" + (f": {', '.join(filter(None, details))}" if details else " ...")
        columns = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:columns]}" if terminal else text, end="" if terminal else "\n", flush=True)

    show()
    with subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT) as process:
        while process.returncode is None:
            try:
                process.wait(HEARTBEAT if terminal else REPORT)
            except subprocess.TimeoutExpired:
                show(so_far(said()), f"{time.monotonic() - begun:.0f} s")
            except KeyboardInterrupt:
                process.terminate()  # a terminal has interrupted it, too
                raise
    if terminal:
        show(f"{time.monotonic() - begun:.0f} s")
        print(flush=True)
    return process.returncode, said()


def pip(venv: Path, *arguments: str) -> Sequence[str]:
    """Return the command that installs in the environment what the *arguments* say."""
    return (str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", *arguments)


def install_topodns(venv: Path) -> None:
    """Make the environment anew, with the libraries that topodns needs, and topodns itself."""
    print(f"This installs topodns into {venv}, once. It takes a minute or two.", flush=True)
    for built in (ROOT / "dnsserver" / "net").glob("*.so"):  # it would still be used if it could not be built again
        built.unlink()
    with tempfile.TemporaryFile("a+", errors="replace") as log:
        command = (sys.executable, "-m", "venv", "--clear", str(venv))
        status, said = run(f"an environment for Python {platform.python_version()}", command, log, lambda _: "")
    if status:
        raise InstallError(f"Python cannot make a virtual environment:\n{said}")
    with (venv / "install.log").open("a+", errors="replace") as log:
        install_libraries(venv, "requirements.txt", log)
        title = "topodns and its native code, compiled by cargo" if shutil.which("cargo") else "topodns"
        so_far = partial(crates_so_far, crates=len(CRATE.findall((ROOT / "native" / "crates.lock").read_text())))
        status, said = run(title, pip(venv, "-v", "--no-deps", "--no-build-isolation", "-e", "."), log, so_far)
        if status:
            raise InstallError(f"pip could not install topodns. {log.name} has all that it says.")
    if not [*(ROOT / "dnsserver" / "net").glob("*.so")]:
        print(textwrap.indent(without_native_code(said), "  "), flush=True)


def install_tests(venv: Path) -> None:
    """Add the libraries that tests, the site of the documentation, benchmarks and releases need."""
    print("This adds what tests, documentation and releases need, once: pytest, mypy, mkdocs, playwright and others.")
    with (venv / "install-tests.log").open("a+", errors="replace") as log:
        install_libraries(venv, "constraints.txt", log)


def install_libraries(venv: Path, pins: str, log: TextIO) -> None:
    """Install what a file pins by version and hash."""
    so_far = partial(libraries_so_far, pinned=len(PINNED.findall((ROOT / pins).read_text())))
    command = pip(venv, "--progress-bar", "off", "--require-hashes", "-r", pins)
    status, said = run("libraries, downloaded by pip", command, log, so_far)
    if status:
        raise InstallError(f"{why_no_libraries(said)}\nAll that pip says is in {log.name}.")


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
