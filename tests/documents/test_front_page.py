# SPDX-License-Identifier: Apache-2.0

"""What the README says in numbers: ``simulate`` says the same, and so do the tables of the page on performance."""

from __future__ import annotations

import re

import pytest

from tests.kit.commands_in_process import Run
from tests.kit.page_commands import section, table
from tests.kit.this_machine import ROOT

README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"
SAVED = {row: cells for row, cells in table(README, "What it saves").items() if row.startswith("`")}
COSTS = table(README, "What it costs")
PER_SECOND = "1,000"  # queries, in each row of the README that tells of a load


@pytest.mark.parametrize("row", SAVED)
def test_what_it_saves_is_what_simulate_says(topodns: Run, row: str) -> None:
    """With the annotation, the price and the traffic that stand there."""
    text = section(README, "What it saves")
    ((terabytes, price),) = re.findall(r"([\d,]+) TB a month .*? of ([\d.]+) USD per GB", text, re.DOTALL)
    service, *words = re.findall(r"`([^`]*)`", row)
    files = [word for word in words if word.endswith(".yaml")] or ["uneven.yaml"]  # the row before names it
    tried = [word for word in words if word.startswith("topodns.io/")]
    flags = ["--service", f"shop/{service}", "--price", price, "--traffic", str(1000 * int(terabytes))]
    for annotation in tried:
        name, value = re.findall(r'topodns\.io/([\w-]+): "(.*)"', annotation)[0]
        flags += ["--with", f"shop/{service}:{name}={value}"]
    ran = topodns("simulate", *flags, "--snapshot", str(ROOT / "examples" / files[0]), "-o", "json")
    (simulated,), cost = ran.json["services"], ran.json["totals"]["cost"]
    assert SAVED[row] == [
        f"{100 * simulated['cross_zone']['before']:.1f} %",
        f"{100 * simulated['cross_zone']['after']:.1f} %",
        f"{simulated['max_overload']:.2f}",
        f"{cost['before'] - cost['after']:,.0f} USD",
    ]


def measured(heading: str, server: str, column: str) -> str:
    """Return a cell of the first table below a heading of the page on performance."""
    rows = table(PERFORMANCE, heading)
    head = next(iter(rows.values()))
    return rows[server][head.index(column)]


def of_a_core(micros_per_query: str) -> str:
    return f"{1000 * float(micros_per_query) / 1e6:.1%}".replace("%", " %")


def test_what_it_costs_is_what_was_measured() -> None:
    """CPU, the time of a reply, and memory: of topodns, and of CoreDNS beside it."""
    topodns, coredns, python = (
        of_a_core(measured("Offered loads", name, PER_SECOND))
        for name in ("topodns", "CoreDNS, file", "topodns --native off")
    )
    assert COSTS["CPU for 1,000 queries a second"] == [
        f"{topodns} of a core; {python} without native code",
        f"{coredns} of a core",
    ]
    fewer, most, coredns, verified = (
        measured("Reading the largest cluster", name, "memory")
        for name in ("topodns, 15,000 pods", "topodns", "CoreDNS", "CoreDNS, pods verified")
    )
    assert COSTS["memory, with 15,000 pods"][0] == fewer
    assert COSTS["memory, with 150,000 pods"] == [most, f"{coredns}; {verified} with `pods verified`"]
    replies = [measured("Latency", name, PER_SECOND).split(",")[0] for name in ("topodns", "CoreDNS, file")]
    assert COSTS["median reply at 1,000 queries a second"] == [f"{median} µs" for median in replies]


def test_performance_begins_with_figures_of_its_tables() -> None:
    """Each figure above the first heading stands below, too."""
    summary, *tables = re.split(r"^## ", PERFORMANCE.read_text(), flags=re.MULTILINE)
    figures = re.findall(r"(?<![\w-])\d[\d.,]*(?<![.,])", re.sub(r"\]\(.*?\)", "", summary))
    known = set(re.findall(r"(?<![\w-])\d[\d.,]*(?<![.,])", "".join(tables)))
    assert len(figures) > 20
    assert [figure for figure in figures if figure not in known] == []
