# SPDX-License-Identifier: Apache-2.0

"""A federation of three real clusters, in which anything happens: in the end all is as the oracle says.

``tests/values/distribution/test_random_worlds.py`` has many more worlds, in memory.

Objects are created, changed and deleted, copies are changed by hand, clusters are cut off, and controllers are killed.
After each round, all clusters are back.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.kit.api_objects import Item, item
from tests.kit.federation import LABEL, WITHIN, Federation, running_federation
from tests.kit.random_creations import BROKEN, KINDS, drawn
from tests.kit.waiting import until
from tests.oracle.federation_creation import THEIRS, Creation, Found

SPACE = "random"
ROUNDS, EDITS = 3, 8


class World:
    """A federation, what was last written to it, and what the oracle says of it."""

    def __init__(self, federation: Federation, rng: random.Random) -> None:
        self.federation, self.rng = federation, rng
        self.names = sorted(federation.clusters)
        self.twin = Creation(self.names)
        self.objects: dict[str, Item] = {}  # as last written, by name
        self.valid: dict[str, Item] = {}  # as last written without mistake
        self.orphaned: set[str] = set()
        self._numbers = count()
        self._touched: set[str] = set()  # in this round
        federation.apply(item("ConfigMap", "first", SPACE, data={}))
        for name in self.names:
            federation.clusters[name].plane.kubectl("create", "namespace", SPACE)
        self.objects["first"] = self.valid["first"] = item("ConfigMap", "first", SPACE, data={})

    def play(self) -> None:
        """Do what may happen in a round; at most one thing with each object, so that what counts is certain."""
        self._touched = {"first"}
        away = self.rng.sample(self.names, self.rng.randint(0, len(self.names) - 1))
        at = self.rng.randrange(EDITS)
        for name in away:
            self._cut(name)
        for number in range(EDITS):
            if number == at:
                self._controllers()
            self._edit([name for name in self.names if name not in away])
        for name in away:
            self._bring_back(name)

    def _cut(self, name: str) -> None:
        plane = self.federation.clusters[name].plane
        if self.rng.random() < 0.5:
            plane.kill()
        else:
            plane.stop()

    def _bring_back(self, name: str) -> None:
        plane = self.federation.clusters[name].plane
        if plane.is_killed:
            plane.start()
        else:
            plane.wake()

    def _controllers(self) -> None:
        if self.rng.random() < 0.5:
            self.federation.controller().send(signal.SIGKILL)
            self.federation.further()

    def _edit(self, reachable: list[str]) -> None:
        rested = [name for name in self.objects if name not in self._touched]
        choice = self.rng.choice(
            ["create", "create", "change", "change", "break", "delete", "orphan", "hand", "theirs"]
        )
        if choice == "create" or (not rested and choice != "theirs"):
            self._write(drawn(self.rng, self.names, f"o{next(self._numbers)}", SPACE))
        elif choice == "theirs":
            self._theirs(self.rng.choice(reachable))
        elif choice == "hand":
            self._by_hand(self.rng.choice(rested), self.rng.choice(reachable))
        elif choice == "change":
            name = self.rng.choice(rested)
            self._write(drawn(self.rng, self.names, name, SPACE, self.objects[name]["kind"]))
        elif choice == "break":
            self._break(self.rng.choice(rested))
        else:
            self._delete(self.rng.choice(rested), orphan=choice == "orphan")

    def _write(self, made: Item) -> None:
        name = made["metadata"]["name"]
        self.objects[name] = self.valid[name] = made
        self._touched.add(name)
        self.federation.apply(made)

    def _break(self, name: str) -> None:
        made = drawn(self.rng, self.names, name, SPACE, self.objects[name]["kind"])
        wrong = self.rng.choice(BROKEN)
        made["metadata"]["annotations"] |= {f"topodns.io/{key}": text for key, text in wrong.items()}
        self.objects[name] = made
        self._touched.add(name)
        self.federation.apply(made)

    def _delete(self, name: str, *, orphan: bool) -> None:
        gone = self.objects.pop(name)
        if orphan:
            self.federation.annotate(gone, orphan="true")
            self.orphaned.add(name)
        del self.valid[name]
        self.federation.delete(gone)

    def _by_hand(self, name: str, cluster: str) -> None:
        """Change or delete a copy in a cluster."""
        found, kind = self.twin.there[cluster].get(name), self.objects[name]["kind"]
        if found is None or not found.ours or self.objects[name] is not self.valid[name]:
            return
        self._touched.add(name)
        api = self.federation.clusters[cluster].plane.api
        if self.rng.random() < 0.4:
            api.delete(self.objects[name])
            del self.twin.there[cluster][name]
        elif kind == "ConfigMap":
            api.patch(self.objects[name], {"data": {"a": "by hand"}})
        else:
            number = self.rng.randint(0, 9)
            api.patch(self.objects[name], {"spec": {"replicas": number}})
            self.twin.there[cluster][name] = Found(True, number)

    def _theirs(self, cluster: str) -> None:
        """Create somebody else's object, of a name that is free or will be ours."""
        name = f"o{next(self._numbers)}"
        self.federation.clusters[cluster].plane.api.create(item("ConfigMap", name, SPACE, data={THEIRS: "x"}))
        self.twin.there[cluster][name] = Found(False, {THEIRS: "x"})
        self._touched.add(name)
        if self.rng.random() < 0.7:
            self._write(drawn(self.rng, self.names, name, SPACE, "ConfigMap"))

    def found(self) -> dict[str, dict[str, Found]]:
        """Return what the clusters have."""
        return {name: dict(self._in(name)) for name in self.names}

    def _in(self, name: str) -> Any:
        for kind in KINDS:
            for copy in self.federation.clusters[name].plane.api.items(kind, SPACE):
                metadata = copy["metadata"]
                if metadata["name"] != "kube-root-ca.crt":
                    content = copy.get("data", {}) if kind == "ConfigMap" else copy["spec"]["replicas"]
                    yield metadata["name"], Found(LABEL in metadata.get("labels", {}), content)

    def states(self) -> Mapping[str, Mapping[str, str]]:
        return {name: self.federation.states(self.valid[name]) for name in self._judged()}

    def expected_states(self) -> Mapping[str, Mapping[str, str]]:
        return {name: self.twin.states(name, self.valid[name]) for name in self._judged()}

    def _judged(self) -> list[str]:
        return [name for name, made in self.valid.items() if made is self.objects[name]]


def difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{cluster}: {name} is {found[cluster].get(name)}, not {expected[cluster].get(name)}"
        for cluster in expected
        for name in sorted({*found.get(cluster, ()), *expected[cluster]})
        if found.get(cluster, {}).get(name) != expected[cluster].get(name)
    )


@pytest.mark.slow
def test_a_random_world(tmp_path: Path) -> None:
    """Whatever happened: soon all clusters have what the oracle says, and each object's status says so."""
    with running_federation(tmp_path, [*"abc"]) as federation:
        world = World(federation, random.Random(2))
        federation.controller()
        for _ in range(ROUNDS):
            world.play()
            world.twin.settle(world.valid, world.orphaned)
            expected = world.twin.there
            until(
                lambda expected=expected: world.found() == expected,
                lambda expected=expected: difference(world.found(), expected),
                within=WITHIN,
            )
            until(
                lambda: world.states() == world.expected_states(),
                lambda: difference(world.states(), world.expected_states()),
                within=WITHIN,
            )
