# SPDX-License-Identifier: Apache-2.0

"""``docs/federation.md``: its commands are run as they stand there, in what ``make federation`` starts."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from locator.topology import annotations
from tests.kit.page_commands import Entry, commands, section, table
from tests.kit.programs import Daemon
from tests.kit.shells import Shell
from tests.kit.this_machine import ROOT
from tests.kit.waiting import PATIENCE, until

PAGE = ROOT / "docs" / "federation.md"
TRIED = [*commands(section(PAGE, "Try it"))]
STARTING = 3 * PATIENCE
AGE = re.compile(r"\b\d+m?\d*s\b|\b\d+m\b")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """What ``make federation`` runs, on free ports."""
    folder = tmp_path_factory.mktemp("example")
    command = [sys.executable, "-m", "examples.federation", "--listen=127.0.0.1:0", f"--folder={folder / 'files'}"]
    daemon = Daemon.start(command, folder, name="federation", env={"PYTHONPATH": str(ROOT)})
    try:
        daemon.until(lambda: "Ctrl-C ends it all" in daemon.printed.read_text(), within=STARTING)
        yield daemon
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.process.wait(STARTING) == 0
    finally:
        daemon.end()


@pytest.fixture(scope="module")
def shell(example: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """The other terminal, as the program says."""
    (kubeconfig,) = re.findall(r"export KUBECONFIG=(\S+) ", example.printed.read_text())
    return Shell.with_kubeconfig(tmp_path_factory.mktemp("terminal"), Path(kubeconfig))


def without_ages(lines: list[str]) -> list[list[str]]:
    return sorted(AGE.sub("AGE", line).split() for line in lines)


def test_the_page(example: Daemon, shell: Shell) -> None:
    """Each command prints what the page shows, soon."""
    (port,) = re.findall(r"dig @127.0.0.1 -p (\d+)", example.printed.read_text())
    here = {"build/federation": str(Path(shell.env["KUBECONFIG"]).parent), "-p 1053": f"-p {port}"}
    for entry in TRIED:
        command = entry.command
        for word, replacement in here.items():
            command = command.replace(word, replacement)
        until(lambda: prints(shell, command, entry), lambda: f"{entry}: {shell.run(command)}", within=STARTING)  # noqa: B023
    assert len(TRIED) == 12


def prints(shell: Shell, command: str, entry: Entry) -> bool:
    """Whether a command prints what stands there; what changes something is run once."""
    printed = without_ages(shell.run(f"{command} 2>&1"))
    shown = without_ages(entry.output.splitlines())
    changes = not re.search(r"^dig|\bget\b", command)
    assert printed == shown or not changes, f"{entry}: {printed}"
    return printed == shown


def test_what_the_program_says(example: Daemon, shell: Shell) -> None:
    """Its commands are those of the page."""
    said = example.printed.read_text()
    for command in re.findall(r"^  (kubectl .*?)(?:  +#.*)?$", said, re.MULTILINE):
        shell.run(command)
    assert "-p 1053" not in said and said.count("kill -") == 2


def test_rights(example: Daemon, shell: Shell) -> None:
    """The page's manifests can be applied where it says, and the kubeconfigs that it makes have these rights."""
    setting_up = section(PAGE, "Set it up")
    applied = [entry.command for entry in commands(setting_up) if "apply" in entry.command]
    assert len(applied) == 2
    for command in applied:
        shell.run(command)
        for other in ("south", "west"):
            shell.run(command.replace("east", other))
    (script,) = re.findall(r"```sh\n(.*?)```", setting_up, re.DOTALL)
    shell.run(script)
    for name, verb in (("federation", "patch"), ("east", "create"), ("south", "create"), ("west", "create")):
        assert shell.run(f"kubectl --kubeconfig {name}.kubeconfig auth can-i {verb} deployments -n shop") == ["yes"]
    assert shell.run("kubectl --kubeconfig federation.kubeconfig auth can-i update leases/topodns-federation") == [
        "yes"
    ]


def test_annotations() -> None:
    """The page tells of every annotation."""
    told = {re.sub(r":.*", "", cell.strip("`")) for cell in table(PAGE, "Annotations") if "topodns.io/" in cell}
    known = {name for name in annotations.OF_FEDERATIONS if name != annotations.FEDERATION_STATUS}
    assert told == known
