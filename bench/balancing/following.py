# SPDX-License-Identifier: Apache-2.0

"""How plans follow the largest cluster in one process: how soon all do, and how many change while it changes."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from bench.publishing import ENDPOINTS, PODS, SERVICES, Objects, cluster, new_pod
from locator.api.deltas import Delta, Drop, Put
from locator.endpoints import compact
from locator.model import EndpointSlice, Pod, Service
from locator.state.store import Store
from locator.topology.annotations import MAX_OVERLOAD

CHANGES = 500  # pods, and as many slices, in each second
PUBLICATIONS = 20  # in a second while the cluster changes
SECONDS = 10  # for which it does


class Followed(NamedTuple):
    """How plans follow pods that are on other nodes.

    ``planned`` is how many Services pass somebody on. ``took`` and ``cpu`` are the seconds, and those of CPU, until all
    plans follow pods that have come and are no endpoints. ``changed`` is how many Services get another plan in each
    second while endpoints change, and ``alone`` how many of these because of the numbers of their clients alone.
    """

    planned: int
    took: float
    cpu: float
    changed: float
    alone: float


def measure(max_overload: str) -> Followed:
    """Balance all Services of a store, then change its cluster. The time is simulated, the work is not."""
    objects, store, rng = cluster({MAX_OVERLOAD: max_overload}), Store(), random.Random(1)
    gc.collect()
    gc.freeze()
    gc.disable()  # as in the part 'publishing'
    for kind, every in objects.items():
        store.replace(kind, every)
    snapshot = store.publish(0.0)
    planned = sum(bool(service.plans) for service in snapshot.services.values())
    for _ in range(CHANGES):
        store.apply(Put(new_pod("ns-0", rng)))
    now = began = 1.0
    cpu = time.process_time()
    store.publish(now, time.perf_counter)
    while (due := store.due) is not None:
        now = due + 0.001  # as the server, which never wakes up too early
        store.publish(now, time.perf_counter)
    took, cpu = now - began, time.process_time() - cpu
    every, alone = zip(*_churning(store, objects, now, rng), strict=True)
    return Followed(planned, took, cpu, sum(every) / SECONDS, sum(alone) / SECONDS)


def report(followed: Followed) -> str:
    """Return a sentence."""
    return (
        f"Of {SERVICES:,} Services, {followed.planned:,} pass somebody on. All plans follow the numbers of clients "
        f"within {followed.took:.0f} s, which takes {followed.cpu:.1f} s of CPU. While {CHANGES} endpoints are "
        f"replaced in each second, {followed.changed:.0f} Services get another plan, {followed.alone:.0f} of them "
        "because of the numbers alone.\n"
    )


def _churning(store: Store, objects: Objects, now: float, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Replace pods; yield how many Services each publication gives another plan, and how many without another slice."""
    before = store.publish(now)
    for _ in range(SECONDS * PUBLICATIONS):
        touched = set[str]()
        for _ in range(CHANGES // PUBLICATIONS):
            position = rng.randrange(PODS)
            touched.add(objects[Service][position // ENDPOINTS].key)
            for delta in _replaced(objects, position, rng):
                store.apply(delta)
        now += 1 / PUBLICATIONS
        after = store.publish(now, time.perf_counter)
        others = {key for key, service in after.services.items() if service.plans != before.services[key].plans}
        yield len(others), len(others - touched)
        before = after


def _replaced(objects: Objects, position: int, rng: random.Random) -> list[Delta]:
    """Put another pod in the place of one that is an endpoint; keep *objects* up to date."""
    service, place = divmod(position, ENDPOINTS)
    pod, known = objects[Pod][position], objects[EndpointSlice][service]
    after = objects[Pod][position] = new_pod(pod.namespace, rng)
    endpoints = [*known.endpoints]
    endpoints[place] = replace(endpoints[place], addresses=after.addresses, node=after.node, pod=after.name)
    changed = objects[EndpointSlice][service] = replace(known, endpoints=compact(endpoints))
    return [Drop(Pod, pod.key), Put(after), Put(changed)]
