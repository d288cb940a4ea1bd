# SPDX-License-Identifier: Apache-2.0

"""The pages that ask the example cluster on this machine: what ``dig`` and ``topodns`` print is what they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.consoles import commands
from tests.kit.shells import Shell
from tests.kit.this_machine import ROOT, needs_tool
from tests.kit.topodns_process import Server, serving

TUTORIAL = ROOT / "docs" / "tutorial-laptop.md"
ASKING = (ROOT / "README.md", ROOT / "examples" / "README.md", TUTORIAL, ROOT / "docs" / "troubleshooting.md")
ASK = "dig @127.0.0.1 -p 1053 +short "  # as examples/README.md defines it
ELSEWHERE = ("git ", "make ", "kubectl ", "topodns serve ")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The example cluster, as ``make run`` serves it."""
    with serving(
        tmp_path_factory.mktemp("served"), ROOT / "examples" / "cluster.yaml", "--trusted-forwarder=127.0.0.0/8"
    ) as running:
        yield running


def lines(text: str) -> list[str]:
    """Return the lines of an answer: their order changes, and so does the number of the query."""
    return sorted(re.sub(r"id: \d+", "id: 0", text).splitlines())


@pytest.mark.parametrize("page", ASKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_dig_prints_what_a_page_shows(server: Server, tmp_path: Path, page: Path) -> None:
    """Of each query to port 1053."""
    needs_tool("dig")
    shell = Shell(tmp_path, {"PATH": "/usr/bin:/bin"})
    asked = 0
    for entry in commands(page.read_text()):
        command = entry.command.replace("ask ", ASK, 1) if entry.command.startswith("ask ") else entry.command
        if command.startswith("dig @127.0.0.1 -p 1053 ") and entry.output:
            asked += 1
            printed = shell.run(command.replace(" 1053 ", f" {server.port} "))
            shown = re.sub(r"^#.*\n", "", entry.output, flags=re.MULTILINE)  # about the command below it
            assert lines("\n".join(printed)) == lines(shown), entry
    assert asked


def test_the_tutorial(tmp_path: Path) -> None:
    """Its other commands print what the page shows, with the file that it tells to write."""
    (written,) = re.findall(r"```yaml\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    (tmp_path / "try.yaml").write_text(written)
    shell = Shell.with_kubeconfig(tmp_path, tmp_path / "none")
    for entry in commands(TUTORIAL.read_text()):
        if not entry.command.startswith((*ELSEWHERE, "dig ")):
            assert shell.run(entry.command) == entry.output.splitlines()
