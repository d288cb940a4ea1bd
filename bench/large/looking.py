# SPDX-License-Identifier: Apache-2.0

"""How long replies take while somebody loads a page of the console in each second, in the largest cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.large import asking
from bench.large.fetching import fetching
from bench.loads import FORWARDER
from bench.offered.sending import Offered, Sender, percentile
from bench.rounds import Pace
from bench.servers import on_load_core, start_topodns
from bench.standin.numbering import namespace, node_name, pod_address, service_label
from bench.standin.process import running_standin
from bench.tables import table

RATE = 10_000  # queries a second
WARMUP_SECONDS = 0.5
ASKED_FOR = 0  # a Service
CLIENT = pod_address(0, 0)
NOBODY = "nobody looks"
PAGES: Mapping[str, str] = {
    "the overview": "/",
    "the map": "/map",
    "all Services": "/services",
    "a Service": f"/services/{namespace(ASKED_FOR)}/{service_label(ASKED_FOR)}?client={CLIENT}",
    "a node": f"/nodes/local/{node_name(0)}",
    "explain": f"/explain?name={service_label(ASKED_FOR)}.{namespace(ASKED_FOR)}&client={CLIENT}",
}


class Row(NamedTuple):
    """The runs while a page is loaded in each second, and how many seconds each load took."""

    page: str
    runs: list[Offered]
    loads: list[float]


def measure(folder: Path, pace: Pace) -> list[Row]:
    """Ask a server without a visitor, and with one on each page in turn. Raises CannotStart and BadReply."""
    rows = [Row(page, [], []) for page in (NOBODY, *PAGES)]
    with on_load_core(), ExitStack() as stack:
        sender = Sender(asking.forwarded(), folder)
        standin = stack.enter_context(running_standin(folder, "json"))
        server = start_topodns(["--kubeconfig", str(standin.kubeconfig), "--trusted-forwarder", FORWARDER], folder)
        stack.callback(server.stop)
        standin.stand_back()
        sender.warm(server, RATE)
        for number in range(pace.rounds):
            for row in rows:
                print(f"round {number + 1} of {pace.rounds}: {row.page}", file=sys.stderr)
                with ExitStack() as looking:
                    loads = looking.enter_context(fetching(server, PAGES[row.page])) if row.page in PAGES else []
                    run = sender.offer(server, rate=RATE, warmup=WARMUP_SECONDS, seconds=pace.seconds, exactly=False)
                row.runs.append(run)
                row.loads.extend(loads)
    return rows


def report(rows: Sequence[Row]) -> str:
    """Return the table: medians over the rounds, and the longest of all."""
    head = ("loaded in each second", "p50", "p99", "p99.9", "longest", "CPU µs/query", "lost", "a load")
    return (
        f"{table(head, map(_line, rows))}\nMilliseconds at {RATE:,} queries/s: medians of {len(rows[0].runs)} rounds, "
        "and the longest of all.\n"
    )


def _line(row: Row) -> Iterator[str]:
    yield row.page
    yield from (
        f"{median(percentile(run.latencies, share) for run in row.runs) * 1e3:.2f}" for share in (0.5, 0.99, 0.999)
    )
    yield f"{max(run.latencies[-1] for run in row.runs) * 1e3:.1f}"
    yield f"{median(run.cost for run in row.runs):.1f}"
    yield str(sum(run.lost for run in row.runs))
    yield f"{median(row.loads) * 1e3:.0f} ms" if row.loads else ""
