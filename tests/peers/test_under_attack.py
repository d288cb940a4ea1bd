# SPDX-License-Identifier: Apache-2.0

"""topodns with the memory that docs/sizing.md recommends, under each attack: it lives, and all others are served."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.attacks import targets
from bench.attacks.attacking import attacked
from bench.attacks.table import ATTACKS
from bench.attacks.targets import PODS, Target
from bench.attacks.watching import LIVE, watch
from bench.memory import peak
from tests.kit.memory_cgroup import memory_cgroup
from tests.kit.this_machine import ROOT, needs_tool
from tests.kit.topodns_process import COMMAND, Server

SECONDS = 4.0  # of each attack
FAILURE_THRESHOLD = 3  # of the liveness probe in the manifests: then the kubelet restarts the container
SHORT_SOAK = ("--seconds", "10", "--only", "tcp-hang-up", "http-idle")


def recommended() -> int:
    """Return the limit that the page recommends for a cluster of this size, in octets."""
    row = rf"^\| {PODS:,} +\|.*\| (\d+)Mi \|$"
    found = re.search(row, (ROOT / "docs" / "sizing.md").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 20


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What has topodns serve the cluster, which is written once."""
    return [*targets.flags(tmp_path_factory.mktemp("attacked"))]


@contextmanager
def serving_in_cgroup(flags: list[str]) -> Iterator[Server]:
    """Run a server that has no more memory than recommended, and was not stopped for that."""
    with memory_cgroup(recommended()) as group:
        arguments = ["serve", *flags, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        server = Server(arguments, command=group.command(*COMMAND))
        try:
            yield server.started()
            assert (group.killed(), server.process.poll()) == (0, None), "\n".join(server.lines)
            assert peak(server.process.pid) * 1e6 + group.buffers() < recommended()
        finally:
            server.end(signal.SIGKILL)


def target_of(server: Server) -> Target:
    return targets.target(server.port, int(server.http.rpartition(":")[2]))


@pytest.mark.parametrize("attack", ATTACKS)
def test_others_are_served(flags: list[str], attack: str) -> None:
    """Within the memory that the page recommends, whatever one pod sends."""
    with serving_in_cgroup(flags) as server:
        target = target_of(server)
        with attacked(target, attack):
            watched = watch(target, SECONDS)
    assert watched[LIVE].unanswered < FAILURE_THRESHOLD
    assert not {kind: waits.unanswered for kind, waits in watched.items() if kind != LIVE and waits.unanswered}


def test_a_short_soak() -> None:
    """``make soak`` attacks a server in a cluster that changes, again and again, and says what became of it."""
    needs_tool("go")
    command = [sys.executable, "-m", "bench.attacks.soaking", *SHORT_SOAK]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "| after round |" in ran.stdout
