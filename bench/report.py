"""The figures as tables, in Markdown, with the targets that they are held against."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median

from bench import dumps
from bench.cluster import CLIENTS
from bench.flooding import FLOOD, SOCKETS, Flooded
from bench.loading import Loaded
from bench.loads import ALIKE, FEW, Asked
from bench.programming import Programmed
from bench.publishing import SIZE, Published
from bench.replay import Run
from bench.rounds import Runs

YARDSTICK = ("unbound", "(a) direct")
RATIOS = {("topodns", "(a) direct"): 1.6, ("topodns", "(b) forwarded"): 2.2}  # to unbound's CPU for each query
MANY, FEWER = ("topodns", "(b) forwarded"), ("topodns", f"(b) forwarded, {FEW} clients")
LOOK_UP = 1.4  # CPU for each query, of many clients to few: the processor's caches miss more often, no more than that
GROWTH = 2.0  # MB at most, from the middle of the flood to its end
COMPARED = ("CoreDNS", "CoreDNS with cache", "unbound", "topodns")
# To CoreDNS's queries in a second, by the endpoints of a Service, and whether it is asked over TCP.
FASTER = {(3, False): 2.5, (3, True): 1.3, (60, False): 6.0}
SECONDS = {"pods.yaml": 15.0, "pods.json": 3.0}
MILLISECONDS = 20.0  # at most to publish a change
FULL_LOAD = 0.95  # of the time the server has its core; below it, a verdict stands under reserve
NOT_FULL = ", not at full load"


def machine() -> str:
    """Return the date and what it ran on."""
    cpus = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = f"{len(cpus)} cores {cpus[0]}" if cpus else platform.machine()
    return f"{date.today()}, {model}, Linux {platform.release()}, Python {platform.python_version()}\n"


def answering(runs: Runs) -> str:
    """Return the table of servers and loads: medians over the rounds, with least and most."""
    rows = []
    for (server, load), found in runs.items():
        cost = median(run.cost for run in found)
        ratio = _ratio(found, runs[YARDSTICK])
        busy = median(run.busy for run in found)
        full = min(busy, median(run.busy for run in runs[YARDSTICK])) >= FULL_LOAD
        rows.append(
            (
                server,
                load,
                f"{median(run.rate for run in found):,.0f}",
                f"{cost:.2f}",
                f"{min(run.cost for run in found):.2f} to {max(run.cost for run in found):.2f}",
                f"{ratio:.2f}",
                _target(ratio, RATIOS.get((server, load)), "≤ {:.1f}", "" if full else NOT_FULL),
                f"{busy:.0%}",
                f"{sum(run.lost for run in found):,}",
            )
        )
    head = ("server", "load", "queries/s", "CPU µs/query", "spread", "ratio", "target", "core busy", "lost")
    every = [run for found in runs.values() for run in found]
    dearer = _ratio(runs[MANY], runs[FEWER])
    return (
        f"{_table(head, rows)}\nA query for one of {CLIENTS:,} clients takes {dearer:.2f} of the CPU of a query for "
        f"one of {FEW} ({_target(dearer, LOOK_UP, '≤ {:.2f}')}). {_summary(every, rounds=len(runs[YARDSTICK]))}\n"
    )


def flooding(found: Flooded) -> str:
    """Return the table of the flood: medians over the rounds, latencies over all of them."""
    rows = [_probed("(b) forwarded", found.calm), _probed("(d) a fifth random", found.flooded)]
    head = ("load", "queries/s", "CPU µs/query", "prober p50", "p99", "most", "core busy", "lost")
    calm, mixed = (median(run.cost for run in runs) for runs in (found.calm, found.flooded))
    begin, middle, end = found.resident[0], found.resident[len(found.resident) // 2], found.resident[-1]
    return (
        f"{_table(head, rows)}\nA random subnet takes {calm + SOCKETS * (mixed - calm):.1f} µs. The server holds "
        f"{begin:,.1f} MB before the flood, {middle:,.1f} MB at half of it and {end:,.1f} MB after "
        f"{len(found.flooded) * FLOOD:,} random subnets ({_target(end - middle, GROWTH, '≤ {:.0f} MB more')}). "
        f"{_summary([*found.calm, *found.flooded], rounds=len(found.calm))}\n"
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
    """Return how much more CPU a query takes: round by round, since a slow moment of the machine slows both."""
    return median(run.cost / other.cost for run, other in zip(runs, beside, strict=True))


def comparing(runs: Runs) -> str:
    """Return the table of other servers: medians over the rounds."""
    rows = [_compared(asked, {server: runs[server, str(asked)] for server in COMPARED}) for asked in ALIKE]
    every = [run for found in runs.values() for run in found]
    head = ("endpoints", "type", "over", *COMPARED, "target")
    return (
        f"{_table(head, rows)}\nQueries/s, CPU µs for each, ratio to CoreDNS's queries/s. "
        f"{_summary(every, rounds=len(runs[COMPARED[0], str(ALIKE[0])]))} {sum(run.lost for run in every):,} lost.\n"
    )


def _compared(asked: Asked, found: Mapping[str, Sequence[Run]]) -> Sequence[str]:
    ratios = {
        server: median(run.rate / beside.rate for run, beside in zip(runs, found["CoreDNS"], strict=True))
        for server, runs in found.items()
    }
    cells = (
        f"{median(run.rate for run in runs):,.0f}, {median(run.cost for run in runs):.1f} µs, ×{ratios[server]:.1f}"
        for server, runs in found.items()
    )
    full = all(median(run.busy for run in found[server]) >= FULL_LOAD for server in ("CoreDNS", "topodns"))
    least = FASTER.get((asked.endpoints, asked.transport.tcp))
    verdict = _target(ratios["topodns"], least, "≥ {:.1f}", "" if full else NOT_FULL)
    return (str(asked.endpoints), asked.qtype, asked.transport.title, *cells, verdict)


def loading(found: Iterable[Loaded]) -> str:
    """Return the table of dumps."""
    rows = [
        (
            each.name,
            f"{each.size / 1e6:,.0f} MB",
            f"{each.objects:,}",
            f"{each.read:.1f} s",
            f"{each.publish:.1f} s",
            f"{each.read + each.publish:.1f} s",
            _target(each.read + each.publish, SECONDS.get(each.name), "≤ {:.0f} s"),
            f"{each.cpu:.1f} s",
            f"{each.peak:,.0f} MB",
            str(each.findings),
        )
        for each in found
    ]
    head = ("dump", "size", "objects", "read", "publish", "both", "target", "CPU", "peak memory", "findings")
    return f"{_table(head, rows)}\n{dumps.SIZE}.\n"


def programming(found: Iterable[Programmed]) -> str:
    """Return the table of how soon changes are answered."""
    rows = [
        (
            each.server,
            f"{len(each.seconds)}",
            *(f"{each.percentile(share) * 1e3:.1f} ms" for share in (0.5, 0.99)),
            f"{max(each.seconds) * 1e3:.1f} ms",
        )
        for each in found
    ]
    return _table(("server", "changes", "p50", "p99", "most"), rows)


def publishing(found: Iterable[Published]) -> str:
    """Return the table of changes."""
    rows = [
        (
            each.change,
            f"{each.apply:,.1f} µs",
            f"{each.publish:,.2f} ms",
            f"{each.most:,.2f} ms",
            _target(each.most, MILLISECONDS if each.small else None, "≤ {:.0f} ms"),
        )
        for each in found
    ]
    return f"{_table(('change', 'taken in', 'published', 'at most', 'target'), rows)}\n{SIZE}.\n"


def _summary(runs: Sequence[Run], *, rounds: int) -> str:
    checked = sum(run.checked for run in runs)
    return f"Median of {rounds} rounds of {runs[0].seconds:.1f} s; {checked:,} replies checked."


def _target(figure: float, bound: float | None, form: str, reserve: str = "") -> str:
    """Return the verdict; *form* says by its first character whether the bound is an upper or a lower one."""
    if bound is None:
        return ""
    met = figure <= bound if form.startswith("≤") else figure >= bound
    return f"{form.format(bound)}: {'met' if met else 'missed'}{reserve}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text) + "\n"
