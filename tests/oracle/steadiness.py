# SPDX-License-Identifier: Apache-2.0

"""How many clients get another answer when one pod or one endpoint comes or goes.

``python -m tests.oracle.steadiness`` prints it as a table, in hundredths of all clients. A cluster has three zones with
60, 20 and 20 of a hundred nodes, each with five to fifteen pods, and as many endpoints in each zone. Its Service asks
for ``topology.kubernetes.io/zone,*``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import mean, quantiles
from typing import NamedTuple

from tests.oracle.twin_balance import Balance, Cell, Group, balanced, cell_of

KEY = ("shop", "web")
ZONES = ("a", "b", "c")
OVERLOADS, ENDPOINTS, NODES = ("1.2", "1.5", "2"), (6, 15, 60), (20, 50, 100)
EVENTS = ("pod comes", "endpoint comes", "endpoint goes")


class Node(NamedTuple):
    zone: str
    pods: int


class Cluster(NamedTuple):
    """Its nodes by name, and the zone of each endpoint by the endpoint's name."""

    nodes: Mapping[str, Node]
    endpoints: Mapping[str, str]


class Change(NamedTuple):
    """Hundredths of all clients: who gets others, and who would without balance.

    ``lost``: who does not get an endpoint any more that is still there; ``passed_on``: who is passed on now, or no
    longer.
    """

    changed: float
    without: float
    lost: float
    passed_on: float


class Answers(NamedTuple):
    """What the clients on each node get, by the names of endpoints, with balance and without."""

    balanced: Mapping[str, frozenset[str]]
    nearest: Mapping[str, frozenset[str]]


def cluster_of(seed: int, nodes: int, endpoints: int) -> Cluster:
    """Return a cluster that is uneven in the same way for all seeds; the names of its nodes differ."""
    rng = random.Random(seed)
    zones = [ZONES[0]] * (nodes * 3 // 5) + [ZONES[1]] * (nodes // 5) + [ZONES[2]] * (nodes // 5)
    made = {
        f"ip-10-0-{rng.randrange(256)}-{number}": Node(zone, rng.randint(5, 15)) for number, zone in enumerate(zones)
    }
    return Cluster(made, {f"web-{number}": ZONES[number % 3] for number in range(endpoints)})


def after(cluster: Cluster, event: str, rng: random.Random) -> Cluster:
    """Return the cluster after one event, at a node or in a zone by chance."""
    nodes, endpoints = dict(cluster.nodes), dict(cluster.endpoints)
    if event == "pod comes":
        name = rng.choice(sorted(nodes))
        nodes[name] = nodes[name]._replace(pods=nodes[name].pods + 1)
    elif event == "endpoint comes":
        endpoints["web-new"] = rng.choice(ZONES)
    else:
        del endpoints[rng.choice(sorted(endpoints))]
    return Cluster(nodes, endpoints)


def answers(cluster: Cluster, overload: Fraction) -> Answers:
    """Return what all clients get."""
    names, known = list(cluster.endpoints), set(cluster.endpoints.values())
    everything = frozenset(range(len(names)))
    near = {zone: frozenset(row for row in everything if cluster.endpoints[names[row]] == zone) for zone in ZONES}
    cells, cell_on = dict[Cell, Group](), dict[str, Cell]()
    for name, node in cluster.nodes.items():
        cell_on[name] = cell = cell_of(KEY, name, [(node.zone, known)])
        before = cells[cell].clients if cell in cells else 0
        cells[cell] = Group(before + node.pods, near[node.zone] or everything, [near[node.zone], everything])
    found = balanced(cells, [], endpoints=len(names), least=1, overload=overload)
    assert isinstance(found, Balance)

    def named(rows: frozenset[int]) -> frozenset[str]:
        return frozenset(names[row] for row in rows)

    return Answers(
        {name: named(found.answers[cell]) for name, cell in cell_on.items()},
        {name: named(cells[cell].nearest) for name, cell in cell_on.items()},
    )


def change(cluster: Cluster, event: str, overload: Fraction, rng: random.Random) -> Change:
    """Return how many clients, among those before, one event concerns."""
    later = after(cluster, event, rng)
    old, new = answers(cluster, overload), answers(later, overload)
    changed = without = lost = passed_on = 0
    for name, (_, pods) in cluster.nodes.items():
        before, now = old.balanced[name], new.balanced[name]
        changed += pods * (before != now)
        without += pods * (old.nearest[name] != new.nearest[name])
        lost += pods * bool(before & later.endpoints.keys() - now)
        passed_on += pods * ((before != old.nearest[name]) != (now != new.nearest[name]))
    total = sum(node.pods for node in cluster.nodes.values())
    return Change(*(100 * count / total for count in (changed, without, lost, passed_on)))


def changes(event: str, overload: str, endpoints: int, nodes: int, *, clusters: int) -> list[Change]:
    """Return what one event changes in each of several clusters."""
    rng = random.Random(0)
    made = [cluster_of(seed, nodes, endpoints) for seed in range(clusters)]
    return [change(cluster, event, Fraction(overload), rng) for cluster in made]


def row(event: str, overload: str, endpoints: int, nodes: int, found: Sequence[Change]) -> list[str]:
    """Return a row of the table, without its borders."""
    changed = [one.changed for one in found]
    means = [mean(figures) for figures in zip(*found, strict=True)]
    figures = [*means, quantiles(changed, n=20)[-1], max(changed)]
    return [event, overload, str(endpoints), str(nodes), *(f"{figure:.1f}" for figure in figures)]


COLUMNS = ["event", "max-overload", "endpoints", "nodes", "changed", "without balance", "lost one", "passed on or back",
           "changed in 5 of 100 clusters", "most"]  # fmt: skip


def main() -> None:
    for words in (COLUMNS, ["---"] * len(COLUMNS)):
        print(f"| {' | '.join(words)} |")
    for event in EVENTS:
        for overload in OVERLOADS:
            for endpoints in ENDPOINTS:
                for nodes in NODES:
                    found = changes(event, overload, endpoints, nodes, clusters=60)
                    print(f"| {' | '.join(row(event, overload, endpoints, nodes, found))} |", flush=True)


if __name__ == "__main__":
    main()
