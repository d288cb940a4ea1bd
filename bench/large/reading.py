"""What it takes to read the largest cluster, and whether the memory grows while that cluster changes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.comparing import needed
from bench.servers import Server, on_load_core, start_coredns, start_topodns
from bench.standin.numbering import PODS, SERVICES, service_name
from bench.standin.process import StandinProcess, running_standin
from bench.tables import table, verdict
from tests import go_programs

SETTLE_SECONDS = 5.0  # from ready until the memory is read
GO_SETTLE_SECONDS = 130.0  # the same of a program in Go, which collects every two minutes if nothing happens
FIRST_STEPS = 40_000  # changes before the growth is measured: all sorts of objects have changed by then
STEPS = 360_000  # an hour of 100 pods and 100 slices a second
QUARTERS = 4
SIZES = (1_500, 15_000, 50_000, 150_000)  # pods, in the table of requests and limits

NODES_ONLY = "topodns --client-source nodes"
TENTH = f"topodns, {PODS // 10:,} pods"
RESTORED = "topodns from --state-dir"
# MB at most after SETTLE_SECONDS, seconds at most until it is ready, and of CPU for that.
MEMORY = {"topodns": 214.0, NODES_ONLY: 130.0}
WALL = {"topodns": 10.0, NODES_ONLY: 10.0, RESTORED: 1.0}
CPU = {"topodns": 5.0, NODES_ONLY: 5.0}
GROWTH = 1.02  # of the memory, at most, in the last quarter: every pod has been replaced once before


class Read(NamedTuple):
    """What one server took: seconds until it answered, seconds of CPU, MB of memory after that, and at most."""

    server: str
    wall: float
    cpu: float
    resident: float
    peak: float


class Grown(NamedTuple):
    """A server's memory in MB after each quarter of the changes, and the seconds that all changes took.

    ``peak`` is the most memory that it has had in the end, after it has listed all pods once more.
    """

    server: str
    resident: Sequence[float]
    seconds: float
    peak: float


def measure(folder: Path) -> tuple[list[Read], Grown]:
    """Have each server read the cluster, alone on its core; then change it under topodns. Raises CannotStart."""
    with needed():
        coredns = go_programs.coredns()
    rows: list[Read] = []
    with on_load_core():
        with running_standin(folder, "protobuf") as standin:
            for title, options in (("CoreDNS", []), ("CoreDNS, pods verified", ["pods verified"])):
                rows.append(
                    _read(title, lambda t, o=options: _coredns(coredns, folder, standin, t, o), GO_SETTLE_SECONDS)
                )
        with running_standin(folder, "json", services=SERVICES // 10) as standin:
            cluster = ["--kubeconfig", str(standin.kubeconfig), "--forwarder-service", "off"]
            rows.append(_read(TENTH, lambda title: start_topodns(cluster, folder, name=title)))
        with running_standin(folder, "json") as standin:
            cluster = ["--kubeconfig", str(standin.kubeconfig), "--forwarder-service", "off"]
            kept = [*cluster, "--state-dir", str(folder)]
            rows += [
                _read("topodns", lambda title: start_topodns(cluster, folder, name=title)),
                _read(
                    NODES_ONLY, lambda title: start_topodns([*cluster, "--client-source", "nodes"], folder, name=title)
                ),
            ]
            start_topodns(kept, folder).stop()  # saves its state
            rows.append(_read(RESTORED, lambda title: start_topodns(kept, folder, name=title)))
            return rows, _grown(start_topodns(cluster, folder), standin)


def report(rows: Sequence[Read], grown: Grown) -> str:
    """Return the table of servers, and a sentence on the growth."""
    head = ("server", "ready after", "target", "CPU", "target", "memory", "target", "at most")
    lines = table(head, map(_line, rows))
    quarters = ", ".join(f"{megabytes:,.1f}" for megabytes in grown.resident)
    growth = verdict(grown.resident[-1] / grown.resident[-2], GROWTH, "≤ {:.2f} times the quarter before")
    return (
        f"{lines}\nAfter {FIRST_STEPS:,} changes, and each further quarter of {STEPS:,} (an hour of 100 pods and 100 "
        f"slices a second, in {grown.seconds:.0f} s), {grown.server} takes {quarters} MB ({growth}); while it lists "
        f"all pods anew, {grown.peak:,.0f} MB.\n\n{_sizing({row.server: row for row in rows}, grown)}"
    )


def _sizing(rows: Mapping[str, Read], grown: Grown) -> str:
    """Return the table of requests and limits, by a line through the two sizes that were measured."""
    large, small = rows["topodns"], rows[TENTH]
    slope = (grown.resident[-1] - small.resident) / (PODS - PODS // 10)
    peak_slope = (grown.peak - small.peak) / (PODS - PODS // 10)
    lines = []
    for pods in SIZES:
        less = PODS // 10 - pods
        resident = small.resident - less * slope
        peak = max(resident, small.peak - less * peak_slope)
        quantities = (_mebibytes(1.1 * resident), _mebibytes(1.5 * peak))
        lines.append((f"{pods:,}", f"{resident:,.0f} MB", f"{peak:,.0f} MB", *quantities))
    head = ("pods", "memory", "at most", "request", "limit")
    seconds = (large.cpu - small.cpu) / (PODS - PODS // 10) * 1e3
    change = 1e3 * grown.seconds / STEPS
    return (
        f"{table(head, lines)}\n1,000 more pods that are endpoints take {1e3 * slope:.2f} MB, and {seconds:.3f} s of "
        f"CPU at the start; a pod and a slice that change take at most {change:.2f} ms.\n"
    )


def _mebibytes(megabytes: float) -> str:
    """Return a quantity of Kubernetes that is at least so many megabytes, in steps of 64 MiB."""
    return f"{64 * math.ceil(megabytes * 1e6 / 2**20 / 64)}Mi"


def _line(row: Read) -> Iterator[str]:
    yield row.server
    yield from (f"{row.wall:.1f} s", verdict(row.wall, WALL.get(row.server), "≤ {:.0f} s"))
    yield from (f"{row.cpu:.1f} s", verdict(row.cpu, CPU.get(row.server), "≤ {:.0f} s"))
    yield from (f"{row.resident:,.0f} MB", verdict(row.resident, MEMORY.get(row.server), "≤ {:.0f} MB"))
    yield f"{row.peak:,.0f} MB"


def _coredns(program: Path, folder: Path, standin: StandinProcess, title: str, options: Sequence[str]) -> Server:
    # By its address, CoreDNS asks for protobuf, as in a cluster.
    options = [f"endpoint {standin.url}", *options]
    return start_coredns(program, folder, options, name=service_name(0), title=title)


def _read(title: str, start: Callable[[str], Server], settle: float = SETTLE_SECONDS) -> Read:
    print(f"reading: {title}", file=sys.stderr)
    began = time.perf_counter()
    server = start(title)
    try:
        wall, cpu = time.perf_counter() - began, server.whole_cpu_seconds()
        time.sleep(settle)
        return Read(title, wall, cpu, server.resident(), server.peak())
    finally:
        server.stop()


def _grown(server: Server, standin: StandinProcess) -> Grown:
    try:
        standin.step(FIRST_STEPS)
        resident, began = [server.resident()], time.perf_counter()
        for quarter in range(QUARTERS):
            print(f"reading: changes, quarter {quarter + 1} of {QUARTERS}", file=sys.stderr)
            standin.step(STEPS // QUARTERS)
            resident.append(server.resident())
        took = time.perf_counter() - began
        standin.expire("Pod")
        standin.wait_until_watched("Pod")
        time.sleep(SETTLE_SECONDS)
        return Grown(server.name, resident, took, server.peak())
    finally:
        server.stop()
