"""Whether a remembered query costs the same however large the cluster is, and however many clients ask."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import plots
from bench.cluster import CLIENTS, DIRECT, FORWARDED, dump
from bench.loads import FORWARDER, PLAIN, SOURCES, WARM, WINDOW, forwarded, nearby
from bench.queries import Load, Query
from bench.rounds import Pace, in_turns
from bench.servers import Server, on_load_core, start_topodns
from bench.tables import table, verdict

SERVICES = (100, 1_000, 10_000, 100_000)
NAMES = 1_000  # asked for, of all Services; all of them if there are fewer
FEWER_CLIENTS = (10, 100, 1_000, 10_000)
QUERIES = 20_000  # of each socket
SPREAD = 0.15  # that a size may cost more or less, at most, than the middle of the dearest and the cheapest


class Series(NamedTuple):
    """The CPU microseconds for a query in each round, by the number of what there is more and more of."""

    of: str
    costs: dict[int, Sequence[float]]

    def medians(self) -> dict[int, float]:
        """Return the median over the rounds, by number."""
        return {number: median(costs) for number, costs in self.costs.items()}

    def spread(self) -> float:
        """Return by which share sizes cost more or less than the middle."""
        most, least = max(self.medians().values()), min(self.medians().values())
        return (most - least) / (most + least)


def measure(folder: Path, pace: Pace) -> list[Series]:
    """Start topodns on clusters of every size, and run the loads in turn. Raises CannotStart and BadReply."""
    with on_load_core(), ExitStack() as stack:
        plan: list[tuple[Server, Load]] = []
        for services in SERVICES:
            server = _started(folder, stack, f"{services:,} Services", services=services, clients=0)
            plan.append((server, _direct(services)))
        server = _started(folder, stack, f"{CLIENTS:,} pods", services=NAMES, clients=CLIENTS)
        plan += [(server, forwarded(FORWARDED[:clients])) for clients in (*FEWER_CLIENTS, CLIENTS)]
        runs = list(in_turns(plan, pace).values())
    costs = [[run.cost for run in its_runs] for its_runs in runs]
    return [
        Series("Services", dict(zip(SERVICES, costs[: len(SERVICES)], strict=True))),
        Series("clients", dict(zip((*FEWER_CLIENTS, CLIENTS), costs[len(SERVICES) :], strict=True))),
    ]


def report(series: Sequence[Series], folder: Path) -> str:
    """Return the table, and write the plot into *folder*."""
    lines = [
        (row.of, f"{number:,}", f"{cost:.2f}", verdict(row.spread(), SPREAD, "≤ ± {:.0%}") if first else "")
        for row in series
        for first, (number, cost) in zip((True, *[False] * 9), row.medians().items(), strict=False)
    ]
    drawn = plots.draw_flat([(row.of, row.medians()) for row in series], folder)
    rounds = len(next(iter(series[0].costs.values())))
    return f"{table(('', 'number', 'CPU µs/query', 'target'), lines)}\nMedians of {rounds} rounds. {drawn}\n"


def _started(folder: Path, stack: ExitStack, name: str, *, services: int, clients: int) -> Server:
    snapshot = folder / f"{name}.json"
    dump(snapshot, services=services, clients=FORWARDED[:clients])
    server = start_topodns(["--snapshot", str(snapshot), "--trusted-forwarder", FORWARDER], folder, name=name)
    stack.callback(server.stop)
    snapshot.unlink()
    return server


def _direct(services: int) -> Load:
    """Return a load of pods that ask directly for names spread over all Services."""
    pick, names = random.Random(17), min(NAMES, services)

    def ask(number: int, zone: int) -> Query:
        return nearby(number, pick.randrange(names) * (services // names), zone, PLAIN)

    queries = [[ask(number, client.zone) for number in range(QUERIES)] for client in DIRECT]
    return Load("direct", PLAIN, SOURCES, queries, WINDOW, WARM)
