# SPDX-License-Identifier: Apache-2.0

"""How long ``topodns simulate`` takes for a large cluster, and how much memory: each time a process of its own.

Services ask by zone and by node in turn. Each pod is the endpoint of a Service, and asks for the names of all others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.memory import peak
from bench.tables import table, verdict
from dnsserver.cli.main import main
from tests.kit import api_objects
from tests.kit.api_objects import HOSTNAME, ZONE, Item

NODES, SERVICES, ENDPOINTS = 5_000, 10_000, 15
KEYS = (f"{ZONE},*", f"{HOSTNAME},{ZONE},*", ZONE, f"{HOSTNAME},*")
NAMESPACE = "bench"
SECONDS, MEGABYTES = 60.0, 1000.0
# What is simulated, as people would ask.
RUNS = {
    "all Services, as text": (),
    "one Service, as JSON": ("--service", f"{NAMESPACE}/s-1", "-o", "json"),
    "without a zone, as Markdown": ("--fail", f"{ZONE}=zone-1", "-o", "markdown"),
}


class Simulated(NamedTuple):
    """What one run took: seconds, and MB of memory at most; and how many octets it printed."""

    name: str
    seconds: float
    peak: float
    printed: int


def measure(folder: Path) -> Iterator[Simulated]:
    """Write the dump, and simulate it."""
    path = folder / "cluster.json"
    with path.open("w") as file:  # object by object: all of them in memory would take a gigabyte
        separator = '{"apiVersion": "v1", "kind": "List", "items": [\n'
        for item in _objects():
            file.write(separator + json.dumps(item))
            separator = ",\n"
        file.write("\n]}\n")
    for name, flags in RUNS.items():
        print(f"simulating {name}", file=sys.stderr)
        yield _run(name, ["simulate", "--snapshot", str(path), *flags], folder)


def _run(name: str, arguments: list[str], folder: Path) -> Simulated:
    command = [sys.executable, "-m", "bench.simulating", *arguments]
    printed, began = folder / "printed", time.perf_counter()
    with printed.open("wb") as file:
        ended = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - began
    if ended.returncode:
        print(ended.stderr, file=sys.stderr)
    ended.check_returncode()
    return Simulated(name, seconds, float(ended.stderr.split()[-1]), printed.stat().st_size)


def _objects() -> Iterator[Item]:
    yield api_objects.namespace(NAMESPACE)
    for number in range(NODES):
        yield api_objects.node(_node(number), {HOSTNAME: _node(number), ZONE: f"zone-{number % 3}"})
    for service in range(SERVICES):
        rows = []
        for number in range(service * ENDPOINTS, (service + 1) * ENDPOINTS):
            address, node = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", _node(number * 7919 % NODES)
            yield api_objects.pod(f"pod-{number}", [address], node, where=NAMESPACE)
            reference = {"kind": "Pod", "name": f"pod-{number}"}
            rows.append(api_objects.endpoint(address, nodeName=node, targetRef=reference))
        yield api_objects.service(f"s-{service}", where=NAMESPACE, keys=KEYS[service % len(KEYS)])
        yield api_objects.endpoint_slice(f"s-{service}", 1, rows, where=NAMESPACE)


def _node(number: int) -> str:
    return f"node-{number:04}"


def report(runs: Iterator[Simulated]) -> str:
    """Return the table."""
    rows = [
        (
            run.name,
            f"{run.seconds:.1f} s",
            verdict(run.seconds, SECONDS, "≤ {:.0f} s"),
            f"{run.peak:,.0f} MB",
            verdict(run.peak, MEGABYTES, "≤ {:,.0f} MB"),
            f"{run.printed / 1e6:.1f} MB",
        )
        for run in runs
    ]
    head = ("`topodns simulate`", "took", "target", "peak memory", "target", "printed")
    cluster = f"{NODES:,} nodes, {SERVICES * ENDPOINTS:,} pods, {SERVICES:,} Services"
    return f"{table(head, rows)}\nThe cluster: {cluster}, as JSON.\n"


if __name__ == "__main__":
    code = main()
    print(peak("self"), file=sys.stderr)
    raise SystemExit(code)
