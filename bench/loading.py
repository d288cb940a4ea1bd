# SPDX-License-Identifier: Apache-2.0

"""How long topodns takes to read a dump and to publish its first snapshot, each time in a new process.

``python -m bench.loading FILE`` is that process; it prints its figures as JSON.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench import dumps
from bench.memory import peak
from locator.cluster import dump_files
from locator.cluster.publisher import Publisher
from locator.state.store import Store

FORMS = ("yaml", "json")
PODS = ("pod", "slim-pod")  # as kubectl prints them, and cut down to the fields that topodns reads


class Loaded(NamedTuple):
    """What loading one dump took.

    ``size`` is in octets; ``read`` and ``publish`` in seconds, ``cpu`` in seconds for both; ``peak`` in MB of memory.
    """

    name: str
    size: int
    read: float
    publish: float
    cpu: float
    objects: int
    findings: int
    peak: float


def measure(folder: Path) -> Iterator[Loaded]:
    """Write each dump, load it in a process of its own, and delete it."""
    for pod in PODS:
        for form in FORMS:
            print(f"loading {pod}s.{form}", file=sys.stderr)
            path = dumps.write(folder, form=form, pod=pod)
            command = [sys.executable, "-m", "bench.loading", str(path)]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            path.unlink()
            yield msgspec.json.decode(printed, type=Loaded)


def load(path: Path) -> Loaded:
    """Read a dump and publish it, as ``topodns serve`` does; measure both."""
    began, cpu = time.perf_counter(), time.process_time()
    dump = dump_files.read_here(dump_files.DumpFiles([str(path)]).inputs())
    read = time.perf_counter()
    gc.disable()  # as the server does
    publisher = Publisher(Store())
    publisher.apply(dump.batch())
    publication = publisher.publication(int(time.time()))
    published, cpu = time.perf_counter(), time.process_time() - cpu
    return Loaded(
        path.name,
        path.stat().st_size,
        read - began,
        published - read,
        cpu,
        sum(publication.snapshot.object_counts.values()),
        len(publication.findings),
        peak("self"),
    )


if __name__ == "__main__":
    print(json.dumps(load(Path(sys.argv[1]))))
