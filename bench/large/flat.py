# SPDX-License-Identifier: Apache-2.0

"""Whether a remembered query costs the same however large the cluster is, and however many clients ask."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import plots
from bench.cluster import CLIENTS, DIRECT, FORWARDED, ZONES, dump, service_name, static_records
from bench.loads import FORWARDER, PLAIN, SOURCES, WINDOW, forwarded, nearby
from bench.queries import Load
from bench.rounds import Pace, in_turns
from bench.servers import Server, on_load_core, start_topodns, start_unbound
from bench.tables import table, verdict

SERVICES = (100, 1_000, 10_000, 100_000)
NAMES = 1_000  # asked for, of all Services; all of them if there are fewer
FEWER_CLIENTS = (10, 100, 1_000, 10_000)
QUERIES = SERVICES[-1] * ZONES // len(DIRECT)  # of each socket: together, every name from every zone
SPREAD = 0.15  # that a size may cost more or less, at most, than the middle of the dearest and the cheapest
SOME, EVERY = f"{NAMES:,} names", "all names"


class Series(NamedTuple):
    """The CPU microseconds for a query in each round, by the number of what there is more and more of.

    ``asked`` is what is asked for, ``bound`` the largest spread, None for a server without a target.
    """

    server: str
    of: str
    asked: str
    costs: Mapping[int, Sequence[float]]
    bound: float | None = SPREAD

    def medians(self) -> dict[int, float]:
        """Return the median over the rounds, by number."""
        return {number: median(costs) for number, costs in self.costs.items()}

    def spread(self) -> float:
        """Return by which share sizes cost more or less than the middle."""
        most, least = max(self.medians().values()), min(self.medians().values())
        return (most - least) / (most + least)


def measure(folder: Path, pace: Pace) -> list[Series]:
    """Start topodns and unbound on clusters of every size, and run the loads in turn. Raises CannotStart and BadReply.

    A topodns that is asked for some of its Services is asked for all of them in other runs: it remembers all.
    """
    clients = {number: forwarded(FORWARDED[:number]) for number in (*FEWER_CLIENTS, CLIENTS)}
    with on_load_core(), ExitStack() as stack:
        plan: list[tuple[Server, Load]] = []
        for services in SERVICES:
            server = _topodns(folder, stack, services=services, clients=0)
            peer = start_unbound(folder, static_records(services), name=service_name(0))
            stack.callback(peer.stop)
            every = direct(services, services)
            plan += [(server, direct(NAMES, services))] if services > NAMES else []
            plan += [(server, every), (peer, every)]
        server = _topodns(folder, stack, services=NAMES, clients=CLIENTS)
        plan += [(server, load) for load in clients.values()]
        costs = {key: [run.cost for run in runs] for key, runs in in_turns(plan, pace).items()}
    some = {services: costs["topodns", _title(min(NAMES, services), services)] for services in SERVICES}
    every_one = {name: {size: costs[name, _title(size, size)] for size in SERVICES} for name in ("topodns", "unbound")}
    return [
        Series("topodns", "Services", SOME, some),
        Series("topodns", "Services", EVERY, every_one["topodns"]),
        Series("unbound", "Services", EVERY, every_one["unbound"], bound=None),
        Series("topodns", "clients", SOME, {number: costs["topodns", load.title] for number, load in clients.items()}),
    ]


def report(series: Sequence[Series], folder: Path) -> str:
    """Return the table, and write the plot into *folder*."""
    lines = []
    for row in series:
        spread, target = f"± {row.spread():.0%}", verdict(row.spread(), row.bound, "≤ ± {:.0%}")
        for number, cost in row.medians().items():
            lines.append((row.server, row.asked, f"{number:,} {row.of}", f"{cost:.2f}", spread, target))
            spread = target = ""
    panels: dict[str, dict[str, Mapping[int, float]]] = {}
    for row in series:
        panels.setdefault(row.of, {})[f"{row.server}, {row.asked}"] = row.medians()
    rounds = len(next(iter(series[0].costs.values())))
    head = ("server", "asked for", "of", "CPU µs/query", "spread", "target")
    return f"{table(head, lines)}\nMedians of {rounds} rounds. {plots.draw_flat(panels, folder)}\n"


def direct(names: int, services: int) -> Load:
    """Return a load of pods that ask directly for names spread over all Services: from each zone, each as often.

    The number of queries does not depend on that of the names, so the load generator takes the same room in the
    processor's caches.
    """
    pick, sockets = random.Random(17), len(DIRECT)
    asked = {}
    for zone in range(ZONES):
        numbers = [number % names * (services // names) for number in range(QUERIES * sockets // ZONES)]
        pick.shuffle(numbers)
        asked[zone] = iter(numbers)
    queries = [
        [nearby(number, next(asked[client.zone]), client.zone, PLAIN) for number in range(QUERIES)] for client in DIRECT
    ]
    return Load(_title(names, services), PLAIN, SOURCES, queries, WINDOW, QUERIES * sockets)


def _topodns(folder: Path, stack: ExitStack, *, services: int, clients: int) -> Server:
    snapshot = folder / f"{services} {clients}.json"  # of its own: topodns reads it again when it changes
    dump(snapshot, services=services, clients=FORWARDED[:clients])
    server = start_topodns(["--snapshot", str(snapshot), "--trusted-forwarder", FORWARDER], folder)
    stack.callback(server.stop)
    snapshot.unlink()
    return server


def _title(names: int, services: int) -> str:
    return f"{names:,} of {services:,} Services"
