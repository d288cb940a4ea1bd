# SPDX-License-Identifier: Apache-2.0

"""What pages show of the example cluster on this machine: ``topodns``, ``dig`` and ``curl`` print just that."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dns.edns
import dns.message
import pytest

from docs.pages.site_pages import pages
from tests.kit.commands_in_process import Run
from tests.kit.live_server import TRUSTED
from tests.kit.page_commands import commands
from tests.kit.programs import environment
from tests.kit.shells import Shell
from tests.kit.this_machine import ROOT, needs_tool
from tests.kit.topodns_process import COMMAND, Server, serving

RUN = ("topodns ", ".venv/bin/topodns ", "dig ", "ask ", "curl ")  # those of them that show what is printed
CHANGING = ("cp ", "sed ")  # files in the shell's folder
# On other clusters, by other tests.
ELSEWHERE = {"clusters.md", "constraints.md", "federation.md", "rollback.md", "tutorial-cluster.md"}
PAGES = [page for page in pages() if page.name not in ELSEWHERE]
FOLLOWED = {
    page: [
        entry
        for entry in commands(page.read_text())
        if (entry.output and entry.command.startswith(RUN)) or entry.command.startswith(CHANGING)
    ]
    for page in PAGES
}
TUTORIAL = ROOT / "docs" / "tutorial-laptop.md"
TIME = re.compile(r"^\d\d:\d\d:\d\d\.\d\d\d")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The example cluster, as ``make run`` serves it."""
    flags = {"http": "127.0.0.1:0", "trusted-forwarder": TRUSTED}
    with serving(tmp_path_factory.mktemp("page"), ROOT / "examples" / "cluster.yaml", flags=flags) as running:
        yield running


@pytest.mark.parametrize(
    "page", [page for page in PAGES if FOLLOWED[page]], ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_print_what_a_page_shows(
    server: Server, topodns: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, page: Path
) -> None:
    """Of each page, in the order of the page; the laptop's tutorial has a file that it tells to write."""
    (written,) = re.findall(r"```yaml\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    (tmp_path / "try.yaml").write_text(written)
    here = {
        ".venv/bin/": "",
        "ask ": "dig @127.0.0.1 -p 1053 +short ",  # as examples/README.md defines it
        "-p 1053 ": f"-p {server.port} ",
        "http://127.0.0.1:9153": f"http://{server.http}",
    }
    for tool in ("dig", "curl"):
        needs_tool(tool)
    monkeypatch.chdir(tmp_path)
    shell = Shell.with_topodns(tmp_path, topodns)
    for entry in FOLLOWED[page]:
        shell.follow(entry, here)


def test_tail_prints_what_the_page_shows(server: Server) -> None:
    """Word for word, but for the time."""
    (block,) = re.findall(r"```text\n(.*?)```", (ROOT / "docs/tail.md").read_text(), re.DOTALL)
    command = [*COMMAND, "tail", "--server", f"http://{server.http}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment({})) as tail:
        try:
            server.wait_for("a reader of decisions has come")
            for line in block.splitlines():
                client, (name, rtype) = line.split("  ")[1].partition(" ")[0], line.split("  ")[2].split()
                options = [dns.edns.ECSOption(client, 32)] if client != "unnamed" else []
                server.ask(dns.message.make_query(name, rtype, use_edns=0, options=options))
            assert tail.stdout is not None
            printed = [tail.stdout.readline().rstrip("\n") for _ in block.splitlines()]
        finally:
            tail.terminate()
    assert [TIME.sub("", line) for line in printed] == [TIME.sub("", line) for line in block.splitlines()]
