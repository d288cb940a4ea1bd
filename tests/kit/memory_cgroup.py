# SPDX-License-Identifier: Apache-2.0

"""A memory cgroup, in which a program runs as in a container with a memory limit: version 1 or 2."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kit.this_machine import lacking
from tests.kit.waiting import until

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
