"""A memory cgroup, in which a program runs as in a container with a memory limit: version 1 or 2."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.this_machine import lacking
from tests.waiting import until

ROOTS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}
OOM_KILLS = {"memory.limit_in_bytes": "memory.oom_control", "memory.max": "memory.events"}


class MemoryCgroup:
    """A cgroup whose processes have so many octets of memory together, at most."""

    def __init__(self, octets: int) -> None:
        """Make it. Skips the test where nobody may, or fails it in CI."""
        root, limit = next((root, limit) for root, limit in ROOTS.items() if root.is_dir())
        self._folder, self._kills = root / f"topodns-{os.getpid()}", OOM_KILLS[limit]
        if limit == "memory.max":
            with suppress(OSError):
                (root / "cgroup.subtree_control").write_text("+memory")
        try:
            self._folder.mkdir()
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
        found = re.search(r"^oom_kill (\d+)$", (self._folder / self._kills).read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])

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
