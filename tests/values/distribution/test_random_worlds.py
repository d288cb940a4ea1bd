# SPDX-License-Identifier: Apache-2.0

"""Federations in memory, in which anything happens: in the end all is as the oracle says."""

from __future__ import annotations

import copy
import random
from itertools import count

import pytest

from tests.kit.api_objects import Item, item
from tests.kit.federation_world import LABEL, World, key_of
from tests.kit.random_creations import BROKEN, KINDS, drawn
from tests.oracle.federation_creation import THEIRS, Creation, Found

SPACE = "random"
ROUNDS, EDITS = 6, 10
WORLDS = 8  # of each number of clusters


class History:
    """What happens in a world, and what the oracle says of it. Each object is touched once in a round at most."""

    def __init__(self, clusters: str, seed: int) -> None:
        self.rng, self.names = random.Random(seed), [*clusters]
        self.world, self.twin = World(*clusters), Creation(clusters)
        self.objects: dict[str, Item] = {}  # as last written, by name
        self.valid: dict[str, Item] = {}  # as last written without mistake
        self.orphaned: set[str] = set()
        self._numbers = count()
        self._touched: set[str] = set()
        self._write(item("ConfigMap", "first", SPACE, data={}))  # an empty federation API deletes nothing

    def play(self) -> None:
        """Play a round, at whose end all clusters are back."""
        self._touched = {"first"}
        away = self.rng.sample(self.names, self.rng.randint(0, len(self.names) - 1))
        for name in away:
            self.world.cut(name)
        for _ in range(EDITS):
            self._edit([name for name in self.names if name not in away])
            if self.rng.random() < 0.2:
                self.world.start()
            if self.rng.random() < 0.7:
                self.world.wait(self.rng.random() * 20.0)
        for name in away:
            self.world.heal(name)
        self.world.wait(60.0)
        self.world.wait(60.0)
        self.twin.settle(self.valid, self.orphaned)

    def _edit(self, reachable: list[str]) -> None:
        rested = [name for name in self.objects if name not in self._touched]
        choice = self.rng.choice(
            ["create", "create", "change", "change", "break", "delete", "orphan", "hand", "theirs"]
        )
        if choice == "create" or not rested:
            self._write(drawn(self.rng, self.names, f"o{next(self._numbers)}", SPACE))
        elif choice == "theirs":
            self._theirs(self.rng.choice(reachable))
        elif choice == "hand":
            self._by_hand(self.rng.choice(rested), self.rng.choice(reachable))
        else:
            name = self.rng.choice(rested)
            made = drawn(self.rng, self.names, name, SPACE, self.objects[name]["kind"])
            if choice == "change":
                self._write(made)
            elif choice == "break":
                wrong = self.rng.choice(BROKEN)
                made["metadata"]["annotations"] |= {f"topodns.io/{key}": text for key, text in wrong.items()}
                self._touched.add(name)
                self.objects[name] = made
                self.world.federation.put(made)
            else:
                self._delete(name, orphan=choice == "orphan")

    def _write(self, made: Item) -> None:
        name = made["metadata"]["name"]
        self.objects[name] = self.valid[name] = made
        self._touched.add(name)
        self.world.federation.put(made)

    def _delete(self, name: str, *, orphan: bool) -> None:
        gone = self.objects.pop(name)
        del self.valid[name]
        if orphan:
            gone["metadata"]["annotations"]["topodns.io/orphan"] = "true"
            self.orphaned.add(name)
            self.world.federation.put(gone)
        self._touched.add(name)
        self.world.federation.remove(key_of(gone))

    def _by_hand(self, name: str, cluster: str) -> None:
        """Change or delete a copy in a cluster."""
        found, server = self.twin.there[cluster].get(name), self.world.servers[cluster]
        key = key_of(self.objects[name])
        if found is None or not found.ours or self.objects[name] is not self.valid[name]:
            return
        self._touched.add(name)
        changed = copy.deepcopy(server.items[key])
        if self.rng.random() < 0.4:
            server.remove(key)
            del self.twin.there[cluster][name]
        elif key.kind == "ConfigMap":
            changed["data"]["a"] = "by hand"
            server.put(changed)
        else:
            changed["spec"]["replicas"] = number = self.rng.randint(0, 9)
            for managed in changed["metadata"]["managedFields"]:
                managed["fieldsV1"]["f:spec"].pop("f:replicas", None)
            server.put(changed)
            self.twin.there[cluster][name] = Found(True, number)

    def _theirs(self, cluster: str) -> None:
        """Create somebody else's object, of a name that is free or will be ours."""
        name = f"o{next(self._numbers)}"
        self.world.servers[cluster].put(item("ConfigMap", name, SPACE, data={THEIRS: "x"}))
        self.twin.there[cluster][name] = Found(False, {THEIRS: "x"})
        if self.rng.random() < 0.7:
            self._write(drawn(self.rng, self.names, name, SPACE, "ConfigMap"))

    def found(self) -> dict[str, dict[str, Found]]:
        """Return what the clusters have."""
        return {
            name: {
                each["metadata"]["name"]: Found(
                    LABEL in each["metadata"].get("labels", {}),
                    each["data"] if key.kind == "ConfigMap" else each["spec"]["replicas"],
                )
                for key, each in self.world.servers[name].items.items()
                if key.kind in KINDS
            }
            for name in self.names
        }


@pytest.mark.parametrize("clusters", ["ab", "abc", "abcd"], ids=["two", "three", "four"])
@pytest.mark.parametrize("seed", range(WORLDS))
def test_any_history_ends_as_the_oracle_says(clusters: str, seed: int) -> None:
    history = History(clusters, seed)
    for _ in range(ROUNDS):
        history.play()
        assert history.found() == history.twin.there
        judged = [name for name, made in history.valid.items() if made is history.objects[name]]
        for name in judged:
            told = history.world.status(history.objects[name]["kind"], f"{SPACE}/{name}")
            states = {cluster: one["state"] for cluster, one in told.items()}
            assert states == history.twin.states(name, history.valid[name])
        written = history.world.written()
        history.world.start()
        history.world.wait(60.0)
        assert history.world.written() == written
