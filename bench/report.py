# SPDX-License-Identifier: Apache-2.0

"""The figures as Markdown tables, with their targets."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median

from bench import dumps
from bench.choosing import SERVICES, Chosen
from bench.choosing import SIZE as CHOSEN_SIZE
from bench.flooding import FLOOD, SOCKETS, Flooded
from bench.loading import Loaded
from bench.loads import ALIKE, Asked
from bench.programming import Programmed
from bench.publishing import SIZE, Published
from bench.replay import Run
from bench.rounds import Runs
from bench.tables import table, verdict

YARDSTICK = ("unbound", "(a) direct")
RATIOS = {("topodns", "(a) direct"): 1.0, ("topodns", "(b) forwarded"): 1.3}  # CPU for a query, at most, to unbound's
GROWTH = 2.0  # MB at most, from the middle of the flood to its end
COMPARED = ("CoreDNS", "CoreDNS with cache", "unbound", "topodns")
# Queries in a second, at least, to CoreDNS's: by the endpoints of a Service, and whether it is asked over TCP.
FASTER = {(3, False): 2.5, (3, True): 1.3, (60, False): 6.0}
SECONDS = {"pods.yaml": 15.0, "pods.json": 3.0}  # at most to load a dump
FIRST_ANSWER = 2.0  # milliseconds at most for an answer that nothing is remembered of
MILLISECONDS = 20.0  # at most to publish a change
FULL_LOAD = 0.95  # share of the time that the server has its core; below it, the verdict says so
NOT_FULL = ", not at full load"


def machine() -> str:
    """Return the date, the processor, the kernel and Python's version."""
    cpus = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = f"{len(cpus)} cores {cpus[0]}" if cpus else platform.machine()
    return f"{date.today()}, {model}, Linux {platform.release()}, Python {platform.python_version()}\n"


def answering(runs: Runs) -> str:
    """Return the table of servers and loads: medians over the rounds, and the range of the CPU time for a query."""
    rows = []
    for (server, load), its_runs in runs.items():
        cost = median(run.cost for run in its_runs)
        ratio = _ratio(its_runs, runs[YARDSTICK])
        busy = median(run.busy for run in its_runs)
        full = min(busy, median(run.busy for run in runs[YARDSTICK])) >= FULL_LOAD
        rows.append(
            (
                server,
                load,
                f"{median(run.rate for run in its_runs):,.0f}",
                f"{cost:.2f}",
                f"{min(run.cost for run in its_runs):.2f} to {max(run.cost for run in its_runs):.2f}",
                f"{ratio:.2f}",
                verdict(ratio, RATIOS.get((server, load)), "≤ {:.1f}", "" if full else NOT_FULL),
                f"{busy:.0%}",
                f"{sum(run.lost for run in its_runs):,}",
            )
        )
    head = ("server", "load", "queries/s", "CPU µs/query", "range", "ratio", "target", "core busy", "lost")
    every = [run for its_runs in runs.values() for run in its_runs]
    return (
        f"{table(head, rows)}\nratio: CPU µs/query to that of unbound under load (a). "
        f"{_summary(every, rounds=len(runs[YARDSTICK]))}\n"
    )


def flooding(flood: Flooded) -> str:
    """Return the table of the flood: medians over the rounds; latencies over all rounds together."""
    rows = [_probed("(b) forwarded", flood.calm), _probed("(d) a fifth random", flood.flooded)]
    head = ("load", "queries/s", "CPU µs/query", "prober p50", "p99", "longest", "core busy", "lost")
    calm, mixed = (median(run.cost for run in runs) for runs in (flood.calm, flood.flooded))
    begin, middle, end = flood.resident[0], flood.resident[len(flood.resident) // 2], flood.resident[-1]
    return (
        f"{table(head, rows)}\nA query with a random subnet takes {calm + SOCKETS * (mixed - calm):.1f} µs of CPU. "
        f"topodns takes {begin:,.1f} MB of memory before the flood, {middle:,.1f} MB in the middle and {end:,.1f} MB "
        f"after {len(flood.flooded) * FLOOD:,} random subnets ({verdict(end - middle, GROWTH, '≤ {:.0f} MB more')}). "
        f"{_summary([*flood.calm, *flood.flooded], rounds=len(flood.calm))}\n"
    )


def _probed(title: str, runs: Sequence[Run]) -> Sequence[str]:
    waits = sorted(wait for run in runs for wait in run.latencies)
    return (
        title,
        f"{median(run.rate for run in runs):,.0f}",
        f"{median(run.cost for run in runs):.2f}",
        *(f"{waits[int(share * len(waits))] * 1e3:.1f} ms" for share in (0.5, 0.99)),
        f"{waits[-1] * 1e3:.1f} ms",
        f"{median(run.busy for run in runs):.0%}",
        f"{sum(run.lost for run in runs):,}",
    )


def _ratio(runs: Sequence[Run], beside: Sequence[Run]) -> float:
    """Return the median, over the rounds, of the ratio of CPU for a query: a slow round of the machine slows both."""
    return median(run.cost / other.cost for run, other in zip(runs, beside, strict=True))


def comparing(runs: Runs) -> str:
    """Return the table of topodns and other servers: medians over the rounds."""
    rows = [_compared(asked, {server: runs[server, str(asked)] for server in COMPARED}) for asked in ALIKE]
    every = [run for its_runs in runs.values() for run in its_runs]
    head = ("endpoints", "type", "over", *COMPARED, "target")
    return (
        f"{table(head, rows)}\nEach cell: queries/s, CPU µs/query, ratio to CoreDNS's queries/s. "
        f"{_summary(every, rounds=len(runs[COMPARED[0], str(ALIKE[0])]))} {sum(run.lost for run in every):,} queries "
        "lost.\n"
    )


def _compared(asked: Asked, by_server: Mapping[str, Sequence[Run]]) -> Sequence[str]:
    ratios = {
        server: median(run.rate / coredns.rate for run, coredns in zip(runs, by_server["CoreDNS"], strict=True))
        for server, runs in by_server.items()
    }
    cells = (
        f"{median(run.rate for run in runs):,.0f}, {median(run.cost for run in runs):.1f} µs, ×{ratios[server]:.1f}"
        for server, runs in by_server.items()
    )
    full = all(median(run.busy for run in by_server[server]) >= FULL_LOAD for server in ("CoreDNS", "topodns"))
    least = FASTER.get((asked.endpoints, asked.transport.tcp))
    target = verdict(ratios["topodns"], least, "≥ {:.1f}", "" if full else NOT_FULL)
    return (str(asked.endpoints), asked.qtype, asked.transport.title, *cells, target)


def choosing(rows: Sequence[Chosen]) -> str:
    """Return the table of constraints: what the first answer costs, and a remembered one."""
    plain = rows[0]
    lines = []
    for row in rows:
        cells = [row.constraint]
        for seconds in row.first.values():
            middle = median(seconds) * 1e3
            cells += [f"{middle:.2f} ms", f"{max(seconds) * 1e3:.2f} ms", verdict(middle, FIRST_ANSWER, "≤ {:.0f} ms")]
        ratio = median(mine / other for mine, other in zip(row.remembered, plain.remembered, strict=True))
        lines.append((*cells, f"{median(row.remembered) * 1e6:.2f} µs", f"{ratio:.2f}"))
    heads = [(f"first {qtype}", "longest", "target") for qtype in plain.first]
    head = ("constraint", *(cell for heads_of_type in heads for cell in heads_of_type), "remembered A", "ratio")
    return (
        f"{table(head, lines)}\nCPU time, without the network; ratio: to that of a Service without a constraint. The "
        f"cluster: {CHOSEN_SIZE}. {sum(row.computed for row in rows):,} remembered answers were computed again. "
        f"Medians of {SERVICES} Services, and of {len(plain.remembered)} rounds.\n"
    )


def loading(dumps_loaded: Iterable[Loaded]) -> str:
    """Return the table of dumps: how long each takes to load."""
    rows = [
        (
            dump.name,
            f"{dump.size / 1e6:,.0f} MB",
            f"{dump.objects:,}",
            f"{dump.read:.1f} s",
            f"{dump.publish:.1f} s",
            f"{dump.read + dump.publish:.1f} s",
            verdict(dump.read + dump.publish, SECONDS.get(dump.name), "≤ {:.0f} s"),
            f"{dump.cpu:.1f} s",
            f"{dump.peak:,.0f} MB",
            str(dump.findings),
        )
        for dump in dumps_loaded
    ]
    head = ("dump", "size", "objects", "read", "publish", "both", "target", "CPU", "peak memory", "findings")
    return f"{table(head, rows)}\nThe cluster: {dumps.SIZE}.\n"


def programming(servers: Iterable[Programmed]) -> str:
    """Return the table of how soon each server answers with a change."""
    rows = [
        (
            delays.server,
            f"{len(delays.seconds)}",
            *(f"{delays.percentile(share) * 1e3:.1f} ms" for share in (0.5, 0.99)),
            f"{max(delays.seconds) * 1e3:.1f} ms",
        )
        for delays in servers
    ]
    return (
        f"{table(('server', 'changes', 'p50', 'p99', 'longest'), rows)}\n"
        "From the API server's reply to a write until the server answers with it.\n"
    )


def publishing(changes: Iterable[Published]) -> str:
    """Return the table of what each kind of change costs."""
    rows = [
        (
            cost.change,
            f"{cost.apply:,.1f} µs",
            f"{cost.publish:,.2f} ms",
            f"{cost.most:,.2f} ms",
            verdict(cost.most, MILLISECONDS if cost.small else None, "≤ {:.0f} ms"),
        )
        for cost in changes
    ]
    return f"{table(('change', 'apply', 'publish', 'longest publish', 'target'), rows)}\nThe cluster: {SIZE}.\n"


def _summary(runs: Sequence[Run], *, rounds: int) -> str:
    checked = sum(run.checked for run in runs)
    return f"Medians of {rounds} rounds of {runs[0].seconds:.1f} s; {checked:,} replies checked."
