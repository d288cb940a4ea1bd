# SPDX-License-Identifier: Apache-2.0

"""What one Service's plan costs, by the number of nodes, the topology keys, and whether an endpoint is overloaded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from bench.publishing import ENDPOINTS, NODES, PODS
from bench.tables import table
from locator.model import HOSTNAME, ZONE, Endpoint, Location
from locator.topology.balance import cell_keys, cell_values
from locator.topology.cells import CellTable, slot
from locator.topology.plan import layout_of, plan
from locator.topology.selection import FirstMatch, LocatedEndpoint

CLIENTS = PODS // NODES  # on each node
SIZES = (20, 500, NODES)  # nodes
KEYS = ((ZONE, "*"), (HOSTNAME, ZONE, "*"))
OVERLOADS = {"none": 10.0, "in a zone": 1.1}  # where no endpoint is overloaded, and where some are
ZONES = "aaaaaaaabbbbbcc"  # of the endpoints: the two in the last zone get a third of all clients
TIMES = 300  # Services, one after the other


class Planned(NamedTuple):
    """The median microseconds for the layout and for the plan of a Service with such keys."""

    nodes: int
    cells: int
    keys: Sequence[str]
    overload: str
    layout: float
    plan: float


def measure() -> Iterator[Planned]:
    """Lay out and plan many Services in each cluster."""
    for nodes in SIZES:
        for keys in KEYS:
            for overload, most in OVERLOADS.items():
                yield _measured(nodes, keys, overload, most)


def report(costs: Iterable[Planned]) -> str:
    """Return the table."""
    rows = [
        (
            f"{cost.nodes:,}",
            ",".join(key.rpartition("/")[2] for key in cost.keys),
            f"{cost.cells:,}",
            cost.overload,
            f"{cost.layout:,.0f} µs",
            f"{cost.plan:,.0f} µs",
        )
        for cost in costs
    ]
    return (
        f"{table(('nodes', 'keys', 'cells', 'overload', 'layout', 'plan'), rows)}\n"
        f"Of a Service with {ENDPOINTS} endpoints, and {CLIENTS} clients on each node.\n"
    )


def _measured(nodes: int, keys: Sequence[str], overload: str, most: float) -> Planned:
    places = [_place(node) for node in range(nodes)]
    constraint = FirstMatch(tuple(keys))
    counted = CellTable(cell_keys(constraint), [(place.node, place, CLIENTS) for place in places])
    of_zones = {zone: [place for place in places if place.labels[ZONE] == zone] for zone in ZONES}
    at = [of_zones[zone][number % len(of_zones[zone])] for number, zone in enumerate(ZONES)]
    endpoints = [LocatedEndpoint(Endpoint(()), place) for place in at]
    own = [place.node for place in at]
    layouts, plans = [], []
    for number in range(TIMES):
        began = time.perf_counter()
        layout = layout_of(f"ns/service-{number}", constraint, endpoints, counted, own, "")
        laid_out = time.perf_counter()
        plan(layout, most)
        plans.append(1e6 * (time.perf_counter() - laid_out))
        layouts.append(1e6 * (laid_out - began))
    cells = {(place.slot, cell_values(constraint, place, endpoints)) for place in places}
    return Planned(nodes, len(cells), keys, overload, median(layouts), median(plans))


def _place(node: int) -> Location:
    name = f"node-{node:04}"
    return Location(name, {HOSTNAME: name, ZONE: "abc"[node % 3]}, slot=slot(name))
