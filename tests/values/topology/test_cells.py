# SPDX-License-Identifier: Apache-2.0

"""Who asks, by cell: what there is to look at for a Service, in clusters of any size."""

from __future__ import annotations

from collections.abc import Iterator

from locator.model import HOSTNAME, ZONE, Location
from locator.topology.cells import CellTable, slot


def nodes(count: int) -> Iterator[tuple[str, Location, int]]:
    for number in range(count):
        name = f"n{number}"
        yield name, Location(name, {HOSTNAME: name, ZONE: "abc"[number % 3]}, slot=slot(name)), number % 4


def looked_at(table: CellTable) -> tuple[int, int]:
    """Return how many columns there are for a Service with endpoints on two nodes, and how many clients in them."""
    columns = [(column.total, sign) for _, column, sign in table.columns([{"n1", "n2"}, {"b", "c"}])]
    return len(columns), sum(total * sign for total, sign in columns)


def test_a_cluster_that_grows() -> None:
    """It is as cheap to look at as one that was large from the beginning, and whoever looked looks again."""
    grown = CellTable((HOSTNAME, ZONE), nodes(10))
    before = grown.version
    for node in nodes(600):
        grown.put(*node)
    assert looked_at(grown) == looked_at(CellTable((HOSTNAME, ZONE), nodes(600))) == (7, 900)
    assert grown.version != before
