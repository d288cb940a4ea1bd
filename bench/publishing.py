# SPDX-License-Identifier: Apache-2.0

"""How long the store takes for one change and its snapshot, in a cluster at the limits that Kubernetes publishes.

The objects are made here, without reading anything.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from bench.tables import table, verdict
from locator.api.deltas import Delta, Drop, Put
from locator.endpoints import compact
from locator.ip import Network
from locator.model import (
    HOSTNAME,
    SLICE_CONTROLLER,
    ZONE,
    Endpoint,
    EndpointSlice,
    Namespace,
    Node,
    Object,
    Pod,
    Port,
    Service,
)
from locator.state.store import Store

NODES = 5_000
PODS = 150_000
SERVICES = 10_000
NAMESPACES = 200
ENDPOINTS = PODS // SERVICES
TIMES = 200  # changes of each kind
MILLISECONDS = 20.0  # at most to publish a change
SIZE = f"{NODES:,} nodes, {PODS:,} pods, {SERVICES:,} Services with {ENDPOINTS} endpoints each"

Objects = dict[type[Object], list[Any]]


class Published(NamedTuple):
    """The cost of one kind of change.

    ``apply`` is the median time to apply it to the store in microseconds; ``publish`` and ``most`` are the median and
    the longest time to make the next snapshot in milliseconds.
    """

    change: str
    apply: float
    publish: float
    most: float


def measure() -> Iterator[Published]:
    """Fill a store, then apply and publish each kind of change many times."""
    objects, store, rng = cluster(), Store(), random.Random(1)
    gc.collect()
    gc.freeze()
    gc.disable()  # as the server does while it publishes; collection pauses are not measured here
    began = time.perf_counter()
    for kind, every in objects.items():
        store.replace(kind, every)
    applied = time.perf_counter()
    store.publish(0)
    took = (time.perf_counter() - applied) * 1e3
    yield Published("start: all objects", (applied - began) * 1e6, took, took)
    for name, make in CHANGES.items():
        yield _measured(name, store, [make(objects, rng) for _ in range(TIMES)])


def _measured(name: str, store: Store, changes: Sequence[Sequence[Delta]]) -> Published:
    applies, publishes = [], []
    for number, deltas in enumerate(changes):
        began = time.perf_counter()
        for delta in deltas:
            store.apply(delta)
        applied = time.perf_counter()
        store.publish(number)
        publishes.append((time.perf_counter() - applied) * 1e3)
        applies.append((applied - began) * 1e6)
    return Published(name, median(applies), median(publishes), max(publishes))


def report(changes: Iterable[Published]) -> str:
    """Return the table of what each kind of change costs."""
    rows = [
        (
            cost.change,
            f"{cost.apply:,.1f} µs",
            f"{cost.publish:,.2f} ms",
            f"{cost.most:,.2f} ms",
            verdict(cost.most, MILLISECONDS if cost.change in CHANGES else None, "≤ {:.0f} ms"),
        )
        for cost in changes
    ]
    return f"{table(('change', 'apply', 'publish', 'longest publish', 'target'), rows)}\nThe cluster: {SIZE}.\n"


def cluster(annotations: Mapping[str, str] = MappingProxyType({})) -> Objects:
    """Return the objects of the cluster, all Services with these *annotations* besides their topology keys."""
    ports = (Port("main", 80),)
    objects: Objects = {Namespace: [Namespace(f"ns-{number}") for number in range(NAMESPACES)]}
    objects[Node] = [_node(number) for number in range(NODES)]
    objects[Pod], objects[Service], objects[EndpointSlice] = [], [], []
    for number in range(SERVICES):
        space, name = f"ns-{number % NAMESPACES}", f"service-{number:05}"
        endpoints = []
        for position in range(number * ENDPOINTS, (number + 1) * ENDPOINTS):
            node, pod = node_of(position), f"{name}-{position:06}"
            address = bytes((10, node >> 8, node & 255, position // NODES + 2))
            objects[Pod].append(Pod(space, pod, (address,), _name(node), created="2024-01-01T00:00:00Z"))
            endpoints.append(Endpoint((bytes(bytearray(address)),), ports, node=_name(node), pod=pod))
        said = {"topodns.io/topology-keys": f"{ZONE},*", **annotations}
        objects[Service].append(Service(space, name, headless=True, ports=ports, selects_pods=True, annotations=said))
        made = EndpointSlice(space, f"{name}-1", name, compact(endpoints), managed_by=SLICE_CONTROLLER)
        objects[EndpointSlice].append(made)
    return objects


def node_of(pod: int, generation: int = 0) -> int:
    """Return the number of the node that a pod is on, by chance; each node has as many pods as the others.

    *generation* is how many pods have been in its place before: each is on another node.
    """
    row, place = divmod(pod, NODES)
    return _nodes_by_chance(row)[(place + generation) % NODES]


@cache
def _nodes_by_chance(row: int) -> Sequence[int]:
    return random.Random(row).sample(range(NODES), NODES)


def new_pod(namespace: str, rng: random.Random) -> Pod:
    """Return a pod that runs on a node at random."""
    node = rng.randrange(NODES)
    address = bytes((10, node >> 8, node & 255, rng.randrange(100, 250)))
    return Pod(namespace, f"new-{rng.randrange(10**9)}", (address,), _name(node), created="2026")


def _name(node: int) -> str:
    return f"node-{node:04}"


def _node(number: int) -> Node:
    high, low = number >> 8, number & 255
    labels = {HOSTNAME: _name(number), ZONE: "abc"[number % 3]}
    return Node(_name(number), labels, (bytes((172, 16, high, low)),), (Network(bytes((10, high, low, 0)), 24),))


def _changed_slice(objects: Objects, rng: random.Random) -> list[Delta]:
    changed = rng.choice(objects[EndpointSlice])
    endpoints = [replace(endpoint) for endpoint in changed.endpoints]  # a watch sends the slice whole
    position = rng.randrange(len(endpoints))
    endpoints[position] = replace(endpoints[position], hostname=f"h{rng.randrange(10**6)}")
    return [Put(replace(changed, endpoints=compact(endpoints)))]


def _moved_pod(objects: Objects, rng: random.Random) -> list[Delta]:
    pod = rng.choice(objects[Pod])
    return [Put(replace(pod, node=_name(rng.randrange(NODES)), created=f"2025-{rng.randrange(10**6)}"))]


def _new_pod(objects: Objects, rng: random.Random) -> list[Delta]:
    return [Put(new_pod("ns-0", rng))]


def _relabelled_node(objects: Objects, rng: random.Random) -> list[Delta]:
    node = rng.choice(objects[Node])
    return [Put(replace(node, labels={**node.labels, ZONE: f"z{rng.randrange(10**6)}"}))]


def _replaced_node(objects: Objects, rng: random.Random) -> list[Delta]:
    node = rng.choice(objects[Node])
    return [Drop(Node, node.key), Put(node)]


def _annotated_service(objects: Objects, rng: random.Random) -> list[Delta]:
    service = rng.choice(objects[Service])
    return [Put(replace(service, annotations={"topodns.io/topology-keys": f"key-{rng.randrange(10**6)}"}))]


def _heartbeat(objects: Objects, rng: random.Random) -> list[Delta]:
    return [Put(replace(rng.choice(objects[Namespace])))]


def _hundred_pods(objects: Objects, rng: random.Random) -> list[Delta]:
    return [delta for _ in range(100) for delta in _moved_pod(objects, rng)]


CHANGES: dict[str, Callable[[Objects, random.Random], list[Delta]]] = {
    "EndpointSlice: one endpoint": _changed_slice,
    "Pod: new": _new_pod,
    "Pod: on another node": _moved_pod,
    "100 Pods: on other nodes": _hundred_pods,
    "Node: another label": _relabelled_node,
    "Node: deleted and created again": _replaced_node,
    "Service: another annotation": _annotated_service,
    "object sent again, unchanged": _heartbeat,
}
