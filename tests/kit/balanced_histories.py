# SPDX-License-Identifier: Apache-2.0

"""Random histories of balanced Services: of their pods and clients, of nodes, and of what they ask for.

Hypothesis alone would draw few in which anybody is overloaded.
"""

from __future__ import annotations

import random
from typing import Any

from locator.api.deltas import Drop, Put, Replace
from locator.endpoints import compact
from locator.labels import Selector, requirement
from locator.model import (
    RUNNING,
    ZONE,
    ClientPod,
    Endpoint,
    EndpointSlice,
    Node,
    Object,
    Pod,
    PodLocator,
    Service,
    ServicePolicy,
    kind_of,
)
from locator.topology.constraints import PREFERRED, REQUIRED
from tests.kit.store_histories import ADDRESSES, POD_LABELS, PUBLISH, canonical

KEYS = (f"{ZONE},*", f"{ZONE},*", f"rack,{ZONE},*", ZONE, "kubernetes.io/hostname,rack", "rack,*", "")
OVERLOADS = ("1.1", "1.1", "1.5", "2", "none")
CLIENTS = ("", "", "", "shop", "shop/app=a", "lab/tier!=a; shop/app in (a,b)", "shop/app,tier!=b", "shop/app=")
PHASES = (*[RUNNING] * 6, "Pending", "Succeeded", "Failed")
WEIGHTS: dict[Any, int] = {
    Pod: 8, PodLocator: 4, Node: 2, EndpointSlice: 2, Service: 2, ServicePolicy: 1, PUBLISH: 3, Drop: 3, Replace: 1
}  # fmt: skip


class BalancedHistory:
    """A cluster that changes, drawn by *seed*: ``events`` are deltas, and ``PUBLISH``."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self._known: dict[type[Object], dict[str, Any]] = {}
        self.events: list[Any] = []
        for node in range(4):
            self._put(self._node(f"n{node}"))
        self._put(self._service("web"))
        for kind in (*[EndpointSlice] * 2, *[Pod] * rng.randrange(25), *[PodLocator] * rng.randrange(12)):
            self._put(self._drawn(kind))
        rng.shuffle(self.events)
        for happens in rng.choices([*WEIGHTS], [*WEIGHTS.values()], k=rng.randrange(30)):
            self.events.append(PUBLISH) if happens == PUBLISH else self._happens(happens)

    def _happens(self, what: Any) -> None:
        kind = self._rng.choice([*self._known])
        known = self._known[kind]
        if what is Drop:
            key = self._rng.choice([*known, "shop/none"])
            known.pop(key, None)
            self.events.append(Drop(kind, key))
        elif what is Replace:
            rows = [row for row in known.values() if self._rng.randrange(8)]
            self._known[kind] = {row.key: row for row in rows}
            read = frozenset(key for key in POD_LABELS if self._rng.randrange(2)) if kind is Pod else frozenset[str]()
            self.events.append(Replace(kind, rows, labels=read))
        else:
            self._put(self._drawn(what))

    def _put(self, item: Object) -> None:
        self._known.setdefault(kind_of(item), {})[item.key] = item
        self.events.append(Put(item))

    def _drawn(self, kind: type[Object]) -> Object:
        rng = self._rng
        name, address, node = f"p{rng.randrange(30)}", rng.choice(ADDRESSES[:9]), self._a_node()
        if kind is Pod:
            own = {key: rng.choice("ab") for key in POD_LABELS if rng.randrange(3)}
            held = tuple(rng.sample(ADDRESSES[:12], rng.choice((0, 1, 1, 1, 2))))
            return ClientPod(
                rng.choice(("shop", "shop", "lab")), name, held, node, phase=rng.choice(PHASES), labels=own
            )
        if kind is PodLocator:
            said = {key: rng.choice("ab") for key in (ZONE, "rack") if rng.randrange(4)}
            return PodLocator("shop", name, (address,), node, canonical(node, said))
        if kind is Node:
            return self._node(rng.choice(("n0", "n1", "n2", "n3", "n4")))
        if kind is Service:
            return self._service(rng.choice(("web", "web", "api")))
        if kind is ServicePolicy:
            mine = Selector((requirement("app", "in", ["1"]),))
            return ServicePolicy("shop", rng.choice("qr"), "2024", mine, rng.choice((ZONE, "rack")),
                                 rng.choice((REQUIRED, PREFERRED, PREFERRED)))  # fmt: skip
        rows = [
            Endpoint(
                (rng.choice(ADDRESSES[:9]),), node=self._a_node(), ready=rng.random() < 0.8,
                pod=rng.choice((None, "p0", "p1", "p2", "p99")), pod_namespace=rng.choice((*[None] * 5, "lab")),
            )
            for _ in range(rng.choice((1, 2, 3, 4)))
        ]  # fmt: skip
        return EndpointSlice("shop", rng.choice("xy"), rng.choice(("web", "web", "api")), compact(rows))

    def _a_node(self) -> str | None:
        return self._rng.choice(("n0", "n0", "n0", "n1", "n1", "n2", "n3", "n4", "gone", None))

    def _node(self, name: str) -> Node:
        return Node(name, canonical(name, {ZONE: self._rng.choice("aab"), "rack": self._rng.choice("abc")}))

    def _service(self, name: str) -> Service:
        rng = self._rng
        asked = {
            "topology-keys": rng.choice(KEYS),
            "max-overload": rng.choice(OVERLOADS),
            "clients": rng.choice(CLIENTS),
        }
        return Service(
            "shop", name, headless=rng.random() < 0.9, labels={"app": rng.choice("12")},
            annotations={f"topodns.io/{key}": text for key, text in asked.items() if text},
            publishes_unready=rng.random() < 0.1, traffic_distribution=rng.choice(("", "PreferClose")),
        )  # fmt: skip
