# SPDX-License-Identifier: Apache-2.0

"""``docs/api.md`` and ``docs/tail.md``: what they show is what a server of the example cluster says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import dns.edns
import dns.message
import pytest

from tests.kit.api_client import request
from tests.kit.consoles import commands
from tests.kit.live_server import TRUSTED
from tests.kit.programs import environment
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import COMMAND, Server, serving

ADDRESS = "http://127.0.0.1:9153"
TIME = re.compile(r"^\d\d:\d\d:\d\d\.\d\d\d")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = {"http": "127.0.0.1:0", "trusted-forwarder": TRUSTED}
    with serving(tmp_path_factory.mktemp("page"), ROOT / "examples" / "cluster.yaml", flags=flags) as running:
        yield running


def shown(page: str) -> Iterator[tuple[str, str]]:
    """Yield the path that each curl in a page asks for, as a shell understands it, and the output that follows."""
    for entry in commands((ROOT / "docs" / page).read_text()):
        if entry.command.startswith("curl "):
            ran = subprocess.run(
                ["sh", "-c", f"curl() {{ printf '%s\\n' \"$*\"; }}; {entry.command}"],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            yield ran.stdout.removeprefix(ADDRESS).removesuffix("\n"), entry.output


@pytest.mark.parametrize(("path", "output"), list(shown("api.md")), ids=lambda text: text[:40])
def test_the_api_says_what_the_page_shows(server: Server, path: str, output: str) -> None:
    """Word for word."""
    assert request(server, path).body.decode().rstrip("\n") == output.rstrip("\n")


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
