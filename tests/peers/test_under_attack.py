# SPDX-License-Identifier: Apache-2.0

"""topodns with the memory that docs/sizing.md recommends, under each attack: it lives, and all others are served."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bench.attacks import targets
from bench.attacks.attacking import attacked
from bench.attacks.table import ATTACKS
from bench.attacks.targets import PODS, AttackedServer
from bench.attacks.watching import LIVE, watch
from bench.servers import peak
from tests.kit.this_machine import ROOT, lacking, needs_tool
from tests.kit.topodns_process import COMMAND, Server
from tests.kit.waiting import until

SECONDS = 4.0  # of each attack
TRIES, STARVED = 4, 0.3  # of the time without a core
FAILURE_THRESHOLD = 3  # of the liveness probe in the manifests: then the kubelet restarts the container
SHORT_SOAK = ("--seconds", "10", "--only", "tcp-hang-up", "http-idle")
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class MemoryCgroup:
    """A cgroup whose processes have so many octets of memory together, at most."""

    def __init__(self, octets: int) -> None:
        """Make it. Skips the test where nobody may, or fails it in CI."""
        root = V1 if V1.is_dir() else V2
        # Version 1 counts the kernel's buffers of connections only if they have a limit of their own.
        limits = ("memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes") if root == V1 else ("memory.max",)
        self._folder = root / f"topodns-{os.getpid()}"
        self._kills = self._folder / ("memory.oom_control" if root == V1 else "memory.events")
        self._buffers = self._folder / "memory.kmem.tcp.max_usage_in_bytes"
        if root == V2:
            with suppress(OSError):
                (root / "cgroup.subtree_control").write_text("+memory")
        try:
            self._folder.mkdir()
            for limit in limits:
                (self._folder / limit).write_text(str(octets))
        except OSError as error:
            with suppress(OSError):
                self._folder.rmdir()
            lacking(f"a memory cgroup cannot be made here ({error})")

    def command(self, *command: str) -> Sequence[str]:
        """Return what starts a program inside."""
        return ("sh", "-c", f'echo $$ > {self._folder}/cgroup.procs && exec "$@"', "sh", *command)

    def killed(self) -> int:
        """Return how many processes had to end because there was no memory left."""
        found = re.search(r"^oom_kill (\d+)$", self._kills.read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])

    def buffers(self) -> int:
        """Return the most octets that the kernel held for connections beside the limit: none in version 2."""
        return int(self._buffers.read_text()) if self._buffers.exists() else 0

    def remove(self) -> None:
        """Remove it once its processes have ended."""
        until(lambda: not (self._folder / "cgroup.procs").read_text(), "the processes in the cgroup end")
        self._folder.rmdir()


@contextmanager
def memory_cgroup(octets: int) -> Iterator[MemoryCgroup]:
    """Make a cgroup; remove it when the block ends, after the processes in it."""
    group = MemoryCgroup(octets)
    try:
        yield group
    finally:
        group.remove()


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


def target_of(server: Server) -> AttackedServer:
    return targets.target(server.port, int(server.http.rpartition(":")[2]))


def waited_for_a_core(server: Server) -> float:
    """Return for how many seconds the server's threads were ready to run, but had no core."""
    waited = 0
    for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it ended
            waited += int((thread / "schedstat").read_text().split()[1])
    return waited / 1e9


def unserved(flags: list[str], attack: str) -> tuple[dict[str, int], float]:
    """Return how many queries of victims were not answered, by kind, and the share of time without a core."""
    with serving_in_cgroup(flags) as server:
        target, before = target_of(server), waited_for_a_core(server)
        with attacked(target, attack):
            watched = watch(target, SECONDS)
        starved = (waited_for_a_core(server) - before) / SECONDS
    unanswered = {kind: waits.unanswered for kind, waits in watched.items() if waits.unanswered}
    return {kind: n for kind, n in unanswered.items() if kind != LIVE or n >= FAILURE_THRESHOLD}, starved


@pytest.mark.parametrize("attack", ATTACKS)
def test_others_are_served(flags: list[str], attack: str) -> None:
    """Within the memory that the page recommends, whatever one pod sends.

    Where other programs had the cores meanwhile, it says nothing of topodns, and is tried again.
    """
    for _ in range(TRIES):
        found, starved = unserved(flags, attack)
        if not found or starved < STARVED:
            break
    assert not found


def test_a_short_soak() -> None:
    """``make soak`` attacks a server in a cluster that changes, again and again, and says what became of it."""
    needs_tool("go")
    command = [sys.executable, "-m", "bench.attacks.soaking", *SHORT_SOAK]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "| after round |" in ran.stdout
