# SPDX-License-Identifier: Apache-2.0

"""What it takes to read the largest cluster, and whether the memory grows while that cluster changes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.servers import Server, needed, on_load_core, start_coredns, start_topodns
from bench.standin.numbering import PODS, SERVICES, service_name
from bench.standin.process import StandinProcess, running_standin
from bench.tables import table, verdict
from tests.kit import go_programs

ROUNDS = 3  # at most: a start takes some seconds, and varies less than a run of queries
SETTLE_SECONDS = 5.0  # from ready until the memory is read
# The same of a program in Go. If nothing happens, it collects every two minutes. It gives most of the memory back after
# the second time, and not at once: CoreDNS went from 2,467 MB after 240 seconds to 1,457 after 260.
GO_SETTLE_SECONDS = 300.0
FIRST_STEPS = 40_000  # changes before the growth is measured: all sorts of objects have changed by then
STEPS = 360_000  # an hour of 100 pods and 100 slices a second
QUARTERS = 4
SIZES = (1_500, 15_000, 50_000, 150_000)  # pods, in the table of requests and limits

NODES_ONLY = "topodns --client-source nodes"
TENTH = f"topodns, {PODS // 10:,} pods"
RESTORED = "topodns from --state-dir"
# MB at most after SETTLE_SECONDS, seconds at most until it is ready, and of CPU for that.
MEMORY = {"topodns": 214.0, NODES_ONLY: 130.0}
ELAPSED = {"topodns": 10.0, NODES_ONLY: 10.0, RESTORED: 1.0}
CPU = {"topodns": 5.0, NODES_ONLY: 5.0}
ATTACKED = 92.0  # MB that all connections, and all queries that wait, hold at most
GROWTH = 1.02  # of the memory, at most, in the last quarter: every pod has been replaced once before


class Read(NamedTuple):
    """What one start of a server took: seconds until it answered, and of CPU; MB of memory after that, and at most."""

    elapsed: float
    cpu: float
    resident: float
    peak: float


Reads = Mapping[str, Read]  # by server: the median of each figure over the rounds


class Grown(NamedTuple):
    """A server's memory in MB after each quarter of the changes, and the seconds that all changes took.

    ``peak`` is the most memory that it has had in the end, after it has listed all pods once more.
    """

    server: str
    resident: Sequence[float]
    seconds: float
    peak: float


def measure(folder: Path, rounds: int) -> tuple[Reads, int, Grown]:
    """Have each server read the cluster; then change it under topodns. Raises CannotStart.

    topodns reads in some rounds, whose number is returned, too. CoreDNS reads once, and settles during the changes.
    """
    with needed():
        coredns = go_programs.coredns()
    rounds = min(rounds, ROUNDS)
    with on_load_core(), running_standin(folder, "json") as standin:
        reads = _read_by_topodns(folder, standin, rounds)
        with _settling(coredns, folder) as settled:
            grown = _grown(start_topodns(_flags(standin), folder), standin)
            return {**settled(), **reads}, rounds, grown


def report(reads: Reads, rounds: int, grown: Grown) -> str:
    """Return the table of servers, and a sentence on the growth."""
    head = ("server", "ready after", "target", "CPU", "target", "memory", "target", "at most")
    lines = table(head, (_line(server, read) for server, read in reads.items()))
    quarters = ", ".join(f"{megabytes:,.1f}" for megabytes in grown.resident)
    growth = verdict(grown.resident[-1] / grown.resident[-2], GROWTH, "≤ {:.2f} times the quarter before")
    return (
        f"{lines}\nMedians of {rounds} rounds; CoreDNS once.\n\n"
        f"After {FIRST_STEPS:,} changes, and each further quarter of {STEPS:,} (an hour of 100 pods and 100 slices a "
        f"second, in {grown.seconds:.0f} s), {grown.server} takes {quarters} MB ({growth}); while it lists all pods "
        f"anew, {grown.peak:,.0f} MB.\n\n{_sizing(reads, grown)}"
    )


def _sizing(reads: Reads, grown: Grown) -> str:
    """Return the table of requests and limits, by a line through the two sizes that were measured."""
    large, small = reads["topodns"], reads[TENTH]
    slope = (grown.resident[-1] - small.resident) / (PODS - PODS // 10)
    peak_slope = (grown.peak - small.peak) / (PODS - PODS // 10)
    lines = []
    for pods in SIZES:
        less = PODS // 10 - pods
        resident = small.resident - less * slope
        peak = max(resident, small.peak - less * peak_slope)
        quantities = (_mebibytes(1.1 * resident), _mebibytes(max(1.5 * peak, peak + ATTACKED)))
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


def _line(server: str, read: Read) -> Iterator[str]:
    yield server
    yield from (f"{read.elapsed:.2f} s", verdict(read.elapsed, ELAPSED.get(server), "≤ {:.0f} s"))
    yield from (f"{read.cpu:.2f} s", verdict(read.cpu, CPU.get(server), "≤ {:.0f} s"))
    yield from (f"{read.resident:,.0f} MB", verdict(read.resident, MEMORY.get(server), "≤ {:.0f} MB"))
    yield f"{read.peak:,.0f} MB"


def _flags(standin: StandinProcess) -> Sequence[str]:
    """Return the flags of a server as a pod has them: there the console is off unless somebody switches it on."""
    return ("--kubeconfig", str(standin.kubeconfig), "--forwarder-service", "off", "--console=off")


def _read_by_topodns(folder: Path, standin: StandinProcess, rounds: int) -> Reads:
    """Start topodns in each of its forms in turn, alone on its core."""
    whole = _flags(standin)
    kept = [*whole, "--state-dir", str(folder)]
    start_topodns(kept, folder).stop()  # saves its state
    with running_standin(folder, "json", services=SERVICES // 10) as tenth:
        starts = {
            TENTH: _flags(tenth),
            "topodns": whole,
            NODES_ONLY: [*whole, "--client-source", "nodes"],
            RESTORED: kept,
        }
        reads: dict[str, list[Read]] = {title: [] for title in starts}
        for number in range(rounds):
            for title, flags in starts.items():
                print(f"round {number + 1} of {rounds}: {title}", file=sys.stderr)
                reads[title].append(_read(flags, folder))
    return {title: Read(*map(median, zip(*every, strict=True))) for title, every in reads.items()}


@contextmanager
def _settling(coredns: Path, folder: Path) -> Iterator[Callable[[], Reads]]:
    """Have CoreDNS read the cluster with its defaults, and then with pods; what is yielded waits until both settled."""
    reads: dict[str, Callable[[], Read]] = {}
    with running_standin(folder, "protobuf") as standin, ExitStack() as stack:
        for title, options in (("CoreDNS", ()), ("CoreDNS, pods verified", ("pods verified",))):
            print(f"reading: {title}", file=sys.stderr)
            began = time.perf_counter()
            # By its address, CoreDNS asks for protobuf, as in a cluster.
            fed = [f"endpoint {standin.url}", *options]
            server = stack.enter_context(start_coredns(coredns, folder, fed, name=service_name(0), title=title))
            reads[title] = partial(_after, server, time.perf_counter() - began, server.whole_cpu_seconds())
        end = time.monotonic() + GO_SETTLE_SECONDS

        def settled() -> Reads:
            time.sleep(max(0.0, end - time.monotonic()))
            return {title: read() for title, read in reads.items()}

        yield settled


def _read(flags: Sequence[str], folder: Path) -> Read:
    began = time.perf_counter()
    with start_topodns(flags, folder) as server:
        elapsed, cpu = time.perf_counter() - began, server.whole_cpu_seconds()
        time.sleep(SETTLE_SECONDS)
        return _after(server, elapsed, cpu)


def _after(server: Server, elapsed: float, cpu: float) -> Read:
    """Return what a start took, and the memory that the server takes now."""
    return Read(elapsed, cpu, server.resident(), server.peak())


def _grown(server: Server, standin: StandinProcess) -> Grown:
    with server:
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
