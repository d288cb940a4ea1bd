# SPDX-License-Identifier: Apache-2.0

"""``make run`` in a new clone: it tells what it does while it installs, and what is missing, and it ends quietly."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from install import crates_so_far, libraries_so_far, why_no_libraries, without_native_code
from tests.kit.programs import environment
from tests.kit.terminal import Terminal
from tests.kit.this_machine import ROOT, needs_tool

UNREACHABLE = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_RETRIES": "1",
}
RETRYING = "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by 'NewConnectionError'"
NO_MATCH = "ERROR: No matching distribution found for trio==0.34"
SOURCE = "  Downloading cffi-2.1.1.tar.gz (523 kB)"
WHEEL = "  Downloading cffi-2.1.1-cp311-cp311-manylinux_2_17_x86_64.whl (523 kB)"


@pytest.mark.parametrize(
    ("lines", "progress"),
    [
        (["Collecting trio==0.34 (from -r requirements.txt (line 3))"], "1 of 3"),
        (["Requirement already satisfied: trio==0.34 in ./.venv"], "1 of 3"),
        (["Ignoring colorama: markers 'sys_platform == \"win32\"' don't match", "Collecting trio==0.34"], "1 of 2"),
        (["Collecting trio==0.34", RETRYING], "1 of 3: no answer from the index yet"),
        (["Collecting a==1", "Collecting b==1", "Collecting c==1", WHEEL], "all are here, unpacking"),
    ],
    ids=["collected", "there-before", "not-for-this-machine", "no-answer", "all"],
)
def test_how_far_pip_is(lines: Sequence[str], progress: str) -> None:
    """Of three libraries that are pinned."""
    assert libraries_so_far("\n".join(lines), 3) == progress


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([RETRYING, NO_MATCH], "Is this machine connected to the Internet?"),
        ([SOURCE, "ERROR: Failed to build cffi"], "There is no wheel of cffi for Python 3."),
        ([WHEEL, NO_MATCH], "No matching distribution found for trio==0.34"),
        ([], "pip has failed."),
    ],
    ids=["unreachable", "no-wheel", "another-error", "nothing-said"],
)
def test_why_pip_fails(lines: Sequence[str], reason: str) -> None:
    """What a person can do about it."""
    assert reason in why_no_libraries("\n".join(lines))


@pytest.mark.parametrize(
    ("lines", "progress", "reason"),
    [
        (["   Compiling libc v0.2.191", "   Compiling pyo3 v0.26.0"], "2 of 20", "There is no cargo here."),
        (["   Compiling libc v0.2.191", "  error: linker `cc` not found"], "1 of 20", "linker `cc` not found."),
        (["  running build_ext"], "", "There is no cargo here."),
    ],
    ids=["compiled", "no-linker", "no-cargo"],
)
def test_what_is_lost_without_native_code(lines: Sequence[str], progress: str, reason: str) -> None:
    """How far cargo came, why there is no native code, and how to get it."""
    said = "\n".join(lines)
    assert crates_so_far(said, 20) == progress
    loss = without_native_code(said)
    assert reason in loss and "several times as much CPU" in loss and "rustup.rs" in loss


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what make and pip read first."""
    needs_tool("make")
    for name in (
        "Makefile",
        "install.py",
        "pyproject.toml",
        "requirements.txt",
        "native/Cargo.toml",
        "native/crates.lock",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(*arguments: str) -> tuple[str, ...]:
    return ("make", f"PYTHON={sys.executable}", *arguments)


def env(extra: Mapping[str, str]) -> dict[str, str]:
    outer = {"MAKELEVEL": "", "MAKEFLAGS": "", "MFLAGS": ""}  # of the make that runs the tests
    return environment({"PATH": os.environ["PATH"], **outer, **extra})


def test_an_index_that_cannot_be_reached(clone: Path) -> None:
    """Each step stands on a line of its own, then what to do, and where pip's own words are."""
    ran = subprocess.run(make("run"), cwd=clone, env=env(UNREACHABLE), capture_output=True, text=True, check=False)
    first, *steps = ran.stdout.splitlines()
    assert first == "This installs topodns into .venv, once. It takes a minute or two."
    assert [step.strip() for step in steps if step.endswith("...")] == [
        f"an environment for Python {sys.version.split()[0]} ...",
        "libraries, downloaded by pip ...",
    ]
    assert "Is this machine connected to the Internet?" in ran.stderr and "Traceback" not in ran.stderr
    assert "Retrying" in (clone / ".venv" / "install.log").read_text()
    assert ran.returncode == 2 and not (clone / ".venv" / ".installed").exists()


@pytest.mark.parametrize("step", ["an environment", "libraries"])
def test_ctrl_c_while_it_installs(clone: Path, step: str) -> None:
    """It says that not all is there; neither pip nor make has more to say. make ends by the signal."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        with Terminal(make("run"), env=env({**UNREACHABLE, "PIP_INDEX_URL": index}), folder=clone) as terminal:
            while terminal.until(rf"({step}.*?: )|\d s")[1] is None:  # a busy machine takes long for the environment
                pass
            os.killpg(terminal.process.pid, signal.SIGINT)  # as a terminal does
            last = terminal.rest().decode().splitlines()[1:]
            assert last == ["Stopped before all was installed. The same command begins again."]
            assert terminal.process.returncode == -signal.SIGINT
    assert not (clone / ".venv" / ".installed").exists()


@pytest.mark.parametrize("target", ["run", "demo"])
def test_ctrl_c_while_it_serves(target: str) -> None:
    """make reports no error."""
    needs_tool("make")
    ports = {"TOPODNS_LISTEN": "127.0.0.1:0", "TOPODNS_HTTP": "127.0.0.1:0"}
    with Terminal(make("-o", ".venv/.installed", target), env=env(ports), folder=ROOT) as terminal:
        terminal.until({"run": "The console shows", "demo": "02:00"}[target])
        os.killpg(terminal.process.pid, signal.SIGINT)
        last = terminal.rest().decode()
        assert "***" not in last and "Traceback" not in last
        assert terminal.process.returncode == -signal.SIGINT


def test_without_dig(tmp_path: Path) -> None:
    """``make run`` says how to get it, and what to do without."""
    for tool in ("sh", "mktemp", "mkfifo", "rm", "cat", "tr", "env"):
        (tmp_path / tool).symlink_to(needs_tool(tool))
    ports = {"PATH": str(tmp_path), "TOPODNS_LISTEN": "127.0.0.1:0", "TOPODNS_HTTP": "127.0.0.1:0"}
    with Terminal(("sh", "examples/run.sh"), env=ports, folder=ROOT) as terminal:
        terminal.until("There is no dig here .*bind9-dnsutils")
        terminal.until("The console shows")
        os.killpg(terminal.process.pid, signal.SIGINT)
        terminal.rest()
