# SPDX-License-Identifier: Apache-2.0

"""What a query costs at the loads that clusters have, some hundred queries a second to some ten thousand; and at most.

Names and clients are those of ``bench.cluster``, and all of them have been asked for before.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import plots
from bench.cluster import dump, service_name, static_records
from bench.loads import FORWARDER, QUERIES, direct, forwarded
from bench.sending import FULL_LOAD, Pace, Run, Sender, percentile, ratio, summary
from bench.servers import (
    HAS_NATIVE,
    CannotStart,
    Server,
    needed,
    on_load_core,
    start_coredns_file,
    start_topodns,
    start_unbound,
)
from bench.tables import table, verdict
from tests.kit import go_programs

RATES = (200, 1_000, 5_000, 10_000, 50_000)  # queries a second
ALL_RATES = (*RATES, FULL_LOAD)
UNBOUND, COREDNS = "unbound", "CoreDNS, file"
TOPODNS, FORWARDS, WILDCARD = "topodns", "topodns, forwarded", "topodns on [::]"
OURS = (TOPODNS, FORWARDS)
# CPU for a query, at most, to that of another server.
BOUNDS = (
    *((ours, UNBOUND, 1.5) for ours in OURS),
    *((ours, COREDNS, 0.6) for ours in OURS),
    (WILDCARD, TOPODNS, 1.15),
)
IDLE, IDLE_SECONDS = 2.0, 5.0  # milliseconds of CPU, at most, in a second without a query; seconds of the measurement


class Row(NamedTuple):
    """A server under one of the loads, its runs by rate, and its CPU milliseconds in a second without a query."""

    title: str
    server: Server
    sender: Sender
    runs: dict[float, list[Run]]
    idle: float = 0.0


def measure(folder: Path, pace: Pace) -> list[Row]:
    """Start the servers, offer each rate to each in turn, stop them. Raises CannotStart and BadReply."""
    with on_load_core(), ExitStack() as stack:
        rows = _rows(folder, stack)
        for row in rows:
            row.sender.warm(row.server)
        rows = _idle(rows)
        for number in range(pace.rounds):
            for rate in ALL_RATES:
                for row in rows:
                    print(f"round {number + 1} of {pace.rounds}: {rate:,} queries/s, {row.title}", file=sys.stderr)
                    first = random.Random(number).randrange(QUERIES)
                    run = row.sender.run(row.server, rate=rate, warmup=0.3, seconds=pace.seconds, first=first)
                    row.runs.setdefault(rate, []).append(run)
        return rows


def _idle(rows: Sequence[Row]) -> list[Row]:
    """Let all servers rest; return the rows with what each has used meanwhile."""
    time.sleep(1.0)  # the end of the load before
    before = [row.server.cpu_seconds() for row in rows]
    time.sleep(IDLE_SECONDS)
    used = (1e3 * (row.server.cpu_seconds() - cpu) / IDLE_SECONDS for row, cpu in zip(rows, before, strict=True))
    return [row._replace(idle=milliseconds) for row, milliseconds in zip(rows, used, strict=True)]


def _rows(folder: Path, stack: ExitStack) -> Sequence[Row]:
    snapshot, name = folder / "cluster.json", service_name(0)
    dump(snapshot)
    cluster = ["--snapshot", str(snapshot), "--trusted-forwarder", FORWARDER]
    servers = [stack.enter_context(start_unbound(folder, static_records(), name=name))]
    coredns = program_of_coredns()
    if coredns is not None:
        servers.append(stack.enter_context(start_coredns_file(coredns, folder, static_records(), name=name)))
    topodns = stack.enter_context(start_topodns(cluster, folder))
    servers += [topodns, stack.enter_context(start_topodns(cluster, folder, name=WILDCARD, listen="[::]"))]
    if HAS_NATIVE:
        in_python = [*cluster, "--native", "off"]
        servers.append(stack.enter_context(start_topodns(in_python, folder, name="topodns --native off")))
    asked = Sender(direct(), folder)
    rows = [Row(server.name, server, asked, {}) for server in servers]
    rows.insert(servers.index(topodns) + 1, Row(FORWARDS, topodns, Sender(forwarded(), folder), {}))
    return rows


def program_of_coredns() -> Path | None:
    """Return the program; where it cannot be built, say why, and return None: the other rows do not need it."""
    try:
        with needed():
            return go_programs.coredns()
    except CannotStart as error:
        print(f"bench: offering: the rows of CoreDNS are left out: {error}", file=sys.stderr)
        return None


def report(rows: Sequence[Row], plots_in: Path | None = None) -> str:
    """Return the tables of CPU time and of latencies: medians over the rounds. Draw a plot into that folder, if any."""
    by_title = {row.title: row for row in rows}
    offered = [f"{rate:,}" for rate in RATES]
    medians = {row.title: {rate: median(run.cost for run in row.runs[rate]) for rate in ALL_RATES} for row in rows}
    costs = [(title, *(f"{cost:.1f}" for cost in by_rate.values())) for title, by_rate in medians.items()]
    costs += [_compared(by_title[ours], by_title[other], bound) for ours, other, bound in BOUNDS if other in by_title]
    waits = [(row.title, *(_latencies(row.runs[rate]) for rate in RATES)) for row in rows]
    waits += [_sooner(by_title[ours], by_title[COREDNS]) for ours in OURS if COREDNS in by_title]
    full = [
        f"{row.title} {median(run.rate for run in runs):,.0f} ({median(run.busy for run in runs):.0%})"
        for row in rows
        for runs in [row.runs[FULL_LOAD]]
    ]
    resting = ", ".join(f"{row.title} {row.idle:.1f}" for row in rows if row.title != FORWARDS)
    drawn = ""
    if plots_in is not None:
        drawn = plots.draw({title: {r: cost[r] for r in RATES} for title, cost in medians.items()}, plots_in)
    every = [run for row in rows for runs in row.runs.values() for run in runs]
    return (
        f"{table(('CPU µs/query at queries/s', *offered, 'full load'), costs)}\n"
        f"{table(('p50, p99 in µs at queries/s', *offered), waits)}\n"
        f"Queries/s at full load, and the share of the time that the server had its core: {', '.join(full)}.\n\n"
        f"CPU milliseconds in a second without a query: {resting} (topodns: "
        f"{verdict(by_title[TOPODNS].idle, IDLE, '≤ {:.0f}')}).\n\n{summary(every, len(rows[0].runs[RATES[0]]))} "
        f"{drawn}{'' if COREDNS in by_title else ' CoreDNS could not be built, so its rows are left out.'}\n"
    )


def _compared(ours: Row, other: Row, bound: float) -> Sequence[str]:
    """Return the line of ratios of CPU time, each within a round."""
    ratios = [ratio(ours.runs[rate], other.runs[rate]) for rate in ALL_RATES]
    return (
        f"{ours.title} to {other.title}: ≤ {bound}",
        *(f"{r:.2f}{'' if r <= bound else ': missed'}" for r in ratios),
    )


def _latencies(runs: Sequence[Run]) -> str:
    return ", ".join(f"{1e3 * percentile(runs, share):,.0f}" for share in (0.5, 0.99))


def _sooner(ours: Row, other: Row) -> Sequence[str]:
    """Return the line of ratios of latencies, each within a round."""
    cells = []
    for rate in RATES:
        pairs = list(zip(ours.runs[rate], other.runs[rate], strict=True))
        ratios = [median(run.percentile(p) / beside.percentile(p) for run, beside in pairs) for p in (0.5, 0.99)]
        cells.append(", ".join(f"{ratio:.2f}{'' if ratio <= 1 else ': missed'}" for ratio in ratios))
    return (f"{ours.title} to {other.title}: ≤ 1", *cells)
