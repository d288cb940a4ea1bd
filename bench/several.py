# SPDX-License-Identifier: Apache-2.0

"""What several clusters cost: memory, one change until it is answered, and a remembered answer.

Each number of clusters is measured in a process of its own, with the objects of clusters that are alike but for their
addresses; one Service in ten is exported by all.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from bench.memory import resident
from bench.publishing import cluster
from bench.tables import table
from dnsserver.answers.decision import Authority
from dnsserver.metrics.counters import Counts
from dnsserver.names import FEDERATION, parse_zone
from dnsserver.responder.responder import Responder
from locator.api.deltas import Put
from locator.endpoints import compact
from locator.federation.clusterset import ClusterSet
from locator.federation.federating import Joining, default_constraint
from locator.model import CLUSTER, ZONE, EndpointSlice, Service
from locator.state.store import Store, StoreOptions
from locator.topology.selection import ANY_ENDPOINT
from tests.kit.dns_queries import query

NODES, SERVICES, ENDPOINTS = 1_000, 2_000, 15
MOST = 5  # clusters
TIMES = 100  # changes
ASKED = 20_000  # times a remembered name
SIZE = f"{NODES:,} nodes, {NODES * 30:,} pods, {SERVICES:,} Services with {ENDPOINTS} endpoints each"
NAME = "service-00000.ns-0.svc.cluster.local"


class Several(NamedTuple):
    """The cost of some clusters: resident memory in MB, one change in the own and in another cluster, and an answer.

    Changes are in ms until answers show them (no other cluster: 0), a remembered answer is in microseconds.
    """

    clusters: int
    memory: float
    own: float
    other: float
    remembered: float


def measure() -> Iterator[Several]:
    """Measure one cluster alone, as a server without these flags has it, then one to MOST as a set."""
    for clusters in range(MOST + 1):
        ran = subprocess.run(
            [sys.executable, "-m", "bench.several", str(clusters)], capture_output=True, text=True, check=True
        )
        yield Several(*json.loads(ran.stdout))


def report(rows: Iterable[Several]) -> str:
    """Return the table."""
    head = ("clusters", "memory (MB)", "own change (ms)", "other's change (ms)", "remembered answer (µs)")
    found = [*rows]
    lines = [
        (
            "1, without a federation" if not row.clusters else str(row.clusters),
            f"{row.memory:.0f}",
            f"{row.own:.2f}",
            f"{row.other:.2f}" if row.other else "",
            f"{row.remembered:.2f}",
        )
        for row in found
    ]
    first, last = found[1], found[-1]
    linear = (last.memory - first.memory) / (last.clusters - first.clusters)
    text = f"Each cluster: {SIZE}; {SERVICES // 10} are exported. Each further cluster takes {linear:.0f} MB."
    return f"{text}\n\n{table(head, lines)}"


def _measured(number: int) -> Several:
    """Measure a number of clusters; 0 for one without a federation."""
    names = [f"c{position}" for position in range(max(1, number))]
    stores = {name: Store(StoreOptions(cluster=name, exports=bool(number))) for name in names}
    joining = Joining(frozenset(), default_constraint((CLUSTER, ZONE, ANY_ENDPOINT)))
    joined = ClusterSet(names[0], names[1:], joining)
    zones = (parse_zone("cluster.local"), replace(parse_zone("fed.example"), about=FEDERATION))
    counts = Counts()
    responder = Responder(Authority(zones, 5, spares=2), counts, draw=random.Random(1).getrandbits)
    changing: dict[str, EndpointSlice] = {}

    def take_in(name: str, now: float) -> None:
        snapshot = stores[name].publish(now)
        if not number:
            responder.publish(snapshot)
            return
        if name == names[0]:
            joined.update_own(snapshot)
        else:
            joined.update(name, snapshot)
        if joined.complete:
            responder.publish(joined.publish(now))

    for position in reversed(range(len(names))):
        name, objects = names[position], cluster(NODES, SERVICES, ENDPOINTS, 10 + position)
        for service in range(0, SERVICES, 10):
            objects[Service][service] = _exported(objects[Service][service])
        changing[name] = objects[EndpointSlice][10]
        for kind, of_kind in objects.items():
            stores[name].replace(kind, of_kind)
        del objects
        take_in(name, 0)
    gc.collect()
    memory = resident()
    gc.freeze()
    gc.disable()  # as the server does while it publishes
    took = []
    for name in names[:2]:
        times, rows = [], tuple(changing[name].endpoints)
        for turn in range(1, TIMES):
            began = time.perf_counter()
            stores[name].apply(Put(replace(changing[name], endpoints=compact(rows[turn % 2 :]))))
            take_in(name, turn)
            times.append(time.perf_counter() - began)
        took.append(median(times) * 1e3)
    question, source, channel = query(NAME), bytes((10, 0, 0, 9)), counts.channels["udp", 1]
    responder.answer(question, source, channel)
    began = time.perf_counter()
    for _ in range(ASKED):
        responder.answer(question, source, channel)
    remembered = (time.perf_counter() - began) / ASKED * 1e6
    return Several(number, memory, took[0], took[1] if len(took) > 1 else 0.0, remembered)


def _exported(service: Service) -> Service:
    annotations = {**service.annotations, "topodns.io/federated": "true"}
    return replace(service, annotations=annotations, ingress=("203.0.113.1",))


if __name__ == "__main__":
    print(json.dumps(_measured(int(sys.argv[1]))))
