"""The figures as tables, in Markdown, with the targets that they are held against."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from statistics import median

from bench import dumps
from bench.answering import Runs
from bench.loading import Loaded

YARDSTICK = ("unbound", "a")
RATIOS = {("topodns", "a"): 1.6, ("topodns", "b"): 2.2}  # to unbound's CPU for each query of load (a)
SECONDS = {"pods.yaml": 15.0, "pods.json": 3.0}
LOADS = {"a": "(a) direct", "b": "(b) forwarded"}
FULL_LOAD = 0.95  # of the time the server has its core; below it, a verdict stands under reserve


def machine() -> str:
    """Return the date and what it ran on."""
    cpus = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = f"{len(cpus)} cores {cpus[0]}" if cpus else platform.machine()
    return f"{date.today()}, {model}, Linux {platform.release()}, Python {platform.python_version()}\n"


def answering(runs: Runs) -> str:
    """Return the table of servers and loads: medians over the rounds, with least and most."""
    rows = []
    for (server, letter), found in runs.items():
        cost = median(run.cost for run in found)
        # Round by round: a slow moment of the machine slows both.
        ratio = median(run.cost / beside.cost for run, beside in zip(found, runs[YARDSTICK], strict=True))
        busy = median(run.busy for run in found)
        full = min(busy, median(run.busy for run in runs[YARDSTICK])) >= FULL_LOAD
        rows.append(
            (
                server,
                LOADS[letter],
                f"{median(run.rate for run in found):,.0f}",
                f"{cost:.2f}",
                f"{min(run.cost for run in found):.2f} to {max(run.cost for run in found):.2f}",
                f"{ratio:.2f}",
                _target(ratio, RATIOS.get((server, letter)), "{:.1f}", "" if full else ", not at full load"),
                f"{busy:.0%}",
                f"{sum(run.lost for run in found):,}",
            )
        )
    head = ("server", "load", "queries/s", "CPU µs/query", "spread", "ratio", "target", "core busy", "lost")
    checked = sum(run.checked for found in runs.values() for run in found)
    rounds, seconds = len(runs[YARDSTICK]), runs[YARDSTICK][0].seconds
    return f"{_table(head, rows)}\nMedian of {rounds} rounds of {seconds:.1f} s; {checked:,} replies checked.\n"


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
            _target(each.read + each.publish, SECONDS.get(each.name), "{:.0f} s"),
            f"{each.cpu:.1f} s",
            f"{each.peak:,.0f} MB",
            str(each.findings),
        )
        for each in found
    ]
    head = ("dump", "size", "objects", "read", "publish", "both", "target", "CPU", "peak memory", "findings")
    return f"{_table(head, rows)}\n{dumps.SIZE}.\n"


def _target(figure: float, limit: float | None, form: str, reserve: str = "") -> str:
    if limit is None:
        return ""
    return f"≤ {form.format(limit)}: {'met' if figure <= limit else 'missed'}{reserve}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text) + "\n"
