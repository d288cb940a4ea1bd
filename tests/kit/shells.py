# SPDX-License-Identifier: Apache-2.0

"""A shell that follows pages: it runs their commands, which must print what the pages show."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.kit import go_programs
from tests.kit.commands_in_process import Run
from tests.kit.installed_scripts import installed_scripts
from tests.kit.page_commands import Entry
from tests.kit.programs import environment
from tests.kit.this_machine import ROOT
from tests.kit.waiting import PATIENCE

IN_ANY_ORDER = ("ask ", "dig ", "kubectl ")
FOR_A_SHELL = re.compile(r"[|&;<>$`*()]")


class Shell(NamedTuple):
    """Runs commands in a folder."""

    folder: Path
    env: Mapping[str, str]
    topodns: Run | None = None
    """Runs commands of topodns that need nothing of a shell, in a process whose folder this is."""

    @classmethod
    def with_topodns(cls, folder: Path, topodns: Run | None = None) -> Shell:
        """Return a shell with topodns, whose folder has what pages name: manifests, examples, scenarios."""
        for name in ("manifests", "examples", "tests"):
            (folder / name).symlink_to(ROOT / name)
        return cls(folder, environment({**installed_scripts(folder / "bin"), "HOME": str(folder)}), topodns)

    @classmethod
    def with_kubeconfig(cls, folder: Path, kubeconfig: Path) -> Shell:
        """Return a shell that has kubectl, too."""
        shell = cls.with_topodns(folder)
        path = f"{go_programs.control_plane()}:{shell.env['PATH']}"
        return cls(folder, {**shell.env, "KUBECONFIG": str(kubeconfig), "PATH": path})

    def follow(self, entry: Entry, here: Mapping[str, str], *, in_order: bool = False) -> None:
        """Run a command of a page, with what stands *here* for its words; it must print what the page shows.

        Word for word, but records come in any order, unless *in_order*, as do the lines of kubectl. ``...`` leaves out
        the rest.
        """
        command = entry.command
        for word, replacement in here.items():
            command = command.replace(word, replacement)
        printed, shown = self.run(command), entry.output.splitlines()
        if shown[-1:] == ["..."]:
            printed, shown = printed[: len(shown) - 1], shown[:-1]
        if entry.command.startswith(IN_ANY_ORDER) and not in_order:
            printed, shown = (sorted(re.sub(r"id: \d+", "id: 0", line) for line in lines) for lines in (printed, shown))
        assert printed == shown, entry

    def run(self, command: str) -> list[str]:
        """Return the lines that a command prints; it must succeed."""
        plain = command.startswith("topodns ") and not FOR_A_SHELL.search(re.sub("'[^']*'", "", command))
        if self.topodns is not None and plain:
            ran = self.topodns(*shlex.split(command)[1:])
            assert ran.status == 0, f"{command}: {ran.err}"
            return ran.out.splitlines()
        done = subprocess.run(
            ["bash", "-euc", command], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.splitlines()
