# SPDX-License-Identifier: Apache-2.0

"""How long replies take while the largest cluster changes, is scraped, looked at, or listed anew."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.large.asking import fetching, forwarded
from bench.loads import FORWARDER
from bench.sending import Pace, Run, Sender, percentile
from bench.servers import Server, needed, on_load_core, start_coredns, start_topodns
from bench.standin.numbering import node_name, service_name
from bench.standin.process import StandinProcess, running_standin
from bench.tables import table, verdict
from tests.kit import go_programs

RATE = 10_000  # queries a second
STEPS = 500.0  # changes of a pod and of a slice in each second
SETTLE_SECONDS = 2.0  # of changes before the first run: pods are replaced a second after others were deleted
WARMUP_SECONDS = 0.5  # before each further run
PEER_ROUNDS = 3  # at most, of CoreDNS, which has no target here
RELIST_SECONDS = 12.0  # of a run in which all pods are listed anew at its begin: longer than that takes
P99, P999, MOST = 1.5, 6.0, 15.0  # milliseconds at most; the last while all pods are listed anew


class Row(NamedTuple):
    """A server in one situation, its runs, and how many pods and slices changed in a second of each."""

    server: str
    situation: str
    runs: list[Run]
    steps: list[float]


NODE_PAGE = f"/nodes/local/{node_name(0)}"  # the console's page that takes longest
QUIET, LOOKED_AT, CHURN, SCRAPED, RELISTED, BOTH = (
    "nothing changes",
    "nothing changes, and a node's page of the console is loaded in each second",
    "500 pods and 500 slices change in each second",
    "the same, and /metrics is read in each second",
    "the same, and all pods are listed anew",
    "the same, all pods are listed anew, and /metrics is read in each second",
)


def measure(folder: Path, pace: Pace) -> list[Row]:
    """Ask each server in each situation, one server at a time in each round. Raises CannotStart and BadReply."""
    with needed():
        coredns = go_programs.coredns()
    rows: dict[tuple[str, str], Row] = {}
    with on_load_core(), ExitStack() as stack:
        sender = Sender(forwarded(), folder)
        fed = [stack.enter_context(running_standin(folder, form)) for form in ("json", "protobuf")]
        flags = ["--kubeconfig", str(fed[0].kubeconfig), "--trusted-forwarder", FORWARDER]
        flags += ["--state-dir", str(folder)]  # as the manifests do; it is saved every 30 seconds
        topodns = stack.enter_context(start_topodns(flags, folder))
        options = [f"endpoint {fed[1].url}", "pods verified"]
        title = "CoreDNS, pods verified"
        peer = stack.enter_context(start_coredns(coredns, folder, options, name=service_name(0), title=title))
        servers = ((topodns, fed[0]), (peer, fed[1]))
        for server, standin in servers:
            standin.stand_back()
            sender.warm(server)
        for number in range(pace.rounds):
            for server, standin in servers if number < PEER_ROUNDS else servers[:1]:
                for situation, run in _situations(sender, server, standin, pace.seconds):
                    print(f"round {number + 1} of {pace.rounds}: {server.name}, {situation}", file=sys.stderr)
                    row = rows.setdefault((server.name, situation), Row(server.name, situation, [], []))
                    changed, began = standin.changes(), time.perf_counter()
                    row.runs.append(run())
                    row.steps.append((standin.changes() - changed) / 2 / (time.perf_counter() - began))
                standin.set_rate(0)
    return list(rows.values())


def report(rows: Sequence[Row]) -> str:
    """Return the table of latencies: medians over the rounds, and the longest of all."""
    head = ("server", "meanwhile", "p50", "p99", "p99.9", "longest", "target", "CPU µs/query", "lost", "changed")
    share = STEPS / 10_000
    return (
        f"{table(head, map(_line, rows))}\nMilliseconds at {RATE:,} queries/s: medians of {len(rows[0].runs)} rounds "
        f"(CoreDNS: {len(rows[-1].runs)}), and the longest of all. In each second {share:.0%} of the names asked for "
        "change. changed: pods, and as many slices.\n"
    )


def _line(row: Row) -> Iterator[str]:
    yield from (row.server, row.situation)
    figures = [percentile(row.runs, share) for share in (0.5, 0.99, 0.999)]
    longest = max(run.latencies[-1] for run in row.runs) * 1e3
    yield from (f"{figure:.2f}" for figure in figures)
    yield f"{longest:.1f}"
    ours = row.server == "topodns"
    if ours and row.situation in (RELISTED, BOTH):
        yield verdict(longest, MOST, "≤ {:.0f} ms at most")
    elif ours and row.situation not in (QUIET, LOOKED_AT):
        yield f"{verdict(figures[1], P99, '≤ {:.1f}')}; {verdict(figures[2], P999, '≤ {:.0f}')}"
    else:
        yield ""
    yield f"{median(run.cost for run in row.runs):.1f}"
    yield str(sum(run.lost for run in row.runs))
    yield f"{median(row.steps):.0f}/s"


def _situations(
    sender: Sender, server: Server, standin: StandinProcess, seconds: float
) -> Iterator[tuple[str, Callable[[], Run]]]:
    def run(length: float = seconds, warmup: float = WARMUP_SECONDS) -> Run:
        return sender.run(server, rate=RATE, warmup=warmup, seconds=length, exactly=False)

    def settled() -> Run:
        return run(warmup=SETTLE_SECONDS)

    def relisted() -> Run:
        timer = threading.Timer(WARMUP_SECONDS + 0.5, standin.expire, ["Pod"])
        timer.start()
        try:
            return run(RELIST_SECONDS)
        finally:
            timer.join()

    yield QUIET, run
    if server.http:
        with fetching(server, NODE_PAGE):
            yield LOOKED_AT, run
    standin.set_rate(STEPS)
    yield CHURN, settled
    if not server.http:
        yield RELISTED, relisted
        return
    with fetching(server, "/metrics"):
        yield SCRAPED, run
    yield RELISTED, relisted
    with fetching(server, "/metrics"):
        yield BOTH, relisted
