# SPDX-License-Identifier: Apache-2.0

"""How long commands take to read a dump as kubectl prints it, and to work on it: each time a process of its own.

``python -m bench.dumps ARGUMENTS`` is that process: it runs ``topodns``, and prints its memory to stderr in the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import yaml

from bench.servers import needed, peak
from bench.standin import wire
from bench.standin.numbering import ENDPOINTS, NODES
from bench.standin.objects import StandinObjects
from bench.standin.recording import PATHS, recording
from bench.tables import table
from dnsserver.cli.main import main

SERVICES = {"json": 2_000, "yaml": 200}  # each has 15 pods; PyYAML takes a minute to print those of 1,000
COMMANDS = (("check",), ("simulate",), ("simulate", "--service", "ns-001/service-00001", "-o", "json"))


class Ran(NamedTuple):
    """What a command took on a dump: seconds, and MB of memory at most. ``size`` is the dump's, in MB."""

    command: str
    dump: str
    size: float
    seconds: float
    peak: float


def measure(folder: Path) -> Iterator[Ran]:
    """Write each dump, and run the commands on it. Raises CannotStart."""
    with needed():
        recorded = recording()
    for form, services in SERVICES.items():
        path = folder / f"cluster.{form}"
        with path.open("wb") as file:
            _write(file, StandinObjects(recorded, wire.JSON, services), form)
        for command in COMMANDS:
            print(f"dumps: {command[0]}, {path.name}", file=sys.stderr)
            began = time.perf_counter()
            ran = subprocess.run(
                [sys.executable, "-m", "bench.dumps", *command, "--snapshot", str(path)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=True,
            )
            seconds, dump = time.perf_counter() - began, f"{services * ENDPOINTS:,} pods, {form}"
            yield Ran(" ".join(command), dump, path.stat().st_size / 1e6, seconds, float(ran.stderr.split()[-1]))


def report(runs: Iterator[Ran]) -> str:
    """Return the table."""
    rows = [
        (f"`topodns {run.command}`", run.dump, f"{run.size:,.0f} MB", f"{run.seconds:.1f} s", f"{run.peak:,.0f} MB")
        for run in runs
    ]
    return f"{table(('command', 'dump', 'size', 'took', 'peak memory'), rows)}\nThe cluster has {NODES:,} nodes.\n"


def _write(file: BinaryIO, objects: StandinObjects, form: str) -> None:
    """Write all objects object by object: all of them in memory would take gigabytes."""
    chunks = (chunk for kind in PATHS for chunk in objects.chunks[kind])
    items = (wire.object_of(wire.JSON, chunk.partition(b"\r\n")[2]) for chunk in chunks)
    if form == "json":
        file.write(b'{"apiVersion": "v1", "kind": "List", "items": [\n')
        file.writelines(b",\n" * (number > 0) + item for number, item in enumerate(items))
        file.write(b"\n]}\n")
        return
    for item in items:
        file.write(b"---\n" + yaml.dump(json.loads(item), Dumper=yaml.CSafeDumper, encoding="utf-8"))


if __name__ == "__main__":
    code = main()
    print(peak("self"), file=sys.stderr)
    raise SystemExit(code)
