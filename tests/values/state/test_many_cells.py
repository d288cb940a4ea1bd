# SPDX-License-Identifier: Apache-2.0

"""Balanced Services in clusters with many nodes and racks: however they came, plans and numbers are the same."""

from __future__ import annotations

import random
from collections import Counter

from locator.api.deltas import Delta, Drop, Put, Replace
from locator.endpoints import compact
from locator.ip import parse_address
from locator.model import HOSTNAME, ZONE, Endpoint, EndpointSlice, Node, Object, Pod, Service, kind_of
from locator.state.store import Store
from locator.topology.cells import FEW
from tests.kit.api_objects import topodns_annotations
from tests.kit.in_memory import NOW

KEYS = (f"rack,{ZONE},*", f"{HOSTNAME},{ZONE},*", f"{HOSTNAME},rack,*", "rack,*", f"{ZONE},rack", f"{HOSTNAME},*")
SERVICES = range(3)


class Drawn:
    """A cluster with about FEW nodes, and what changes in it."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self._size, self._racks = rng.choice((10, FEW - 4, FEW, FEW + 2, 100)), rng.choice((2, FEW - 4, FEW + 6, 200))
        clients = [self._client(f"c{number}") for number in range(3 * self._size)]
        self.first = [*(self._node(number) for number in range(self._size)), *map(self._service, SERVICES), *clients]
        self.first += [self._slice(number) for number in SERVICES]

    def change(self) -> Delta:
        """Return a change of a node, a client or the endpoints of a Service."""
        rng = self._rng
        somebody = f"c{rng.randrange(3 * self._size)}"
        drop = Drop(Node, f"n{self._a_number()}") if rng.randrange(2) else Drop(Pod, f"shop/{somebody}")
        put = rng.choice((self._node(self._a_number()), self._client(somebody), self._slice(rng.choice(SERVICES))))
        return drop if rng.randrange(4) == 0 else Put(put)

    def _a_number(self) -> int:
        return self._rng.randrange(self._size + 30)  # some are of no node so far

    def _node(self, number: int) -> Node:
        """Return a node with a name of its own, which a few do not have as their label."""
        rng = self._rng
        label = rng.choice((*[f"n{number}"] * 9, "same"))
        return Node(f"n{number}", {HOSTNAME: label, ZONE: rng.choice("abc"), "rack": f"r{rng.randrange(self._racks)}"})

    def _client(self, name: str) -> Pod:
        address = parse_address(f"10.1.{self._rng.randrange(250)}.{self._rng.randrange(250)}")
        phase = self._rng.choice(("Running", "Running", "Running", "Failed"))
        return Pod("shop", name, (address,), f"n{int(self._rng.random() ** 2 * (self._size + 5))}", phase=phase)

    def _service(self, number: int) -> Service:
        said = {"topology-keys": self._rng.choice(KEYS), "max-overload": self._rng.choice(("1.1", "1.5"))}
        return Service("shop", f"s{number}", headless=True, annotations=topodns_annotations(said))

    def _slice(self, number: int) -> EndpointSlice:
        rows = [
            Endpoint((parse_address(f"10.9.{number}.{at}"),), node=f"n{self._a_number()}", pod=f"e{number}-{at}")
            for at in range(self._rng.randrange(1, 7))
        ]
        return EndpointSlice("shop", f"s{number}-1", f"s{number}", compact(rows))


def listed(objects: list[Object]) -> Store:
    store = Store()
    for kind in store.kinds:
        store.apply(Replace(kind, [item for item in objects if kind_of(item) is kind]))
    return store


def test_a_table_that_changed_is_that_of_the_final_state() -> None:
    """Also where it has become large or small, and down to the last digit of every number."""
    found: Counter[bool] = Counter()
    for seed in range(60):
        drawn, rng = Drawn(seed), random.Random(seed)
        store, known, now = listed(drawn.first), {(kind_of(item), item.key): item for item in drawn.first}, NOW
        for _ in range(rng.randrange(60)):
            if rng.randrange(6) == 0:
                store.publish(now := now + rng.choice((1, 10)))
            change = drawn.change()
            store.apply(change)
            if isinstance(change, Put):
                known[kind_of(change.object), change.object.key] = change.object
            elif isinstance(change, Drop):
                known.pop((change.kind, change.key), None)
        store.publish(now)
        after = store.publish(now + 1000)
        objects = [*known.values()]
        rng.shuffle(objects)
        expected = listed(objects).publish(NOW)
        assert after.balances == expected.balances, seed
        for key, service in expected.services.items():
            assert after.services[key].plans == service.plans, (seed, key)
            found[bool(service.plans)] += 1
    assert min(found[True], found[False]) > 30, found
