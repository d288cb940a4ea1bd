# SPDX-License-Identifier: Apache-2.0

"""What a query costs at the loads that clusters have: some hundred queries a second to some ten thousand.

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
from bench.cluster import DIRECT, FORWARDED, SERVICES, dump, service_name, static_records
from bench.comparing import needed
from bench.loads import EDNS, FORWARDER, PLAIN, by_address, nearby, relayed
from bench.offered.sending import Offered, Sender, compiled, percentile
from bench.queries import Load, Query
from bench.rounds import Pace
from bench.servers import (
    HAS_NATIVE,
    WITHOUT_NATIVE,
    CannotStart,
    Server,
    on_load_core,
    start_coredns_file,
    start_topodns,
    start_unbound,
    start_yardstick,
)
from bench.tables import table, verdict
from tests.kit import go_programs

RATES = (200, 1_000, 5_000, 10_000, 50_000)  # queries a second
CLIENTS = 8  # sockets
QUERIES = 3_000  # of each socket in the direct load: the 1,000 names at random
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
WARM_RATE = 15_000.0  # queries a second before the first run, until each query has been asked once


class Row(NamedTuple):
    """A server under one of the loads, its runs by rate, and its CPU milliseconds in a second without a query."""

    title: str
    server: Server
    sender: Sender
    runs: dict[int, list[Offered]]
    idle: float = 0.0


def measure(folder: Path, pace: Pace) -> list[Row]:
    """Start the servers, offer each rate to each in turn, stop them. Raises CannotStart and BadReply."""
    with on_load_core(), ExitStack() as stack:
        rows = _rows(folder, stack)
        for row in rows:
            row.sender.warm(row.server, WARM_RATE)
        rows = _idle(rows)
        for number in range(pace.rounds):
            for rate in RATES:
                for row in rows:
                    print(f"round {number + 1} of {pace.rounds}: {rate:,} queries/s, {row.title}", file=sys.stderr)
                    first = random.Random(number).randrange(QUERIES)
                    run = row.sender.offer(row.server, rate=rate, warmup=0.3, seconds=pace.seconds, first=first)
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
    def started(server: Server) -> Server:
        stack.callback(server.stop)
        return server

    snapshot, name = folder / "cluster.json", service_name(0)
    dump(snapshot)
    cluster = ["--snapshot", str(snapshot), "--trusted-forwarder", FORWARDER]
    python_loop = [sys.executable, "-m", "bench.offered.python_loop"]
    topodns = started(start_topodns(cluster, folder))
    servers = [started(start_unbound(folder, static_records(), name=name))]
    coredns = program_of_coredns()
    if coredns is not None:
        servers.append(started(start_coredns_file(coredns, folder, static_records(), name=name)))
    servers += [topodns, started(start_topodns(cluster, folder, name=WILDCARD, listen="[::]"))]
    if HAS_NATIVE:
        servers.append(started(start_topodns([*cluster, "--native", "off"], folder, name=WITHOUT_NATIVE)))
    servers += [
        started(start_yardstick("Python loop", python_loop, folder)),
        started(start_yardstick("C loop that copies", [str(compiled("copier", folder))], folder, answers=False)),
    ]
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


def direct() -> Load:
    """Return a load of pods that ask directly, without EDNS."""
    pick = random.Random(5)

    def ask(number: int, zone: int) -> Query:
        return nearby(number, pick.randrange(SERVICES), zone, PLAIN)

    clients = [DIRECT[number % len(DIRECT)] for number in range(CLIENTS)]
    queries = [[ask(number, client.zone) for number in range(QUERIES)] for client in clients]
    return Load("direct", PLAIN, [client.address for client in clients], queries, 0, 0)


def forwarded() -> Load:
    """Return a load of a forwarder that names, in each query, one of all pods."""
    queries = relayed(FORWARDED, by_address, sockets=CLIENTS)
    return Load("forwarded", EDNS, (FORWARDER,) * CLIENTS, queries, 0, 0)


def report(rows: Sequence[Row], folder: Path) -> str:
    """Return the tables of CPU time and of latencies: medians over the rounds. Write the plot into *folder*."""
    by_title = {row.title: row for row in rows}
    rates = [f"{rate:,}" for rate in RATES]
    costs = [(row.title, *(f"{median(run.cost for run in row.runs[rate]):.1f}" for rate in RATES)) for row in rows]
    costs += [_compared(by_title[ours], by_title[other], bound) for ours, other, bound in BOUNDS if other in by_title]
    waits = [(row.title, *(_latencies(row.runs[rate]) for rate in RATES)) for row in rows]
    waits += [_sooner(by_title[ours], by_title[COREDNS]) for ours in OURS if COREDNS in by_title]
    every = [run for row in rows for runs in row.runs.values() for run in runs]
    medians = {row.title: {rate: median(run.cost for run in row.runs[rate]) for rate in RATES} for row in rows}
    drawn = plots.draw_offered(medians, folder)
    resting = ", ".join(f"{row.title} {row.idle:.1f}" for row in rows if row.title != FORWARDS)
    return (
        f"{table(('CPU µs/query at queries/s', *rates), costs)}\n"
        f"{table(('p50, p99 in µs at queries/s', *rates), waits)}\n"
        f"CPU milliseconds in a second without a query: {resting} (topodns: "
        f"{verdict(by_title[TOPODNS].idle, IDLE, '≤ {:.0f}')}).\n\n"
        f"Medians of {len(rows[0].runs[RATES[0]])} rounds of {every[0].took:.1f} s; "
        f"{sum(run.checked for run in every):,} replies checked; {sum(run.lost for run in every):,} queries lost. "
        f"{drawn}{'' if COREDNS in by_title else ' CoreDNS could not be built, so its rows are left out.'}\n"
    )


def _compared(ours: Row, other: Row, bound: float) -> Sequence[str]:
    """Return the line of ratios of CPU time, each within a round."""
    cells = []
    for rate in RATES:
        pairs = zip(ours.runs[rate], other.runs[rate], strict=True)
        ratio = median(run.cost / beside.cost for run, beside in pairs)
        cells.append(f"{ratio:.2f}{'' if ratio <= bound else ': missed'}")
    return (f"{ours.title} to {other.title}: ≤ {bound}", *cells)


def _latencies(runs: Sequence[Offered]) -> str:
    figures = (median(percentile(run.latencies, share) for run in runs) for share in (0.5, 0.99))
    return ", ".join(f"{figure * 1e6:,.0f}" for figure in figures)


def _sooner(ours: Row, other: Row) -> Sequence[str]:
    """Return the line of ratios of latencies, each within a round."""
    cells = []
    for rate in RATES:
        ratios = [
            median(
                percentile(run.latencies, share) / percentile(beside.latencies, share)
                for run, beside in zip(ours.runs[rate], other.runs[rate], strict=True)
            )
            for share in (0.5, 0.99)
        ]
        cells.append(", ".join(f"{ratio:.2f}{'' if ratio <= 1 else ': missed'}" for ratio in ratios))
    return (f"{ours.title} to {other.title}: ≤ 1", *cells)
