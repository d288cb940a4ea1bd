# SPDX-License-Identifier: Apache-2.0

"""What it costs to serve the largest cluster while it changes, with all its Services balanced and with none."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.large.asking import forwarded
from bench.large.churning import STEPS
from bench.loads import FORWARDER
from bench.sending import Pace, Run, Sender, percentile, summary
from bench.servers import Server, on_load_core, start_topodns
from bench.standin.process import StandinProcess, running_standin
from bench.tables import table, verdict

RATE = 1_000  # queries a second: little beside the changes, also for Python
SETTLE_SECONDS = 5.0  # from ready until the memory is read
WARMUP_SECONDS = 2.0  # of changes before each run: pods are replaced a second after others were deleted
NATIVE = {"native": (), "Python": ("--native", "off")}  # what repeats answers, and the flags for it
PLAIN, BALANCED = "without", "balanced"
# At most, more than without: milliseconds of CPU in a second, MB of memory; and p99 as a ratio.
CPU, MEMORY, P99 = 150.0, 40.0, 1.1


class Row(NamedTuple):
    """A server with or without balance; its memory in MB at first and in the end, its runs, and changes in a second."""

    path: str
    balance: str
    memory: tuple[float, float]
    runs: Sequence[Run]
    steps: Sequence[float]


def measure(folder: Path, pace: Pace, max_overload: str) -> list[Row]:
    """Change both clusters in turn while their servers are asked. Raises CannotStart and BadReply."""
    rows = []
    with on_load_core(), ExitStack() as stack:
        sender = Sender(forwarded(), folder)
        fed = {
            balance: stack.enter_context(running_standin(folder, "json", max_overload=value))
            for balance, value in ((PLAIN, ""), (BALANCED, max_overload))
        }
        for path, flags in NATIVE.items():
            with ExitStack() as started:
                servers = {
                    balance: started.enter_context(_start(standin, flags, folder)) for balance, standin in fed.items()
                }
                rows += _rows(path, servers, fed, sender, pace)
    return rows


def report(rows: Sequence[Row]) -> str:
    """Return the table: medians over the rounds, and differences within them."""
    head = ("answers repeated by", "Services", "changed", "CPU ms/s", "target", "p50", "p99", "target")
    head += ("memory", "then", "target")
    lines = []
    for row in rows:
        beside = next(other for other in rows if (other.path, other.balance) == (row.path, PLAIN))
        lines.append((row.path, row.balance, *_cells(row, None if row is beside else beside)))
    every = [run for row in rows for run in row.runs]
    return (
        f"{table(head, lines)}\nAt {RATE:,} queries/s. {summary(every, len(rows[0].runs))} changed: pods, and as many "
        "slices. memory: before the first change, then after the last.\n"
    )


def _start(standin: StandinProcess, flags: Sequence[str], folder: Path) -> Server:
    fed = ["--kubeconfig", str(standin.kubeconfig), "--trusted-forwarder", FORWARDER]
    return start_topodns([*fed, *flags], folder)


def _rows(
    path: str, servers: Mapping[str, Server], fed: Mapping[str, StandinProcess], sender: Sender, pace: Pace
) -> Iterator[Row]:
    time.sleep(SETTLE_SECONDS)
    first = {balance: server.resident() for balance, server in servers.items()}
    runs: dict[str, list[Run]] = {balance: [] for balance in servers}
    steps: dict[str, list[float]] = {balance: [] for balance in servers}
    for server in servers.values():
        sender.warm(server)
    for number in range(pace.rounds):
        for balance, server in servers.items():
            print(f"round {number + 1} of {pace.rounds}: {path}, {balance}", file=sys.stderr)
            standin = fed[balance]
            standin.set_rate(STEPS)
            changed, began = standin.changes(), time.perf_counter()
            runs[balance].append(
                sender.run(server, rate=RATE, warmup=WARMUP_SECONDS, seconds=pace.seconds, exactly=False)
            )
            steps[balance].append((standin.changes() - changed) / 2 / (time.perf_counter() - began))
            standin.set_rate(0)
    for balance, server in servers.items():
        yield Row(path, balance, (first[balance], server.resident()), runs[balance], steps[balance])


def _cells(row: Row, beside: Row | None) -> Iterator[str]:
    """Yield the cells of a row, with verdicts if there is one *beside* it that is not balanced."""
    yield f"{median(row.steps):.0f}/s"
    yield f"{1e3 * median(run.busy for run in row.runs):,.0f}"
    if beside is None:
        more = slower = larger = ""
    else:
        pairs = list(zip(row.runs, beside.runs, strict=True))
        extra = 1e3 * median(run.busy - other.busy for run, other in pairs)
        more = f"{extra:+,.0f}, {verdict(extra, CPU, '≤ +{:.0f}')}"
        factor = median(run.percentile(0.99) / other.percentile(0.99) for run, other in pairs)
        slower = f"×{factor:.2f}, {verdict(factor, P99, '≤ ×{:.1f}')}"
        grown = row.memory[0] - beside.memory[0]
        larger = f"{grown:+,.0f} MB, {verdict(grown, MEMORY, '≤ +{:.0f} MB')}"
    yield more
    yield from (f"{percentile(row.runs, share):.2f} ms" for share in (0.5, 0.99))
    yield slower
    yield from (f"{megabytes:,.0f} MB" for megabytes in row.memory)
    yield larger
