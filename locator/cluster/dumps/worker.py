# SPDX-License-Identifier: Apache-2.0

"""``python -m locator.cluster.dumps.worker``: the process in which ``dump_files.read_in_other_process`` reads dumps.

It takes the files from standard input, and writes the dump to standard output, both pickled. It keeps within the memory
that its container has left: the container's limit ends all processes in it, so also the server that waits for this one.
"""

from __future__ import annotations

import gc
import pickle
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from locator.api import packing
from locator.cluster.dumps.reading import NO_MEMORY, BadDump, Dump, Input, read_inputs

CGROUPS = Path("/sys/fs/cgroup")  # of the container
# The files with its limit and its use of memory, and what of that the kernel can take back: all that it keeps of files,
# however often they were read. Of version 2, and of 1.
_FILES = (
    ("memory.max", "memory.current", "memory.stat", ("inactive_file", "active_file")),
    (
        *("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
        ("total_inactive_file", "total_active_file"),
    ),
)
_SHARE = 0.9  # of what is left; the rest is for what the server itself needs meanwhile


def stay_within() -> None:
    """Let this process meet a MemoryError before the container reaches its limit. Without a limit, do nothing."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    for room in _rooms():
        allowed = int(room * _SHARE)
        if most == resource.RLIM_INFINITY or allowed < most:
            resource.setrlimit(resource.RLIMIT_DATA, (allowed, most))


def _rooms() -> Iterator[int]:
    """Yield how many octets each limit of the container leaves."""
    for limit, used, statistics, reclaimable in _FILES:
        with suppress(OSError, ValueError):  # there is no such file, or the limit is "max"
            room = int((CGROUPS / limit).read_text()) - int((CGROUPS / used).read_text())
            rows = dict(line.split() for line in (CGROUPS / statistics).read_text().splitlines())
            yield max(0, room + sum(int(rows.get(row, 0)) for row in reclaimable))


def read_packed(inputs: bytes) -> bytes:
    """Read pickled *inputs*; return the dump or the BadDump for ``unpacked``."""
    sources: list[Input] = pickle.loads(inputs)
    try:
        result = read_inputs(sources)
        objects = list(packing.batches(result.objects))
        return pickle.dumps((objects, result.findings, result.origins, result.lacks, result.counts, result.labels))
    except BadDump as error:
        return pickle.dumps(error)
    except MemoryError:
        return pickle.dumps(BadDump(f"{sources[0].name}: {NO_MEMORY}"))


def unpacked(packed: bytes) -> Dump:
    """Return the dump that ``read_packed`` read. Raises BadDump."""
    result = pickle.loads(packed)
    if isinstance(result, BadDump):
        raise result
    batches, *others = result
    return Dump(list(packing.unbatched(batches)), *others)


if __name__ == "__main__":
    stay_within()
    gc.disable()  # the process is short, and repeated collections would take longer than reading
    sys.stdout.buffer.write(read_packed(sys.stdin.buffer.read()))
